"""py-amqp, the client of Kombu and Celery, against the broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import amqp
import pytest
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed, ResourceLocked

from tests.support import BrokerProcess


def connect(broker: BrokerProcess, **options: Any) -> amqp.Connection:
    """A connection that is open."""
    connection = amqp.Connection(f"127.0.0.1:{broker.amqp_port}", **options)
    connection.connect()
    return connection


@pytest.fixture
def connection(shared_broker: BrokerProcess) -> Iterator[amqp.Connection]:
    connection = connect(shared_broker, confirm_publish=True)
    yield connection
    connection.close()


@pytest.fixture
def name() -> str:
    return f"py-amqp.{uuid.uuid4().hex}"


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_both_ways_to_log_in(shared_broker: BrokerProcess, mechanism: str) -> None:
    connection = connect(shared_broker, login_method=mechanism, heartbeat=10)
    capabilities = connection.server_properties["capabilities"]
    assert capabilities["publisher_confirms"]
    assert capabilities["consumer_cancel_notify"]
    assert connection.heartbeat == 10
    connection.close()
    with pytest.raises(AccessRefused, match=f"Login was refused using authentication mechanism {mechanism}"):
        connect(shared_broker, login_method=mechanism, password="wrong")


def test_publish_consume_and_settle(connection: amqp.Connection, name: str) -> None:
    channel = connection.channel()
    assert tuple(channel.queue_declare(name, exclusive=True, auto_delete=False)) == (name, 0, 0)
    for number in range(5):
        message = amqp.Message(f"{number}", application_headers={"n": number}, delivery_mode=2, priority=number)
        channel.basic_publish(message, routing_key=name)
    channel.basic_qos(0, 3, False)
    got: list[amqp.Message] = []
    tag = channel.basic_consume(name, callback=got.append)
    while len(got) < 3:
        connection.drain_events(timeout=5)
    assert [(message.body, message.headers, message.properties["priority"]) for message in got] == [
        ("0", {"n": 0}, 0), ("1", {"n": 1}, 1), ("2", {"n": 2}, 2)
    ]  # fmt: skip
    channel.basic_ack(got[0].delivery_tag)
    channel.basic_reject(got[1].delivery_tag, requeue=True)
    while len(got) < 5:
        connection.drain_events(timeout=5)
    channel.basic_cancel(tag)
    assert sorted(message.body for message in got[3:]) == ["1", "3"]
    assert [message.delivery_info["redelivered"] for message in got[3:]] in ([True, False], [False, True])
    channel.basic_recover(requeue=True)
    assert tuple(channel.queue_declare(name, passive=True))[1] == 4
    assert channel.queue_purge(name) == 4
    assert channel.basic_get(name) is None
    channel.close()


def test_returned_messages_reach_the_callback(connection: amqp.Connection, name: str) -> None:
    channel = connection.channel()
    returned: list[tuple[Any, ...]] = []
    channel.events["basic_return"].add(lambda *arguments: returned.append(arguments))
    channel.basic_publish(amqp.Message("lost"), routing_key=f"nowhere.{name}", mandatory=True)
    ((error, exchange, routing_key, message),) = returned
    assert (error.reply_code, error.reply_text) == (312, "NO_ROUTE")
    assert (exchange, routing_key, message.body) == ("", f"nowhere.{name}", "lost")


def test_flow_stops_and_resumes_deliveries(connection: amqp.Connection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    got: list[amqp.Message] = []
    channel.basic_consume(name, callback=got.append, no_ack=True)
    channel.flow(False)
    channel.basic_publish(amqp.Message("held back"), routing_key=name)
    assert tuple(channel.queue_declare(name, passive=True))[1] == 1
    assert not got
    channel.flow(True)
    while not got:
        connection.drain_events(timeout=5)
    assert got[0].body == "held back"


def test_topology_without_waiting(connection: amqp.Connection, name: str) -> None:
    channel = connection.channel()
    channel.exchange_declare(name, "topic", auto_delete=False, nowait=True)
    channel.exchange_declare(f"{name}.in", "fanout", auto_delete=False, nowait=True)
    channel.exchange_bind(name, f"{name}.in", nowait=True)
    channel.queue_declare(name, exclusive=True, nowait=True)
    channel.queue_bind(name, name, "a.*", nowait=True)
    channel.basic_publish(amqp.Message("through both"), f"{name}.in", "a.b")
    assert channel.basic_get(name, no_ack=True).body == "through both"
    channel.queue_unbind(name, name, "a.*")
    channel.exchange_unbind(name, f"{name}.in")
    channel.exchange_delete(f"{name}.in", nowait=True)
    channel.exchange_delete(name)
    channel.queue_delete(name, nowait=True)
    with pytest.raises(NotFound):
        channel.queue_declare(name, passive=True)


def test_errors_are_of_the_right_class(shared_broker: BrokerProcess, connection: amqp.Connection, name: str) -> None:
    with pytest.raises(NotFound, match="no exchange 'nowhere' in vhost '/'"):
        connection.channel().exchange_declare("nowhere", "direct", passive=True)
    with pytest.raises(AccessRefused, match="reserved prefix"):
        connection.channel().exchange_declare("amq.mine", "direct")
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'type'"):
        connection.channel().exchange_declare("amq.topic", "direct", durable=True, auto_delete=False)
    connection.channel().queue_declare(name, exclusive=True)
    other = connect(shared_broker)
    with pytest.raises(ResourceLocked):
        other.channel().queue_declare(name, exclusive=True)
    other.close()
