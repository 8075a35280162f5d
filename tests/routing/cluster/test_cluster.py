"""The engine of a broker that is a member: its logs, who leads them, and what it keeps across restarts."""

from __future__ import annotations

import errno
import os
from typing import Literal

import pytest
import trio

from core_log import high_watermarks
from core_log.files import FaultyFiles, Files, MemoryFiles
from core_log.log_config import LogConfig
from core_log.replication.state import LogState, encode, log_key
from routing.broker import open_broker
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.age import Age, save_age
from routing.cluster.metadata.elections import Elections
from routing.cluster.metadata.trust import Trust
from tests.routing.cluster.metadata.test_elections import start
from tests.routing.cluster.metadata.test_members import One, cluster, until
from tests.routing.harness import killed
from tests.simulation.etcd_model import EtcdModel
from tests.support.replica_node import batch_of

LOG, DIRECTORY = "topic-a-0", "logs/a-0"


async def test_a_log_is_led_once_it_is_named_and_reopens_as_it_was() -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        files = MemoryFiles()
        for round_number in (1, 2):
            one, elections = await start(nursery, model, 1, files)
            part = Cluster(one.store, one.members, elections)
            told: list[tuple[str, bool]] = []
            part.moved.append(lambda name, part=part, told=told: told.append((name, part.may_append(name))))  # type: ignore[misc]
            async with open_broker(files, cluster=part) as broker:
                assert broker.cluster is part
                log = part.open_log(LOG, DIRECTORY, LogConfig())
                if round_number == 1:
                    assert part.leader_of(LOG) == (None, 0)
                    assert not part.may_append(LOG)
                    state = LogState(replicas=(1,), isr=((1, one.members.epoch),))
                    await one.store.change([], [(log_key(b"", LOG), encode(state))])
                else:
                    assert log.high_watermark == log.log_end_offset == 10, "readers have what they had"
                await until(lambda part=part: part.may_append(LOG))  # type: ignore[misc]
                assert part.leader_of(LOG) == (1, round_number)
                await until(lambda told=told: told[-1] == (LOG, True))  # type: ignore[misc]
                log.append(batch_of(0, 10, 10))
                log.request_sync()
                assert log.high_watermark == 10 * (round_number - 1)
                broker.end_turn()
                with trio.fail_after(5):
                    await log.wait_committed(10 * round_number)
                part.replicas.registered(0)
                assert told[-1] == (LOG, False)
                assert not part.may_append(LOG), "who is not registered leads nothing"
            assert log.closed
            listeners = [getattr(told, "__self__", None) for told in (*one.store.listeners, *one.members.listeners)]
            assert elections in listeners, "who was there before stays"
            assert part not in listeners
            assert part.states not in listeners
            assert high_watermarks.load(files, "") == {LOG: 10 * round_number}
            one.kill()


async def start_again(nursery: trio.Nursery, model: EtcdModel, files: Files) -> tuple[One, Elections]:
    """A broker that has been a member before, with nothing lost."""
    files.make_directory("")
    Trust(files, "boot").begun(())
    return await start(nursery, model, 1, files)


@pytest.mark.parametrize(
    ("saved", "there", "lost"),
    [({LOG: 10}, True, True), ({LOG: 0}, True, False), ({LOG: 0}, False, True), ({}, False, False)],
    ids=["lacks records", "is whole", "is gone", "is new"],
)
async def test_a_log_that_lacks_what_may_have_been_committed_is_lost(
    saved: dict[str, int], there: bool, lost: bool
) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        files = MemoryFiles()
        high_watermarks.save(files, "", saved)
        if there:
            files.make_directory(DIRECTORY)
        one, elections = await start_again(nursery, model, files)
        part = Cluster(one.store, one.members, elections)
        async with open_broker(files, cluster=part):
            part.open_log(LOG, DIRECTORY, LogConfig(fsync="never"))
            assert part.replicas.by_name[LOG].lost is lost
            part.close_log(LOG)
            assert LOG not in part.replicas.by_name
        one.kill()


async def test_a_log_that_could_not_be_opened_may_turn_out_to_be_lost() -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        files = MemoryFiles()
        high_watermarks.save(files, "", {LOG: 10, "gone": 10})
        one, elections = await start_again(nursery, model, files)
        await one.store.change([], [(log_key(b"", LOG), encode(LogState(replicas=(1, 2), isr=((2, 7),))))])
        part = Cluster(one.store, one.members, elections)
        async with open_broker(files, cluster=part):
            part.begun()
            assert (part.lost, part.unopened) == ([], [LOG])
        assert high_watermarks.load(files, "") == {LOG: 10}, "what is known of it stays"
        part = Cluster(one.store, one.members, elections)
        async with open_broker(files, cluster=part):
            part.begun()
            part.open_log(LOG, DIRECTORY, LogConfig())
            assert (part.lost, part.unopened) == ([LOG], [])
        one.kill()


