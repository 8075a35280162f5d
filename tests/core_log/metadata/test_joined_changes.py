"""Changes that come together: how many transactions they are, and that each is made or refused for itself."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata.joined_changes import BYTES_MAX, SENDING_MAX, JoinedChanges, Unanswered
from core_log.metadata.store import Guard, Put
from tests.core_log.metadata.test_etcd_store import running, store_of
from tests.simulation.etcd_model import EtcdModel

TXN = "/v3/kv/txn"


class Sent:
    """Takes a second for each transaction; `refuse` are keys whose guards do not hold."""

    def __init__(self) -> None:
        self.transactions: list[list[bytes]] = []
        self.refuse: set[bytes] = set()
        self.unavailable = False

    async def send(self, guards: list[Guard], puts: list[Put]) -> int:
        self.transactions.append([key for key, _ in puts])
        revision = len(self.transactions)
        await trio.sleep(1)
        if self.unavailable:
            raise MetadataUnavailable("gone")
        if self.refuse.intersection(guard.key for guard in guards):
            raise Conflict("changed")
        return revision


async def all_at_once(changes: JoinedChanges, *wanted: tuple[list[Guard], list[Put]]) -> list[int | Exception]:
    found: list[int | Exception] = [0] * len(wanted)

    async def make(at: int) -> None:
        await trio.sleep(at / 1000)
        try:
            found[at] = await changes.make(*wanted[at])
        except (Conflict, MetadataUnavailable, ValueError) as error:
            found[at] = error

    async with trio.open_nursery() as nursery:
        for at in range(len(wanted)):
            nursery.start_soon(make, at)
    return found


def new(*names: str, relied: str = "vhost") -> tuple[list[Guard], list[Put]]:
    keys = [name.encode() for name in names]
    return [*(Guard(key, 0) for key in keys), Guard(relied.encode(), 7)], [(key, b"v") for key in keys]


async def test_what_comes_while_others_are_sent_is_sent_together(autojump_clock: MockClock) -> None:
    sent = Sent()
    found = await all_at_once(JoinedChanges(sent.send, 127), *(new(f"k{n}") for n in range(100)))
    assert sorted(map(len, sent.transactions)) == [1] * SENDING_MAX + [100 - SENDING_MAX]
    assert found == [1, 2, *[3] * 98]
    assert trio.current_time() < 3
    sent.transactions.clear()
    assert await JoinedChanges(sent.send, 127).make(*new("later")) == 1
    assert sent.transactions == [[b"later"]]


async def test_no_transaction_is_larger_than_the_store_takes(autojump_clock: MockClock) -> None:
    sent = Sent()
    await all_at_once(JoinedChanges(sent.send, 10), *(new(f"k{n}") for n in range(30)))
    assert max(map(len, sent.transactions)) == 9, "each has a guard of its own, and one is common to all"
    assert sum(map(len, sent.transactions)) == 30
    sent.transactions.clear()
    large = [([Guard(b"%d" % n, 0)], [(b"%d" % n, bytes(BYTES_MAX // 2))]) for n in range(5)]
    await all_at_once(JoinedChanges(sent.send, 127), *large)
    assert list(map(len, sent.transactions)) == [1] * 5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (([Guard(b"k", 1)], [(b"k", b"1")]), ([Guard(b"k", 1)], [(b"k", b"2")])),
        (([Guard(b"k", 1)], [(b"k", b"1")]), ([Guard(b"m", 1), Guard(b"k", 1)], [(b"m", b"2")])),
        (([Guard(b"k", 1), Guard(b"m", 1)], [(b"k", b"1")]), ([Guard(b"m", 1)], [(b"m", b"2")])),
        (([Guard(b"k", 1), Guard(b"x", 1)], [(b"k", b"1")]), ([Guard(b"m", 1), Guard(b"x", 2)], [(b"m", b"2")])),
    ],
)
async def test_what_has_to_do_with_each_other_is_not_joined(
    one: tuple[list[Guard], list[Put]], other: tuple[list[Guard], list[Put]], autojump_clock: MockClock
) -> None:
    sent = Sent()
    first = [new(f"first {n}") for n in range(SENDING_MAX)]
    await all_at_once(JoinedChanges(sent.send, 127), *first, one, other)
    assert list(map(len, sent.transactions)) == [1] * (SENDING_MAX + 2)


async def test_who_is_refused_is_refused_alone(autojump_clock: MockClock) -> None:
    sent = Sent()
    sent.refuse = {b"k5"}
    found = await all_at_once(JoinedChanges(sent.send, 127), *(new(f"k{n}") for n in range(8)))
    assert [at for at, one in enumerate(found) if isinstance(one, Conflict)] == [5]
    assert all(isinstance(one, int) for at, one in enumerate(found) if at != 5)


async def test_a_check_refuses_its_own_change_alone(autojump_clock: MockClock) -> None:
    sent = Sent()
    changes = JoinedChanges(sent.send, 127)

    def refuse() -> None:
        raise ValueError("not any more")

    async with trio.open_nursery() as nursery:
        for n in range(4):
            nursery.start_soon(changes.make, *new(f"k{n}"))
        await trio.sleep(0.1)
        with pytest.raises(ValueError, match="not any more"):
            await changes.make(*new("checked"), refuse)
    assert sorted(key for keys in sent.transactions for key in keys) == [b"k0", b"k1", b"k2", b"k3"]


async def test_all_are_told_when_there_is_no_answer(autojump_clock: MockClock) -> None:
    sent = Sent()
    sent.unavailable = True
    changes = JoinedChanges(sent.send, 127)
    found = await all_at_once(changes, *(new(f"k{n}") for n in range(9)))
    assert all(isinstance(one, MetadataUnavailable) for one in found)
    sent.unavailable = False
    assert await all_at_once(changes, *(new(f"k{n}") for n in range(9))) == [4, 5, *[6] * 7]


@pytest.mark.parametrize("refused", [set[bytes](), {b"k"}])
async def test_hundreds_do_not_wait_for_an_answer_one_after_the_other(
    autojump_clock: MockClock, refused: set[bytes]
) -> None:
    """Those that cannot be joined, as all of them put the same key, and those that were and are made alone."""
    sent = Sent()
    sent.refuse = refused

    async def fail(guards: list[Guard], puts: list[Put]) -> int:
        if len(puts) == 1 or not refused:
            await trio.sleep(5)
            raise Unanswered("nobody answers")
        return await sent.send(guards, puts)

    changes = JoinedChanges(fail, 127)
    wanted = [new(f"k{n}" if refused else "k") for n in range(300)]
    if refused:
        wanted[7] = new("k")
    found = await all_at_once(changes, *wanted)
    assert all(isinstance(one, Unanswered) for one in found)
    assert trio.current_time() < 17


async def test_many_new_keys_are_few_transactions_of_etcd(autojump_clock: MockClock) -> None:
    model = EtcdModel()
    one, other = store_of(model), store_of(model)
    async with running(model, one, other):
        before = model.calls.count(TXN)
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(one.change, [Guard(b"k%d" % number, 0)], [(b"k%d" % number, b"v")])
        assert model.calls.count(TXN) - before <= 2 * SENDING_MAX
        await other.barrier()
        assert len(list(other.items(b"k"))) == 100
