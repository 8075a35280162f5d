"""Records that are appended one by one: how one that has its own time, or no key or value, comes to whoever leads its
partition (`Forward`).

What travels there has a key and a value, and the time at which it arrives. What else is to be known is said by a header
behind all others, which goes when the record has arrived. A broker of an earlier version leaves it where it is.
"""

from __future__ import annotations

import struct

from core_log.errors import BatchTooLarge
from core_log.files import BytesLike
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, decode_header_block, encode_headers, iterate_records
from routing.topics.topic_partition import TopicPartition

_NAME = "millrace.as-produced"
_NAME_BYTES = _NAME.encode()
_SAID = struct.Struct(">qB")
"""Its time in ms, and which it lacks: 1 the key, 2 the value."""


def packed(batch: BytesLike) -> tuple[bytes, bytes, bytes]:
    """Key, header block and value of the only record of a batch, as they travel."""
    (record,) = iterate_records(batch)
    said = _SAID.pack(record.timestamp_ms, (record.key is None) + 2 * (record.value is None))
    return record.key or b"", encode_headers([*record.headers, (_NAME, said)]), record.value or b""


def unpacked(keys: bytes | list[bytes], header_blocks: bytes | list[bytes], bodies: list[bytes]) -> bytes | None:
    """The batch of a record that was `packed`; None: these are others."""
    if len(bodies) != 1 or not isinstance(keys, bytes) or not isinstance(header_blocks, bytes):
        return None
    if _NAME_BYTES not in header_blocks:
        return None
    *headers, (name, said) = decode_header_block(header_blocks)
    if name != _NAME or said is None or len(said) != _SAID.size:
        return None
    timestamp_ms, lacks = _SAID.unpack(said)
    builder = BatchBuilder(0, 0, timestamp_ms)
    builder.add(0, None if lacks & 1 else keys, None if lacks & 2 else bodies[0], headers)
    return builder.build()


def append_anywhere(partition: TopicPartition, batch: bytes) -> tuple[PartitionLog, int]:
    """Append a batch of one record wherever the partition is led: its log, and how far it has to get. Raises
    LogError, BrokerError.
    """
    refused = (partition.forward or partition).error()
    if refused is not None:
        raise refused
    if partition.forward is None:
        partition.append_new(batch)
        return partition.log, partition.log.log_end_offset
    largest = partition.log.config.message_bytes_max
    if len(batch) > largest:
        raise BatchTooLarge(f"a batch of {len(batch)} bytes, the limit is {largest}")
    key, header_block, value = packed(batch)
    return partition.route_records(key, header_block, [value], len(value))
