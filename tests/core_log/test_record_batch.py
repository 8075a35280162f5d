"""The record codec against kafka-python's, in both directions, and against hostile bytes."""

from __future__ import annotations

import io
import itertools
import random
from types import SimpleNamespace

import cramjam
import kafka.codec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from core_log.compression import compress, decompress
from core_log.errors import CorruptBatch
from core_log.record_batch import (
    BatchBuilder,
    Compression,
    decode_columns,
    decode_header_block,
    decode_runs,
    encode_headers,
    iterate_records,
    parse_header,
    validate,
)

TIME_MS = 1_700_000_000_000
HEADERS: list[list[tuple[str, bytes | None]]] = [
    [],
    [("a", b"1")],
    [("a", None), ("a", b""), ("naïve", b"\0" * 70)],
    [(f"h{i}", b"v" * i) for i in range(70)],
]

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


@pytest.fixture(autouse=True)
def _block_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python frames snappy itself but wants other packages for raw snappy and lz4; lend it cramjam's."""
    snappy = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
    )
    lz4 = SimpleNamespace(
        compress=lambda data, **_: bytes(cramjam.lz4.compress(data)),
        decompress=lambda data: bytes(cramjam.lz4.decompress(data)),
    )
    zstd = SimpleNamespace(
        ZstdCompressor=lambda: SimpleNamespace(compress=lambda data: bytes(cramjam.zstd.compress(data))),
        ZstdDecompressor=lambda: SimpleNamespace(
            stream_reader=lambda stream, **_: io.BytesIO(bytes(cramjam.zstd.decompress(stream.read())))
        ),
    )
    for name, module in (("snappy", snappy), ("lz4", lz4), ("zstd", zstd)):
        monkeypatch.setattr(kafka.codec, name, module)
    monkeypatch.setattr("kafka.record.default_records.lz4_encode", lambda data: lz4.compress(bytes(data)))
    monkeypatch.setattr("kafka.record.default_records.lz4_decode", lambda data: lz4.decompress(bytes(data)))


def sample_rows(dice: random.Random, count: int) -> list[Row]:
    """Records of every shape: gaps, other times, null keys and values, runs."""
    rows: list[Row] = []
    offset = 0
    while len(rows) < count:
        key = dice.choice([None, b"", b"key", b"k" * 100])
        headers = dice.choice(HEADERS)
        size = dice.choice([0, 1, 50, 63, 64, 200, 9000])
        for _ in range(dice.choice([1, 2, 5, 40])):
            time_ms = TIME_MS if not rows else TIME_MS + dice.choice([0, 0, 0, 1, -5, 100_000])
            value = dice.choice([dice.randbytes(size)] * 9 + [None])
            rows.append((offset, time_ms, key, value, headers))
            offset += 1
        offset += dice.choice([0, 0, 1, 100])
    return rows[:count]


def by_kafka(rows: list[Row], compression: int) -> bytes:
    """The same records by kafka-python."""
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 1 << 30)
    for offset, time_ms, key, value, headers in rows:
        builder.append(offset, time_ms, key, value, headers)
    return bytes(builder.build())


def by_us(rows: list[Row], compression: Compression = Compression.NONE) -> bytes:
    """The records, one by one."""
    builder = BatchBuilder(0, 0, TIME_MS, compression=compression)
    for offset, time_ms, key, value, headers in rows:
        builder.add(offset, key, value, headers, time_ms)
    return builder.build()


def read_by_kafka(batch: bytes) -> list[Row]:
    """What kafka-python reads."""
    records = DefaultRecordBatch(batch)
    assert records.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, [(name, value) for name, value in r.headers]) for r in records]


def read_by_us(batch: bytes) -> list[Row]:
    """What we read; all three readers must agree."""
    validate(batch)
    rows = [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in iterate_records(batch)]
    columns = decode_columns(batch)
    assert rows == list(
        zip(columns.offsets, columns.timestamps_ms, columns.keys, columns.values, columns.headers, strict=True)
    )
    runs = decode_runs(batch)
    assert [(o, k, v, h) for o, _, k, v, h in rows] == [
        (run.first_offset + i, run.key, value, decode_header_block(run.header_block))
        for run in runs
        for i, value in enumerate(run.values)
    ]
    for before, after in itertools.pairwise(runs):
        assert before.first_offset + before.count <= after.first_offset
        if before.first_offset + before.count == after.first_offset:
            assert (before.key, before.header_block) != (after.key, after.header_block), "runs are maximal"
    assert [run._replace(values=[]) for run in runs] == decode_runs(batch, with_values=False)
    return rows


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize(("seed", "count"), [(1, 1), (2, 2), (3, 30), (4, 500), (5, 8300)])
def test_round_trip_with_kafka_python(compression: Compression, seed: int, count: int) -> None:
    if compression and count > 1000:
        count = 100
    rows = sample_rows(random.Random(seed), count)
    ours, theirs = by_us(rows, compression), by_kafka(rows, compression)
    if compression is Compression.NONE:
        assert parse_header(ours)._replace(leader_epoch=0, crc=0) == parse_header(theirs)._replace(
            leader_epoch=0, crc=0
        )
        assert ours[61:] == theirs[61:]
    assert read_by_us(ours) == rows
    assert read_by_us(theirs) == rows
    assert read_by_kafka(ours) == rows


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000, 8191, 8192, 8193, 9000])
@pytest.mark.parametrize("first", [0, 10, 63, 8191, 70_000, 2_000_000])
@pytest.mark.parametrize("sizes", [[100], [0], [63, 64], [5, -1], [8191, 10, 10, 10]])
def test_runs_equal_single_records(count: int, first: int, sizes: list[int]) -> None:
    if max(sizes) * count > 10_000_000:
        count = 100
    values = [None if (n := sizes[i % len(sizes)]) < 0 else bytes([i % 251]) * n for i in range(count)]
    runs, singles = BatchBuilder(5, 7, TIME_MS), BatchBuilder(5, 7, TIME_MS)
    runs.add_run(5 + first, b"key", values, encode_headers(HEADERS[1]))
    for offset, value in enumerate(values, 5 + first):
        singles.add(offset, b"key", value, HEADERS[1])
    assert runs.count == singles.count == count
    size = runs.size_estimate
    batch = runs.build()
    assert batch == singles.build()
    assert size == singles.size_estimate == len(batch)
    (run,) = decode_runs(batch)
    assert run == (5 + first, count, b"key", encode_headers(HEADERS[1]), values)
    assert validate(batch).next_offset == 5 + first + count


