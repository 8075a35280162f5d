"""What the index of keys finds is what a look through everything finds, whatever became of the log and of the index."""

from __future__ import annotations

import random

import pytest

from core_log import cold_reader, key_index
from core_log.batch_header import parse_header
from core_log.compression import Compression
from core_log.containing import LOOKED_BYTES_MAX, key_strings
from core_log.files import Files
from core_log.log_config import LogConfig
from core_log.memory_files import MemoryFiles
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, iterate_records
from core_log.truncation import cut_files
from tests.core_log.helpers import DIRECTORY, flush, open_log
from tests.support.seeds import seeds

CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=300, key_index=True)
KEYS = [b"k%d" % number for number in range(40)]


def batch(rng: random.Random) -> bytes:
    builder = BatchBuilder(0, 0, 1000, compression=rng.choice(list(Compression)))
    for offset in range(rng.randrange(1, 6)):
        builder.add(offset, rng.choice([*KEYS, None, b""]), rng.randbytes(rng.randrange(60)))
    return builder.build()


def extend(log: PartitionLog, *, idle: bool = True) -> None:
    key_index.extend(log, lambda: None, idle=idle)


def found(log: PartitionLog, key: bytes, *, bytes_max: int = LOOKED_BYTES_MAX) -> list[int]:
    """Offsets, by the reads that a client makes."""
    offsets = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        looked = cold_reader.read_containing(log, offset, bytes_max, log.high_watermark, [key_strings(key)])
        if not looked.batches:
            break
        for one in looked.batches:
            header = parse_header(one)
            if not header.is_control:
                offsets += [each.offset for each in iterate_records(one) if each.key == key and each.offset >= offset]
        following = parse_header(looked.batches[-1]).next_offset
        assert following > offset
        offset = following
    return offsets


def scanned(log: PartitionLog, key: bytes) -> list[int]:
    offsets = []
    offset = log.log_start_offset
    while offset < log.high_watermark and (batches := log.read_blocking(offset, 1 << 20)):
        for one in batches:
            offsets += [each.offset for each in iterate_records(one) if each.key == key and each.offset >= offset]
        offset = parse_header(batches[-1]).next_offset
    return offsets


def check(log: PartitionLog, rng: random.Random) -> None:
    for key in [*rng.sample(KEYS, 6), b"nobody"]:
        assert found(log, key, bytes_max=rng.choice([1, 2000, LOOKED_BYTES_MAX])) == scanned(log, key)


def cut(log: PartitionLog, end: int) -> None:
    """As a follower does, below what was committed as well."""
    log.high_watermark = log.committed_offset = min(log.high_watermark, end)
    log.shorten(cut_files(log, end))


@pytest.mark.parametrize("seed", seeds(5, 15))
def test_it_answers_as_a_look_through_everything(seed: int) -> None:
    rng = random.Random(seed)
    files: Files = MemoryFiles()
    log = open_log(files, CONFIG)
    for _ in range(60):
        what = rng.randrange(12)
        if what < 5:
            for _ in range(rng.randrange(1, 12)):
                log.append(batch(rng))
            flush(log)
        elif what < 8:
            extend(log, idle=rng.random() < 0.7)
        elif what == 8 and log.log_end_offset > log.log_start_offset:
            cut(log, rng.randrange(log.log_start_offset, log.log_end_offset))
            # Records of another leader: as many bytes at the same offsets, of a later epoch.
            log.leader_epoch += 1
            log.epochs.begin(log.leader_epoch, log.log_end_offset)
        elif what == 9:
            log.delete_prefix(rng.randrange(log.log_start_offset, log.high_watermark + 1))
            flush(log)
        elif what == 10:
            log.close()
            log = open_log(files, CONFIG)
        else:
            damage(files, rng)
            for segment in log.segments:
                segment.keys = rng.choice([None, segment.keys])
        check(log, rng)
    extend(log)
    check(log, rng)


def damage(files: Files, rng: random.Random) -> None:
    """Of an index: a byte, its end, or a stretch that never reached the disk."""
    names = [name for name in files.list(DIRECTORY) if name.endswith(key_index.SUFFIX)]
    if not names:
        return
    path = f"{DIRECTORY}/{rng.choice(names)}"
    size = files.size(path)
    file = files.open(path)
    at = rng.randrange(size)
    how = rng.randrange(4)
    if how == 0:
        file.truncate(at)
    elif how == 1:
        file.pwritev([bytes([file.pread(1, at)[0] ^ 1 << rng.randrange(8)])], at)
    elif how == 2:
        file.pwritev([bytes(min(4096, size - at))], at)
    else:
        file.close()
        files.remove(path)
        return
    file.close()


def test_nothing_is_read_that_does_not_have_the_key() -> None:
    log = open_log(MemoryFiles(), LogConfig(key_index=True))
    for number in range(3000):
        builder = BatchBuilder(0, 0, 1000, compression=Compression.GZIP)
        builder.add(0, b"key %d" % number, bytes(50))
        log.append(builder.build())
    flush(log)
    extend(log)
    one = cold_reader.read_containing(log, 0, 1 << 20, 3000, [key_strings(b"key 1234")])
    assert [parse_header(each).base_offset for each in one.batches] == [1234, 2999]
    assert one.looked_bytes < 1000
    none = cold_reader.read_containing(log, 0, 1 << 20, 3000, [key_strings(b"nobody")])
    assert [parse_header(each).is_control for each in none.batches] == [True]
    below = cold_reader.read_containing(log, 0, 1 << 20, 1235, [key_strings(b"key 1234")])
    assert max(parse_header(each).next_offset for each in below.batches) <= 1235


def test_blocks_are_few_and_go_with_their_segment() -> None:
    files = MemoryFiles()
    log = open_log(files, LogConfig(key_index=True, segment_bytes=100_000))
    rng = random.Random(1)
    for _ in range(400):
        log.append(batch(rng))
        flush(log)
        extend(log)
    assert len(log.segments[0].keys or ()) <= 10
    assert (log.segments[0].keys or ())[-1].end == log.segments[0].size
    log.roll()
    log.delete_prefix(log.log_end_offset)
    flush(log)
    flush(log)
    assert [name for name in files.list(DIRECTORY) if name.endswith(key_index.SUFFIX)] == []


def test_groups_that_are_not_of_keys_are_not_taken_for_them() -> None:
    keys = [*key_strings(b"a"), *key_strings(b"b" * 100)]
    assert len(key_index.hashes_of([keys])[0]) == 2
    for strings in ((b"a",), (b"",), key_strings(b""), (*keys, b"x"), (b"\x02b", b"\0a"), (b"x-ab", b"x-\x82b")):
        assert key_index.hashes_of([strings]) == []
