"""Damage in a store: told from a torn tail, and repaired without losing what is whole."""

from __future__ import annotations

import random

import pytest

from core_log.damage import Damage, find_damage, repair
from core_log.errors import CorruptBatch
from core_log.files import FaultyFiles, MemoryFiles, read_file
from core_log.keyed_store import KeyedStore
from core_log.partition_log import LogConfig, PartitionLog
from tests.core_log.helpers import DIRECTORY, flush, make_batch, open_log, read_all, write

KEYS = [b"key %d" % number for number in range(10)]


def a_store(files: MemoryFiles, *, segment_bytes: int = 1 << 20) -> tuple[PartitionLog, list[int]]:
    """A store with a key a batch, all durable; where in the file (or files) each batch begins."""
    log = open_log(files, LogConfig(segment_bytes=segment_bytes))
    store = KeyedStore(log)
    positions = []
    for number, key in enumerate(KEYS):
        size = log.segments[-1].size
        store.put(key, b"value %d " % number * 10)
        positions.append(size if log.segments[-1].size > size else 0)
    log.request_sync()
    flush(log)
    return log, positions


def keys_of(files: MemoryFiles) -> list[bytes]:
    return [key for key, _ in KeyedStore(open_log(files)).items()]


def flip(files: MemoryFiles, path: str, position: int, bit: int = 0) -> None:
    file = files.open(path)
    file.pwritev([bytes([file.pread(1, position)[0] ^ 1 << bit])], position)
    file.sync()


def found(files: MemoryFiles) -> Damage:
    damage = find_damage(files, DIRECTORY)
    assert damage is not None
    return damage


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("at_batch", [0, 4, 9])
@pytest.mark.parametrize("at_byte", [8, 11, 16, 20, 30, 60, 100])
def test_every_flipped_bit_of_a_synced_batch_is_damage(clean: bool, at_batch: int, at_byte: int) -> None:
    files = MemoryFiles()
    log, positions = a_store(files)
    if clean:
        log.close()
    flip(files, log.segments[0].log_path, positions[at_batch] + at_byte)
    before = files.crash()
    damage = found(files)
    assert damage.path == log.segments[0].log_path
    assert damage.position == positions[at_batch]
    assert damage.whole_batches_after == 9 - at_batch
    assert find_damage(before, DIRECTORY) == damage, "looking changes nothing"
    repair(files, DIRECTORY, "damaged/store.1")
    assert find_damage(files, DIRECTORY) is None
    assert keys_of(files) == KEYS[:at_batch] + KEYS[at_batch + 1 :]
    copy = files.open("damaged/store.1/" + log.segments[0].log_path.rpartition("/")[2])
    assert copy.pread(1 << 20, 0) == before.open(log.segments[0].log_path).pread(1 << 20, 0)


def test_a_store_that_is_whole_is_not_damaged() -> None:
    files = MemoryFiles()
    assert find_damage(files, DIRECTORY) is None
    log, _ = a_store(files, segment_bytes=500)
    assert find_damage(files, DIRECTORY) is None
    log.delete_prefix(5)
    log.close()
    assert find_damage(files, DIRECTORY) is None


@pytest.mark.parametrize("zeros", [0, 4096])
def test_a_torn_tail_is_not_damage(zeros: int) -> None:
    files = MemoryFiles()
    log, positions = a_store(files)
    file = files.open(log.segments[0].log_path)
    last = file.pread(1000, positions[9])
    for keep in range(len(last) - 1):
        file.truncate(positions[9])
        file.pwritev([last[:keep], bytes(zeros)], positions[9])
        assert find_damage(files, DIRECTORY) is None, keep
    assert keys_of(files) == KEYS[:9]


def test_losing_power_never_looks_like_damage_while_every_write_is_synced() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        files = MemoryFiles()
        log = open_log(files, LogConfig(segment_bytes=dice.choice([300, 1000, 1 << 20])))
        for number in range(dice.randrange(1, 12)):
            log.append(make_batch([b"%d" % number * dice.randrange(1, 300)]))
            log.request_sync()
            flush(log)
        log.append(make_batch([b"not synced" * 100]))
        flush(log)
        found = files.crash(dice)
        assert find_damage(found, DIRECTORY) is None, seed