def test_control_batch() -> None:
    builder = BatchBuilder(0, 0, TIME_MS, control=True)
    builder.add(0, b"\0\0\0\1", b"value")
    batch = builder.build()
    assert validate(batch).is_control
    assert DefaultRecordBatch(batch).is_control_batch


def test_offsets_must_rise_and_a_batch_needs_a_record() -> None:
    builder = BatchBuilder(10, 0, TIME_MS)
    with pytest.raises(ValueError, match="needs a record"):
        builder.build()
    with pytest.raises(ValueError, match="offset 9 after"):
        builder.add(9, None, b"")
    builder.add_run(10, None, [b"a", b"b"])
    with pytest.raises(ValueError, match="offset 11 after 11"):
        builder.add(11, None, b"")
    builder.add_run(12, None, [])
    assert builder.count == 2


def test_headers_keep_bytes_that_are_not_utf8() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert decode_header_block(encode_headers([(name, b"x")])) == [(name, b"x")]


def decode_everything(batch: bytes) -> None:
    """All that reads a batch; raises only CorruptBatch."""
    parse_header(batch)
    columns = decode_columns(batch, decompressed_bytes_max=1 << 20)
    assert len(columns.offsets) == len(columns.values) == len(columns.headers)
    decode_runs(batch, with_values=False, decompressed_bytes_max=1 << 20)


@pytest.mark.parametrize("compression", list(Compression))
def test_truncated_anywhere(compression: Compression) -> None:
    batch = by_us(sample_rows(random.Random(6), 12), compression)
    for size in range(0, len(batch), 1 if len(batch) < 3000 else 37):
        with pytest.raises(CorruptBatch):
            validate(batch[:size])
        with pytest.raises(CorruptBatch):
            decode_everything(batch[:size])
    with pytest.raises(CorruptBatch):
        validate(batch + b"\0")


@pytest.mark.parametrize("position", range(16, 200, 3))
def test_every_flipped_byte_is_found(position: int) -> None:
    batch = bytearray(by_us(sample_rows(random.Random(3), 30)))
    batch[position] ^= 0x10
    with pytest.raises(CorruptBatch):
        validate(bytes(batch))


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(list(Compression)), st.integers(1, 6))
def test_damage_raises_nothing_but_corrupt_batch(dice: random.Random, compression: Compression, flips: int) -> None:
    batch = bytearray(by_us(sample_rows(dice, dice.choice([1, 3, 50])), compression))
    for _ in range(flips):
        batch[dice.randrange(len(batch))] = dice.choice([0, 1, 127, 128, 255, dice.randrange(256)])
    try:
        decode_everything(bytes(batch))
    except CorruptBatch:
        pass


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_noise_raises_nothing_but_corrupt_batch(noise: bytes) -> None:
    header = by_us([(0, TIME_MS, None, b"", [])])[:61]
    for data in (noise, header[:8] + (49 + len(noise)).to_bytes(4, "big") + header[12:] + noise):
        try:
            decode_everything(data)
        except CorruptBatch:
            pass


@pytest.mark.parametrize("compression", [c for c in Compression if c])
def test_decompression_is_bounded(compression: Compression) -> None:
    builder = BatchBuilder(0, 0, TIME_MS, compression=compression)
    builder.add(0, None, bytes(3_000_000))
    batch = builder.build()
    assert len(decode_runs(batch)[0].values[0] or b"") == 3_000_000
    with pytest.raises(CorruptBatch):
        decode_runs(batch, decompressed_bytes_max=2_999_999)


def test_memoryviews_and_bytearrays_are_read() -> None:
    batch = by_us(sample_rows(random.Random(3), 30))
    for form in (memoryview(batch), bytearray(batch)):
        validate(form)
        assert decode_runs(form) == decode_runs(batch)


@pytest.mark.parametrize("size", [1, 300_000])
def test_lz4_is_of_blocks_that_do_not_lean_on_each_other(size: int) -> None:
    """Java's clients read no other: "Dependent block stream is unsupported"."""
    data = bytes(range(256)) * size
    frame = compress(Compression.LZ4, data[:size])
    assert frame[4] >> 5 == 0b011, "version 1, independent"
    assert not frame[4] & 0b1011, "no size, no dictionary, nothing that Java does not know"
    assert decompress(Compression.LZ4, frame) == data[:size]
