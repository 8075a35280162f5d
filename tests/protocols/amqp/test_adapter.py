"""The adapter on a real engine in memory: what clients of a library cannot see or cannot provoke."""

from __future__ import annotations

import errno
import math
from typing import Any

import pytest

from protocols.amqp import methods
from protocols.amqp.adapter_login import CAPABILITIES as SERVER_CAPABILITIES
from protocols.amqp.config import AmqpConfig
from protocols.amqp.connection import HEARTBEAT_FRAME, PROTOCOL_HEADER
from routing.errors import LimitExceeded
from tests.protocols.amqp.conftest import World
from tests.protocols.amqp.wire import CAPABILITIES, START_OK, TUNE_OK, call, publish

DECLARE = methods.QueueDeclare(queue="q")
CONSUME = methods.BasicConsume(queue="q", consumer_tag="c", no_ack=True)


# --- login and the end -------------------------------------------------------------------


async def test_the_handshake_word_for_word(world: World) -> None:
    client = world.connect()
    await client.send(PROTOCOL_HEADER)
    (start,) = client.methods()
    assert isinstance(start, methods.ConnectionStart)
    assert (start.mechanisms, start.locales) == (b"PLAIN AMQPLAIN", b"en_US")
    assert start.server_properties["capabilities"] == SERVER_CAPABILITIES
    assert start.server_properties["product"] == "RabbitMQ"
    assert start.server_properties["platform"].startswith("Millrace ")
    assert await client.calls(START_OK, channel=0) == [methods.ConnectionTune(2047, 131072, 60)]
    assert await client.calls(TUNE_OK, methods.ConnectionOpen("/"), channel=0) == [methods.ConnectionOpenOk()]
    assert await client.calls(methods.ChannelOpen()) == [methods.ChannelOpenOk()]
    assert await client.calls(methods.ConnectionClose(200, "bye"), channel=0) == [methods.ConnectionCloseOk()]
    await client.send(b"")
    assert client.closed


@pytest.mark.parametrize("told", [True, False])
async def test_a_refused_login_is_told_to_those_who_understand(world: World, told: bool) -> None:
    client = world.connect()
    capabilities = {"authentication_failure_close": told}
    await client.send(PROTOCOL_HEADER)
    client.take()
    wrong = methods.ConnectionStartOk({"capabilities": capabilities}, "PLAIN", b"\0guest\0wrong", "en_US")
    # Whatever a client sends ahead of the answer is not looked at.
    ahead = call(1, methods.ChannelOpen(), DECLARE) + publish("q", b"x")
    await client.send(call(0, wrong, TUNE_OK, methods.ConnectionOpen("/")) + ahead)
    answers = client.methods()
    assert not world.broker.sessions
    assert not world.broker.topology.queues
    if told:
        text = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
        assert answers == [methods.ConnectionClose(403, f"ACCESS_REFUSED - {text}")]
        assert not client.closed
        await client.calls(methods.ConnectionCloseOk(), channel=0)
    else:
        assert answers == []
    assert client.closed


async def test_the_check_of_a_password_may_take_its_time(world: World) -> None:
    async def authenticate(user: str, password: bytes, peer: str) -> bool:
        return (user, password, peer) == ("guest", b"guest", "127.0.0.1:5000")

    client = world.connect(authenticate=authenticate)
    await client.log_in()
    assert isinstance(client.methods()[-1], methods.ChannelOpenOk)


async def start_with(world: World, mechanism: str, response: bytes, **options: Any) -> list[methods.Method]:
    client = world.connect(**options)
    await client.send(PROTOCOL_HEADER)
    (start,) = client.methods()
    assert isinstance(start, methods.ConnectionStart)
    start_ok = methods.ConnectionStartOk({"capabilities": CAPABILITIES}, mechanism, response, "en_US")
    return [start, *await client.calls(start_ok, channel=0)]


