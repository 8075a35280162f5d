"""The latest value by key, through restarts, rewrites and power losses at any step."""

from __future__ import annotations

import random

import pytest
import trio

from core_log.batch_header import parse_header
from core_log.errors import BatchTooLarge, LogUnavailable
from core_log.files import FaultyFiles, MemoryFiles
from core_log.keyed_store import GARBAGE_BYTES_MIN, KeyedStore
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig
from tests.core_log.helpers import DIRECTORY, open_log


async def test_latest_value_wins(flusher: LogFlusher) -> None:
    disk = MemoryFiles()
    store = KeyedStore(open_log(disk, flusher=flusher))
    assert store.get(b"a") is None
    ends = [store.put(b"a", b"1"), store.put(b"b", b""), store.put(b"a", b"2"), store.put(b"c", b"3")]
    assert ends == [1, 2, 3, 4]
    store.put(b"c", None)
    store.put(b"never", None)
    assert disk.crash().list(DIRECTORY) == []
    await store.commit()
    await store.commit()
    for found in (store, KeyedStore(open_log(disk.crash(), flusher=flusher))):
        assert dict(found.items()) == {b"a": b"2", b"b": b""}
        assert (found.get(b"a"), found.get(b"c")) == (b"2", None)


async def test_a_refused_put_changes_nothing(flusher: LogFlusher) -> None:
    log = open_log(MemoryFiles(), LogConfig(message_bytes_max=200), flusher=flusher)
    store = KeyedStore(log)
    store.put(b"a", b"old")
    with pytest.raises(BatchTooLarge):
        store.put(b"a", b"x" * 200)
    assert store.get(b"a") == b"old"
    log.close()
    with pytest.raises(LogUnavailable):
        store.put(b"a", b"new")
    assert store.get(b"a") == b"old"


async def test_a_refused_change_is_taken_back_on_disk_too(flusher: LogFlusher) -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    store = KeyedStore(open_log(files, flusher=flusher))
    assert await store.change([(b"a", b"old"), (b"b", b"kept")]) == {b"a": None, b"b": None}
    files.failing["sync"] = 5
    with pytest.raises(LogUnavailable):
        await store.change([(b"a", b"new"), (b"b", None), (b"c", b"1")])
    assert dict(store.items()) == {b"a": b"old", b"b": b"kept"}
    with pytest.raises(LogUnavailable):
        await store.change([(b"d", b"1")])
    files.failing.clear()
    with trio.fail_after(10):
        while store.log.error is not None:
            await trio.sleep(0.001)
    assert await store.change([(b"c", b"2")]) == {b"c": None}
    for found in (store, KeyedStore(open_log(disk.crash(), flusher=flusher))):
        assert dict(found.items()) == {b"a": b"old", b"b": b"kept", b"c": b"2"}


async def test_a_store_whose_log_others_write_now_writes_nothing_of_what_was_refused(flusher: LogFlusher) -> None:
    files = FaultyFiles(MemoryFiles())
    log = open_log(files, flusher=flusher)
    store = KeyedStore(log)
    await store.change([(b"a", b"old")])
    files.failing["sync"] = 5
    for number in range(2):
        with pytest.raises(LogUnavailable):
            await store.change([(b"a", b"%d" % number)])
    store.end()
    assert log.listeners == []
    end = log.log_end_offset
    files.failing.clear()
    with trio.fail_after(10):
        while log.error is not None:
            await trio.sleep(0.001)
        await log.wait_committed(end)
    assert log.log_end_offset == end
    with pytest.raises(LogUnavailable):
        store.put(b"a", b"2")


async def test_many_puts_are_all_or_none(flusher: LogFlusher) -> None:
    disk = MemoryFiles()
    store = KeyedStore(open_log(disk, LogConfig(message_bytes_max=1 << 20), flusher=flusher))
    store.put(b"a", b"old")
    with pytest.raises(BatchTooLarge):
        store.put_all([(b"a", b"new"), *((b"%d" % n, bytes(1000)) for n in range(500)), (b"b", bytes(1 << 20))])
    assert dict(store.items()) == {b"a": b"old"}
    await store.change([(b"%d" % n, bytes(1000)) for n in range(1000)])
    assert len(dict(KeyedStore(open_log(disk.crash(), flusher=flusher)).items())) == 1001


