"""What to read: the options of a read, and the ranges of offsets they mean.

1. Options and their meanings are those of Spark's own Kafka source, so that a job can change the format and stay as it
   is. What is unknown or contradictory is refused with a sentence; nothing is ignored.
2. `resolve` asks the broker once, at planning. The ranges it returns are all a task needs, so a task that runs again
   reads the same records.
3. Plain data only: options and ranges are pickled into other processes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any, Literal, Protocol

from protocols.native.blocking import Which
from protocols.native.errors import UnknownTopic

EARLIEST = -2
LATEST = -1

_SERVERS = ("millrace.servers", "bootstrap.servers", "kafka.bootstrap.servers")
_TOPICS = ("subscribe", "subscribePattern", "assign")
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
_ISOLATION = ("isolation.level", "kafka.isolation.level")
_OTHERS = (
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "includeProperties",
    "minPartitions",
    "maxRecordsPerPartition",
    "read.mode",
    "read.dataDir",
    *_ISOLATION,
)
_PUSH_DOWN = "filterPushdown"
_STREAM = ("maxOffsetsPerTrigger", "groupIdPrefix", "kafka.group.id", "leaseMs")
_BATCH_OPTIONS = (*_SERVERS, *_TOPICS, *_STARTS, *_ENDS, _PUSH_DOWN, *_OTHERS, *_ACCESS)
_STREAM_OPTIONS = (*_SERVERS, *_TOPICS, *_STARTS, *_STREAM, *_OTHERS, *_ACCESS)
_COMPRESSION = ("compression", "kafka.compression.type")
_TRANSACTION = ("txnAppId", "txnVersion")
_SINK_OPTIONS = (
    *_SERVERS, "topic", *_COMPRESSION, *_TRANSACTION, "transactionTimeoutMs", "checkpointLocation", *_ACCESS,
)  # fmt: skip
KNOWN_OPTIONS = (*_SERVERS, *_TOPICS, *_STARTS, *_ENDS, _PUSH_DOWN, *_STREAM, *_OTHERS, *_ACCESS)
GROUP_PREFIX = "spark-millrace-source"
LEASE_MS = 3_600_000

ByPartition = dict[str, dict[int, int]]
Placed = tuple[int, int, list[int | None]]
"""Of a partition: where it begins and ends, and the offsets of some boundaries; None: no record is that late."""


class OptionError(ValueError):
    """An option of the read is missing, unknown, malformed or at odds with another one."""


class DataLoss(RuntimeError):
    """Records that were asked for are no longer in the log (and `failOnDataLoss` is true)."""


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
    """The options of one read, checked. Exactly one of `topics`, `pattern` and `assignment` is set."""

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
    lease_ms: int = 0
    """For how long what a stream has not read is kept for it; 0 is not at all."""
    push_down: bool = False
    """Whether filters of queries may be looked at, to read less."""
    group: str = ""
    """The group by whose offsets the broker shows how far a stream has come."""
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


@dataclass(frozen=True)
class OffsetRange:
    """The records of one partition with start_offset <= offset < end_offset."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


class OffsetSource(Protocol):
    """What `resolve` asks of a client; `protocols.native.blocking.BlockingClient` has it."""

    def metadata(self, topics: list[str] | None = None) -> dict[str, list[int]]:
        """Partitions by topic; all topics for None. Raises UnknownTopic."""

    def list_many_offsets(self, wanted: Sequence[tuple[str, int, Which]]) -> list[int | None]:
        """The offset at "earliest", "latest" or a timestamp in ms of each; None when no record is that late."""


