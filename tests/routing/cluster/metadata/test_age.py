"""Copies of a member's data directory from before, which lack what was confirmed since; on the model of etcd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from core_log.files import FaultyFiles, MemoryFiles
from routing.cluster.metadata.age import PATH, Age, load_age, save_age
from routing.cluster.metadata.joining import ClusterRefused
from routing.cluster.metadata.members import AGE_INTERVAL_S
from routing.cluster.metadata.records import DirectoryRecord, decode, directory_key
from routing.cluster.metadata.trust import Trust
from tests.routing.cluster.metadata.test_members import One, cluster, refused, until
from tests.simulation.etcd_model import EtcdModel

OLDER = "the data directory is an older copy of that of broker 1 of cluster 'c' (age "


class Killed(Exception):
    """The process ends here."""


def known(one: One) -> Age:
    entry = one.store.get(directory_key(1))
    assert entry is not None
    return decode(entry.value, DirectoryRecord).age


async def stop(one: One) -> None:
    await one.members.leave()
    one.kill()


@pytest.mark.parametrize("since", ["a start", "a stop", "a while"])
async def test_what_was_copied_before_is_refused(autojump_clock: MockClock, since: str) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)
        copy = one.files.crash()
        if since == "a stop":
            await stop(one)
        elif since == "a while":
            await trio.sleep(AGE_INTERVAL_S + 1)
            one.kill()
        else:
            one.kill()
            (await One(model, 1, one.files.crash()).start(nursery)).kill()
        told = await refused(nursery, One(model, 1, copy))
        assert told.startswith(OLDER)
        assert "--accept-old-data" in told
        assert load_age(copy).number == 1, "nothing was changed"
        await One(model, 1, one.files if since != "a start" else copy, accept_old_data=since == "a start").start(
            nursery
        )


async def test_of_two_copies_that_are_begun_with_one_goes_on(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)
        one.kill()
        copies = [One(model, 1, one.files.crash()) for _ in range(2)]
        told: list[str] = []

        async def begin(copy: One) -> None:
            try:
                await copy.start(nursery)
            except ClusterRefused as error:
                told.append(str(error))

        async with trio.open_nursery() as starting:
            for copy in copies:
                starting.start_soon(begin, copy)
        assert len(told) == 1
        assert told[0].startswith(OLDER)
        assert [load_age(copy.files).number for copy in copies] == [2, 2]
        (winner,) = [copy for copy in copies if copy.members.epoch]
        assert load_age(winner.files) == known(winner)


async def test_an_honest_directory_is_never_an_older_one(autojump_clock: MockClock) -> None:
    """Whatever write is the last: the disk's, or etcd's with or without its answer."""
    model = EtcdModel()
    async with cluster(model) as nursery:
        files, killed = MemoryFiles(), 0
        for broken in range(24):
            disk = FaultyFiles(files)
            one = One(model, 1, disk, stands=False)  # type: ignore[arg-type]
            _break(one, disk, broken)
            try:
                await one.start(nursery)
                await one.members.leave()
            except Killed:
                killed += 1
            one.kill()
            files = files.crash()
        last = await One(model, 1, files).start(nursery)
        assert load_age(files) == known(last)
        assert killed > 12


def _break(one: One, disk: FaultyFiles, broken: int) -> None:
    """End the process at one of its writes, before or after it."""
    after, at = broken % 2, broken // 2
    calls = 0
    change, rename = one.store.change, disk.rename

    def counted() -> bool:
        nonlocal calls
        calls += 1
        return calls == at + 1

    async def changing(*arguments: Any, **options: Any) -> int:
        ends = counted()
        if ends and not after:
            raise Killed
        revision = await change(*arguments, **options)
        if ends:
            raise Killed
        return revision

    def renaming(source: str, target: str) -> None:
        ends = counted()
        if ends and not after:
            raise Killed
        rename(source, target)
        if ends:
            raise Killed

    one.store.change = changing  # type: ignore[method-assign]
    disk.rename = renaming  # type: ignore[method-assign]


async def test_a_member_of_a_version_without_ages_gets_one(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)
        await one.store.change(
            [], [(directory_key(1), msgspec.msgpack.encode({"directory_id": one.members.identity.directory_id}))]
        )
        one.kill()
        one.files.remove(PATH)
        one.files.sync_directory("")
        before = one.files.crash()
        again = await One(model, 1, one.files).start(nursery)
        assert (known(again).number, load_age(one.files)) == (1, known(again))
        again.kill()
        assert "(age none, etcd knows 1-" in await refused(nursery, One(model, 1, before))


async def test_old_data_that_is_accepted_is_lost(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)
        copy = one.files.crash()
        await stop(one)
        again = await One(model, 1, copy, accept_old_data=True).start(nursery)
        assert Trust(copy, "boot").is_lost("home-0", synced=True)
        Trust(copy, "boot").begun([])
        await stop(again)
        again = await One(model, 1, copy, accept_old_data=True).start(nursery)
        assert not Trust(copy, "boot").is_lost("home-0", synced=True), "it is the latest now"
        await stop(again)
        assert (await refused(nursery, One(model, 1, one.files))).startswith(OLDER)


async def test_an_etcd_that_was_put_back_is_seen_by_who_begins(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)
        two = await One(model, 2).start(nursery)
        await stop(one)
        backup = model.revision
        await stop(await One(model, 1, one.files).start(nursery))
        await trio.sleep(AGE_INTERVAL_S * 2)
        age = load_age(two.files).number
        model.restore(backup)
        await until(lambda: two.members.epoch)
        told = await refused(nursery, One(model, 1, one.files))
        assert told.startswith("etcd has an older state than the data directory of broker 1 of cluster 'c' (age 4-")
        await trio.sleep(AGE_INTERVAL_S + 1)
        entry = two.store.get(directory_key(2))
        assert entry is not None
        assert decode(entry.value, DirectoryRecord).age.number > age, "who runs goes on with its directory"
        again = await One(model, 1, one.files, accept_old_data=True).start(nursery)
        assert Trust(one.files, "boot").is_lost("home-0", synced=True)
        assert known(again) == load_age(one.files)
        assert known(again).number == 5


async def test_who_runs_while_etcd_is_put_back_registers_anew(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        await One(model, 2).start(nursery)
        one = await One(model, 1).start(nursery)
        await stop(one)
        backup = model.revision
        one = await One(model, 1, one.files).start(nursery)
        await trio.sleep(AGE_INTERVAL_S * 3)
        model.restore(backup)
        del model.leases[one.store.lease_id]  # it did not know of that
        one.store._lost(one.store.lease_id)  # and says so before anything is read
        await until(lambda: one.members.epoch)
        await trio.sleep(AGE_INTERVAL_S * 2)
        assert known(one) == load_age(one.files)


async def test_a_stop_at_the_moment_when_it_is_raised_anyway(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)

        async def slowly(call: Callable[..., Any], *arguments: Any) -> Any:
            await trio.sleep(1)
            return call(*arguments)

        one.members._offload = slowly
        await trio.sleep(AGE_INTERVAL_S + 0.5)
        await stop(one)
        assert known(one) == load_age(one.files)
        await One(model, 1, one.files).start(nursery)


async def test_an_age_that_cannot_be_noted_is_noted_later(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    async with cluster(model) as nursery:
        one = await One(model, 1).start(nursery)
        one.transport.cut_off = True
        await trio.sleep(AGE_INTERVAL_S * 3)
        assert load_age(one.files).number <= 2, "one further than what etcd knows, and no more"
        one.transport.cut_off = False
        await trio.sleep(AGE_INTERVAL_S * 2)
        assert known(one) == load_age(one.files)
        assert known(one).number > 2


def test_an_age_that_is_damaged_is_none(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    files.make_directory("")
    save_age(files, Age(7, "t"))
    assert load_age(files) == Age(7, "t")
    files.open(PATH, create=False).pwritev([b"\xff"], 9)
    assert load_age(files) == Age()
    assert [record.getMessage() for record in caplog.records] == ["checkpoint age is damaged and ignored"]
