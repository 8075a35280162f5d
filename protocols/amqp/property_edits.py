"""Changing headers, expiration and reply-to within a property list, and reading single ones, without decoding the rest.

The list was checked when it was published. A header table is walked by the lengths of its values only if it contains
the bytes of a name that is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocols.amqp import wire

# Bits of the first byte of the flag word, in the order of what they announce; then one of the second byte.
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE = 0x80, 0x40, 0x20, 0x10
_PRIORITY, _CORRELATION_ID, _REPLY_TO, _EXPIRATION = 0x08, 0x04, 0x02, 0x01
_MESSAGE_ID = 0x80
_WIDE = ("count", "x-delivery-count")
"""Integers that RabbitMQ writes with 64 bits; clients in languages with types rely on it."""
_TIMES = ("time",)
_TYPED = {*_WIDE, *_TIMES}

_names: dict[str, bytes] = {}
"""Names that the engine looks for or sets, which are few, as they stand in a table."""


def _name(text: str) -> bytes:
    """A header's name as it stands in a table."""
    name = _names.get(text)
    if name is None:
        name = _names[text] = wire.short_string(text)
    return name


def _headers_at(raw: bytes) -> tuple[int, int]:
    """Where the items of the header table begin and end; where one would begin, twice, if there is none."""
    flags = raw[0]
    pos = 2
    if flags & _CONTENT_TYPE:
        pos += raw[pos] + 1
    if flags & _CONTENT_ENCODING:
        pos += raw[pos] + 1
    if flags & _HEADERS:
        start = pos + 4
        return start, start + int.from_bytes(raw[pos:start], "big")
    return pos, pos


def _expiration_at(raw: bytes, pos: int) -> tuple[int, int]:
    """Where the expiration begins, its length included, and where it ends; `pos` is where the headers end."""
    flags = raw[0]
    if flags & _DELIVERY_MODE:
        pos += 1
    if flags & _PRIORITY:
        pos += 1
    if flags & _CORRELATION_ID:
        pos += raw[pos] + 1
    if flags & _REPLY_TO:
        pos += raw[pos] + 1
    return (pos, pos + raw[pos] + 1) if flags & _EXPIRATION else (pos, pos)


def read_headers(raw: bytes, names: Sequence[str]) -> dict[str, Any]:
    """Those of the headers `names` that are there, decoded."""
    start, stop = _headers_at(raw)
    found: dict[str, Any] = {}
    for text in names:
        if raw.find(_name(text), start, stop) >= 0:
            wanted = set(names)
            while start < stop:
                name, start = wire.read_short_string(raw, start)
                if name in wanted:
                    found[name], start = wire.read_value(raw, start)
                else:
                    start = wire.skip_value(raw, start)
            break
    return found


def expiration_of(raw: bytes) -> str | None:
    """The expiration as its publisher wrote it."""
    if not raw[0] & _EXPIRATION:
        return None
    start, stop = _expiration_at(raw, _headers_at(raw)[1])
    return raw[start + 1 : stop].decode()


def with_reply_to(raw: bytes, reply_to: str) -> bytes:
    """A property list that has a `reply_to`, with another one."""
    pos = _headers_at(raw)[1]
    if raw[0] & _DELIVERY_MODE:
        pos += 1
    if raw[0] & _PRIORITY:
        pos += 1
    if raw[0] & _CORRELATION_ID:
        pos += raw[pos] + 1
    return raw[:pos] + wire.short_string(reply_to) + raw[pos + 1 + raw[pos] :]


def message_id_of(raw: bytes) -> bytes | None:
    """The property message-id."""
    if not raw[1] & _MESSAGE_ID:
        return None
    start = _expiration_at(raw, _headers_at(raw)[1])[1]
    return raw[start + 1 : start + 1 + raw[start]]


def encode_headers(headers: Mapping[str, Any]) -> bytes:
    """Items of a header table."""
    return b"".join([_name(name) + wire.value_bytes(typed(name, value)) for name, value in headers.items()])


def typed(name: str, value: Any) -> Any:
    """A value of a header that RabbitMQ defines, in the type it has there."""
    if name == "x-death" and isinstance(value, (list, tuple)):
        return [
            {key: typed(key, inner) if key in _TYPED else inner for key, inner in entry.items()}
            if isinstance(entry, dict)
            else entry
            for entry in value
        ]
    if value.__class__ is int:
        if name in _WIDE:
            return wire.Long(value)
        if name in _TIMES:
            return wire.Timestamp(max(value, 0))
    return value


def edit(raw: bytes, added: bytes, removed: Sequence[str] = (), *, keep_expiration: bool = True) -> bytes:
    """A property list without the headers `removed`, then with the items `added`."""
    start, stop = _headers_at(raw)
    items = raw[start:stop]
    for text in removed:
        if _name(text) in items:
            items = _without(items, removed)
            break
    items += added
    rest = raw[stop:]
    flags = raw[0] | _HEADERS
    if flags & _EXPIRATION and not keep_expiration:
        begin, end = _expiration_at(raw, stop)
        rest = raw[stop:begin] + raw[end:]
        flags ^= _EXPIRATION
    before = raw[2 : start - 4] if raw[0] & _HEADERS else raw[2:start]
    return b"%c%c%b%b%b%b" % (flags, raw[1], before, len(items).to_bytes(4, "big"), items, rest)


def _without(items: bytes, names: Sequence[str]) -> bytes:
    kept = []
    pos = 0
    while pos < len(items):
        name, after = wire.read_short_string(items, pos)
        stop = wire.skip_value(items, after)
        if name not in names:
            kept.append(items[pos:stop])
        pos = stop
    return b"".join(kept)
