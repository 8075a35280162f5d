"""The control records of a home partition.

They are ordinary control batches of the record format, which every Kafka client skips. Key: version and type, two
int16.

    DESTINATIONS   value: set id, then the ids of its queues                     all uint32
    SETTLED        value: (queue id uint32, first offset uint64, count uint32) repeated
    SEEN           value: (queue id uint32, count uint32, time in ms uint64, hashes uint64 each) repeated
    RETURNED       value: (queue id uint32, offset uint64, counts uint32, due time in ms uint64) repeated
    SIZES          value: (queue id uint32, count uint32, first offset uint64, bytes uint32 each) repeated
    TAKEN          value: (queue id uint32, partition uint32, offset uint64, first id uint64, count uint32) repeated
    CARRIED        the same
    RECEIVED       as SETTLED
    COMPLETED      as SETTLED
    RELEASED       value: (publisher uint32, count uint32, numbers uint16 each, little-endian) repeated
    NUMBERED       the same
    EPOCHS         value: (publisher uint32, epoch uint32) repeated
    RESERVED       value: queue id uint32, lease in ms uint64, position uint64, length of the reader's name uint16, that
                   name, then (first offset uint64, count uint32) repeated

A destination set is defined once per log before its first use and then named by id, so a body that goes to a thousand
queues carries four bytes. Settlements follow their messages in the log: deleting a prefix never takes away the
settlement of a message that stays. Of several RETURNED of a message the last counts (`retries.py`).
TAKEN says which records of its topic a view has taken in, and as which messages (`view.py`); with a count of 0, that it
goes on at this offset. CARRIED says it once more, for who has not been told.
RECEIVED settles messages that their receiver still knows by what they are called, until COMPLETED (`receipts.py`).
RESERVED says what is set aside for a reader behind what was, at a position; without ranges, that nothing is any more
(`reservations.py`).
RELEASED says which numbers of a publisher may be used again (`publish_numbers.py`), NUMBERED that some still may not.
EPOCHS says which connection of a publisher is the latest; 0: there is no such publisher any more.
"""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from routing.queues.packed_ranges import Range, from_bytes, pack

_KEY = struct.Struct(">hh")
_SETTLED = struct.Struct(">IQI")
_RETURNED = struct.Struct(">IQIQ")
_SEEN = struct.Struct(">IIQ")
_SIZES = struct.Struct(">IIQ")
_TAKEN = struct.Struct(">IIQQI")
_RESERVED = struct.Struct(">IQQH")
_RANGE = struct.Struct(">QI")
_COUNT_MAX = (1 << 32) - 1
_ONE_LESS = bytes(byte - 1 & 0xFF for byte in range(256))

DESTINATIONS_KEY = _KEY.pack(0, 0x4D01)
SETTLED_KEY = _KEY.pack(0, 0x4D02)
RETURNED_KEY = _KEY.pack(0, 0x4D03)
SEEN_KEY = _KEY.pack(0, 0x4D04)
SIZES_KEY = _KEY.pack(0, 0x4D05)
TAKEN_KEY = _KEY.pack(0, 0x4D06)
CARRIED_KEY = _KEY.pack(0, 0x4D07)
RECEIVED_KEY = _KEY.pack(0, 0x4D08)
COMPLETED_KEY = _KEY.pack(0, 0x4D09)
RELEASED_KEY = _KEY.pack(0, 0x4D0A)
NUMBERED_KEY = _KEY.pack(0, 0x4D0B)
RESERVED_KEY = _KEY.pack(0, 0x4D0C)
EPOCHS_KEY = _KEY.pack(0, 0x4D0D)


def encode_destinations(set_id: int, queue_ids: Iterable[int]) -> bytes:
    """The value of a DESTINATIONS record."""
    ids = [set_id, *queue_ids]
    return struct.pack(f">{len(ids)}I", *ids)