async def test_a_certificate_or_the_configuration_may_say_who_the_peer_is(world: World) -> None:
    seen: list[tuple[str, bytes | None]] = []

    def authenticate(user: str, password: bytes | None, peer: str) -> bool:
        seen.append((user, password))
        return user != "CN=stranger"

    options: dict[str, Any] = {"authenticate": authenticate, "peer_certificate_name": "CN=friend"}
    start, tune = await start_with(world, "EXTERNAL", b"", **options)
    assert start.mechanisms == b"PLAIN AMQPLAIN EXTERNAL"
    assert isinstance(tune, methods.ConnectionTune)
    options["peer_certificate_name"] = "CN=stranger"
    assert [method.reply_code for method in (await start_with(world, "EXTERNAL", b"", **options))[1:]] == [403]
    options["config"] = AmqpConfig(certificate_login=False)
    start, closed = await start_with(world, "EXTERNAL", b"", **options)
    assert (start.mechanisms, closed.reply_code) == (b"PLAIN AMQPLAIN", 503)
    options = {"authenticate": authenticate, "config": AmqpConfig(anonymous_user="visitor")}
    start, tune = await start_with(world, "ANONYMOUS", b"trace", **options)
    assert start.mechanisms == b"PLAIN AMQPLAIN ANONYMOUS"
    assert isinstance(tune, methods.ConnectionTune)
    assert seen == [("CN=friend", None), ("CN=stranger", None), ("visitor", None)]


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS", "SIDEWAYS", ""])
async def test_only_what_was_offered_can_be_used(world: World, mechanism: str) -> None:
    text = f"COMMAND_INVALID - unknown authentication mechanism '{mechanism}'"
    assert (await start_with(world, mechanism, b""))[1:] == [methods.ConnectionClose(503, text, 10, 11)]


@pytest.mark.parametrize("secret", [b"guest", b"other"])
async def test_a_new_secret_is_taken_for_what_it_is(world: World, secret: bytes) -> None:
    client = await world.client()
    updated = await client.calls(methods.ConnectionUpdateSecret(secret, "because"), channel=0)
    assert updated == [methods.ConnectionUpdateSecretOk()]


async def test_without_authentication_nobody_gets_in(world: World) -> None:
    client = world.connect(authenticate=None)
    await client.log_in(channels=0)
    assert [type(method) for method in client.methods()] == [methods.ConnectionStart, methods.ConnectionClose]


async def test_silence_in_the_handshake_ends_it(world: World) -> None:
    client = world.connect()
    await client.send(PROTOCOL_HEADER)
    client.tick(9.9)
    assert not client.closed
    client.tick(0.1)
    assert client.closed


async def test_heartbeats(world: World) -> None:
    client = await world.client(heartbeat_s=10)
    client.tick(5)
    assert client.take_bytes() == b""  # what was sent in the handshake counts
    client.tick(5)
    assert client.take_bytes() == HEARTBEAT_FRAME
    await client.send(HEARTBEAT_FRAME)
    client.tick(29.9)
    assert not client.closed
    client.tick(0.1)
    assert client.closed
    assert (await world.client(heartbeat_s=0)).adapter.next_timer_at() == math.inf


def set_memory_alarm(world: World, low: bool) -> None:
    alarms = world.broker.alarms
    alarms.memory_bytes, alarms.memory_bytes_max = 2, 1 if low else 0
    alarms.check()


