"""The will of a client, from before CONNACK until it is published or void."""

from __future__ import annotations

from core_log.memory_files import MemoryFiles
from routing.broker import open_broker
from routing.config import BrokerConfig
from tests.protocols.mqtt.conftest import World
from tests.protocols.mqtt.wire import DISCONNECT, connect, packets, publish, subscribe

WILL = ("w", b"gone", 1, True)


async def test_mqtt_3_1_2_17_a_will_with_retain_is_retained(world: World) -> None:
    mortal = await world.client("mortal", will=WILL)
    mortal.lose()
    late = await world.client("late")
    await late.send(subscribe(1, ("w", 1)))
    assert list(packets(late.take()))[1][0] == 0x33


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
