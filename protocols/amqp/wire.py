"""The value types of AMQP 0-9-1: short and long strings, field tables and arrays, both ways.

1. Type letters are RabbitMQ's (amqp-0-9-1-errata, section 3): t b B s u I i l f d D S A T F V x; `U` (int16) and `L`
   (int64) of the specification are read as well.
2. Text is `str`; bytes that are not UTF-8 become surrogate escapes, so that encoding gives back the same bytes, where
   they are not refused (`read_short_text`).
3. Every length is checked against the bytes there are before anything is sliced; tables nest at most 32 deep. Whatever
   is wrong raises `SyntaxFault`, nothing else.
4. A timestamp is an `int` of its own class (seconds), as its 64 bits reach further than `datetime`.
"""

from __future__ import annotations

import calendar
import struct
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

from protocols.amqp.errors import MalformedText, SyntaxFault
from protocols.sansio import LocalProtocolError

NESTING_MAX = 32
TEXT_ERRORS = "surrogateescape"

_LONG = struct.Struct(">I")
_INT32_MIN, _INT32_END = -(1 << 31), 1 << 31
_INT64_MIN, _INT64_END = -(1 << 63), 1 << 63


class Timestamp(int):
    """Seconds since 1970, the wire's type `T`."""

    __slots__ = ()


class Long(int):
    """An integer written with 64 bits however small it is, the wire's type `l`."""

    __slots__ = ()


def read_short_string(data: bytes, pos: int) -> tuple[str, int]:
    """A string of at most 255 bytes and the position after it."""
    try:
        start = pos + 1
        stop = start + data[pos]
    except IndexError:
        raise SyntaxFault("short string without a length") from None
    if stop > len(data):
        raise SyntaxFault("short string longer than its frame")
    return data[start:stop].decode("utf-8", TEXT_ERRORS), stop


def read_short_text(data: bytes, pos: int) -> tuple[str, int]:
    """The same of a string that must be UTF-8. Raises MalformedText."""
    text, stop = read_short_string(data, pos)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedText("Malformed UTF-8 in shortstr") from None
    return text, stop


def read_long_string(data: bytes, pos: int) -> tuple[bytes, int]:
    """Bytes with a 32-bit length and the position after them."""
    start = pos + 4
    if start > len(data):
        raise SyntaxFault("long string without a length")
    stop = start + _LONG.unpack_from(data, pos)[0]
    if stop > len(data):
        raise SyntaxFault("long string longer than its frame")
    return data[start:stop], stop


def read_table(data: bytes, pos: int, depth: int = 0) -> tuple[dict[str, Any], int]:
    """A field table with its 32-bit length and the position after it."""
    if depth >= NESTING_MAX:
        raise SyntaxFault(f"tables nested deeper than {NESTING_MAX}")
    pos, stop = _extent(data, pos)
    return read_table_items(data, pos, stop, depth), stop


def read_table_items(data: bytes, pos: int, stop: int, depth: int = 0) -> dict[str, Any]:
    """The fields of a table without its length, which fill data[pos:stop] exactly."""
    table: dict[str, Any] = {}
    while pos < stop:
        name, pos = read_short_string(data, pos)
        table[name], pos = _read_value(data, pos, depth + 1)
    if pos != stop:
        raise SyntaxFault("table longer than its length says")
    return table


def _read_array(data: bytes, pos: int, depth: int) -> tuple[list[Any], int]:
    if depth >= NESTING_MAX:
        raise SyntaxFault(f"arrays nested deeper than {NESTING_MAX}")
    pos, stop = _extent(data, pos)
    values = []
    while pos < stop:
        value, pos = _read_value(data, pos, depth + 1)
        values.append(value)
    if pos != stop:
        raise SyntaxFault("array longer than its length says")
    return values, stop


def _extent(data: bytes, pos: int) -> tuple[int, int]:
    start = pos + 4
    if start > len(data):
        raise SyntaxFault("table or array without a length")
    stop = start + _LONG.unpack_from(data, pos)[0]
    if stop > len(data):
        raise SyntaxFault("table or array longer than its frame")
    return start, stop


