"""What is found again: after a clean stop exactly what was there, after a crash all that was promised."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal

import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from routing.message import NeutralProperties, Properties, register_decoder
from tests.routing.harness import TRANSIENT, engine, killed

Ending = Callable[[MemoryFiles], MemoryFiles]
endings = pytest.mark.parametrize("ending", [MemoryFiles.crash, killed], ids=["power loss", "killed"])


async def test_a_clean_stop_keeps_everything_as_it_was() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q")
        client = running.client()
        client.publish("q", *range(1, 11))
        client.publish("q", "transient", properties=TRANSIENT)
        client.session.set_prefetch(4, per_session=False)
        await client.consume("q")
        assert client.take_bodies() == ["1", "2", "3", "4"]
        client.ack(2)
        client.session.cancel(next(iter(client.session.consumers)))
        assert client.take() == []
    expected = [(body, True) for body in ("1", "3", "4")]
    expected += [(str(number), False) for number in range(5, 11)] + [("transient", False)]
    for _ in range(3):
        async with engine(files) as running:
            assert running.count("q") == len(expected)
    async with engine(files) as running:
        assert await running.drain("q") == expected
    async with engine(files) as running:
        assert running.count("q") == 0


async def test_only_what_was_delivered_is_marked_after_several_clean_stops() -> None:
    files = MemoryFiles()
    for round_ in range(4):
        async with engine(files) as running:
            await running.queue("q")
            client = running.client()
            await client.publish_safely("q", round_)
            client.session.set_prefetch(1, per_session=False)
            await client.consume("q")
            running.turn()
            await running.until(lambda client=client: bool(client.deliveries))  # type: ignore[misc]
            (first,) = client.take()
            assert (first.body, first.redelivered) == ("0", round_ > 0)
    async with engine(files) as running:
        assert await running.drain("q") == [("0", True), ("1", False), ("2", False), ("3", False)]


@endings
async def test_after_a_crash_all_that_was_confirmed_is_there_and_marked(ending: Ending) -> None:
    files = MemoryFiles()
    async with engine(files, stripes=3) as running:
        names = ["a", "b", "c", "d"]
        for name in names:
            await running.queue(name)
            await running.bind("amq.fanout", name)
        client = running.client()
        client.publish("", "first", exchange="amq.fanout")
        await client.publish_safely("", *range(5), exchange="amq.fanout")
        await client.publish_safely("b", "only b")
        found = ending(files)
    async with engine(found, stripes=3) as running:
        for name in names:
            bodies = ["first", *map(str, range(5))] + (["only b"] if name == "b" else [])
            assert await running.drain(name) == [(body, True) for body in bodies]


@endings
async def test_what_was_settled_durably_does_not_come_back(ending: Ending) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q")
        await running.queue("r")
        for name in ("q", "r"):
            await running.bind("amq.fanout", name)
        client = running.client()
        await client.publish_safely("", *range(1, 9), exchange="amq.fanout")
        await client.consume("q")
        client.take()
        client.ack(2, 3)
        client.ack(7)
        await running.synced()
        client.ack(5)
        found = ending(files)
    async with engine(found) as running:
        assert await running.drain("q") == [(body, True) for body in ("1", "4", "5", "6", "8")]
        assert [body for body, _ in await running.drain("r")] == [str(number) for number in range(1, 9)]


@pytest.mark.parametrize("act", ["purge", "get", "no_ack", "delete"])
@endings
async def test_other_ways_to_be_done_with_messages_are_durable_too(act: str, ending: Ending) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q")
        client = running.client()
        await client.publish_safely("q", 1, 2)
        if act == "purge":
            assert await running.broker.purge_queue("q") == 2
        elif act == "get":
            for _ in range(2):
                assert await client.session.get("q", no_ack=True) is not None
        elif act == "no_ack":
            await client.consume("q", no_ack=True)
            assert len(client.take()) == 2
            client.session.cancel(next(iter(client.session.consumers)))
        else:
            await running.broker.delete_queue("q")
            await running.queue("q")
        await running.synced()
        await client.publish_safely("q", 3)
        found = ending(files)
    async with engine(found) as running:
        assert await running.drain("q") == [("3", True)]


async def test_what_was_delivered_before_a_crash_is_marked_although_nothing_was_written_since_the_start() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.queue("q")
        await running.client().publish_safely("q", 1, 2)
    async with engine(files) as running:
        client = running.client()
        await client.consume("q")
        running.turn()
        await running.until(lambda: len(client.deliveries) == 2)
        assert [(d.body, d.redelivered) for d in client.take()] == [("1", False), ("2", False)]
        found = files.crash()
    async with engine(found) as running:
        assert await running.drain("q") == [("1", True), ("2", True)]


@pytest.mark.parametrize("seed", range(12))
async def test_torn_writes_at_any_moment_take_nothing_that_was_promised(seed: int) -> None:
    """A power loss in the middle of everything: any subset of what was not synced survives."""
    dice = random.Random(seed)
    files = MemoryFiles()
    found, promised = None, 0
    async with engine(files, stripes=2, queue_segment_bytes=2048) as running:
        for name in ("q", "r"):
            await running.queue(name)
            await running.bind("amq.fanout", name)
        client = running.client()
        for number in range(60):
            client.publish("", number, exchange="amq.fanout", confirm=True)
            if dice.random() < 0.4:
                running.turn()
            if dice.random() < 0.3:
                await trio.lowlevel.checkpoint()
            if dice.random() < 0.1:
                running.turn()
                await running.until(lambda number=number: client.confirmed > number - 3)  # type: ignore[misc]
            if dice.random() < 0.05:
                found, promised = files.crash(dice), client.confirmed
        found, promised = files.crash(dice), client.confirmed
    async with engine(found, stripes=2) as running:
        for name in ("q", "r"):
            bodies = [int(body) for body, _ in await running.drain(name)]
            assert bodies[:promised] == list(range(promised))
            assert bodies == sorted(set(bodies))


async def test_crash_after_crash() -> None:
    found = MemoryFiles()
    for round_ in range(5):
        async with engine(found, checkpoint_interval_bytes=1) as running:
            await running.queue("q")
            assert running.count("q") == round_
            await running.client().publish_safely("q", round_)
            found = found.crash()
    async with engine(found) as running:
        assert await running.drain("q") == [(str(number), True) for number in range(5)]


# --- the catalog ---------------------------------------------------------------------------


@endings
async def test_durable_things_come_back_and_transient_ones_do_not(ending: Ending) -> None:
    files = MemoryFiles()
    owner = object()
    async with engine(files) as running:
        broker = running.broker
        await broker.declare_exchange("x", "topic", durable=True, arguments={"a": [1, {"b": None}], "d": b"\xff"})
        await broker.declare_exchange("auto", "fanout", durable=True, auto_delete=True)
        await broker.declare_exchange("inside", "direct", durable=True, internal=True)
        await broker.declare_exchange("fleeting", "fanout")
        await running.queue("q", arguments={"x-queue-mode": "lazy", "n": 5})
        await running.queue("surrogate \udcff")
        await running.queue("auto q", auto_delete=True)
        await running.queue("fleeting q", durable=False)
        await broker.declare_queue("mine", durable=True, exclusive=True, owner=owner)
        await running.bind("x", "q", "a.*")
        await running.bind("x", "q", "a.+", syntax="mqtt")
        await running.bind("amq.headers", "q", arguments={"x-match": "any", "h": 1})
        await running.bind("x", "fleeting q", "a.*")
        await running.bind("x", "mine", "a.*", owner=owner)
        await running.bind("fleeting", "q")
        await broker.bind("exchange", "inside", "x", "i")
        await broker.bind("exchange", "fleeting", "x", "i")
        await running.bind("x", "q", "gone")
        await broker.unbind("queue", "q", "x", "gone")
        await broker.declare_exchange("deleted", "fanout", durable=True)
        await running.bind("deleted", "q")
        await broker.delete_exchange("deleted")
        await running.queue("deleted q")
        await running.bind("x", "deleted q", "k")
        await broker.delete_queue("deleted q")
        found = ending(files)
    for again in (found, files):
        async with engine(again) as running:
            broker = running.broker
            topology = broker.topology
            assert sorted(name for name in topology.exchanges if name and not name.startswith("amq.")) == [
                "auto", "inside", "x",
            ]  # fmt: skip
            assert sorted(topology.queues) == ["auto q", "q", "surrogate \udcff"]
            await broker.declare_exchange("x", "topic", durable=True, arguments={"a": [1, {"b": None}], "d": b"\xff"})
            await broker.declare_exchange("auto", "fanout", durable=True, auto_delete=True)
            await broker.declare_exchange("inside", "direct", durable=True, internal=True)
            await running.queue("q", arguments={"x-queue-mode": "lazy", "n": 5})
            await running.queue("auto q", auto_delete=True)
            bindings = [
                (b.exchange, *b.destination, b.pattern, b.syntax, dict(b.arguments))
                for exchange in topology.exchanges.values()
                for b in exchange.bindings
            ]
            assert sorted(bindings, key=str) == [
                ("amq.headers", "queue", "q", "", "amqp", {"x-match": "any", "h": 1}),
                ("x", "exchange", "inside", "i", "amqp", {}),
                ("x", "queue", "q", "a.*", "amqp", {}),
                ("x", "queue", "q", "a.+", "mqtt", {}),
            ]
            client = running.client()
            await client.publish_safely("a.b", 1, exchange="x")
            assert running.count("q") == 1
            await broker.purge_queue("q")


async def test_arguments_come_back_with_their_classes() -> None:
    class Timestamp(int):
        """As a protocol may have one."""

    files = MemoryFiles()
    arguments = {
        "d": Decimal("1.50"),
        "t": Timestamp(7),
        "l": [Decimal(1)],
        "f": 1.0,
        "b": True,
        "n": None,
        "x": b"\x00",
    }
    headers = Properties("classes", b"x", persistent=True)
    register_decoder("classes", lambda raw: NeutralProperties(headers=dict(arguments)))
    for _ in range(2):
        async with engine(files) as running:
            await running.queue("q", arguments=arguments)
            await running.bind("amq.headers", "q", arguments=arguments)
            assert len(running.broker.topology.exchanges["amq.headers"].bindings) == 1
            running.client().publish("", 1, exchange="amq.headers", properties=headers)
            assert len(await running.drain("q")) == 1


async def test_queue_ids_are_never_used_again() -> None:
    found = MemoryFiles()
    seen: set[int] = set()
    for round_ in range(4):
        async with engine(found, stripes=1) as running:
            topology = running.broker.topology
            for number in range(3):
                name = f"{round_}.{number}"
                await running.queue(name)
                assert topology.queues[name].id not in seen
                seen.add(topology.queues[name].id)
                await running.queue(f"t{name}", durable=False)
                await running.broker.delete_queue(name)
            if round_ % 2:
                found = found.crash()


async def test_messages_of_a_queue_that_was_never_made_durable_do_not_turn_up_in_another() -> None:
    """The log may be synced before the catalog: then it names a queue id that the catalog has not given out."""
    files = FaultyFiles(MemoryFiles())
    async with engine(files, stripes=1) as running:
        await running.queue("before")
        client = running.client()
        await client.publish_safely("before", 0)

        def no_sync(operation: str, path: str) -> None:
            if operation == "sync" and path.startswith("catalog"):
                raise OSError(5, "no")

        files.hook = no_sync
        async with trio.open_nursery() as nursery:

            async def declare() -> None:
                with pytest.raises(Exception):  # noqa: B017
                    await running.queue("ghost")

            nursery.start_soon(declare)
        await client.publish_safely("ghost", "boo")
        found = files.crash()
        files.hook = None
    async with engine(found, stripes=1) as running:
        assert list(running.broker.topology.queues) == ["before"]
        await running.queue("new")
        await running.client().publish_safely("new", "mine")
        found = found.crash()
    async with engine(found, stripes=1) as running:
        assert await running.drain("new") == [("mine", True)]


async def test_fewer_stripes_than_before() -> None:
    files = MemoryFiles()
    async with engine(files, stripes=5) as running:
        for number in range(10):
            await running.queue(f"q{number}")
            await running.client().publish_safely(f"q{number}", number)
    async with engine(files, stripes=1) as running:
        for number in range(10):
            assert await running.drain(f"q{number}") == [(str(number), False)]
        await running.queue("new")
        assert running.home("new").index == 0


async def test_names_of_any_bytes_survive_in_messages() -> None:
    files = MemoryFiles()
    key, exchange = "k\udcff\udc81ö", "x\udc80"
    async with engine(files) as running:
        await running.broker.declare_exchange(exchange, "direct", durable=True)
        await running.queue("q")
        await running.bind(exchange, "q", key)
        await running.client().publish_safely(key, 1, exchange=exchange)
        found = files.crash()
    async with engine(found) as running:
        client = running.client()
        await client.consume("q")
        running.turn()
        await running.until(lambda: bool(client.deliveries))
        assert [(d.exchange, d.key) for d in client.deliveries] == [(exchange, key)]
        await running.client().publish_safely(key, 2, exchange=exchange)