async def test_publishers_are_told_when_they_are_blocked(world: World) -> None:
    able = {**CAPABILITIES, "connection.blocked": True}
    publisher, consumer = await world.client(capabilities=able), await world.client(capabilities=able)
    unable = await world.client()
    for client in (publisher, consumer, unable):
        await client.calls(DECLARE)
    await publisher.send(publish("q", b"1"))
    await unable.send(publish("q", b"1"))
    assert publisher.adapter.published
    set_memory_alarm(world, True)
    assert publisher.methods() == [methods.ConnectionBlocked("low on memory")]
    assert consumer.methods() == [], "it publishes nothing"
    await consumer.send(publish("q", b"2"))
    assert consumer.methods() == [methods.ConnectionBlocked("low on memory")]
    set_memory_alarm(world, False)
    assert publisher.methods() == consumer.methods() == [methods.ConnectionUnblocked()]
    assert unable.methods() == [], "it would not understand"
    publisher.adapter.connection_lost()
    set_memory_alarm(world, True)
    assert publisher.methods() == []
    consumer.adapter.connection_lost()
    assert len(world.broker.alarms.listeners) == 0


async def test_what_is_published_while_publishers_are_blocked_waits_with_all_behind_it(world: World) -> None:
    client, other = await world.client(), await world.client()
    await client.calls(DECLARE, methods.ConfirmSelect())
    set_memory_alarm(world, True)
    passive = methods.QueueDeclare(queue="q", passive=True)
    await client.send(call(1, passive), publish("q", b"1"), publish("q", b"2"), call(1, passive))
    assert [method.message_count for method in client.methods()] == [0]
    left, client.adapter.left = client.adapter.left, None
    assert client.adapter.published
    assert left is not None
    assert [method.message_count for method in await other.calls(passive)] == [0]
    set_memory_alarm(world, False)
    await left()
    world.broker.end_turn()
    assert client.adapter.left is None
    declared, confirmed = client.methods()
    assert (declared.message_count, confirmed) == (2, methods.BasicAck(2, True))


async def test_silence_of_a_held_connection_means_nothing(world: World) -> None:
    client = await world.client()
    client.adapter.held = True
    for _ in range(6):
        world.now_s = client.adapter.next_timer_at()
        client.adapter.handle_timer(world.now_s)
    assert not client.closed
    client.adapter.held = False
    while not client.closed and client.adapter.next_timer_at() < 10_000:
        world.now_s = client.adapter.next_timer_at()
        client.adapter.handle_timer(world.now_s)
    assert client.closed


async def test_a_close_that_is_not_answered_is_not_waited_for(world: World) -> None:
    client = await world.client()
    await client.send(call(7, methods.BasicQos()))
    assert isinstance(client.methods()[0], methods.ConnectionClose)
    assert client.adapter.next_timer_at() == world.now_s + client.adapter.config.close_timeout_s
    client.tick(5)
    assert client.closed


