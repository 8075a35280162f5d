"""Streams: how they are declared and consumed, and what they do not do."""

from __future__ import annotations

from typing import Any

from protocols.amqp import methods as m
from protocols.amqp.wire import Timestamp
from tests.conformance.replies.steps import Q, case, declare

STREAM = {"x-queue-type": "stream"}
QOS = m.BasicQos(0, 10)


def stream(name: str = Q, /, **arguments: Any) -> m.QueueDeclare:
    """A declaration; underscores stand for dashes in the names of arguments."""
    said = {name.replace("_", "-"): value for name, value in arguments.items()}
    return declare(name, exclusive=False, durable=True, arguments=STREAM | said)


case("stream: a declaration", stream(), stream(), m.QueueDelete(queue=Q))
case("stream: no name", stream(""))
case("stream: a reserved name", stream("amq.mine"))
case("stream: unknown argument", stream(x_unknown=1))
for argument, values in {
    "x-max-age": ("7D", "1h", "1M", "1w", "1.5h", "D", "", 7),
    "x-max-length-bytes": (1000, 0, -1, "a"),
    "x-stream-max-segment-size-bytes": (1000, 0, -1, "a", 3_000_000_001),
    "x-initial-cluster-size": (1, 0, "a"),
    "x-queue-leader-locator": ("client-local", "nowhere"),
}.items():
    for value in values:
        case(f"stream: {argument}={value!r}", stream(**{argument: value}))
for argument in ("x-queue-version", "x-max-in-memory-bytes", "x-quorum-initial-group-size"):
    case(f"stream: {argument}", stream(**{argument: 1}))
for argument in ("x-queue-master-locator", "x-dead-letter-routing-key", "x-dead-letter-strategy"):
    case(f"stream: {argument}", stream(**{argument: "min-masters"}))
case("stream: an age more", stream(), stream(x_max_age="1h"))
case("stream: an age less", stream(x_max_age="1h"), stream())
case("stream: another age", stream(x_max_age="1h"), stream(x_max_age="2h"))
case("stream: again as a classic queue", stream(), declare(exclusive=False, durable=True))
case("stream: again not durable", stream(), declare(exclusive=False, arguments=STREAM))
case("stream: again exclusive", stream(), declare(durable=True, arguments=STREAM))
case("stream: get", stream(), m.BasicGet(queue=Q))
case("stream: purge", stream(), m.QueuePurge(queue=Q))
case("stream: consume without a prefetch", stream(), m.BasicConsume(queue=Q, consumer_tag="c"))
case("stream: consume with a prefetch of the channel", stream(), m.BasicQos(0, 10, True), m.BasicConsume(queue=Q))
case("stream: consume without acknowledgements", stream(), QOS, m.BasicConsume(queue=Q, no_ack=True))
case("stream: neither", stream(), m.BasicConsume(queue=Q, no_ack=True))
case("stream: consume exclusively", stream(), QOS, *[m.BasicConsume(queue=Q, exclusive=True)] * 2)
case("stream: cancel", stream(), QOS, m.BasicConsume(queue=Q, consumer_tag="c"), m.BasicCancel("c"))
for value in (
    *("first", "last", "next", "1h", "7D", 0, 5, 100, -3, Timestamp(1000), Timestamp(4_000_000_000)),
    *("5", "abc", "FIRST", "1.5h", "", True, None, {"a": 1}),
):
    consume = m.BasicConsume(queue=Q, consumer_tag="c", arguments={"x-stream-offset": value})
    case(f"stream: x-stream-offset={value!r}", stream(), QOS, consume)
for argument in ("x-priority", "x-cancel-on-ha-failover", "x-unknown"):
    case(f"stream: consumer {argument}", stream(), QOS, m.BasicConsume(queue=Q, arguments={argument: 5}))
