"""What may be said about a stream: the arguments of its declaration and of its consumers, and its topic's name.

A stream is a topic of one partition that is also declared and consumed like a queue. Rules, order of checks and texts
are RabbitMQ's; where it ends the connection with an internal error (an age of "D", an offset of "abc") the argument is
refused in the words it has for its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from core_log.partition_log import LogConfig
from routing.config import BrokerConfig
from routing.errors import InvalidArgument, InvalidConfig, PreconditionFailed
from routing.topics.reserved_names import RESERVED
from routing.topics.stream_filter import StreamFilter, text_of
from routing.topics.topic_config import DEDUPLICATION_WINDOW, log_config, replication

STREAM = "stream"
"""The type of a queue that is one."""
OFFSET_ARGUMENT = "x-stream-offset"
TRACKING_ARGUMENT = "x-stream-automatic-offset-tracking"
FILTER_ARGUMENT, MATCH_UNFILTERED_ARGUMENT = "x-stream-filter", "x-stream-match-unfiltered"

_UNSUPPORTED = frozenset(
    {
        "x-message-ttl", "x-expires", "x-max-length", "x-overflow", "x-dead-letter-exchange",
        "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-max-priority", "x-single-active-consumer",
        "x-delivery-limit", "x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-max-in-memory-length",
        "x-max-in-memory-bytes", "x-quorum-initial-group-size", "x-group-by", "x-retain",
    }
)  # fmt: skip
_UNSUPPORTED_BY_CONSUMERS = frozenset({"x-priority", "x-cancel-on-ha-failover"})
_LEADER_LOCATORS = ("client-local", "balanced", "random", "least-leaders")

_WINDOW = "x-deduplication-window-ms"

_UNIT_MS = {
    "Y": 365 * 86_400_000, "M": 30 * 86_400_000, "D": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000,
}  # fmt: skip
_INTERVAL = re.compile(r"([0-9]{1,9})([YMDhms])")

SEGMENT_BYTES_ALLOWED = 3_000_000_000
_SEGMENT_BYTES_MIN = 1 << 10
_SEGMENT_BYTES_MAX = 1 << 31
_SEGMENTS_KEPT = 8
"""Into so many segments a stream with a limit in bytes is divided: only whole ones can go."""
_SEGMENT_BYTES_SENSIBLE = 1 << 20
_BATCH_BYTES_MAX = (1 << 31) - 1
_BATCH_ROOM_BYTES = 1 << 20
"""Key and headers of a message of the largest size."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_ESCAPED = "_q."
_OTHER_HOST = "_v."


