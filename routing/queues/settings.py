"""What a queue was told to do: its arguments, and the policy that applies to it, as one checked value.

1. Arguments are checked when a queue is declared (`check_arguments`), in RabbitMQ's words. Arguments that nobody knows
   are kept and mean nothing, as there; those that only other types of queue know are refused.
2. `QueueSettings.effective` puts arguments and policy together: the lower of two limits counts, of two names the
   argument's. A policy's keys are those of the arguments without `x-`.
3. Settings never change; a queue gets new ones (`Queue.apply_settings`) when a policy does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from routing.errors import InvalidArgument
from routing.facts import PRIORITY_MAX
from routing.message import is_key

EXPIRY_MS_MAX = 315_360_000_000
"""Ten years, as in RabbitMQ."""
VIEW = "view"
"""The type of a queue that is a view of a topic."""
VIEW_TOPIC, VIEW_START, VIEW_FILTER = "x-view-topic", "x-stream-offset", "x-view-filter"
"""Its own arguments."""
QUEUE_TYPES = ("classic", "quorum", "stream", VIEW)
OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
DELAYED_RETRY_TYPES = ("disabled", "all", "failed", "returned")
LEADER_LOCATORS = ("client-local", "balanced", "random", "least-leaders")
CONSUMER_TURNS = ("round-robin", "least-unsettled")
QUORUM_DELIVERY_LIMIT = 20
"""RabbitMQ's since 4.0."""
QUORUM_PRIORITY_MAX = 31
"""RabbitMQ's since 4.3: such queues tell priorities apart whether they were asked to or not."""


class QueueSettings(msgspec.Struct, kw_only=True, frozen=True):
    """See the module. None, 0 or empty: the queue has no such rule."""

    message_ttl_ms: int | None = None
    expires_ms: int = 0
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    dead_letter_strategy: str = "at-most-once"
    priority_max: int = 0
    """Priorities 0 to this are told apart; 0: all messages are alike."""
    priority_window: int = 0
    """So many unsettled messages a consumer may hold before it only gets ones of a higher priority than all of them."""
    single_active_consumer: bool = False
    consumer_turns: str = "round-robin"
    """Who is next of several consumers: each in turn, or whoever has the fewest unsettled messages."""
    delivery_limit: int | None = None
    consumer_timeout_ms: int = 0
    retry_ms: tuple[int, ...] = ()
    """The gaps after which a message that was given back comes again; after the last it goes to `retry_then`."""
    retry_then: str | None = None
    """A queue; None: the dead letter exchange."""
    delayed_retry_type: str = "disabled"
    delayed_retry_min_ms: int = 0
    delayed_retry_max_ms: int = 0
    deduplication_window_ms: int = 0
    retain_ms: int = 0
    """Messages can be had again for so long after they came, whatever became of them."""
    group_by: str | None = None
    """Messages that agree in this go to one consumer at a time: `routing-key`, or the name of a header."""
    keep_transient: bool = True
    """Takes messages that are not persistent also while nobody consumes."""
    keep_delivered: bool = False
    """What was delivered and comes back does not expire any more."""
    paused: bool = False
    """Its consumers get nothing; all else goes on."""
    delayed: bool = False
    """Honours the delay of messages that come by any exchange."""
    view_of: str | None = None
    """The topic whose records are its messages."""
    view_filter: str | None = None
    """Which of these, by a pattern for their keys."""

    @classmethod
    def effective(cls, arguments: Mapping[str, Any], policy: Mapping[str, Any] | None = None) -> QueueSettings:
        """The settings of a queue with checked `arguments` to which the checked definition `policy` applies."""
        policy = policy or {}
        if arguments.get("x-queue-type") == VIEW:
            policy = {key: value for key, value in policy.items() if key not in _NOT_FOR[VIEW]}
        values: dict[str, Any] = {}
        for key, name in _LOWEST.items():
            given = [value for value in (arguments.get(f"x-{key}"), policy.get(key)) if value is not None]
            given = [value for value in given if value > _UNLIMITED.get(key, -1)]
            if given:
                values[name] = int(min(given))
        for key, name in _ARGUMENT_FIRST.items():
            value = arguments.get(f"x-{key}", policy.get(key))
            if value is not None:
                values[name] = value
        retry = arguments.get("x-retry", policy.get("retry"))
        if retry:
            values["retry_ms"] = list(map(interval_ms, retry))
        if arguments.get("x-queue-type") == "quorum":
            unlimited = -1 in (arguments.get("x-delivery-limit"), policy.get("delivery-limit"))
            if not unlimited:
                values.setdefault("delivery_limit", QUORUM_DELIVERY_LIMIT)
            values.setdefault("priority_max", QUORUM_PRIORITY_MAX)
        retain = arguments.get("x-retain", policy.get("retain"))
        if retain is not None:
            values["retain_ms"] = interval_ms(retain)
        if "group_by" in values:
            # An order by key and one by priority are not to be had at once.
            values["priority_max"] = values["priority_window"] = 0
        return msgspec.convert(values, cls)

    @property
    def is_plain(self) -> bool:
        """Nothing has to be done for a message but to wait for a consumer."""
        return self.message_ttl_ms is None and not self.priority_max and not self.guards_publishing and not self.limited

    @property
    def buries(self) -> bool:
        """Its dead messages go somewhere."""
        return self.dead_letter_exchange is not None or self.retry_then is not None

    @property
    def keeps_dead_letters(self) -> bool:
        """Its dead messages wait while they would reach no queue. Not where messages die of its length: it would end no
        more.
        """
        ends = self.overflow == "reject-publish" or self.view_of is not None
        return ends and self.dead_letter_strategy == "at-least-once"

    @property
    def limited(self) -> bool:
        """It may hold so much and no more."""
        return self.max_length is not None or self.max_length_bytes is not None

    @property
    def guards_publishing(self) -> bool:
        """Publishers have to be asked for something before their messages are taken."""
        return bool(self.deduplication_window_ms) or (self.limited and self.overflow != "drop-head")


