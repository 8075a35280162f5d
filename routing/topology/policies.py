"""Policies: what queues and exchanges of a virtual host are told by pattern instead of by argument.

1. At most one policy and one operator policy apply to an entity: the matching one of the highest priority (of equals
   the first by name). Patterns are regular expressions that are looked for anywhere in the name (`name_rules.py`).
2. Of an operator policy's limits and the policy's the lower counts (`definition_of`), and so it does of those and a
   queue's own arguments (`QueueSettings.effective`): nobody can go beyond the operator.
3. A definition is checked when it is set; one that would mean nothing is refused. Keys of RabbitMQ that concern what is
   not here (mirrors, federation, memory of quorum queues) are taken and have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from routing.errors import InvalidArgument
from routing.name_rules import InvalidExpression, NameRule, kept_rule
from routing.queues.settings import CHECKS
from routing.topics.stream_settings import SEGMENT_BYTES_ALLOWED, interval_ms
from routing.topology.entries import Key
from routing.topology.large_numbers import number_again, numbers_again

APPLY_TO = ("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams")
PATTERN_LENGTH_MAX = 1000

_NOT_BY_POLICY = frozenset(
    {
        "queue-type", "quorum-initial-group-size", "view-topic", "view-filter",
    }
)  # fmt: skip
_LIMITS = (
    "expires", "message-ttl", "max-length", "max-length-bytes", "delivery-limit", "max-in-memory-length",
    "max-in-memory-bytes", "max-age",
)  # fmt: skip
"""What an operator policy may set."""
_WITHOUT_EFFECT = frozenset(
    {
        "ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown",
        "ha-promote-on-failure", "federation-upstream", "federation-upstream-set",
    }
)  # fmt: skip


@dataclass(slots=True, frozen=True)
class Policy:
    """One policy, which was checked."""

    name: str
    pattern: str
    definition: Mapping[str, Any]
    priority: int
    apply_to: str
    rule: NameRule = field(repr=False, compare=False)

    @classmethod
    def of(cls, name: str, value: Mapping[str, Any]) -> Policy:
        """From its entry."""
        return cls(
            name,
            value["pattern"],
            numbers_again(value["definition"]),
            number_again(value["priority"]),
            value["apply-to"],
            kept_rule(value["pattern"]),
        )

    def applies(self, kinds: tuple[str, ...], name: str) -> bool:
        """Whether it matches an entity that goes by these words of `APPLY_TO`."""
        return self.apply_to in kinds and self.rule.matches(name)


def policy_key(vhost: str, name: str, *, operator: bool) -> Key:
    """The key of a policy."""
    return ("operator-policy" if operator else "policy", vhost, name)


def _is_text(value: Any) -> str | None:
    return None if isinstance(value, str) else "not a name"


def _age(value: Any) -> str | None:
    fits = isinstance(value, str) and interval_ms(value) is not None
    return None if fits else "not a number and one of Y, M, D, h, m, s"


def _segment_bytes(value: Any) -> str | None:
    return CHECKS["max-length-bytes"](value) or (
        f"more than {SEGMENT_BYTES_ALLOWED}" if value > SEGMENT_BYTES_ALLOWED else None
    )


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    **{name: check for name, check in CHECKS.items() if name not in _NOT_BY_POLICY},
    **dict.fromkeys(_WITHOUT_EFFECT, lambda value: None),
    "alternate-exchange": _is_text,
    "max-age": _age,
    "stream-max-segment-size-bytes": _segment_bytes,
}


def check_policy(
    name: str, pattern: str, definition: Mapping[str, Any], priority: int, apply_to: str, *, operator: bool
) -> dict[str, Any]:
    """The entry of a policy. Raises InvalidArgument in RabbitMQ's words."""
    if not 1 <= len(name.encode("utf-8", "surrogateescape")) <= 255:
        raise _invalid("a policy's name has 1 to 255 bytes")
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise _invalid(f"a pattern has at most {PATTERN_LENGTH_MAX} characters")
    try:
        NameRule(pattern)
    except InvalidExpression as error:
        raise _invalid(f"pattern should be regular expression but is invalid: {error}") from error
    if apply_to not in APPLY_TO:
        raise _invalid(f"apply-to '{apply_to}' unrecognised; should be one of {', '.join(APPLY_TO)}")
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise _invalid(f"priority should be a whole number but is {priority!r}")
    if not definition:
        raise _invalid("no policy provided")
    unknown = [key for key in definition if key not in _CHECKS or (operator and key not in _LIMITS)]
    if unknown:
        raise _invalid(f"{', '.join(sorted(unknown))}: not recognised as {'operator ' * operator}policy settings")
    for key, value in definition.items():
        wrong = _CHECKS[key](value)
        if wrong:
            raise _invalid(f"{value!r} is no valid value of {key}: {wrong}")
    return {"pattern": pattern, "definition": dict(definition), "priority": priority, "apply-to": apply_to}


def _invalid(reason: str) -> InvalidArgument:
    return InvalidArgument(f"Validation failed: {reason}")


def kinds_of_queue(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of `APPLY_TO` that a queue with these arguments goes by."""
    kind = arguments.get("x-queue-type", "classic")
    return ("all", "queues", "streams" if kind == "stream" else f"{kind}_queues")


def _is_lower(key: str, limit: Any, there: Any) -> bool:
    """Whether one limit is below another; one that is negative is none."""
    if key == "max-age":
        return (interval_ms(limit) or 0) < (interval_ms(there) or 0)
    return bool(limit < there and not (key == "delivery-limit" and limit < 0))


KINDS_OF_EXCHANGE = ("all", "exchanges")


class Policies:
    """The policies of a virtual host."""

    def __init__(self) -> None:
        self.own: dict[str, Policy] = {}
        self.operator: dict[str, Policy] = {}

    def apply(self, key: Key, value: Mapping[str, Any] | None) -> None:
        """Take an entry over."""
        there = self.operator if key[0] == "operator-policy" else self.own
        there.pop(key[2], None)
        if value is not None:
            there[key[2]] = Policy.of(key[2], value)

    @staticmethod
    def _best(there: Mapping[str, Policy], kinds: tuple[str, ...], name: str) -> Policy | None:
        matching = [policy for policy in there.values() if policy.applies(kinds, name)]
        return min(matching, key=lambda policy: (-policy.priority, policy.name), default=None)

    def of(self, kinds: tuple[str, ...], name: str) -> tuple[Policy | None, Policy | None]:
        """The policy and the operator policy that apply to an entity."""
        return self._best(self.own, kinds, name), self._best(self.operator, kinds, name)

    def definition_of(self, kinds: tuple[str, ...], name: str) -> Mapping[str, Any]:
        """What both together tell an entity."""
        if not self.own and not self.operator:
            return {}
        policy, operator = self.of(kinds, name)
        definition = dict(policy.definition) if policy else {}
        for key, limit in operator.definition.items() if operator else ():
            there = definition.get(key)
            unlimited = there is None or (key == "delivery-limit" and there < 0)
            if unlimited or _is_lower(key, limit, there):
                definition[key] = limit
        return definition
