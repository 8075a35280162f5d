"""Rules and texts of exchanges, queues and bindings; they are RabbitMQ's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from core_log.files import MemoryFiles
from routing.broker import Broker
from routing.errors import (
    AccessRefused,
    BrokerError,
    InvalidArgument,
    InvalidName,
    InvalidPartitions,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    ResourceLocked,
    UnknownExchangeType,
)
from tests.routing.harness import engine, with_headers

Act = Callable[[Broker], Awaitable[Any]]
LOCKED = (
    "cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another "
    "connection or the exclusive property value does not match that of the original declaration."
)
OWNER, STRANGER = object(), object()


async def prepare(broker: Broker) -> None:
    await broker.declare_exchange("logs", "topic", durable=True, arguments={"alternate-exchange": "a"})
    await broker.declare_exchange("inner", "fanout", internal=True)
    await broker.declare_queue("work", durable=True, arguments={"x-queue-mode": "lazy"}, owner=STRANGER)
    await broker.declare_queue("brief", durable=True, arguments={"x-message-ttl": 60_000})
    await broker.declare_queue("mine", exclusive=True, owner=OWNER)
    await broker.bind("queue", "work", "logs", "k")


REFUSALS: list[tuple[Act, type[BrokerError], str]] = [
    # exchanges
    (lambda b: b.declare_exchange("", "direct"), AccessRefused, "operation not permitted on the default exchange"),
    (
        lambda b: b.declare_exchange("amq.mine", "direct"),
        AccessRefused,
        "exchange name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    (lambda b: b.declare_exchange("n" * 256, "direct"), InvalidArgument, "an exchange's name has at most 255 bytes"),
    (lambda b: b.declare_exchange("new", "x-odd"), UnknownExchangeType, "unknown exchange type 'x-odd'"),
    (lambda b: b.declare_exchange("new", "x-jms-topic"), UnknownExchangeType, "unknown exchange type 'x-jms-topic'"),
    (
        lambda b: b.declare_exchange("logs", "fanout", durable=True),
        PreconditionFailed,
        "inequivalent arg 'type' for exchange 'logs' in vhost '/': received 'fanout' but current is 'topic'",
    ),
    (
        lambda b: b.declare_exchange("logs", "topic", durable=False),
        PreconditionFailed,
        "inequivalent arg 'durable' for exchange 'logs' in vhost '/': received 'false' but current is 'true'",
    ),
    (
        lambda b: b.declare_exchange("logs", "topic", durable=True, auto_delete=True),
        PreconditionFailed,
        "inequivalent arg 'auto_delete' for exchange 'logs' in vhost '/': received 'true' but current is 'false'",
    ),
    (
        lambda b: b.declare_exchange("logs", "topic", durable=True, internal=True),
        PreconditionFailed,
        "inequivalent arg 'internal' for exchange 'logs' in vhost '/': received 'true' but current is 'false'",
    ),
    (
        lambda b: b.declare_exchange("logs", "topic", durable=True, arguments={"alternate-exchange": "b"}),
        PreconditionFailed,
        "inequivalent arg 'alternate-exchange' for exchange 'logs' in vhost '/': received 'b' but current is 'a'",
    ),
    (
        lambda b: b.declare_exchange("logs", "topic", durable=True),
        PreconditionFailed,
        "inequivalent arg 'alternate-exchange' for exchange 'logs' in vhost '/': received none but current is the "
        "value 'a' of type 'longstr'",
    ),
    (
        lambda b: b.declare_exchange("inner", "fanout", internal=True, arguments={"alternate-exchange": "a"}),
        PreconditionFailed,
        "inequivalent arg 'alternate-exchange' for exchange 'inner' in vhost '/': received the value 'a' of type "
        "'longstr' but current is none",
    ),
    (
        lambda b: b.declare_exchange("new", "direct", arguments={"alternate-exchange": 5}),
        PreconditionFailed,
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'new' in vhost '/'",
    ),
    *(
        (
            lambda b, arguments=arguments: b.declare_exchange("new", "x-delayed-message", arguments=arguments),
            PreconditionFailed,
            "Invalid argument, 'x-delayed-type' must be an existing exchange type",
        )
        for arguments in ({}, *({"x-delayed-type": one} for one in ("odd", "x-delayed-message", ["topic"], {"a": "b"})))
    ),
    *(
        (
            lambda b, arguments=arguments: b.declare_exchange("new", "x-consistent-hash", arguments=arguments),
            PreconditionFailed,
            text,
        )
        for arguments, text in (
            (
                {"hash-header": "h", "hash-property": "message_id"},
                "hash-header and hash-property are mutually exclusive",
            ),
            ({"hash-property": "odd"}, "Unsupported property: odd"),
            ({"hash-property": 5}, "Unsupported property: 5"),
            ({"hash-header": 5}, "hash-header is no name: 5"),
        )
    ),
    *(
        (
            lambda b, length=length: b.declare_exchange(
                "new", "x-recent-history", arguments={"x-recent-history-length": length}
            ),
            PreconditionFailed,
            f"Invalid argument {said}, 'x-recent-history-length' must be a positive integer",
        )
        for length, said in ((0, "0"), (-1, "-1"), ("5", '<<"5">>'))
    ),
    (lambda b: b.delete_exchange(""), AccessRefused, "operation not permitted on the default exchange"),
    (
        lambda b: b.delete_exchange("amq.direct"),
        AccessRefused,
        "deletion of system exchange 'amq.direct' in vhost '/' not allowed",
    ),
    (
        lambda b: b.delete_exchange("logs", if_unused=True),
        PreconditionFailed,
        "exchange 'logs' in vhost '/' in use",
    ),
    # queues
    (
        lambda b: b.declare_queue("amq.mine"),
        AccessRefused,
        "queue name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    (
        lambda b: b.declare_queue("work", arguments={"x-queue-mode": "lazy"}),
        PreconditionFailed,
        "inequivalent arg 'durable' for queue 'work' in vhost '/': received 'false' but current is 'true'",
    ),
    (
        lambda b: b.declare_queue("work", durable=True, auto_delete=True, arguments={"x-queue-mode": "lazy"}),
        PreconditionFailed,
        "inequivalent arg 'auto_delete' for queue 'work' in vhost '/': received 'true' but current is 'false'",
    ),
    (
        lambda b: b.declare_queue("work", durable=True, arguments={"x-queue-mode": "default"}),
        PreconditionFailed,
        "inequivalent arg 'x-queue-mode' for queue 'work' in vhost '/': received 'default' but current is 'lazy'",
    ),
    (
        lambda b: b.declare_queue("work", durable=True),
        PreconditionFailed,
        "inequivalent arg 'x-queue-mode' for queue 'work' in vhost '/': received none but current is the value "
        "'lazy' of type 'longstr'",
    ),
    (
        lambda b: b.declare_queue("brief", durable=True, arguments={"x-message-ttl": 60_000.0}),
        PreconditionFailed,
        "inequivalent arg 'x-message-ttl' for queue 'brief' in vhost '/': received '60000.0' but current is '60000'",
    ),
    (lambda b: b.declare_queue("mine", exclusive=True, owner=STRANGER), ResourceLocked, LOCKED),
    (lambda b: b.declare_queue("mine", owner=STRANGER), ResourceLocked, LOCKED),
    (lambda b: b.declare_queue("mine", owner=OWNER), ResourceLocked, LOCKED),
    (lambda b: b.delete_queue("mine", owner=STRANGER), ResourceLocked, LOCKED),
    (lambda b: b.purge_queue("mine", owner=STRANGER), ResourceLocked, LOCKED),
    (lambda b: b.bind("queue", "mine", "logs", "k", owner=STRANGER), ResourceLocked, LOCKED),
    (lambda b: b.purge_queue("no", owner=STRANGER), NotFound, "no queue 'no' in vhost '/'"),
    (
        lambda b: b.declare_queue("ttl", arguments={"x-message-ttl": -5}),
        InvalidArgument,
        "invalid arg 'x-message-ttl' for queue 'ttl' in vhost '/': {value_negative,-5}",
    ),
    (
        lambda b: b.declare_queue("s", durable=True, arguments={"x-queue-type": "new"}),
        InvalidArgument,
        "invalid arg 'x-queue-type' for queue 's' in vhost '/': \"unsupported queue type 'new'\"",
    ),
    # bindings
    (lambda b: b.bind("queue", "work", "", "k"), AccessRefused, "operation not permitted on the default exchange"),
    (lambda b: b.unbind("queue", "work", "", "k"), AccessRefused, "operation not permitted on the default exchange"),
    (lambda b: b.bind("exchange", "", "logs", "k"), AccessRefused, "operation not permitted on the default exchange"),
    (lambda b: b.bind("queue", "work", "no", "k"), NotFound, "no exchange 'no' in vhost '/'"),
    (lambda b: b.bind("queue", "no", "logs", "k"), NotFound, "no queue 'no' in vhost '/'"),
    (lambda b: b.bind("exchange", "no", "logs", "k"), NotFound, "no exchange 'no' in vhost '/'"),
    (lambda b: b.bind("topic", "no", "logs", "k"), NotFound, "no topic 'no'"),
    (
        lambda b: b.bind("queue", "work", "amq.headers", "", {"x-match": "some"}),
        PreconditionFailed,
        'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x',
    ),
    # topics
    (lambda b: b.delete_topic("no"), NotFound, "no topic 'no'"),
    (lambda b: b.create_topic("t", partitions=0), InvalidPartitions, "partitions must be 1 to 1000, not 0"),
    (lambda b: b.create_topic("t", partitions=1001), InvalidPartitions, "partitions must be 1 to 1000, not 1001"),
    (
        lambda b: b.create_topic("__queues"),
        InvalidName,
        "topic name '__queues' is reserved: the broker has something else that is called so",
    ),
]


async def test_refusals() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await prepare(broker)
        for act, kind, text in REFUSALS:
            before = (sorted(broker.topology.exchanges), sorted(broker.topology.queues), sorted(broker.topics))
            with pytest.raises(BrokerError) as caught:
                await act(broker)
            assert (type(caught.value), str(caught.value)) == (kind, text)
            after = (sorted(broker.topology.exchanges), sorted(broker.topology.queues), sorted(broker.topics))
            assert before == after, text


async def test_what_is_no_error() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await prepare(broker)
        await broker.declare_exchange("logs", "topic", durable=True, arguments={"alternate-exchange": "a"})
        await broker.declare_exchange("amq.topic", "topic", durable=True)
        info = await broker.declare_queue("work", durable=True, arguments={"x-queue-mode": "lazy"}, owner=OWNER)
        assert (info.name, info.message_count, info.consumer_count) == ("work", 0, 0)
        assert (await broker.declare_queue("mine", exclusive=True, owner=OWNER)).name == "mine"
        await broker.bind("queue", "work", "logs", "k")
        await broker.unbind("queue", "work", "logs", "never bound")
        await broker.delete_exchange("no")
        assert await broker.delete_queue("no") == 0
        broker.check_exchange("")
        broker.check_exchange("amq.match")
        assert (await broker.check_queue("mine", OWNER)).name == "mine"
        with pytest.raises(NotFound, match="no exchange 'no' in vhost '/'"):
            broker.check_exchange("no")
        with pytest.raises(ResourceLocked):
            await broker.check_queue("mine", STRANGER)


async def test_publishing_to_exchanges_one_may_not() -> None:
    async with engine(MemoryFiles()) as running:
        await prepare(running.broker)
        client = running.client()
        with pytest.raises(AccessRefused, match=r"^cannot publish to internal exchange 'inner' in vhost '/'$"):
            client.publish("k", 1, exchange="inner", confirm=True)
        with pytest.raises(NotFound, match=r"^no exchange 'no' in vhost '/'$"):
            client.publish("k", 1, exchange="no", confirm=True)
        client.publish("work", 1, confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed > 0)
        assert client.events == [("confirm", 1)]


async def test_server_named_queues() -> None:
    async with engine(MemoryFiles()) as running:
        names = {(await running.broker.declare_queue("", exclusive=True, owner=OWNER)).name for _ in range(50)}
        assert len(names) == 50
        assert all(name.startswith("amq.gen-") and len(name) == 30 for name in names)


async def test_exclusive_queues_end_with_their_connection() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await prepare(broker)
        client = running.client(OWNER)
        await broker.declare_queue("another", exclusive=True, durable=True, owner=OWNER)
        await broker.bind("queue", "mine", "amq.fanout", "", owner=OWNER)
        client.publish("mine", 1)
        await client.consume("mine")
        assert client.take_bodies() == ["1"]
        client.session.close()
        broker.release(OWNER)
        broker.release(OWNER)
        assert sorted(broker.topology.queues) == ["brief", "work"]
        assert not broker.topology.exchanges["amq.fanout"].bindings
        with pytest.raises(NotFound):
            await broker.check_queue("mine", OWNER)


async def test_an_exclusive_queue_that_was_deleted_leaves_no_trace_at_its_owner() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        for _ in range(20):
            info = await broker.declare_queue("", exclusive=True, owner=OWNER)
            await broker.delete_queue(info.name, owner=OWNER)
        assert not broker.topology.owned.get(OWNER)
        await broker.declare_queue("q", exclusive=True, owner=OWNER)
        await broker.delete_queue("q", owner=OWNER)
        await broker.declare_queue("q", exclusive=True, owner=STRANGER)
        broker.release(OWNER)
        assert (await broker.check_queue("q", STRANGER)).name == "q"


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("leave", ["cancel", "close"])
async def test_auto_delete_queues_go_with_their_last_consumer(durable: bool, leave: str) -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await running.queue("q", durable=durable, auto_delete=True)
        one, two = running.client(), running.client()
        tags = [await one.consume("q"), await two.consume("q")]
        one.publish("q", 1)
        running.turn()
        for client, tag in zip((one, two), tags):
            assert "q" in broker.topology.queues
            if leave == "cancel":
                client.session.cancel(tag)
            else:
                client.session.close()
        assert "q" not in broker.topology.queues
        assert one.events == two.events == []
        await running.queue("q", durable=durable, auto_delete=True)
        client = running.client()
        assert await client.session.get("q", no_ack=True) is None, "a get is no consumer"
        assert "q" in broker.topology.queues


async def test_if_unused_and_if_empty() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await running.queue("q")
        client = running.client()
        client.publish("q", 1)
        with pytest.raises(PreconditionFailed, match=r"^queue 'q' in vhost '/' not empty$"):
            await broker.delete_queue("q", if_empty=True)
        await client.consume("q")
        client.take()
        with pytest.raises(PreconditionFailed, match=r"^queue 'q' in vhost '/' in use$"):
            await broker.delete_queue("q", if_unused=True)
        client.session.cancel(next(iter(client.session.consumers)))
        assert await broker.delete_queue("q", if_unused=True, if_empty=True) == 0


async def test_auto_delete_exchanges_go_with_their_last_binding() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await running.queue("q")
        await broker.declare_exchange("source", "fanout", durable=True, auto_delete=True)
        await broker.declare_exchange("middle", "fanout", durable=True, auto_delete=True)
        await broker.bind("exchange", "middle", "source", "")
        await broker.bind("queue", "q", "middle", "a")
        await broker.bind("queue", "q", "middle", "b")
        await broker.unbind("queue", "q", "middle", "a")
        assert "middle" in broker.topology.exchanges
        await broker.delete_queue("q")
        assert "middle" not in broker.topology.exchanges
        assert "source" not in broker.topology.exchanges, "its only destination is gone"
        assert not [key for kind in ("exchange", "binding", "queue") for key in broker.topology.catalog.entries(kind)]


async def test_bindings_of_a_deleted_exchange_go_both_ways() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await prepare(broker)
        await broker.declare_exchange("up", "fanout", durable=True)
        await broker.bind("exchange", "logs", "up", "")
        await broker.delete_exchange("logs")
        assert not broker.topology.exchanges["up"].bindings
        assert not list(broker.topology.catalog.entries("binding"))
        client = running.client()
        client.publish("k", 1, exchange="up", mandatory=True)
        assert client.events == [("returned", ["1"], "NO_ROUTE")]


async def test_cycles_of_exchanges() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        for name in ("a", "b", "c"):
            await broker.declare_exchange(name, "fanout", auto_delete=True)
            await running.queue(f"q{name}")
            await running.bind(name, f"q{name}")
        for source, destination in ("ab", "bc", "ca", "aa"):
            await broker.bind("exchange", destination, source, "")
        client = running.client()
        client.publish("k", 1, exchange="b")
        for name in ("qa", "qb", "qc"):
            assert await running.drain(name) == [("1", False)]
        await broker.delete_exchange("a")
        client.publish("k", 2, exchange="b")
        assert await running.drain("qc") == [("2", False)]
        for name in ("qa", "qb", "qc"):
            await broker.delete_queue(name)
        assert not {"a", "b", "c"} & set(broker.topology.exchanges)


async def test_headers_behind_other_exchanges_are_asked_for_every_message() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await running.queue("red")
        await running.queue("all")
        await broker.bind("exchange", "amq.headers", "amq.topic", "#")
        await running.bind("amq.headers", "red", "", arguments={"colour": "red"})
        await running.bind("amq.topic", "all", "#")
        client = running.client()
        for number, colour in enumerate(["red", "blue", "red"]):
            client.publish("same.key", number, exchange="amq.topic", properties=with_headers({"colour": colour}))
        assert [body for body, _ in await running.drain("red")] == ["0", "2"]
        assert [body for body, _ in await running.drain("all")] == ["0", "1", "2"]


async def test_routes_follow_the_topology() -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        client = running.client()

        def publish() -> int:
            before = len(client.events)
            client.publish("k", 1, exchange="amq.direct", mandatory=True)
            return len(client.events) - before

        assert publish() == 1
        await running.queue("q")
        await running.bind("amq.direct", "q", "k")
        assert publish() == 0
        await broker.unbind("queue", "q", "amq.direct", "k")
        assert publish() == 1
        await broker.bind("exchange", "amq.fanout", "amq.direct", "k")
        assert publish() == 1
        await running.bind("amq.fanout", "q")
        assert publish() == 0
        await broker.delete_queue("q")
        assert publish() == 1
        await running.queue("q")
        assert publish() == 1


@pytest.mark.parametrize(
    ("limit", "act"),
    [
        ("queues_max", lambda broker, name: broker.declare_queue(name)),
        ("topics_max", lambda broker, name: broker.create_topic(name)),
        ("bindings_max", lambda broker, name: broker.bind("exchange", "amq.direct", "amq.fanout", name)),
        ("exchanges_max", lambda broker, name: broker.declare_exchange(name, "direct")),
    ],
)
async def test_limits(limit: str, act: Callable[[Broker, str], Awaitable[Any]]) -> None:
    async with engine(MemoryFiles(), **{limit: 2}) as running:
        await act(running.broker, "one")
        await act(running.broker, "two")
        with pytest.raises(LimitExceeded, match=r"there are 2 .*already"):
            await act(running.broker, "three")


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 249, "..."])
async def test_legal_topic_names(name: str) -> None:
    async with engine(MemoryFiles()) as running:
        topic = await running.broker.create_topic(name, partitions=2)
        assert (topic.name, [partition.index for partition in topic.partitions]) == (name, [0, 1])
        with pytest.raises(PreconditionFailed, match="exists"):
            await running.broker.create_topic(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "x" * 250, "ä", "a\n", "__offsets", "__consumer_offsets", "a\0"]
)
async def test_illegal_topic_names(name: str) -> None:
    async with engine(MemoryFiles()) as running:
        with pytest.raises(InvalidArgument):
            await running.broker.create_topic(name)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"retention": "1"}, "unknown topic config 'retention'"),
        ({"retention.ms": "x"}, "topic config retention.ms='x' is not a whole number"),
        ({"retention.ms": "-2"}, "topic config retention.ms=-2 is less than -1"),
        ({"fsync": "maybe"}, "topic config fsync='maybe' is none of commit, interval, never"),
        (
            {"cleanup.policy": "shrink"},
            "topic config cleanup.policy='shrink' is none of delete, compact, compact,delete",
        ),
        ({"min.cleanable.dirty.ratio": "2"}, "topic config min.cleanable.dirty.ratio=2 is not in"),
        ({"min.cleanable.dirty.ratio": "x"}, "topic config min.cleanable.dirty.ratio='x' is not a number"),
        ({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, "topic config: compaction_lag_min_ms must not"),
        ({"message.timestamp.type": "Now"}, "topic config message.timestamp.type='Now' is none of CreateTime, LogApp"),
        ({"segment.bytes": "10"}, "topic config segment.bytes=10 is less than 1024"),
        ({"segment.bytes": str(1 << 40)}, "topic config segment.bytes=1099511627776 is more than 2147483648"),
        ({"max.message.bytes": str(1 << 31)}, "topic config max.message.bytes=2147483648 is more than 2147483647"),
    ],
)
async def test_bad_topic_configs(config: dict[str, str], text: str) -> None:
    async with engine(MemoryFiles()) as running:
        with pytest.raises(InvalidArgument, match=text.replace(".", r"\.")):
            await running.broker.create_topic("t", config=config)
        topic = await running.broker.create_topic(
            "t", config={"retention.ms": "1000", "fsync": "never", "cleanup.policy": "delete, compact"}
        )
        settings = topic.partitions[0].log.config
        assert (settings.compacts, settings.deletes, settings.fsync) == (True, True, "never")
