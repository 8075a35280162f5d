"""pika against the broker: what a program written for RabbitMQ may rely on (FEATURES B1 to B7, B22, B29)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)

from tests.support import BrokerProcess

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(broker: BrokerProcess, user: str = "guest", password: str = "guest", **options: Any) -> BlockingConnection:
    """A connection, as a program would make one."""
    credentials = pika.PlainCredentials(user, password)
    return BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", broker.amqp_port, credentials=credentials, **options)
    )


@pytest.fixture
def connection(shared_broker: BrokerProcess) -> Iterator[BlockingConnection]:
    connection = connect(shared_broker)
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection: BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def name() -> str:
    return f"pika.{uuid.uuid4().hex}"


def settle(connection: BlockingConnection, channel: BlockingChannel, queue: str) -> None:
    """Have everything delivered that will be: what the broker had to send precedes its answer."""
    channel.queue_declare(queue, passive=True)
    connection.process_data_events(0)


def take(channel: BlockingChannel, queue: str, count: int, auto_ack: bool = True) -> list[Any]:
    """The next `count` deliveries as (method, properties, body)."""
    found = []
    for delivery in channel.consume(queue, auto_ack=auto_ack):
        found.append(delivery)
        if len(found) == count:
            break
    channel.cancel()
    return found


# --- connections -------------------------------------------------------------------------


def test_the_server_introduces_itself_as_clients_expect(connection: BlockingConnection) -> None:
    assert connection.publisher_confirms_supported
    assert connection.exchange_exchange_bindings_supported
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported


def test_a_wrong_password_is_told_apart(shared_broker: BrokerProcess) -> None:
    with pytest.raises(ProbableAuthenticationError, match=r"ACCESS_REFUSED - Login was refused using.*PLAIN"):
        connect(shared_broker, password="wrong")


def test_an_unknown_virtual_host_is_told_apart(shared_broker: BrokerProcess) -> None:
    with pytest.raises(ProbableAccessDeniedError, match="NOT_ALLOWED - vhost elsewhere not found"):
        connect(shared_broker, virtual_host="elsewhere")


def test_small_frames_and_no_heartbeats_are_agreed(shared_broker: BrokerProcess, name: str) -> None:
    connection = connect(shared_broker, frame_max=4096, heartbeat=0, channel_max=5)
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, bytes(100_000))
    (delivery,) = take(channel, name, 1)
    assert delivery[2] == bytes(100_000)
    connection.close()


# --- messages ----------------------------------------------------------------------------


def test_all_properties_arrive_as_they_were_sent(channel: BlockingChannel, name: str) -> None:
    headers = {
        "text": "naïve ☃", "int": 7, "long": 1 << 40, "negative": -1, "true": True, "none": None, "bytes": b"\0\xff",
        "decimal": Decimal("12.34"), "list": [1, "two", [3], {"four": 4}], "table": {"a": {"b": {}}},
    }  # fmt: skip
    sent = pika.BasicProperties(
        content_type="application/json", content_encoding="gzip", headers=headers, delivery_mode=2, priority=5,
        correlation_id="correlation", reply_to="reply", expiration="60000", message_id="message",
        timestamp=1_700_000_000, type="type", user_id="guest", app_id="app", cluster_id="cluster",
    )  # fmt: skip
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"body", sent)
    channel.basic_publish("", name, b"")
    method, received, body = channel.basic_get(name, auto_ack=True)
    assert (received, body) == (sent, b"body")
    assert (method.exchange, method.routing_key, method.redelivered, method.message_count) == ("", name, False, 1)
    _, received, body = channel.basic_get(name, auto_ack=True)
    assert (received, body) == (pika.BasicProperties(), b"")
    assert channel.basic_get(name) == (None, None, None)


@pytest.mark.parametrize("size", [0, 1, 131_063, 131_064, 131_065, 131_072, 5_000_000])
def test_bodies_of_many_frames(channel: BlockingChannel, name: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, body)
    channel.basic_publish("", name, b"after")
    assert [delivery[2] for delivery in take(channel, name, 2)] == [body, b"after"]
    channel.basic_publish("", name, body)
    assert channel.basic_get(name, auto_ack=True)[2] == body


def test_a_burst_arrives_in_order(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    bodies = [b"%d" % number * (number % 5 + 1) for number in range(2000)]
    for body in bodies:
        channel.basic_publish("", name, body)
    assert [delivery[2] for delivery in take(channel, name, len(bodies))] == bodies


def test_confirms_and_returns(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", name, b"%d" % number, PERSISTENT, mandatory=True)
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("", "nowhere." + name, b"lost", PERSISTENT, mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.routing_key, returned.body) == ("nowhere." + name, b"lost")
    assert returned.properties == PERSISTENT
    channel.basic_publish("", "nowhere." + name, b"lost", PERSISTENT)  # not mandatory: confirmed all the same
    assert channel.queue_purge(name).method.message_count == 20
    assert channel.queue_delete(name).method.message_count == 0
    assert issubclass(NackError, Exception)


def test_confirmed_messages_survive_the_broker(broker: BrokerProcess, name: str) -> None:
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    channel.exchange_declare(name, "topic", durable=True)
    channel.queue_bind(name, name, "a.#")
    channel.confirm_delivery()
    for number in range(50):
        channel.basic_publish(name, "a.b", b"%d" % number, PERSISTENT)
    broker.kill9()
    broker.start()
    connection = connect(broker)
    channel = connection.channel()
    assert channel.queue_declare(name, durable=True).method.message_count == 50
    deliveries = take(channel, name, 50, auto_ack=False)
    assert [delivery[2] for delivery in deliveries] == [b"%d" % number for number in range(50)]
    assert {delivery[0].exchange for delivery in deliveries} == {name}
    connection.close()


# --- consuming ---------------------------------------------------------------------------


def test_prefetch_acks_and_redelivery(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    for number in range(10):
        channel.basic_publish("", name, b"%d" % number)
    channel.basic_qos(prefetch_count=4)
    got: list[Any] = []
    tag = channel.basic_consume(name, lambda _, method, properties, body: got.append((method, body)))
    settle(connection, channel, name)
    assert [body for _, body in got] == [b"0", b"1", b"2", b"3"]
    channel.basic_ack(2, multiple=True)
    channel.basic_nack(4, requeue=False)
    while len(got) < 7:
        connection.process_data_events(None)
    assert [body for _, body in got[4:]] == [b"4", b"5", b"6"]
    channel.basic_cancel(tag)
    channel.basic_reject(3, requeue=True)
    channel.basic_recover(requeue=True)
    again = [channel.basic_get(name, auto_ack=True) for _ in range(7)]
    assert [(method.redelivered, body) for method, _, body in again] == [
        (True, b"2"), (True, b"4"), (True, b"5"), (True, b"6"), (False, b"7"), (False, b"8"), (False, b"9"),
    ]  # fmt: skip


def test_global_prefetch_spans_consumers(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=3, global_qos=True)
    got: list[int] = []
    for index in range(2):
        channel.queue_declare(f"{name}.{index}", exclusive=True)
        channel.basic_consume(f"{name}.{index}", lambda _, method, properties, body: got.append(method.delivery_tag))
        for _ in range(5):
            channel.basic_publish("", f"{name}.{index}", b"x")
    settle(connection, channel, f"{name}.1")
    assert got == [1, 2, 3]
    channel.basic_qos(prefetch_count=0, global_qos=True)
    while len(got) < 10:
        connection.process_data_events(None)
    channel.basic_ack(0, multiple=True)


def test_a_deleted_queue_cancels_its_consumers(shared_broker: BrokerProcess, connection: BlockingConnection) -> None:
    channel = connection.channel()
    queue = channel.queue_declare("").method.queue
    assert queue.startswith("amq.gen-")
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)
    other = connect(shared_broker)
    other.channel().queue_delete(queue)
    other.close()
    while not cancelled:
        connection.process_data_events(None)
    assert cancelled == [tag]
    assert channel.is_open


def test_closing_a_channel_gives_back_what_was_not_acked(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.basic_publish("", name, b"back")
    other = connection.channel()
    assert other.basic_get(name)[2] == b"back"
    other.close()
    method, _, body = channel.basic_get(name)
    assert (method.redelivered, body) == (True, b"back")


def test_exclusive_and_auto_delete_queues_end(shared_broker: BrokerProcess, name: str) -> None:
    first, second = connect(shared_broker), connect(shared_broker)
    first.channel().queue_declare(name, exclusive=True)
    with pytest.raises(ChannelClosedByBroker) as caught:
        second.channel().queue_declare(name, passive=True)
    assert caught.value.reply_code == 405
    assert caught.value.reply_text.startswith(
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}'"
    )
    channel = second.channel()
    channel.queue_declare(f"{name}.auto", auto_delete=True)
    channel.basic_cancel(channel.basic_consume(f"{name}.auto", lambda *_: None))
    with pytest.raises(ChannelClosedByBroker, match="no queue"):
        channel.queue_declare(f"{name}.auto", passive=True)
    first.close()
    with pytest.raises(ChannelClosedByBroker, match="no queue"):
        second.channel().queue_declare(name, passive=True)
    second.close()


# --- exchanges ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "binding", "arguments", "hit", "miss"),
    [
        ("direct", "a.b", None, "a.b", "a.c"),
        ("topic", "a.*.#", None, "a.b.c.d", "b.a"),
        ("fanout", "", None, "whatever", None),
        ("headers", "", {"x-match": "all", "colour": "red"}, {"colour": "red"}, {"colour": "blue"}),
    ],
)
def test_exchanges_route(
    channel: BlockingChannel, name: str, kind: str, binding: str, arguments: Any, hit: Any, miss: Any
) -> None:
    channel.exchange_declare(f"{name}.front", "fanout", auto_delete=True)
    channel.exchange_declare(name, kind)
    channel.exchange_declare(name, kind, passive=True)
    channel.exchange_bind(name, f"{name}.front")
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, name, binding, arguments)
    for what, body in ((hit, b"hit"), (miss, b"miss")):
        if what is None:
            continue
        headers = what if isinstance(what, dict) else None
        key = "" if headers else what
        for exchange in (name, f"{name}.front"):
            channel.basic_publish(exchange, key, body, pika.BasicProperties(headers=headers))
    assert [delivery[2] for delivery in take(channel, name, 2)] == [b"hit", b"hit"]
    channel.exchange_unbind(name, f"{name}.front")
    channel.queue_unbind(name, name, binding, arguments)
    channel.basic_publish(name, "a.b", b"unbound")
    assert channel.basic_get(name) == (None, None, None)
    channel.exchange_delete(name)
    channel.exchange_delete(f"{name}.front")


# --- errors ------------------------------------------------------------------------------


def _unknown_tag(channel: BlockingChannel, name: str) -> None:
    channel.basic_ack(5)
    channel.queue_declare(name, exclusive=True)


def _publish(exchange: str, properties: pika.BasicProperties | None = None) -> Callable[[BlockingChannel, str], None]:
    def publish(channel: BlockingChannel, name: str) -> None:
        channel.confirm_delivery()
        channel.basic_publish(exchange or name, "key", b"body", properties)

    return publish


def _inequivalent(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.queue_declare(name, exclusive=True, auto_delete=True)


@pytest.mark.parametrize(
    ("attempt", "code", "text"),
    [
        (lambda c, n: c.queue_declare(n, passive=True), 404, "NOT_FOUND - no queue '{name}' in vhost '/'"),
        (lambda c, n: c.exchange_declare(n, passive=True), 404, "NOT_FOUND - no exchange '{name}' in vhost '/'"),
        (lambda c, n: c.basic_get(n), 404, "NOT_FOUND - no queue '{name}' in vhost '/'"),
        (lambda c, n: c.basic_consume(n, lambda *_: None), 404, "NOT_FOUND - no queue '{name}' in vhost '/'"),
        (lambda c, n: c.queue_purge(n), 404, "NOT_FOUND - no queue '{name}' in vhost '/'"),
        (lambda c, n: c.queue_bind(n, "amq.direct", "k"), 404, "NOT_FOUND - no queue '{name}' in vhost '/'"),
        (_publish(""), 404, "NOT_FOUND - no exchange '{name}' in vhost '/'"),
        (lambda c, n: c.basic_get(""), 404, "NOT_FOUND - no previously declared queue"),
        (lambda c, n: c.queue_declare("amq.x"), 403,
            "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'"),
        (lambda c, n: c.exchange_declare("", "direct"), 403,
            "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (lambda c, n: c.exchange_delete(""), 403, "ACCESS_REFUSED - operation not permitted on the default exchange"),
        (_unknown_tag, 406, "PRECONDITION_FAILED - unknown delivery tag 5"),
        (_inequivalent, 406, "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '{name}' in vhost '/': "
            "received 'true' but current is 'false'"),
        (_publish("amq.direct", pika.BasicProperties(user_id="other")), 406,
            "PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was 'guest'"),
        (_publish("amq.direct", pika.BasicProperties(expiration="soon")), 406,
            "PRECONDITION_FAILED - invalid expiration 'soon': no_integer"),
    ],
)  # fmt: skip
def test_errors_that_close_a_channel(
    connection: BlockingConnection, name: str, attempt: Any, code: int, text: str
) -> None:
    channel = connection.channel()
    with pytest.raises(ChannelClosedByBroker) as caught:
        attempt(channel, name)
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text.format(name=name))
    assert connection.channel().is_open


@pytest.mark.parametrize(
    ("attempt", "code", "text"),
    [
        (lambda c, n: c.exchange_declare(n, "no-such-kind"), 503,
            "COMMAND_INVALID - unknown exchange type 'no-such-kind'"),
        (lambda c, n: c.basic_recover(requeue=False), 540, "NOT_IMPLEMENTED - requeue=false"),
        (lambda c, n: c.basic_qos(prefetch_size=1), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)"),
    ],
)  # fmt: skip
def test_errors_that_close_the_connection(
    connection: BlockingConnection, name: str, attempt: Any, code: int, text: str
) -> None:
    with pytest.raises(ConnectionClosedByBroker) as caught:
        attempt(connection.channel(), name)
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)


def test_one_consumer_may_be_the_only_one(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.basic_consume(name, lambda *_: None, exclusive=True)
    with pytest.raises(ChannelClosedByBroker) as caught:
        connection.channel().basic_consume(name, lambda *_: None)
    assert (caught.value.reply_code, caught.value.reply_text) == (
        403, f"ACCESS_REFUSED - queue '{name}' in vhost '/' in exclusive use"
    )  # fmt: skip


def test_conditional_deletes(connection: BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name)
    channel.basic_publish("", name, b"keep")
    with pytest.raises(ChannelClosedByBroker, match=r"PRECONDITION_FAILED.*not empty"):
        channel.queue_delete(name, if_empty=True)
    channel = connection.channel()
    channel.basic_consume(name, lambda *_: None)
    with pytest.raises(ChannelClosedByBroker, match=r"PRECONDITION_FAILED.*in use"):
        channel.queue_delete(name, if_unused=True)
    assert connection.channel().queue_delete(name).method.message_count == 1
    assert connection.channel().queue_delete(name).method.message_count == 0


def test_an_application_may_tell_its_next_password(connection: BlockingConnection) -> None:
    connection.update_secret("new", "it changes tomorrow")
    assert connection.channel().is_open
