"""What MQTT 5 can say no to: publishes by the broker, messages by a subscriber. And packet ids beside each other."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from core_log.memory_files import MemoryFiles
from protocols.mqtt.adapter_inflight import OWN_ID_MAX
from protocols.mqtt.config import MqttConfig
from routing.access.grants import TopicPermission
from routing.administration import administer
from routing.broker import open_broker
from routing.config import BrokerConfig
from routing.errors import LimitExceeded
from tests.protocols.mqtt.conftest import Client, World
from tests.protocols.mqtt.test_clauses_5 import (
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    delivery,
    opened,
    told,
)
from tests.protocols.mqtt.test_delivery import Sink
from tests.protocols.mqtt.wire import acknowledge, packets
from tests.protocols.mqtt.wire_5 import acknowledge_5, block, connect_5, publish_5, subscribe_5, unsubscribe_5
from tests.routing.harness import killed

RESUME = 0
QUOTA_EXCEEDED, SERVER_BUSY = 0x97, 0x89

KINDS = {1: PUBACK, 2: PUBREC}


@pytest.fixture
def clock() -> MockClock:
    return MockClock()


async def answers(client: Client, *data: bytes) -> list[tuple[int, int, int]]:
    """Kind, packet id and reason of the answers to publishes, one each."""
    await client.send(*data)
    found = []
    for kind, body in await told(client, len(data)):
        found.append((kind, int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0))
    return found


async def subscribed(world: World, *requests: tuple[str, int], client_id: str = "s", expiry_s: int = 0) -> Client:
    """A client; what comes behind SUBACK is left to be taken."""
    properties = block(session_expiry=expiry_s) if expiry_s else b""
    client, _ = await opened(world, client_id, properties, flags=RESUME)
    await client.send(subscribe_5(1, *requests))
    (first, _), *_ = found = list(packets(client.outbox.pieces.pop(0)))
    assert first == SUBACK
    assert len(found) == 1
    return client


@pytest.mark.parametrize("qos", [1, 2])
async def test_mqtt_3_4_2_1_each_publish_is_answered_for_itself(world: World, qos: int) -> None:
    await world.broker.rights.set_topic_permission("/", "guest", "amq.topic", TopicPermission(write="^[^x]", read=".*"))
    await subscribed(world, ("a", 0))
    client, _ = await opened(world, "p")
    topics = ["a", "x/1", "b", "$SYS/x", "$delayed/", "$delayed/1", "a", "$delayed/5/a", "x", "a"]
    reasons = [0, 0x87, 0x10, 0x87, 0x90, 0x90, 0, 0, 0x87, 0]
    sent = [publish_5(topic, b"x", qos=qos, packet_id=number) for number, topic in enumerate(topics, 1)]
    expected = [(KINDS[qos], number, reason) for number, reason in enumerate(reasons, 1)]
    assert await answers(client, *sent) == expected
    assert not client.closed
    delayed = await administer(world.broker, "guest", "delayed.count", {})
    assert sum(row[2] for row in delayed["rows"]) == 1
    if qos == 2:  # [MQTT-4.3.3-9]: who was refused is not under way
        refused = [number for number, reason in enumerate(reasons, 1) if reason >= 0x80]
        again = await answers(client, *(publish_5("a", b"new", qos=2, packet_id=number) for number in refused))
        assert again == [(PUBREC, number, 0) for number in refused]


async def test_what_is_delayed_takes_the_right_to_where_it_goes(world: World) -> None:
    await world.broker.rights.set_topic_permission("/", "guest", "amq.topic", TopicPermission(write=r"^a\.", read=".*"))
    client, _ = await opened(world, "p")
    topics = {"$delayed/5/a/b": 0, "$delayed/5/b/a": 0x87, "$delayed/5": 0x90, "$delayed/x/a/b": 0x90, "$delayed": 0x87}
    sent = [publish_5(topic, b"x", qos=1, packet_id=number) for number, topic in enumerate(topics, 1)]
    assert [reason for _, _, reason in await answers(client, *sent)] == list(topics.values())


async def test_a_server_that_does_not_wish_to_reveal_the_reason(world: World) -> None:
    await world.broker.rights.set_topic_permission("/", "guest", "amq.topic", TopicPermission(write="^a", read="^a"))
    client = world.open(config=MqttConfig(not_authorized_told=False))
    await client.send(connect_5("s"))
    await told(client)
    await client.send(subscribe_5(1, ("a", 1), ("b", 1), ("$share/g/b", 1)))
    assert await told(client) == [(SUBACK, b"\0\1\0\1\x80\x80")]
    assert await answers(client, publish_5("b", b"x", qos=1, packet_id=7)) == [(PUBACK, 7, 0x80)]


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_cannot_be_retained_is_refused_and_the_rest_is_not(qos: int) -> None:
    async with open_broker(MemoryFiles(), BrokerConfig(retained_messages_max=2)) as broker:
        world = World(broker)
        watcher = await subscribed(world, ("#", 0))
        client, _ = await opened(world, "p")
        sent = [publish_5(f"t{n}", b"x", qos=qos, packet_id=n, retain=True) for n in (1, 2, 3, 4)]
        sent.append(publish_5("t1", b"y", qos=qos, packet_id=5, retain=True))
        found = await answers(client, *sent)
        assert found == [(KINDS[qos], n, reason) for n, reason in enumerate((0, 0, 0x97, 0x97, 0), 1)]
        assert [delivery(one)[1] for one in await told(watcher, 3)] == ["t1", "t2", "t1"]
        assert (broker.retained.count, broker.retained.refused) == (2, 2)
        await client.send(publish_5("t9", b"x", retain=True))
        assert [delivery(one)[1] for one in await told(watcher)] == ["t9"], "nobody can be told: it is delivered"


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_full_queue_refuses_and_the_packet_id_is_another_messages_next(qos: int) -> None:
    async with open_broker(MemoryFiles(), BrokerConfig(stripes=4)) as broker:
        world = World(broker)
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await broker.declare_queue("full", durable=True, arguments=full)
        for number in range(8):
            await broker.declare_queue(f"kept{number}", durable=True)
            await broker.bind("queue", f"kept{number}", "amq.topic", "#")
        await broker.bind("queue", "full", "amq.topic", "#")
        client, _ = await opened(world, "p", block(session_expiry=60), flags=RESUME)
        kind = KINDS[qos]
        assert await answers(client, publish_5("a", b"1", qos=qos, packet_id=1)) == [(kind, 1, 0)]
        assert await answers(client, publish_5("a", b"2", qos=qos, packet_id=2)) == [(kind, 2, 0x97)]
        await broker.delete_queue("full")
        assert await answers(client, publish_5("a", b"3", qos=qos, packet_id=2)) == [(kind, 2, 0)]
        for number in range(8):
            session = broker.session(object(), protocol="test", owner=object())  # type: ignore[arg-type]
            bodies = []
            while (got := await session.get(f"kept{number}", no_ack=True)) is not None:
                bodies.append(got.slab.bodies[got.index])
            assert bodies[0] == b"1"
            assert bodies[-1] == b"3", "not taken for the one that was refused"


async def test_mqtt_4_3_3_9_an_id_that_is_refused_when_it_comes_again_is_another_messages_next() -> None:
    files = MemoryFiles()
    session = block(session_expiry=60)
    async with open_broker(files, BrokerConfig(stripes=2)) as broker:
        await broker.declare_queue("kept", durable=True)
        await broker.bind("queue", "kept", "amq.topic", "#")
        client, _ = await opened(World(broker), "p", session, flags=RESUME)
        assert await answers(client, publish_5("a", b"1", qos=2, packet_id=7)) == [(PUBREC, 7, 0)]
        files = killed(files)
    async with open_broker(files, BrokerConfig(stripes=2)) as broker:
        await broker.rights.set_topic_permission("/", "guest", "amq.topic", TopicPermission(write="^b", read=".*"))
        client, _ = await opened(World(broker), "p", session, flags=RESUME)
        again = publish_5("a", b"1", qos=2, packet_id=7, dup=True)
        assert await answers(client, again) == [(PUBREC, 7, 0x87)]
        assert await answers(client, publish_5("b", b"2", qos=2, packet_id=7)) == [(PUBREC, 7, 0)]
        reader = broker.session(object(), protocol="test", owner=object())  # type: ignore[arg-type]
        bodies = []
        while (got := await reader.get("kept", no_ack=True)) is not None:
            bodies.append(got.slab.bodies[got.index])
        assert bodies == [b"1", b"2"]


async def test_a_publish_that_comes_again_is_refused_with_the_first_of_them() -> None:
    async with open_broker(MemoryFiles()) as broker:
        world = World(broker)
        await broker.declare_queue("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        await broker.bind("queue", "full", "amq.topic", "t")
        client, _ = await opened(world, "p")
        assert await answers(client, publish_5("t", b"1", qos=2, packet_id=1)) == [(PUBREC, 1, 0)]
        twice = [publish_5("t", b"2", qos=2, packet_id=7, dup=dup) for dup in (False, True)]
        await client.adapter.handle(twice[0])  # it is answered when the turn ends
        await client.send(twice[1], publish_5("u", b"3", qos=1, packet_id=9))
        found = await told(client, 2)
        assert found == [(PUBREC, b"\0\7\x97"), (PUBACK, b"\0\x09\x10")]


@pytest.mark.parametrize("expiry_s", [0, 60])
async def test_mqtt_4_3_3_who_has_received_a_message_cannot_reject_it_any_more(world: World, expiry_s: int) -> None:
    """PUBREC with an error behind one without: the exchange goes on until PUBCOMP, and the id is in use."""
    client = await subscribed(world, ("a", 2), expiry_s=expiry_s)
    sender, _ = await opened(world, "p")
    await sender.send(publish_5("a", b"x", qos=1))
    ((_, body),) = await told(client)
    packet_id = int.from_bytes(body[3:5], "big")
    await client.send(acknowledge(PUBREC, packet_id))
    assert await told(client) == [(PUBREL, body[3:5])]
    await client.send(acknowledge_5(PUBREC, packet_id, 0x83))
    assert await told(client) == [(PUBREL, body[3:5])]
    inflight = client.adapter.inflight
    assert inflight.packet_ids.held() == [(packet_id, packet_id)]
    await client.send(acknowledge(PUBCOMP, packet_id))
    assert (inflight.packet_ids.outstanding, inflight.packet_ids.held()) == (0, [])


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("expiry_s", [0, 60])
async def test_mqtt_4_4_0_2_what_a_subscriber_rejects_goes_to_the_dead_letter_exchange(
    world: World, qos: int, expiry_s: int
) -> None:
    broker = world.broker
    await broker.declare_queue("dead", durable=True)
    await broker.bind("queue", "dead", "amq.fanout", "")
    await broker.set_policy("rejected", "^mqtt\\.s$", {"dead-letter-exchange": "amq.fanout"}, apply_to="queues")
    client = await subscribed(world, ("a", qos), expiry_s=expiry_s)
    publisher, _ = await opened(world, "p")
    await publisher.send(*(publish_5("a", b"%d" % n, qos=qos, packet_id=n) for n in range(1, 5)))
    found = await told(client, 4)
    ids = {delivery(one)[3]: int.from_bytes(one[1][3:5], "big") for one in found}
    await client.send(
        acknowledge_5(KINDS[qos], ids[b"1"], 0x83),
        acknowledge(KINDS[qos], ids[b"2"]),
        acknowledge_5(KINDS[qos], ids[b"3"], 0x97),
        acknowledge_5(KINDS[qos], ids[b"4"], 0x10),
    )
    if qos == 2:
        released = [int.from_bytes(body[:2], "big") for _, body in await told(client, 2)]
        assert released == [ids[b"2"], ids[b"4"]], "and none for those that were rejected"
        await client.send(acknowledge(PUBCOMP, *released))
    await trio.testing.wait_all_tasks_blocked()
    broker.end_turn()
    session = broker.session(object(), protocol="test", owner=object())  # type: ignore[arg-type]
    bodies = []
    while (got := await session.get("dead", no_ack=True)) is not None:
        bodies.append(got.slab.bodies[got.index])
    assert bodies == [b"1", b"3"]
    client.lose()
    if expiry_s:
        client, body = await opened(world, "s", block(session_expiry=60), flags=RESUME)
        assert body[0] == 1
        broker.end_turn()
        assert client.take() == b"", "[MQTT-4.4.0-2]"


async def test_mqtt_4_8_2_6_what_a_member_rejects_goes_to_no_other(world: World) -> None:
    member = await subscribed(world, ("$share/g/a", 1), client_id="m1")
    publisher, _ = await opened(world, "p")
    await publisher.send(publish_5("a", b"x", qos=1))
    (found,) = await told(member)
    other = await subscribed(world, ("$share/g/a", 1), client_id="m2")
    await member.send(acknowledge_5(PUBACK, int.from_bytes(found[1][3:5], "big"), 0x80))
    member.lose()
    world.broker.end_turn()
    assert other.take() == b""
    assert not world.broker.topology.queues["$share/g/a"].message_count


async def test_answers_wait_in_line_behind_one_that_waits() -> None:
    """What was published on an earlier connection is answered when it is safe, and what comes behind it after that."""
    async with open_broker(MemoryFiles(), BrokerConfig(stripes=2)) as broker:
        world = World(broker)
        await broker.declare_queue("kept", durable=True)
        await broker.bind("queue", "kept", "amq.topic", "#")
        client, _ = await opened(world, "p", block(session_expiry=60), flags=RESUME)
        publishing = client.adapter.publishing
        assert await answers(client, publish_5("a", b"1", qos=2, packet_id=1)) == [(PUBREC, 1, 0)]
        client.lose()
        client, _ = await opened(world, "p", block(session_expiry=60), flags=RESUME)
        publishing = client.adapter.publishing
        done = []
        broker.commits.when_committed = lambda _needed, call: done.append(call)  # type: ignore[assignment,method-assign]
        await client.adapter.handle(
            publish_5("a", b"1", qos=2, packet_id=1, dup=True)
            + publish_5("a", b"2", qos=2, packet_id=2)
            + publish_5("a", b"3", qos=2, packet_id=3)
        )
        del broker.commits.when_committed
        publishing.confirm(1)
        publishing.refuse(2, 2, LimitExceeded("no room"))
        assert client.take() == b""
        done[0](None)
        found = [(body[:2], body[2:]) for _, body in packets(client.take())]
        assert found[:2] == [(b"\0\1", b""), (b"\0\2", b"")]


async def test_mqtt_3_10_4_3_what_was_begun_is_completed_after_unsubscribe(world: World) -> None:
    for again in (False, True):
        client = await subscribed(world, ("a", 2), expiry_s=60)
        publisher, _ = await opened(world, "p")
        assert await answers(publisher, publish_5("a", b"x", qos=2)) == [(PUBREC, 1, 0)]
        (found,) = await told(client)
        await client.send(unsubscribe_5(2, "a"))
        await told(client)
        if again:
            client.lose()
            client = world.open()
            await client.send(connect_5("s", block(session_expiry=60), flags=RESUME))
            assert (await told(client, 2))[1:] == [(found[0] | 8, found[1])]
        packet_id = int.from_bytes(found[1][3:5], "big")
        await client.send(acknowledge(PUBREC, packet_id))
        assert await told(client) == [(PUBREL, packet_id.to_bytes(2, "big"))]
        await client.send(acknowledge(PUBCOMP, packet_id))
        await opened(world, "s")


async def test_mqtt_4_3_3_13_an_exchange_that_has_begun_goes_on_after_the_expiry(
    clock: MockClock, world: World
) -> None:
    client = await subscribed(world, ("a", 2), expiry_s=60)
    publisher, _ = await opened(world, "p")
    await answers(publisher, publish_5("a", b"x", block(message_expiry=5), qos=2))
    (found,) = await told(client)
    packet_id = int.from_bytes(found[1][3:5], "big")
    clock.jump(10)
    await trio.testing.wait_all_tasks_blocked()
    await client.send(acknowledge(PUBREC, packet_id))
    assert await told(client) == [(PUBREL, packet_id.to_bytes(2, "big"))]
    await client.send(acknowledge(0x62, packet_id))


@pytest.mark.parametrize("away", ["before", "after"])
async def test_mqtt_4_3_3_7_what_has_been_sent_comes_again_after_its_expiry(
    clock: MockClock, world: World, away: str
) -> None:
    client = await subscribed(world, ("a", 2), expiry_s=60)
    publisher, _ = await opened(world, "p")
    sent = [publish_5("a", b"%d" % n, block(message_expiry=5), qos=2, packet_id=n) for n in (1, 2)]
    await answers(publisher, sent[0])
    (found,) = await told(client)
    if away == "after":
        clock.jump(10)
        await trio.testing.wait_all_tasks_blocked()
    client.lose()
    await answers(publisher, sent[1])
    clock.jump(10)
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(2):
        client = world.open()
        await client.send(connect_5("s", block(session_expiry=60), flags=RESUME))
        (_, connack), again = await told(client, 2)
        assert connack[0] == 1, "the session is there"
        assert again[1][:5] == found[1][:5], "the same topic and id, and not what was never sent"
        assert again[0] == found[0] | 8
        assert delivery(again)[2:] == (block(message_expiry=0), b"1")
        client.lose()
    client = world.open()
    await client.send(connect_5("s", block(session_expiry=60), flags=RESUME))
    await told(client, 2)
    packet_id = int.from_bytes(found[1][3:5], "big")
    await client.send(acknowledge(PUBREC, packet_id))
    assert await told(client) == [(PUBREL, packet_id.to_bytes(2, "big"))]
    await client.send(acknowledge(0x62, packet_id))


@pytest.mark.parametrize("wants", [0, 1])
async def test_mqtt_3_1_2_29_texts_come_with_nothing_but_a_disconnect(world: World, wants: int) -> None:
    await world.broker.rights.set_topic_permission("/", "guest", "amq.topic", TopicPermission(write="^[^x]", read="^a"))
    client, _ = await opened(world, "s", block(request_problem_information=wants))
    await client.send(subscribe_5(1, ("a", 1), ("b", 1)), unsubscribe_5(2, "a", "c"), publish_5("x", qos=1))
    assert await told(client, 3) == [
        (SUBACK, b"\0\1\0\1\x87"), (0xB0, b"\0\2\0\0\x11"), (PUBACK, b"\0\1\x87"),
    ]  # fmt: skip
    await client.send(acknowledge(PUBREC, 9), acknowledge(0x62, 9), subscribe_5(1, ("a", 1)))
    assert await told(client, 3) == [(PUBREL, b"\0\x09\x92"), (PUBCOMP, b"\0\x09\x92"), (SUBACK, b"\0\1\0\1")]


async def test_mqtt_3_3_2_5_what_has_expired_is_not_sent(clock: MockClock, world: World) -> None:
    client = await subscribed(world, ("a", 1), expiry_s=60)
    client.lose()
    publisher, _ = await opened(world, "p")
    await answers(
        publisher,
        publish_5("a", b"short", block(message_expiry=5), qos=1, packet_id=1, retain=True),
        publish_5("a", b"long", block(message_expiry=50), qos=1, packet_id=2),
        publish_5("r", b"long", block(message_expiry=50), qos=1, packet_id=3, retain=True),
    )
    clock.jump(10)
    await trio.testing.wait_all_tasks_blocked()
    client = world.open()
    await client.send(connect_5("s", block(session_expiry=60), flags=RESUME))
    _, found = await told(client, 2)
    assert delivery(found)[2:] == (block(message_expiry=40), b"long")
    late = await subscribed(world, ("#", 1), client_id="late")
    (found,) = await told(late)
    assert delivery(found) == (3, "r", block(message_expiry=40), b"long")


# --- packet ids ------------------------------------------------------------------------------


async def test_mqtt_2_2_1_4_ids_of_shared_messages_are_never_those_of_the_sessions_own() -> None:
    files = MemoryFiles()
    config = BrokerConfig(stripes=2, settle_delay_ms=0)
    async with open_broker(files, config) as broker:
        world = World(broker)
        client = await subscribed(world, ("own", 2), ("$share/g/shared", 1), expiry_s=60)
        publisher, _ = await opened(world, "p")
        for n in range(1, 6):
            own = publish_5("own", b"o", qos=2, packet_id=n)
            await answers(publisher, own, publish_5("shared", b"s", qos=1, packet_id=10 + n))
        found = await told(client, 10)
        ids = {
            kind: [int.from_bytes(body[n + 2 : n + 4], "big") for one, body in found if one >> 1 & 3 == qos]
            for kind, qos, n in (("own", 2, 3), ("shared", 1, 6))
        }
        assert all(1 <= one <= OWN_ID_MAX for one in ids["own"])
        assert ids["shared"] == list(range(OWN_ID_MAX + 1, OWN_ID_MAX + 6))
        files = killed(files)
    async with open_broker(files, config) as broker:
        world = World(broker)
        client, _ = await opened(world, "s", block(session_expiry=60), flags=RESUME)
        world.broker.end_turn()
        found = await told(client, 10)
        again = [int.from_bytes(body[5:7], "big") for one, body in found if one >> 1 & 3 == 2]
        assert again == ids["own"]


# --- retained messages -----------------------------------------------------------------------


async def test_mqtt_3_8_4_8_retained_messages_come_at_the_qos_of_the_filter_that_asks(world: World) -> None:
    publisher, _ = await opened(world, "p")
    await answers(publisher, *(publish_5(f"r/{n}", b"x", qos=n, packet_id=n, retain=True) for n in (1, 2)))
    await publisher.send(publish_5("r/0", b"x", retain=True))
    for expiry_s in (0, 60):
        for asked in (0, 1, 2):
            client = await subscribed(world, ("#", 2 | 0x20), client_id=f"{asked} {expiry_s}", expiry_s=expiry_s)
            await client.send(subscribe_5(2, ("r/+", asked)))
            _, *found = await told(client, 4)
            flags = {topic: flags for flags, topic, *_ in map(delivery, found)}
            assert flags == {f"r/{n}": 1 | min(n, asked) << 1 for n in (0, 1, 2)}
            await answers(publisher, publish_5("r/2", b"live", qos=2, packet_id=9))
            await publisher.send(acknowledge(0x62, 9))
            assert [delivery(one)[0] for one in await told(client)] == [4], "live ones at the highest"
            publisher.take()


async def test_mqtt_3_8_3_3_no_local_goes_for_what_one_has_retained_oneself(world: World) -> None:
    client, _ = await opened(world, "s")
    other, _ = await opened(world, "o")
    await client.send(publish_5("r/mine", b"x", retain=True), publish_5("r/both", b"x", retain=True))
    await other.send(publish_5("r/both", b"y", retain=True), publish_5("r/theirs", b"y", retain=True))
    await client.send(subscribe_5(1, ("r/#", 4)))
    _, *found = await told(client, 3)
    assert {delivery(one)[1] for one in found} == {"r/both", "r/theirs"}
    await client.send(subscribe_5(2, ("r/mine", 0)))
    _, *found = await told(client, 2)
    assert [delivery(one)[1] for one in found] == ["r/mine"], "another filter asks for it"
    await other.send(subscribe_5(1, ("r/#", 0)))
    _, *found = await told(other, 4)
    assert {delivery(one)[2] for one in found} == {b""}, "nothing of that is told"


async def test_mqtt_3_3_1_10_retain_handling_asks_whether_a_filter_is_new(world: World) -> None:
    publisher, _ = await opened(world, "p")
    await publisher.send(publish_5("r", b"x", retain=True))
    for new, handling, comes in ((True, 0, 1), (True, 1, 1), (True, 2, 0), (False, 0, 1), (False, 1, 0), (False, 2, 0)):
        client, _ = await opened(world, "s")
        if not new:
            await client.send(subscribe_5(1, ("r", 0x20)))
            await told(client)
        await client.send(subscribe_5(1, ("r", handling << 4)))
        assert len(await told(client, 1 + comes)) == 1 + comes
    # What a session that lasts is subscribed to is not new.
    client = await subscribed(world, ("r", 0x21), client_id="l", expiry_s=60)
    client.lose()
    client, _ = await opened(world, "l", block(session_expiry=60), flags=RESUME)
    await client.send(subscribe_5(1, ("r", 0x11)))
    assert len(await told(client)) == 1


async def test_what_a_subscriber_rejects_comes_again_where_a_policy_has_a_ladder(
    world: World, clock: MockClock
) -> None:
    """To whom of the group is next, while the others' messages flow; then it is where the ladder ends."""
    broker = world.broker
    await broker.declare_queue("dlq", durable=True)
    ladder = {"retry": [1000, 4000], "retry-then": "dlq"}
    await broker.set_policy("ladder", "^\\$share/workers/", ladder, apply_to="queues")
    client = await subscribed(world, ("$share/workers/jobs", 1))
    publisher, _ = await opened(world, "p")
    await publisher.send(*(publish_5("jobs", body, qos=1, packet_id=n) for n, body in enumerate((b"bad", b"ok"), 1)))
    for gap_s, count in ((1, 2), (4, 1), (0, 1)):
        found = {delivery(one)[3]: int.from_bytes(one[1][6:8], "big") for one in await told(client, count)}
        assert list(found) == [b"bad", b"ok"][:count]
        await client.send(*(acknowledge_5(PUBACK, found[body], 0x83 if body == b"bad" else 0) for body in found))
        await trio.testing.wait_all_tasks_blocked()
        if gap_s:
            clock.jump(gap_s - 0.1)
            await trio.testing.wait_all_tasks_blocked()
            broker.end_turn()
            assert not client.outbox.pieces, "too soon"
            clock.jump(0.2)
            await trio.testing.wait_all_tasks_blocked()
            broker.end_turn()
    await trio.testing.wait_all_tasks_blocked()
    broker.end_turn()
    assert broker.topology.queues["dlq"].message_count == 1


