"""Well-formed requests of any kind and in any order, on a real engine: answered or refused, never a crash."""

from __future__ import annotations

from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from core_log.memory_files import FaultyFiles, MemoryFiles
from protocols.amqp import methods
from protocols.amqp.methods import Method
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
VALUES = {**FIELD_VALUES, "shortstr": NAMES, "table": ARGUMENTS, "longlong": st.integers(0, 6)}


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
