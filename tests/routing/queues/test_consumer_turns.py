"""Consumers of a queue come and go: what that costs where there are many."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.files import MemoryFiles
from routing.queues.consumer_turns import ConsumerTurns
from routing.session import Consumer
from tests.routing.harness import engine

MANY = 2000


class Counted(Consumer):
    """A consumer that notices when it is compared with another."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return self is other

    __hash__ = Consumer.__hash__


def counted(priority: int = 0) -> Counted:
    nothing: Any = None
    return Counted(
        nothing, nothing, "t", no_ack=False, exclusive=False, prefetch=1, context=None, priority=priority
    )  # fmt: skip


def test_those_who_go_are_not_looked_for_among_all() -> None:
    turns, consumers = ConsumerTurns(), [counted(number % 3) for number in range(MANY)]
    for consumer in consumers:
        turns.add(consumer)
    Counted.compared = 0
    for consumer in consumers[MANY // 2 :]:
        turns.remove(consumer)
    assert Counted.compared == 0
    assert turns.consumers == sorted(consumers[: MANY // 2], key=lambda one: -one.priority)


@pytest.mark.parametrize("kind", ["classic", "stream"])
async def test_a_session_of_many_does_not_look_for_the_last_of_them(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("routing.session.Consumer", Counted)
    async with engine(MemoryFiles()) as broker:
        await broker.queue("q", arguments={"x-queue-type": kind})
        client = broker.client()
        client.session.set_prefetch(1, per_session=False)
        for number in range(200):
            await client.consume("q", tag=f"c{number}")
        Counted.compared = 0
        for consumer in list(client.session.consumers)[::-1]:
            client.session.cancel(consumer)
        assert Counted.compared == 0
        assert not client.session.consumers