def included(options: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether headers, and what a message is besides, were asked for. Raises `OptionError`."""
    given = _known(options, KNOWN_OPTIONS, "of a read")
    return _flag(given, "includeHeaders", default=False), _flag(given, "includeProperties", default=False)


def parse_options(options: Mapping[str, str], *, columns: tuple[str, ...] = (), streaming: bool = False) -> ReadOptions:
    """Check the options of a read (names in any case). Raises `OptionError`."""
    included(options)
    known = _STREAM_OPTIONS if streaming else _BATCH_OPTIONS
    given = _known(options, known, "of readStream" if streaming else "of read")
    servers = _one_of(given, _SERVERS, required=True)
    chosen = _one_of(given, _TOPICS, required=True)
    start = _boundary(given, _STARTS, default=LATEST if streaming else EARLIEST, refused=None if streaming else LATEST)
    end = _boundary(given, _ENDS, default=LATEST, refused=EARLIEST)
    _check_isolation(given)
    return ReadOptions(
        servers=_names("the list of servers", given[str(servers)]),
        topics=_names("subscribe", given["subscribe"]) if chosen == "subscribe" else None,
        pattern=_pattern(given["subscribePattern"]) if chosen == "subscribePattern" else None,
        assignment=_assignment(given["assign"]) if chosen == "assign" else None,
        start=start,
        end=end,
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        columns=columns,
        start_time_missing=_strategy(given, start),
        input_partitions_min=_count(given, "minPartitions"),
        access=access_of(given),
        records_per_partition_max=_count(given, "maxRecordsPerPartition", default=0),
        offsets_per_trigger_max=_count(given, "maxOffsetsPerTrigger", default=0),
        lease_ms=_count(given, "leaseMs", default=LEASE_MS, least=0) if streaming else 0,
        push_down=_flag(given, _PUSH_DOWN, default=False),
        group=_group(given) if streaming else "",
        data_dir=_data_dir(given),
    )


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write. Raises `OptionError`."""
    given = _known(options, _SINK_OPTIONS, "of write")
    servers = _one_of(given, _SERVERS, required=True)
    compression = _one_of(given, _COMPRESSION)
    codec = None if compression is None or given[compression] == "none" else given[compression]
    if codec not in (None, "gzip", "snappy", "lz4", "zstd"):
        raise OptionError(f"{compression} must be none, gzip, snappy, lz4 or zstd, not {codec!r}")
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise OptionError("txnAppId and txnVersion are given together or not at all")
    return SinkOptions(
        servers=_names("the list of servers", given[str(servers)]),
        topic=given.get("topic"),
        compression=codec,
        transaction_timeout_ms=_count(given, "transactionTimeoutMs", default=300_000),
        access=access_of(given),
        job=given.get("txnAppId"),
        version=_count(given, "txnVersion", default=0, least=0),
    )


def _known(options: Mapping[str, str], known: tuple[str, ...], what: str) -> dict[str, str]:
    """Options by the names as they are written here. Raises `OptionError` for one that is not among them."""
    by_lower_name = {name.lower(): name for name in known}
    given: dict[str, str] = {}
    for name, value in options.items():
        found = by_lower_name.get(name.lower())
        if found is None:
            raise OptionError(f"unknown option {name!r}; the options {what} are {', '.join(known)}")
        given[found] = value
    return given


def _check_isolation(given: Mapping[str, str]) -> None:
    chosen = _one_of(given, _ISOLATION)
    if chosen is not None and given[chosen] != "read_committed":
        raise OptionError(f"{chosen}: only read_committed is there, not {given[chosen]!r}")


def _data_dir(given: Mapping[str, str]) -> str | None:
    mode = given.get("read.mode", "fetch").lower()
    if mode not in ("fetch", "direct"):
        raise OptionError(f"read.mode must be fetch or direct, not {mode!r}")
    if (mode == "direct") != ("read.dataDir" in given):
        raise OptionError("read.mode=direct and read.dataDir, the broker's data directory, are given together")
    return given.get("read.dataDir")


def _group(given: Mapping[str, str]) -> str:
    """The same for the same read, so that a query has one name over its restarts."""
    if "kafka.group.id" in given:
        return given["kafka.group.id"]
    named = {name: value for name, value in given.items() if name not in _ACCESS}
    digest = sha256(json.dumps(sorted(named.items())).encode()).hexdigest()
    return f"{given.get('groupIdPrefix', GROUP_PREFIX)}-{digest[:12]}"


def resolve(client: OffsetSource, options: ReadOptions) -> list[OffsetRange]:
    """The ranges that `options` mean now, one a partition, without empty ones, in the order of topic and partition.

    Raises `OptionError` for partitions that do not exist or are not named, `DataLoss` for offsets out of the log.
    """
    partitions = partitions_of(client, options)
    for boundary in (options.start, options.end):
        check_named(boundary, partitions)
    found = placed(client, partitions, (options.start, options.end))
    ranges = [_resolve_range(options, one, known) for one, known in zip(partitions, found, strict=True)]
    return [one for one in ranges if one.start_offset < one.end_offset]


def placed(client: OffsetSource, partitions: list[tuple[str, int]], boundaries: Sequence[Boundary]) -> list[Placed]:
    """Of each partition where it begins and ends, and the offsets that these boundaries mean. One question for all."""
    times = [boundary for boundary in boundaries if boundary.is_time]
    wanted: list[tuple[str, int, Which]] = []
    for one in partitions:
        wanted += [(*one, "earliest"), (*one, "latest"), *((*one, boundary.of(*one)) for boundary in times)]
    answers = iter(client.list_many_offsets(wanted))
    found = []
    for one in partitions:
        known = {EARLIEST: next(answers) or 0, LATEST: next(answers) or 0}
        places: list[int | None] = []
        for boundary in boundaries:
            number = boundary.of(*one)
            places.append(next(answers) if boundary.is_time else known.get(number, number))
        found.append((known[EARLIEST], known[LATEST], places))
    return found


def _resolve_range(options: ReadOptions, one: tuple[str, int], known: Placed) -> OffsetRange:
    topic, partition = one
    earliest, latest, places = known
    start, end = places
    if start is None:
        if options.start_time_missing == "error":
            raise OptionError(
                f"{options.start.option}: no record of {topic}-{partition} is that late; "
                "startingOffsetsByTimestampStrategy=latest reads nothing of such a partition instead"
            )
        start = latest
    end = latest if end is None else end
    if start > end and not options.start.is_time and not options.end.is_time:
        raise OptionError(f"{topic}-{partition}: the starting offset {start} is after the ending offset {end}")
    if options.fail_on_data_loss and not (earliest <= start <= latest and end <= latest) and start < end:
        raise DataLoss(
            f"{topic}-{partition}: offsets {start} to {end} were asked for, the log has {earliest} to {latest}; "
            "failOnDataLoss=false reads what there is"
        )
    return OffsetRange(topic, partition, max(start, earliest), min(end, latest))


def divide(ranges: list[OffsetRange], options: ReadOptions) -> list[OffsetRange]:
    """Cut ranges so that there are about `minPartitions`, in proportion to their sizes, and none is above
    `maxRecordsPerPartition`.
    """
    count_min, size_max = options.input_partitions_min, options.records_per_partition_max
    total = sum(one.end_offset - one.start_offset for one in ranges)
    parts: list[OffsetRange] = []
    for one in ranges:
        size = one.end_offset - one.start_offset
        pieces = 1 if len(ranges) >= count_min else max(1, min(size, round(size / total * count_min)))
        if size_max:
            pieces = max(pieces, -(-size // size_max))
        cuts = [one.start_offset + size * piece // pieces for piece in range(pieces + 1)]
        parts += [OffsetRange(one.topic, one.partition, low, high) for low, high in pairwise(cuts)]
    return parts


def partitions_of(client: OffsetSource, options: ReadOptions) -> list[tuple[str, int]]:
    """What is to be read, in order. Raises `OptionError` for topics and partitions that are not there."""
    if options.pattern is not None:
        existing = client.metadata(None)
        wanted = {name: existing[name] for name in existing if re.fullmatch(options.pattern, name)}
    else:
        existing = _existing(client, sorted(set(options.topics or options.assignment or ())))
        wanted = existing if options.assignment is None else options.assignment
    pairs = sorted((topic, partition) for topic, numbers in wanted.items() for partition in set(numbers))
    for topic, partition in pairs:
        if partition not in existing[topic]:
            raise OptionError(f"assign: topic {topic!r} has no partition {partition}")
    return pairs


def _existing(client: OffsetSource, names: list[str]) -> dict[str, list[int]]:
    """The partitions of these topics, which have to be there."""
    try:
        return client.metadata(names)
    except UnknownTopic:
        if len(names) == 1:
            raise OptionError(f"there is no topic {names[0]!r}") from None
    return {name: numbers for one in names for name, numbers in _existing(client, [one]).items()}


def check_named(boundary: Boundary, partitions: list[tuple[str, int]]) -> None:
    """Offsets given one by one must name each partition that is read, and no other."""
    if isinstance(boundary.value, int):
        return
    named = {(topic, partition) for topic, numbers in boundary.value.items() for partition in numbers}
    for what, odd in (("does not name", set(partitions) - named), ("names", named - set(partitions))):
        if odd:
            listed = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(odd))
            raise OptionError(f"{boundary.option} {what} {listed}; it must name the partitions that are read")


def _one_of(given: Mapping[str, str], names: tuple[str, ...], *, required: bool = False) -> str | None:
    chosen = [name for name in names if name in given]
    if len(chosen) > 1:
        raise OptionError(f"the options {' and '.join(chosen)} contradict each other: give one of them")
    if not chosen and required:
        raise OptionError(f"one of the options {', '.join(names)} is needed")
    return chosen[0] if chosen else None


def _boundary(given: Mapping[str, str], names: tuple[str, ...], *, default: int, refused: int | None) -> Boundary:
    chosen = _one_of(given, names)
    if chosen is None:
        return Boundary(default, False, names[0])
    text = given[chosen].strip()
    if chosen.endswith("Timestamp") and not chosen.endswith("ByTimestamp"):
        return Boundary(_timestamp(chosen, text), True, chosen)
    by_time = chosen.endswith("ByTimestamp")
    words = {} if by_time else {"earliest": EARLIEST, "latest": LATEST}
    value: int | ByPartition = words[text.lower()] if text.lower() in words else _by_partition(chosen, text)
    numbers = [value] if isinstance(value, int) else [one for each in value.values() for one in each.values()]
    for number in numbers:
        if number < (0 if by_time else EARLIEST):
            raise OptionError(f"{chosen}: {number} is no {'timestamp' if by_time else 'offset'}")
        if number == refused and not by_time:
            side, word = ("start", "latest (-1)") if refused == LATEST else ("end", "earliest (-2)")
            raise OptionError(f"{chosen}: a batch read cannot {side} at {word}")
    return Boundary(value, by_time, chosen)


def _by_partition(option: str, text: str) -> ByPartition:
    parsed = _json_object(option, text)
    try:
        return {topic: {int(part): _integer(number) for part, number in each.items()} for topic, each in parsed.items()}
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f'{option} must look like {{"topic": {{"0": 23, "1": -2}}}}, not {text}') from None


def _assignment(text: str) -> dict[str, list[int]]:
    parsed = _json_object("assign", text)
    try:
        assignment = {topic: [_integer(number) for number in numbers] for topic, numbers in parsed.items()}
    except (TypeError, ValueError):
        raise OptionError(f'assign must look like {{"topic": [0, 1]}}, not {text}') from None
    if not any(assignment.values()):
        raise OptionError("assign names no partition")
    return assignment


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise OptionError(f"{option} is not JSON ({error}): {text}") from None
    if not isinstance(parsed, dict):
        raise OptionError(f"{option} must be a JSON object, not {text}")
    return parsed


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _timestamp(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise OptionError(f"{option} must be milliseconds since 1970, not {text!r}")
    return int(text)


def _names(what: str, text: str) -> tuple[str, ...]:
    names = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    if not names:
        raise OptionError(f"{what} is empty")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern is not a regular expression: {error}") from None
    return text


def access_of(given: Mapping[str, str]) -> Access:
    """How to connect. Raises `OptionError`."""
    user = given.get("millrace.user")
    if user is None and "millrace.password" in given:
        raise OptionError("millrace.password needs millrace.user")
    files = {name: given.get(f"millrace.tls.{name}") for name in ("ca", "cert", "key")}
    tls = _flag(given, "millrace.tls", default=any(files.values()))
    if not tls and any(files.values()):
        raise OptionError("millrace.tls is false: millrace.tls.ca, millrace.tls.cert and millrace.tls.key need it")
    if files["key"] is not None and files["cert"] is None:
        raise OptionError("millrace.tls.key needs millrace.tls.cert")
    return Access(None if user is None else (user, given.get("millrace.password", "")), tls, **files)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} must be true or false, not {given[name]!r}")
    return text == "true"


def _count(given: Mapping[str, str], name: str, *, default: int = 1, least: int = 1) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise OptionError(f"{name} must be a number from {least}, not {text!r}")
    return int(text)


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
