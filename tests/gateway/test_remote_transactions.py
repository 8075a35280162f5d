"""Transactions at members of a real cluster: all or nothing, whoever leads the queues."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from core_log.record_batch import BatchBuilder
from gateway.etcd_process import EtcdProcess
from routing.administration import administer
from routing.cluster.clients.transaction_links import Settlement
from routing.cluster.metadata.log_names import home_log
from routing.errors import LimitExceeded
from routing.transactions import Plan
from tests.gateway.test_member import Running, three, until
from tests.gateway.test_remote_member import PERSISTENT, connection

NAMES = {1: "a", 2: "b", 3: "c"}


@asynccontextmanager
async def town(etcd: EtcdProcess, directory: Path, name: str) -> AsyncIterator[dict[int, Running]]:
    """Three brokers, and at each a queue that it leads, with the name that `NAMES` says."""
    async with three(etcd, directory, name) as (_, brokers):
        engines = [one.server.broker for one in brokers.values()]
        await until(lambda: all(len(one.engine.transaction_links) == 2 for one in engines))  # type: ignore[union-attr]
        await until(lambda: {home for one in engines for home in [len(one.topology.led)]} == {2})
        for number, queue in NAMES.items():
            await brokers[number].server.broker.declare_queue(queue, durable=True)
            await until(lambda number=number, queue=queue: leads(brokers[number], queue))  # type: ignore[misc]
        await until(lambda: all(len(list(one.engine.transactions.stores.led())) for one in engines))  # type: ignore[union-attr]
        yield brokers


def leads(broker: Running, queue: str) -> bool:
    return not broker.server.broker.topology.queues[queue].elsewhere


def records(brokers: dict[int, Running]) -> int:
    """How many transactions are not done with."""
    found = 0
    for one in brokers.values():
        assert one.server.broker.engine is not None
        found += sum(len(list(store.items())) for _, store in one.server.broker.engine.transactions.stores.led())
    return found


async def at(broker: Running, what: Callable[[BlockingChannel], Any]) -> Any:
    def run() -> Any:
        with connection(broker) as there:
            channel = there.channel()
            channel.tx_select()
            return what(channel)

    return await trio.to_thread.run_sync(run)


def contents(channel: BlockingChannel) -> dict[str, list[bytes]]:
    """What waits in each queue; it stays there."""
    found: dict[str, list[bytes]] = {}
    for name in NAMES.values():
        count = channel.queue_declare(name, passive=True).method.message_count
        found[name] = [] if not count else [body for _, (_, _, body) in zip(range(count), channel.consume(name))]
        channel.cancel()
    return found


def publish(channel: BlockingChannel) -> None:
    for end in (channel.tx_rollback, channel.tx_commit):
        for name in NAMES.values():
            for body in (b"1", b"2"):
                channel.basic_publish("", name, body, PERSISTENT)
        end()


def undo(channel: BlockingChannel) -> None:
    for name in NAMES.values():
        method, _, _ = channel.basic_get(name)
        assert method is not None
        channel.basic_ack(method.delivery_tag)
        channel.tx_rollback()
        channel.basic_nack(method.delivery_tag)
        channel.tx_commit()


def settle_and_publish(channel: BlockingChannel) -> None:
    tag = 0
    for name in ("a", "b"):
        method, _, _ = channel.basic_get(name)
        assert method is not None
        tag = method.delivery_tag
        channel.basic_ack(tag)
    channel.basic_publish("", "c", b"3", PERSISTENT)
    channel.tx_rollback()
    channel.tx_commit()
    channel.basic_nack(tag, multiple=True)
    channel.tx_commit()
    for name in ("a", "b"):
        method, _, _ = channel.basic_get(name)
        assert method is not None
        assert method.redelivered
        channel.basic_ack(method.delivery_tag)
    for name in ("c", "a"):
        channel.basic_publish("", name, b"3", PERSISTENT)
    channel.tx_commit()


async def step(broker: Running, number: int, *bodies: bytes) -> Any:
    builder = BatchBuilder(0, -1, 1000)
    for offset, body in enumerate(bodies):
        builder.add(offset, b"k", body, [])
    said = {"name": "amq.fanout", "writer": "w", "number": number, "batches": [builder.build()]}
    return await administer(broker.server.broker, "guest", "exchanges.publish_once", said)


async def bind_all(broker: Running) -> None:
    engine = broker.server.broker
    for name in NAMES.values():
        await engine.bind("queue", name, "amq.fanout", "")
    await engine.create_topic("t", partitions=1)
    await engine.bind("topic", "t", "amq.fanout", "")


async def check_rows(broker: Running, *rows: bytes) -> None:
    assert await at(broker, contents) == {name: list(rows) for name in NAMES.values()}
    log = broker.server.broker.topology.topic("t").partitions[0].log
    await until(lambda: log.high_watermark == len(rows))


async def steps_take_effect_once(brokers: dict[int, Running]) -> None:
    await bind_all(brokers[1])
    found: list[int] = []

    async def publish(number: int) -> None:
        found.append(await step(brokers[number], 0, b"1", b"2"))

    async with trio.open_nursery() as nursery:
        for number in brokers:
            nursery.start_soon(publish, number)
    assert sorted(found) == [-1, -1, 2]
    assert await step(brokers[2], 1, b"3") == 1
    assert [await step(broker, 0, b"9") for broker in brokers.values()] == [-1, -1, -1]
    await until(lambda: records(brokers) == 1)  # the writer's last number
    await check_rows(brokers[2], b"1", b"2", b"3")


async def test_what_several_brokers_lead_is_committed_together(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with town(etcd, tmp_path, "transactions") as brokers:
        await at(brokers[1], publish)
        assert await at(brokers[2], contents) == {name: [b"1", b"2"] for name in "abc"}
        for number in (3, 1):
            await at(brokers[number], undo)
            assert await at(brokers[2], contents) == {name: [b"1", b"2"] for name in "abc"}
        await at(brokers[3], settle_and_publish)
        found = {"a": [b"2", b"3"], "b": [b"2"], "c": [b"1", b"2", b"3"]}
        assert await at(brokers[1], contents) == found
        await until(lambda: not records(brokers))
        for number, name in NAMES.items():
            queue = brokers[number].server.broker.topology.queues[name]
            assert (queue.outstanding, queue.message_count) == (0, len(found[name])), "nothing was settled twice"
        engine = brokers[3].server.broker.engine
        assert engine is not None

        def late(channel: BlockingChannel) -> None:
            """The link to who leads the queue is lost between delivery and commit: that one took the message back."""
            method, _, _ = next(iter(channel.consume("a")))
            channel.basic_publish("", "b", b"4", PERSISTENT)
            channel.basic_ack(method.delivery_tag)
            link: Any = engine.forwarding.links[1]
            trio.from_thread.run_sync(link.shut_down, "a test")
            with pytest.raises(ChannelClosedByBroker, match="is back in queue 'a'") as caught:
                channel.tx_commit()
            assert caught.value.reply_code == 406

        await at(brokers[3], late)
        assert await at(brokers[2], contents) == found
        assert not records(brokers)
        for name in NAMES.values():
            await brokers[1].server.broker.purge_queue(name)
        await steps_take_effect_once(brokers)


FULL = {"x-max-length": 3, "x-overflow": "reject-publish"}


async def test_what_a_full_queue_refuses_that_another_broker_leads_takes_no_effect(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    def commit(channel: BlockingChannel) -> None:
        for name in ("full", "b"):
            for body in (b"1", b"2"):
                channel.basic_publish("", name, body, PERSISTENT)
        channel.tx_commit()

    async with town(etcd, tmp_path, "full") as brokers:
        await brokers[1].server.broker.declare_queue("full", durable=True, arguments=FULL)
        await until(lambda: leads(brokers[1], "full"))
        await until(lambda: "full" in brokers[3].server.broker.topology.queues)
        await at(brokers[3], commit)
        for number in (3, 1):
            with pytest.raises(ChannelClosedByBroker, match="queue 'full' in vhost '/' is full") as refused:
                await at(brokers[number], commit)
            assert refused.value.reply_code == 406
        await bind_all(brokers[3])
        await brokers[3].server.broker.bind("queue", "full", "amq.fanout", "")
        with pytest.raises(LimitExceeded):
            await step(brokers[3], 0, b"3", b"4")
        queues = brokers[1].server.broker.topology.queues
        assert queues["full"].message_count == 2
        assert brokers[2].server.broker.topology.queues["b"].message_count == 2
        assert await step(brokers[3], 0, b"3") == 1
        assert queues["full"].message_count == 3


async def test_what_is_decided_a_queue_takes_that_another_broker_leads_and_that_was_filled_meanwhile(
    etcd: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town(etcd, tmp_path, "filled") as brokers:
        one, three = brokers[1].server.broker, brokers[3].server.broker
        await one.declare_queue("full", durable=True, arguments=FULL)
        await until(lambda: leads(brokers[1], "full"))
        await until(lambda: "full" in three.topology.queues)
        assert three.engine is not None
        require_room = three.engine.transactions.require_room

        async def filled(plan: Plan) -> None:
            await require_room(plan)
            for body in ("x", "y", "z"):
                await administer(one, "guest", "messages.publish", {"routing_key": "full", "body": body})

        monkeypatch.setattr(three.engine.transactions, "require_room", filled)

        def commit(channel: BlockingChannel) -> None:
            for name, body in (("full", b"1"), ("b", b"1"), ("full", b"2")):
                channel.basic_publish("", name, body, PERSISTENT)
            channel.tx_commit()

        await at(brokers[3], commit)
        assert one.topology.queues["full"].message_count == 5
        assert brokers[2].server.broker.topology.queues["b"].message_count == 1


async def test_what_was_given_out_again_meanwhile_is_settled_all_the_same(etcd: EtcdProcess, tmp_path: Path) -> None:
    """It may be the client of the transaction that got it, from the queue's next leader, and waits for the answer."""
    async with town(etcd, tmp_path, "again") as brokers:
        leader = brokers[1].server.broker
        assert leader.engine is not None
        transactions, queue = leader.engine.transactions, leader.topology.queues["a"]
        held, decided = threading.Event(), threading.Event()

        def hold(channel: BlockingChannel) -> tuple[bytes, bool]:
            for number in range(5):
                channel.basic_publish("", "a", b"%d" % number, PERSISTENT)
            channel.tx_commit()
            for method, _, _ in channel.consume("a"):
                if method.delivery_tag == 5:
                    break
            held.set()
            assert decided.wait(30)
            channel.basic_nack(3, multiple=True, requeue=True)
            channel.basic_ack(0, multiple=True)
            channel.tx_commit()
            method, _, body = next(iter(channel.consume("a")))
            channel.basic_ack(method.delivery_tag)
            channel.tx_commit()
            return body, method.redelivered

        for number in (1, 3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep, found := list[tuple[bytes, bool]](), brokers[number], hold)
                await until(held.is_set)
                end = queue.partition.next_offset
                one = Settlement(queue.id, 0, (), [end - 4, end - 3, end - 1, end - 1], False)
                with trio.fail_after(30):
                    await transactions.settle_here(home_log(queue.partition.index), [one], None)
                decided.set()
            assert found == [(b"0", True)], "what was settled stays so, whatever is said of it"
            await until(lambda: (queue.outstanding, queue.message_count) == (0, 0))
            held.clear()
            decided.clear()


async def keep(found: list[Any], broker: Running, what: Callable[[BlockingChannel], Any]) -> None:
    found.append(await at(broker, what))


async def test_a_broker_that_goes_leaves_all_or_nothing(etcd: EtcdProcess, tmp_path: Path) -> None:
    """It leads a queue that another one publishes to, and had decided what it does no more."""
    async with town(etcd, tmp_path, "going") as brokers:
        await at(brokers[1], publish)
        engine = brokers[3].server.broker.engine
        assert engine is not None
        decided, over = trio.Event(), trio.Event()
        done: list[int] = []

        def work(channel: BlockingChannel) -> None:
            for number in range(10, 10_000):
                for name in NAMES.values():
                    channel.basic_publish("", name, b"%d" % number, PERSISTENT)
                channel.tx_commit()
                done.append(number)
                if over.is_set():
                    return

        def last(channel: BlockingChannel) -> None:
            for name in ("a", "b"):
                method, _, _ = next(iter(channel.consume(name)))
                channel.basic_ack(method.delivery_tag)
                channel.cancel()
                channel.basic_publish("", name, b"3", PERSISTENT)
            with pytest.raises(AMQPError):
                channel.tx_commit()

        async def stop(*_: object) -> None:
            decided.set()
            await trio.sleep_forever()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.transactions, "_apply", lambda *_, **__: {})
            patch.setattr(engine.transactions, "_see_to", stop)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(at, brokers[3], last)
                await decided.wait()
                nursery.start_soon(at, brokers[1], work)
                await until(lambda: len(done) > 5)
                await brokers.pop(3).stop()
                there = len(done)
                await until(lambda: len(done) > there + 5)
                over.set()
        await until(lambda: not records(brokers))
        found = await at(brokers[2], contents)
        published = {int(body) for body in found["c"]} - {1, 2}
        assert published == set(done)
        for name in ("a", "b"):
            assert {int(body) for body in found[name]} == {2, 3} | published
