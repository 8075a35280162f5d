"""What is declared again, argument by argument: which of them count, and in what words."""

from __future__ import annotations

from typing import Any

from protocols.amqp import methods as m
from tests.conformance.replies.steps import Q, X, case, declare, exchange

PAIRS: dict[str, tuple[Any, Any]] = {
    "x-message-ttl": (5000, 6000),
    "x-expires": (5_000_000, 6_000_000),
    "x-max-length": (5, 6),
    "x-max-length-bytes": (500, 600),
    "x-max-priority": (5, 6),
    "x-overflow": ("drop-head", "reject-publish"),
    "x-dead-letter-exchange": ("a", "b"),
    "x-single-active-consumer": (True, False),
    "x-queue-mode": ("lazy", "default"),
    "x-queue-version": (1, 2),
    "x-queue-master-locator": ("client-local", "min-masters"),
    "x-queue-leader-locator": ("client-local", "balanced"),
    "x-queue-type": ("classic", "quorum"),
}
for argument, (one, other) in PAIRS.items():
    names = {"exclusive": False, "durable": True}
    case(
        f"queue again: {argument}, another",
        declare(arguments={argument: one}, **names),
        declare(arguments={argument: other}, **names),
    )
    case(f"queue again: {argument}, one more", declare(**names), declare(arguments={argument: one}, **names))
    case(f"queue again: {argument}, one less", declare(arguments={argument: one}, **names), declare(**names))
