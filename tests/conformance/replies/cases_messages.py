"""Consumers, settling, publishing, transactions, direct reply-to."""

from __future__ import annotations

from protocols.amqp import methods as m
from tests.conformance.replies.steps import REPLY_TO, Q, call, case, declare, publish

# --- consumers
case(
    "a consumer tag twice",
    declare(),
    m.BasicConsume(queue=Q, consumer_tag="t"),
    m.BasicConsume(queue=Q, consumer_tag="t"),
)
case(
    "an exclusive consumer beside another",
    declare(),
    m.BasicConsume(queue=Q, consumer_tag="a"),
    m.BasicConsume(queue=Q, consumer_tag="b", exclusive=True),
)
case(
    "a consumer beside an exclusive one",
    declare(),
    m.BasicConsume(queue=Q, consumer_tag="a", exclusive=True),
    m.BasicConsume(queue=Q, consumer_tag="b"),
)
case(
    "get beside an exclusive consumer",
    declare(),
    m.BasicConsume(queue=Q, consumer_tag="a", exclusive=True),
    m.BasicGet(queue=Q),
)
case("cancel an unknown consumer", m.BasicCancel(consumer_tag="nobody"))
case("a consumer without a tag", declare(), m.BasicConsume(queue=Q))
case("no-local", declare(), m.BasicConsume(queue=Q, consumer_tag="t", no_local=True))
case(
    "a consumer hears that its queue is gone",
    declare(),
    m.BasicConsume(queue=Q, consumer_tag="t"),
    m.QueueDelete(queue=Q),
)
for value in (5, -5, "high", 1.5):
    case(
        f"consumer: x-priority={value!r}",
        declare(),
        m.BasicConsume(queue=Q, consumer_tag="t", arguments={"x-priority": value}),
    )
case("consumer: an unknown argument", declare(), m.BasicConsume(queue=Q, consumer_tag="t", arguments={"x-own": 5}))
case("prefetch size", m.BasicQos(prefetch_size=5))
case("global prefetch size", m.BasicQos(prefetch_size=5, all_consumers=True))

# --- settling
for name, step in {
    "ack": call(m.BasicAck(7)),
    "ack multiple": call(m.BasicAck(7, True)),
    "ack 0": call(m.BasicAck(0)),
    "ack 0 multiple": call(m.BasicAck(0, True)),
    "nack": call(m.BasicNack(7)),
    "nack multiple": call(m.BasicNack(7, True)),
    "nack 0 multiple": call(m.BasicNack(0, True)),
    "nack 0": call(m.BasicNack(0)),
    "reject": call(m.BasicReject(7)),
    "reject 0": call(m.BasicReject(0)),
}.items():
    case(f"{name}: nothing is outstanding", step)
    case(f"{name}: one other is outstanding", declare(), publish(), m.BasicGet(queue=Q), step)
    case(f"{name}: confirms are on", m.ConfirmSelect(), step)
case("ack twice", declare(), publish(), m.BasicGet(queue=Q), call(m.BasicAck(1)), call(m.BasicAck(1)))
case("ack twice, multiple", declare(), publish(), m.BasicGet(queue=Q), call(m.BasicAck(1)), call(m.BasicAck(1, True)))
case("ack what was not to be acknowledged", declare(), publish(), m.BasicGet(queue=Q, no_ack=True), call(m.BasicAck(1)))
case(
    "multiple ack up to a settled tag",
    declare(),
    publish(),
    publish(),
    m.BasicGet(queue=Q),
    m.BasicGet(queue=Q),
    call(m.BasicAck(2)),
    call(m.BasicAck(2, True)),
    m.BasicGet(queue=Q),
)
case("multiple ack beyond the last tag", declare(), publish(), m.BasicGet(queue=Q), call(m.BasicAck(5, True)))
case("recover with requeue", declare(), publish(), m.BasicGet(queue=Q), m.BasicRecover(True), m.BasicGet(queue=Q))
case("recover without requeue", declare(), publish(), m.BasicGet(queue=Q), m.BasicRecover(False))
case("recover-async with requeue", call(m.BasicRecoverAsync(True)))
case("recover-async without requeue", call(m.BasicRecoverAsync(False)))
case(
    "reject with requeue", declare(), publish(), m.BasicGet(queue=Q), call(m.BasicReject(1, True)), m.BasicGet(queue=Q)
)

# --- publishing
case("mandatory without a queue", publish("nowhere", mandatory=True))
case("mandatory without a queue, with a confirm", m.ConfirmSelect(), publish("nowhere", mandatory=True))
case("immediate", publish(immediate=True))
case("immediate and mandatory", publish(immediate=True, mandatory=True))
for value in ("abc", "-1", "", "1.5", " 5", "5 ", "0", "4294967295", "4294967296", "99999999999999999999"):
    case(f"expiration={value!r}", declare(), publish(expiration=value))
