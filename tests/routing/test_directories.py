"""What lies in the data directory and is not known, or damaged: kept, and told."""

from __future__ import annotations

import errno

import pytest

from core_log.errors import LogDamaged
from core_log.files import FaultyFiles, MemoryFiles
from core_log.memory_files import MemoryFile
from core_log.record_batch import BatchBuilder
from routing.directories import note_deletion, tidy_topics
from routing.topics.offset_store import Committed
from tests.routing.harness import Engine, engine, killed


def a_batch(value: bytes) -> bytes:
    builder = BatchBuilder(0, 0, 1)
    builder.add(0, None, value)
    return builder.build()


async def fill(running: Engine, *topics: str) -> None:
    for name in topics:
        topic = await running.broker.create_topic(name, partitions=2)
        base = topic.partitions[1].append(a_batch(name.encode()))
        await topic.partitions[1].log.wait_committed(base + 1)


def content(running: Engine, topic: str) -> bytes:
    return b"".join(bytes(batch) for batch in running.broker.topics[topic].partitions[1].log.read_blocking(0, 1000))


def damage_catalog(files: MemoryFiles) -> None:
    """Flip a bit of the first record."""
    file = files.open("catalog/0/00000000000000000000.log")
    file.pwritev([bytes([file.pread(1, 70)[0] ^ 4])], 70)


def segments(files: MemoryFiles, directory: str) -> int:
    return sum(files.size(f"{directory}/{name}") for name in files.list(directory) if name.endswith(".log"))


@pytest.mark.parametrize("clean", [False, True])
async def test_a_damaged_catalog_stops_the_start_and_deletes_nothing(clean: bool) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await fill(running, "first", "second")
        found = killed(files)
    if clean:
        found = files
    damage_catalog(found)
    with pytest.RaisesGroup(
        pytest.RaisesExc(LogDamaged, match=r"catalog/0/0+\.log is damaged at position 0 .*--accept")
    ):
        async with engine(found):
            pass
    assert segments(found, "topics/first-1") > 0

    async with engine(found, accept_damage=True) as running:
        assert set(running.broker.topics) == {"second"}
        assert b"second" in content(running, "second")
    assert segments(found, "unknown/first-1.1") > 0
    assert segments(found, "topics/first-1") == 0
    assert segments(found, "damaged/catalog-0.1") > 0
    async with engine(found) as running:
        assert set(running.broker.topics) == {"second"}


async def test_a_damaged_offset_store_stops_the_start() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await fill(running, "t")
        for number in range(3):
            await running.broker.offsets.commit(f"group {number}", {("t", 0): Committed(number)})
        found = killed(files)
    file = found.open("offsets/0/00000000000000000000.log")
    file.pwritev([b"!"], 70)
    with pytest.RaisesGroup(pytest.RaisesExc(LogDamaged, match="offsets/0")):
        async with engine(found):
            pass
    async with engine(found, accept_damage=True) as running:
        assert [running.broker.offsets.known(f"group {number}") for number in (0, 2)] == [
            {},
            {("t", 0): Committed(2)},
        ]