def _read_value(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
    if pos >= len(data):
        raise SyntaxFault("field without a type")
    read = _READERS.get(data[pos])
    if read is None:
        raise SyntaxFault(f"unknown field type {data[pos : pos + 1]!r}")
    return read(data, pos + 1, depth)


def read_value(data: bytes, pos: int) -> tuple[Any, int]:
    """A field's value, type included, and the position after it."""
    return _read_value(data, pos, 0)


def skip_value(data: bytes, pos: int) -> int:
    """The position after a field's value, type included, of a table that was read before."""
    kind = data[pos]
    size = _SIZES.get(kind)
    return pos + 1 + size if size is not None else pos + 5 + _LONG.unpack_from(data, pos + 1)[0]


Reader = Callable[[bytes, int, int], tuple[Any, int]]


def _number(code: str, make: Callable[[Any], Any] | None = None) -> Reader:
    packer = struct.Struct(">" + code)

    def read(data: bytes, pos: int, depth: int) -> tuple[Any, int]:
        if pos + packer.size > len(data):
            raise SyntaxFault("field cut short")
        (value,) = packer.unpack_from(data, pos)
        return (value if make is None else make(value)), pos + packer.size

    return read


def _read_decimal(data: bytes, pos: int, depth: int) -> tuple[Decimal, int]:
    if pos + 5 > len(data):
        raise SyntaxFault("decimal cut short")
    scale, value = struct.unpack_from(">Bi", data, pos)
    return Decimal(value).scaleb(-scale), pos + 5


def _read_text(data: bytes, pos: int, depth: int) -> tuple[str, int]:
    value, pos = read_long_string(data, pos)
    return value.decode("utf-8", TEXT_ERRORS), pos


_READERS: dict[int, Reader] = {
    ord("t"): _number("B", bool),
    ord("b"): _number("b"),
    ord("B"): _number("B"),
    ord("s"): _number("h"),
    ord("U"): _number("h"),
    ord("u"): _number("H"),
    ord("I"): _number("i"),
    ord("i"): _number("I"),
    ord("l"): _number("q"),
    ord("L"): _number("q"),
    ord("f"): _number("f"),
    ord("d"): _number("d"),
    ord("T"): _number("Q", Timestamp),
    ord("D"): _read_decimal,
    ord("S"): _read_text,
    ord("x"): lambda data, pos, depth: read_long_string(data, pos),
    ord("A"): _read_array,
    ord("F"): read_table,
    ord("V"): lambda data, pos, depth: (None, pos),
}


_SIZES = dict(zip(b"tbBsUuIilLfdTDV", (1, 1, 1, 2, 2, 2, 4, 4, 8, 8, 4, 8, 8, 5, 0), strict=True))
"""Bytes of the values that have no length of their own."""


def short_string(text: str) -> bytes:
    """Encode a short string. Raises LocalProtocolError above 255 bytes."""
    data = text.encode("utf-8", TEXT_ERRORS)
    if len(data) > 255:
        raise LocalProtocolError("a short string holds at most 255 bytes")
    return b"%c%b" % (len(data), data)


def fitting(text: str) -> str:
    """As much of a name or a routing key as a short string holds: the firehose makes keys of names that are longer."""
    return text if len(text) < 64 else text.encode("utf-8", TEXT_ERRORS)[:255].decode("utf-8", TEXT_ERRORS)


def long_string(data: bytes) -> bytes:
    """Encode bytes with a 32-bit length."""
    return _LONG.pack(len(data)) + data


def table(values: dict[str, Any]) -> bytes:
    """Encode a field table. Raises LocalProtocolError for a value no field type can hold."""
    return long_string(table_items(values))


def table_items(values: dict[str, Any]) -> bytes:
    """The fields of a table without its length. Raises LocalProtocolError as `table`."""
    return b"".join([short_string(name) + value_bytes(value) for name, value in values.items()])


def value_bytes(value: Any) -> bytes:
    """Encode a field's value, type included. Raises LocalProtocolError as `table`."""
    known = _BY_CLASS.get(value.__class__)
    if known is not None:
        return known(value)
    for kind, encode in _ENCODERS:
        if isinstance(value, kind):
            return encode(value)
    raise LocalProtocolError(f"no field type for {type(value).__name__}")


def _text(value: str) -> bytes:
    data = value.encode("utf-8", TEXT_ERRORS)
    return b"S%b%b" % (_LONG.pack(len(data)), data)


def _integer(value: int) -> bytes:
    if _INT32_MIN <= value < _INT32_END:
        return struct.pack(">ci", b"I", value)
    if _INT64_MIN <= value < _INT64_END:
        return struct.pack(">cq", b"l", value)
    raise LocalProtocolError("integers have at most 64 bits")


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent < -255:
        raise LocalProtocolError("decimal out of range")
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    if 0 <= exponent <= 10:
        number, exponent = number * 10**exponent, 0
    if exponent > 0 or not _INT32_MIN <= number < _INT32_END:
        raise LocalProtocolError("decimal out of range")
    return struct.pack(">cBi", b"D", -exponent, number)


_ENCODERS: tuple[tuple[type | tuple[type, ...], Callable[[Any], bytes]], ...] = (
    (str, _text),
    (bool, lambda value: b"t\1" if value else b"t\0"),
    (Timestamp, lambda value: struct.pack(">cQ", b"T", value)),
    (Long, lambda value: struct.pack(">cq", b"l", value)),
    (int, _integer),
    (type(None), lambda value: b"V"),
    (dict, lambda value: b"F" + table(value)),
    ((list, tuple), lambda value: b"A" + long_string(b"".join(map(value_bytes, value)))),
    ((bytes, bytearray), lambda value: b"x" + long_string(bytes(value))),
    (float, lambda value: struct.pack(">cd", b"d", value)),
    (Decimal, _decimal),
    (datetime, lambda value: struct.pack(">cQ", b"T", max(0, calendar.timegm(value.utctimetuple())))),
)
_BY_CLASS: dict[type, Callable[[Any], bytes]] = {
    kind: encode for kinds, encode in _ENCODERS for kind in (kinds if isinstance(kinds, tuple) else (kinds,))
}
