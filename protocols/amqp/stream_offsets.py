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

_ENTRY_ALONE = _LONG.pack(_ENTRY_BYTES) + _ENTRY
_Parts = tuple[bytes, bytes]
"""What to send before and behind the offset."""
_PERSISTENT_BYTES = 11
"""Of such a list beside its table, and of the length of a table."""
_NO_PROPERTIES: _Parts = (_SHORT.pack(_HEADERS_FLAG) + _ENTRY_ALONE, b"")

_Walk = tuple[bytes, tuple[None, ...], bool, tuple[int, ...]]
_WALKS_MAX = 1024
_walks: dict[bytes, _Walk] = {}
"""By flags: the flags to send, the texts before the headers, whether there are any, and what follows them: the size of
each property, 0 for texts.
"""
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
        before, behind = _parts(raws[0], bytes_max)
        return [before + number(offset) + behind for offset in range(first_offset, first_offset + len(raws))]
    lists = []
    for offset, raw in enumerate(raws, first_offset):
        before, behind = _parts(raw, bytes_max)
        lists.append(b"%b%b%b" % (before, number(offset), behind))
    return lists


def persistent_lists(tables: Sequence[bytes | None], first_offset: int, bytes_max: int) -> list[bytes]:
    """Property lists of nothing but headers and the delivery mode 2, with the header added, of good tables without
    their lengths. None stands for one that the caller knows of.
    """
    number, long, join = _OFFSET.pack, _LONG.pack, b"".join
    lists = []
    for offset, table in enumerate(tables, first_offset):
        table = table or b""
        size = len(table) + _ENTRY_BYTES
        if size + _PERSISTENT_BYTES > bytes_max:
            lists.append(join((_NO_PROPERTIES[0], number(offset))))
        else:
            lists.append(join((b"\x30\0", long(size), table, _ENTRY, number(offset), b"\2")))
    return lists


def _parts(raw: bytes, bytes_max: int) -> _Parts:
    try:
        flags = raw[:2]
        walk = _walks.get(flags)
        if walk is None:
            walk = _walk_of(_SHORT.unpack(flags)[0])
            if len(_walks) < _WALKS_MAX:
                _walks[flags] = walk
        announced, before, has_headers, behind = walk
        at = 2
        for _ in before:
            at += raw[at] + 1
        end = stop = _end_of_table(raw, at) if has_headers else at
        for size in behind:
            stop += size or raw[stop] + 1
    except (IndexError, struct.error, SyntaxFault):
        return _NO_PROPERTIES
    if stop != len(raw) or stop + _ENTRY_BYTES + 4 > bytes_max:
        return _NO_PROPERTIES
    if not has_headers:
        return b"%b%b%b" % (announced, raw[2:at], _ENTRY_ALONE), raw[at:]
    table_bytes = _LONG.pack(end - at - 4 + _ENTRY_BYTES)
    return b"%b%b%b%b%b" % (announced, raw[2:at], table_bytes, raw[at + 4 : end], _ENTRY), raw[end:]


def _end_of_table(raw: bytes, at: int) -> int:
    """Check the table that begins at `at`. Raises SyntaxFault, struct.error."""
    end: int = at + 4 + _LONG.unpack_from(raw, at)[0]
    table = raw[at:end]
    if table not in _good_tables:
        wire.read_table(raw, at)
        if len(table) <= _TABLE_BYTES_MAX:
            if len(_good_tables) >= _TABLES_MAX:
                _good_tables.clear()
            _good_tables[table] = None
    return end


def _walk_of(flags: int) -> _Walk:
    """Raises SyntaxFault."""
    steps = layout_of(flags)
    if Step.UNKNOWN in steps:
        raise SyntaxFault("unknown property flags")
    # Content type and encoding, the two that come first, are the flags above that of the headers.
    texts = (flags >> 15 & 1) + (flags >> 14 & 1)
    has_headers = bool(flags & _HEADERS_FLAG)
    sizes = (0 if step in TEXT_STEPS else 8 if step is Step.TIMESTAMP else 1 for step in steps[texts + has_headers :])
    return _SHORT.pack(flags | _HEADERS_FLAG), (None,) * texts, has_headers, tuple(sizes)
