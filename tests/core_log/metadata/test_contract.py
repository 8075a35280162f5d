"""What every metadata store promises, and what etcd's does besides, on the model of etcd and on a real one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata import etcd_store
from core_log.metadata.etcd_store import LeaseLost
from core_log.metadata.store import Guard, MetadataEntry
from tests.core_log.metadata.worlds import Seen, World, world

Contract = Callable[[World], Awaitable[None]]
Run = Callable[[Contract], None]


def _run(kind: str, address: str, contract: Contract) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            async with world(kind, address) as place:
                await contract(place)

    # A log is written in threads, and a real etcd has a clock of its own.
    trio.run(main, clock=MockClock(autojump_threshold=0) if kind == "model" else None)


@pytest.fixture(params=["embedded", "model", "etcd"])
def everywhere(request: pytest.FixtureRequest) -> Run:
    address = request.getfixturevalue("etcd").address if request.param == "etcd" else ""
    return partial(_run, request.param, address)


@pytest.fixture(params=["model", "etcd"])
def on_etcd(request: pytest.FixtureRequest) -> Run:
    address = request.getfixturevalue("etcd").address if request.param == "etcd" else ""
    return partial(_run, request.param, address)


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await trio.sleep(0.01)


def test_a_key_is_created_once(everywhere: Run) -> None:
    async def contract(place: World) -> None:
        stores = [(await place.store())[0] for _ in range(4)]
        won: list[int] = []

        async def create(number: int) -> None:
            try:
                await stores[number].change([Guard(b"k", 0)], [(b"k", b"%d" % number), (b"mine", b"%d" % number)])
                won.append(number)
            except Conflict:
                found = stores[number].get(b"k")
                assert found is not None, "who lost sees who won"

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(create, number)
        assert len(won) == 1
        for store in stores:
            await store.barrier()
            assert [store.get(key).value for key in (b"k", b"mine")] == [b"%d" % won[0]] * 2

    everywhere(contract)


def test_a_swap_that_comes_too_late_is_lost(everywhere: Run) -> None:
    async def contract(place: World) -> None:
        one, other = (await place.store())[0], (await place.store())[0]
        await one.change([], [(b"k", b"1")])
        await other.barrier()
        seen = other.get(b"k")
        await one.change([Guard(b"k", one.get(b"k").mod_revision)], [(b"k", b"2")])
        for guard in (Guard(b"k", seen.mod_revision), Guard(b"k", 0), Guard(b"k", create_revision=0)):
            with pytest.raises(Conflict):
                await other.change([guard], [(b"k", b"lost"), (b"new", b"")])
            assert other.get(b"k").value == b"2"
            assert other.get(b"new") is None
        await other.change([Guard(b"k", create_revision=seen.create_revision)], [(b"k", b"3")])
        assert other.get(b"k").create_revision == seen.create_revision < other.get(b"k").mod_revision

    everywhere(contract)


def test_a_deletion_is_seen_and_what_is_made_anew_is_another(everywhere: Run) -> None:
    async def contract(place: World) -> None:
        one, other = (await place.store())[0], (await place.store())[0]
        seen = Seen(other)
        await one.change([], [(b"k", b"1"), (b"l", b"")])
        first = one.get(b"k")
        await one.change([Guard(b"k", first.mod_revision)], [(b"k", None), (b"never was", None)])
        await one.change([Guard(b"k", 0)], [(b"k", b"2")])
        await other.barrier()
        assert seen.of(b"k") == [(b"k", b"1"), (b"k", None), (b"k", b"2")]
        assert seen.of(b"l") == [(b"l", b"")], "an empty value is a value"
        again = other.get(b"k")
        assert again.create_revision == again.mod_revision > first.create_revision
        with pytest.raises(Conflict):
            await other.change([Guard(b"k", create_revision=first.create_revision)], [(b"k", b"lost")])

    everywhere(contract)


def test_revisions_come_in_order_each_as_a_whole(everywhere: Run) -> None:
    async def contract(place: World) -> None:
        one, other = (await place.store())[0], (await place.store())[0]
        seen = Seen(other)
        returned: dict[bytes, int] = {}

        async def work(store: Any, name: bytes) -> None:
            for number in range(10):
                key = b"%s%d" % (name, number)
                returned[key] = await store.change([], [(b"z" + key, b""), (b"a" + key, b"")])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, one, b"one")
            nursery.start_soon(work, other, b"other")
        await other.barrier()
        ours = [
            (revision, [entry.key for entry in entries if entry.key[:1] in (b"a", b"z")])
            for revision, entries in seen.revisions
        ]
        assert [revision for revision, _ in ours] == sorted({revision for revision, _ in ours})
        assert all(first[1:] == second[1:] and first < b"z" * 9 > second for _, (first, second) in ours)
        assert [(first[:1], second[:1]) for _, (first, second) in ours] == [(b"z", b"a")] * 20
        assert {keys[0][1:]: revision for revision, keys in ours} == returned

    everywhere(contract)


def test_what_was_changed_can_be_read_and_relied_on_here_at_once_and_there_after_a_barrier(everywhere: Run) -> None:
    async def contract(place: World) -> None:
        one, other = (await place.store())[0], (await place.store())[0]
        for number in range(20):
            revision = await one.change([], [(b"k", b"%d" % number)])
            assert one.revision >= revision
            assert one.get(b"k").value == b"%d" % number
            if number % 2:
                await other.barrier()
            else:
                await other.caught_up(revision)
            assert other.get(b"k").value == b"%d" % number
        assert dict(one.items(b"k")) == {b"k": one.get(b"k")}
        assert dict(one.items(b"l")) == {}
        await one.change([], [(b"kl", b""), (b"lk", b""), (b"k", None)])
        assert list(one.keys(b"k")) == [b"kl"]
        assert list(one.keys(b"l")) == [b"lk"]

    everywhere(contract)


def test_what_a_check_raises_has_changed_nothing(everywhere: Run) -> None:
    async def contract(place: World) -> None:
        one, _ = await place.store()
        await one.change([], [(b"k", b"1")], check=lambda: None)
        with pytest.raises(ZeroDivisionError):
            await one.change([], [(b"k", None), (b"l", b"")], check=lambda: 1 // 0)
        assert (one.get(b"k").value, one.get(b"l")) == (b"1", None)

    everywhere(contract)


def test_as_much_as_one_change_takes(on_etcd: Run) -> None:
    async def contract(place: World) -> None:
        one, _ = await place.store()
        keys = [b"%d" % number for number in range(one.puts_max)]
        await one.change([Guard(key, 0) for key in keys], [(key, b"") for key in keys])
        assert {key for key, _ in one.items()} == {*keys, b"clock"}

    on_etcd(contract)


def test_a_watch_goes_on_where_it_was(on_etcd: Run) -> None:
    async def contract(place: World) -> None:
        (one, _), (other, line) = await place.store(), await place.store()
        seen = Seen(other)
        for number in range(12):
            if number in (3, 8):
                line.cut()
            if number in (5, 11):
                line.join()
            await one.change([], [(b"k", b"%d" % number if number % 4 else None), (b"l", b"%d" % number)])
        await until(lambda: other.get(b"l") == one.get(b"l"))
        assert seen.of(b"l") == [(b"l", b"%d" % number) for number in range(12)]
        assert [value for _, value in seen.of(b"k")] == [
            b"%d" % number if number % 4 else None for number in range(1, 12)
        ]

    on_etcd(contract)


def test_a_watch_that_was_compacted_reads_everything_and_applies_the_difference(
    on_etcd: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "PAGE_KEYS", 7)

    async def contract(place: World) -> None:
        (one, _), (other, line) = await place.store(), await place.store()
        await one.change([], [(b"made anew", b"1"), (b"as it was", b"")])
        await one.change([], [(b"goes", b"")])
        await one.change([], [(b"changes", b"1")])
        await other.barrier()
        seen, as_it_was = Seen(other), other.get(b"as it was")
        line.cut()
        await one.change([], [(b"goes", None), (b"made anew", None)])
        await one.change([], [(b"changes", b"2"), (b"passes", b"")])
        await one.change([], [(b"passes", None), (b"made anew", b"2")])
        for number in range(20):
            await one.change([], [(b"new %d" % number, b"%d" % number)])
        await place.compact()
        line.join()
        await until(lambda: other.get(b"new 19"))
        assert dict(other.items()) == dict(one.items())
        assert other.get(b"as it was") is as_it_was
        ((revision, entries),) = seen.revisions
        assert revision == other.revision
        assert [entry[:2] for entry in entries if entry.key != b"clock"] == [
            (b"goes", None), (b"made anew", None), (b"changes", b"2"), (b"made anew", b"2"),
            *((b"new %d" % number, b"%d" % number) for number in range(20)),
        ]  # fmt: skip
        await one.change([], [(b"later", b"")])
        await other.barrier()
        assert other.get(b"later") == one.get(b"later"), "it follows again"

    on_etcd(contract)


def test_all_pages_are_of_one_revision(on_etcd: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_store, "PAGE_KEYS", 3)

    async def contract(place: World) -> None:
        one, _ = await place.store()
        for number in range(10):
            await one.change([], [(b"%d" % number, b"0")])
        last = 0

        async def write() -> None:
            nonlocal last
            while True:
                await one.change([], [(b"0", b"%d" % (last + 1)), (b"9", b"%d" % (last + 1))])
                last += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for _ in range(5):
                other, _ = await place.store()
                assert other.get(b"0").value == other.get(b"9").value
            nursery.cancel_scope.cancel()

    on_etcd(contract)


def test_what_is_under_a_lease_ends_with_it_after_its_owner_knows(on_etcd: Run) -> None:
    async def contract(place: World) -> None:
        (one, line), (other, _) = await place.store(lease_ttl_s=2), await place.store()
        lost: list[float] = []
        one.lease_lost.append(lambda: lost.append(trio.current_time()))
        await one.change([], [(b"stays", b"")])
        await one.change([Guard(b"here", 0)], [(b"here", b"")], lease=True)
        assert one.lease_id
        await trio.sleep(2.6)
        assert one.lease_deadline > trio.current_time(), "it is renewed"
        await other.barrier()
        assert other.get(b"here") is not None
        line.cut()
        cut_at = trio.current_time()
        await until(lambda: other.get(b"here") is None)
        assert one.lease_deadline < trio.current_time(), "here it ends first"
        assert cut_at + 1 <= trio.current_time() < cut_at + 10
        assert other.get(b"stays") is not None
        assert not lost
        old = one.lease_id
        line.join()
        await until(lambda: lost)
        assert one.lease_id == 0, "a renewal that comes too late renews nothing"
        await until(lambda: one.get(b"here") is None)
        await one.change([Guard(b"here", 0)], [(b"here", b"again")], lease=True)
        assert one.lease_id not in (0, old)
        await other.barrier()
        assert other.get(b"here").value == b"again"

    on_etcd(contract)


def test_a_lease_that_is_given_up_takes_everything_along_at_once(on_etcd: Run) -> None:
    async def contract(place: World) -> None:
        (one, _), (other, _) = await place.store(), await place.store()
        await one.change([], [(b"here", b"")], lease=True)
        await one.change([], [(b"there", b"")], lease=True)
        await other.revoke(one.lease_id)
        await other.revoke(one.lease_id)
        await other.barrier()
        await until(lambda: not dict(other.items(b"here")) and not dict(other.items(b"there")))
        with pytest.raises(LeaseLost):
            await one.change([], [(b"late", b"")], lease=True)
        assert one.lease_id == 0
        assert one.get(b"late") is None

    on_etcd(contract)


def test_a_change_whose_answer_is_lost_is_made_once(on_etcd: Run) -> None:
    async def contract(place: World) -> None:
        (one, line), (other, _) = await place.store(), await place.store()
        seen = Seen(other)
        line.lose_answers = 1
        await one.change([Guard(b"k", 0)], [(b"k", b"1")])
        line.lose_answers = 2
        await one.change([Guard(b"k", one.get(b"k").mod_revision)], [(b"k", b"2")])
        line.lose_answers = 1
        await one.change([Guard(b"k", one.get(b"k").mod_revision)], [(b"k", None)])
        await other.barrier()
        assert seen.of(b"k") == [(b"k", b"1"), (b"k", b"2"), (b"k", None)]
        line.lose_answers = 1
        with pytest.raises(MetadataUnavailable, match="the change may have been made"):
            await one.change([], [(b"unguarded", b"")])
        await other.barrier()
        assert seen.of(b"unguarded") == [(b"unguarded", b"")], "it is not sent twice"

    on_etcd(contract)


def test_an_etcd_that_is_out_of_reach_refuses_and_is_followed_again(on_etcd: Run, monkeypatch: Any) -> None:
    async def contract(place: World) -> None:
        one, line = await place.store()
        line.cut()
        patient_s = etcd_store._TIMEOUT_S
        monkeypatch.setattr(etcd_store, "_TIMEOUT_S", 0.25)
        for act in (
            one.change([], [(b"k", b"")]),
            one.change([], [(b"k", b"")], lease=True),
            one.barrier(),
            one.revoke(5),
        ):
            with pytest.raises(MetadataUnavailable):
                await act
        with pytest.raises(MetadataUnavailable):
            await one.caught_up(one.revision + 1_000_000)
        line.join()
        monkeypatch.setattr(etcd_store, "_TIMEOUT_S", patient_s)
        await one.change([Guard(b"k", 0)], [(b"k", b"")])
        assert isinstance(one.get(b"k"), MetadataEntry)

    on_etcd(contract)
