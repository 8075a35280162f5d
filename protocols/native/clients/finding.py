"""Records that somebody looks for: those from an offset on, and every record of a topic that has a key. For the latter
its log is looked through, by brokers that have an index of keys (`core_log/key_index.py`) there alone where it may be:

1. What is committed when the search begins is looked at, from the beginning, a partition after the other. Brokers look
   for the key's bytes and leave out batches without them (`core_log/containing.py`); compressed batches are sent whole.
2. Keys are compared here, so nothing else that has those bytes is taken for it.
3. All partitions are searched: which one a key goes to is the producers' business, and changes with their number.
4. A batch that is whole, but whose records nobody can decode, as its producer has compressed something else, has no
   key. Who reads gets what is before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from core_log.containing import LOOKED_BYTES_MAX, Groups, key_strings
from protocols.native.clients.group_bytes import Partition
from protocols.native.clients.groups_admin import Asker, partitions_of, place_of
from protocols.native.clients.records import (
    ConsumerRecord,
    batch_columns,
    batch_records,
    offset_after,
    size_of,
    whole_batch,
)
from protocols.native.errors import OffsetOutOfRange, ProtocolError, RequestTimedOut
from protocols.native.wire_base import CONTAINING_BYTES_MAX

FOUND_MAX = 1000
_READ_BYTES = 256 << 10
_WAIT_MS = 500
_EMPTY_MAX = 20
"""So many answers in a row without anything: then it is given up."""


async def find_records(
    ask: Asker, topic: str, key: bytes, *, limit: int = FOUND_MAX, partition: int | None = None
) -> list[ConsumerRecord]:
    """The first `limit` records with a key, by partition and offset; of one partition, or of all.

    Raises UnknownTopic, UnknownPartition, RequestTimedOut.
    """
    places = await partitions_of(ask, [topic]) if partition is None else [await place_of(ask, topic, partition)]
    starts, ends = await ask.offsets(places, "earliest"), await ask.offsets(places, "latest")
    found: list[ConsumerRecord] = []
    for place, start, end in zip(places, starts, ends):
        if len(found) < limit:
            found += await _found_in(ask, place, start or 0, end or 0, key, limit - len(found))
    return found


async def read_records(
    ask: Asker, place: Partition, offset: int, end: int, *, limit: int, bytes_max: int
) -> tuple[list[ConsumerRecord], int]:
    """The first records from an offset on, below `end`, and the offset behind them: at most `limit`, and of no more
    bytes than `bytes_max` unless it is one. Raises RequestTimedOut, and ProtocolError if the first cannot be decoded.
    """
    found: list[ConsumerRecord] = []
    bytes_left = bytes_max
    while len(found) < limit:
        offset, batches = await _batches(ask, place, offset, end, _READ_BYTES, [])
        if not batches:
            break
        try:
            records, behind = await ask.apart(partial(_records, place, batches, offset, limit - len(found)))
        except ProtocolError:
            if not found:
                raise
            break
        for record in records:
            bytes_left -= size_of(record.value, record.key, record.headers)
            if record.offset >= end or (found and bytes_left < 0):
                return found, record.offset
            found.append(record)
        offset = found[-1].offset + 1 if len(found) == limit else behind
    return found, offset


def _records(place: Partition, batches: list[memoryview], offset: int, most: int) -> tuple[list[ConsumerRecord], int]:
    """The first records of batches from an offset on, and the offset behind what was looked at: before a batch that
    cannot be decoded. Raises ProtocolError if that is the first.
    """
    found: list[ConsumerRecord] = []
    behind = -1
    for batch in batches:
        if len(found) < most:
            try:
                found += batch_records(*place, batch, offset)[: most - len(found)]
            except ProtocolError:
                if behind < 0:
                    raise
                break
        behind = offset_after(batch)
    return found, behind


async def _batches(
    ask: Asker, place: Partition, offset: int, end: int, max_bytes: int, strings: Groups
) -> tuple[int, list[memoryview]]:
    """The next batches, none at the end, and from which offset on they count: a later one, if what was there is gone.
    Raises RequestTimedOut.
    """
    for _ in range(_EMPTY_MAX):
        if offset >= end:
            return offset, []
        try:
            batches = await ask.batches(place, offset, max_bytes, _WAIT_MS, strings)
        except OffsetOutOfRange:
            (first,) = await ask.offsets([place], "earliest")
            if (first or 0) <= offset:
                raise
            offset = first or 0  # what was there is gone
            continue
        if batches:
            return offset, batches
    raise RequestTimedOut(f"partition {place[1]} of topic {place[0]!r} gave nothing from offset {offset} on")


async def _found_in(
    ask: Asker, place: Partition, offset: int, end: int, key: bytes, limit: int
) -> list[ConsumerRecord]:
    strings = key_strings(key)
    groups = [strings] if sum(map(len, strings)) <= CONTAINING_BYTES_MAX else []
    found: list[ConsumerRecord] = []
    while len(found) < limit:
        offset, batches = await _batches(ask, place, offset, end, LOOKED_BYTES_MAX, groups)
        if not batches:
            break
        found += await ask.apart(partial(_with_key, place, batches, offset, end, key))
        offset = offset_after(batches[-1])
    return found[:limit]


def _with_key(place: Partition, batches: list[memoryview], offset: int, end: int, key: bytes) -> list[ConsumerRecord]:
    """The records of batches with a key, from an offset on and below another."""
    found: list[ConsumerRecord] = []
    for batch in batches:
        if key in _keys(batch):
            records = batch_records(*place, batch, offset)
            found += [record for record in records if record.key == key and record.offset < end]
    return found


def _keys(batch: memoryview) -> Sequence[bytes | None]:
    """Of a batch's records; none if nobody can decode these. Raises ProtocolError if it is not what was written."""
    try:
        return batch_columns(batch).keys
    except ProtocolError:
        whole_batch(batch)
        return ()
