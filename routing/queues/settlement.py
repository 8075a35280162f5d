"""The control records of a home partition.

They are ordinary control batches of the record format, which every Kafka client skips. Key: version and type, two
int16.

    DESTINATIONS   value: set id, then the ids of its queues                     all uint32
    SETTLED        value: (queue id uint32, first offset uint64, count uint32) repeated

A destination set is defined once per log before its first use and then named by id, so a body that goes to a thousand
queues carries four bytes. Settlements follow their messages in the log: deleting a prefix never takes away the
settlement of a message that stays.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

_KEY = struct.Struct(">hh")
_SETTLED = struct.Struct(">IQI")
_COUNT_MAX = (1 << 32) - 1

DESTINATIONS_KEY = _KEY.pack(0, 0x4D01)
SETTLED_KEY = _KEY.pack(0, 0x4D02)


def encode_destinations(set_id: int, queue_ids: Iterable[int]) -> bytes:
    """The value of a DESTINATIONS record."""
    ids = [set_id, *queue_ids]
    return struct.pack(f">{len(ids)}I", *ids)


def decode_destinations(value: bytes) -> tuple[int, tuple[int, ...]]:
    """Set id and queue ids."""
    ids = struct.unpack(f">{len(value) // 4}I", value[: len(value) // 4 * 4])
    return ids[0], ids[1:]


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
