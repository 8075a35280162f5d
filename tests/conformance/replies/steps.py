"""What cases of misuse are made of."""

from __future__ import annotations

from typing import Any

from protocols.amqp import methods as m
from protocols.amqp.deliveries import content, method_frame
from protocols.amqp.methods import Method
from protocols.amqp.properties import BasicProperties, encode_properties
from tests.conformance.replies.client import Login, Step

Q, X = "reply.queue", "reply.exchange"
REPLY_TO = "amq.rabbitmq.reply-to"
HEADER_60 = b"\0\x3c\0\0"
EMPTY_HEADER = HEADER_60 + (4).to_bytes(8, "big") + b"\0\0"
"""Of a body of four bytes, without properties."""

CASES: dict[str, tuple[Login, list[Step]]] = {}
"""Filled by the modules `cases_*`."""


def case(name: str, *steps: Step, login: Login | None = None) -> None:
    """Add a case."""
    assert name not in CASES, name
    CASES[name] = (login or Login(), list(steps))


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    """Any frame, right or wrong."""
    return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + end


def call(method: Method, channel: int = 1) -> bytes:
    """A method frame for whose answer nobody waits."""
    return method_frame(channel, method.encode())


def publish(
    key: str = Q,
    body: bytes = b"body",
    exchange: str = "",
    *,
    mandatory: bool = False,
    immediate: bool = False,
    **properties: Any,
) -> bytes:
    """A whole publish."""
    method = m.BasicPublish(0, exchange, key, mandatory, immediate)
    return content(1, method.encode(), encode_properties(BasicProperties(**properties)), body, 131072)


def declare(name: str = Q, /, **options: Any) -> m.QueueDeclare:
    """An exclusive queue unless said otherwise."""
    options.setdefault("exclusive", True)
    return m.QueueDeclare(queue=name, **options)


def exchange(name: str = X, /, **options: Any) -> m.ExchangeDeclare:
    """An exchange that goes with its last binding."""
    options.setdefault("auto_delete", True)
    return m.ExchangeDeclare(exchange=name, **options)


PUBLISH_HEAD = call(m.BasicPublish(routing_key=Q))
