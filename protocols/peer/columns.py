"""Columns of values as they travel between brokers: one for each message of a slab.

1. A column is the lengths of all values as one array of 32-bit little-endian numbers, or one number where all are
   equal, and the values joined. Joining and cutting is all that is done for a message.
2. A column without lengths is the value of all.
3. Counts and lengths are checked against what is there before anything is made of them.
4. Names are bytes: they may not be UTF-8 (`NAMES`).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate

from protocols.peer.wire import ErrorCode, PeerError

NAMES = "surrogateescape"
Column = tuple[bytes, bytes]
"""Lengths and values, see the module's rules 1 and 2."""

_SIZE_BYTES = 4
_DELAY_BIT = 42
FACTS_MASK = (1 << _DELAY_BIT) - 1
"""What of a message's facts is not its delay."""
_SWAP = sys.byteorder == "big"


def joined(values: Sequence[bytes]) -> Column:
    """A column of at least one value."""
    return _sizes(values), b"".join(values)


def common(value: bytes) -> Column:
    """A column whose values are all the same."""
    return b"", value


def joined_text(values: Sequence[str]) -> Column:
    """A column of names."""
    together = "".join(values)
    if together.isascii():
        return _sizes(values), together.encode("ascii")
    return joined([value.encode("utf-8", NAMES) for value in values])


def joined_facts(facts: Sequence[int]) -> bytes:
    """The facts of each message, 16 bytes each; 8 where none has a delay."""
    if max(facts) <= FACTS_MASK:
        return _bytes_of(array("Q", facts))
    parts = array("Q", [part for fact in facts for part in (fact & FACTS_MASK, fact >> _DELAY_BIT)])
    return _bytes_of(parts)


def split(column: Column, count: int) -> list[bytes]:
    """The values of a column that has one for each. Raises PeerError."""
    values = column[1]
    return [values[start:end] for start, end in _places(column, count)] if count > 1 else _only(column)


def split_text(column: Column, count: int) -> list[str]:
    """The inverse of `joined_text`. Raises PeerError."""
    values = column[1]
    if values.isascii():
        text = values.decode("ascii")
        return [text[start:end] for start, end in _places(column, count)]
    return [value.decode("utf-8", NAMES) for value in split(column, count)]


def split_facts(data: bytes, count: int) -> list[int]:
    """The inverse of `joined_facts`. Raises PeerError."""
    parts = array("Q")
    if len(data) not in (8 * count, 16 * count):
        raise _malformed(f"the facts of {count} messages are {len(data)} bytes")
    parts.frombytes(data)
    if _SWAP:
        parts.byteswap()
    low, delays = (parts, None) if len(data) == 8 * count else (parts[::2], parts[1::2])
    if max(low) > FACTS_MASK or (delays is not None and max(delays) >= 1 << 41):
        raise _malformed("facts that no message can have")
    return low.tolist() if delays is None else [part | delay << _DELAY_BIT for part, delay in zip(low, delays)]


def split_or_common(column: Column, count: int) -> bytes | list[bytes]:
    """What `joined` or `common` made. Raises PeerError."""
    return split(column, count) if column[0] else column[1]


def _sizes(values: Sequence[bytes] | Sequence[str]) -> bytes:
    sizes = _bytes_of(array("I", map(len, values)))
    first = sizes[:_SIZE_BYTES]
    return first if sizes == first * len(values) else sizes


def _bytes_of(numbers: array[int]) -> bytes:
    if _SWAP:
        numbers.byteswap()
    return numbers.tobytes()


def _only(column: Column) -> list[bytes]:
    sizes, values = column
    if len(sizes) != _SIZE_BYTES or int.from_bytes(sizes, "little") != len(values):
        raise _malformed(f"lengths that are not those of a value of {len(values)} bytes")
    return [values]


def _places(column: Column, count: int) -> zip[tuple[int, int]]:
    """Where each value begins and ends."""
    sizes, values = column
    if len(sizes) == _SIZE_BYTES:
        size = int.from_bytes(sizes, "little")
        if size * count != len(values):
            raise _malformed(f"{count} values of {size} bytes each are {len(values)} bytes")
        if not size:
            return zip([0] * count, [0] * count)
        return zip(range(0, len(values), size), range(size, len(values) + size, size))
    if len(sizes) != _SIZE_BYTES * count:
        raise _malformed(f"{count} values with {len(sizes)} bytes of lengths")
    numbers = array("I")
    numbers.frombytes(sizes)
    if _SWAP:
        numbers.byteswap()
    ends = list(accumulate(numbers))
    if ends[-1] != len(values):
        raise _malformed(f"values of {ends[-1]} bytes are {len(values)} bytes")
    return zip([0, *ends], ends)


def _malformed(what: str) -> PeerError:
    return PeerError(ErrorCode.MALFORMED_FRAME, f"a frame that cannot be read: {what}")
