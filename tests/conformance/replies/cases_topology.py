"""What does not exist, what is declared again, names, bindings."""

from __future__ import annotations

from protocols.amqp import methods as m
from tests.conformance.replies.client import Login
from tests.conformance.replies.steps import Q, X, case, declare, exchange, publish

# --- what does not exist, or is somebody else's
case("consume from an unknown queue", m.BasicConsume(queue="nowhere"))
case("get from an unknown queue", m.BasicGet(queue="nowhere"))
case("passive declaration of an unknown queue", declare("nowhere", passive=True))
case("passive declaration of an unknown exchange", exchange("nowhere", passive=True))
case("publish to an unknown exchange", publish(exchange="nowhere"))
case("purge an unknown queue", m.QueuePurge(queue="nowhere"))
case("delete an unknown queue", m.QueueDelete(queue="nowhere"))
case("delete an unknown exchange", m.ExchangeDelete(exchange="nowhere"))
case("bind an unknown queue", m.QueueBind(queue="nowhere", exchange="amq.direct"))
case("bind to an unknown exchange", declare(), m.QueueBind(queue=Q, exchange="nowhere"))
case("unbind an unknown queue", m.QueueUnbind(queue="nowhere", exchange="amq.direct"))
case("unbind from an unknown exchange", declare(), m.QueueUnbind(queue=Q, exchange="nowhere"))
case("unbind what was never bound", declare(), m.QueueUnbind(queue=Q, exchange="amq.direct", routing_key="k"))
case(
    "unbind with other arguments",
    declare(),
    m.QueueBind(queue=Q, exchange="amq.direct", routing_key="k"),
    m.QueueUnbind(queue=Q, exchange="amq.direct", routing_key="k", arguments={"a": 1}),
)
case("bind an unknown exchange to another", m.ExchangeBind(destination="nowhere", source="amq.direct"))
case("bind an exchange to an unknown one", m.ExchangeBind(destination="amq.direct", source="nowhere"))
case("unbind an unknown exchange", m.ExchangeUnbind(destination="nowhere", source="amq.direct"))
case("unbind an exchange from an unknown one", m.ExchangeUnbind(destination="amq.direct", source="nowhere"))
case("unbind both unknown", m.ExchangeUnbind(destination="nowhere", source="elsewhere"))
case("no queue was declared: consume", m.BasicConsume())
case("no queue was declared: get", m.BasicGet())
case("no queue was declared: bind", m.QueueBind(exchange="amq.direct"))
case("no queue was declared: purge", m.QueuePurge())
case("no queue was declared: delete", m.QueueDelete())
case("no queue was declared: passive", declare("", passive=True))
case("the queue last declared", declare(), m.QueueBind(exchange="amq.direct"), m.BasicGet(), m.QueueDelete())
case("the default exchange and an empty key after a declaration", declare(), publish(""), m.BasicGet(queue=Q))
case("an unknown virtual host", login=Login(virtual_host="elsewhere", until="open"))
case("an empty virtual host", login=Login(virtual_host="", until="open"))

