"""Publishers are blocked when disk or memory run short; home partitions give back what nobody needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_log.disk_space import DiskSpace
from core_log.files import FaultyFiles, MemoryFiles
from core_log.log_flusher import LogFlusher
from routing import alarms as alarms_module
from routing.alarms import LOW_ON_DISK, LOW_ON_MEMORY, Alarms, memory_of_machine, resident_bytes
from routing.config import BrokerConfig
from routing.queues.homes.reclaim import give_back
from tests.routing.harness import Engine, engine
from tests.support.descriptors import no_descriptors_left

GIB = 1 << 30


def alarms(files: FaultyFiles, **config: int) -> tuple[Alarms, list[str | None]]:
    made = Alarms(BrokerConfig(**config), DiskSpace(files, 0), LogFlusher())
    told: list[str | None] = []
    made.listeners[told.append] = None
    return made, told


@pytest.mark.parametrize(
    ("total", "config", "expected"),
    [
        (100 * GIB, {}, 50_000_000),
        (48 << 20, {}, (48 << 20) // 10),
        (100 * GIB, {"disk_free_percent_min": 5}, 5 * GIB),
        (100 * GIB, {"disk_free_bytes_min": 7 * GIB, "disk_free_percent_min": 5}, 7 * GIB),
        (100 * GIB, {"disk_free_bytes_min": 0}, 0),
        (48 << 20, {"disk_free_bytes_min": 20 << 20}, 20 << 20),
    ],
)
def test_the_watermark_of_the_disk(total: int, config: dict[str, int], expected: int) -> None:
    files = FaultyFiles(MemoryFiles())
    files.disk = total, total
    assert alarms(files, **config)[0].disk_free_bytes_min == expected


def test_the_disk_alarm() -> None:
    files = FaultyFiles(MemoryFiles())
    files.disk = 100 * GIB, 100 * GIB
    made, told = alarms(files, disk_free_bytes_min=8 * GIB, memory_bytes_max=0)

    def with_free(free_bytes: int, unflushed_bytes: int = 0) -> str | None:
        files.disk = free_bytes, 100 * GIB
        made.space.measure()
        made._flusher.unflushed_bytes = unflushed_bytes
        made.check()
        return made.blocked

    assert with_free(8 * GIB) is None
    assert made.room_bytes == 0
    assert with_free(8 * GIB - 1) == LOW_ON_DISK
    assert with_free(9 * GIB - 1) == LOW_ON_DISK, "it does not flutter"
    assert with_free(9 * GIB) is None
    assert with_free(10 * GIB, 3 * GIB) == LOW_ON_DISK, "what is on its way counts"
    assert with_free(10 * GIB) is None
    assert told == [LOW_ON_DISK, None, LOW_ON_DISK, None]


def test_the_memory_alarm() -> None:
    made, told = alarms(FaultyFiles(MemoryFiles()), memory_bytes_max=1)
    made.measure_memory()
    made.check()
    assert made.blocked == LOW_ON_MEMORY
    assert made.memory_bytes == pytest.approx(resident_bytes(), rel=0.5)
    assert made.memory_bytes > 1 << 20
    made.memory_bytes_max = 1 << 50
    made.measure_memory()
    made.check()
    assert told == [LOW_ON_MEMORY, None]


@pytest.mark.parametrize(
    ("machine_mib", "percent", "expected_mib"),
    [(4096, 25, 1024), (256, 40, 128), (128, 40, 96), (256, 90, 230), (256, 0, 0), (0, 40, 0)],
)
def test_the_memory_limit(machine_mib: int, percent: int, expected_mib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms_module, "memory_of_machine", lambda: machine_mib << 20)
    made, _ = alarms(FaultyFiles(MemoryFiles()), memory_percent_max=percent)
    assert made.memory_bytes_max is not None
    assert made.memory_bytes_max >> 20 == expected_mib


def test_caches_hold_less_while_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = alarms(FaultyFiles(MemoryFiles()), memory_bytes_max=4 * GIB)
    told: list[int] = []
    made.halve_caches = told.append
    shares = [0.5, 0.88, 0.88, 0.8, 0.76, 0.7, 0.7, 0.7, 1.01, 1.01, 0.9, 0.74]
    for share in shares:
        monkeypatch.setattr(alarms_module, "resident_bytes", lambda share=share: int(4 * GIB * share))
        made.measure_memory()
    assert told == [1, 2, 2, 2, 1, 0, 5, 5, 5, 4]
    small, _ = alarms(FaultyFiles(MemoryFiles()), memory_bytes_max=128 << 20)
    assert small.caches_halved == 4, "what they may hold together is a fourth of that at most"
    monkeypatch.setattr(alarms_module, "resident_bytes", lambda: 64 << 20)
    small.measure_memory()
    assert small.caches_halved == 4
    large, _ = alarms(FaultyFiles(MemoryFiles()), memory_bytes_max=0)
    assert large.caches_halved == 0


async def test_all_caches_are_told() -> None:
    async with engine(MemoryFiles(), memory_bytes_max=1 << 20, stripes=2) as running:
        broker = running.broker
        assert broker.flusher.tails.bytes_max == broker.config.tails_bytes_max >> 5
        await running.queue("q")
        for _ in range(100):
            running.client().publish("q", "x" * 20_000)
            running.turn()
        held = [home._cache for home in broker.topology.led]
        await running.until(lambda: 0 < sum(cache.bytes for cache in held) <= broker.config.stripe_cache_bytes >> 5)


@pytest.mark.parametrize(
    ("groups", "limit"),
    [
        ("0::/system.slice/broker", "system.slice/broker/memory.max"),
        ("0::/", "memory.max"),
        ("5:cpu:/a\n4:cpuset,memory:/a/b\n0::/", "memory/a/b/memory.limit_in_bytes"),
        ("4:memory:/not-seen-here", "memory/memory.limit_in_bytes"),
    ],
)
def test_the_memory_of_a_control_group(
    groups: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, path = tmp_path / "own", tmp_path / "groups" / limit
    own.write_text(groups + "\n")
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(alarms_module, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(alarms_module, "_OWN_GROUPS", own)
    machine = memory_of_machine()
    path.write_text("max\n")
    assert memory_of_machine() == machine
    path.write_text("64000000\n")
    assert memory_of_machine() == 64_000_000


def test_memory_is_known_when_there_are_no_descriptors_left() -> None:
    assert resident_bytes()
    with no_descriptors_left():
        assert resident_bytes() > 1 << 20


async def test_the_engine_is_blocked_by_what_is_on_its_way() -> None:
    files = FaultyFiles(MemoryFiles())
    files.disk = 9 * GIB, 100 * GIB
    async with engine(files, disk_free_bytes_min=9 * GIB - 500_000, memory_bytes_max=0) as running:
        broker = running.broker
        await running.queue("q")
        running.turn()
        await running.until(lambda: 400_000 < broker.alarms.room_bytes <= 500_000)
        assert broker.blocked is None
        client = running.client()
        client.publish("q", "x" * 600_000, confirm=True)
        running.turn()
        assert broker.blocked == LOW_ON_DISK
        await running.until(lambda: client.confirmed == 1)


async def filled(running: Engine, count: int) -> None:
    await running.queue("q")
    client = running.client()
    for number in range(count):
        await client.publish_safely("q", f"{number:0100000}")


async def test_an_empty_home_gives_back_its_last_segment() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await filled(running, 5)
        partition = running.home("q")
        assert not give_back(partition), "there are messages"
        size = partition.log.size_bytes
        assert len(await running.drain("q")) == 5
        await running.synced()
        assert partition.log.size_bytes > size
        assert give_back(partition)
        await running.until(lambda: not partition.log.job and len(files.list(partition.log.directory)) < 6)
        assert partition.log.size_bytes == 0
        assert not give_back(partition), "there is nothing to gain"
        await running.client().publish_safely("q", "after")
        found = files.crash()
    for disk in (found, files):
        async with engine(disk) as running:
            assert [body for body, _ in await running.drain("q")] == ["after"]