_LOWEST = {
    "message-ttl": "message_ttl_ms",
    "expires": "expires_ms",
    "max-length": "max_length",
    "max-length-bytes": "max_length_bytes",
    "delivery-limit": "delivery_limit",
    "consumer-timeout": "consumer_timeout_ms",
}
_UNLIMITED = {"delivery-limit": -1, "consumer-timeout": 0}
"""Who says so, or less, sets no limit."""
_ARGUMENT_FIRST = {
    "overflow": "overflow",
    "dead-letter-exchange": "dead_letter_exchange",
    "dead-letter-routing-key": "dead_letter_routing_key",
    "dead-letter-strategy": "dead_letter_strategy",
    "max-priority": "priority_max",
    "priority-window": "priority_window",
    "single-active-consumer": "single_active_consumer",
    "consumer-turns": "consumer_turns",
    "retry-then": "retry_then",
    "delayed-retry-type": "delayed_retry_type",
    "delayed-retry-min": "delayed_retry_min_ms",
    "delayed-retry-max": "delayed_retry_max_ms",
    "deduplication-window-ms": "deduplication_window_ms",
    "group-by": "group_by",
    "delayed": "delayed",
    "paused": "paused",
    "keep-transient": "keep_transient",
    "keep-delivered": "keep_delivered",
    "view-filter": "view_filter",
}

Check = Callable[[Any], str | None]
"""What is wrong with a value, as RabbitMQ prints it; None: nothing."""


def type_name(value: Any) -> str:
    """RabbitMQ's name for the type of a table's value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
        return "long"
    names = {int: "signedint", str: "longstr", float: "double", bytes: "binary", dict: "table", list: "array"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "void")


def integer(value: Any) -> str | None:
    """What is wrong with a value that is to be a whole number."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return None if is_integer else f'"expected integer, got {type_name(value)}"'


def _not_negative(value: Any) -> str | None:
    return integer(value) or (f"{{value_negative,{value}}}" if value < 0 else None)


def _milliseconds(value: Any) -> str | None:
    return _not_negative(value) or (f"{{value_too_large,{value}}}" if value > EXPIRY_MS_MAX else None)


def _positive_milliseconds(value: Any) -> str | None:
    return _milliseconds(value) or ("{value_zero,0}" if not value else None)


def _positive(value: Any) -> str | None:
    return _not_negative(value) or ("{value_zero,0}" if not value else None)


def _priority(value: Any) -> str | None:
    return _not_negative(value) or (f"{{max_value_exceeded,{value}}}" if value > PRIORITY_MAX else None)


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else f"{{unacceptable_type,{type_name(value)}}}"


_INTERVAL = re.compile("([0-9]{1,9})([smhDMY])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "D": 86_400_000, "M": 30 * 86_400_000, "Y": 365 * 86_400_000}


def interval_ms(value: Any) -> int:
    """Milliseconds of "24h", "7D" or a number of them, which were checked."""
    if not isinstance(value, str):
        return int(value)
    found = _INTERVAL.fullmatch(value)
    return int(found[1]) * _UNIT_MS[found[2]] if found else -1


def _interval(value: Any) -> str | None:
    if isinstance(value, str):
        ms = interval_ms(value)
        return None if 0 <= ms <= EXPIRY_MS_MAX else "{not_milliseconds_or_an_interval_up_to_10Y}"
    return _milliseconds(value)


def _group_by(value: Any) -> str | None:
    return _text(value) or (None if 0 < len(value) <= 255 else "{not_the_name_of_a_header}")


def _pattern(value: Any) -> str | None:
    return _text(value) or (None if 0 < len(value) <= 255 else "{not_a_pattern_of_1_to_255_characters}")


def _key(value: Any) -> str | None:
    return _text(value) or (None if is_key(value) else "{longer_than_255_bytes_or_no_text}")


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{type_name(value)}}}"


def _one_of(*allowed: str, otherwise: str = "{{invalid_value,{}}}") -> Check:
    def check(value: Any) -> str | None:
        return _text(value) or (None if value in allowed else otherwise.format(value))

    return check


def _version(value: Any) -> str | None:
    return integer(value) or (None if value in (1, 2) else f"\"unsupported queue version '{value}'\"")


