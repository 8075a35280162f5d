"""Kafka's hash of record keys: murmur2 with 32 bits and Kafka's seed.

Everybody who places records by key must agree on it: producers of any language and the broker itself
(org.apache.kafka.common.utils.Utils.murmur2; the partition is `(hash & 0x7fffffff) % partitions`).
"""

from __future__ import annotations

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFF_FFFF


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 of `data`, unsigned."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if whole != length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition, from 0 on, that `key` belongs to."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions
