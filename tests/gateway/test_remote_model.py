"""A queue that is led elsewhere does what one that is led here does, whatever sessions do with it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from routing.broker import Broker
from routing.errors import BrokerError
from routing.message import Properties, Slab
from routing.session import Consumer, Outcome
from tests.routing.harness import PROTOCOL
from tests.support.engine_node import town_of

PERSISTENT = Properties(PROTOCOL, b"", persistent=True)
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"x-max-priority": 3},
    {"x-max-length": 12},
    {"x-max-length": 9, "x-overflow": "reject-publish"},
    {"x-single-active-consumer": True},
    {"x-queue-type": "quorum", "x-delivery-limit": 2},
    {"x-group-by": "routing-key"},
]


class Side:
    """Sessions at a broker, and what they were told."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.said: list[Any] = []
        self.sessions = [broker.session(_Sink(self, number), protocol="test", owner=self) for number in range(3)]
        self.consumers: dict[int, Consumer] = {}
        self.held: dict[int, list[int]] = {number: [] for number in range(3)}

    async def settled(self) -> None:
        """Wait until nothing happens any more: what a question brings comes after what was said before."""
        for _ in range(2):
            self.broker.end_turn()
            with trio.fail_after(20):
                await self.broker.check_queue("q")
            await trio.lowlevel.checkpoint()

    async def do(self, what: str, number: int, amount: int) -> None:
        """One operation of one session, with what it has."""
        session, held = self.sessions[number], self.held[number]
        if what == "publish":
            bodies = [b"%d" % (amount * 100 + at) for at in range(amount)]
            facts = [1 | (at * amount % 4) << 1 for at in range(amount)]
            keys = [f"k{at % 3}" for at in range(amount)]
            session.publish(Slab("x", keys[0], PERSISTENT, bodies, keys=keys, facts=facts), confirm=True)
        elif what == "consume" and number not in self.consumers:
            session.set_prefetch(amount, per_session=False)
            self.consumers[number] = await session.consume("q", tag=f"t{number}", no_ack=False)
        elif what == "cancel" and number in self.consumers:
            session.cancel(self.consumers.pop(number))
        elif what == "get":
            got = await session.get("q", no_ack=amount % 2 == 0)
            body = None if got is None else (got.slab.bodies[got.index], got.redelivered, got.message_count)
            self.said.append((number, "got", body))
            if got is not None and amount % 2:
                held.append(got.delivery_id)
        elif what == "purge":
            self.said.append(("purged", await self.broker.purge_queue("q")))
        elif what in ("ack", "requeue", "discard") and held:
            first = min(amount, len(held)) - 1
            session.settle(held[first], held[first], Outcome(what))
            del held[first]
        elif what == "ack all" and held:
            session.settle_up_to(0, Outcome.ACK)
            held.clear()
        elif what == "recover":
            session.recover()
            held.clear()


class _Sink:
    def __init__(self, side: Side, number: int) -> None:
        self.side, self.number = side, number

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        for at in range(start, stop):
            self.side.said.append((self.number, slab.bodies[at], slab.key_of(at), redelivered))
            self.side.held[self.number].append(first_id + at - start)

    def confirm(self, up_to: int) -> None:
        self.side.said.append((self.number, "confirm", up_to))

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        self.side.said.append((self.number, "refuse", first, last))

    def returned(self, slab: Slab, reason: str) -> None:
        raise AssertionError

    def cancelled(self, consumer: Consumer) -> None:
        self.side.said.append((self.number, "cancelled"))

    def writable(self) -> bool:
        return True


def by_session(said: list[Any]) -> dict[Any, list[Any]]:
    """What each session was told, in order; confirms apart, which wait for the disk."""
    found: dict[Any, list[Any]] = {}
    for one in said:
        if one[1] == "confirm":
            found[one[0], "confirmed"] = [max(one[2], *found.get((one[0], "confirmed"), [0]))]
        else:
            found.setdefault((one[0], one[1] == "refuse"), []).append(one)
    return found


OPERATIONS = [
    *["publish"] * 4, "consume", "consume", "cancel", "get", "get", "purge", *["ack"] * 4, "requeue", "requeue",
    "discard", "ack all", "recover",
]  # fmt: skip


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
async def test_any_order_of_things(arguments: dict[str, Any]) -> None:
    dice = random.Random(str(arguments))
    plan = [(dice.choice(OPERATIONS), dice.randrange(3), dice.randrange(1, 6)) for _ in range(25)]
    async with town_of(1, 2, stripes=1) as apart, town_of(1, stripes=1) as alone:
        sides = [Side(apart.nodes[2].broker), Side(alone.nodes[1].broker)]
        for side in sides:
            await side.broker.declare_exchange("x", "fanout", durable=True)
            await side.broker.declare_queue("q", durable=True, arguments=arguments)
            await side.broker.bind("queue", "q", "x", "")
        for step, (what, number, amount) in enumerate(plan):
            for side in sides:
                await side.do(what, number, amount)
                await side.settled()
            told = [by_session([one for one in side.said if one[1] not in ("confirm", "refuse")]) for side in sides]
            assert told[0] == told[1], (step, plan[: step + 1])
            counts = [(await side.broker.check_queue("q")).message_count for side in sides]
            assert counts[0] == counts[1], (step, plan[: step + 1])
        with trio.fail_after(20):
            while by_session(sides[0].said) != by_session(sides[1].said):
                await trio.sleep(0.01)
