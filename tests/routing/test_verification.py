"""Looking at a data directory without changing it: whole, torn by a kill, damaged in each of its parts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from core_log.batch_header import parse_header
from core_log.files import OsFiles
from core_log.read_only import ReadOnlyFiles
from routing.config import BrokerConfig
from routing.queues.homes.reclaim import give_back
from routing.topics.compaction import Compaction
from routing.topics.offset_store import Committed
from routing.verification import verify_logs, verify_topology, whose
from tests.core_log.compaction.helpers import keyed
from tests.routing.harness import engine
from tests.routing.kept.test_retained import slab
from tests.support.replica_node import batch_of


async def fill(directory: Path) -> None:
    """What a broker leaves that is killed after it was stopped once."""
    work = directory.with_name("work")
    for life in range(2):
        async with engine(OsFiles(work), topic_segment_bytes=1 << 10) as one:
            if not life:
                await one.queue("q")
                await one.broker.create_topic("t", config={"retention.ms": "-1"})
            await one.client().publish_safely("q", *range(100))
            log = one.broker.topics["t"].partitions[0].log
            for _ in range(20):
                log.append(batch_of(0, 10, 10))
            log.request_sync()
            await log.wait_committed(log.log_end_offset)
            await one.broker.offsets.commit("group", {("t", 0): Committed(7)})
            retained = one.broker.retained
            await retained.log.wait_committed(retained.keep("/", slab(("a", b"1"), ("b", b"2"))))
            await one.synced()
            if life:
                shutil.copytree(work, directory)


def content(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def problems(directory: Path) -> list[str]:
    before = content(directory)
    files = ReadOnlyFiles(directory)
    found = [problem for log in verify_logs(files) for problem in log.problems] + verify_topology(files)[1]
    assert content(directory) == before, "nothing is changed"
    return found


async def test_what_a_kill_left_is_whole(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    await fill(directory)
    (home,) = [path for path in directory.glob("queues/*/*.log") if path.stat().st_size]
    size = home.stat().st_size
    with home.open("ab") as file:
        file.write(home.read_bytes()[:50])
    files = ReadOnlyFiles(directory)
    assert whose(files) == "a single broker"
    logs = {log.directory: log for log in verify_logs(files)}
    stores = {"catalog/0", "offsets/0", "transactions/0", "retained/0"}
    assert logs.keys() == stores | {"queues/0", "queues/1", "topics/t-0"}
    assert all(not log.problems for log in logs.values())
    torn = logs.pop(f"queues/{home.parent.name}")
    assert (torn.size_bytes, torn.cut_bytes) == (size, 50)
    assert all(not log.cut_bytes for log in logs.values())
    assert (logs["topics/t-0"].log_start_offset, logs["topics/t-0"].log_end_offset) == (0, 400)
    counts, faults = verify_topology(files)
    assert (counts["queue"], counts["topic"], faults) == (1, 1, [])
    assert problems(directory) == []


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def largest(directory: Path, pattern: str) -> Path:
    return max(directory.glob(pattern), key=lambda path: path.stat().st_size)


def first(directory: Path, pattern: str) -> Path:
    return min(directory.glob(pattern))


def last_batch(directory: Path) -> int:
    """Where it begins in the first segment of the topic."""
    data = first(directory, "topics/t-0/*.log").read_bytes()
    position = at = 0
    while at < len(data):
        position, at = at, at + parse_header(data, at).size
    return position


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda d: flip(first(d, "topics/t-0/*.log"), 200), "topics/t-0/00000000000000000000.log at position "),
        (lambda d: flip(first(d, "topics/t-0/*.log"), last_batch(d) + 5), "in another segment than theirs"),
        (lambda d: flip(d / "topics" / "t-0" / "recovery-point", 30), "topics/t-0/recovery-point is damaged"),
        (lambda d: flip(first(d, "queues/*/leader-epochs"), 9), "/leader-epochs is damaged"),
        (lambda d: flip(largest(d, "queues/*/*.log"), 100), "wrong CRC"),
        (lambda d: flip(largest(d, "catalog/0/*.log"), 100), "catalog/0/00000000000000000000.log is damaged at"),
        (lambda d: flip(largest(d, "offsets/0/*.log"), 70), "offsets/0/00000000000000000000.log is damaged at"),
        (lambda d: flip(largest(d, "retained/0/*.log"), 70), "retained/0/00000000000000000000.log is damaged at"),
        (lambda d: flip(largest(d, "queues/*/checkpoint"), 20), "/checkpoint is damaged"),
        (lambda d: os.truncate(largest(d, "queues/*/*.log"), 0), "/checkpoint speaks of offset 102: the log ends at 0"),
        (lambda d: shutil.rmtree(d / "topics" / "t-0"), "topics/t-0 is missing"),
        (lambda d: shutil.rmtree(d / "queues"), "is missing: queue 'q' is there"),
        (lambda d: shutil.rmtree(d / "offsets"), "offsets/0 is missing"),
        (lambda d: shutil.rmtree(d / "retained"), "retained/0 is missing"),
        (lambda d: shutil.rmtree(d / "catalog"), "catalog/0 is missing or empty, and queues/"),
        (lambda d: first(d, "topics/t-0/*.log").unlink(), "missing or damaged"),
        (lambda d: flip(max(d.glob("topics/t-0/*.log")), 70), "is not only what a stop leaves"),
        (lambda d: flip(first(d, "topics/t-0/*.log"), 15), "leader epoch 0 after 1"),
        (lambda d: sorted(d.glob("topics/t-0/*.log"))[2].unlink(), ".log is missing"),
    ],
)
async def test_what_is_damaged_is_named(tmp_path: Path, damage: Callable[[Path], None], told: str) -> None:
    directory = tmp_path / "d"
    await fill(directory)
    damage(directory)
    found = problems(directory)
    assert any(told in problem for problem in found), found


async def test_a_checkpoint_of_what_has_gone_since_is_no_fault(tmp_path: Path) -> None:
    directory, work = tmp_path / "d", tmp_path / "work"
    for life in range(2):
        async with engine(OsFiles(work), stripes=1) as one:
            if not life:
                await one.queue("q")
            await one.client().publish_safely("q", "x" * 100_000)
            await one.drain("q")
            if life:
                home = one.home("q")
                await one.synced()
                assert give_back(home)
                with trio.fail_after(10):
                    while home.log.job is not None or (work / "queues" / "0" / f"{0:020}.log").exists():
                        await trio.sleep(0.001)
                shutil.copytree(work, directory)
    assert problems(directory) == []


async def test_what_compaction_leaves_is_whole(tmp_path: Path) -> None:
    directory, work = tmp_path / "d", tmp_path / "work"
    config = {"cleanup.policy": "compact", "segment.bytes": "2000"}
    async with engine(OsFiles(work)) as one:
        (partition,) = (await one.broker.create_topic("t", config=config)).partitions
        for number in range(60):
            partition.append(keyed([(b"k%d" % key, b"%d" % number * 20) for key in range(5)]))
        await partition.log.wait_committed(partition.log.log_end_offset)
        before = partition.log.segments[2].log_path
        left_over = (work / before).read_bytes()
        await Compaction(one.broker.flusher, BrokerConfig(), one.broker.topics.values).round()
        await one.synced()
        with trio.fail_after(10):
            while partition.log.job is not None or (work / before).exists():
                await trio.sleep(0.001)
        shutil.copytree(work, directory)
    names = [path.name for path in directory.glob("topics/t-0/*.log")]
    assert any("-" in name for name in names)
    assert problems(directory) == []
    (directory / before).write_bytes(left_over)  # a crash before it was removed
    (directory / "topics/t-0/00000000000000000000-1.log.new").write_bytes(b"unfinished")
    assert problems(directory) == []
    (found,) = [log for log in verify_logs(ReadOnlyFiles(directory)) if log.directory == "topics/t-0"]
    assert (found.log_end_offset, found.cut_bytes) == (300, 0)
    segment = next(path for path in directory.glob("topics/t-0/*-*-*.log"))
    changed = bytearray(segment.read_bytes())
    changed[80] ^= 1
    segment.write_bytes(changed)
    assert any("wrong CRC" in problem for problem in problems(directory))
    segment.write_bytes(bytes(changed[:80]) + bytes([changed[80] ^ 1]) + bytes(changed[81:]))
    (directory / "topics/t-0/compacted").write_bytes(b"nonsense")
    assert problems(directory) == ["topics/t-0/compacted is damaged"]


async def test_files_that_somebody_put_beside_the_logs_are_none(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    await fill(directory)
    strangers = [directory / room / ".DS_Store" for room in ("", "topics", "queues", "offsets")]
    for one in strangers:
        one.write_bytes(b"somebody's")
    assert problems(directory) == []
    async with engine(OsFiles(directory)) as running:
        assert set(running.broker.topics) == {"t"}
    assert [one.read_bytes() for one in strangers] == [b"somebody's"] * 4