async def test_who_takes_a_session_up_gets_what_he_may_read(world: World) -> None:
    """Rights are those of the user who is there now; who has chosen the client's identifier need not be who was."""
    client = await subscribed(world, ("a/#", 1), ("b/#", 1), ("$exclusive/a/1", 1), expiry_s=100)
    client.lose()
    sender, _ = await opened(world, "sender")
    await sender.send(
        *(publish_5(topic, b"x", qos=1, packet_id=at) for at, topic in enumerate(("a/1", "b/1", "a/2"), 1))
    )
    await world.broker.rights.set_topic_permission("/", "guest", "amq.topic", TopicPermission(write="", read=r"^b\."))
    client = world.open()
    await client.send(connect_5("s", block(session_expiry=100), flags=RESUME), b"\xe0\0")  # leaves it all in the queue
    assert [kind for kind, _ in await told(client)] == [CONNACK]
    for waiting in (["b/1"], []):
        client = world.open()
        await client.send(connect_5("s", block(session_expiry=100), flags=RESUME))
        (connack, body), *messages = await told(client)
        assert (connack, body[0]) == (CONNACK, 1)
        assert [delivery(one)[1] for one in messages] == waiting
        ids = [int.from_bytes(body[2 + len("b/1") :][:2], "big") for _, body in messages]
        await client.send(*(acknowledge(0x40, one) for one in ids))
        client.lose()
    assert world.broker.topology.queues["mqtt.s"].message_count == 0
    await world.broker.rights.clear_topic_permissions("/", "guest", "amq.topic")
    client = world.open()
    await client.send(connect_5("s", block(session_expiry=100), flags=RESUME))
    await sender.send(publish_5("a/3", b"x", qos=1, packet_id=4))
    assert [kind for kind, _ in await told(client, 2)] == [CONNACK, PUBLISH | 2], "who may read it still has it"


