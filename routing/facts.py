"""What the engine decides by, of one message, packed into one integer: a slab keeps one, or a list with one a message.

    bit 0        persistent; messages of one slab agree in it
    bits 1-8     priority, 0 to 255
    bits 9-41    time to live in ms, plus one; 0 is for ever; above 49 days a step is 128 ms
    bits 42-     delay in ms; 0 is none

A time to live and a delay count from when the message was published. A delay is honoured where the route says so
(`Route.delayed`), everywhere else it is dropped.
"""

from __future__ import annotations

import re

PRIORITY_MAX = 255
TTL_MS_MAX = 315_360_000_000
"""Ten years, as in RabbitMQ."""
TTL_EXACT_MS_MAX = 1 << 32
"""A time to live up to here is its bits less one; longer ones (49 days) are rounded up to the next step."""
DELAY_MS_MAX = (1 << 41) - 1
"""Some 69 years."""

PERSISTENT = 1
TIMED_FROM = 1 << 9
"""Facts from here on have a time to live or a delay."""
DELAY_BITS = 42
"""A delay stands above so many."""
DELAYED_FROM = 1 << DELAY_BITS
"""Facts from here on have a delay."""

TTL_MASK = (1 << 33) - 1
_STEP_BITS = 7
_DELAY_TEXT = re.compile(r"[+-]?[0-9]{1,20}")


def pack(persistent: bool, priority: int = 0, ttl_ms: int | None = None, delay_ms: int = 0) -> int:
    """The facts of a message. All values are within the limits above; a delay of 0 or less is none."""
    ttl = 0 if ttl_ms is None else ttl_ms + 1
    if ttl > TTL_EXACT_MS_MAX + 1:
        ttl = TTL_EXACT_MS_MAX + 1 - (TTL_EXACT_MS_MAX + 1 - ttl >> _STEP_BITS)
    return (delay_ms << DELAY_BITS if delay_ms > 0 else 0) | ttl << 9 | priority << 1 | persistent


def priority_of(facts: int) -> int:
    """0 to 255."""
    return facts >> 1 & 255


def ttl_ms_of(facts: int) -> int | None:
    """How long it lives once it may be delivered; None is for ever."""
    ttl = facts >> 9 & TTL_MASK
    if ttl > TTL_EXACT_MS_MAX + 1:
        return TTL_EXACT_MS_MAX + (ttl - TTL_EXACT_MS_MAX - 1 << _STEP_BITS)
    return ttl - 1 if ttl else None


def delay_ms_of(facts: int) -> int:
    """How long after publishing it may be delivered; 0 is at once."""
    return facts >> DELAY_BITS


def asked_delay_ms(value: object) -> int:
    """What a header `x-delay` says: a number of milliseconds or a text of digits; anything else, or one below zero, is
    none, and too much is as much as there may be.
    """
    if isinstance(value, str) and _DELAY_TEXT.fullmatch(value):
        value = int(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
        return int(max(0, min(value, DELAY_MS_MAX)))
    return 0


def without_delay(facts: int) -> int:
    """The same for immediate delivery."""
    return facts & DELAYED_FROM - 1
