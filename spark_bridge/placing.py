"""The partitions of many keys at once: `core_log.murmur2`, for a column of them.

Keys of one length are hashed together, four bytes of all of them at a time, in NumPy: some 30 ns a key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = np.uint32(0x5BD1E995)

Hashes = np.ndarray[Any, np.dtype[np.uint32]]


def hashed_partitions(keys: pa.Array, partitions: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The partition, from 0 on, that each key of a `binary` column belongs to; anything for a null."""
    count = len(keys)
    found = np.zeros(count, np.uint32)
    _, offsets_buffer, data_buffer = keys.buffers()
    if not count:
        return found.astype(np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + count + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    sizes = np.diff(offsets)
    with np.errstate(over="ignore"):
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            found[rows] = _hashed(data, offsets[rows], size)
    return (found & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def _hashed(data: np.ndarray[Any, np.dtype[np.uint8]], starts: np.ndarray[Any, Any], size: int) -> Hashes:
    value = np.full(len(starts), _SEED ^ np.uint32(size), np.uint32)
    whole = size & ~3
    for position in range(0, whole, 4):
        word = _word(data, starts + position, 4) * _MULTIPLIER
        word = (word ^ word >> np.uint32(24)) * _MULTIPLIER
        value = value * _MULTIPLIER ^ word
    if whole != size:
        value = (value ^ _word(data, starts + whole, size - whole)) * _MULTIPLIER
    value = (value ^ value >> np.uint32(13)) * _MULTIPLIER
    return value ^ value >> np.uint32(15)


def _word(data: np.ndarray[Any, np.dtype[np.uint8]], at: np.ndarray[Any, Any], size: int) -> Hashes:
    """The numbers of `size` bytes, lowest first, at these positions."""
    word = np.zeros(len(at), np.uint32)
    for index in range(size):
        word |= data[at + index].astype(np.uint32) << np.uint32(8 * index)
    return word