async def test_large_puts_are_one_batch_if_they_have_to_be(flusher: LogFlusher) -> None:
    log = open_log(MemoryFiles(), LogConfig(message_bytes_max=1 << 20), flusher=flusher)
    store = KeyedStore(log)
    large = [(b"note", b"1"), (b"record", bytes(600_000))]
    store.put_all(large)
    await store.change(large, together=True)
    counts = [parse_header(batch).record_count for batch in log.read(0, 4 << 20) or []]
    assert counts == [1, 1, 2]
    with pytest.raises(BatchTooLarge):
        store.put_all([*large, (b"more", bytes(600_000))], together=True)


async def test_garbage_is_rewritten(flusher: LogFlusher) -> None:
    disk = MemoryFiles()
    log = open_log(disk, flusher=flusher)
    store = KeyedStore(log)
    for i in range(300):
        store.put(b"%d" % (i % 7), b"%d" % i * 2000)
        store.put(b"gone", b"x" * 20)
    store.put(b"gone", None)
    assert log.size_bytes > GARBAGE_BYTES_MIN
    await store.commit()
    expected = {b"%d" % (i % 7): b"%d" % i * 2000 for i in range(293, 300)}
    assert dict(store.items()) == expected
    assert log.size_bytes < 60_000
    assert log.log_start_offset == 601
    while len([name for name in disk.list(DIRECTORY) if name.endswith(".log")]) > 1:
        await trio.lowlevel.checkpoint()
    again = KeyedStore(open_log(disk.crash(), flusher=flusher))
    assert dict(again.items()) == expected
    size = again.log.size_bytes
    again.put(b"more", b"1")
    await again.commit()
    assert again.log.size_bytes > size, "no garbage, no rewrite"


@pytest.mark.parametrize("limit_now", [400_000, 1000])
async def test_large_live_data_is_rewritten_in_several_batches(limit_now: int, flusher: LogFlusher) -> None:
    log = open_log(MemoryFiles(), LogConfig(message_bytes_max=400_000), flusher=flusher)
    store = KeyedStore(log)
    for turn in range(4):
        for i in range(5):
            store.put(b"%d" % i, b"%d" % turn * 390_000)
    log.configure(LogConfig(message_bytes_max=limit_now))
    await store.commit()
    assert log.log_end_offset - log.log_start_offset == 5
    assert dict(KeyedStore(log).items()) == {b"%d" % i: b"3" * 390_000 for i in range(5)}


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_power_loss_at_any_step_of_a_rewrite(steps: int, flusher: LogFlusher) -> None:
    """What was committed before is there: no old value comes back, no tombstone is forgotten."""
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    log = open_log(files, LogConfig(segment_bytes=200_000), flusher=flusher)
    store = KeyedStore(log)
    store.put(b"gone", b"x" * 190_000)
    for i in range(12):
        store.put(b"key", b"%d" % i * 100_000)
    store.put(b"gone", None)
    await log.wait_committed(log.log_end_offset)
    frozen: list[MemoryFiles] = []
    left = steps

    def hook(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            frozen.extend(disk.crash(random.Random(seed)) for seed in range(20))

    files.hook = hook
    await store.commit()
    log.close()
    for found in [*frozen, disk.crash()]:
        again = KeyedStore(open_log(found, log.config))
        assert dict(again.items()) == {b"key": b"11" * 100_000}


async def test_what_changes_while_the_log_is_rewritten_is_not_lost(
    flusher: LogFlusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core_log.keyed_store._REWRITTEN_AT_ONCE_BYTES", 1000)
    disk = MemoryFiles()
    store = KeyedStore(open_log(disk, LogConfig(message_bytes_max=1 << 20), flusher=flusher))
    for turn in range(4):
        store.put_all([(b"%d" % i, b"%d" % turn * 200_000) for i in range(10)])
    expected = {b"%d" % i: b"3" * 200_000 for i in range(10)}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.commit)
        for i in range(0, 10, 2):
            await trio.lowlevel.checkpoint()
            store.put(b"%d" % i, None if i < 5 else b"new")
            expected[b"%d" % i] = b"new"
            if i < 5:
                del expected[b"%d" % i]
    await store.log.wait_committed(store.log.log_end_offset)
    assert not store.has_garbage
    for found in (store, KeyedStore(open_log(disk.crash(), flusher=flusher))):
        assert dict(found.items()) == expected
