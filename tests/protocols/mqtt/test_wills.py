"""The will of a client, from before CONNACK until it is published or void."""

from __future__ import annotations

import threading

import trio
from trio.testing import wait_all_tasks_blocked

from core_log.memory_files import FaultyFiles, MemoryFiles
from gateway.authentication import authenticator
from routing.access.grants import EVERYTHING, TopicPermission
from routing.broker import open_broker
from routing.config import BrokerConfig
from tests.protocols.mqtt.conftest import World
from tests.protocols.mqtt.test_clauses_5 import CONNACK, told
from tests.protocols.mqtt.wire import DISCONNECT, connect, packets, publish, subscribe, text
from tests.protocols.mqtt.wire_5 import connect_5

WILL = ("w", b"gone", 1, True)


async def test_mqtt_3_1_2_17_a_will_with_retain_is_retained(world: World) -> None:
    mortal = await world.client("mortal", will=WILL)
    mortal.lose()
    while world.broker.retained.get("/", "w") is None:
        await world.next_turn()
    late = await world.client("late")
    await late.send(subscribe(1, ("w", 1)))
    assert list(packets(late.take()))[1][0] == 0x33


async def test_what_its_owner_may_not_publish_is_not_retained_either(world: World) -> None:
    rights = world.broker.rights
    await rights.add_user("low", b"secret")
    await rights.set_permission("/", "low", EVERYTHING)
    await rights.set_topic_permission("/", "low", "amq.topic", TopicPermission("^own$", ".*"))
    owner = await world.client("owner")
    await owner.send(publish("there", b"1", retain=True))
    for topic, body in (("w", b"gone"), ("there", b""), ("own", b"mine")):
        mortal = world.open(authenticate=authenticator(rights))
        await mortal.send(connect("mortal", user="low", password=b"secret", will=(topic, body, 1, True)))
        await mortal.expect(b"\x20\2\0\0")
        mortal.lose()
        await world.next_turn()
    assert world.broker.retained.get("/", "w") is None
    assert world.broker.retained.get("/", "there") is not None
    assert world.broker.retained.get("/", "own") is not None


async def test_a_client_is_connected_once_its_will_is_safe() -> None:
    files = MemoryFiles()
    async with open_broker(files) as broker:
        client = World(broker).open()
        await client.send(connect("mortal", will=WILL))
        assert client.take() == b"\x20\2\0\0"
        left = files.crash()
    async with open_broker(left, BrokerConfig(will_grace_ms=0)) as broker:
        world = World(broker)
        while broker.retained.get("/", "w") is None:
            await world.next_turn()


async def test_mqtt_3_1_2_10_disconnect_erases_it_for_good() -> None:
    files = MemoryFiles()
    async with open_broker(files) as broker:
        world = World(broker)
        client = await world.client("mortal", will=WILL)
        await client.send(DISCONNECT)
        client.lose()
    async with open_broker(files, BrokerConfig(will_grace_ms=0)) as broker:
        world = World(broker)
        await broker.wills.finish()
        assert broker.retained.count == 0
        assert not broker.wills._waiting


async def test_who_comes_back_after_a_kill_is_not_gone() -> None:
    files = MemoryFiles()
    async with open_broker(files) as broker:
        world = World(broker)
        await world.client("mortal", will=WILL)
        await world.client("gone", will=("w", b"of another", 0, False))
        left = files.crash()
    async with open_broker(left, BrokerConfig(will_grace_ms=50)) as broker:
        world = World(broker)
        watcher = await world.client("watcher")
        await watcher.subscribe(("w", 0))
        await world.client("mortal", will=WILL)
        await watcher.expect(publish("w", b"of another"))
        assert broker.retained.count == 0


async def test_a_stop_publishes_wills_as_clients_are_gone_then() -> None:
    files = MemoryFiles()
    async with open_broker(files) as broker:
        client = await World(broker).client("mortal", will=WILL)
        client.adapter.shut_down("the broker stops")
        client.lose()
    async with open_broker(files) as broker:
        assert broker.retained.count == 1


async def test_a_will_that_is_too_large_to_be_published_is_refused() -> None:
    async with open_broker(MemoryFiles(), BrokerConfig(message_bytes_max=100)) as broker:
        world = World(broker)
        await world.client("mortal", will=("w", bytes(100), 1, True))
        client = world.open()
        await client.send(connect_5("mortal", flags=6, rest=b"\0" + text("w") + (101).to_bytes(2, "big") + bytes(101)))
        assert await told(client) == [(CONNACK, b"\0\x97\0")]
        assert client.adapter.closed
        older = world.open()
        await older.send(connect("mortal", will=("w", bytes(101), 1, True)))
        assert older.take() == b""
        assert older.adapter.closed


async def test_one_who_was_taken_over_before_his_will_was_kept_has_none() -> None:
    """It was kept for nobody, and published by the next start."""
    files, let_go = FaultyFiles(MemoryFiles()), threading.Event()

    def hold(operation: str, path: str) -> None:
        if operation in ("write", "sync") and path.startswith("retained"):
            let_go.wait(20)

    async with open_broker(files) as broker, trio.open_nursery() as nursery:
        world = World(broker)
        files.hook = hold
        clients = [world.open() for _ in range(3)]
        for client, will in zip(clients, (WILL, WILL, None), strict=True):
            nursery.start_soon(client.send, connect("mortal", will=will))
            await wait_all_tasks_blocked()
        let_go.set()
        await clients[-1].expect(b"\x20\2\0\0")
        assert [client.closed for client in clients] == [True, True, False]
        assert not [key for key, _ in broker.retained._store.items()]


async def test_whose_will_was_published_all_the_same_is_not_connected_any_more(world: World) -> None:
    """His broker was taken for gone: he would have no will any more."""
    client = world.open()
    await client.send(connect_5("mortal", flags=6, rest=b"\0" + text("w") + text("gone")))
    client.take()
    client.adapter._will._lost()
    assert client.closed
    ((head, body),) = packets(client.take())
    assert head == 0xE0
    assert body[0] == 0x83
