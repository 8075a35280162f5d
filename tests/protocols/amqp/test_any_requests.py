"""Requests of any kind in any order, and bent bytes, on a real engine: answered or refused, never a crash."""

from __future__ import annotations

from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from core_log.memory_files import FaultyFiles, MemoryFiles
from protocols.amqp import methods
from protocols.amqp.methods import Method
from protocols.amqp.properties import BasicProperties, encode_properties
from routing.broker import open_broker
from tests.protocols.amqp.conftest import World
from tests.protocols.amqp.test_codec import ANY_TABLE, FIELD_VALUES
from tests.protocols.amqp.wire import call, frame, publish

NAMES = st.sampled_from(
    ["", "q", "x", "amq.topic", "amq.headers", "no such", "a.*.#", "direct", "topic", "headers", "☃"]
)
ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.just({}) | ANY_TABLE | st.dictionaries(
    st.sampled_from(["x-match", "x-queue-type", "x-message-ttl", "x-priority", "x-max-length", "x-expires", "h"]),
    st.sampled_from(["all", "any", 1, -1, True, None, [1], {"a": 1}, 1.5, b"\0"]),
    max_size=2,
)  # fmt: skip
KINDS = [kind for kind in methods.METHODS.values() if kind not in methods.NOT_FOR_CHANNELS and kind.IDENT >> 16 != 10]
VALUES = {**FIELD_VALUES, "shortstr": NAMES, "shortbytes": NAMES, "table": ARGUMENTS, "longlong": st.integers(0, 6)}


@st.composite
def any_request(draw: st.DrawFn) -> bytes:
    """The bytes of a request on channel 1 or 2."""
    channel = draw(st.sampled_from([1, 1, 1, 2]))
    if draw(st.integers(0, 3)) == 0:
        exchange = draw(st.sampled_from(["", "x", "amq.topic", "amq.headers"]))
        return publish(draw(NAMES), b"body", channel=channel, exchange=exchange, mandatory=draw(st.booleans())) * 3
    kind: type[Method] = draw(st.sampled_from(KINDS))
    if kind is methods.BasicPublish:
        return frame(8, 0, b"")
    return call(channel, kind(*[draw(VALUES[field]) for field, names in kind.PLAN for _ in names]))


SETUP = (
    call(
        1,
        methods.QueueDeclare(queue="q"),
        methods.ExchangeDeclare(exchange="x", kind="headers"),
        methods.QueueBind(queue="q", exchange="x", arguments={"h": 1, "x-match": "any"}),
        methods.QueueBind(queue="q", exchange="amq.topic", routing_key="#"),
        methods.ConfirmSelect(),
        methods.BasicConsume(queue="q", consumer_tag="c"),
    )
    + publish("q", b"waiting") * 3
)


@settings(max_examples=60, deadline=None)
@given(st.lists(any_request(), max_size=12), st.booleans())
def test_any_requests_are_answered_or_refused(requests: list[bytes], at_once: bool) -> None:
    async def run() -> None:
        files = FaultyFiles(MemoryFiles())
        async with open_broker(files) as broker:
            client = await World(broker, files).client(channels=2)
            await client.send(SETUP)
            for data in [b"".join(requests)] if at_once else requests:
                with trio.fail_after(10):
                    await client.send(data)
            client.take()
            client.lose()
            assert not broker.sessions

    trio.run(run)


SPECIAL = [
    encode_properties(
        BasicProperties(headers={"CC": ["q", "x"], "BCC": ["q"], "n": [1, {"a": None}]}, delivery_mode=2)
    ),
    encode_properties(BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="7", expiration="60000")),
    encode_properties(BasicProperties(headers={"x-delay": 5}, priority=9, user_id="guest", timestamp=1, type="t")),
]
CONVERSATION = (
    call(1, methods.BasicConsume(queue="amq.rabbitmq.reply-to", consumer_tag="r", no_ack=True))
    + b"".join(publish("q", b"body" * number, raw=raw, mandatory=True) for number, raw in enumerate(SPECIAL))
    + call(2, methods.TxSelect())
    + publish("q", b"in a transaction", channel=2)
    + call(2, methods.BasicGet(queue="q"), methods.BasicAck(1), methods.TxCommit(), methods.TxRollback())
    + call(1, methods.BasicAck(2, True), methods.BasicNack(0, True, True), methods.BasicRecover(True))
    + publish("x", bytes(300), exchange="x", frame_bytes_max=100)
)
BEND = st.tuples(
    st.integers(0, len(CONVERSATION) - 1), st.sampled_from(["set", "cut", "add", "move"]), st.integers(0, 255)
)


def bent(data: bytes, bends: list[tuple[int, str, int]]) -> bytes:
    """The same with bytes changed, cut out, added, or a piece moved elsewhere."""
    changed = bytearray(data)
    for position, how, value in bends:
        at = position % len(changed)
        if how == "set":
            changed[at] = value
        elif how == "cut":
            del changed[at : at + value % 9 + 1]
        elif how == "add":
            changed[at:at] = bytes([value]) * (value % 5 + 1)
        else:
            piece = changed[at : at + 30]
            del changed[at : at + 30]
            changed[value:value] = piece
    return bytes(changed)


@settings(max_examples=60, deadline=None)
@given(st.lists(BEND, min_size=1, max_size=4), st.integers(1, 2000))
def test_bent_bytes_end_a_connection_and_nothing_else(bends: list[tuple[int, str, int]], size: int) -> None:
    async def run() -> None:
        files = FaultyFiles(MemoryFiles())
        async with open_broker(files) as broker:
            world = World(broker, files)
            other, client = await world.client(), await world.client(channels=2)
            await client.send(SETUP)
            data = bent(CONVERSATION, bends)
            for at in range(0, len(data), size):
                if client.closed:
                    break
                with trio.fail_after(10):
                    await client.send(data[at : at + size])
            client.take()
            client.lose()
            assert len(broker.sessions) == 1
            assert await other.calls(methods.BasicQos(0, 1)) == [methods.BasicQosOk()]

    trio.run(run)
