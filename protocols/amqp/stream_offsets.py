"""The header `x-stream-offset`, which tells the consumer of a stream where each message stands.

A stream's property lists come out of a log that others write to as well, so each is checked before it is sent: one
that is not what it should be is replaced by nothing but the offset.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from protocols.amqp import wire
from protocols.amqp.errors import SyntaxFault
from protocols.amqp.properties import TEXT_STEPS, Step, layout_of

HEADER = "x-stream-offset"

_ENTRY = wire.short_string(HEADER) + b"l"
_ENTRY_BYTES = len(_ENTRY) + 8
_HEADERS_FLAG = 0x2000
_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")
_OFFSET = struct.Struct(">q")

_Walk = tuple[tuple[Step, ...], bool, tuple[Step, ...]]
_WALKS_MAX = 1024
_walks: dict[bytes, _Walk] = {}
"""By flags: the properties before the headers, whether there are any, the properties behind them."""
_TABLES_MAX = 1024
_TABLE_BYTES_MAX = 512
_good_tables: dict[bytes, None] = {}
"""Tables that were read before: most messages of a stream have the headers of the one before."""


def with_offsets(raws: Sequence[bytes], first_offset: int, bytes_max: int) -> list[bytes]:
    """Property lists with the header added, for messages of consecutive offsets.

    A list of more than `bytes_max` cannot be sent in a frame, and loses all but the offset.
    """
    number = _OFFSET.pack
    if raws.count(raws[0]) == len(raws):
        before, behind = _split(raws[0], bytes_max)
        return [before + number(offset) + behind for offset in range(first_offset, first_offset + len(raws))]
    lists = []
    for offset, raw in enumerate(raws, first_offset):
        before, behind = _split(raw, bytes_max)
        lists.append(b"%b%b%b" % (before, number(offset), behind))
    return lists


def _split(raw: bytes, bytes_max: int) -> tuple[bytes, bytes]:
    """What to send before and behind the offset."""
    try:
        if len(raw) + _ENTRY_BYTES + 4 <= bytes_max:
            return _open(raw)
    except (IndexError, struct.error, SyntaxFault):
        pass
    return _open(b"\0\0")


def _open(raw: bytes) -> tuple[bytes, bytes]:
    flags = raw[:2]
    walk = _walks.get(flags)
    if walk is None:
        walk = _walk_of(_SHORT.unpack(flags)[0])
        if len(_walks) < _WALKS_MAX:
            _walks[flags] = walk
    before, has_headers, behind = walk
    at = 2
    for _ in before:
        at += raw[at] + 1
    end, table = at, b""
    if has_headers:
        end = at + 4 + _LONG.unpack_from(raw, at)[0]
        table = raw[at + 4 : end]
        if table not in _good_tables:
            wire.read_table(raw, at)
            if len(table) <= _TABLE_BYTES_MAX:
                if len(_good_tables) >= _TABLES_MAX:
                    _good_tables.clear()
                _good_tables[table] = None
    stop = end
    for step in behind:
        if step in TEXT_STEPS:
            stop += raw[stop] + 1
        else:
            stop += 8 if step is Step.TIMESTAMP else 1
    if stop != len(raw):
        raise SyntaxFault("a property list of another length than its properties")
    announced = _SHORT.pack(_SHORT.unpack(flags)[0] | _HEADERS_FLAG)
    size = _LONG.pack(len(table) + _ENTRY_BYTES)
    return b"%b%b%b%b%b" % (announced, raw[2:at], size, table, _ENTRY), raw[end:]


def _walk_of(flags: int) -> _Walk:
    """Raises SyntaxFault."""
    steps = layout_of(flags)
    if Step.UNKNOWN in steps:
        raise SyntaxFault("unknown property flags")
    if Step.HEADERS in steps:
        at = steps.index(Step.HEADERS)
        return steps[:at], True, steps[at + 1 :]
    # Content type and encoding, the two that come first, are the flags above that of the headers.
    at = (flags >> 15 & 1) + (flags >> 14 & 1)
    return steps[:at], False, steps[at:]
