"""Messages whose keys and properties differ, in one slab: each is treated as if it had come alone."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_log.errors import CorruptBatch
from core_log.files import MemoryFiles
from core_log.record_batch import BatchBuilder, encode_headers, iterate_records, parse_header
from routing.errors import LimitExceeded
from routing.message import Properties, Slab
from routing.queues.homes.home_records import RecordWriter, SlabReader
from tests.routing.harness import PROTOCOL, Client, Engine, engine, killed

KEYS = ("a.x", "a.y", "b.x", "c")


def mixed(exchange: str, messages: list[tuple[str, dict[str, int], bytes]], *, persistent: bool = True) -> Slab:
    return Slab(
        exchange,
        messages[0][0],
        Properties(PROTOCOL, b"", persistent=persistent),
        [body for _, _, body in messages],
        keys=[key for key, _, _ in messages],
        raws=[json.dumps(headers).encode() for _, headers, _ in messages],
    )


def numbered(count: int, body_bytes: int = 4) -> list[tuple[str, dict[str, int], bytes]]:
    return [(KEYS[i % 4], {"n": i, "odd": i % 2}, b"%0*d" % (body_bytes, i)) for i in range(count)]


class Recorder(Client):
    """A client that keeps key, number header and body of what it gets."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, object())
        self.got: list[tuple[str, int, bytes]] = []

    def deliver(self, consumer, first_id, slab, start, stop, redelivered) -> None:  # type: ignore[no-untyped-def]
        for index in range(start, stop):
            headers = slab.properties_of(index).neutral.headers
            self.got.append((slab.key_of(index), headers["n"], slab.bodies[index]))


def expected(messages: list[tuple[str, dict[str, int], bytes]], *keys: str) -> list[tuple[str, int, bytes]]:
    return [(key, headers["n"], body) for key, headers, body in messages if key in keys]


async def bound(running: Engine, *, durable: bool) -> None:
    for queue, pattern in {"all": "#", "as": "a.*", "xs": "*.x"}.items():
        await running.queue(queue, durable=durable)
        await running.bind("amq.topic", queue, pattern)


async def drained(running: Engine, queue: str, count: int) -> list[tuple[str, int, bytes]]:
    client = Recorder(running)
    await client.consume(queue, no_ack=True)
    running.turn()
    await running.until(lambda: len(client.got) >= count)
    client.session.close()
    return client.got


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("cold", [False, True])
async def test_each_message_takes_its_own_way(durable: bool, cold: bool) -> None:
    messages = numbered(600)
    limits = {"stripe_cache_bytes": 1, "transient_memory_bytes": 1, "cold_read_bytes": 2000} if cold else {}
    async with engine(MemoryFiles(), **limits) as running:
        await bound(running, durable=durable)
        publisher = running.client()
        for start in range(0, 600, 50):
            publisher.session.publish(
                mixed("amq.topic", messages[start : start + 50], persistent=durable), confirm=True
            )
            running.turn()
        await running.until(lambda: publisher.confirmed == 600)
        assert await drained(running, "all", 600) == expected(messages, *KEYS)
        assert await drained(running, "as", 300) == expected(messages, "a.x", "a.y")
        assert await drained(running, "xs", 300) == expected(messages, "a.x", "b.x")


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_they_come_back_after_a_restart(how: str) -> None:
    messages = numbered(100)
    files = MemoryFiles()
    async with engine(files) as running:
        await bound(running, durable=True)
        publisher = running.client()
        publisher.session.publish(mixed("amq.topic", messages), confirm=True)
        running.turn()
        await running.until(lambda: publisher.confirmed == 100)
        found = killed(files)
    async with engine(found if how == "killed" else files) as running:
        assert await drained(running, "all", 100) == expected(messages, *KEYS)
        assert await drained(running, "xs", 50) == expected(messages, "a.x", "b.x")


async def test_headers_decide_for_each_message() -> None:
    messages = numbered(40)
    async with engine(MemoryFiles()) as running:
        await running.queue("odd")
        await running.bind("amq.headers", "odd", "", arguments={"x-match": "all", "odd": 1})
        running.client().session.publish(mixed("amq.headers", messages))
        assert await drained(running, "odd", 20) == [m for m in expected(messages, *KEYS) if m[1] % 2]


async def test_what_nobody_wants_is_returned_before_the_confirm_of_all() -> None:
    async with engine(MemoryFiles()) as running:
        await running.queue("as")
        await running.bind("amq.topic", "as", "a.*")
        client = running.client()
        client.session.publish(mixed("amq.topic", numbered(8)), mandatory=True, confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 8)
        returned = [body for event in client.events if event[0] == "returned" for body in event[1]]
        assert returned == ["0002", "0003", "0006", "0007"]
        assert client.events[-1] == ("confirm", 8)


