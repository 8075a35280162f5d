"""The options of a read and of a write, checked.

1. Options and their meanings are those of Spark's own Kafka source, so that a job can change the format and stay as it
   is. What is unknown or contradictory is refused with a sentence; nothing is ignored.
2. Plain data only: options are pickled into other processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from protocols.native.connection import addresses_of
from spark_bridge.option_values import (
    COUNT_MAX,
    NAME_CHARACTERS_MAX,
    ByPartition,
    assignment,
    by_partition,
    count_of,
    duration_ms,
    flag_of,
    json_object,
    known_options,
    mqtt_filter,
    name_of,
    names_in,
    one_of,
    timestamp_ms,
    topic_pattern,
)
from spark_bridge.option_values import OptionError as OptionError

EARLIEST = -2
LATEST = -1
DEFAULT_VHOST = "/"

_SERVERS = ("millrace.servers", "bootstrap.servers", "kafka.bootstrap.servers")
_TOPICS = ("subscribe", "subscribePattern", "assign", "queue", "mqtt.filter")
_MODE = "queue.mode"
_VHOST = "millrace.vhost"
_STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_ACCESS = (
    "millrace.user",
    "millrace.password",
    "millrace.tls",
    "millrace.tls.ca",
    "millrace.tls.cert",
    "millrace.tls.key",
)
_WHERE = "headers.where"
_ISOLATION = ("isolation.level", "kafka.isolation.level")
_OTHERS = (
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "includeProperties",
    "minPartitions",
    _MODE,
    _VHOST,
    "maxRecordsPerPartition",
    "read.mode",
    "read.dataDir",
    _WHERE,
    *_ISOLATION,
)
_PUSH_DOWN = "filterPushdown"
_DISORDER = "timestampDisorderMs"
_LEAST = "minOffsetsPerTrigger"
_DELAY = "maxTriggerDelay"
_STREAM = ("maxOffsetsPerTrigger", _LEAST, _DELAY, "groupIdPrefix", "kafka.group.id", "leaseMs")
_BATCH_OPTIONS = (*_SERVERS, *_TOPICS, *_STARTS, *_ENDS, _PUSH_DOWN, _DISORDER, *_OTHERS, *_ACCESS)
_STREAM_OPTIONS = (*_SERVERS, *_TOPICS, *_STARTS, *_STREAM, *_OTHERS, *_ACCESS)
_COMPRESSION = ("compression", "kafka.compression.type")
_TRANSACTION = ("txnAppId", "txnVersion")
_SINK_OPTIONS = (
    *_SERVERS, "topic", "exchange", "routingKey", _VHOST, *_COMPRESSION, *_TRANSACTION, "transactionTimeoutMs",
    "checkpointLocation", "queryName", *_ACCESS,
)  # fmt: skip
KNOWN_OPTIONS = (*_SERVERS, *_TOPICS, *_STARTS, *_ENDS, _PUSH_DOWN, _DISORDER, *_STREAM, *_OTHERS, *_ACCESS)
GROUP_PREFIX = "spark-millrace-source"
_DIGEST_CHARACTERS = 12
SINK_PREFIX = "spark-millrace-sink-3"
"""Of what tells that a task is done. Another one whenever `divide` shares ranges out otherwise: a task of that number
which an earlier version has done may have had other rows, and those of this one would be left out.
"""
JOB_CHARACTERS_MAX = NAME_CHARACTERS_MAX - len(f"{SINK_PREFIX}--{2**31 - 1}")
"""The name under which each task is known to a broker ends in the task's number."""
LEASE_MS = 3_600_000
CONSUME_LEASE_MS = 86_400_000
TRIGGER_DELAY_MS = 900_000


@dataclass(frozen=True)
class Boundary:
    """One end of what is read: a number for all partitions or one for each, offsets or timestamps in ms."""

    value: int | ByPartition
    is_time: bool
    option: str

    def of(self, topic: str, partition: int) -> int:
        """The number for one partition."""
        return self.value if isinstance(self.value, int) else self.value[topic][partition]


