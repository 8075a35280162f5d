"""Record batches to Arrow columns without a Python object per field.

1. Many batches are decoded together: their records lie one behind the other in one buffer, whatever batches they came
   in. Where a record begins follows from the length of the one before: that is found of all batches in step. NumPy
   reads a field of all records at once after that, varints at an array of positions.
2. Keys, values and the parts of headers are views into that buffer (Arrow's `binary_view`), cast to `binary`, which
   copies them outside of Python.
3. Only CorruptBatch is raised, whatever the bytes are: each field has to end within its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from core_log.batch_header import HEADER_BYTES, TIMESTAMP_TYPE_BIT, BatchHeader, validate
from core_log.compression import DECOMPRESSED_BYTES_MAX, decompress
from core_log.containing import Groups, may_have
from core_log.errors import CorruptBatch
from core_log.files import BytesLike
from core_log.varint import read_varint

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", HEADER_TYPE))

_VARINT_BYTES_MAX = 10
_VIEW_INLINE_BYTES = 12
"""An Arrow view holds so many bytes itself."""
_STEPS_WORTH = 8
"""So many records on average have to be found by a step of NumPy's to be faster than one by one."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Columns(NamedTuple):
    """Fields of records as columns of one length; keys, values and headers only where they were asked for."""

    offsets: Numbers
    timestamps_ms: Numbers
    timestamp_types: np.ndarray[Any, np.dtype[np.int32]]
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None

    def chosen(self, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> Columns:
        """The records for which the mask says so."""
        fields = (self.keys, self.values, self.headers)
        left = pa.array(mask)
        return Columns(
            self.offsets[mask],
            self.timestamps_ms[mask],
            self.timestamp_types[mask],
            *(None if one is None else one.filter(left) for one in fields),
        )

    def part(self, start: int, stop: int) -> Columns:
        """The records [start, stop) of them."""
        size = stop - start
        fields = (self.keys, self.values, self.headers)
        types = self.timestamp_types[start:stop]
        return Columns(
            self.offsets[start:stop],
            self.timestamps_ms[start:stop],
            types,
            *(None if one is None else one.slice(start, size) for one in fields),
        )


class Opened(NamedTuple):
    """A batch whose records can be decoded: they are not compressed any more."""

    header: BatchHeader
    records: BytesLike


def opened(
    batches: Iterable[BytesLike],
    containing: Groups = (),
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[Opened]:
    """Whole batches in their order, control batches left out, and those that cannot have what is to be contained
    (`core_log/containing.py`). Raises CorruptBatch.
    """
    for batch in batches:
        header = validate(batch, may_be_empty=True)
        if header.is_control or not header.record_count:
            continue
        records: BytesLike = memoryview(batch)[HEADER_BYTES:]
        if header.compression:
            records = decompress(header.compression, bytes(records), decompressed_bytes_max)
        if containing and not may_have(bytes(records), containing):
            continue
        yield Opened(header, records)


def decode(
    batches: Iterable[Opened], *, with_headers: bool, with_keys: bool = True, with_values: bool = True
) -> Columns:
    """The records of batches in their order. Raises CorruptBatch."""
    found = list(batches)
    headers, pieces = [one.header for one in found], [one.records for one in found]
    data = b"".join([*pieces, bytes(_VIEW_INLINE_BYTES)])
    try:
        starts = _starts(data, headers, pieces)
        return _decode(data, starts, headers, (with_keys, with_values, with_headers))
    except IndexError:
        raise CorruptBatch("a record is cut short") from None


def _starts(data: bytes, headers: list[BatchHeader], pieces: list[BytesLike]) -> Numbers:
    """Where each record's length stands, and where the last record ends."""
    counts = np.array([header.record_count for header in headers], np.int64)
    ends = np.cumsum([0, *map(len, pieces)])
    begins, ends, total = ends[:-1], ends[1:], int(counts.sum())
    if not total:
        return np.array([len(data) - _VIEW_INLINE_BYTES], np.int64)
    find = _in_step if int(counts.max()) * _STEPS_WORTH <= total else _one_by_one
    found, odd = find(data, begins, ends, counts)
    lasts = np.cumsum(counts)
    for index in odd:
        last, count = int(lasts[index]), int(counts[index])
        places = _ends(data, int(begins[index]), int(ends[index]), count)
        found[last - count + 1 : last] = places[:-1]
        found[last - count] = begins[index]
    return np.append(found, ends[-1])


def _in_step(data: bytes, begins: Numbers, ends: Numbers, counts: Numbers) -> tuple[Numbers, list[int]]:
    """Where records begin, of all batches at once: a step goes one record on in each. And which batches are not
    as their records' first bytes say. Raises IndexError for some that are damaged.
    """
    pairs = np.ndarray(len(data) - 1, "<u2", data, strides=(1,))
    sizes = _record_sizes()
    order = np.argsort(-counts, kind="stable")  # a batch that ends is the last of those that go on
    table = np.empty((int(counts.max()) + 1, len(begins)), np.int64)
    table[0] = begins[order]
    for done, steps in pairwise([0, *np.unique(counts).tolist()]):
        rows = table[done : steps + 1, : np.count_nonzero(counts >= steps)]
        size, here = np.empty(rows.shape[1], np.int64), rows[0]
        for there in rows[1:]:
            np.add(here, sizes.take(pairs[here], out=size, mode="clip"), there)
            here = there
    table = table.T[np.argsort(order)]
    odd = np.flatnonzero(table[np.arange(len(counts)), counts] != ends)
    return table[np.arange(len(table[0])) < counts[:, None]], odd.tolist()


def _one_by_one(data: bytes, begins: Numbers, ends: Numbers, counts: Numbers) -> tuple[Numbers, list[int]]:
    """The same where there are too few batches for that."""
    even, uneven = (memoryview(data)[at : len(data) - (len(data) - at) % 2].cast("H") for at in (0, 1))
    pairs, sizes = (even, uneven), _record_sizes().tolist()
    starts: list[int] = []
    odd = []
    for index, (at, end, count) in enumerate(zip(begins.tolist(), ends.tolist(), counts.tolist(), strict=True)):
        starts.append(at)
        try:
            starts += [at := at + sizes[pairs[at & 1][at >> 1]] for _ in range(count)]
        except IndexError:
            starts += [end] * count
            at = -1
        starts.pop()
        if at != end:
            odd.append(index)
    return np.array(starts, np.int64), odd


@cache
def _record_sizes() -> Numbers:
    """By the two bytes that a record begins with, how many it takes with its length; 0 where they do not say it."""
    pairs = np.arange(1 << 16)
    first, second = pairs & 255, pairs >> 8
    sizes = np.where(first < 128, 1 + (first >> 1), np.where(second < 128, 2 + (first & 127 | second << 7) // 2, 0))
    return np.where(first & 1, 0, sizes)


def _ends(data: bytes, at: int, end: int, count: int) -> list[int]:
    """Where the records of a batch end, lengths of all sizes. Raises CorruptBatch."""
    found = []
    for _ in range(count):
        size, behind = read_varint(data, at, end)
        if size < 0:
            raise CorruptBatch("a record of negative length")
        at = behind + size
        found.append(at)
    if at != end:
        raise CorruptBatch(f"the records of a batch take {at - end} bytes more than it has")
    return found


def _decode(data: bytes, starts: Numbers, headers: list[BatchHeader], wanted: tuple[bool, bool, bool]) -> Columns:
    raw = np.frombuffer(data, np.uint8)
    ends = starts[1:]
    counts = [header.record_count for header in headers]
    _, at = _varints(raw, starts[:-1])
    time_deltas, at = _varints(raw, at + 1)  # behind the attributes
    deltas, at = _varints(raw, at)
    key_sizes, key_at = _varints(raw, at)
    value_sizes, value_at = _varints(raw, key_at + np.clip(key_sizes, 0, len(data)))
    behind = value_at + np.maximum(value_sizes, 0)
    sizes = np.minimum(key_sizes, value_sizes), np.maximum(key_sizes, value_sizes)
    if np.any(sizes[0] < -1) or np.any(sizes[1] > len(data)) or np.any(behind >= ends):
        raise CorruptBatch("key and value of a record are longer than the record")
    offsets = deltas + _repeated([header.base_offset for header in headers], counts)
    if (
        np.any(deltas < 0)
        or np.any(np.diff(offsets) <= 0)
        or np.any(deltas > _repeated([h.last_offset_delta for h in headers], counts))
    ):
        raise CorruptBatch("offsets that do not rise")
    buffer = pa.py_buffer(data)
    with_keys, with_values, with_headers = wanted
    return Columns(
        offsets,
        _timestamps(time_deltas, headers, counts),
        _repeated([int(_appended(header)) for header in headers], counts).astype(np.int32),
        _binaries(buffer, raw, key_at, key_sizes) if with_keys else None,
        _binaries(buffer, raw, value_at, value_sizes) if with_values else None,
        _headers(buffer, raw, behind, ends) if with_headers else None,
    )


def _appended(header: BatchHeader) -> bool:
    """Whether the log gave the records their time."""
    return bool(header.attributes & TIMESTAMP_TYPE_BIT)


def _repeated(values: list[int], counts: list[int]) -> Numbers:
    return np.repeat(np.array(values, np.int64), counts)


def _timestamps(deltas: Numbers, headers: list[BatchHeader], counts: list[int]) -> Numbers:
    """In ms; those of batches to which the log gave one are the batch's."""
    bases = [header.max_timestamp_ms if _appended(header) else header.base_timestamp_ms for header in headers]
    if any(map(_appended, headers)):
        deltas = np.where(_repeated([int(_appended(header)) for header in headers], counts), 0, deltas)
    return deltas + _repeated(bases, counts)


def _varints(raw: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """The zigzag varints at these positions, and the positions behind them. Raises CorruptBatch, IndexError."""
    byte = raw[at].astype(np.int64)
    value, at = byte & 127, at + 1
    more = np.flatnonzero(byte > 127)
    shift = 7
    while more.size:
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise CorruptBatch("a number of more than ten bytes")
        byte = raw[at[more]].astype(np.int64)
        if shift > 62 and np.any(byte > 1):
            raise CorruptBatch("a number of more than 64 bits")
        value[more] |= (byte & 127) << shift
        at[more] += 1
        more = more[byte > 127]
        shift += 7
    return (value >> 1 & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), at


def _binaries(buffer: pa.Buffer, raw: Bytes, at: Numbers, sizes: Numbers) -> pa.Array:
    """The byte strings at these positions, which end with 12 bytes to spare; size -1 is null."""
    count = len(at)
    views = np.empty((count, 4), np.int32)
    views[:, 0] = sizes
    views[:, 2] = 0  # the buffer; the first bytes of a long one (column 1) are for comparing, which nobody does
    views[:, 3] = at
    valid = None
    if count and int(sizes.min()) < 0:
        missing = sizes < 0
        views[missing, 0] = 0
        sizes = np.maximum(sizes, 0)
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    short = np.flatnonzero(sizes <= _VIEW_INLINE_BYTES)
    if short.size:
        heads = np.lib.stride_tricks.sliding_window_view(raw, _VIEW_INLINE_BYTES)[at[short]].view(np.int32)
        views[short, 1:4] = heads & _INLINE_MASKS[sizes[short]]
    return pa.Array.from_buffers(pa.binary_view(), count, [valid, pa.py_buffer(views), buffer]).cast(pa.binary())


_INLINE_MASKS = (
    np.where(np.arange(_VIEW_INLINE_BYTES) < np.arange(_VIEW_INLINE_BYTES + 1)[:, None], 0xFF, 0)
    .astype(np.uint8)
    .view(np.int32)
)
"""By size, which bytes of a short string are its own."""


def _headers(buffer: pa.Buffer, raw: Bytes, at: Numbers, ends: Numbers) -> pa.Array:
    """The headers column. A record without headers has null there, as in Spark's Kafka source."""
    counts, at = _varints(raw, at)
    if np.any(counts < 0) or np.any(counts > ends - at):
        raise CorruptBatch("more headers than a record has bytes")
    lists = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=lists[1:])
    total = int(lists[-1])
    name_at, name_sizes, value_at, value_sizes = np.zeros((4, total), np.int64)
    # The first headers of all records together, then their second ones...
    records, round_ = np.flatnonzero(counts), 0
    while records.size:
        place = lists[records] + round_
        sizes, begin = _varints(raw, at[records])
        name_sizes[place], name_at[place] = sizes, begin
        if np.any(sizes < 0) or np.any(begin + sizes > ends[records]):
            raise CorruptBatch("a header's name is longer than the record")
        sizes, begin = _varints(raw, begin + sizes)
        value_sizes[place], value_at[place] = sizes, begin
        behind = begin + np.maximum(sizes, 0)
        if np.any(sizes < -1) or np.any(behind > ends[records]):
            raise CorruptBatch("a header's value is longer than the record")
        at[records] = behind
        round_ += 1
        records = records[counts[records] > round_]
    if np.any(at != ends):
        raise CorruptBatch("bytes behind the headers of a record")
    names = _texts(_binaries(buffer, raw, name_at, name_sizes))
    pairs = pa.StructArray.from_arrays([names, _binaries(buffer, raw, value_at, value_sizes)], fields=list(HEADER_TYPE))
    mask = pa.array(counts == 0)
    return pa.ListArray.from_arrays(pa.array(lists), pairs, type=HEADERS_TYPE, mask=mask)


def _texts(names: pa.Array) -> pa.Array:
    """Names that Spark can hold: bytes that are not UTF-8 become replacement characters."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