@pytest.mark.parametrize("block", [512, 4096])
def test_losing_power_never_looks_like_damage_where_what_was_written_first_is_lost(block: int) -> None:
    """Of what is not synced a disk has any blocks."""
    holes = 0
    for seed in range(150):
        dice = random.Random(seed)
        files = MemoryFiles()
        log = open_log(files)
        store = KeyedStore(log)
        sure: dict[bytes, bytes] = {}
        synced = 0
        for number in range(dice.randrange(1, 12)):
            for _ in range(dice.randrange(1, 3)):
                store.put(dice.choice(KEYS), dice.choice([None, b"%d" % number * dice.randrange(1, 1400)]))
            if dice.random() < 0.4:
                flush(log)
                sure, synced = dict(store.items()), log.segments[0].size
            else:
                write(log)
        survived = files.kill()
        file, end = survived.open(log.segments[0].log_path), log.segments[0].size
        for start in range(synced - synced % block, end, block):
            if dice.random() < 0.4:
                lost = max(start, synced)
                file.pwritev([bytes(min(start + block, end) - lost)], lost)
        assert find_damage(survived, DIRECTORY) is None, seed
        again = open_log(survived)
        holes += bool(again.aside)
        assert again.log_end_offset >= log.flushed_offset, seed
        assert again.log_end_offset > log.flushed_offset or dict(KeyedStore(again).items()) == sure, seed
    assert holes


@pytest.mark.parametrize("left_out", [8, 12, 13, 17, 21, 40])
def test_a_write_that_lacks_the_block_in_which_its_first_bytes_are_is_torn(left_out: int) -> None:
    files = MemoryFiles()
    log = open_log(files)
    store = KeyedStore(log)
    store.put(b"key", bytes(100))
    flush(log)
    size = log.segments[0].size
    store.put(b"key", bytes(100 + (512 - left_out - 2 * size) % 512))
    flush(log)
    at = log.segments[0].size
    assert at % 512 == 512 - left_out
    store.put(b"key", b"lost")
    flush(log)
    survived = files.kill()
    survived.open(log.segments[0].log_path).pwritev([bytes(left_out)], at)
    assert find_damage(survived, DIRECTORY) is None
    assert open_log(survived).log_end_offset == log.log_end_offset - 1


def test_zeros_where_something_was_durable_before_the_rest_was_written_are_damage() -> None:
    files = MemoryFiles()
    log, positions = a_store(files)
    store = KeyedStore(log)
    for _ in range(3):
        store.put(b"later", b"value")
        write(log)
    path = log.segments[0].log_path
    for at, until in ((positions[9], log.segments[0].size), (positions[4], positions[5])):
        zeroed = files.kill()
        zeroed.open(path).pwritev([bytes(until - at)], at)
        assert (find_damage(zeroed, DIRECTORY) is None) == (at == positions[9]), at
    zeroed = files.kill()
    zeroed.open(path).pwritev([bytes(positions[5] - positions[4])], positions[4])
    zeroed.open(path).truncate(log.segments[0].size)
    assert found(zeroed).position == positions[4]


def test_damage_of_a_closed_segment_and_missing_files() -> None:
    files = MemoryFiles()
    log, _ = a_store(files, segment_bytes=500)
    paths = [segment.log_path for segment in log.segments]
    assert len(paths) > 2
    cut = files.crash()
    file = cut.open(paths[1])
    file.truncate(cut.size(paths[1]) - 1)
    assert found(cut).path == paths[1], "a full segment was synced: it cannot be torn"
    repair(cut, DIRECTORY, "damaged/1")
    assert len(keys_of(cut)) == 9
    missing = files.crash()
    missing.remove(paths[0])
    assert found(missing).reason == "it is missing"
    repair(missing, DIRECTORY, "damaged/1")
    assert 5 < len(keys_of(missing)) < 10
    log.close()
    files.remove(paths[-1])
    assert found(files).path == paths[-1]


def test_synced_bytes_that_are_gone() -> None:
    files = MemoryFiles()
    log, positions = a_store(files)
    log.close()
    files.open(log.segments[0].log_path).truncate(positions[9])
    assert "synced bytes are missing" in found(files).reason


@pytest.mark.parametrize("bit", range(8))
def test_a_base_offset_that_cannot_be(bit: int) -> None:
    """Offsets are outside the CRC; nothing that is whole may be lost by one, and none may crash a start."""
    for byte in range(8):
        files = MemoryFiles()
        log, positions = a_store(files)
        flip(files, log.segments[0].log_path, positions[4] + byte, bit)
        if find_damage(files, DIRECTORY) is not None:
            repair(files, DIRECTORY, "damaged/1")
        assert sorted(keys_of(files))[:3] == KEYS[:3]
        assert len(keys_of(files)) >= 9