@dataclass(frozen=True)
class Access:
    """How to connect: a user, and files in PEM for TLS. All are read where a task runs."""

    credentials: tuple[str, str] | None = None
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class ReadOptions:
    """The options of one read, checked. Exactly one of `topics`, `pattern`, `assignment`, `queue` and `mqtt_filter` is
    set.
    """

    servers: tuple[str, ...]
    topics: tuple[str, ...] | None
    pattern: str | None
    assignment: dict[str, list[int]] | None
    start: Boundary
    end: Boundary
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    """What is made of records; see `schema.py`."""
    start_time_missing: Literal["error", "latest"]
    input_partitions_min: int
    access: Access = Access()
    records_per_partition_max: int = 0
    """Ranges of more records than that are cut; 0 is no limit."""
    offsets_per_trigger_max: int = 0
    """How much a micro-batch takes at most, 0 is all there is."""
    offsets_per_trigger_min: int = 0
    """Fewer are left to wait for more, but no longer than for so long."""
    trigger_delay_ms_max: int = TRIGGER_DELAY_MS
    lease_ms: int = 0
    """For how long what a stream has not read is kept for it; 0 is not at all."""
    push_down: bool = False
    """Whether filters of queries may be looked at, to read less."""
    disorder_ms: int | None = None
    """How much older records may be than those before them; None: nobody knows."""
    group: str = ""
    """The group by whose offsets the broker shows how far a stream has come; the reader for whom messages of a queue
    are set aside.
    """
    queue: str | None = None
    consumes: bool = False
    """Whether messages leave the queue."""
    mqtt_filter: str | None = None
    vhost: str = DEFAULT_VHOST
    """The virtual host of queue or filter."""
    headers_where: tuple[tuple[str, str], ...] = ()
    """Headers, by name and value, that a record must have to be a row."""
    data_dir: str | None = None
    """Where tasks may read the broker's files themselves."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write, checked."""

    servers: tuple[str, ...]
    topic: str | None
    compression: str | None
    transaction_timeout_ms: int
    access: Access = Access()
    job: str | None = None
    """Of a batch write: under which name it is known, so that it takes effect once."""
    version: int = 0
    """The number of the write among those of its job; they rise."""
    exchange: str | None = None
    """Rows are published to it, instead of written to a topic."""
    routing_key: str | None = None
    vhost: str = DEFAULT_VHOST
    """Of the exchange."""