case("the user id of another", publish(user_id="somebody"))
case("an empty user id", publish(user_id=""))
case("one's own user id", declare(), publish(user_id="guest"), m.BasicGet(queue=Q))
case("delivery mode 3", declare(), publish(delivery_mode=3), m.BasicGet(queue=Q))
case("CC that is no list", declare(), publish("nowhere", headers={"CC": Q}))
case("CC of numbers", declare(), publish("nowhere", headers={"CC": [5]}))
case("BCC that is no list", declare(), publish("nowhere", headers={"BCC": 5}))
case(
    "CC and BCC",
    declare(),
    publish("nowhere", headers={"CC": [Q], "BCC": [Q, "k"]}),
    m.BasicGet(queue=Q),
    m.BasicGet(queue=Q),
)
case("a message on a channel with confirms", m.ConfirmSelect(), declare(), publish())
case("a confirm for a message that goes nowhere", m.ConfirmSelect(), publish("nowhere"))

# --- transactions and confirms
case("commit without select", m.TxCommit())
case("rollback without select", m.TxRollback())
case("select twice", m.TxSelect(), m.TxSelect())
case("confirms on a tx channel", m.TxSelect(), m.ConfirmSelect())
case("tx on a channel with confirms", m.ConfirmSelect(), m.TxSelect())
case("confirms twice", m.ConfirmSelect(), m.ConfirmSelect())
case("commit nothing", m.TxSelect(), m.TxCommit())
case("roll back nothing", m.TxSelect(), m.TxRollback())
case("tx: publish to an unknown exchange", m.TxSelect(), publish(exchange="nowhere"), m.TxCommit())
case("tx: ack an unknown tag", m.TxSelect(), call(m.BasicAck(7)), m.TxCommit())
case("tx: mandatory without a queue", m.TxSelect(), publish("nowhere", mandatory=True), m.TxCommit())
case(
    "tx: ack twice",
    declare(),
    publish(),
    m.TxSelect(),
    m.BasicGet(queue=Q),
    call(m.BasicAck(1)),
    call(m.BasicAck(1)),
    m.TxCommit(),
)
case(
    "tx: an ack that is rolled back",
    declare(),
    publish(),
    m.TxSelect(),
    m.BasicGet(queue=Q),
    call(m.BasicAck(1)),
    m.TxRollback(),
    m.BasicGet(queue=Q),
    call(m.BasicAck(1)),
    m.TxCommit(),
)
case(
    "tx: a publish that is rolled back",
    declare(),
    m.TxSelect(),
    publish(),
    m.TxRollback(),
    m.TxCommit(),
    m.BasicGet(queue=Q),
)
case(
    "tx: recover after rollback",
    declare(),
    publish(),
    m.TxSelect(),
    m.BasicGet(queue=Q),
    call(m.BasicAck(1)),
    m.TxRollback(),
    m.BasicRecover(True),
    m.BasicGet(queue=Q),
)
case(
    "tx: recover before commit",
    declare(),
    publish(),
    m.TxSelect(),
    m.BasicGet(queue=Q),
    call(m.BasicAck(1)),
    m.BasicRecover(True),
    m.TxCommit(),
    m.BasicGet(queue=Q),
)
case(
    "tx: nack with requeue",
    declare(),
    publish(),
    m.TxSelect(),
    m.BasicGet(queue=Q),
    call(m.BasicNack(1, False, True)),
    m.BasicGet(queue=Q),
    m.TxCommit(),
    m.BasicGet(queue=Q),
)

# --- direct reply-to
case("reply-to: declare", declare(REPLY_TO))
case("reply-to: declare, not exclusive", declare(REPLY_TO, exclusive=False))
case("reply-to: declare passively", declare(REPLY_TO, passive=True))
case("reply-to: consume", m.BasicConsume(queue=REPLY_TO, consumer_tag="t", no_ack=True))
case("reply-to: consume with acknowledgements", m.BasicConsume(queue=REPLY_TO, consumer_tag="t"))
case("reply-to: consume exclusively", m.BasicConsume(queue=REPLY_TO, consumer_tag="t", no_ack=True, exclusive=True))
case(
    "reply-to: consume twice",
    m.BasicConsume(queue=REPLY_TO, consumer_tag="t", no_ack=True),
    m.BasicConsume(queue=REPLY_TO, consumer_tag="u", no_ack=True),
)
case(
    "reply-to: again after a cancel",
    m.BasicConsume(queue=REPLY_TO, consumer_tag="t", no_ack=True),
    m.BasicCancel(consumer_tag="t"),
    m.BasicConsume(queue=REPLY_TO, consumer_tag="u", no_ack=True),
)
case("reply-to: get", m.BasicGet(queue=REPLY_TO))
case("reply-to: bind", m.QueueBind(queue=REPLY_TO, exchange="amq.direct"))
case("reply-to: purge", m.QueuePurge(queue=REPLY_TO))
case("reply-to: delete", m.QueueDelete(queue=REPLY_TO))
case("reply-to: publish without a consumer", declare(), publish(reply_to=REPLY_TO))
case("reply-to: publish to it", publish(REPLY_TO, mandatory=True))
case(
    "reply-to: publish to it, with a consumer",
    m.BasicConsume(queue=REPLY_TO, consumer_tag="t", no_ack=True),
    publish(REPLY_TO, mandatory=True),
)
case("reply-to: an address that is not there", publish(REPLY_TO + ".abc.def", mandatory=True))
case("reply-to: declare an address that is not there", declare(REPLY_TO + ".abc.def", exclusive=False))
case("reply-to: declare an address passively that is not there", declare(REPLY_TO + ".abc.def", passive=True))
