"""Records read one by one from a log: in pieces of large batches, and on the event loop, as from whole batches."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from core_log.batch_header import parse_header
from core_log.cached_file import READ_BYTES_MAX
from core_log.errors import CorruptBatch
from core_log.files import Files, OsFiles
from core_log.log_config import LogConfig
from core_log.memory_files import MemoryFiles
from core_log.partition_log import PartitionLog
from core_log.record_pieces import LARGE_BYTES, PIECE_BYTES, divide
from core_log.record_reader import KnownPlaces, read_cached_records, read_records
from tests.core_log.helpers import flush, make_batch, open_log

ALL = 1 << 30
CONFIG = LogConfig(tail_cache_bytes=1024, segment_bytes=600_000)


def filled(files: Files, seed: int, batches: int = 60) -> tuple[PartitionLog, list[bytes]]:
    log, dice = open_log(files, CONFIG), random.Random(seed)
    values: list[bytes] = []
    for _ in range(batches):
        size = dice.choice([20, 150, 1000])
        batch = [dice.randbytes(dice.randrange(size)) for _ in range(dice.choice([1, 5, 300]))]
        log.append(make_batch(batch))
        values += batch
    flush(log)
    return log, values


@pytest.mark.parametrize("seed", range(3))
def test_records_of_batches_that_are_known_by_pieces_are_the_same(tmp_path: Path, seed: int) -> None:
    log, values = filled(OsFiles(tmp_path), seed)
    assert len(log.segments) > 1
    known, dice = KnownPlaces(), random.Random(seed)
    for count in [1] * 400 + [3, 50, 2000] * 3:
        offsets = sorted(dice.sample(range(len(values) + 5), min(count, len(values))))
        found = {run.first_offset: run.values for run in read_records(log, offsets, ALL, known)}
        assert found == {offset: [values[offset]] for offset in offsets if offset < len(values)}
        cached = {run.first_offset: run.values for run in read_cached_records(log, offsets, ALL, known)}
        assert cached == found, "all of it was read a moment ago"
    assert any(known.pieces.of(place, pieces.base_offset) for place, pieces in known.pieces._known.items() if pieces)


def test_pieces_are_small_and_nothing_is_left_out() -> None:
    batch = make_batch([bytes(length) for length in range(0, 3000, 3)])
    pieces = divide(1000, batch, parse_header(batch))
    assert pieces.positions[0] == 1000 + 61
    assert pieces.positions[-1] == 1000 + len(batch)
    sizes = [end - start for start, end in zip(pieces.positions, pieces.positions[1:])]
    assert all(PIECE_BYTES <= size < PIECE_BYTES + 3100 for size in sizes[:-1])
    assert len(pieces.firsts) == len(pieces.crcs) == len(sizes)


@pytest.mark.parametrize("near", [70, LARGE_BYTES, -200])
def test_damage_in_a_piece_is_told(tmp_path: Path, near: int) -> None:
    log = open_log(OsFiles(tmp_path), CONFIG)
    log.append(make_batch([bytes(100)] * 1000))
    flush(log)
    known = KnownPlaces()
    for _ in range(3):
        assert len(read_records(log, range(1000), ALL, known)) == 1000
    path = tmp_path / log.segments[0].log_path
    data = bytearray(path.read_bytes())
    data[near] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBatch, match="wrong CRC"):
        read_records(log, range(1000), ALL, known)


def test_what_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    log = open_log(OsFiles(tmp_path), CONFIG)
    log.append(make_batch([b"a" * 100] * 1000))
    flush(log)
    known = KnownPlaces()
    for _ in range(3):
        read_records(log, range(1000), ALL, known)
    path = tmp_path / log.segments[0].log_path
    path.write_bytes(make_batch([b"b" * 100] * 1000))
    assert [run.values for run in read_records(log, [3, 999], ALL, known)] == [[b"b" * 100]] * 2


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_event_loop_is_refused_what_it_might_wait_for(tmp_path: Path, on_disk: bool) -> None:
    log = open_log(OsFiles(tmp_path) if on_disk else MemoryFiles(), LogConfig(tail_cache_bytes=1024))
    for values in ([b"small"], [bytes(READ_BYTES_MAX)], [bytes(1000)] * 1000):
        log.append(make_batch(values))
    flush(log)
    known = KnownPlaces()

    def cached() -> list[int]:
        return [len(read_cached_records(log, [offset], ALL, known)) for offset in (0, 1, 2)]

    assert cached() == [on_disk, 0, 0], "what is large takes its time, and of what is no file nobody knows"
    for _ in range(2):
        assert len(read_records(log, [2], ALL, known)) == 1
    assert cached() == [on_disk, 0, on_disk], "a piece is small"
    log.roll()
    log.append(make_batch([b"next"]))
    flush(log)
    known = KnownPlaces()
    assert cached() == [0, 0, 0], "an index is a file"
    assert len(read_records(log, [0], ALL, known)) == 1
    assert cached() == [on_disk, 0, 0]
