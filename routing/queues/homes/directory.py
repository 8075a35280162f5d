"""The directory of a home partition's batches: which destination set gets how many messages, without the messages.

What a turn brings is written as one batch, seldom more. The first begins with this record, at an offset of its own,
and `DIRECTORY_BIT` in the header's attributes says so. It speaks of all messages that follow it at consecutive
offsets, up to the next batch that has a directory or is a control batch, or the log's end, whichever comes first: what
a crash tore off is not there. A start reads 8 bytes a slab of it and looks at no message.

    u8 version, u8 columns (`_FACTS`, `_MOVED`, `_NUMBERED`), u16 zero, u32 number of slabs
    (u32 set id, u32 count)                                     for each slab
    u8 form                                                     for each slab, if there are facts
    u64 low [, u64 high]                                        one or one a message, by form; slab after slab
    (u64 offset, u64 time of publishing in ms)                  for each slab, if they were moved
    u32 publisher [, u16 number of each message]                for each slab, if any is numbered; 0: it is not

All is little-endian. Columns are present only where used. The facts of a message (`routing/facts.py`) are opaque here;
their high column is needed where they exceed 64 bits. Slabs without facts of their own have form 0.

A slab that was moved is known by the `offset` it had first of all (`moves.py`). For numbers see `publish_numbers.py`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from struct import Struct, pack, unpack_from
from typing import NamedTuple

from core_log.errors import CorruptBatch
from core_log.files import BytesLike
from core_log.record_batch import BatchHeader, first_value
from routing.facts import PERSISTENT
from routing.message import Numbered, Slab
from routing.queues.fact_columns import Columns, to_columns
from routing.queues.publish_numbers import pack_numbers, unpack_numbers

DIRECTORY_BIT = 1 << 8
"""Of a batch's attributes; the record format does not use it."""
_HEAD = Struct("<BBHI")
_SINGLE = Struct("<BBHIII")
_MOVE = Struct("<QQ")
_VERSION = 0
_FACTS, _MOVED, _NUMBERED = 1, 2, 4
_ONE, _EACH, _WIDE = 1, 2, 4
"""Forms of a slab's facts: one for all, or one for each; in two columns."""


class Move(NamedTuple):
    """The offset by which the first message of a moved slab is known, and when it was published."""

    offset: int
    published_ms: int


class Directory(NamedTuple):
    """Parallel lists, an item a slab. Facts have one item if they are those of all; where each message has its own,
    and none was moved, those of all slabs are `each`, and `facts` is None.
    """

    set_ids: Sequence[int]
    firsts: Sequence[int]
    counts: Sequence[int]
    facts: list[Columns | None] | None
    moves: list[Move] | None
    numbers: list[Numbered | None] | None = None
    each: Columns | None = None


def facts_of(slab: Slab) -> Columns | None:
    """What a slab's messages ask for as columns, one item if they agree; None if they ask for nothing."""
    if slab.facts is not None:
        if slab.columns is None:
            slab.columns = to_columns(slab.facts)
        columns: Columns = slab.columns
        return columns
    facts = slab.properties.facts
    return None if facts <= PERSISTENT else to_columns((facts,))


def each_of(columns: Columns, count: int) -> Columns:
    """Columns with an item for each of `count` messages, or the first so many."""
    low, high = columns
    if len(low) == count:
        return columns
    if len(low) == 1:
        return low * count, None if high is None else high * count
    return low[:count], None if high is None else high[:count]


def encode_directory(
    entries: Sequence[tuple[int, int]],
    facts: Sequence[Columns | None] | None = None,
    moves: Sequence[Move] = (),
    numbers: Sequence[Numbered | None] = (),
) -> bytes:
    """The record of (set id, count) slabs, with their facts if any has some, with their moves if they were moved, with
    the numbers of their messages if any has some.
    """
    if len(entries) == 1 and not facts and not moves and not numbers:
        ((set_id, count),) = entries
        return _SINGLE.pack(_VERSION, 0, 0, 1, set_id, count)
    moved = b"".join([_MOVE.pack(*move) for move in moves])
    columns = (_FACTS if facts else 0) | (_MOVED if moved else 0) | (_NUMBERED if numbers else 0)
    pairs = list(chain.from_iterable(entries))
    record = pack(f"<BBHI{len(pairs)}I", _VERSION, columns, 0, len(entries), *pairs)
    return record + _encode_facts(facts) + moved + _encode_numbers(numbers) if columns else record


def _encode_numbers(numbers: Sequence[Numbered | None]) -> bytes:
    return b"".join([
        pack("<I", 0) if one is None else pack("<I", one[0]) + pack_numbers(one[1]) for one in numbers
    ])  # fmt: skip


