"""Named queues that end with their broker are used from any other; real clients, real links."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker

from routing.administration import administer
from tests.gateway.test_member import until
from tests.gateway.test_remote_queues import client, connection, drain, send
from tests.support.engine_node import EngineNode, Town, town_of


def declare(channel: Any, **options: Any) -> int:
    count: int = channel.queue_declare("n", **options).method.message_count
    return count


async def known(town: Town, *numbers: int, gone: bool = False) -> None:
    """Wait until brokers know of the queue, or know that it is gone."""
    for number in numbers:
        vhost = town.nodes[number].broker.topology.vhosts["/"]
        await until(lambda vhost=vhost: ("n" not in vhost.away) is gone)  # type: ignore[misc]


def refused(channel: Any, code: int, text: str, use: Callable[[], Any]) -> None:
    with pytest.raises(ChannelClosedByBroker, match=text) as caught:
        use()
    assert caught.value.reply_code == code


async def test_declared_at_one_broker_used_at_another() -> None:
    async with town_of(1, 2, 3) as town:
        await client(town.nodes[1], lambda channel: declare(channel, arguments={"x-max-length": 1000}))
        await known(town, 2, 3)

        def use(channel: Any) -> None:
            assert declare(channel, arguments={"x-max-length": 1000}) == 0
            send(channel, *map(str, range(12)), queue="n")
            while declare(channel, passive=True) < 12:
                pass  # nobody confirms what ends with a broker
            first, second = channel.basic_get("n")[0], channel.basic_get("n")[0]
            assert (first.message_count, second.message_count) == (11, 10)
            channel.basic_nack(first.delivery_tag, requeue=True)
            channel.basic_ack(second.delivery_tag)
            channel.basic_qos(prefetch_count=3)
            got = []
            for method, _, body in channel.consume("n", inactivity_timeout=20):
                got.append(body.decode() + ("*" if method.redelivered else ""))
                channel.basic_ack(method.delivery_tag)
                if len(got) == 8:
                    break
            channel.cancel()
            assert got == ["0*", *map(str, range(2, 9))]
            rest = [body.rstrip("*") for body in drain(channel, "n")]
            assert rest == ["9", "10", "11"], "what was under way may be marked"
            send(channel, "a", "b", queue="n")
            while declare(channel, passive=True) < 2:
                pass
            assert channel.queue_purge("n").method.message_count == 2
            other = channel.connection.channel()
            refused(other, 406, "inequivalent arg 'durable'", lambda: declare(other, durable=True))

        await client(town.nodes[2], use)
        topology = town.nodes[2].broker.topology
        assert "n" not in topology.queues, "there is one, at broker 1"
        assert town.nodes[1].broker.topology.queues["n"].message_count == 0


async def test_bound_and_deleted_from_elsewhere() -> None:
    async with town_of(1, 2, 3) as town:
        await client(town.nodes[1], declare)
        await known(town, 2, 3)

        def bind(channel: Any) -> None:
            channel.exchange_declare("own", "fanout")
            channel.queue_bind("n", "amq.topic", "a.*")
            channel.queue_bind("n", "own")
            channel.basic_publish("own", "", b"by an exchange of this broker")
            while not declare(channel, passive=True):
                pass
            channel.queue_unbind("n", "own")
            channel.basic_publish("own", "", b"nowhere")

        await client(town.nodes[2], bind)
        vhost = town.nodes[3].broker.topology.vhosts["/"]
        await until(lambda: vhost.exchanges["amq.topic"].matcher.match("a.b", lambda: None))  # type: ignore[arg-type,return-value]

        def use(channel: Any) -> list[str]:
            channel.basic_publish("amq.topic", "a.b", b"by the other's binding")
            while declare(channel, passive=True) < 2:
                pass
            refused(other := channel.connection.channel(), 404, "no exchange 'x'", lambda: other.queue_bind("n", "x"))
            found = drain(channel, "n")
            channel.queue_unbind("n", "amq.topic", "a.*")
            other = channel.connection.channel()
            other.basic_consume("n", lambda *_: None)
            third = channel.connection.channel()
            refused(third, 406, "in use", lambda: third.queue_delete("n", if_unused=True))
            other.close()
            assert channel.queue_delete("n").method.message_count == 0
            refused(channel, 404, "no queue 'n'", lambda: channel.queue_purge("n"))
            return found

        assert await client(town.nodes[3], use) == ["by an exchange of this broker", "by the other's binding"]
        await known(town, 2, 3, gone=True)
        assert "n" not in town.nodes[1].broker.topology.queues


def soon(true: Callable[[], bool]) -> None:
    """Wait for it, as a blocking client does."""
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline


def gone(channel: Any, exchange: str) -> bool:
    try:
        channel.connection.channel().exchange_declare(exchange, passive=True)
    except ChannelClosedByBroker as error:
        return bool(error.reply_code == 404)
    return False


async def test_a_queue_that_somebody_has_to_himself_is_nobody_elses_at_any_broker() -> None:
    async with town_of(1, 2, 3) as town:

        def contend(channel: Any) -> None:
            channel.queue_declare("mine", exclusive=True)
            for node in (town.nodes[2], town.nodes[3]):  # nobody waits for that in a town
                soon(lambda node=node: node.broker.topology.vhosts["/"].is_others("mine"))  # type: ignore[misc]
            with connection(town.nodes[2]) as other:
                for use in (
                    lambda one: one.queue_declare("mine", exclusive=True),
                    lambda one: one.queue_declare("mine", durable=True),
                    lambda one: one.queue_declare("mine", passive=True),
                    lambda one: one.queue_bind("mine", "amq.topic", "#"),
                    lambda one: one.basic_get("mine"),
                    lambda one: one.queue_delete("mine"),
                ):
                    refused(one := other.channel(), 405, "cannot obtain exclusive access", lambda: use(one))  # noqa: B023
                other.channel().basic_publish("", "mine", b"to whoever has it")
                soon(lambda: channel.basic_get("mine")[2] == b"to whoever has it")
                channel.connection.close()
                other.channel().queue_declare("mine", exclusive=True)

        def use(channel: Any) -> None:
            with connection(town.nodes[1]) as connected:
                contend(connected.channel())
            channel.queue_declare("mine", durable=True)
            assert channel.queue_delete("mine").method.message_count == 0

        await client(town.nodes[3], use)


async def test_a_transient_exchange_is_that_of_all_brokers_until_nothing_is_bound_to_it() -> None:
    async with town_of(1, 2, 3) as town:

        def declare_and_use(channel: Any) -> None:
            channel.exchange_declare("events", "fanout", auto_delete=True)
            with connection(town.nodes[2]) as here, connection(town.nodes[3]) as there:
                subscribed = []
                for one in (here, there):
                    consumer = one.channel()
                    consumer.exchange_declare("events", "fanout", auto_delete=True)
                    name = consumer.queue_declare("", exclusive=True).method.queue
                    consumer.queue_bind(name, "events")
                    subscribed.append((consumer, name))
                others = town.nodes[1].broker.topology.vhosts["/"].others
                assert others is not None
                soon(lambda: len(others._by_exchange.get("events", ())) == 2)  # nobody waits for that in a town
                channel.basic_publish("events", "", b"to all")
                for consumer, name in subscribed:
                    soon(lambda consumer=consumer, name=name: consumer.basic_get(name)[2] == b"to all")  # type: ignore[misc]
                refused(
                    other := channel.connection.channel(), 406, "received 'true' but current is 'false'",
                    lambda: other.exchange_declare("events", "fanout", durable=True, auto_delete=True),
                )  # fmt: skip
                here.close()
                soon(lambda: not town.nodes[2].broker.topology.queues)
                other = channel.connection.channel()
                refused(other, 406, "in use", lambda: other.exchange_delete("events", if_unused=True))
                assert not gone(channel, "events"), "a queue of the third broker is bound to it"
                consumer, name = subscribed[1]
                consumer.queue_unbind(name, "events")
                soon(lambda: gone(channel, "events"))

        await client(town.nodes[1], declare_and_use)
        for node in town.nodes.values():
            await until(lambda node=node: "events" not in node.broker.topology.vhosts["/"].exchanges)  # type: ignore[misc]


async def test_a_consumer_elsewhere_is_told_that_the_queue_is_gone() -> None:
    async with town_of(1, 2) as town:
        await client(town.nodes[1], lambda channel: declare(channel, auto_delete=True))
        await known(town, 2)
        cancelled: list[str] = []
        consuming, deleted = trio.Event(), trio.Event()

        def consume() -> None:
            with connection(town.nodes[2]) as there:
                channel = there.channel()
                channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
                channel.basic_consume("n", lambda *_: None, consumer_tag="c")
                trio.from_thread.run_sync(consuming.set)
                trio.from_thread.run(deleted.wait)
                there.process_data_events(2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, consume)
            await consuming.wait()
            await town.nodes[1].broker.delete_queue("n")
            deleted.set()
        assert cancelled == ["c"]

        await client(town.nodes[1], lambda channel: declare(channel, auto_delete=True))
        await known(town, 2)

        def use(channel: Any) -> None:
            channel.basic_consume("n", lambda *_: None, consumer_tag="c")
            channel.basic_cancel("c")

        await client(town.nodes[2], use)
        await known(town, 2, gone=True)
        assert "n" not in town.nodes[1].broker.topology.queues, "its last consumer is gone"


async def test_a_link_that_is_lost_and_a_broker_that_is_gone() -> None:
    async with town_of(1, 2) as town:
        first, second = town.nodes[1], town.nodes[2]
        await client(first, declare)
        await known(town, 2)
        got: list[str] = []
        cancelled = trio.Event()

        def consume() -> None:
            with connection(second) as there:
                channel = there.channel()
                channel.basic_consume("n", lambda _, __, ___, body: got.append(body.decode()), auto_ack=True)
                channel.add_on_cancel_callback(lambda frame: trio.from_thread.run_sync(cancelled.set))
                end = time.monotonic() + 60
                while not cancelled.is_set() and time.monotonic() < end:
                    there.process_data_events(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, consume)
            queue = first.broker.topology.queues["n"]
            await until(lambda: queue.consumers)
            (before,) = queue.consumers
            for link in tuple(second.engine.forwarding.links.values()):
                link.shut_down("a test")  # type: ignore[attr-defined]
            await until(lambda: queue.consumers and queue.consumers[0] is not before)
            await client(first, lambda channel: send(channel, "again", queue="n"))
            await until(lambda: got == ["again"])
            second.engine.interests.forget_all_but([])
            second.broker.end_turn()
            await until(cancelled.is_set)


@pytest.mark.parametrize("kind", ["x-consistent-hash", "x-modulus-hash", "x-random"])
async def test_exchanges_that_divide_reach_queues_of_all_brokers(kind: str) -> None:
    async with town_of(1, 2, 3) as town:

        def make(channel: Any) -> None:
            channel.exchange_declare("d", kind, durable=True)
            channel.exchange_declare("all", "fanout", durable=True)
            channel.exchange_bind("d", "all")

        await client(town.nodes[1], make)

        def declare_at(node: EngineNode) -> Callable[[Any], None]:
            def use(channel: Any) -> None:
                channel.queue_declare(f"n{node.id}")
                channel.queue_bind(f"n{node.id}", "d", "1")
                channel.queue_declare(f"f{node.id}")
                channel.queue_bind(f"f{node.id}", "all")

            return use

        for node in town.nodes.values():
            await client(node, declare_at(node))
        vhosts = [node.broker.topology.vhosts["/"] for node in town.nodes.values()]
        await until(lambda: all(len(one.others._by_exchange.get("d", ())) == 2 for one in vhosts))  # type: ignore[union-attr]
        await until(lambda: all(len(one.others._by_exchange.get("all", ())) == 2 for one in vhosts))  # type: ignore[union-attr]

        def publish(channel: Any) -> None:
            for number in range(60):
                channel.basic_publish("all", f"key {number}", b"%d" % number)

        queues = {number: town.nodes[number].broker.topology.queues for number in town.nodes}
        for at, node in enumerate(town.nodes.values(), 1):
            await client(node, publish)
            await until(lambda at=at: all(queues[n][f"f{n}"].message_count == 60 * at for n in queues))  # type: ignore[misc]
            await until(lambda at=at: sum(queues[n][f"n{n}"].message_count for n in queues) == 60 * at)  # type: ignore[misc]
            if at == 1:
                shares = [queues[n][f"n{n}"].message_count for n in queues]
                assert all(shares)
            elif kind != "x-random":
                assert [queues[n][f"n{n}"].message_count for n in queues] == [share * at for share in shares], (
                    "a key goes to one queue, wherever it is published"
                )


async def test_rewind_move_and_delayed_messages_are_asked_of_the_leader() -> None:
    async with town_of(1, 2) as town:
        broker = town.nodes[2].broker

        def fill(channel: Any) -> None:
            channel.queue_declare("r", durable=True, arguments={"x-retain": "1h"})
            channel.queue_declare("m", durable=True)
            channel.confirm_delivery()
            send(channel, "a", "b", "c", queue="r")
            assert drain(channel, "r") == ["a", "b", "c"]
            send(channel, "d", queue="r")

        await client(town.nodes[2], fill)
        dry = await administer(broker, "guest", "queues.rewind", {"name": "r", "since_ms": 0, "dry_run": True})
        assert (dry["replayed"], dry["left"]) == (0, 3)
        done = await administer(broker, "guest", "queues.rewind", {"name": "r", "since_ms": 0})
        assert (done["replayed"], done["left"]) == (3, 0)
        moved = await administer(broker, "guest", "queues.move", {"source": "r", "destination": "m"})
        assert moved == {"moved": 4, "left": 0}
        assert await client(town.nodes[2], lambda channel: drain(channel, "m")) == ["d", "a", "b", "c"]
        assert (await administer(broker, "guest", "delayed.list", {"queue": "m"}))["rows"] == []
        with pytest.raises(Exception, match="retains nothing"):
            await administer(broker, "guest", "queues.rewind", {"name": "m", "since_ms": 0})
        with pytest.raises(Exception, match="no delayed message 5"):
            await administer(broker, "guest", "delayed.cancel", {"queue": "m", "id": 5})


async def test_who_holds_a_delivery_for_too_long_is_closed_at_any_broker() -> None:
    async with town_of(1, 2, housekeeping_interval_ms=20) as town:

        def hold(queue: str, of_queue: dict[str, int], of_consumer: dict[str, int]) -> Callable[[Any], None]:
            def use(channel: Any) -> None:
                channel.queue_declare(queue, durable=True, arguments=of_queue)
                send(channel, "kept", queue=queue)
                channel.basic_consume(queue, lambda *_: None, arguments=of_consumer)
                refused(channel, 406, "timed out. Timeout value used: 100 ms", channel.start_consuming)

            return use

        hurried = {"x-consumer-timeout": 100}
        await client(town.nodes[2], hold("t", hurried, {}))
        assert await client(town.nodes[1], lambda channel: drain(channel, "t")) == ["kept*"]
        await client(town.nodes[2], hold("u", {"x-consumer-timeout": 60_000}, hurried))
        assert await client(town.nodes[1], lambda channel: drain(channel, "u")) == ["kept*"]


async def test_two_that_declare_it_at_once_mean_one_queue() -> None:
    async with town_of(1, 2) as town:
        for node in town.nodes.values():
            node.engine.interests.brokers = lambda node=node: {1, 2} - {node.id}  # type: ignore[misc]
            node.engine.interests._settle_s = 30  # this process may be slow
        brokers = [node.broker for node in town.nodes.values()]
        for number in range(10):
            async with trio.open_nursery() as nursery:
                for broker in brokers:
                    nursery.start_soon(broker.declare_queue, f"n{number}")
        await until(lambda: len(brokers[1].topology.vhosts["/"].away) == 10)
        assert (len(brokers[0].topology.queues), len(brokers[1].topology.queues)) == (10, 0)


async def test_dead_letters_come_back_as_they_came_whoever_leads_the_queues() -> None:
    async with town_of(1, 2) as town:
        names = range(4)

        def fill(channel: Any) -> None:
            channel.confirm_delivery()
            for name in names:
                dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"d{name}"}
                channel.queue_declare(f"q{name}", durable=True, arguments=dead)
                channel.queue_declare(f"d{name}", durable=True)
                channel.queue_bind(f"q{name}", "amq.topic", f"{name}.#")
                channel.basic_publish("amq.topic", f"{name}.x", b"", BasicProperties(delivery_mode=2))
                channel.basic_reject(channel.basic_get(f"q{name}")[0].delivery_tag, requeue=False)

        def came(channel: Any) -> list[tuple[str, str]]:
            methods = [channel.basic_get(f"q{name}", auto_ack=True)[0] for name in names]
            return [(method.exchange, method.routing_key) for method in methods]

        await client(town.nodes[2], fill)
        ways = set()
        for name in names:
            broker = town.nodes[1 + name % 2].broker
            source, destination = broker.topology.queues[f"d{name}"], broker.topology.queues[f"q{name}"]
            ways.add((source.elsewhere, destination.elsewhere))
            there = [node.broker.topology.queues[f"d{name}"] for node in town.nodes.values()]
            await until(lambda there=there: any(one.message_count == 1 for one in there))  # type: ignore[misc]
            moved = await administer(broker, "guest", "queues.move", {"source": f"d{name}", "destination": f"q{name}"})
            assert moved["moved"] == 1
        assert len(ways) > 1
        assert await client(town.nodes[2], came) == [("amq.topic", f"{name}.x") for name in names]