def test_random_damage_is_never_worse_than_what_it_hits() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        files = MemoryFiles()
        log, _ = a_store(files, segment_bytes=dice.choice([500, 1 << 20]))
        if dice.random() < 0.5:
            log.close()
        path = dice.choice(log.segments).log_path
        start = dice.randrange(files.size(path))
        length = min(dice.choice([1, 30, 200]), files.size(path) - start)
        files.open(path).pwritev([dice.randbytes(length)], start)
        if find_damage(files, DIRECTORY) is not None:
            repair(files, DIRECTORY, "damaged/1")
        assert find_damage(files, DIRECTORY) is None
        try:
            kept = keys_of(files)
        except CorruptBatch:
            raise AssertionError(seed) from None
        assert len(kept) >= 10 - 2 - length // 100, seed


def cut_and_kept(files: MemoryFiles, config: LogConfig) -> tuple[PartitionLog, dict[str, bytes]]:
    """A log that is opened, and what of it is kept aside."""
    log = open_log(files, config)
    kept = {name: read_file(files, f"{log.aside}/{name}") for name in files.list(log.aside)} if log.aside else {}
    return log, kept


@pytest.mark.parametrize("room", [0, 5000])
@pytest.mark.parametrize("at_batch", [4, 9])
def test_what_a_flipped_bit_cuts_off_after_a_kill_is_kept(at_batch: int, room: int) -> None:
    files = MemoryFiles()
    log, positions = a_store(files)
    path, at = log.segments[0].log_path, positions[at_batch]
    flip(files, path, at + 70)
    data = read_file(files, path) + bytes(room)
    files.open(path).pwritev([data], 0)
    log, kept = cut_and_kept(files, log.config)
    assert log.log_end_offset == at_batch
    assert kept == {f"{path.rpartition('/')[2]}.from-{at}": data[at:]}
    assert cut_and_kept(files, log.config)[1] == {}, "once"


@pytest.mark.parametrize("left", [1, 60, 61, 90])
def test_a_torn_tail_is_not_kept(left: int) -> None:
    files = MemoryFiles()
    log, positions = a_store(files)
    files.open(log.segments[0].log_path).truncate(positions[-1] + left)
    log, kept = cut_and_kept(files, log.config)
    assert (log.log_end_offset, kept) == (9, {})


def test_segments_behind_a_flipped_bit_are_kept_where_the_recovery_point_is_lost() -> None:
    files = MemoryFiles()
    log, _ = a_store(files, segment_bytes=500)
    log.close()
    paths = [segment.log_path for segment in log.segments]
    files.remove(f"{DIRECTORY}/recovery-point")
    flip(files, paths[0], 70)
    before = {path.rpartition("/")[2]: read_file(files, path) for path in paths}
    first = min(before)
    log, kept = cut_and_kept(files, log.config)
    assert log.log_end_offset == 0
    assert kept == {f"{first}.from-0": before.pop(first), **before}


@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_while_segments_behind_a_flipped_bit_go_leaves_no_gap(seed: int) -> None:
    """The next start took the segments that were left: what was cut off between was missed by nobody."""
    dice = random.Random(seed)
    files = MemoryFiles()
    log, _ = a_store(files, segment_bytes=200)
    path = log.segments[2].log_path
    end = log.segments[2].base_offset
    files.remove(f"{DIRECTORY}/recovery-point")
    files.sync_directory(DIRECTORY)
    flip(files, path, 70)
    failing = FaultyFiles(files)
    found: list[MemoryFiles] = []
    failing.hook = lambda *_: found.extend([files.kill(), files.crash(dice), files.crash(dice)])
    open_log(failing, log.config)
    assert len(found) > 50
    for survived in found:
        again = open_log(survived, log.config)
        assert [offset for offset, _ in read_all(again)] == list(range(end))
        assert again.log_end_offset == end


def test_a_flipped_bit_of_the_log_start_brings_nothing_back() -> None:
    files = MemoryFiles()
    log, _ = a_store(files)
    log.delete_prefix(5)
    flush(log)
    log.close()
    for bit in range(8 * files.size(f"{DIRECTORY}/log-start")):
        flip(files, f"{DIRECTORY}/log-start", bit >> 3, bit & 7)
        log = open_log(files)
        assert (log.log_start_offset, log.damaged) == (5, False)
        flip(files, f"{DIRECTORY}/log-start", bit >> 3, bit & 7)