# --- declared again with something else
case("queue: the same again", declare(), declare())
case("queue: durable", declare(), declare(durable=True))
case("queue: auto-delete", declare(), declare(auto_delete=True))
case(
    "queue: exclusive",
    declare(exclusive=False),
    declare(),
)
case("queue: not exclusive", declare("reply.own"), declare("reply.own", exclusive=False))
case("queue: an argument more", declare(), declare(arguments={"x-max-length": 5}))
case("queue: an argument less", declare(arguments={"x-max-length": 5}), declare())
case("queue: another argument", declare(arguments={"x-max-length": 5}), declare(arguments={"x-max-length": 6}))
case(
    "queue: the same argument in another type",
    declare(arguments={"x-max-length": 5}),
    declare(arguments={"x-max-length": 5 + (1 << 40) - (1 << 40)}),
)
case("queue: x-message-ttl", declare(arguments={"x-message-ttl": 5000}), declare(arguments={"x-message-ttl": 6000}))
case("queue: x-expires", declare(arguments={"x-expires": 5000}), declare(arguments={"x-expires": 6000}))
case("queue: x-max-priority", declare(arguments={"x-max-priority": 5}), declare(arguments={"x-max-priority": 6}))
case(
    "queue: x-dead-letter-exchange",
    declare(arguments={"x-dead-letter-exchange": "a"}),
    declare(arguments={"x-dead-letter-exchange": "b"}),
)
case(
    "queue: x-queue-type",
    declare(exclusive=False, durable=True),
    declare(exclusive=False, durable=True, arguments={"x-queue-type": "quorum"}),
)
case("queue: an unknown argument is not compared", declare(arguments={"x-own": 1}), declare(arguments={"x-own": 2}))
case("exchange: the same again", exchange(), exchange())
case("exchange: type", exchange(), exchange(kind="fanout"))
case("exchange: durable", exchange(), exchange(durable=True))
case("exchange: auto-delete", exchange(), exchange(auto_delete=False))
case("exchange: internal", exchange(), exchange(internal=True))
case("exchange: alternate-exchange", exchange(), exchange(arguments={"alternate-exchange": "a"}))
case("exchange: amq.direct as it is", exchange("amq.direct", durable=True, auto_delete=False))
case("exchange: amq.direct as a topic exchange", exchange("amq.direct", kind="topic", durable=True, auto_delete=False))

# --- names and permissions
case("declare a reserved queue name", declare("amq.mine"))
case("passive declaration of a reserved queue name", declare("amq.mine", passive=True))
case("declare a reserved exchange name", exchange("amq.mine"))
case("delete a reserved exchange", m.ExchangeDelete(exchange="amq.direct"))
case("delete a reserved exchange that is not there", m.ExchangeDelete(exchange="amq.mine"))
case("declare the default exchange", exchange(""))
case("passive declaration of the default exchange", exchange("", passive=True))
case("delete the default exchange", m.ExchangeDelete(exchange=""))
case("bind to the default exchange", declare(), m.QueueBind(queue=Q, exchange="", routing_key="k"))
case("unbind from the default exchange", declare(), m.QueueUnbind(queue=Q, exchange="", routing_key=Q))
case("bind an exchange to the default exchange", exchange(), m.ExchangeBind(destination=X, source=""))
case("bind the default exchange", exchange(), m.ExchangeBind(destination="", source=X))
case("unbind an exchange from the default exchange", exchange(), m.ExchangeUnbind(destination=X, source=""))
case("publish to an internal exchange", exchange(internal=True), publish(exchange=X))
case("an unknown exchange type", exchange(kind="sideways"))
case("an empty exchange type", exchange(kind=""))
case("a queue name with control characters", declare("a\nb"), m.QueueDelete(queue="a\nb"))
case("a queue name of 255 bytes", declare("n" * 255))
case("a generated name", declare(""))

# --- bindings
for value in ("all", "any", "all-with-x", "any-with-x", "some", 5):
    case(
        f"headers: x-match={value!r}",
        declare(),
        m.QueueBind(queue=Q, exchange="amq.headers", arguments={"x-match": value, "a": 1}),
    )
case("headers: no x-match", declare(), m.QueueBind(queue=Q, exchange="amq.headers", arguments={"a": 1}))
case(
    "delete an exchange in use",
    exchange(),
    declare(),
    m.QueueBind(queue=Q, exchange=X),
    m.ExchangeDelete(exchange=X, if_unused=True),
)
case(
    "an auto-delete exchange goes with its last binding",
    exchange(),
    declare(),
    m.QueueBind(queue=Q, exchange=X),
    m.QueueUnbind(queue=Q, exchange=X),
    exchange(passive=True),
)
case(
    "delete a queue in use",
    declare(),
    m.BasicConsume(queue=Q, consumer_tag="t"),
    m.QueueDelete(queue=Q, if_unused=True),
)
case("delete a queue that is not empty", declare(), publish(), m.QueueDelete(queue=Q, if_empty=True))
case(
    "delete an exclusive queue that is empty and unused",
    declare(),
    m.QueueDelete(queue=Q, if_unused=True, if_empty=True),
)
