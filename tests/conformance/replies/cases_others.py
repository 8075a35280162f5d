"""What belongs to another connection, or is used by it."""

from __future__ import annotations

from protocols.amqp import methods as m
from tests.conformance.replies.client import Other
from tests.conformance.replies.steps import REPLY_TO, Q, X, call, case, declare, exchange, publish

# --- an exclusive queue
OTHERS = Other(declare())
for name, steps in {
    "declare": [declare()],
    "declare, not exclusive": [declare(exclusive=False)],
    "declare otherwise": [declare(auto_delete=True)],
    "declare with arguments": [declare(arguments={"x-max-length": 5})],
    "declare passively": [declare(passive=True)],
    "declare passively, not exclusive": [declare(passive=True, exclusive=False)],
    "bind": [m.QueueBind(queue=Q, exchange="amq.direct")],
    "bind to nothing": [m.QueueBind(queue=Q, exchange="nowhere")],
    "unbind": [m.QueueUnbind(queue=Q, exchange="amq.direct")],
    "unbind from nothing": [m.QueueUnbind(queue=Q, exchange="nowhere")],
    "purge": [m.QueuePurge(queue=Q)],
    "delete": [m.QueueDelete(queue=Q)],
    "delete if unused": [m.QueueDelete(queue=Q, if_unused=True)],
    "get": [m.BasicGet(queue=Q)],
    "consume": [m.BasicConsume(queue=Q)],
    "consume exclusively": [m.BasicConsume(queue=Q, exclusive=True)],
    "publish": [publish(mandatory=True)],
    "declare without waiting": [declare(nowait=True)],
    "get after a name that failed": [declare(passive=True, nowait=True), m.BasicGet()],
}.items():
    case(f"the exclusive queue of another: {name}", OTHERS, *steps)
case("an exclusive queue that ends with its connection", OTHERS, Other(call(m.ConnectionClose(200, ""), 0)), declare())

# --- consumers of others
SHARED = declare(exclusive=False)
case(
    "consume beside the exclusive consumer of another",
    SHARED,
    Other(m.BasicConsume(queue=Q, exclusive=True)),
    m.BasicConsume(queue=Q),
)
case(
    "consume exclusively beside a consumer of another",
    SHARED,
    Other(m.BasicConsume(queue=Q)),
    m.BasicConsume(queue=Q, exclusive=True),
)
case(
    "get beside the exclusive consumer of another",
    SHARED,
    Other(m.BasicConsume(queue=Q, exclusive=True)),
    m.BasicGet(queue=Q),
)
case(
    "purge beside the exclusive consumer of another",
    SHARED,
    Other(m.BasicConsume(queue=Q, exclusive=True)),
    m.QueuePurge(queue=Q),
)
case(
    "delete beside the exclusive consumer of another",
    SHARED,
    Other(m.BasicConsume(queue=Q, exclusive=True)),
    m.QueueDelete(queue=Q),
)
case("delete a queue that another uses", SHARED, Other(m.BasicConsume(queue=Q)), m.QueueDelete(queue=Q, if_unused=True))
case(
    "the same consumer tag on another connection",
    SHARED,
    Other(m.BasicConsume(queue=Q, consumer_tag="t")),
    m.BasicConsume(queue=Q, consumer_tag="t"),
)
case(
    "cancel the consumer of another",
    SHARED,
    Other(m.BasicConsume(queue=Q, consumer_tag="t")),
    m.BasicCancel("t"),
    m.QueueDelete(queue=Q, if_unused=True),
)
case(
    "a queue that another deletes",
    SHARED,
    m.BasicConsume(queue=Q, consumer_tag="t"),
    Other(m.QueueDelete(queue=Q)),
    m.BasicCancel("t"),
)
case(
    "a queue that another deletes while a delivery is held",
    SHARED, publish(), m.BasicGet(queue=Q), Other(m.QueueDelete(queue=Q)), call(m.BasicAck(1)), m.BasicGet(queue=Q),
)  # fmt: skip
case(
    "a queue that another purges while a delivery is held",
    SHARED, publish(), publish(), m.BasicGet(queue=Q), Other(m.QueuePurge(queue=Q)), call(m.BasicNack(1, False, True)),
    m.BasicGet(queue=Q),
)  # fmt: skip
case(
    "an auto-delete queue goes with its last consumer",
    declare(auto_delete=True),
    m.BasicConsume(queue=Q, consumer_tag="t"),
    m.BasicCancel("t"),
    m.BasicGet(queue=Q),
)
case("an auto-delete queue that was never consumed", declare(auto_delete=True), m.BasicGet(queue=Q))
case(
    "an auto-delete queue and the channel of its consumer",
    declare(auto_delete=True, exclusive=False), Other(m.BasicConsume(queue=Q)), Other(m.ChannelClose(200, "")),
    m.BasicGet(queue=Q),
)  # fmt: skip
case(
    "an exchange that another deletes",
    exchange(auto_delete=False),
    Other(m.ExchangeDelete(exchange=X)),
    publish(exchange=X),
)
case("the confirm of a publish to the exclusive queue of another", OTHERS, m.ConfirmSelect(), publish(mandatory=True))
case(
    "reply-to: consume on another connection as well",
    Other(m.BasicConsume(queue=REPLY_TO, no_ack=True)),
    m.BasicConsume(queue=REPLY_TO, no_ack=True),
)
case(
    "the exclusive queue of another: unbind what it bound",
    OTHERS,
    Other(m.QueueBind(queue=Q, exchange="amq.direct", routing_key="k")),
    m.QueueUnbind(queue=Q, exchange="amq.direct", routing_key="k"),
)
ONE_ACTIVE = declare(arguments={"x-single-active-consumer": True})
case("one active consumer: an exclusive one", ONE_ACTIVE, m.BasicConsume(queue=Q, exclusive=True))
case(
    "one active consumer: an exclusive one beside another",
    ONE_ACTIVE,
    m.BasicConsume(queue=Q),
    m.BasicConsume(queue=Q, exclusive=True),
)
case("one active consumer: get", ONE_ACTIVE, m.BasicConsume(queue=Q), m.BasicGet(queue=Q))
