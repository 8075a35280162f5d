"""Batches that cannot hold what is looked for are left out; none that may hold it ever is."""

from __future__ import annotations

import random

import pytest

from core_log import cold_reader
from core_log.batch_header import parse_header
from core_log.compression import Compression
from core_log.containing import LOOKED_BYTES_MAX, containing, may_have
from core_log.errors import CorruptBatch, OffsetOutOfRange
from core_log.files import BytesLike
from core_log.memory_files import MemoryFiles
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, iterate_records
from tests.core_log.helpers import flush, open_log


def batch(*keys: bytes, compression: Compression = Compression.NONE, value: bytes = b"") -> bytes:
    builder = BatchBuilder(0, 0, 1000, compression=compression)
    for offset, key in enumerate(keys):
        builder.add(offset, key, value)
    return builder.build()


def log_of(*batches: bytes) -> PartitionLog:
    log = open_log(MemoryFiles())
    for one in batches:
        log.append(one)
    flush(log)
    return log


def test_a_batch_needs_a_string_of_each_group() -> None:
    batches = [batch(b"ab", b"cd"), batch(b"ab"), batch(b"cd"), batch(b"ef")]
    assert containing(batches, [[b"ab"], [b"cd"]]) == batches[:1]
    assert containing(batches, [[b"ab", b"ef"]]) == [batches[0], batches[1], batches[3]]
    assert containing(batches, [[b"nobody"]]) == []
    assert containing(batches, [[b"nobody", b""]]) == batches, "an empty string asks for nothing"
    assert containing(batches, []) == batches


def test_compressed_batches_are_never_left_out() -> None:
    codecs = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
    batches = [batch(b"ab" * 40, compression=codec) for codec in codecs]
    assert containing([*batches, batch(b"x")], [[b"nobody"]]) == batches


@pytest.mark.parametrize("seed", range(20))
def test_what_has_it_stays(seed: int) -> None:
    """Of any bytes, in any number of groups: the same as looking into each batch."""
    rng = random.Random(seed)
    batches = [batch(*(rng.randbytes(rng.randrange(4)) for _ in range(rng.randrange(1, 6)))) for _ in range(30)]
    for _ in range(20):
        groups = [[rng.randbytes(rng.randrange(1, 3)) for _ in range(rng.randrange(1, 4))] for _ in range(2)]
        expected = {index for index, one in enumerate(batches) if may_have(one, groups)}
        found = containing(batches, groups)
        # What begins in one batch and ends in the next is no reason to leave the former out, either.
        assert expected <= {index for index, one in enumerate(batches) if any(one is other for other in found)}
        assert may_have(b"".join(batches), groups) or not found


def test_a_log_gives_what_has_it_and_where_to_go_on() -> None:
    log = log_of(batch(b"a"), batch(b"b", b"b"), batch(b"a"), batch(b"c"), batch(b"c"))
    found = cold_reader.read_containing(log, 0, 1 << 20, 6, [[b"b"]])
    assert found.looked_bytes == log.size_bytes
    headers = [parse_header(one) for one in found.batches]
    assert [(one.base_offset, one.next_offset, one.is_control) for one in headers] == [(1, 3, False), (5, 6, True)]
    found = cold_reader.read_containing(log, 0, 1 << 20, 6, [[b"\x02c"]])
    assert [parse_header(one).base_offset for one in found.batches] == [4, 5], "nothing stands behind the last"
    assert cold_reader.read_containing(log, 6, 1 << 20, 6, [[b"b"]]) == ([], 0)


@pytest.mark.parametrize("strings", [1, 2, 64])
def test_much_is_looked_at_in_slices_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, strings: int) -> None:
    reads: list[int] = []
    read_batches = cold_reader.read_batches

    def counted(log: PartitionLog, offset: int, max_bytes: int, limit: int) -> list[bytes]:
        reads.append(max_bytes)
        return read_batches(log, offset, max_bytes, limit)  # type: ignore[return-value]

    monkeypatch.setattr(cold_reader, "read_batches", counted)
    one = batch(b"k", value=b"v" * 30_000)
    log = log_of(*[one] * 800)
    groups = [[b"nobody%d" % number for number in range(strings)]]
    found = cold_reader.read_containing(log, 0, 1 << 30, 800, groups)
    most = min(LOOKED_BYTES_MAX, 2 * LOOKED_BYTES_MAX // strings)
    assert 0 <= most - found.looked_bytes < len(one)
    assert max(reads) * strings <= max(cold_reader.LOOK_BYTES, strings * cold_reader.READ_BYTES_MIN)
    (stand_in,) = found.batches
    assert parse_header(stand_in).next_offset == found.looked_bytes // len(one)
    for bytes_max in (1, len(one), 3 * len(one) + 5):
        found = cold_reader.read_containing(log, 0, bytes_max, 800, [[b"k"]])
        assert found.looked_bytes == sum(map(len, found.batches)) == max(bytes_max // len(one), 1) * len(one)
    found = cold_reader.read_containing(log, 0, 1 << 30, 800, [[b"k"]])
    assert found.looked_bytes < 3 * cold_reader.LOOK_BYTES, "what is found is sent before more is looked for"


def test_what_is_deleted_meanwhile_is_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch(b"k", value=b"v" * 90_000)
    log = log_of(*[one] * 10)
    read_batches = cold_reader.read_batches

    def read(log: PartitionLog, offset: int, max_bytes: int, limit: int) -> list[BytesLike]:
        if offset:
            log.delete_prefix(8)
        return read_batches(log, max(offset, log.log_start_offset), max_bytes, limit)

    monkeypatch.setattr(cold_reader, "read_batches", read)
    found = cold_reader.read_containing(log, 0, 1 << 20, 10, [[b"nobody"] * 64])
    assert parse_header(found.batches[-1]).next_offset == 1, "who reads on is told that the rest is gone"
    with pytest.raises(OffsetOutOfRange):
        cold_reader.read_containing(log, 1, 1 << 20, 10, [[b"nobody"] * 64])


def test_what_lies_before_damage_is_given() -> None:
    files = MemoryFiles()
    log = open_log(files)
    for key in (b"a", b"b", b"c"):
        log.append(batch(key))
    flush(log)
    size = log.size_bytes // 3
    file = files.open(log.segments[0].log_path)
    file.pwritev([b"?"], 2 * size + 65)
    found = cold_reader.read_containing(log, 0, 1 << 20, 3, [[b"a"]])
    assert [parse_header(one).next_offset for one in found.batches] == [1, 2]
    with pytest.raises(CorruptBatch):
        cold_reader.read_containing(log, 2, 1 << 20, 3, [[b"a"]])


async def test_an_offset_out_of_range_is_said() -> None:
    log = log_of(batch(b"a"), batch(b"b"))
    with pytest.raises(OffsetOutOfRange):
        await log.read_containing(3, 1000, [[b"a"]])
    found = await log.read_containing(0, 1000, [[b"b"]], before=1)
    (stand_in,) = found.batches
    assert parse_header(stand_in).next_offset == 1
    assert [
        record.key for one in (await log.read_containing(0, 1000, [[b"b"]])).batches for record in iterate_records(one)
    ] == [b"b"]