def decode_destinations(value: bytes) -> tuple[int, tuple[int, ...]]:
    """Set id and queue ids, each once: earlier versions may have written one twice."""
    ids = struct.unpack(f">{len(value) // 4}I", value[: len(value) // 4 * 4])
    return ids[0], tuple(dict.fromkeys(ids[1:]))


def encode_settled(settled: Iterable[tuple[int, int, int]]) -> bytes:
    """The value of a SETTLED record from (queue id, first offset, count)."""
    pieces = []
    for queue_id, first, count in settled:
        while count > _COUNT_MAX:
            pieces.append(_SETTLED.pack(queue_id, first, _COUNT_MAX))
            first += _COUNT_MAX
            count -= _COUNT_MAX
        pieces.append(_SETTLED.pack(queue_id, first, count))
    return b"".join(pieces)


def decode_settled(value: bytes) -> Iterator[tuple[int, int, int]]:
    """(queue id, first offset, count) of a SETTLED record."""
    return _SETTLED.iter_unpack(value[: len(value) // _SETTLED.size * _SETTLED.size])


def packed_settled(value: bytes) -> Iterable[tuple[int, array[int]]]:
    """As `decode_settled`: (queue id, its ranges as in `packed_ranges.py`)."""
    count = len(value) // _SETTLED.size
    none = bytes(count)
    column = [value[at : count * _SETTLED.size : _SETTLED.size] for at in range(_SETTLED.size)]
    few = all(column[at] == none for at in (4, 5, 12, 13, 14)) and 0 not in column[15]
    if few and all(column[at] == value[at : at + 1] * count for at in range(4)):
        # A queue that settles one here and one there has thousands of ranges: a byte of all of them at a time.
        lanes = bytearray(8 * count)
        lanes[0::8] = column[15].translate(_ONE_LESS)
        for at in range(6):
            lanes[2 + at :: 8] = column[11 - at]
        return [(int.from_bytes(value[:4]), from_bytes(bytes(lanes)))] if count else []
    found: dict[int, list[Range]] = defaultdict(list)
    for queue_id, first, number in decode_settled(value):
        found[queue_id].append((first, number))
    return [(queue_id, pack(ranges)) for queue_id, ranges in found.items()]


def encode_returned(returned: Iterable[tuple[int, int, int, int]]) -> bytes:
    """The value of a RETURNED record from (queue id, offset, counts, due time)."""
    return b"".join([_RETURNED.pack(*one) for one in returned])


def decode_returned(value: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(queue id, offset, counts, due time) of a RETURNED record."""
    return _RETURNED.iter_unpack(value[: len(value) // _RETURNED.size * _RETURNED.size])


def encode_seen(seen: Iterable[tuple[int, int, bytes]]) -> bytes:
    """The value of a SEEN record from (queue id, time in ms, hashes of ids)."""
    return b"".join([_SEEN.pack(queue_id, len(hashes) // 8, ms) + hashes for queue_id, ms, hashes in seen])


def decode_seen(value: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(queue id, time in ms, hashes of ids) of a SEEN record."""
    at = 0
    while at + _SEEN.size <= len(value):
        queue_id, count, seen_ms = _SEEN.unpack_from(value, at)
        start = at + _SEEN.size
        at = start + 8 * count
        yield queue_id, seen_ms, value[start:at]


def encode_sizes(noted: Iterable[tuple[int, int, Sequence[int]]]) -> bytes:
    """The value of a SIZES record from (queue id, first offset, bytes of each message)."""
    return b"".join([_SIZES.pack(queue_id, len(sizes), first) + pack_sizes(sizes) for queue_id, first, sizes in noted])


def decode_sizes(value: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(queue id, first offset, packed bytes of each message) of a SIZES record."""
    at = 0
    while at + _SIZES.size <= len(value):
        queue_id, count, first = _SIZES.unpack_from(value, at)
        start = at + _SIZES.size
        at = start + 4 * count
        yield queue_id, first, value[start:at]


class Taken(NamedTuple):
    """Records [offset, offset + count) of a partition are the messages [first, first + count) of a view."""

    queue_id: int
    partition: int
    offset: int
    first: int
    count: int  # type: ignore[assignment]

    @property
    def end(self) -> int:
        """The id behind the last."""
        return self.first + self.count


def encode_taken(taken: Iterable[Taken]) -> bytes:
    """The value of a TAKEN record."""
    return b"".join([_TAKEN.pack(*one) for one in taken])


def decode_taken(value: bytes) -> Iterator[Taken]:
    """What a TAKEN record says."""
    return map(Taken._make, _TAKEN.iter_unpack(value[: len(value) // _TAKEN.size * _TAKEN.size]))


class Reserved(NamedTuple):
    """From a position on these messages of a queue are a reader's."""

    queue_id: int
    reader: str
    lease_ms: int
    position: int
    ranges: list[tuple[int, int]]


def encode_reserved(one: Reserved) -> bytes:
    """The value of a RESERVED record."""
    name = one.reader.encode("utf-8", "surrogateescape")
    return _RESERVED.pack(one.queue_id, one.lease_ms, one.position, len(name)) + name + encode_ranges(one.ranges)


def decode_reserved(value: bytes) -> Reserved:
    """What a RESERVED record says."""
    queue_id, lease_ms, position, length = _RESERVED.unpack_from(value)
    end = _RESERVED.size + length
    reader = value[_RESERVED.size : end].decode("utf-8", "surrogateescape")
    return Reserved(queue_id, reader, lease_ms, position, decode_ranges(value[end:]))


def encode_ranges(ranges: Iterable[tuple[int, int]]) -> bytes:
    """(first offset, count) each, in any order."""
    return b"".join([_RANGE.pack(*one) for one in ranges])


def decode_ranges(packed: bytes) -> list[tuple[int, int]]:
    """The inverse."""
    return list(_RANGE.iter_unpack(packed[: len(packed) // _RANGE.size * _RANGE.size]))


def pack_sizes(sizes: Sequence[int]) -> bytes:
    """Bytes of messages, as records and checkpoints keep them."""
    return struct.pack(f">{len(sizes)}I", *sizes)


def unpack_sizes(packed: bytes) -> array[int]:
    """The inverse of `pack_sizes`."""
    return array("I", struct.unpack(f">{len(packed) // 4}I", packed[: len(packed) // 4 * 4]))
