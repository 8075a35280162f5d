"""Publishes that were seen before: confirmed, put into no queue that saw them, and known over every kind of stop."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from core_log.files import FaultyFiles, MemoryFiles
from protocols.amqp.adapter_properties import PROTOCOL
from protocols.amqp.properties import BasicProperties, encode_properties
from protocols.mqtt.adapter_properties import PROTOCOL as MQTT
from protocols.mqtt.properties import Property, encode_property
from routing.administration.measures import Measures
from routing.facts import pack
from routing.message import Properties, Slab
from routing.queues.homes.destination_sets import DestinationSet
from routing.queues.homes.queue_partition import QueuePartition
from tests.routing.harness import Client, Engine, engine, killed
from tests.support.metrics import series

WINDOW = {"x-deduplication-window-ms": 10_000}


def publish(client: Client, key: str, *ids: str | None, exchange: str = "", header: bool = False) -> None:
    """One slab of messages with these ids, which are their bodies as well; `client` asks for confirms."""
    raws = []
    for name in ids:
        headers = {"x-deduplication-header": name} if header and name else None
        raws.append(encode_properties(BasicProperties(message_id=None if header else name, headers=headers)))
    common = Properties(PROTOCOL, raws[0], persistent=True)
    same = raws.count(raws[0]) == len(raws)
    slab = Slab(exchange, key, common, [str(name).encode() for name in ids], raws=None if same else raws)
    client.session.publish(slab, confirm=True)


async def confirmed(running: Engine, client: Client) -> None:
    running.turn()
    await running.until(lambda: client.confirmed == client.session.confirms.published)


async def bodies(running: Engine, queue: str) -> list[str]:
    return [body for body, _ in await running.drain(queue)]


@pytest.mark.parametrize("header", [False, True])
async def test_the_second_is_confirmed_and_not_taken(header: bool) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments=WINDOW)
        client = running.client()
        publish(client, "q", "a", "b", "a", None, None, header=header)
        publish(client, "q", "b", "c", header=header)
        publish(client, "q", "c", "c", header=header)
        await confirmed(running, client)
        assert await bodies(running, "q") == ["a", "b", "None", "None", "c"]
        publish(client, "q", "a", header=header)
        await confirmed(running, client)
        assert await bodies(running, "q") == []
        assert running.broker.topology.queues["q"].duplicates == 5


@pytest.mark.parametrize("name", ["message-id", "millrace.message-id", "x-deduplication-header"])
async def test_a_user_property_of_mqtt_says_what_a_message_is_called(name: str) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments=WINDOW)
        client = running.client()

        def send(*ids: str) -> None:
            raws = [b"\1" + encode_property(Property.USER_PROPERTY, (name, one)) for one in ids]
            common, bodies = Properties(MQTT, raws[0], persistent=True), [one.encode() for one in ids]
            client.session.publish(Slab("", "q", common, bodies, raws=raws), confirm=True)

        send("a", "b", "", "")
        publish(client, "q", "b", "c")
        send("c", "a")
        client.session.publish(Slab("", "q", Properties(MQTT, b"\1", persistent=True), [b"plain"] * 2), confirm=True)
        await confirmed(running, client)
        assert await bodies(running, "q") == ["a", "b", "", "", "c", "plain", "plain"]
        found = series(await Measures(running.broker, 100).families())
        assert found["millrace_queue_duplicates", "/", "q"] == 3


async def test_a_queue_that_does_not_mind_gets_it_again() -> None:
    async with engine(MemoryFiles()) as running:
        for name, arguments in (("once", WINDOW), ("also", WINDOW), ("all", {})):
            await running.queue(name, arguments=arguments)
            await running.bind("amq.fanout", name)
        client = running.client()
        publish(client, "once", "a")
        publish(client, "", "a", "b", exchange="amq.fanout")
        publish(client, "", "b", "c", exchange="amq.fanout")
        await confirmed(running, client)
        assert await bodies(running, "once") == ["a", "b", "c"]
        assert await bodies(running, "also") == ["a", "b", "c"]
        assert await bodies(running, "all") == ["a", "b", "b", "c"]


async def test_a_duplicate_is_not_confirmed_before_its_original() -> None:
    files = MemoryFiles()
    async with engine(files, stripes=1) as running:
        await running.queue("q", arguments=WINDOW)
        first, second = running.client(), running.client()
        seen: list[list[str]] = []
        second.on_confirm = lambda up_to: seen.append([*pictures])
        pictures: list[str] = []
        first.on_confirm = lambda up_to: pictures.append("first")
        publish(first, "q", "a")
        publish(second, "q", "a")
        running.turn()
        await running.until(lambda: second.confirmed == 1)
        assert seen == [["first"]]
        after = files.crash()
    async with engine(after, stripes=1) as running:
        assert await bodies(running, "q") == ["a"]


async def test_after_the_window_it_is_new(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments=WINDOW)
        client = running.client()
        publish(client, "q", "a")
        clock.jump(9.9)
        publish(client, "q", "a")
        running.turn()
        assert running.count("q") == 1
        clock.jump(5)
        publish(client, "q", "a")
        running.turn()
        assert running.count("q") == 2
        await confirmed(running, client)


@pytest.mark.parametrize("how", ["stop", "kill", "power", "checkpoint"])
async def test_ids_outlive_the_process(clock: MockClock, how: str) -> None:
    files = MemoryFiles()
    ids = [f"id-{number}" for number in range(1000)]
    config: dict[str, Any] = {"queue_segment_bytes": 4096} if how == "checkpoint" else {}
    async with engine(files, **config) as running:
        await running.queue("q", arguments=WINDOW)
        client = running.client()
        for start in range(0, 1000, 50):
            publish(client, "q", *ids[start : start + 50])
            await confirmed(running, client)
        assert await bodies(running, "q") == ids
        await running.synced()
        if how == "checkpoint":
            # The part of the log that held the ids goes, once a checkpoint has them.
            home = running.home("q")
            assert home.log.log_start_offset == 0
            await running.shortened(home, 500)
        if how == "kill":
            files = killed(files)
        elif how != "stop":
            files = files.crash()
    async with engine(files, **config) as running:
        client = running.client()
        publish(client, "q", *ids, "new")
        await confirmed(running, client)
        assert await bodies(running, "q") == ["new"]
        clock.jump(12.6)
        publish(client, "q", *ids)
        await confirmed(running, client)
        assert await bodies(running, "q") == ids


async def test_dead_letters_are_no_duplicates() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("dead", arguments=WINDOW)
        through = {"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        await running.queue("q", arguments=through)
        client = running.client()
        publish(client, "dead", "a")
        publish(client, "q", "a")
        await confirmed(running, client)
        await running.until(lambda: running.count("dead") == 2)


async def test_a_policy_makes_a_queue_remember_at_once() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        client = running.client()
        publish(client, "q", "a", "a")
        running.turn()
        await running.broker.set_policy("once", "^q$", {"deduplication-window-ms": 10_000}, apply_to="queues")
        publish(client, "q", "b", "b")
        await confirmed(running, client)
        assert await bodies(running, "q") == ["a", "a", "b"]


async def test_what_a_transaction_published_is_known_however_it_came_about() -> None:
    """Two homes: the commit is a record first, and a start may have to apply it, for the first or the second time."""
    memory = MemoryFiles()
    files = FaultyFiles(memory)
    found: list[MemoryFiles] = []
    async with engine(files) as running:
        for name in ("q", "r"):
            await running.queue(name, arguments=WINDOW)
            await running.bind("amq.fanout", name)
        assert running.home("q") is not running.home("r")
        client = running.client()
        client.session.begin()
        raw = encode_properties(BasicProperties(message_id="a"))
        client.session.publish(Slab("amq.fanout", "", Properties(PROTOCOL, raw, persistent=True), [b"a"]))
        files.hook = lambda operation, path: found.append(killed(memory))
        await client.session.commit()
        await running.synced()
        files.hook = None
    applied = 0
    for left in found:
        async with engine(left) as running:
            decided = bool(running.count("q"))
            assert decided == bool(running.count("r"))
            client = running.client()
            if decided:
                publish(client, "", "a", exchange="amq.fanout")
                await confirmed(running, client)
                for name in ("q", "r"):
                    assert set(await bodies(running, name)) == {"a"}
                    assert running.broker.topology.queues[name].duplicates > 0
                applied += 1
    assert 0 < applied < len(found)


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
async def test_a_policy_of_an_exchange_concerns_all_queues_it_leads_to(clock: MockClock, how: str) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        for name in ("one", "two"):
            await running.queue(name)
            await running.bind("amq.fanout", name)
        await running.broker.set_policy("once", "^amq.fanout$", {"deduplication-window-ms": 10_000})
        client = running.client()
        publish(client, "", "a", "b", "a", exchange="amq.fanout")
        publish(client, "one", "a")
        publish(client, "one", "a")
        await confirmed(running, client)
        assert await bodies(running, "one") == ["a", "b", "a", "a"]
        await running.queue("three")
        await running.bind("amq.fanout", "three")
        publish(client, "", "b", "c", exchange="amq.fanout")
        await confirmed(running, client)
        assert [await bodies(running, name) for name in ("one", "two", "three")] == [["c"], ["a", "b", "c"], ["b", "c"]]
        await running.synced()
        files = {"stop": lambda: files, "kill": lambda: killed(files), "power": files.crash}[how]()
    async with engine(files) as running:
        client = running.client()
        publish(client, "", "a", "c", "d", exchange="amq.fanout")
        await confirmed(running, client)
        assert [await bodies(running, name) for name in ("one", "two", "three")] == [["d"], ["d"], ["a", "d"]]
        clock.jump(13)
        publish(client, "", "a", "a", exchange="amq.fanout")
        await confirmed(running, client)
        assert await bodies(running, "two") == ["a"]
        await running.broker.delete_policy("once")
        publish(client, "", "a", "a", exchange="amq.fanout")
        await confirmed(running, client)
        assert await bodies(running, "two") == ["a", "a"]


@pytest.mark.parametrize("by", ["queue", "exchange"])
async def test_transactions_hold_no_duplicates(by: str) -> None:
    async with engine(MemoryFiles(), stripes=2) as running:
        for name in ("one", "two"):
            await running.queue(name, arguments=WINDOW if by == "queue" else {})
            await running.bind("amq.fanout", name)
        if by == "exchange":
            await running.broker.set_policy("once", "^amq.fanout$", {"deduplication-window-ms": 10_000})
        client = running.client()
        session = client.session
        session.begin()
        publish(client, "", "undone", exchange="amq.fanout")
        session.roll_back()
        publish(client, "", "undone", "a", "a", exchange="amq.fanout")
        publish(client, "", "a", exchange="amq.fanout")
        await session.commit()
        publish(client, "", "a", "b", exchange="amq.fanout")
        await session.commit()
        assert [await bodies(running, name) for name in ("one", "two")] == [["undone", "a", "b"]] * 2


async def test_the_window_of_an_exchange_is_not_that_of_others_that_lead_to_the_same_queues() -> None:
    """Who led a home next was told it of what others had published, and may have dropped that."""
    async with engine(MemoryFiles()) as running:
        await running.queue("q")
        for exchange in ("amq.fanout", "amq.direct"):
            await running.bind(exchange, "q")
        await running.broker.set_policy("once", "^amq.fanout$", {"deduplication-window-ms": 10_000})
        router = running.client().session.vhost.router
        windows = []
        for exchange, key in (("amq.direct", ""), ("amq.fanout", ""), ("", "q"), ("amq.direct", "")):
            ((route, _),) = router.routed(Slab(exchange, key, Properties(PROTOCOL, b"\0\0", persistent=True), [b"a"]))
            windows.append([destinations.once_in_ms for _, destinations in route.homes])
        assert windows == [[0], [10_000], [0], [0]]


@pytest.mark.parametrize("anew", [False, True])
async def test_exchanges_with_a_window_that_lead_to_the_same_queue_remember_each_for_itself(anew: bool) -> None:
    async with engine(MemoryFiles()) as running:
        broker, client = running.broker, running.client()
        await running.queue("q")
        for name in ("one", "two"):
            await broker.declare_exchange(name, "fanout")
            await running.bind(name, "q")
            await broker.set_policy(name, f"^{name}$", {"deduplication-window-ms": 10_000}, apply_to="exchanges")
            publish(client, "", name, exchange=name)
        await broker.delete_policy("one")
        if anew:
            await broker.delete_exchange("one")
            await broker.declare_exchange("one", "direct")
            await running.bind("one", "q", "")
        publish(client, "", "one", exchange="one")
        publish(client, "", "two", "one", exchange="two")
        await confirmed(running, client)
        assert await bodies(running, "q") == ["one", "two", "one"]


async def test_a_window_that_an_exchange_of_headers_gets_anew_counts() -> None:
    async with engine(MemoryFiles()) as running:
        broker, client = running.broker, running.client()
        await running.queue("q")
        await running.bind("amq.headers", "q")
        for name in ("a", "b"):
            await broker.set_policy("once", "^amq.headers$", {"deduplication-window-ms": 10_000})
            publish(client, "", name, name, exchange="amq.headers")
            await broker.delete_policy("once")
            publish(client, "", name, exchange="amq.headers")
        await confirmed(running, client)
        assert await bodies(running, "q") == ["a", "a", "b", "b"]


@pytest.mark.parametrize("confirm", [False, True])
async def test_what_a_full_queue_refuses_the_others_take_once(confirm: bool) -> None:
    """Its publisher is told and publishes it again."""
    async with engine(MemoryFiles()) as running:
        await running.queue("once", arguments=WINDOW)
        await running.queue("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        for name in ("once", "full"):
            await running.bind("amq.fanout", name)
        client = running.client()
        for name in ("a", "b", "b", "c", "b"):
            raw = encode_properties(BasicProperties(message_id=name))
            properties = Properties(PROTOCOL, raw, persistent=True)
            client.session.publish(Slab("amq.fanout", "", properties, [name.encode()]), confirm=confirm)
            running.turn()
        assert await bodies(running, "once") == ["a", "b", "c"]
        assert await bodies(running, "full") == ["a"]


async def test_the_window_is_said_of_messages_that_only_some_queues_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leads the homes elsewhere knows of it by that."""
    async with engine(MemoryFiles(), stripes=1) as running:
        for name, arguments in (("now", {}), ("later", {"x-delayed": True})):
            await running.queue(name, arguments=arguments)
            await running.bind("amq.fanout", name)
        await running.broker.set_policy("once", "^amq.fanout$", {"deduplication-window-ms": 10_000})
        windows: list[int] = []
        enqueue = QueuePartition.enqueue

        def seen(home: QueuePartition, slab: Slab, destinations: DestinationSet) -> int:
            windows.append(destinations.once_in_ms)
            return enqueue(home, slab, destinations)

        monkeypatch.setattr(QueuePartition, "enqueue", seen)
        waits = Properties(PROTOCOL, b"\0\0", persistent=True, facts=pack(True, 0, delay_ms=60_000))
        running.client().publish("", "m", exchange="amq.fanout", properties=waits)
        assert windows == [10_000, 10_000]