async def test_who_may_not_have_a_subscription_of_the_session_may_end_it(world: World) -> None:
    client = await subscribed(world, ("a/#", 1), expiry_s=100)
    client.lose()
    await world.broker.rights.set_topic_permission("/", "guest", "amq.topic", TopicPermission(write="", read=r"^b\."))
    client, _ = await opened(world, "s", block(session_expiry=100), flags=RESUME)
    await client.send(unsubscribe_5(1, "a/#", "a/#"))
    assert await told(client) == [(UNSUBACK, b"\0\1\0\0\x11")]
    assert not world.broker.topology.vhost("/").bindings_to.get(("queue", "mqtt.s"))


async def test_a_session_whose_queue_somebody_else_consumes_is_busy(world: World) -> None:
    """As it may be by AMQP; the client comes back to it when that is over."""
    client = await subscribed(world, ("a", 1), expiry_s=100)
    client.lose()
    other = world.broker.session(Sink(), protocol="amqp", owner=object())
    await other.consume("mqtt.s", tag="", no_ack=False)
    client = world.open()
    await client.send(connect_5("s", block(session_expiry=100), flags=RESUME))
    (_, connack), (kind, body) = await told(client, 2)
    assert (connack[:2], kind, body[0], client.closed) == (b"\1\0", DISCONNECT, SERVER_BUSY, True)
    client.lose()
    other.close()
    await opened(world, "s", block(session_expiry=100), flags=RESUME)


async def test_a_virtual_host_that_has_all_the_queues_it_may_have_is_a_quota(world: World) -> None:
    client, _ = await opened(world, "c")
    await world.broker.set_vhost("/", limits={"max-queues": 0})
    await client.send(subscribe_5(1, ("a", 1), ("$share/g/a", 1), ("$exclusive/a", 1)))
    assert await told(client) == [(SUBACK, bytes((0, 1, 0, *[QUOTA_EXCEEDED] * 3)))]
    lasting = world.open()
    await lasting.send(connect_5("l", block(session_expiry=60)))
    assert await told(lasting) == [(CONNACK, bytes((0, QUOTA_EXCEEDED, 0)))]
    await world.broker.set_vhost("/", limits={"max-queues": -1})
    await subscribed(world, ("a", 1), client_id="l", expiry_s=60)