@pytest.mark.parametrize("how", ["gone", "damaged", "there"])
@pytest.mark.parametrize("known", ["in the ISR", "in the ELR", "away"])
async def test_a_log_without_a_directory_is_lost_where_its_watermark_is_too(how: str, known: str) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        files = MemoryFiles()
        high_watermarks.save(files, "", {})
        one, elections = await start_again(nursery, model, files)
        save_age(files, Age(1, "token"))
        isr, elr = ((2, 7), (1, 7)) if known == "in the ISR" else ((2, 7),), ((1, 7),) if known == "in the ELR" else ()
        state = LogState(replicas=(1, 2), isr=isr, elr=elr)
        await one.store.change([], [(log_key(b"", LOG), encode(state))])
        if how == "gone":
            files.remove(high_watermarks.FILE_NAME)
        elif how == "damaged":
            files.open(high_watermarks.FILE_NAME).truncate(1)
        part = Cluster(one.store, one.members, elections)
        async with open_broker(files, cluster=part):
            part.open_log(LOG, DIRECTORY, LogConfig())
            part.begun()
            assert part.lost == ([LOG] if how != "there" and known != "away" else [])
            assert LOG in high_watermarks.load(files, ""), "it is there before anybody is told that the broker is"
            part.open_log("new", "topics/new", LogConfig())
            assert "new" not in part.lost
        one.kill()


async def test_what_is_gone_is_written_down_before_its_directory_is_made_again() -> None:
    def fail(operation: str, path: str) -> None:
        if operation == "open" and path.startswith(DIRECTORY):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    model = EtcdModel()
    async with cluster(model) as nursery:
        files = FaultyFiles(MemoryFiles())
        high_watermarks.save(files, "", {LOG: 0})
        one, elections = await start_again(nursery, model, files)
        await one.store.change([], [(log_key(b"", LOG), encode(LogState(replicas=(1, 2), isr=((2, 7),))))])
        part = Cluster(one.store, one.members, elections)
        async with open_broker(files, cluster=part):
            files.hook = fail
            with pytest.raises(OSError, match="log-start"):
                part.open_log(LOG, DIRECTORY, LogConfig())
            files.hook = None
            assert files.exists(DIRECTORY)
            part.begun()
            assert part.lost == [LOG]
            part.open_log(LOG, DIRECTORY, LogConfig())
            assert part.lost == [LOG]
        one.kill()


async def test_damage_is_written_down_before_the_log_looks_well_again() -> None:
    model, settings = EtcdModel(), LogConfig(fsync="commit", recovery_bytes=1)
    async with cluster(model) as nursery:
        files = FaultyFiles(MemoryFiles())
        one, elections = await start_again(nursery, model, files)
        await one.store.change([], [(log_key(b"", LOG), encode(LogState(replicas=(1, 2), isr=((2, 7),))))])
        part = Cluster(one.store, one.members, elections)
        async with open_broker(files, cluster=part):
            log = part.open_log(LOG, DIRECTORY, settings)
            log.append(batch_of(0, 10, 10))
            log.flush_blocking()
            disk = killed(files.inner)
        disk.open(f"{DIRECTORY}/{0:020}.log").truncate(0)
        files = FaultyFiles(disk)
        part = Cluster(one.store, one.members, elections)
        async with open_broker(files, cluster=part):

            def refuse(operation: str, path: str) -> None:
                if path.startswith("lost-replicas"):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

            files.hook = refuse
            with pytest.raises(OSError, match="No space left"):
                part.open_log(LOG, DIRECTORY, settings)
            files.hook = None
            part.open_log(LOG, DIRECTORY, settings)
            assert part.lost == [LOG]
        one.kill()


@pytest.mark.parametrize(("fsync", "lost"), [("commit", []), ("never", [LOG])])
async def test_a_log_that_cannot_be_opened_after_a_loss_of_power(
    fsync: Literal["commit", "never"], lost: list[str]
) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        files = FaultyFiles(MemoryFiles())
        Trust(files, "the boot before").begun([])
        one, elections = await start(nursery, model, 1, files)
        await one.store.change([], [(log_key(b"", LOG), encode(LogState(replicas=(1, 2), isr=((1, 7),))))])
        part = Cluster(one.store, one.members, elections)
        async with open_broker(files, cluster=part):
            files.make_directory(DIRECTORY)
            files.open(f"{DIRECTORY}/{0:020}.log")
            files.failing["open"] = errno.EIO
            with pytest.raises(OSError, match="Input/output error"):
                part.open_log(LOG, DIRECTORY, LogConfig(fsync=fsync))
            files.failing.clear()
            part.begun()
            assert (part.lost, part.unopened) == (lost, [LOG])
            part.open_log(LOG, DIRECTORY, LogConfig(fsync=fsync))
            assert (part.lost, part.unopened) == (lost, [])
        one.kill()