def included(options: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether headers, and what a message is besides, were asked for. Raises `OptionError`."""
    given = known_options(options, KNOWN_OPTIONS, "of a read")
    return flag_of(given, "includeHeaders", default=False), flag_of(given, "includeProperties", default=False)


def parse_options(options: Mapping[str, str], *, columns: tuple[str, ...] = (), streaming: bool = False) -> ReadOptions:
    """Check the options of a read (names in any case). Raises `OptionError`."""
    included(options)
    known = _STREAM_OPTIONS if streaming else _BATCH_OPTIONS
    given = known_options(options, known, "of readStream" if streaming else "of read")
    servers = one_of(given, _SERVERS, required=True)
    chosen = one_of(given, _TOPICS, required=True)
    start = _boundary(given, _STARTS, default=LATEST if streaming else EARLIEST, refused=None if streaming else LATEST)
    end = _boundary(given, _ENDS, default=LATEST, refused=EARLIEST)
    _check_isolation(given)
    consumes = _consumes(given, start, streaming=streaming)
    return ReadOptions(
        servers=_servers(str(servers), given[str(servers)]),
        topics=names_in("subscribe", given["subscribe"]) if chosen == "subscribe" else None,
        pattern=topic_pattern(given["subscribePattern"]) if chosen == "subscribePattern" else None,
        assignment=assignment(given["assign"]) if chosen == "assign" else None,
        start=start,
        end=end,
        fail_on_data_loss=flag_of(given, "failOnDataLoss", default=True),
        columns=columns,
        start_time_missing=_strategy(given, start),
        input_partitions_min=count_of(given, "minPartitions"),
        access=access_of(given),
        records_per_partition_max=count_of(given, "maxRecordsPerPartition", default=0),
        offsets_per_trigger_max=count_of(given, "maxOffsetsPerTrigger", default=0),
        offsets_per_trigger_min=_least(given, consumes=consumes),
        trigger_delay_ms_max=duration_ms(given, _DELAY, default=TRIGGER_DELAY_MS),
        lease_ms=_lease(given, consumes=consumes) if streaming else 0,
        push_down=flag_of(given, _PUSH_DOWN, default=False),
        disorder_ms=count_of(given, _DISORDER, default=0, least=0) if _DISORDER in given else None,
        group=_group(given, consumes=consumes) if streaming else "",
        queue=name_of(given, "queue"),
        headers_where=_headers_where(given, consumes=consumes),
        data_dir=_data_dir(given),
        consumes=consumes,
        mqtt_filter=mqtt_filter(given["mqtt.filter"]) if chosen == "mqtt.filter" else None,
        vhost=_vhost(given, ("queue", "mqtt.filter")),
    )


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write. Raises `OptionError`."""
    given = known_options(options, _SINK_OPTIONS, "of write")
    servers = one_of(given, _SERVERS, required=True)
    compression = one_of(given, _COMPRESSION)
    codec = None if compression is None or given[compression] == "none" else given[compression]
    if codec not in (None, "gzip", "snappy", "lz4", "zstd"):
        raise OptionError(f"{compression} must be none, gzip, snappy, lz4 or zstd, not {codec!r}")
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise OptionError("txnAppId and txnVersion are given together or not at all")
    one_of(given, ("topic", "exchange"))
    if "routingKey" in given and "exchange" not in given:
        raise OptionError("routingKey needs the option exchange")
    return SinkOptions(
        servers=_servers(str(servers), given[str(servers)]),
        topic=name_of(given, "topic"),
        compression=codec,
        transaction_timeout_ms=count_of(given, "transactionTimeoutMs", default=300_000, most=2**31 - 1),
        access=access_of(given),
        job=name_of(given, "txnAppId", most=JOB_CHARACTERS_MAX),
        version=count_of(given, "txnVersion", default=0, least=0, most=COUNT_MAX - 1),
        exchange=given.get("exchange"),
        routing_key=given.get("routingKey"),
        vhost=_vhost(given, ("exchange",)),
    )


def _servers(option: str, text: str) -> tuple[str, ...]:
    names = names_in(option, text)
    try:
        addresses_of(names)
    except ValueError as error:
        raise OptionError(f"{option}: {error}") from None
    return names


def _check_isolation(given: Mapping[str, str]) -> None:
    chosen = one_of(given, _ISOLATION)
    if chosen is not None and given[chosen] != "read_committed":
        raise OptionError(f"{chosen}: only read_committed is there, not {given[chosen]!r}")


def _vhost(given: Mapping[str, str], needs: tuple[str, ...]) -> str:
    if _VHOST in given and not any(name in given for name in needs):
        raise OptionError(f"{_VHOST} needs the option {' or '.join(needs)}: topics are of no virtual host")
    return given.get(_VHOST, DEFAULT_VHOST)


def _headers_where(given: Mapping[str, str], *, consumes: bool) -> tuple[tuple[str, str], ...]:
    if _WHERE not in given:
        return ()
    if consumes:
        raise OptionError(f"{_WHERE}: what is consumed leaves the queue, and other rows would be lost; browse it")
    wanted = json_object(_WHERE, given[_WHERE])
    if not wanted or not all(isinstance(value, str) for value in wanted.values()):
        raise OptionError(f'{_WHERE} must look like {{"name": "value"}}, not {given[_WHERE]}')
    for text in (*wanted, *wanted.values()):
        if any("\ud800" <= one <= "\udfff" for one in text):
            raise OptionError(f"{_WHERE}: {text!r} cannot be a header's: it is no text in UTF-8")
    return tuple(sorted(wanted.items()))


def _data_dir(given: Mapping[str, str]) -> str | None:
    mode = given.get("read.mode", "fetch").lower()
    if mode not in ("fetch", "direct"):
        raise OptionError(f"read.mode must be fetch or direct, not {mode!r}")
    if (mode == "direct") != ("read.dataDir" in given):
        raise OptionError("read.mode=direct and read.dataDir, the broker's data directory, are given together")
    return given.get("read.dataDir")


def _consumes(given: Mapping[str, str], start: Boundary, *, streaming: bool) -> bool:
    mode = given.get(_MODE, "browse").lower()
    if mode not in ("browse", "consume"):
        raise OptionError(f"{_MODE} must be browse or consume, not {given[_MODE]!r}")
    if _MODE in given and "queue" not in given:
        raise OptionError(f"{_MODE} needs the option queue")
    if "queue" in given and (start.is_time or any(name.endswith(("Timestamp", "ByTimestamp")) for name in given)):
        raise OptionError("a queue is not read by time: filter by the column timestamp")
    if mode == "browse":
        return False
    if not streaming:
        raise OptionError(
            f"{_MODE}=consume is for streams, where Spark says what is done: readStream with "
            "trigger(availableNow=True) takes what is there, and ends"
        )
    if any(name in given for name in _STARTS) and start.value != EARLIEST:
        raise OptionError(f"{_MODE}=consume begins with what waits first: leave {start.option} out")
    return True


def _lease(given: Mapping[str, str], *, consumes: bool) -> int:
    """What is taken out of a queue is the query's for longer: others get it afterwards, done or not."""
    return count_of(given, "leaseMs", default=CONSUME_LEASE_MS if consumes else LEASE_MS, least=int(consumes))


def _least(given: Mapping[str, str], *, consumes: bool) -> int:
    if _DELAY in given and _LEAST not in given:
        raise OptionError(f"{_DELAY} needs the option {_LEAST}")
    if consumes and _LEAST in given:
        raise OptionError(f"{_MODE}=consume takes what waits: leave {_LEAST} out")
    least, most = count_of(given, _LEAST, default=0), count_of(given, "maxOffsetsPerTrigger", default=0)
    if most and least > most:
        raise OptionError(f"{_LEAST} ({least}) is above maxOffsetsPerTrigger ({most})")
    return least


def _group(given: Mapping[str, str], *, consumes: bool) -> str:
    """The same for the same read, so that a query has one name over its restarts; whose messages a query has taken
    out of a queue does not depend on how it is tuned.
    """
    chosen = name_of(given, "kafka.group.id")
    if chosen is not None:
        return chosen
    matter = ("queue", _VHOST) if consumes else set(given).difference(_ACCESS)
    named = {name: value for name, value in given.items() if name in matter}
    digest = sha256(json.dumps(sorted(named.items())).encode()).hexdigest()
    prefix = name_of(given, "groupIdPrefix", most=NAME_CHARACTERS_MAX - 1 - _DIGEST_CHARACTERS) or GROUP_PREFIX
    return f"{prefix}-{digest[:_DIGEST_CHARACTERS]}"


def _boundary(given: Mapping[str, str], names: tuple[str, ...], *, default: int, refused: int | None) -> Boundary:
    chosen = one_of(given, names)
    if chosen is None:
        return Boundary(default, False, names[0])
    text = given[chosen].strip()
    if chosen.endswith("Timestamp") and not chosen.endswith("ByTimestamp"):
        return Boundary(timestamp_ms(chosen, text), True, chosen)
    by_time = chosen.endswith("ByTimestamp")
    words = {} if by_time else {"earliest": EARLIEST, "latest": LATEST}
    value: int | ByPartition = words[text.lower()] if text.lower() in words else by_partition(chosen, text)
    numbers = [value] if isinstance(value, int) else [one for each in value.values() for one in each.values()]
    for number in numbers:
        if not (0 if by_time else EARLIEST) <= number <= COUNT_MAX:
            raise OptionError(f"{chosen}: {number} is no {'timestamp' if by_time else 'offset'}")
        if number == refused and not by_time:
            side, word = ("start", "latest (-1)") if refused == LATEST else ("end", "earliest (-2)")
            raise OptionError(f"{chosen}: a batch read cannot {side} at {word}")
    return Boundary(value, by_time, chosen)


def access_of(given: Mapping[str, str]) -> Access:
    """How to connect. Raises `OptionError`."""
    user = given.get("millrace.user")
    if user is None and "millrace.password" in given:
        raise OptionError("millrace.password needs millrace.user")
    files = {name: given.get(f"millrace.tls.{name}") for name in ("ca", "cert", "key")}
    tls = flag_of(given, "millrace.tls", default=any(files.values()))
    if not tls and any(files.values()):
        raise OptionError("millrace.tls is false: millrace.tls.ca, millrace.tls.cert and millrace.tls.key need it")
    if files["key"] is not None and files["cert"] is None:
        raise OptionError("millrace.tls.key needs millrace.tls.cert")
    return Access(None if user is None else (user, given.get("millrace.password", "")), tls, **files)


def _strategy(given: Mapping[str, str], start: Boundary) -> Literal["error", "latest"]:
    name = "startingOffsetsByTimestampStrategy"
    text = given.get(name, "error").lower()
    if name in given and not start.is_time:
        raise OptionError(f"{name} is for startingTimestamp and startingOffsetsByTimestamp")
    if text == "error":
        return "error"
    if text == "latest":
        return "latest"
    raise OptionError(f"{name} must be error or latest, not {given[name]!r}")