def _encode_facts(facts: Sequence[Columns | None] | None) -> bytes:
    if not facts:
        return b""
    forms = bytearray(len(facts))
    parts: list[bytes] = [b""]
    for index, columns in enumerate(facts):
        if columns is not None:
            low, high = columns
            forms[index] = (_ONE if len(low) == 1 else _EACH) | (_WIDE if high is not None else 0)
            parts.append(_little(low).tobytes())
            if high is not None:
                parts.append(_little(high).tobytes())
    parts[0] = bytes(forms)
    return b"".join(parts)


def _little(column: array[int]) -> array[int]:
    """The same in the byte order of the log, or back."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column


def directory_of(batch: BytesLike, header: BatchHeader) -> Directory:
    """The directory that a batch with `DIRECTORY_BIT` begins with. Raises CorruptBatch."""
    return decode_directory(first_value(batch), header.base_offset + 1)


def decode_directory(record: bytes, first_offset: int) -> Directory:
    """The inverse of `encode_directory`; the first slab is at `first_offset`. Raises CorruptBatch."""
    if len(record) < _HEAD.size:
        raise CorruptBatch(f"a directory of {len(record)} bytes")
    version, columns, _, count = _HEAD.unpack_from(record)
    if version != _VERSION or columns & ~(_FACTS | _MOVED | _NUMBERED):
        raise CorruptBatch(f"a directory of version {version} with columns {columns}")
    at = _HEAD.size + 8 * count
    if at > len(record):
        raise CorruptBatch(f"{count} slabs in a directory of {len(record)} bytes")
    numbers = unpack_from(f"<{2 * count}I", record, _HEAD.size)
    counts = numbers[1::2]
    if 0 in counts:
        raise CorruptBatch("an empty slab in a directory")
    firsts = list(accumulate(counts, initial=first_offset))
    del firsts[-1]
    facts, moves, numbered, each = None, None, None, None
    if columns & _FACTS:
        if not columns & _MOVED:
            each, at = _decode_each(record, at, counts)
        if each is None:
            facts, at = _decode_facts(record, at, counts)
    if columns & _MOVED:
        if at + _MOVE.size * count > len(record):
            raise CorruptBatch("a directory is cut short")
        moves = [Move._make(_MOVE.unpack_from(record, at + _MOVE.size * index)) for index in range(count)]
        at += _MOVE.size * count
    if columns & _NUMBERED:
        numbered, at = _decode_numbers(record, at, counts)
    if at != len(record):
        raise CorruptBatch(f"{len(record) - at} bytes after a directory")
    return Directory(numbers[0::2], firsts, counts, facts, moves, numbered, each)


def _decode_numbers(record: bytes, at: int, counts: Sequence[int]) -> tuple[list[Numbered | None], int]:
    found: list[Numbered | None] = []
    for count in counts:
        start = at + 4
        publisher = int.from_bytes(record[at:start], "little")
        at = start + 2 * count if publisher else start
        if at > len(record):
            raise CorruptBatch("a directory is cut short")
        found.append(Numbered(publisher, unpack_numbers(record[start:at])) if publisher else None)
    return found, at


def _decode_each(record: bytes, at: int, counts: Sequence[int]) -> tuple[Columns | None, int]:
    """Facts of which each message has its own, in one column; None, and where we were, if they are not like that."""
    forms, total = record[at : at + len(counts)], sum(counts)
    ones = forms.count(_ONE)
    if ones + forms.count(_EACH) < len(counts):
        return None, at
    if ones and total > len(counts) and any(form == _ONE < count for form, count in zip(forms, counts)):
        return None, at
    start = at + len(counts)
    end = start + 8 * total
    if end > len(record):
        raise CorruptBatch("a directory is cut short")
    return (_little(array("Q", record[start:end])), None), end


def _decode_facts(record: bytes, at: int, counts: Sequence[int]) -> tuple[list[Columns | None], int]:
    forms = record[at : at + len(counts)]
    at += len(counts)
    facts: list[Columns | None] = []
    for form, count in zip(forms, counts):
        if not form:
            facts.append(None)
            continue
        if form & ~_WIDE not in (_ONE, _EACH):
            raise CorruptBatch(f"facts of form {form} in a directory")
        size = 8 if form & _ONE else 8 * count
        end = at + (2 * size if form & _WIDE else size)
        if end > len(record):
            raise CorruptBatch("a directory is cut short")
        low = _little(array("Q", record[at : at + size]))
        high = _little(array("Q", record[at + size : end])) if form & _WIDE else None
        facts.append((low, high))
        at = end
    if len(facts) < len(counts):
        raise CorruptBatch("a directory is cut short")
    return facts, at