async def test_whoever_closed_is_left_to_close_the_transport(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = await world.client()
    assert await client.calls(methods.ConnectionClose(200, "bye"), channel=0) == [methods.ConnectionCloseOk()]
    assert not client.closed  # the reader of amqp091-go would find the end before its close is over, and block it
    await client.send(call(1, methods.ChannelOpen()))
    assert (client.take_bytes(), client.closed) == (b"", False)
    assert client.adapter.next_timer_at() == world.now_s + client.adapter.config.close_timeout_s
    client.tick(5)
    assert (client.take_bytes(), client.closed, caplog.text) == (b"", True, "")


async def test_shutting_down_is_said(world: World) -> None:
    client = await world.client()
    client.adapter.shut_down("the broker is stopping")
    (close,) = client.methods()
    assert close == methods.ConnectionClose(
        320, "CONNECTION_FORCED - broker forced connection closure with reason 'the broker is stopping'"
    )
    assert client.closed
    client.lose()
    fresh = world.connect()
    fresh.adapter.shut_down("the broker is stopping")
    assert (fresh.take_bytes(), fresh.closed) == (b"", True)


@pytest.mark.parametrize("end", ["lost", "eof", "error"])
async def test_however_it_ends_everything_is_given_back(world: World, end: str) -> None:
    client = await world.client()
    declare = methods.QueueDeclare(queue="mine", exclusive=True)
    consume = methods.BasicConsume(queue="q", consumer_tag="c")
    await client.send(call(1, DECLARE, declare, consume) + publish("q", b"unsettled"))
    assert client.bodies() == [b"unsettled"]
    if end == "lost":
        client.lose()
    elif end == "eof":
        await client.send(b"")
    else:
        await client.send(call(0, TUNE_OK))
    assert "mine" not in world.broker.topology.queues
    assert not world.broker.sessions
    other = await world.client()
    await other.send(call(1, methods.BasicGet(queue="q", no_ack=True)))
    ((_, got, _, body),) = other.take()
    assert (got.redelivered, body) == (True, b"unsettled")
    if end != "lost":
        client.lose()


# --- publishing --------------------------------------------------------------------------


async def test_confirms_are_cumulative_and_returns_come_first(world: World) -> None:
    client = await world.client()
    await client.calls(methods.QueueDeclare(queue="q", durable=True), methods.ConfirmSelect())
    await client.send(publish("q", b"1"))
    await client.expect(methods.BasicAck(1, multiple=False))
    lost = publish("nowhere", b"lost", mandatory=True)
    await client.send(publish("q", b"2") * 3 + lost * 2 + publish("q", b"3"))
    returned = methods.BasicReturn(312, "NO_ROUTE", "", "nowhere")
    await client.expect(returned, returned, methods.BasicAck(7, multiple=True))


async def test_what_the_disk_refuses_is_nacked(world: World) -> None:
    client = await world.client()
    await client.calls(methods.QueueDeclare(queue="q", durable=True), methods.ConfirmSelect())
    await client.send(publish("q", b"safe"))
    await client.expect(methods.BasicAck(1))
    world.files.failing = {"write": errno.ENOSPC, "sync": errno.ENOSPC}
    await client.send(publish("q", b"not safe") * 2)
    await client.expect(methods.BasicNack(3, multiple=True))
    await client.send(publish("q", b"refused at once"))
    await client.expect(methods.BasicNack(4, multiple=False))
    (refused,) = await client.calls(methods.QueueDeclare(queue="other", durable=True))
    assert isinstance(refused, methods.ConnectionClose)
    assert refused.reply_code == 506


async def test_refusals_behind_unconfirmed_publishes_are_single(world: World) -> None:
    client = await world.client()
    channel = client.adapter._channels[1]
    channel.refuse(3, 4, LimitExceeded("no room"))
    channel.refuse(5, 5, LimitExceeded("no room"))
    channel.confirm(9)
    assert client.methods() == [
        methods.BasicNack(3), methods.BasicNack(4), methods.BasicNack(5), methods.BasicAck(9, multiple=True)
    ]  # fmt: skip


async def test_after_an_error_the_rest_of_the_channel_is_dropped(world: World) -> None:
    client = await world.client(channels=2)
    await client.calls(DECLARE)
    await client.send(
        publish("key", b"x", exchange="nowhere"),
        publish("q", b"dropped"),
        call(1, methods.BasicAck(1), methods.QueueDeclare(queue="dropped")),
        publish("q", b"kept", channel=2),
    )
    assert client.take() == [
        (1, methods.ChannelClose(404, "NOT_FOUND - no exchange 'nowhere' in vhost '/'", 60, 40), b"", b"")
    ]
    assert "dropped" not in world.broker.topology.queues
    await client.send(call(1, methods.ChannelCloseOk(), methods.ChannelOpen(), CONSUME))
    assert [body for *_, body in client.take()] == [b"", b"", b"kept"]


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_close_that_is_read_with_an_error_is_answered(world: World, pieces: int) -> None:
    client = await world.client()
    sent = [publish("x", b"lost", exchange="nowhere"), call(1, methods.ChannelClose(200, "bye"))]
    for data in [b"".join(sent)] if pieces == 1 else sent:
        await client.send(data)
    assert client.methods() == [
        methods.ChannelClose(404, "NOT_FOUND - no exchange 'nowhere' in vhost '/'", 60, 40),
        methods.ChannelCloseOk(),
    ]
    assert await client.calls(methods.ChannelCloseOk()) == []
    assert await client.calls(methods.ChannelOpen(), DECLARE) == [
        methods.ChannelOpenOk(), methods.QueueDeclareOk("q", 0, 0),
    ]  # fmt: skip
    assert not client.closed


async def test_an_error_of_the_connection_ends_all_channels(world: World) -> None:
    client = await world.client(channels=2)
    await client.send(
        call(1, methods.BasicQos(5)) + publish("q", b"dropped", channel=2) + call(3, methods.ChannelOpen())
    )
    text = "NOT_IMPLEMENTED - prefetch_size!=0 (5)"
    assert client.take() == [(0, methods.ConnectionClose(540, text, 60, 10), b"", b"")]
    assert not world.broker.sessions


# --- consuming ---------------------------------------------------------------------------


async def test_deliveries_follow_consume_ok(world: World) -> None:
    client = await world.client()
    await client.send(call(1, DECLARE) + publish("q", b"1") + call(1, CONSUME))
    assert [type(method) for method in client.methods()] == [
        methods.QueueDeclareOk, methods.BasicConsumeOk, methods.BasicDeliver
    ]  # fmt: skip


async def test_consumer_tags_are_made_and_must_be_unique(world: World) -> None:
    client = await world.client()
    answers = await client.calls(DECLARE, methods.BasicConsume(), methods.BasicConsume(), CONSUME)
    tags = {method.consumer_tag for method in answers if isinstance(method, methods.BasicConsumeOk)}
    assert len(tags) == 3
    assert sum(tag.startswith("amq.ctag-") for tag in tags) == 2
    (close,) = await client.calls(CONSUME)
    assert close == methods.ConnectionClose(530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'", 60, 20)


async def test_consumers_up_to_the_limit(world: World) -> None:
    client = await world.client(AmqpConfig(consumers_per_channel_max=2))
    consume = methods.BasicConsume(queue="q", nowait=True)
    assert len(await client.calls(DECLARE, consume, consume)) == 1
    (close,) = await client.calls(consume)
    assert close == methods.ConnectionClose(530, "NOT_ALLOWED - reached maximum (2) of consumers per channel", 60, 20)


@pytest.mark.parametrize("told", [True, False])
async def test_cancellation_is_told_to_those_who_understand(world: World, told: bool) -> None:
    client = await world.client(capabilities={"consumer_cancel_notify": told})
    await client.calls(DECLARE, CONSUME)
    other = await world.client()
    assert await other.calls(methods.QueueDelete(queue="q")) == [methods.QueueDeleteOk(0)]
    assert client.methods() == ([methods.BasicCancel("c", nowait=True)] if told else [])
    # The peer may still cancel it in turn, and use the tag again.
    assert await client.calls(methods.BasicCancel("c")) == [methods.BasicCancelOk("c")]
    assert len(await client.calls(DECLARE, CONSUME)) == 2


async def test_a_full_outbox_gets_no_more(world: World) -> None:
    client = await world.client()
    await client.calls(DECLARE, CONSUME)
    client.outbox.writable = False
    await client.send(publish("q", b"later"))
    assert client.bodies() == []
    client.outbox.writable = True
    assert client.outbox.on_writable is not None
    client.outbox.on_writable()
    world.broker.end_turn()
    assert client.bodies() == [b"later"]


@pytest.mark.parametrize("frame_bytes_max", [4096, 131072])
async def test_bodies_of_all_sizes_side_by_side(world: World, frame_bytes_max: int) -> None:
    client = await world.client(frame_bytes_max=frame_bytes_max)
    bodies = [bytes([size & 255]) * size for size in (1, 0, 4087, 4088, 4089, 16383, 16384, 16385, 131064, 131065, 2)]
    await client.send(call(1, DECLARE), *(publish("q", body, frame_bytes_max=frame_bytes_max) for body in bodies))
    await client.send(call(1, CONSUME))
    assert client.bodies() == bodies


async def test_what_is_remembered_of_deliveries_is_bounded(world: World) -> None:
    client = await world.client()
    await client.calls(DECLARE, methods.QueueBind(queue="q", exchange="amq.fanout"), CONSUME)
    for number in range(600):
        await client.send(publish(f"key {number}", b"body", exchange="amq.fanout"))
    found = client.take()
    assert [method.routing_key for _, method, _, _ in found] == [f"key {number}" for number in range(600)]
    (consumer,) = client.adapter._channels[1]._consumers.values()
    assert len(consumer.context) <= 64


async def test_unknown_delivery_tags(world: World) -> None:
    client = await world.client()
    settle: list[Any] = [
        methods.BasicAck(9), methods.BasicAck(9, multiple=True), methods.BasicNack(9), methods.BasicReject(9)
    ]  # fmt: skip
    for method in settle:
        (close,) = await client.calls(method)
        assert close == methods.ChannelClose(
            406, "PRECONDITION_FAILED - unknown delivery tag 9", 60, method.IDENT & 255
        )
        await client.calls(methods.ChannelCloseOk(), methods.ChannelOpen())


async def test_one_wrong_ack_in_a_run_is_named(world: World) -> None:
    client = await world.client()
    consume = methods.BasicConsume(queue="q", consumer_tag="c")
    await client.send(call(1, DECLARE, consume) + publish("q", b"x") * 5)
    client.take()
    await client.calls(methods.BasicAck(3))
    (close,) = await client.calls(*(methods.BasicAck(tag) for tag in range(1, 6)))
    assert close == methods.ChannelClose(406, "PRECONDITION_FAILED - unknown delivery tag 3", 60, 80)


async def test_an_empty_queue_name_is_the_last_declared(world: World) -> None:
    client = await world.client()
    await client.calls(methods.QueueDeclare())
    (name,) = world.broker.topology.queues
    assert name.startswith("amq.gen-")
    assert await client.calls(methods.QueueBind(exchange="amq.direct"), methods.QueuePurge()) == [
        methods.QueueBindOk(),
        methods.QueuePurgeOk(0),
    ]
    await client.send(publish(name, b"found", exchange="amq.direct") + call(1, methods.BasicGet(no_ack=True)))
    assert client.take()[0][3] == b"found"
    assert await client.calls(
        methods.QueueUnbind(exchange="amq.direct"), methods.QueueDelete()
    ) == [methods.QueueUnbindOk(), methods.QueueDeleteOk(0)]  # fmt: skip


async def test_small_methods_are_answered(world: World) -> None:
    client = await world.client()
    assert await client.calls(
        methods.AccessRequest("/data"), methods.ChannelFlow(True), methods.BasicRecoverAsync(True),
        methods.BasicRecover(True),
        methods.ConfirmSelect(nowait=True), methods.BasicQos(0, 5, True), methods.BasicGet(queue="q"),
    ) == [
        methods.AccessRequestOk(1), methods.ChannelFlowOk(True), methods.BasicRecoverOk(), methods.BasicQosOk(),
        methods.ChannelClose(404, "NOT_FOUND - no queue 'q' in vhost '/'", 60, 70),
    ]  # fmt: skip


@pytest.mark.parametrize(("engine_bytes", "unfinished_bytes"), [(1000, 1 << 20), (1 << 20, 1000)])
async def test_who_announces_more_than_can_be_taken_is_told_before_it_is_sent(
    world: World, engine_bytes: int, unfinished_bytes: int
) -> None:
    world.broker.message_bytes_max = engine_bytes
    client = await world.client(AmqpConfig(unfinished_bytes_max=unfinished_bytes))
    await client.send(publish("q", bytes(1001))[:-500])
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    assert client.methods() == [methods.ChannelClose(406, text, 60, 40)]
