"""What the store does when members of etcd fail, each in its way; on the model, in virtual time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from core_log.errors import Conflict, MetadataLost, MetadataUnavailable
from core_log.metadata import etcd_wire as wire
from core_log.metadata.etcd_client import EtcdClient
from core_log.metadata.etcd_store import CLOCK, EtcdStore
from core_log.metadata.histories import Anchor
from core_log.metadata.store import Guard
from tests.core_log.metadata.worlds import Seen
from tests.simulation.etcd_model import EtcdModel, ModelTransport

PREFIX = b"/millrace/test/"


@asynccontextmanager
async def running(model: EtcdModel, *stores: EtcdStore) -> AsyncIterator[None]:
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.run)
            for store in stores:
                await nursery.start(store.run)
            yield
            nursery.cancel_scope.cancel()


def store_of(model: EtcdModel, **options: str) -> EtcdStore:
    return EtcdStore(EtcdClient(ModelTransport(model), **options), PREFIX)


RENEWED = ["the lease could not be renewed", "the lease is renewed again"]


async def until(store: EtcdStore, key: bytes, value: bytes, seconds: float) -> None:
    with trio.fail_after(seconds):
        while (entry := store.get(key)) is None or entry.value != value:
            await trio.sleep(0.05)


@pytest.mark.parametrize("fault", ["down", "mute", "cut"])
async def test_a_member_that_fails_is_left_for_another(fault: str, autojump_clock: MockClock) -> None:
    model = EtcdModel(3)
    one, other = store_of(model), store_of(model)
    async with running(model, one, other):
        await one.change([], [(b"k", b"0")], lease=True)
        for member in (0, 1, 2, 0):
            model.fault(member, **{fault: True})
            before = trio.current_time()
            await one.change([], [(b"new", b"")], lease=True) if fault == "down" else None
            await one.change([Guard(b"k", one.get(b"k").mod_revision)], [(b"k", b"%d" % (member + 1))])  # type: ignore[union-attr]
            await until(other, b"k", b"%d" % (member + 1), 5)
            assert trio.current_time() - before < 5
            model.fault(member, **{fault: False})
        assert one.get(b"new") is not None or fault != "down"
        assert one.lease_id
        assert one.lease_deadline > trio.current_time()


async def test_that_a_lease_is_renewed_again_is_said(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model = EtcdModel(1)
    store = store_of(model)
    async with running(model, store):
        await store.change([], [(b"k", b"0")], lease=True)
        for times in (1, 2):
            model.fault(0, down=True)
            await trio.sleep(1.5)
            model.fault(0, down=False)
            await trio.sleep(3)
            said = [line for line in caplog.messages if "the lease" in line]
            assert [line.partition(":")[0] for line in said] == RENEWED * times


async def test_a_member_that_has_no_vote_yet_is_left_for_another(autojump_clock: MockClock) -> None:
    model = EtcdModel(3, users={"one": "secret"})
    store = store_of(model, user="one", password="secret")
    model.fault(0, learner=True)
    async with running(model, store):
        await store.change([], [(b"k", b"0")], lease=True)
        # The others have no quorum for a while, so it is asked, too, once more.
        model.fault(1, cut=True)
        model.fault(2, cut=True)
        await trio.sleep(1.5)
        store._client.member = 0
        model.fault(1, cut=False)
        model.fault(2, cut=False)
        store._client.forget_token()
        before = trio.current_time()
        await store.change([Guard(b"k", store.get(b"k").mod_revision)], [(b"k", b"1")])  # type: ignore[union-attr]
        await store.barrier()
        assert trio.current_time() - before < 3
        assert not store.refusal
        await trio.sleep(5)
        assert store.lease_id
        assert store.lease_deadline > trio.current_time()


async def test_a_watch_that_is_behind_is_left_for_another_member(autojump_clock: MockClock) -> None:
    model = EtcdModel(2)
    one, other = store_of(model), store_of(model)
    async with running(model, one, other):
        seen = Seen(other)
        model.fault(0, lag_s=60)
        one._client.member = 1
        one._watching.cancel()
        await trio.sleep(1)
        for number in range(5):
            await one.change([], [(b"k", b"%d" % number)])
        await until(other, b"k", b"4", 5)
        assert seen.of(b"k") == [(b"k", b"%d" % number) for number in range(5)]


async def test_a_watch_that_has_much_to_bring_is_given_the_time(autojump_clock: MockClock) -> None:
    model = EtcdModel(2)
    one, other = store_of(model), store_of(model)
    keys = [b"%03d" % number for number in range(100)]
    async with running(model, one, other):
        transport, seen = other._client.transport, Seen(other)
        transport.cut_off = True  # type: ignore[attr-defined]
        for number in range(20):
            await one.change([], [(key, b"%d" % number) for key in keys])
        model.event_s = 0.01
        transport.cut_off = False  # type: ignore[attr-defined]
        watches = model.calls.count("/v3/watch")
        await until(other, keys[-1], b"19", 30)
        assert model.calls.count("/v3/watch") - watches < 3
        assert all(len(entries) == len(keys) + 1 for _, entries in seen.revisions)
        assert seen.of(b"0") == [(key, b"%d" % number) for number in range(20) for key in keys]


def full(body: object) -> dict[str, object]:
    """What an etcd answers that has no room."""
    raise wire.EtcdError(8, "etcdserver: mvcc: database space exceeded")


async def test_why_etcd_takes_no_changes_is_known_until_it_takes_one(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = EtcdModel(1)
    store = store_of(model)

    async with running(model, store):
        await store.change([], [(b"k", b"0")])
        for why in (full, None):
            with monkeypatch.context() as patch:
                if why is not None:
                    patch.setitem(store._client.transport._answers, wire.TXN, why)  # type: ignore[attr-defined]
                    with pytest.raises(MetadataUnavailable, match=r"etcd refuses: .*space exceeded"):
                        await store.change([], [(b"k", b"1")])
                    assert "database space exceeded" in store.refusal
                else:
                    with pytest.raises(Conflict):
                        await store.change([Guard(b"k", 0)], [(b"k", b"1")])
                    assert not store.refusal


async def test_an_etcd_that_grants_no_lease_refuses_it_and_is_not_called_silent(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = EtcdModel(1)
    store = store_of(model)

    async with running(model, store):
        with monkeypatch.context() as patch:
            patch.setitem(store._client.transport._answers, wire.LEASE_GRANT, full)  # type: ignore[attr-defined]
            with pytest.raises(MetadataUnavailable, match=r"etcd refuses: .*space exceeded"):
                await store.change([], [(b"k", b"1")], lease=True)
        assert "database space exceeded" in store.refusal
        await store.change([], [(b"k", b"1")], lease=True)
        assert not store.refusal


async def test_without_a_quorum_changes_are_refused_and_nothing_is_lost(autojump_clock: MockClock) -> None:
    model = EtcdModel(3)
    one = store_of(model)
    async with running(model, one):
        await one.change([], [(b"k", b"0")], lease=True)
        for member in range(3):
            model.fault(member, cut=True)
        with pytest.raises(MetadataUnavailable, match="etcd does not answer"):
            await one.change([Guard(b"k", one.get(b"k").mod_revision)], [(b"k", b"1")])  # type: ignore[union-attr]
        with pytest.raises(MetadataUnavailable):
            await one.barrier()
        assert one.get(b"k").value == b"0"  # type: ignore[union-attr]
        assert one.lease_deadline < trio.current_time()
        for member in range(3):
            model.fault(member, cut=False)
        await trio.sleep(2)
        await one.change([], [(b"k", b"2")])
        await until(one, b"k", b"2", 3)


async def test_a_new_leader_of_etcd_grants_every_lease_anew(autojump_clock: MockClock) -> None:
    model = EtcdModel(1)
    one, other = store_of(model), store_of(model)
    async with running(model, other):
        async with trio.open_nursery() as nursery:
            await nursery.start(one.run)
            await one.change([], [(b"here", b"")], lease=True)
            await trio.sleep(2)
            deadline = one.lease_deadline
            nursery.cancel_scope.cancel()
        await trio.sleep(2)
        model.change_leader()
        await trio.sleep(2.5)
        assert other.get(b"here") is not None
        assert deadline < trio.current_time(), "its owner had given up before"
        await trio.sleep(1.5)
        assert other.get(b"here") is None


async def test_a_user_and_tokens_that_end(autojump_clock: MockClock) -> None:
    model = EtcdModel(users={"u": "p"})
    one = store_of(model, user="u", password="p")
    async with running(model, one):
        await one.change([], [(b"k", b"0")], lease=True)
        for number in range(3):
            model.tokens.clear()
            await one.change([], [(b"k", b"%d" % number)])
        model.tokens.clear()
        one._watching.cancel()
        await one.change([], [(b"k", b"9")])
        await until(one, b"k", b"9", 3)
        await trio.sleep(5)
        assert one.lease_deadline > trio.current_time()
        watches = model.calls.count("/v3/watch")
        for _ in range(5):
            model.tokens.clear()
            await trio.sleep(5)
        assert model.calls.count("/v3/watch") == watches, "a token that has ended is no reason to leave the member"
        asked = model.calls.count("/v3/auth/authenticate")
        await trio.sleep(60)
        assert model.calls.count("/v3/auth/authenticate") == asked, "one token serves as long as it lives"
    for wrong in ({"user": "u", "password": "no"}, {}):
        with pytest.raises(MetadataUnavailable, match=r"authentication failed|user name is empty"):
            await store_of(model, **wrong).run()


@pytest.mark.parametrize("client_cert_auth", [False, True])
async def test_users_are_enabled_and_disabled_under_brokers_that_have_one(
    client_cert_auth: bool, autojump_clock: MockClock
) -> None:
    model = EtcdModel(client_cert_auth=client_cert_auth)
    store = store_of(model, user="u", password="p")
    async with running(model, store):
        await store.change([], [(b"k", b"0")], lease=True)
        model.users["u"] = "p"
        await store.change([], [(b"k", b"1")])
        await trio.sleep(5)
        assert model.calls.count("/v3/auth/authenticate") == 2, "once, and once they were enabled"
        model.users.clear()
        store._client.forget_token()
        await store.barrier()
        model.users["u"] = "p"
        store._watching.cancel()
        await trio.sleep(5)
        assert store.lease_deadline > trio.current_time()
        await store.change([], [(b"k", b"1")])
        model.users.clear()
        model.tokens.clear()
        store._client.forget_token()
        await store.change([], [(b"k", b"2")])
        await trio.sleep(5)
        assert store.lease_deadline > trio.current_time()
        assert model.calls.count("/v3/watch") < 4


async def test_a_password_that_is_another_one_now_is_not_tried_again_and_again(autojump_clock: MockClock) -> None:
    model = EtcdModel(users={"m": "one"})
    store = store_of(model, user="m", password="one")
    async with running(model, store):
        await store.change([], [(b"k", b"0")], lease=True)
        model.users["m"] = "two"
        model.tokens.clear()
        store._watching.cancel()
        del model.calls[:]
        await trio.sleep(30)
        assert 5 < model.calls.count(wire.AUTHENTICATE) <= 31
        store._client._password = "two"
        await until(store, b"k", b"0", 5)
        await trio.sleep(2)
        del model.calls[:]
        model.tokens.clear()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(store.change, [], [(b"k%d" % number, b"")])
        assert model.calls.count(wire.AUTHENTICATE) == 1


async def test_an_etcd_that_was_put_back_to_a_backup_is_believed(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    model = EtcdModel()
    one = store_of(model)
    async with running(model, one):
        revision = await one.change([], [(b"k", b"0"), (b"l", b"0")])
        await one.change([], [(b"k", b"1"), (b"new", b"")])
        await one.change([], [(b"l", None)])
        seen = Seen(one)
        model.restore(revision)
        await until(one, b"k", b"0", 5)
        assert seen.of(b"new") == [(b"new", None)]
        assert one.get(b"l").value == b"0"  # type: ignore[union-attr]
        assert any(record.levelno == logging.ERROR for record in caplog.records)
        await one.change([], [(b"k", b"2")])
        await until(one, b"k", b"2", 5)


@pytest.mark.parametrize("how", ["wiped", "removed", "another", "another at the same revision"])
async def test_an_etcd_without_the_anchor_is_not_believed(how: str, autojump_clock: MockClock) -> None:
    model = EtcdModel()
    empty = model.revision
    one = EtcdStore(EtcdClient(ModelTransport(model)), PREFIX, anchor=Anchor(b"meta", lambda value: value[:1]))
    with pytest.RaisesGroup(pytest.RaisesExc(MetadataLost, match="/millrace/test/"), flatten_subgroups=True):
        async with running(model, one):
            await one.change([], [(b"meta", b"1 is made"), (b"k", b"0")])
            if how.startswith("another"):
                await one.change([], [(b"meta", b"1 is ready")])
            await one.change([], [(b"k", b"1")])
            seen = Seen(one)
            if how == "removed":
                model.txn(wire.txn([], [(PREFIX + b"k", None), (PREFIX + b"meta", None)], 0))
            else:
                model.restore(empty)
            if how == "another":
                model.revision = 100  # further than before
            if how.startswith("another"):
                model.txn(wire.txn([], [(PREFIX + b"meta", b"2 is ready"), (PREFIX + CLOCK, b"")], 0))
            await trio.sleep(60)
    assert not seen.of(b"k")
    assert one.get(b"k").value == b"1"  # type: ignore[union-attr]


async def test_what_is_told_of_everything_read_anew_says_so(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    one = store_of(model)
    async with running(model, one):
        told: dict[bytes, bool] = {}
        one.listeners.append(lambda _, entries: told.update((entry.key, one.reads_anew) for entry in entries))
        revision = await one.change([], [(b"k", b"")])
        await one.change([], [(b"new", b"")])
        await one.change([], [(b"k", None)])
        assert (told[b"k"], told[b"new"]) == (False, False)
        model.restore(revision)
        await until(one, b"k", b"", 5)
        assert (told[b"k"], told[b"new"]) == (True, True)


async def test_who_lost_an_answer_and_was_overtaken_knows_whether_it_was_made(autojump_clock: MockClock) -> None:
    model = EtcdModel(2)
    one, other = store_of(model), store_of(model)
    async with running(model, one, other):
        await one.change([], [(b"k", b"0")])
        await other.barrier()

        async def overtake(expected: bytes) -> None:
            await trio.sleep(0.05)
            other._client.member = 1
            assert other.get(b"k").value == expected  # type: ignore[union-attr]
            await other.change([], [(b"k", b"2")])

        async with trio.open_nursery() as nursery:
            model.lose_answers = 1
            nursery.start_soon(overtake, b"1")
            revision = await one.change([Guard(b"k", one.get(b"k").mod_revision)], [(b"k", b"1")])  # type: ignore[union-attr]
        assert one.get(b"k").value == b"2"  # type: ignore[union-attr]
        assert one.get(b"k").mod_revision > revision  # type: ignore[union-attr]
        async with trio.open_nursery() as nursery:
            one._client.member = 0
            model.fault(0, mute=True)
            nursery.start_soon(overtake, b"2")
            with pytest.raises(Conflict):
                await one.change([Guard(b"k", one.get(b"k").mod_revision)], [(b"k", b"1")])  # type: ignore[union-attr]
        assert one.get(b"k").value == b"2"  # type: ignore[union-attr]


async def test_barriers_that_are_asked_for_at_once_share_their_reads(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    one, other = store_of(model), store_of(model)
    async with running(model, one, other):
        before = model.calls.count("/v3/kv/range")

        async def look(number: int) -> None:
            await trio.sleep(number / 10_000)
            await one.change([], [(b"k%d" % number, b"")])
            await other.barrier()
            assert other.get(b"k%d" % number) is not None

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(look, number)
        assert model.calls.count("/v3/kv/range") - before <= 12


async def test_nobody_is_told_of_a_watch_that_fails_all_the_time_more_than_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    model = EtcdModel()
    one = store_of(model)
    async with running(model, one):
        await one.change([], [(b"k", b"0")], lease=True)
        caplog.clear()
        model.fault(0, down=True)
        before = len(model.calls)
        await trio.sleep(600 - 20)
        assert 1 <= len(caplog.records) <= 4
        assert len(model.calls) - before < 580 * 5


@pytest.mark.parametrize("since", ["a change", "others' changes"])
async def test_a_backup_is_seen_though_its_revision_has_moved_on(since: str, autojump_clock: MockClock) -> None:
    model = EtcdModel()
    one = store_of(model)
    async with running(model, one):
        revision = await one.change([], [(b"k", b"0")])
        lost = await one.change([], [(b"k", b"1")])
        model.restore(revision)
        if since == "a change":
            model.txn(wire.txn([], [(PREFIX + b"k", b"2"), (PREFIX + CLOCK, b"other.1")], 0))
            assert model.revision == lost
        else:
            for _ in range(5):
                model.txn(wire.txn([], [(b"/others/k", b"")], 0))
        await until(one, b"k", b"2" if since == "a change" else b"0", 10)


async def test_a_backup_is_seen_though_more_has_been_put_since_than_before(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    one = store_of(model)
    async with running(model, one):
        revision = await one.change([], [(b"k", b"0")])
        await one.change([], [(b"k", b"1")])
        await one.change([], [(b"new", b"")])
        one._client.transport.cut_off = True  # type: ignore[attr-defined]
        model.notify()
        await trio.sleep(1)
        model.restore(revision)
        for number in range(5):
            model.txn(wire.txn([], [(PREFIX + b"other%d" % number, b""), (PREFIX + CLOCK, b"other.%d" % number)], 0))
        one._client.transport.cut_off = False  # type: ignore[attr-defined]
        await until(one, b"k", b"0", 10)
        assert one.get(b"new") is None
        assert one.get(b"other0") is not None


@pytest.mark.parametrize("why", ["put back", "compacted"])
async def test_reading_everything_may_take_longer_than_etcd_is_looked_at(why: str, autojump_clock: MockClock) -> None:
    model = EtcdModel()
    one, slow = store_of(model), store_of(model)
    async with running(model, one, slow):
        await one.change([], [(b"k", b"0")])
        for number in range(12):
            await one.change([], [(b"k%d" % number, b"")])
        await until(slow, b"k11", b"", 5)
        revision = model.revision
        await one.change([], [(b"k", b"1")])
        await until(slow, b"k", b"1", 5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("core_log.metadata.etcd_store.PAGE_KEYS", 1)
            transport = slow._client.transport
            transport.delay_s = 0.2  # type: ignore[attr-defined]
            if why == "put back":
                model.restore(revision)
                await until(slow, b"k", b"0", 60)
            else:
                transport.cut_off = True  # type: ignore[attr-defined]
                model.notify()
                await trio.sleep(1)
                for value in (b"1", b"2"):
                    await one.change([], [(b"k", value)])
                model.compact(model.revision)
                transport.cut_off = False  # type: ignore[attr-defined]
                await until(slow, b"k", b"2", 60)


async def test_nobody_waits_for_what_a_store_that_has_ended_does_not_hear(autojump_clock: MockClock) -> None:
    """A broker that ends waits for who changes something: each would wait for as long as for an etcd that is gone."""
    model = EtcdModel(1)
    store = store_of(model)
    async with running(model, store):
        revision = await store.change([], [(b"k", b"0")])
    before = trio.current_time()
    await store.caught_up(revision)
    with pytest.raises(MetadataUnavailable, match="the broker ends"):
        await store.caught_up(revision + 1)
    assert trio.current_time() == before
