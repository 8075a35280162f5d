"""Records as columns: the same as the decoder that finds runs, whatever the batch, and no error but one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_log.compression import Compression
from core_log.errors import CorruptBatch
from core_log.record_batch import BatchBuilder, decode_header_block, encode_headers, iterate_records
from core_log.record_fields import decode_fields

SIZES = (0, 1, 63, 64, 100, 8191, 8192, 20_000)


def same(batch: bytes) -> None:
    """Both decoders agree."""
    fields = decode_fields(batch)
    found = [
        (offset, key, value, decode_header_block(block))
        for offset, key, value, block in zip(*fields, strict=True)  # all have one length
    ]
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