def _gaps(value: Any) -> str | None:
    if not isinstance(value, (list, tuple)) or not value or len(value) > 100:
        return "{not_a_list_of_milliseconds}"
    return next((wrong for wrong in map(_interval, value) if wrong), None)


def _other_deduplication(value: Any) -> str | None:
    """LavinMQ's, and of a plugin for RabbitMQ: who relies on it is told that other headers and times count."""
    return '{not_known_here,"x-deduplication-window-ms is"}' if value is True else None


def _anything(value: Any) -> str | None:
    return None


CHECKS: dict[str, Check] = {
    "message-ttl": _milliseconds,
    "expires": _positive_milliseconds,
    "max-length": _not_negative,
    "max-length-bytes": _not_negative,
    "overflow": _one_of(*OVERFLOWS, otherwise="invalid_overflow"),
    "dead-letter-exchange": _text,
    "dead-letter-routing-key": _key,
    "dead-letter-strategy": _one_of("at-most-once", "at-least-once", otherwise="invalid_dlx_strategy"),
    "max-priority": _priority,
    "priority-window": _not_negative,
    "single-active-consumer": _boolean,
    "consumer-turns": _one_of(*CONSUMER_TURNS),
    "delivery-limit": integer,
    "consumer-timeout": _milliseconds,
    "retry": _gaps,
    "retry-then": _text,
    "delayed-retry-type": _one_of(*DELAYED_RETRY_TYPES),
    "delayed-retry-min": _milliseconds,
    "delayed-retry-max": _milliseconds,
    "deduplication-window-ms": _milliseconds,
    "message-deduplication": _other_deduplication,
    "group-by": _group_by,
    "retain": _interval,
    "delayed": _boolean,
    "paused": _boolean,
    "keep-transient": _boolean,
    "keep-delivered": _boolean,
    "queue-type": _one_of(*QUEUE_TYPES, otherwise="\"unsupported queue type '{}'\""),
    "queue-mode": _one_of("default", "lazy", otherwise="\"unsupported queue mode '{}'\""),
    "queue-version": _version,
    "queue-leader-locator": _one_of(*LEADER_LOCATORS, otherwise="invalid_queue_locator_arg"),
    "queue-master-locator": _anything,
    "quorum-initial-group-size": _positive,
    "max-in-memory-length": _not_negative,
    "max-in-memory-bytes": _not_negative,
    "max-age": _text,
    "stream-max-segment-size-bytes": _not_negative,
    "initial-cluster-size": _not_negative,
    "view-topic": _text,
    "view-filter": _pattern,
}
"""What a value has to be, by name without `x-`; arguments of queues and keys of policies."""

_STREAM_ONLY = ("max-age", "stream-max-segment-size-bytes", "initial-cluster-size")
_VIEW_ONLY = ("view-topic", "view-filter")
_QUORUM_ONLY = ("quorum-initial-group-size", "max-in-memory-length", "max-in-memory-bytes")
_NOT_FOR = {
    "classic": (*_STREAM_ONLY, *_VIEW_ONLY, *_QUORUM_ONLY),
    "quorum": (*_STREAM_ONLY, *_VIEW_ONLY, "queue-mode", "queue-version", "queue-master-locator"),
    VIEW: (
        *_STREAM_ONLY, *_QUORUM_ONLY, "message-ttl", "max-length", "max-length-bytes", "overflow", "max-priority",
        "priority-window", "deduplication-window-ms", "group-by", "retain", "delayed", "queue-mode", "queue-version",
    ),
}  # fmt: skip
"""What is said of messages when they come, or of all that wait: those of a view are its topic's."""


def check_arguments(name: str, virtual_host: str, arguments: Mapping[str, Any]) -> None:
    """Raises InvalidArgument for arguments of a queue that make no sense, in RabbitMQ's words."""

    def refuse(argument: str, reason: str) -> InvalidArgument:
        return InvalidArgument(f"invalid arg '{argument}' for queue '{name}' in vhost '{virtual_host}': {reason}")

    kind = arguments.get("x-queue-type", "classic")
    for key in _NOT_FOR.get(kind, ()) if isinstance(kind, str) else ():
        if f"x-{key}" in arguments:
            raise InvalidArgument(
                f"invalid arg 'x-{key}' for queue '{name}' in vhost '{virtual_host}' of queue type rabbit_{kind}_queue"
            )
    exchange = arguments.get("x-dead-letter-exchange", "")
    if not isinstance(exchange, str):
        raise InvalidArgument(
            f"invalid type '{type_name(exchange)}' for arg 'x-dead-letter-exchange' in queue '{name}' in vhost "
            f"'{virtual_host}'"
        )
    for argument, value in arguments.items():
        check = CHECKS.get(argument.removeprefix("x-"), _anything) if argument.startswith("x-") else _anything
        wrong = check(value)
        if wrong:
            raise refuse(argument, wrong)
    if kind == VIEW and VIEW_TOPIC not in arguments:
        raise refuse(VIEW_TOPIC, "{missing,the_name_of_a_topic}")
    if "x-group-by" in arguments and arguments.get("x-max-priority"):
        raise refuse("x-group-by", "x-max-priority_is_another_order")
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise refuse("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined")