async def test_topics_partition_each_message_by_its_key() -> None:
    messages = numbered(200)
    async with engine(MemoryFiles()) as running:
        topic = await running.broker.create_topic("t", partitions=3)
        await running.broker.bind("topic", "t", "amq.topic", "#")
        client = running.client()
        client.session.publish(mixed("amq.topic", messages), confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 200)
        by_key: dict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)
        homes: dict[bytes, set[int]] = defaultdict(set)
        for partition in topic.partitions:
            for batch in partition.log.read_blocking(0, 1 << 20):
                for record in iterate_records(batch):
                    assert record.key is not None
                    assert record.value is not None
                    homes[record.key].add(partition.index)
                    by_key[record.key].append((record.value, dict(record.headers)["n"] or b""))
        assert all(len(indexes) == 1 for indexes in homes.values())
        for key in KEYS:
            assert by_key[key.encode()] == [(b, b"%d" % h["n"]) for k, h, b in messages if k == key]


async def test_one_message_too_large_for_a_topic_refuses_the_whole_slab() -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config={"max.message.bytes": "1000"})
        await running.broker.bind("topic", "t", "amq.topic", "c")
        await bound(running, durable=True)
        client = running.client()
        messages = [*numbered(3), ("c", {"n": 3}, bytes(900)), ("c", {"n": 4}, bytes(990))]
        with pytest.raises(LimitExceeded):
            client.session.publish(mixed("amq.topic", messages), confirm=True)
        assert running.count("all") == 0


texts = st.text(max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "x", "amq.topic"]),
            st.booleans(),
            st.lists(st.tuples(texts, st.binary(max_size=200), st.binary(max_size=300)), min_size=1, max_size=30),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_records_and_slabs_are_inverse(slabs: list[tuple[str, bool, list[tuple[str, bytes, bytes]]]]) -> None:
    writer = RecordWriter(7)
    builder = BatchBuilder(100, 0, 0)
    messages, offset = [], 100
    for exchange, persistent, content in slabs:
        slab = Slab(
            exchange,
            "",
            Properties("p", b"", persistent=persistent),
            [body for *_, body in content],
            keys=[key for key, *_ in content],
            raws=[raw for _, raw, _ in content],
        )
        writer.run(offset, slab).add_to(builder)
        messages += [(offset + i, exchange, persistent, *content[i]) for i in range(len(content))]
        offset += len(content)
    batch = builder.build()
    assert builder.size_estimate == len(batch)
    assert parse_header(batch).record_count == len(messages)
    read = []
    for entry in SlabReader().read(batch):
        for index, body in enumerate(entry.slab.bodies):
            properties = entry.slab.properties_of(index)
            assert properties.protocol == "p"
            key = entry.slab.key_of(index)
            read.append((entry.first + index, entry.slab.exchange, properties.persistent, key, properties.raw, body))
    assert read == messages
    assert len(SlabReader().read(batch)) <= sum(len(content) // 16 * 2 + 1 for *_, content in slabs)
    assert encode_headers([]) == b"\0"


Message = tuple[int, str, str, bytes]
"""Destination set, exchange, protocol, property bytes."""


def messages_like(sets: str, exchanges: str, protocols: str, sizes: list[int], count: int = 60) -> list[Message]:
    """Messages that take these in turn; no two have the same property bytes."""
    return [
        (ord(sets[at % len(sets)]), exchanges[at % len(exchanges)], f"p{protocols[at % len(protocols)]}",
         b"%03d" % at + b"x" * sizes[at % len(sizes)])
        for at in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("sizes", [[5], [0, 30], [100], [100, 300], [30, 80], [9000], [5, 9000, 100]])
@pytest.mark.parametrize(
    ("sets", "exchanges", "protocols"), [("a", "e", "p"), ("ab", "e", "p"), ("a", "ef", "p"), ("a", "e", "pq")]
)
def test_slabs_read_back_from_disk_have_what_each_record_says(
    sets: str, exchanges: str, protocols: str, sizes: list[int]
) -> None:
    reader = SlabReader()
    for messages in (messages_like("z", "other", "o", [3]), messages_like(sets, exchanges, protocols, sizes)):
        builder = BatchBuilder(0, 0, 1)
        for offset, (set_id, exchange, protocol, raw) in enumerate(messages):
            slab = Slab(exchange, f"k{offset}", Properties(protocol, raw, persistent=True), [b"%d" % offset])
            RecordWriter(set_id).run(offset, slab).add_to(builder)
        found = []
        for slab in (entry.slab for entry in reader.read(builder.build())):
            for at, body in enumerate(slab.bodies):
                properties = slab.properties_of(at)
                found.append((slab.exchange, slab.key_of(at), properties.protocol, properties.raw, body))
        assert found == [
            (exchange, f"k{offset}", protocol, raw, b"%d" % offset)
            for offset, (_, exchange, protocol, raw) in enumerate(messages)
        ]


def test_records_of_a_home_that_lack_their_headers_are_corrupt() -> None:
    good = encode_headers([("d", b"\0\0\0\7"), ("x", b"e"), ("p", b"amqp\0\1\0raw")])
    reader = SlabReader()
    for wrong in (good[:1], good[:4], good[:10], b"\0", encode_headers([("d", b"\0\0\0\7"), ("x", b"e")])):
        builder = BatchBuilder(0, 0, 1)
        blocks = [good] * 20 + [wrong]
        builder.add_varied(0, [b"%d" % at for at in range(21)], [b"v"] * 21, blocks)
        with pytest.raises(CorruptBatch):
            reader.read(builder.build())
