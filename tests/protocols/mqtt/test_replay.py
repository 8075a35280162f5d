"""What was published before comes again to who asks for it (`$replay`), from streams that have it."""

from __future__ import annotations

import pytest
import trio

from protocols.mqtt.adapter_replay import parse
from tests.protocols.mqtt import wire_5
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.wire import packets, publish, subscribe, unsubscribe

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("-1h/plant/#", (100 * HOUR_MS - HOUR_MS, "plant/#")),
        ("-30m/+/a", (100 * HOUR_MS - HOUR_MS // 2, "+/a")),
        ("-1000h/a", (0, "a")),
        ("1700000000/a", (1_700_000_000_000, "a")),
        ("0/#", (0, "#")),
        ("-1h", None), ("-1h/", None), ("/a", None), ("-h/a", None), ("1h/a", None), ("-1x/a", None),
        ("-1h/a/#/b", None), ("-1h/$SYS/#", None), ("1" * 20 + "/a", None), ("-1h/$share/g/a", None),
    ],
)  # fmt: skip
def test_when_and_what(topic_filter: str, expected: tuple[int, str] | None) -> None:
    assert parse("$replay/" + topic_filter, 100 * HOUR_MS) == expected


async def with_history(world: World, name: str = "history", pattern: str = "#") -> None:
    await world.broker.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    await world.broker.bind("queue", name, "amq.topic", pattern)


async def received(client: Client, count: int) -> list[tuple[str, int, bytes]]:
    """The next messages, once there are so many."""
    found: list[tuple[str, int, bytes]] = []
    with trio.fail_after(10):
        while len(found) < count:
            found += [(topic, qos, body) for topic, qos, _, body in client.take_deliveries()]
            if len(found) < count:
                await client.world.next_turn()
    return found


async def ask(client: Client, topic_filter: str, qos: int) -> int:
    """The code of SUBACK; what came behind it is left there."""
    await client.send(subscribe(1, (topic_filter, qos)))
    first, *rest = client.outbox.pieces
    client.outbox.pieces = rest
    return next(iter(packets(first)))[1][2]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_was_published_comes_again_and_then_what_is(world: World, qos: int) -> None:
    await with_history(world)
    sender = await world.client("sender")
    for number, topic in enumerate(("plant/1/temp", "office/1/temp", "plant/2/hum", "plant/2/temp"), 1):
        await sender.send(publish(topic, b"%d" % number, qos=1, packet_id=number))
    late = await world.client("late")
    assert await ask(late, "$replay/-1h/plant/+/temp", qos) == min(qos, 1)
    granted = min(qos, 1)
    assert await received(late, 2) == [("plant/1/temp", granted, b"1"), ("plant/2/temp", granted, b"4")]
    if granted:
        await late.acknowledge(1, 2)
    await sender.send(publish("plant/3/temp", b"5", qos=1, packet_id=9), publish("plant/3", b"6"))
    assert await received(late, 1) == [("plant/3/temp", granted, b"5")]
    await late.send(unsubscribe(2, "$replay/-1h/plant/+/temp"))
    assert late.take()[:1] == b"\xb0"
    await sender.send(publish("plant/3/temp", b"7", qos=1, packet_id=10))
    assert late.take() == b""


async def test_more_than_fits_in_a_window_comes_in_order(world: World) -> None:
    await with_history(world)
    sender = await world.client("sender")
    for start in range(0, 3000, 500):
        await sender.send(*(publish(f"a/{number % 7}", b"%d" % number) for number in range(start, start + 500)))
    late = await world.client("late")
    assert await ask(late, "$replay/0/a/#", 0) == 0
    assert [int(body) for _, _, body in await received(late, 3000)] == list(range(3000))


async def test_each_stream_that_has_it_is_read_and_others_are_not(world: World) -> None:
    await with_history(world, "plants", "plant.#")
    await with_history(world, "offices", "office.#")
    await world.broker.declare_queue("unbound", durable=True, arguments={"x-queue-type": "stream"})
    sender = await world.client("sender")
    await sender.send(publish("plant/1", b"1", qos=1, packet_id=1), publish("office/1", b"2", qos=1, packet_id=2))
    late = await world.client("late")
    assert await ask(late, "$replay/-1m/+/1", 1) == 1
    assert sorted(await received(late, 2)) == [("office/1", 1, b"2"), ("plant/1", 1, b"1")]
    assert [len(stream.consumers) for stream in world.broker.topology.vhost("/").streams.values()] == [1, 1, 0]
    late.lose()
    assert not any(stream.consumers for stream in world.broker.topology.vhost("/").streams.values())


async def test_who_asks_where_nothing_is_kept_is_told(world: World) -> None:
    client = await world.client("c")
    assert await ask(client, "$replay/-1h/#", 1) == 0x80
    newer = world.open()
    await newer.send(wire_5.connect_5("n"))
    newer.take()
    await newer.send(wire_5.subscribe_5(1, ("$replay/-1h/#", 1), ("$replay/x/#", 1)))
    assert newer.take()[-2:] == b"\x83\x8f"