async def test_an_unknown_directory_is_moved_aside(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await fill(running, "t")
    for _ in range(2):
        files.make_directory("topics/stranger-0")
        files.open("topics/stranger-0/00000000000000000000.log").pwritev([b"somebody's"], 0)
        async with engine(files) as running:
            assert set(running.broker.topics) == {"t"}
    assert "does not name topics/stranger-0: moved to unknown/stranger-0.1" in caplog.text
    assert files.list("unknown") == ["stranger-0.1", "stranger-0.2"]
    assert files.list("topics") == ["t-0", "t-1"]


def test_what_other_brokers_deleted_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    for name in ("t-0.0123456789abcdef", "gone-0.1123456789abcdef", "empty-0.2123456789abcdef", "plain-0"):
        files.make_directory(f"topics/{name}")
        log = files.open(f"topics/{name}/{0:020d}.log")
        if name.startswith("gone"):
            log.pwritev([b"x"], 0)
    for _ in range(2):
        caplog.clear()
        tidy_topics(files, {"topics/t-0.0123456789abcdef"}, with_ids=True)
        assert files.list("topics") == ["plain-0", "t-0.0123456789abcdef"]
        assert files.list("unknown") == ["gone-0.1123456789abcdef.1"]
        assert "unknown/ has 1 directories of topics that the catalog does not name" in caplog.text
    tidy_topics(files, {"topics/plain-0"})
    assert files.list("topics") == ["plain-0", "t-0.0123456789abcdef"], "a broker that is alone knows of no ids"


async def test_a_deletion_that_a_crash_interrupted_is_finished() -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    pictures: list[MemoryFiles] = []
    async with engine(files) as running:
        await fill(running, "gone", "stays")
        for number in range(100):
            await running.broker.offsets.commit(f"g{number}", {("gone", 1): Committed(1), ("stays", 1): Committed(1)})
        files.hook = lambda operation, path: pictures.append(killed(disk))
        await running.broker.delete_topic("gone")
        files.hook = None
    deleted = []
    for picture in pictures:
        async with engine(picture) as running:
            assert b"stays" in content(running, "stays")
            deleted.append("gone" not in running.broker.topics)
            come_to = {
                topic for group in running.broker.offsets.groups for topic, _ in running.broker.offsets.known(group)
            }
            assert come_to == ({"stays"} if deleted[-1] else {"stays", "gone"})
            if not deleted[-1]:
                assert b"gone" in content(running, "gone")
        assert picture.list("unknown") == []
        assert picture.list("deleting") == []
        assert any("gone" in name for name in picture.list("topics")) != deleted[-1]
    assert deleted == sorted(deleted)
    assert {True, False} == set(deleted)


async def test_group_offsets_of_a_deleted_topic_are_gone_after_two_crashes() -> None:
    disk = MemoryFiles()
    files = FaultyFiles(disk)
    pictures: list[MemoryFiles] = []

    def before_offsets(operation: str, path: str) -> None:
        if path.startswith("offsets/"):
            pictures.append(disk.crash())

    async with engine(files) as running:
        await fill(running, "gone")
        await running.broker.offsets.commit("g", {("gone", 1): Committed(1)})
        files.hook = before_offsets
        await running.broker.delete_topic("gone")
        files.hook = None
    disk = pictures[0]  # the catalog does not name it any more
    files = FaultyFiles(disk)
    pictures.clear()
    files.hook = lambda operation, path: pictures.append(disk.crash())
    async with engine(files) as running:
        files.hook = None
    assert len(pictures) > 3
    for picture in [*pictures, disk.crash()]:
        async with engine(picture) as running:
            assert set(running.broker.topics) == set()
            assert running.broker.offsets.known("g") == {}


class FewFiles(MemoryFiles):
    """No more files or directories can be made than `names_max`: no inode is left."""

    names_max = 1 << 30

    @classmethod
    def of(cls, found: MemoryFiles) -> FewFiles:
        """A disk with these names."""
        files = cls()
        files._names, files._durable = found._names, found._durable
        return files

    def open(self, path: str, *, create: bool = True) -> MemoryFile:
        if create:
            self._require_inode(path)
        return super().open(path, create=create)

    def make_directory(self, path: str) -> None:
        self._require_inode(path)
        super().make_directory(path)

    def _require_inode(self, path: str) -> None:
        if not self.exists(path) and len(self._names) >= self.names_max:
            raise OSError(errno.ENOSPC, "No inodes left on device", path)


async def test_a_topic_is_deleted_though_no_file_can_be_made(caplog: pytest.LogCaptureFixture) -> None:
    disk = FewFiles()
    files = FaultyFiles(disk)
    pictures: list[MemoryFiles] = []
    async with engine(files) as running:
        await fill(running, "gone", "stays")
        disk.names_max = 0
        files.hook = lambda operation, path: pictures.append(killed(disk))
        await running.broker.delete_topic("gone")
        files.hook, disk.names_max = None, FewFiles.names_max
        assert set(running.broker.topics) == {"stays"}
        assert disk.list("topics") == ["stays-0", "stays-1"]
    assert "no room to note it ([Errno 28] No inodes left on device: 'deleting')" in caplog.text
    for picture in [*pictures, disk]:
        async with engine(picture) as running:
            assert b"stays" in content(running, "stays")
            if "gone" in running.broker.topics:
                assert b"gone" in content(running, "gone")
            else:
                assert not any("gone" in name for name in picture.list("topics") if segments(picture, f"topics/{name}"))


async def test_a_start_without_inodes_leaves_what_it_cannot_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await fill(running, "stays")
        found = killed(files)
    found.make_directory("topics/gone-1")
    found.open("topics/gone-1/00000000000000000000.log").pwritev([a_batch(b"gone")], 0)
    disk = FewFiles.of(found)
    disk.names_max = len(found._names)
    async with engine(disk) as running:
        assert b"stays" in content(running, "stays")
    assert "does not name topics/gone-1: it stays there, as the disk has no room to move it to unknown/" in caplog.text
    assert segments(disk, "topics/gone-1") > 0
    disk.names_max = FewFiles.names_max
    async with engine(disk) as running:
        await running.broker.create_topic("gone", partitions=2)
        assert content(running, "gone") == b""
    assert segments(disk, "unknown/gone-1.1") > 0


async def test_a_topic_whose_files_cannot_be_removed_is_deleted_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        await fill(running, "t")
        files.failing["remove"] = errno.EIO
        await running.broker.delete_topic("t")
        assert set(running.broker.topics) == set()
        files.failing.clear()
    assert "the files of a deleted topic stay until the next start" in caplog.text
    async with engine(files) as running:
        await running.broker.create_topic("t", partitions=2)
        assert content(running, "t") == b""


async def test_a_topic_made_again_never_finds_old_records() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await fill(running, "t")
        await running.broker.delete_topic("t")
        files.make_directory("topics/t-1")
        files.open("topics/t-1/00000000000000000000.log").pwritev([a_batch(b"old")], 0)
        await running.broker.create_topic("t", partitions=2)
        assert content(running, "t") == b""
        assert files.list("unknown") == ["t-1.1"]
        await running.broker.delete_topic("t")
        files.make_directory("topics/t-1")
        files.open("topics/t-1/00000000000000000000.log").pwritev([a_batch(b"old")], 0)
        note_deletion(files, ["topics/t-1"])
        await running.broker.create_topic("t", partitions=2)
        assert content(running, "t") == b""
        assert files.list("unknown") == ["t-1.1"]
        assert files.list("deleting") == []


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        ("catalog", "catalog/0 is missing or empty, and queues/"),
        ("catalog/0", "catalog/0 is missing or empty, and queues/"),
        ("offsets", "offsets/0 is missing"),
        ("transactions", "transactions/0 is missing"),
        ("retained", "retained/0 is missing"),
        ("queues", "queues/0 is missing: queue 'q' is there"),
        ("topics/first-1", "topics/first-1 is missing"),
    ],
)
async def test_what_is_missing_stops_the_start(gone: str, told: str, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    async with engine(files, stripes=1) as running:
        await fill(running, "first")
        await running.queue("q")
        await running.client().publish_safely("q", "m")
    files.remove_directory(gone)
    before = {name: segments(files, name) for name in ("queues/0", "topics/first-0", "topics/first-1")}
    for _ in range(2):
        with pytest.RaisesGroup(pytest.RaisesExc(LogDamaged, match=f"{told}.*--accept")):
            async with engine(files, stripes=1):
                pass
    assert {name: segments(files, name) for name in before} == before
    async with engine(files, stripes=1, accept_damage=True) as running:
        assert f"{told}" in caplog.text
        await running.queue("q")
        await running.client().publish_safely("q", "m")
    async with engine(files, stripes=1):
        pass


async def test_a_first_start_that_was_killed_is_no_damage() -> None:
    files = MemoryFiles()
    files.make_directory("catalog/0")
    async with engine(files) as running:
        await running.queue("q")
