"""Records that a partition has taken before: confirmed, left out, and known over every kind of stop."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_log.batch_header import HEADER_BYTES, TRANSACTIONAL_BIT, encode_batch, parse_header, validate
from core_log.compression import Compression
from core_log.errors import CorruptBatch, LogUnavailable, OutOfOrderSequence
from core_log.files import FaultyFiles, MemoryFiles
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, encode_headers, iterate_records
from core_log.transaction_marker import marker
from core_log.wall_clock import wall_clock_ms
from protocols.amqp.adapter_properties import PROTOCOL
from protocols.amqp.properties import BasicProperties, encode_properties
from protocols.mqtt.adapter_properties import PROTOCOL as MQTT
from protocols.mqtt.properties import Property, encode_property
from routing.errors import InvalidConfig
from routing.message import Properties, Slab
from routing.seen_ids import hashes_of
from routing.topics import known_ids
from routing.topics.known_ids import KnownIds, _hashes
from routing.topics.topic_partition import TopicPartition
from tests.routing.harness import Client, Engine, engine, killed, passing

WINDOW_MS = 60_000
WINDOW = {"millrace.deduplication.window.ms": str(WINDOW_MS)}


def batch(
    *ids: str | None,
    name: str = "message-id",
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
    compression: Compression = Compression.NONE,
    time_ms: int | None = None,
    **headers: str,
) -> bytes:
    """Records that are called so, and have their ids as values."""
    builder = BatchBuilder(0, 0, wall_clock_ms() if time_ms is None else time_ms, compression=compression)
    more = [(key.replace("_", "-"), value.encode()) for key, value in headers.items()]
    for number, one in enumerate(ids):
        builder.add(number, b"k", str(one).encode(), [*more, *([] if one is None else [(name, one.encode())])])
    built = builder.build(producer or (-1, -1, -1))
    if not transactional:
        return built
    header = parse_header(built)
    return encode_batch(header._replace(attributes=header.attributes | TRANSACTIONAL_BIT), built[HEADER_BYTES:])


def partition_of(running: Engine) -> TopicPartition:
    return running.broker.topics["t"].partitions[0]


async def always() -> None:
    """A transaction is under way."""


async def appended(running: Engine, data: bytes) -> tuple[int, int]:
    """Where a client is told that it lies, once that is committed."""
    partition, header = partition_of(running), validate(data)
    found = await partition.append_once([header], [data], always if header.is_transactional else None)
    await committed(running)
    return found


async def committed(running: Engine) -> None:
    running.turn()
    log, done = partition_of(running).log, list[Any]()
    running.broker.commits.when_committed([(log, log.log_end_offset)], done.append)
    await running.until(lambda: bool(done))
    assert done == [None]


def records(running: Engine) -> list[tuple[int, str]]:
    """Offsets and values."""
    log = partition_of(running).log
    found, at = list[tuple[int, str]](), log.log_start_offset
    while batches := log.read_blocking(at, 1 << 20):
        for one in batches:
            header = validate(one, may_be_empty=True)
            at = header.next_offset
            if not header.is_control:
                found += [(record.offset, bytes(record.value or b"").decode()) for record in iterate_records(one)]
    return found


def values(running: Engine) -> list[str]:
    return [value for _, value in records(running)]


def dropped(running: Engine) -> int:
    known = partition_of(running).known
    assert known is not None
    return known.duplicates


async def begun(running: Engine, **config: str) -> None:
    await running.broker.create_topic("t", config=WINDOW | config)


@pytest.mark.parametrize("name", ["message-id", "millrace.message-id", "x-deduplication-header"])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_what_is_new_of_a_batch_keeps_its_offsets(name: str, compression: Compression) -> None:
    async with engine(MemoryFiles()) as running:
        await begun(running)

        def made(*ids: str | None) -> bytes:
            return batch(*ids, name=name, compression=compression)

        assert await appended(running, made("a", "b", "a", None, None)) == (0, 5)
        assert await appended(running, made("b", "c", "")) == (5, 8)
        assert await appended(running, made("c", "a")) == (8, 10), "nothing is new"
        assert await appended(running, made("d")) == (10, 11)
        assert records(running) == [(0, "a"), (1, "b"), (3, "None"), (4, "None"), (6, "c"), (7, ""), (10, "d")]
        assert dropped(running) == 4


async def test_a_topic_without_a_window_takes_everything_as_it_is() -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t")
        data = batch("a", "a")
        await appended(running, data)
        await appended(running, data)
        assert values(running) == ["a"] * 4
        assert partition_of(running).known is None


async def test_sequences_go_on_and_what_is_sent_again_is_answered_as_before() -> None:
    async with engine(MemoryFiles()) as running:
        await begun(running)
        first, second, third = (
            batch("a", "b", producer=(7, 0, 0)),
            batch("b", "a", producer=(7, 0, 2)),
            batch("c", "b", producer=(7, 0, 4)),
        )
        assert await appended(running, first) == (0, 2)
        assert await appended(running, first) == (0, 2), "sent again"
        assert dropped(running) == 0
        assert await appended(running, second) == (2, 4)
        assert await appended(running, second) == (2, 4)
        assert await appended(running, third) == (4, 6)
        with pytest.raises(OutOfOrderSequence):
            await appended(running, batch("d", producer=(7, 0, 7)))
        assert records(running) == [(0, "a"), (1, "b"), (4, "c")]
        left = killed_files(running)
    async with engine(left) as running:
        assert await appended(running, second) == (2, 4)
        with pytest.raises(OutOfOrderSequence):
            await appended(running, batch("e", producer=(7, 0, 5)))
        assert await appended(running, batch("e", "a", producer=(7, 0, 6))) == (6, 8)
        assert values(running) == ["a", "b", "c", "e"]


def killed_files(running: Engine) -> MemoryFiles:
    assert isinstance(running.broker.files, MemoryFiles)
    return killed(running.broker.files)


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
async def test_ids_outlive_the_process(how: str) -> None:
    files = MemoryFiles()
    ids = [f"id-{number}" for number in range(500)]
    async with engine(files) as running:
        await begun(running, **{"segment.bytes": "4096"})
        await running.broker.bind("topic", "t", "amq.fanout", "")
        for start in range(0, 500, 50):
            await appended(running, batch(*ids[start : start + 50]))
        left = {"stop": lambda: files, "kill": lambda: killed(files), "power": files.crash}[how]()
    async with engine(left) as running:
        client = running.client()
        publish(client, *ids[100:200], "new")  # what exchanges bring waits until it is known
        running.turn()
        await running.until(lambda: client.confirmed == 101)
        await appended(running, batch(*ids, "newer"))
        assert values(running) == [*ids, "new", "newer"]
        assert dropped(running) == 600


async def test_no_more_waits_for_what_is_to_be_known_than_there_is_room_for() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await begun(running)
        await running.broker.bind("topic", "t", "amq.fanout", "")
        await appended(running, batch("a"))
    async with engine(files) as running:
        known, client = partition_of(running).known, running.client()
        assert known is not None
        assert not known.are_known()
        large = Slab("amq.fanout", "k", Properties(PROTOCOL, b"\0\0", persistent=True), [bytes(900_000)] * 10)
        client.session.publish(large, confirm=True)
        client.session.publish(large.part(0, 1), confirm=True)
        running.turn()
        await running.until(lambda: client.events == [("confirm", 10), ("refuse", 11, 11)])
        publish(client, "a", "b")
        running.turn()
        await running.until(lambda: client.confirmed == 13)
        assert values(running)[-1] == "b"
        assert len(values(running)) == 12


def publish(client: Client, *ids: str | None, exchange: str = "amq.fanout", **more: Any) -> None:
    """As AMQP does, with confirms."""
    raws = [encode_properties(BasicProperties(message_id=one, **more)) for one in ids]
    common = Properties(PROTOCOL, raws[0], persistent=True)
    bodies = [str(one).encode() for one in ids]
    client.session.publish(Slab(exchange, "k", common, bodies, raws=raws), confirm=True)


def from_device(name: str) -> Properties:
    """As MQTT 5 has them."""
    raw = b"\1" + encode_property(Property.USER_PROPERTY, ("message-id", name))
    return Properties(MQTT, raw, persistent=True)


async def test_all_doors_know_the_same_ids() -> None:
    async with engine(MemoryFiles()) as running:
        await begun(running)
        await running.broker.bind("topic", "t", "amq.fanout", "")
        await running.queue("q")
        await running.bind("amq.fanout", "q")
        client = running.client()
        publish(client, "a", "b", "a", None)
        await appended(running, batch("b", "c"))
        publish(client, "c", "a")  # nothing is new, and it is confirmed all the same
        running.turn()
        await running.until(lambda: client.confirmed == 6)
        assert records(running) == [(0, "a"), (1, "b"), (3, "None"), (5, "c")]
        for name in "am":
            client.session.publish(Slab("amq.fanout", "k", from_device(name), [b"m", b"m"]), confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 10)
        await appended(running, batch("m", "n"))
        assert values(running) == ["a", "b", "None", "c", "m", "n"]
        assert running.count("q") == 10, "a queue that does not mind gets all of it"


async def test_dead_letters_and_records_that_come_again_are_no_duplicates() -> None:
    async with engine(MemoryFiles()) as running:
        await begun(running)
        await running.broker.bind("topic", "t", "amq.fanout", "")
        await running.queue("q", arguments={"x-max-length": 0, "x-dead-letter-exchange": "amq.fanout"})
        await appended(running, batch("a"))
        client = running.client()
        publish(client, "a")
        publish_to(client, "q", "a")
        running.turn()
        await running.until(lambda: client.confirmed == 2 and len(records(running)) == 2)
        await appended(running, batch("a", x_retry_group="g"))
        assert values(running) == ["a", "a", "a"]


def publish_to(client: Client, queue: str, name: str) -> None:
    raw = encode_properties(BasicProperties(message_id=name))
    client.session.publish(Slab("", queue, Properties(PROTOCOL, raw, persistent=True), [name.encode()]), confirm=True)


async def test_a_transaction_counts_once_it_is_committed() -> None:
    async with engine(MemoryFiles()) as running:
        await begun(running)
        partition = partition_of(running)

        async def end(epoch: int, *, committed: bool) -> None:
            said = marker(7, epoch, wall_clock_ms(), 0, committed=committed)
            await partition.append_marker(said, 0, lambda: None)

        async def add(sequence: int, *ids: str, epoch: int = 0) -> None:
            await appended(running, batch(*ids, producer=(7, epoch, sequence), transactional=True))

        await add(0, "a", "a", "b")
        await appended(running, batch("b"))
        await end(0, committed=False)
        await appended(running, batch("a", "b"))
        assert values(running) == ["a", "b", "b", "a"], "nobody could know that it would be there"
        await add(3, "c", "a")
        await add(5, "d")
        left = killed_files(running)
        await end(0, committed=True)
        await appended(running, batch("c", "d", "e"))
        assert values(running)[-3:] == ["c", "d", "e"]
        also_left = killed_files(running)
    async with engine(left) as running:
        partition = partition_of(running)
        await add(6, "d", "f")
        await appended(running, batch("a"))
        await end(0, committed=True)
        await appended(running, batch("c", "d", "f", "g"))
        assert values(running)[4:] == ["c", "d", "f", "g"]
    async with engine(also_left) as running:
        await appended(running, batch("c", "d", "e", "g"))
        assert values(running)[-1] == "g"
        assert dropped(running) == 3


async def test_after_the_window_it_is_new_also_after_a_crash() -> None:
    async with engine(MemoryFiles()) as running:
        await begun(running)
        partition, ahead_ms = partition_of(running), [0]
        partition.log.wall_clock_ms = lambda: wall_clock_ms() + ahead_ms[0]  # type: ignore[method-assign]
        await appended(running, batch("a"))
        ahead_ms[0] = WINDOW_MS - 1000
        await appended(running, batch("a", time_ms=partition.log.wall_clock_ms()))
        await appended(running, batch("b", time_ms=partition.log.wall_clock_ms()))
        partition.known = KnownIds(partition.log)  # as after a start
        ahead_ms[0] = WINDOW_MS + 1000
        await appended(running, batch("a", "b", time_ms=partition.log.wall_clock_ms()))
        assert values(running) == ["a", "b", "a"]


def lead(log: PartitionLog, epoch: int) -> None:
    """As a replica does that becomes the leader."""
    log.epochs.begin(epoch, log.log_end_offset)
    log.leader_epoch = epoch


async def test_what_others_wrote_is_read_and_what_is_gone_forgotten() -> None:
    """A partition that was led, followed another leader, and is led again."""
    async with engine(MemoryFiles()) as running:
        await begun(running)
        partition = partition_of(running)
        log, known = partition.log, partition.known
        assert known is not None
        await appended(running, batch("a"))
        await appended(running, batch("b"))
        lead(log, 5)
        assert known.are_known(), "nobody else wrote"
        log.append(batch("c"))
        lead(log, 6)
        assert not known.are_known()
        await appended(running, batch("a", "b", "c", "d"))
        assert values(running) == ["a", "b", "c", "d"]
        lost = batch("e")
        await partition.append_once([validate(lost)], [lost])
        await log.truncate(log.log_end_offset - 1)
        lead(log, 7)
        log.append(batch("x"))
        lead(log, 8)
        await appended(running, batch("a", "d", "e", "x"))
        assert values(running) == ["a", "b", "c", "d", "x", "e"]


async def test_what_the_log_refuses_is_not_known() -> None:
    files = FaultyFiles(MemoryFiles())
    async with engine(files) as running:
        await begun(running)
        partition = partition_of(running)
        partition.log._refuse_appends(OSError("no"))
        with pytest.raises(LogUnavailable):
            await partition.append_once([validate(batch("a"))], [batch("a")])
        partition.log.error = None
        await appended(running, batch("a"))
        assert values(running) == ["a"]


async def test_so_many_ids_are_known_at_most() -> None:
    async with engine(MemoryFiles(), deduplication_ids_max=300) as running:
        await begun(running)
        ids = [f"id-{number}" for number in range(1000)]
        for start in range(0, 1000, 100):
            await appended(running, batch(*ids[start : start + 100]))
        left = killed_files(running)
    async with engine(left, deduplication_ids_max=300) as running:
        await appended(running, batch(ids[600], *ids[-300:]))
        assert values(running)[1000:] == [ids[600]]


async def test_a_window_can_be_opened_and_closed_while_the_topic_is_used() -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t")
        await appended(running, batch("a", "a"))

        async def set_to(config: dict[str, str]) -> None:
            await running.broker.topic_control.alter_topic("t", lambda _: config)

        await set_to(WINDOW)
        await appended(running, batch("a", "a", "b"))
        assert values(running) == ["a"] * 3 + ["b"]
        await set_to({"millrace.deduplication.window.ms": "120000"})
        await appended(running, batch("a", "b"))
        assert len(values(running)) == 4
        await set_to({})
        await appended(running, batch("a", "b"))
        assert len(values(running)) == 6


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"retention.ms": "59999"}, "retention.ms"),
        ({"cleanup.policy": "compact"}, "min.compaction.lag.ms"),
        ({"cleanup.policy": "compact", "min.compaction.lag.ms": "59999"}, "min.compaction.lag.ms"),
    ],
)
async def test_the_log_has_to_keep_what_is_to_be_known(config: dict[str, str], wanted: str) -> None:
    async with engine(MemoryFiles()) as running:
        with pytest.raises(InvalidConfig, match=wanted):
            await begun(running, **config)
        config = {name: value if "policy" in name else "60000" for name, value in config.items()}
        await begun(running, **config | {"min.compaction.lag.ms": "60000"})


async def test_what_waits_is_looked_at_when_it_is_due(clock: MockClock) -> None:
    async with engine(MemoryFiles()) as running:
        await begun(running, **{"millrace.delay.enable": "true"})
        for _ in range(2):
            data = batch("a", x_delay="1000")
            partition = partition_of(running)
            left = await running.broker.delayed.park(partition, [validate(data)], [data])
            await partition.append_once([validate(left[0], may_be_empty=True)], left)
        await appended(running, batch("b"))
        assert values(running) == ["b"]
        ends = time.monotonic() + 20
        while not dropped(running) and time.monotonic() < ends:
            await passing(clock, 0.1)
            await trio.to_thread.run_sync(lambda: None)  # what is read and written in threads gets on
        await committed(running)
        assert values(running) == ["b", "a"]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([("message-id", b"a")], b"a"),
        ([("message-id", b"")], None),
        ([("message-id", None)], None),
        ([("message-id", b"x" * 300)], b"x" * 300),
        ([("message-idx", b"a")], None),
        ([("other", b"message-id")], None),
        ([("x-deduplication-header", b"c"), ("message-id", b"b"), ("message-id", b"d")], b"b"),
        ([("x-deduplication-header", b"c"), ("message-id", b"")], b"c"),
        ([("message-id", b"b"), ("millrace.message-id", b"a")], b"a"),
        ([("message-id", b"b"), ("x-death", b"[]")], None),
        ([("one", b"x-deduplication-header"), ("two", b"message-id")], None),
    ],
)
def test_the_id_of_a_record(headers: list[tuple[str, bytes | None]], expected: bytes | None) -> None:
    assert list(_hashes([encode_headers(headers)])) == list(hashes_of([expected]))


@pytest.mark.parametrize("block", [b"\2\x14message-id", b"\2\x14message-id\x14a", b"\4\x14message-id\2a\x14"])
def test_headers_that_are_cut_short_are_refused(block: bytes) -> None:
    with pytest.raises(CorruptBatch):
        _hashes([block])


def test_ids_of_many_blocks_at_once_are_those_of_each() -> None:
    dice = random.Random(1)
    at_once = 0
    for _ in range(300):
        name = dice.choice(["message-id", "millrace.message-id", "x-deduplication-header", "other"])
        lengths = dice.choice([(36, 36), (1, 63), (0, 70)])
        blocks = [encode_headers([(name, bytes(dice.randint(*lengths)))]) for _ in range(dice.randrange(6))]
        if dice.random() < 0.2:
            blocks.append(encode_headers(dice.choice([[], [("message-id", None)], [("a", b"b"), (name, b"c")]])))
        found = known_ids._only_headers(blocks)
        assert not found or found == [known_ids._id(block) for block in blocks]
        at_once += len(found) > 1
    assert at_once > 50
