"""Records as columns: the same as the decoder that finds runs, whatever the batch, and no error but one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_log.batch_header import HEADER_BYTES, encode_batch
from core_log.compaction.records import read_keys
from core_log.compression import Compression
from core_log.errors import CorruptBatch
from core_log.record_batch import (
    BatchBuilder,
    BatchHeader,
    decode_columns,
    decode_header_block,
    decode_runs,
    encode_headers,
    iterate_records,
    parse_header,
)
from core_log.record_fields import decode_fields, header_blocks_of
from core_log.varint import encode_varint

SIZES = (0, 1, 63, 64, 100, 8191, 8192, 20_000)


def same(batch: bytes) -> None:
    """Both decoders agree."""
    fields = decode_fields(batch)
    found = [
        (offset, key, value, decode_header_block(block))
        for offset, key, value, block in zip(*fields, strict=True)  # all have one length
    ]
    assert header_blocks_of(batch) == fields.header_blocks
    assert found == [(record.offset, record.key, record.value, record.headers) for record in iterate_records(batch)]


def varied(rng: random.Random, count: int, *, compression: Compression = Compression.NONE) -> bytes:
    builder = BatchBuilder(1 << 40, 3, 1_700_000_000_000, compression=compression)
    offset = 1 << 40
    for _ in range(count):
        key = rng.choice([None, b"", b"k", rng.randbytes(rng.choice(SIZES[:5]))])
        value = rng.choice([None, rng.randbytes(rng.choice(SIZES))])
        headers = [("name", rng.choice([None, rng.randbytes(rng.choice(SIZES[:5]))]))] * rng.randint(0, 3)
        time_ms = rng.choice([None, 1_700_000_000_000 + rng.randint(-5, 1 << 40)])
        builder.add(offset, key, value, headers, time_ms)
        offset += rng.choice([1, 1, 1, 2, 100, 20_000])
    return builder.build()


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 400])
def test_varied_records(count: int) -> None:
    for seed in range(5):
        same(varied(random.Random(seed), count))
    same(varied(random.Random(9), count, compression=Compression.ZSTD))


def test_runs_and_what_follows_them() -> None:
    block = encode_headers([("a", b"1")])
    for sizes in ([5000], [20, 1, 20], [1, 50], [16]):
        builder = BatchBuilder(7, 0, 1000)
        offset = 7
        for number, size in enumerate(sizes):
            builder.add_run(offset, b"k%d" % number, [b"v%d" % at for at in range(size)], block)
            offset += size
        same(builder.build())


def test_every_truncation_and_every_changed_byte_is_corrupt_or_read() -> None:
    rng = random.Random(1)
    for batch in (varied(rng, 6), varied(rng, 20)):
        for end in range(0, len(batch), 1 + len(batch) // 200):
            with pytest.raises(CorruptBatch):
                decode_fields(batch[:end])
        for _ in range(400):
            at = rng.randrange(61, len(batch))
            changed = batch[:at] + bytes((rng.randrange(256),)) + batch[at + 1 :]
            try:
                fields = decode_fields(changed)
            except CorruptBatch:
                continue
            assert len(set(map(len, fields))) == 1


@given(st.binary(max_size=80), st.integers(1, 40))
def test_noise(noise: bytes, count: int) -> None:
    head = bytearray(varied(random.Random(0), 1)[:61])
    head[8:12] = (len(noise) + 49).to_bytes(4, "big")
    head[23:27] = (count - 1).to_bytes(4, "big")
    head[57:61] = count.to_bytes(4, "big")
    try:
        fields = decode_fields(bytes(head) + noise)
    except CorruptBatch:
        return
    assert len(fields.values) == count


def record(delta: int, key: bytes | None = b"k", value: bytes | None = b"v", **wrong: int) -> bytes:
    """A record by hand. `wrong` are sizes that lie: `more`: so many bytes more than it has."""
    parts = [b"\0", encode_varint(300), encode_varint(delta)]
    for name, piece in (("key", key), ("value", value)):
        size = wrong.get(f"{name}_size", -1 if piece is None else len(piece))
        parts += (encode_varint(size), piece or b"")
    body = b"".join([*parts, b"\0"])
    return encode_varint(wrong.get("size", len(body) + wrong.get("more", 0))) + body


def by_hand(*records: bytes, last_delta: int | None = None) -> bytes:
    head: BatchHeader = parse_header(varied(random.Random(0), 1))
    last = len(records) - 1 if last_delta is None else last_delta
    return encode_batch(
        head._replace(base_offset=0, last_offset_delta=last, record_count=len(records)), b"".join(records)
    )


LONG = b"x" * 100
DENSE = [record(delta, LONG[:delta], LONG[delta:]) for delta in range(70)]
BAD = {
    "a delta again": by_hand(record(0), record(0)),
    "a delta is left out, and the last one fits": by_hand(record(0), record(2), record(2)),
    "a delta left out where deltas take two bytes": by_hand(*DENSE[:66], record(67), *DENSE[67:]),
    "deltas fall": by_hand(record(3), record(1), last_delta=5),
    "deltas stay": by_hand(record(3), record(3), last_delta=5),
    "a delta behind the batch": by_hand(record(0), record(6), last_delta=5),
    "a delta before the batch": by_hand(record(-1), record(2), last_delta=5),
    "a delta before the batch, of two bytes": by_hand(record(-100), record(2), last_delta=5),
    "more records than offsets": by_hand(record(0), record(1), last_delta=0),
    "a record of -1 bytes": by_hand(record(0, size=-1), record(1)),
    "a record of -8 bytes": by_hand(record(0), record(1, size=-8)),
    "a record of -100 bytes": by_hand(record(0, LONG, size=-100), record(1)),
    "a record of -10,000 bytes": by_hand(record(0, LONG * 100, size=-10_000), record(1)),
    "a record that reaches into the next": by_hand(record(0, more=1), record(1)),
    "a record that reaches behind the data": by_hand(record(0), record(1, more=1)),
    "a record that reaches far behind the data": by_hand(record(0), record(1, size=1 << 40)),
    "a record that ends early": by_hand(record(0), record(1, more=-1)),
    "a key of -2 bytes": by_hand(record(0, key_size=-2), record(1)),
    "a key of -100 bytes": by_hand(record(0, key_size=-100), record(1)),
    "a value of -2 bytes": by_hand(record(0, value_size=-2), record(1)),
    "a value of -100 bytes": by_hand(record(0, b"k", LONG, value_size=-100), record(1)),
    "a key longer than its record": by_hand(record(0, key_size=20), record(1, LONG)),
    "a long key longer than its record": by_hand(record(0, LONG, key_size=200), record(1, LONG * 4)),
    "a value longer than its record": by_hand(record(0, value_size=20), record(1, LONG)),
    "a long value longer than its record": by_hand(record(0, LONG, LONG, value_size=200), record(1, LONG * 4)),
    "a value longer than the data": by_hand(record(0), record(1, value_size=60)),
    "a value so long that there is no header block": by_hand(record(0, value_size=2), record(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_records_that_lie(name: str) -> None:
    for read in (decode_fields, decode_columns, decode_runs):
        with pytest.raises(CorruptBatch):
            read(BAD[name])
    if name.startswith(("a record", "a key", "a long key")):  # compaction steps over the rest
        with pytest.raises(CorruptBatch):
            read_keys(BAD[name], HEADER_BYTES, parse_header(BAD[name]))


def test_records_by_hand_and_those_of_many_offsets() -> None:
    same(by_hand(*DENSE))
    same(by_hand(*DENSE[::3], last_delta=70))
    same(by_hand(*(record(delta, None, b"" if delta % 3 else None) for delta in range(100))))
    builder = BatchBuilder(5, 0, 1000)
    keys = [b"%d" % number for number in range(8300)]
    builder.add_varied(5, keys, [key * 3 for key in keys], encode_headers([("a", b"1")]))
    same(builder.build())
    same(by_hand(*(record(delta, b"%d" % delta) for delta in range(0, 40_000, 7)), last_delta=40_000))


def test_compaction_sees_the_same_keys() -> None:
    for seed, count in ((1, 1), (2, 30), (3, 400)):
        batch = varied(random.Random(seed), count)
        keys, deltas, tombstones = read_keys(batch, HEADER_BYTES, parse_header(batch))
        records = list(iterate_records(batch))
        assert keys == [one.key for one in records]
        assert [*deltas] == [one.offset - (1 << 40) for one in records]
        assert tombstones == [index for index, one in enumerate(records) if one.value is None]