def _invalid(what: str, argument: str, reason: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid arg '{argument}' for {what}: {reason}")


def _unsupported(what: str, argument: str) -> PreconditionFailed:
    return PreconditionFailed(f"invalid arg '{argument}' for {what} of queue type rabbit_stream_queue")


def interval_ms(text: str) -> int | None:
    """Milliseconds of "7D", "1h", "30s": a whole number and one of Y (365 days), M (30), D, h, m, s; None if not."""
    found = _INTERVAL.fullmatch(text)
    return int(found[1]) * _UNIT_MS[found[2]] if found else None


def topic_name(queue: str, virtual_host: str = "/") -> str:
    """The topic of a stream: its own name in the default virtual host, if a topic can be called so.

    Every other byte becomes `_XX`, behind a prefix that says so; no two streams get the same. Raises InvalidArgument
    when that is too long.
    """
    plain = _TOPIC_NAME.fullmatch(queue) and queue not in (".", "..")
    plain = plain and queue not in RESERVED and not queue.startswith((_ESCAPED, _OTHER_HOST))
    if virtual_host == "/" and plain:
        return queue
    name = _ESCAPED + _escape(queue, "") if virtual_host == "/" else None
    name = name or f"{_OTHER_HOST}{_escape(virtual_host, '.')}.{_escape(queue, '')}"
    if len(name) > 249:
        raise InvalidArgument(f"queue name '{queue}' is too long for a stream: its topic would be {name!r}")
    return name


def _escape(text: str, also: str) -> str:
    def one(byte: int) -> str:
        character = chr(byte)
        plain = byte < 128 and (character.isalnum() or character in ".-") and character not in also
        return character if plain else f"_{byte:02X}"

    return "".join(map(one, text.encode("utf-8", "surrogateescape")))


# --- declarations -----------------------------------------------------------------------


def check_declaration(
    name: str, vhost: str, *, durable: bool, exclusive: bool, auto_delete: bool, arguments: Mapping[str, Any]
) -> None:
    """Raises PreconditionFailed for what no stream can be."""
    what = f"queue '{name}' in vhost '{vhost}'"
    for argument, value in arguments.items():
        if argument in _UNSUPPORTED:
            raise _unsupported(what, argument)
        check = _CHECKS.get(argument)
        reason = check(value) if check is not None else None
        if reason is not None:
            raise _invalid(what, argument, reason)
    age_ms, window_ms = interval_ms(arguments.get("x-max-age", "")), arguments.get(_WINDOW, 0)
    if age_ms is not None and age_ms < window_ms:
        raise _invalid(what, _WINDOW, "longer than x-max-age, and an id goes with its message")
    for wrong, said in ((auto_delete, "auto-delete"), (exclusive, "exclusive-owner"), (not durable, "non-durable")):
        if wrong:
            raise PreconditionFailed(f"invalid property '{said}' for {what}")
    if not name:
        raise PreconditionFailed("Cannot declare a server-named queue for type rabbit_stream_queue")
    if arguments.get("x-stream-max-segment-size-bytes", 0) > SEGMENT_BYTES_ALLOWED:
        raise PreconditionFailed("Exceeded max value for x-stream-max-segment-size-bytes")


def _kind(value: Any) -> str:
    """The type of an argument as RabbitMQ says it."""
    kinds: dict[type, str] = {str: "longstr", bool: "bool", float: "double", bytes: "binary", dict: "table"}
    return kinds.get(type(value), "signedint" if isinstance(value, int) else "array")


def _not_negative(value: Any) -> str | None:
    if type(value) is bool or not isinstance(value, int):
        return f'"expected integer, got {_kind(value)}"'
    return f"{{value_negative,{value}}}" if value < 0 else None


def _positive(value: Any) -> str | None:
    return _not_negative(value) or ("{value_zero,0}" if value == 0 else None)


def _age(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{{unacceptable_type,{_kind(value)}}}"
    return None if interval_ms(value) is not None else "invalid_max_age"


def _leader_locator(value: Any) -> str | None:
    return None if value in _LEADER_LOCATORS else "invalid_queue_locator_arg"


_CHECKS = {
    "x-max-age": _age,
    "x-max-length-bytes": _not_negative,
    _WINDOW: _not_negative,
    "x-stream-max-segment-size-bytes": _not_negative,
    "x-initial-cluster-size": _positive,
    "x-queue-leader-locator": _leader_locator,
}


def topic_config(arguments: Mapping[str, Any], broker: BrokerConfig) -> dict[str, str]:
    """The configuration of a stream's topic. Nothing is ever dropped unless an age or a length says so."""
    age, length_bytes = arguments.get("x-max-age"), arguments.get("x-max-length-bytes", -1)
    segment_bytes = arguments.get("x-stream-max-segment-size-bytes")
    config = {
        "retention.ms": str(-1 if age is None else interval_ms(age)),
        "retention.bytes": str(length_bytes),
        "max.message.bytes": str(min(broker.message_bytes_max + _BATCH_ROOM_BYTES, _BATCH_BYTES_MAX)),
    }
    if segment_bytes is None and 0 <= length_bytes < broker.topic_segment_bytes * _SEGMENTS_KEPT:
        segment_bytes = max(length_bytes // _SEGMENTS_KEPT, _SEGMENT_BYTES_SENSIBLE)
    if segment_bytes is not None:
        config["segment.bytes"] = str(min(max(segment_bytes, _SEGMENT_BYTES_MIN), _SEGMENT_BYTES_MAX))
    if arguments.get(_WINDOW):
        config[DEDUPLICATION_WINDOW] = str(arguments[_WINDOW])
    return config


def told_config(
    config: Mapping[str, str], arguments: Mapping[str, Any], definition: Mapping[str, Any], broker: BrokerConfig
) -> LogConfig:
    """The settings of a stream's log: of its topic's configuration and of what policies say the lower limit counts."""
    have = log_config(config, broker)
    age_ms = interval_ms(definition["max-age"]) if "max-age" in definition else None
    length_bytes, segment_bytes = definition.get("max-length-bytes"), definition.get("stream-max-segment-size-bytes")
    if segment_bytes is not None and "x-stream-max-segment-size-bytes" not in arguments:
        segment_bytes = min(max(segment_bytes, _SEGMENT_BYTES_MIN), _SEGMENT_BYTES_MAX)
    elif segment_bytes is not None:
        segment_bytes = min(max(segment_bytes, _SEGMENT_BYTES_MIN), have.segment_bytes)
    elif length_bytes is not None:
        segment_bytes = min(max(length_bytes // _SEGMENTS_KEPT, _SEGMENT_BYTES_SENSIBLE), have.segment_bytes)
    window_ms = have.deduplication_window_ms
    return msgspec.structs.replace(
        have,
        deduplication_window_ms=window_ms if _WINDOW in arguments else max(window_ms, definition.get(_WINDOW[2:], 0)),
        retention_ms=_lower(have.retention_ms, age_ms),
        retention_bytes=_lower(have.retention_bytes, length_bytes),
        segment_bytes=have.segment_bytes if segment_bytes is None else segment_bytes,
    )


def _lower(one: int, other: int | None) -> int:
    """The lower of two limits, of which -1 and None are none."""
    if other is None or one < 0:
        return one if other is None else other
    return min(one, other)


def check_adoption(
    topic: str, partitions: int, config: Mapping[str, str], arguments: Mapping[str, Any], broker: BrokerConfig
) -> None:
    """Raises PreconditionFailed if a topic that is there cannot be the stream that is declared."""
    if partitions != 1:
        raise PreconditionFailed(f"topic '{topic}' has {partitions} partitions, a stream has one")
    if replication(config).unclean:
        raise PreconditionFailed(f"topic '{topic}' allows unclean elections, which a stream does not know")
    wanted = topic_config(arguments, broker)
    for argument, setting in _SETTINGS.items():
        if argument in arguments and config.get(setting) != wanted.get(setting):
            have = f"'{config[setting]}'" if setting in config else "none"
            raise PreconditionFailed(
                f"inequivalent arg '{argument}' for a stream of topic '{topic}': received '{arguments[argument]}' "
                f"but {setting} of the topic is {have}"
            )


def require_stream_config(topic: str, config: Mapping[str, str], *, unclean: bool) -> None:
    """Raises InvalidConfig for what a topic that is a stream cannot be told."""
    if unclean:
        raise InvalidConfig(f"topic '{topic}' is a stream, which knows no unclean elections")
    if "compact" in config.get("cleanup.policy", ""):
        raise InvalidConfig(f"topic '{topic}' is a stream, which is not compacted")


_SETTINGS = {
    "x-max-age": "retention.ms",
    "x-max-length-bytes": "retention.bytes",
    _WINDOW: DEDUPLICATION_WINDOW,
    "x-stream-max-segment-size-bytes": "segment.bytes",
}


# --- consumers --------------------------------------------------------------------------


class Origin(Enum):
    """What a start position is counted from."""

    FIRST = "first"
    LAST = "last"
    NEXT = "next"
    OFFSET = "offset"
    END = "so many before the end"
    TIME = "milliseconds since 1970"


class Start(NamedTuple):
    """Where a consumer wants to begin. `value` is for the origins that have one."""

    origin: Origin
    value: int = 0


class ConsumerSettings(NamedTuple):
    """What the arguments of a consumer ask for."""

    start: Start
    tracked: bool
    filter: StreamFilter | None = None


def consumer_settings(what: str, tag: str, arguments: Mapping[str, Any], now_ms: int) -> ConsumerSettings:
    """The arguments of a consumer of `what`, a queue as errors call it. Raises PreconditionFailed.

    Without an offset a consumer begins at what comes next, as in RabbitMQ. The server remembers how far a consumer tag
    has come when it is asked to: by an argument, or by an offset that is there but void (LavinMQ's way) together with a
    tag that the client chose; then the first time begins at the beginning.
    """
    for argument in arguments:
        if argument in _UNSUPPORTED_BY_CONSUMERS:
            raise _unsupported(what, argument)
    asked = arguments.get(TRACKING_ARGUMENT, False)
    if type(asked) is not bool and asked not in ("true", "false"):
        raise _invalid(what, TRACKING_ARGUMENT, f"{{unacceptable_type,{_kind(asked)}}}")
    tracked, wanted = asked in (True, "true"), _filter(what, arguments)
    value = arguments.get(OFFSET_ARGUMENT)
    if value is not None:
        return ConsumerSettings(start_of(what, value, now_ms), tracked, wanted)
    void = OFFSET_ARGUMENT in arguments
    tracked = tracked or (void and not tag.startswith("amq.ctag-"))
    return ConsumerSettings(Start(Origin.FIRST if tracked or void else Origin.NEXT), tracked, wanted)


def _filter(what: str, arguments: Mapping[str, Any]) -> StreamFilter | None:
    """Raises PreconditionFailed."""
    asked, unfiltered = arguments.get(FILTER_ARGUMENT), arguments.get(MATCH_UNFILTERED_ARGUMENT, False)
    if asked is None:
        return None
    values = list(map(text_of, asked if isinstance(asked, list) else [asked]))
    texts = [value for value in values if value is not None]
    if not texts or len(texts) < len(values):
        raise _invalid(what, FILTER_ARGUMENT, f"{{unacceptable_type,{_kind(asked)}}}")
    if type(unfiltered) is not bool and unfiltered not in ("true", "false"):
        raise _invalid(what, MATCH_UNFILTERED_ARGUMENT, f"{{unacceptable_type,{_kind(unfiltered)}}}")
    return StreamFilter(texts, unfiltered=unfiltered in (True, "true"))


def start_of(what: str, value: Any, now_ms: int) -> Start:
    """Where an argument wants to begin. Raises PreconditionFailed."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, datetime):
        return Start(Origin.TIME, int(value.timestamp() * 1000))
    if isinstance(value, int) and type(value) is not bool:
        return Start(Origin.END, -value) if value < 0 else Start(Origin.OFFSET, value)
    if isinstance(value, str):
        if value in ("first", "last", "next"):
            return Start(Origin(value))
        ago_ms = interval_ms(value)
        if ago_ms is not None:
            return Start(Origin.TIME, now_ms - ago_ms)
        raise _invalid(what, OFFSET_ARGUMENT, f'{{invalid_stream_offset_arg,{{longstr,<<"{value}">>}}}}')
    raise _invalid(what, OFFSET_ARGUMENT, f"{{invalid_stream_offset_arg,{_kind(value)}}}")
