"""Limits and lives of queues, also for who publishes and asks in one write: what came before the question counts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from protocols.amqp import methods as m
from tests.conformance.replies.client import ReplyClient, Step
from tests.conformance.replies.steps import Q, declare, publish
from tests.support import BrokerProcess


@pytest.fixture
def channel(shared_broker: BrokerProcess) -> Iterator[BlockingChannel]:
    parameters = pika.ConnectionParameters("127.0.0.1", shared_broker.amqp_port)
    with BlockingConnection(parameters) as connection:
        yield connection.channel()


@pytest.fixture
def name() -> str:
    return f"limits.{uuid.uuid4().hex}"


def drain(channel: BlockingChannel, queue: str) -> list[str]:
    """All that waits."""
    found = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append(body.decode())


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ({"x-max-length": 2}, ["333", "444"]),
        ({"x-max-length": 0}, []),
        ({"x-max-length-bytes": 10}, ["222", "333", "444"]),
        ({"x-max-length": 3, "x-max-length-bytes": 6}, ["333", "444"]),
        ({"x-message-ttl": 0}, []),
        ({"x-message-ttl": 60_000}, ["000", "111", "222", "333", "444"]),
    ],
)
def test_a_get_right_behind_publishes(
    channel: BlockingChannel, name: str, arguments: dict[str, Any], left: list[str]
) -> None:
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    for number in range(5):
        channel.basic_publish("", name, f"{number}" * 3, pika.BasicProperties(headers={"not": "counted"}))
    assert drain(channel, name) == left


@pytest.mark.parametrize(("count", "after"), [(0, 2), (1, 2), (3, 2)])
def test_a_count_right_behind_publishes(channel: BlockingChannel, name: str, count: int, after: int) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 2})
    for _ in range(count + 2):
        channel.basic_publish("", name, b"m")
    assert channel.queue_declare(name, passive=True).method.message_count == after
    assert channel.queue_purge(name).method.message_count == after


def test_what_comes_back_to_a_full_queue_goes_first(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 2})
    for number in range(2):
        channel.basic_publish("", name, b"%d" % number)
    for _ in range(2):
        channel.basic_get(name)
    for number in range(2, 5):
        channel.basic_publish("", name, b"%d" % number)
    assert channel.queue_declare(name, passive=True).method.message_count == 2  # what is delivered does not count
    channel.basic_nack(0, multiple=True, requeue=True)
    assert drain(channel, name) == ["3", "4"]


@pytest.mark.parametrize(
    ("sizes", "refused", "left"),
    [
        ((50, 1), [1], [1]),
        ((4, 5, 1, 1), [4], [4, 5, 1]),
        ((4, 50, 6, 1, 50, 0), [2, 4, 5], [4, 6, 0]),
        ((11, 10, 11, 1), [1, 3, 4], [10]),
    ],
)
def test_messages_that_do_not_fit_are_refused_alone(
    shared_broker: BrokerProcess, sizes: tuple[int, ...], refused: list[int], left: list[int]
) -> None:
    """All in one write; a message that fits is taken, whatever came before it."""
    limited = declare(arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    publishes = b"".join(publish(body=b"x" * size) for size in sizes)
    steps: list[Step] = [limited, m.ConfirmSelect(), publishes, *[m.BasicGet(queue=Q)] * (len(left) + 1)]
    nacked: list[int] = []
    acked: list[int] = []
    got = 0
    for line in ReplyClient(shared_broker.amqp_port).run(steps):
        kind, *fields = line.split()
        values = dict(field.split("=") for field in fields)
        if kind in ("basic.ack", "basic.nack"):
            into = acked if kind == "basic.ack" else nacked
            last = int(values["delivery_tag"])
            known = {*acked, *nacked}
            into += [tag for tag in range(1 if values.get("multiple") else last, last + 1) if tag not in known]
        got += kind == "basic.get-ok"
    assert (nacked, len(acked), got) == (refused, len(sizes) - len(refused), len(left))


@pytest.mark.parametrize("priorities", [(0, 3, 1), (5, 5, 5), (3, 1, 5, 0, 2)])
def test_what_is_refused_dies_and_what_was_taken_stays_whatever_their_priorities(
    channel: BlockingChannel, name: str, priorities: tuple[int, ...]
) -> None:
    terms = {"x-max-length": 2, "x-max-priority": 5, "x-overflow": "reject-publish-dlx"}
    channel.queue_declare(f"{name}.dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
    channel.queue_declare(name, arguments=terms | to_dead)
    for number, priority in enumerate(priorities):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(priority=priority))
    assert sorted(drain(channel, name)) == ["0", "1"]
    assert sorted(drain(channel, f"{name}.dead")) == [str(number) for number in range(2, len(priorities))]


def test_a_transaction_that_does_not_fit_is_refused_as_a_whole(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.tx_select()
    for bodies in ((b"1", b"2"), (b"3",)):
        for body in bodies:
            channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))
        if bodies == (b"3",):
            with pytest.raises(ChannelClosedByBroker, match=f"406.*queue '{name}' in vhost '/' is full"):
                channel.tx_commit()
        else:
            channel.tx_commit()
    assert drain(channel.connection.channel(), name) == ["1", "2"]


def test_a_queue_lives_while_somebody_looks_at_it(channel: BlockingChannel, name: str) -> None:
    for kind in ("passive", "get", "idle"):
        channel.queue_declare(f"{name}.{kind}", arguments={"x-expires": 400})
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        channel.connection.process_data_events(0.1)  # type: ignore[no-untyped-call]
        channel.queue_declare(f"{name}.passive", passive=True)
        channel.basic_get(f"{name}.get")
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare(f"{name}.idle", passive=True)
    assert closed.value.reply_code == 404


def test_an_address_of_direct_replies_is_no_queue_of_anybody(shared_broker: BrokerProcess) -> None:
    address = "amq.rabbitmq.reply-to.abc"
    for step in (
        m.BasicGet(queue=address),
        m.BasicConsume(queue=address),
        m.QueuePurge(queue=address),
        m.QueueBind(queue=address, exchange="amq.direct"),
    ):
        (line,) = ReplyClient(shared_broker.amqp_port).run([step])
        assert line.startswith(f"channel.close 404 NOT_FOUND - no queue '{address}' in vhost '/'")
    assert ReplyClient(shared_broker.amqp_port).run([m.QueueDelete(queue=address)]) == ["queue.delete-ok"]
    generated = ReplyClient(shared_broker.amqp_port).run([declare("amq.gen-mine")])
    assert generated[0].startswith("channel.close 403 ACCESS_REFUSED - queue name 'amq.gen-*' contains reserved")
