"""The property list of a content header: a 16-bit flag word, then the properties whose flags are set, in order.

    header payload:  class id (2)  weight (2)  body size (8)  | flags (2)  property list

What follows the bar is what this module reads and writes and what `Properties.raw` holds for messages published here.
There are 14 properties, so the continuation bit (0) and bit 1 are never set
(AMQP 0-9-1 section 2.3.5.2).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from protocols.amqp import wire
from protocols.amqp.errors import SyntaxFault

_SHORT = struct.Struct(">H")
_LONG_LONG = struct.Struct(">Q")


@dataclass(slots=True)
class BasicProperties:
    """The properties of class `basic`; None is absent."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


_FIELDS = tuple((1 << (15 - place), name) for place, name in enumerate(BasicProperties.__slots__))
_KNOWN_FLAGS = sum(flag for flag, _ in _FIELDS)
_OCTETS = ("delivery_mode", "priority")


class Step(Enum):
    """What a property takes on the wire, and which ones somebody looks at while walking past."""

    SHORT_STRING = "length and bytes"
    HEADERS = "table"
    DELIVERY_MODE = "octet"
    PRIORITY = "octet, too"
    TIMESTAMP = "eight octets"
    EXPIRATION = "short string of digits"
    REPLY_TO = "short string that may stand for an address of the channel"
    USER_ID = "short string that must be the user"
    UNKNOWN = "no property"


TEXT_STEPS = frozenset((Step.SHORT_STRING, Step.EXPIRATION, Step.REPLY_TO, Step.USER_ID))
"""All that are short strings."""

_STEPS = {
    "headers": Step.HEADERS,
    "delivery_mode": Step.DELIVERY_MODE,
    "priority": Step.PRIORITY,
    "timestamp": Step.TIMESTAMP,
    "expiration": Step.EXPIRATION,
    "reply_to": Step.REPLY_TO,
    "user_id": Step.USER_ID,
}


def layout_of(flags: int) -> tuple[Step, ...]:
    """The properties that a flag word announces, in order."""
    if flags & ~_KNOWN_FLAGS:
        return (Step.UNKNOWN,)
    return tuple(_STEPS.get(name, Step.SHORT_STRING) for flag, name in _FIELDS if flags & flag)


def names_of(flags: int) -> list[tuple[Step, str]]:
    """The properties that a flag word announces, in order, with their names."""
    return [(_STEPS.get(name, Step.SHORT_STRING), name) for flag, name in _FIELDS if flags & flag]


DELAY_HEADER = "x-delay"
_PLAIN_DIGITS_MAX = 9
"""An expiration as short as that is within every limit."""
_PLAIN_DELAYS = dict(zip(b"IilL", "iIqq", strict=True))
"""The types of a delay that stands in the same place of every list like it."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """Where priority, expiration and delay are in a property list; None where it has none."""

    priority_at: int | None
    expiration: range | None
    """Its digits."""
    delay: struct.Struct | None
    """Reads it from the list: milliseconds, of any sign."""


def fixed_parts(raw: bytes) -> tuple[Callable[[bytes], tuple[bytes, ...]], Ruling | None]:
    """Reads from property lists as long as `raw`, which is well-formed, all but plain texts, times, and the values of
    priority, expiration and delay.

    Two lists in which that is the same are walked in the same steps, and ask for the same but for those three values,
    which are where the second result says, if they have any.
    """
    fixed = [2]  # lengths of what counts and of what does not, in turn
    priority_at = expiration = delay = None
    pos = 2
    for step in layout_of(int.from_bytes(raw[:2], "big")):
        head, size = 0, 1  # of them `head` bytes count
        if step is Step.TIMESTAMP:
            size = 8
        elif step is Step.DELIVERY_MODE:
            head = 1
        elif step is Step.HEADERS:
            head = size = 4 + int.from_bytes(raw[pos : pos + 4], "big")
            delay_at = _plain_delay(raw, pos + 4, pos + size)
            if delay_at:
                code = _PLAIN_DELAYS[raw[delay_at - 1]]
                value_bytes = struct.calcsize(">" + code)
                rest = len(raw) - delay_at - value_bytes
                delay = struct.Struct(f">{delay_at}x{code}{rest}x")
                fixed[-1] += delay_at - pos
                fixed += (value_bytes, 0)
                head = size = pos + size - delay_at - value_bytes
                pos = delay_at + value_bytes
        elif step is Step.PRIORITY:
            priority_at = pos
        else:
            size = 1 + raw[pos]
            is_plain = step is Step.EXPIRATION and 1 < size <= 1 + _PLAIN_DIGITS_MAX
            head = 1 if is_plain or step is Step.SHORT_STRING else size
            if is_plain:
                expiration = range(pos + 1, pos + size)
        fixed[-1] += head
        if size > head:
            fixed += (size - head, 0)
        pos += size
    if not fixed[-1]:
        del fixed[-1]
    form = "".join(f"{size}{'x' if place & 1 else 's'}" for place, size in enumerate(fixed))
    ruled = (priority_at, expiration, delay)
    return struct.Struct(form).unpack, None if ruled == (None, None, None) else Ruling(*ruled)


def _plain_delay(raw: bytes, pos: int, stop: int) -> int:
    """Where the value of the header `x-delay` is in a table, if it is there once, as an integer; 0 if it is not."""
    found = 0
    while pos < stop:
        name, pos = wire.read_short_string(raw, pos)
        if name == DELAY_HEADER:
            if found or raw[pos] not in _PLAIN_DELAYS:
                return 0
            found = pos + 1
        pos = wire.skip_value(raw, pos)
    return found


def decode_properties(raw: bytes) -> BasicProperties:
    """Read a whole property list. Raises SyntaxFault."""
    if len(raw) < 2:
        raise SyntaxFault("content header without property flags")
    (flags,) = _SHORT.unpack_from(raw)
    if flags & ~_KNOWN_FLAGS:
        raise SyntaxFault("unknown property flags")
    found = BasicProperties()
    pos = 2
    for flag, name in _FIELDS:
        if not flags & flag:
            continue
        value: Any
        if name in _OCTETS:
            if pos >= len(raw):
                raise SyntaxFault(f"{name} cut short")
            value = raw[pos]
            pos += 1
        elif name == "headers":
            value, pos = wire.read_table(raw, pos)
        elif name == "timestamp":
            if pos + 8 > len(raw):
                raise SyntaxFault("timestamp cut short")
            (value,) = _LONG_LONG.unpack_from(raw, pos)
            pos += 8
        else:
            value, pos = wire.read_short_string(raw, pos)
        setattr(found, name, value)
    if pos != len(raw):
        raise SyntaxFault("content header longer than its properties")
    return found


def encode_properties(properties: BasicProperties) -> bytes:
    """Write a property list. Raises LocalProtocolError for values the wire cannot hold."""
    flags = 0
    pieces = [b""]
    for flag, name in _FIELDS:
        value = getattr(properties, name)
        if value is None:
            continue
        flags |= flag
        if name in _OCTETS:
            pieces.append(bytes((value,)))
        elif name == "headers":
            pieces.append(wire.table(value))
        elif name == "timestamp":
            pieces.append(_LONG_LONG.pack(value))
        else:
            pieces.append(wire.short_string(value))
    pieces[0] = _SHORT.pack(flags)
    return b"".join(pieces)
