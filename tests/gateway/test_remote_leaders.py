"""Queues led elsewhere, while links and leaders come and go; real links."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from pika.exceptions import ConnectionClosedByBroker, NackError

from routing.errors import StorageUnavailable
from tests.gateway.relay import Relay, relay
from tests.gateway.test_remote_queues import client, declare, drain, send
from tests.support.engine_node import Town, town_of


class Work:
    """A publisher that confirms and a consumer, each at a broker, in threads of their own."""

    def __init__(self, town: Town, publisher: int, consumer: int, count: int) -> None:
        self.town = town
        self.count = count
        self.confirmed: set[int] = set()
        self.refused: set[int] = set()
        self.gone: set[int] = set()
        self.got: list[tuple[int, bool]] = []
        self._at = publisher, consumer
        self.over = threading.Event()

    def publish(self, channel: Any) -> None:
        channel.confirm_delivery()
        for number in range(self.count):
            try:
                send(channel, str(number))
                self.confirmed.add(number)
            except NackError:
                self.refused.add(number)
            time.sleep(0.001)

    def consume(self, channel: Any) -> None:
        channel.basic_qos(prefetch_count=7)
        patience = 60
        for method, _, body in channel.consume("q", inactivity_timeout=0.5):
            if method is not None:
                self.got.append((int(body), method.redelivered))
                channel.basic_ack(method.delivery_tag)
            elif self.over.is_set():
                patience -= 1
                if not self.missing() or not patience:
                    return

    def missing(self) -> set[int]:
        """What was confirmed and has not come, and has not gone with a leader."""
        return self.confirmed - self.gone - {number for number, _ in self.got}

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """While the block does something, and until all is done."""
        await client(self.town.nodes[self._at[0]], declare)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client, self.town.nodes[self._at[1]], self.consume)
            async with trio.open_nursery() as publishing:
                publishing.start_soon(client, self.town.nodes[self._at[0]], self.publish)
                yield
            self.over.set()

    def check(self) -> None:
        """Nothing that was confirmed is lost; what came twice says so, and came in order otherwise."""
        assert not self.missing()
        first = [number for number, redelivered in self.got if not redelivered]
        assert len(first) == len(set(first)), "a message came twice and did not say so"


@pytest.mark.parametrize("how", ["cut", "hold"])
async def test_a_link_that_is_cut_loses_nothing(how: str) -> None:
    async with town_of(1, 2) as town, relay(town.nodes[1].address) as between:
        town.introduce(to1=between.address)
        await trio.sleep(0.1)
        await town.linked()
        work = Work(town, 2, 2, 400)
        async with work.going_on():
            for _ in range(4):
                await trio.sleep(0.15)
                await interrupt(between, how)
        work.check()
        assert not work.refused


async def interrupt(between: Relay, how: str) -> None:
    if how == "hold":
        between.hold()
        await trio.sleep(0.2)
    between.cut()
    between.go_on()


async def test_what_a_leader_cannot_take_for_a_while_is_not_confirmed_until_it_has_taken_it() -> None:
    async with town_of(1, 2) as town:
        for index in town.nodes[1].led:
            town.lead(index, 1)
        await town.linked()
        work = Work(town, 2, 1, 300)
        async with work.going_on():
            for _ in range(3):
                await trio.sleep(0.15)
                for home in town.nodes[1].led.values():
                    home.error = StorageUnavailable("too few replicas")  # type: ignore[misc]
                await trio.sleep(0.3)
                for home in town.nodes[1].led.values():
                    home.error = None  # type: ignore[misc]
        work.check()
        assert not work.refused
        assert len(work.confirmed) == 300


async def test_publishers_are_refused_when_their_patience_is_over_and_then_all_goes_on() -> None:
    async with town_of(1, 2) as town:
        node = town.nodes[2]
        node.engine.forwarding.patience_s = 0.5
        town.lead(0, 2)

        def publish(channel: Any, *, refused: bool) -> None:
            channel.confirm_delivery()
            if not refused:
                send(channel, "x")
                return
            with pytest.raises(NackError):
                send(channel, "y")

        await client(node, lambda channel: [declare(channel, name) for name in ("q", "r")])
        queue = node.broker.topology.queues["q"]
        home = queue.partition.index
        town.lead(home, 1)
        await client(node, lambda channel: publish(channel, refused=False))
        town.lead(home, None)
        await client(node, lambda channel: publish(channel, refused=True))
        town.lead(home, 1)
        await client(node, lambda channel: publish(channel, refused=False))


async def test_publishers_are_not_read_from_while_too_much_waits_for_a_leader_and_all_others_are() -> None:
    async with town_of(1, 2) as town:
        node = town.nodes[2]
        await client(node, declare)
        queue = node.broker.topology.queues["q"]
        home = queue.partition.index
        town.lead(home, None)
        stream = node.engine.forwarding.stream(f"home-{home}")
        sent = 0

        def publish(channel: Any) -> None:
            nonlocal sent
            for _ in range(300):
                send(channel, "." * 65536)
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client, node, publish)
            with trio.fail_after(20):
                while stream.has_room:
                    await trio.sleep(0.01)
            await client(node, lambda channel: channel.queue_declare("other", exclusive=True))
            assert sent < 300, "the publisher waits"
            assert stream.kept_bytes < 10 << 20
            town.lead(home, 1)
        assert await client(node, lambda channel: declare(channel)) == 300


async def test_what_nobody_answers_is_refused_after_a_while() -> None:
    async with town_of(1, 2) as town:
        node = town.nodes[2]
        node.engine.forwarding.timeout_s = node.engine.forwarding.patience_s = 0.5
        await client(node, declare)
        town.nodes[1].cluster.may_serve = False

        def use(channel: Any) -> None:
            channel.confirm_delivery()
            began = time.monotonic()
            with pytest.raises(NackError):
                send(channel, "y")
            assert 0.3 < time.monotonic() - began < 5
            channel.basic_get("q")

        with pytest.raises(ConnectionClosedByBroker, match="led by broker 1, which does not answer"):
            await client(node, use)


@pytest.mark.parametrize("path", [(1, 3), (1, 2, 1), (2, 3, 2, 1)], ids=str)
async def test_clients_do_not_notice_that_another_broker_leads(path: tuple[int, ...]) -> None:
    """Nothing is replicated here, so who leads next has nothing: only what is not answered yet, and the consumers."""
    async with town_of(1, 2, 3, stripes=1, leader=path[0]) as town:
        work = Work(town, 2, 2, 10_000)
        ends = trio.Event()

        def publish(channel: Any) -> None:
            channel.confirm_delivery()
            number = 0
            while not ends.is_set() or number % 20:
                send(channel, str(number))
                work.confirmed.add(number)
                number += 1
                if work.got and number > work.got[-1][0] + 20:
                    time.sleep(0.005)  # little waits in the queue when it goes

        work.publish = publish  # type: ignore[method-assign]
        async with work.going_on():
            for broker in path[1:]:
                await trio.sleep(0.2)
                before = len(work.got)
                last = work.got[-1][0] if work.got else -1
                town.lead(0, broker)
                work.gone |= set(range(last + 1, max(work.confirmed, default=-1) + 2))  # one is confirmed just now
                with trio.fail_after(20):
                    while len(work.got) < before + 100:
                        await trio.sleep(0.01)
            ends.set()
        assert not work.missing(), "more than what was in a queue that is not there any more"


async def test_what_a_leader_cannot_take_is_never_confirmed() -> None:
    async with town_of(1, 2) as town:
        node = town.nodes[2]
        node.engine.forwarding.timeout_s = node.engine.forwarding.patience_s = 0.5
        await client(node, declare)
        await client(node, lambda channel: declare(channel, "limited", max_length=5, overflow="reject-publish"))
        for home in town.nodes[1].led.values():
            home.error = StorageUnavailable("too few replicas in sync")  # type: ignore[misc]

        def use(channel: Any) -> None:
            channel.confirm_delivery()
            for queue in ("q", "limited"):
                with pytest.raises(NackError):
                    send(channel, "lost", queue=queue)

        await client(node, use)
        for home in town.nodes[1].led.values():
            home.error = None  # type: ignore[misc]
        await trio.sleep(0.3)

        def use_again(channel: Any) -> None:
            channel.confirm_delivery()
            for queue in ("q", "limited"):
                send(channel, "kept", queue=queue)
                assert drain(channel, queue) == ["kept"]

        await client(node, use_again)


async def test_what_was_said_in_the_turn_in_which_a_stream_gives_up_is_not_done_with_what_comes_later() -> None:
    async with town_of(1, 2, stripes=1) as town:
        node = town.nodes[2]
        home: Any = node.broker.topology.stripes[0]
        session = node.broker.session(cast("Any", None), protocol="mqtt", owner=object(), vhost="/")
        told: list[object] = []
        home.tell(("released", 99, [1]), 0)
        session.confirms.when_written([home], told.append)
        home.stream._fail("no answer for 10 s")
        node.broker.end_turn()
        home.tell(("released", 99, [2]), 0)
        home.stream.request_sync()
        node.broker.end_turn()
        with trio.fail_after(5):
            while home.stream.committed_offset < 2:
                await trio.sleep(0.002)
        assert [type(error) for error in told] == [StorageUnavailable]