case(
    "queue again: x-dead-letter-routing-key",
    declare(arguments={"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "a"}),
    declare(arguments={"x-dead-letter-exchange": "a", "x-dead-letter-routing-key": "b"}),
)
case(
    "queue again: x-max-length of another type",
    declare(arguments={"x-max-length": 5}),
    declare(arguments={"x-max-length": 1 << 40}),
)
case("queue again: x-overflow, which is the default", declare(), declare(arguments={"x-overflow": "drop-head"}))
case("queue again: senseless arguments", declare(), declare(arguments={"x-max-length": -5}))
case("queue again: senseless arguments, passively", declare(), declare(passive=True, arguments={"x-max-length": -5}))
case(
    "queue again: passively and otherwise",
    declare(),
    declare(passive=True, exclusive=False, durable=True, arguments={"x-max-length": 5}),
)
case(
    "queue again: two differences",
    declare(arguments={"x-max-length": 5, "x-message-ttl": 6}),
    declare(arguments={"x-max-length": 6, "x-message-ttl": 5}),
)
case(
    "queue again: auto-delete and durable",
    declare(exclusive=False),
    declare(exclusive=False, durable=True, auto_delete=True),
)
case("queue again: durable and not exclusive", declare(exclusive=False, durable=True), declare(exclusive=False))
QUORUM = {"x-queue-type": "quorum"}
for argument, (one, other) in {
    "x-max-length": (5, 6),
    "x-max-length-bytes": (500, 600),
    "x-delivery-limit": (5, 6),
    "x-dead-letter-exchange": ("a", "b"),
    "x-dead-letter-strategy": ("at-most-once", "at-least-once"),
    "x-overflow": ("drop-head", "reject-publish"),
    "x-single-active-consumer": (True, False),
    "x-message-ttl": (5000, 6000),
    "x-expires": (5_000_000, 6_000_000),
    "x-quorum-initial-group-size": (1, 3),
    "x-max-in-memory-length": (5, 6),
    "x-max-in-memory-bytes": (5, 6),
    "x-queue-leader-locator": ("client-local", "balanced"),
}.items():
    names = {"exclusive": False, "durable": True}
    case(
        f"quorum again: {argument}, another",
        declare(arguments=QUORUM | {argument: one}, **names), declare(arguments=QUORUM | {argument: other}, **names),
    )  # fmt: skip
    case(
        f"quorum again: {argument}, one more",
        declare(arguments=QUORUM, **names),
        declare(arguments=QUORUM | {argument: one}, **names),
    )
for argument, values in {
    "x-delivery-limit": (-1, 0, "5"),
    "x-dead-letter-strategy": ("at-least-once", "sideways", 5),
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx", "sideways"),
    "x-quorum-initial-group-size": (0, -1, "3"),
    "x-max-in-memory-length": (0, -1, "3"),
    "x-max-in-memory-bytes": (0, -1, "3"),
    "x-queue-leader-locator": ("sideways", 5),
    "x-queue-master-locator": ("client-local",),
    "x-queue-version": (1, 2),
    "x-max-length": (-1, "5"),
    "x-single-active-consumer": ("yes",),
    "x-max-age": ("5D",),
    "x-stream-max-segment-size-bytes": (1000,),
    "x-initial-cluster-size": (1,),
    "x-own-argument": (5,),
}.items():
    for value in values:
        case(
            f"quorum: {argument}={value!r}",
            declare(exclusive=False, durable=True, arguments=QUORUM | {argument: value}),
        )
case("quorum: no name", declare("", exclusive=False, durable=True, arguments=QUORUM))
case(
    "quorum: again as a stream",
    declare(exclusive=False, durable=True, arguments=QUORUM),
    declare(exclusive=False, durable=True, arguments={"x-queue-type": "stream"}),
)
case(
    "quorum: again without a type",
    declare(exclusive=False, durable=True, arguments=QUORUM),
    declare(exclusive=False, durable=True),
)
case(
    "quorum: again as classic",
    declare(exclusive=False, durable=True, arguments=QUORUM),
    declare(exclusive=False, durable=True, arguments={"x-queue-type": "classic"}),
)
case(
    "quorum: exclusive consumer",
    declare(exclusive=False, durable=True, arguments=QUORUM),
    m.BasicConsume(queue=Q, exclusive=True),
    m.BasicConsume(queue=Q),
)
case(
    "quorum: global prefetch",
    declare(exclusive=False, durable=True, arguments=QUORUM),
    m.BasicQos(0, 5, True),
    m.BasicConsume(queue=Q),
)
case(
    "quorum: delete if unused",
    declare(exclusive=False, durable=True, arguments=QUORUM),
    m.QueueDelete(queue=Q, if_unused=True),
)
case(
    "quorum: delete if empty",
    declare(exclusive=False, durable=True, arguments=QUORUM),
    m.QueueDelete(queue=Q, if_empty=True),
)
case("classic: x-dead-letter-strategy", declare(arguments={"x-dead-letter-strategy": "at-least-once"}))
for value in ("classic", "quorum", "stream"):
    case(
        f"classic: again as {value}",
        declare(exclusive=False, durable=True),
        declare(exclusive=False, durable=True, arguments={"x-queue-type": value}),
    )

# --- exchanges
case(
    "exchange again: alternate-exchange, another",
    exchange(arguments={"alternate-exchange": "a"}),
    exchange(arguments={"alternate-exchange": "b"}),
)
case("exchange again: alternate-exchange, one less", exchange(arguments={"alternate-exchange": "a"}), exchange())
case("exchange again: an unknown argument", exchange(arguments={"own": 1}), exchange(arguments={"own": 2}))
case(
    "exchange again: passively and otherwise",
    exchange(),
    exchange(passive=True, kind="fanout", durable=True, internal=True),
)
case("exchange again: passively of an unknown type", exchange(), exchange(passive=True, kind="sideways"))
case("exchange again: of an unknown type", exchange(), exchange(kind="sideways"))
case("exchange again: two differences", exchange(), exchange(kind="fanout", durable=True))
case("exchange: amq.match", exchange("amq.match", kind="headers", durable=True, auto_delete=False))
case(
    "exchange: amq.rabbitmq.trace",
    exchange("amq.rabbitmq.trace", kind="topic", durable=True, auto_delete=False, internal=True),
)
case("exchange: amq.rabbitmq.log", exchange("amq.rabbitmq.log", passive=True))
case("exchange: publish to amq.rabbitmq.trace", m.ExchangeDeclare(exchange="amq.rabbitmq.trace", passive=True))
case("exchange: a name with control characters", exchange("a\nb"), m.ExchangeDelete(exchange="ab"))
case("exchange: without waiting, an error", exchange(), exchange(kind="fanout", nowait=True))
case("exchange: delete twice", exchange(), m.ExchangeDelete(exchange=X), m.ExchangeDelete(exchange=X))
case("exchange: delete if unused", exchange(), m.ExchangeDelete(exchange=X, if_unused=True))
case(
    "exchange: a source in use",
    exchange(auto_delete=False),
    m.ExchangeBind(destination="amq.fanout", source=X),
    m.ExchangeDelete(exchange=X, if_unused=True),
)
case(
    "exchange: a destination is not in use",
    exchange(auto_delete=False),
    m.ExchangeBind(destination=X, source="amq.fanout"),
    m.ExchangeDelete(exchange=X, if_unused=True),
)
case(
    "exchange: bound to itself",
    exchange(),
    m.ExchangeBind(destination=X, source=X, routing_key="k"),
    m.ExchangeUnbind(destination=X, source=X, routing_key="k"),
)
case(
    "exchange: an internal one is a destination",
    exchange(internal=True),
    m.ExchangeBind(destination=X, source="amq.fanout"),
    m.ExchangeUnbind(destination=X, source="amq.fanout"),
)
case(
    "headers: bad x-match between exchanges",
    exchange(kind="headers"),
    m.ExchangeBind(destination="amq.fanout", source=X, arguments={"x-match": "some"}),
)
