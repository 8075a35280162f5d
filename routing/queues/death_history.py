"""The history of a dead-lettered message, as RabbitMQ writes it into headers; pure.

    x-death                      tables of queue, reason, count, exchange, routing-keys, time and, if the message had an
                                 expiration, original-expiration; the latest death first
    x-first-death-queue, -reason, -exchange
    x-last-death-queue, -reason, -exchange      (RabbitMQ 3.13 and later)

1. One table for each queue and reason: a death that repeats counts up in its table, which moves to the front and else
   stays what it was.
2. A message is not given to a queue that it died in before, unless somebody rejected it since: otherwise it could go
   round for ever. Deaths behind the last rejection do not count.
3. What clients put there is kept as far as it makes sense; an `x-death` that is no array is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

REJECTED = "rejected"
EXPIRED = "expired"
MAXLEN = "maxlen"
DELIVERY_LIMIT = "delivery_limit"
REASONS = (REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT)
"""Why messages die."""

DEATHS = "x-death"
_PARTS = ("queue", "reason", "exchange")
_FIRST = {part: f"x-first-death-{part}" for part in _PARTS}
_LAST = {part: f"x-last-death-{part}" for part in _PARTS}
WRITTEN_AGAIN = (DEATHS, *_LAST.values())
"""Every header that is written for a message that died before."""
WRITTEN_FIRST = (*WRITTEN_AGAIN, *_FIRST.values())
"""For one that did not."""


class Death(NamedTuple):
    """How a message died. `routing_keys` begins with the one it was published with; `time_s` is since 1970."""

    queue: str
    reason: str
    exchange: str
    routing_keys: tuple[str, ...]
    time_s: int
    original_expiration: str | None = None


def record(known: Any, death: Death) -> dict[str, Any]:
    """The headers to set on the copy; `known` is the message's `x-death`, None if it has none."""
    headers: dict[str, Any] = {}
    table: dict[str, Any] = {
        "count": 1,
        "reason": death.reason,
        "queue": death.queue,
        "time": death.time_s,
        "exchange": death.exchange,
        "routing-keys": list(death.routing_keys),
    }
    if death.original_expiration is not None:
        table["original-expiration"] = death.original_expiration
    others: list[Any] = []
    if known is None:
        headers |= {name: getattr(death, part) for part, name in _FIRST.items()}
    elif isinstance(known, (list, tuple)):
        same = [entry for entry in known if _is_same(entry, death)]
        others = [entry for entry in known if not _is_same(entry, death)]
        if same:
            table = same[0] | {"count": 1 + sum(map(_count_of, same))}
    headers[DEATHS] = [table, *others]
    return headers | {name: getattr(death, part) for part, name in _LAST.items()}


def came_by(deaths: Any, queue: str | None = None) -> tuple[str, str] | None:
    """Exchange and routing key by which a message first came to a queue that it has died in, the first or this one, by
    its `x-death`.
    """
    for entry in reversed(deaths) if isinstance(deaths, (list, tuple)) else ():
        if isinstance(entry, Mapping) and queue in (None, entry.get("queue")):
            exchange, keys = entry.get("exchange"), entry.get("routing-keys")
            if isinstance(exchange, str) and isinstance(keys, (list, tuple)) and keys and isinstance(keys[0], str):
                return exchange, keys[0]
    return None


def _is_same(entry: Any, death: Death) -> bool:
    return isinstance(entry, Mapping) and entry.get("queue") == death.queue and entry.get("reason") == death.reason


def _count_of(entry: Mapping[str, Any]) -> int:
    count = entry.get("count", 1)
    return count if isinstance(count, int) and 0 <= count < 1 << 62 else 1


def barred_queues(deaths: list[Any], reason: str) -> frozenset[str]:
    """The queues that a copy with the history `deaths` must not go to (rule 2), having died for `reason`."""
    queues = set()
    if reason != REJECTED:
        for entry in deaths:
            if not isinstance(entry, Mapping) or entry.get("reason") == REJECTED:
                break
            queues.add(entry.get("queue"))
    return frozenset(queue for queue in queues if isinstance(queue, str))


def carbon_copies(headers: Mapping[str, Any]) -> tuple[str, ...]:
    """The further routing keys that a message names in its header CC."""
    keys = headers.get("CC")
    return tuple(key for key in keys if isinstance(key, str)) if isinstance(keys, (list, tuple)) else ()
