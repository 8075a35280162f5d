"""Records that are to be delivered later: taken out of their batches, parked once, appended when they are due."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from core_log.batch_header import HEADER_BYTES, encode_batch, parse_header, validate
from core_log.errors import BatchTooLarge, InvalidRecord, OutOfOrderSequence, ProducerFenced
from core_log.memory_files import MemoryFiles
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, Compression, Record, iterate_records
from routing.errors import NotFound, StorageUnavailable
from routing.republishing import parked_records
from routing.republishing.delayed_records import divide
from routing.topics.offset_store import Committed, Partition
from routing.topics.topic_partition import TopicPartition
from tests.routing.harness import Engine, engine, killed, passing

QUEUE = "millrace.delayed.t"


def batch(*delays: str | None, name: str = "x-delay", producer: int = -1, sequence: int = -1, epoch: int = 0) -> bytes:
    builder = BatchBuilder(0, 0, 1_000)
    for number, delay in enumerate(delays):
        headers = [] if delay is None else [(name, delay.encode())]
        builder.add(number, b"k%d" % number, b"v%d" % number, headers)
    built = builder.build()
    if producer < 0:
        return built
    header = parse_header(built)._replace(producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return encode_batch(header, built[HEADER_BYTES:])


@pytest.mark.parametrize(
    ("name", "delays", "waiting"),
    [
        ("x-delay", (None, None), {}),
        ("x-delay", ("0", "-5", None), {}),
        ("x-delay", (None, "70", None, "5"), {1: 70, 3: 5}),
        ("x-delay", ("9", "9"), {0: 9, 1: 9}),
        ("deliver-at", ("5000", "5001", None), {1: 1}),
    ],
)
def test_what_waits_is_taken_out_and_the_rest_keeps_its_offsets(
    name: str, delays: tuple[str | None, ...], waiting: dict[int, int]
) -> None:
    data = batch(*delays, name=name, producer=7, sequence=3)
    left, parked = divide(parse_header(data), data, 5_000)
    header = validate(left, may_be_empty=True)
    assert (header.base_sequence, header.last_offset_delta) == (3, len(delays) - 1)
    assert [one.offset for one in iterate_records(left)] == [at for at in range(len(delays)) if at not in waiting]
    assert [one.delay_ms for one in parked] == list(waiting.values())
    for at, one in zip(waiting, parked, strict=True):
        (record,) = iterate_records(one.batch)
        assert (record.key, record.value, one.name) == (b"k%d" % at, b"v%d" % at, f"7.0.3.{at}")


@pytest.mark.parametrize("text", ["", "soon", "1.5", "9" * 16, "²"])
def test_times_that_are_none_are_refused(text: str) -> None:
    data = batch(text)
    with pytest.raises(InvalidRecord):
        divide(parse_header(data), data, 0)


async def produce(running: Engine, data: bytes, topic: str = "t") -> None:
    partition = running.broker.topics[topic].partitions[0]
    headers = [validate(data)]
    left = await running.broker.delayed.park(partition, headers, [data])
    await partition.append_once(headers, left)
    done: list[object] = []
    running.broker.commits.when_committed([(partition.log, partition.log.log_end_offset)], done.append)
    running.turn()
    await running.until(lambda: bool(done))


def records(running: Engine, topic: str = "t") -> list[Record]:
    log = running.broker.topics[topic].partitions[0].log
    found: list[Record] = []
    at = 0
    while batches := log.read_blocking(at, 1 << 20):
        at = parse_header(batches[-1]).next_offset
        found += [one for each in batches for one in iterate_records(each)]
    return found


def values(running: Engine, topic: str = "t") -> list[bytes]:
    return [bytes(one.value or b"") for one in records(running, topic)]


async def become(running: Engine, clock: MockClock, expected: list[bytes], topic: str = "t") -> None:
    """Time goes by, a little at a time, until these are there: the disk takes its own time."""
    ends = time.monotonic() + 20
    while values(running, topic) != expected and time.monotonic() < ends:
        await passing(clock, 0.1)
        await trio.to_thread.run_sync(lambda: None)  # what is read and written in threads gets on
    assert values(running, topic) == expected


async def test_they_are_parked_once_and_appended_when_due_also_after_a_crash(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.broker.create_topic("t", config={"millrace.delay.enable": "true"})
        data = batch(None, "5000", "60000", producer=7, sequence=0)
        await produce(running, data)
        await produce(running, data)  # sent again, for the answer was lost
        queue = running.broker.topology.queues[QUEUE]
        assert (queue.rules.delayed_count, queue.duplicates) == (2, 2)
        assert values(running) == [b"v0"]
        await passing(clock, 4.9)
        assert values(running) == [b"v0"]
        await become(running, clock, [b"v0", b"v1"])
        await running.until(lambda: not queue.outstanding)
        await running.synced()
        crashed = killed(files)
    async with engine(crashed) as running:
        await passing(clock, 1.5)
        assert values(running) == [b"v0", b"v1"]
        await passing(clock, 60)
        await become(running, clock, [b"v0", b"v1", b"v2"])
        queue = running.broker.topology.queues[QUEUE]
        await running.until(lambda: not queue.outstanding)
        await running.broker.declare_queue("others")
        vhost = running.broker.topology.vhosts["/"]
        assert vhost.parked == {QUEUE}  # what is looked at each second
        await running.broker.delete_topic("t")
        assert QUEUE not in running.broker.topology.queues
        assert not vhost.parked


async def test_nothing_waits_of_a_batch_that_is_refused_by_its_sequence_or_epoch() -> None:
    """It would be there later though its producer was told that it is not, and twice if that sends it again."""
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config={"millrace.delay.enable": "true"})
        await produce(running, batch(None, producer=7, sequence=0, epoch=1))
        for sequence, epoch, refused in ((2, 1, OutOfOrderSequence), (1, 0, ProducerFenced)):
            with pytest.raises(refused):
                await produce(running, batch("5000", None, producer=7, sequence=sequence, epoch=epoch))
        assert QUEUE not in running.broker.topology.queues
        await produce(running, batch("5000", None, producer=7, sequence=1, epoch=1))
        assert running.broker.topology.queues[QUEUE].rules.delayed_count == 1


@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize("anew", [False, True])
async def test_nothing_waits_for_a_topic_that_is_deleted_meanwhile(anew: bool, group: str) -> None:
    """It would be appended to one that is made anew under its name, though its producer was told that it is lost."""
    config = {"millrace.priority.group": group} if group else {"millrace.delay.enable": "true"}
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.create_topic("t", config=config)
        partition, data = broker.topics["t"].partitions[0], batch("50")
        await broker.delete_topic("t")
        if anew:
            await broker.create_topic("t", config=config)
            await running.broker.delayed.park(broker.topics["t"].partitions[0], [validate(data)], [data])
        parked, ends = set(broker.topology.vhost("/").parked), [home.next_offset for home in broker.topology.led]
        with pytest.raises(NotFound):
            await running.broker.delayed.park(partition, [validate(data)], [data])
        assert broker.topology.vhost("/").parked == parked
        assert [home.next_offset for home in broker.topology.led] == ends


async def test_a_batch_of_which_everything_waits_leaves_its_place_and_numbers(clock: MockClock) -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await running.broker.create_topic("t", config={"millrace.delay.enable": "true"})
        for _ in range(2):
            await produce(running, batch("5000", "6000", producer=7, sequence=0))
        assert running.broker.topics["t"].partitions[0].log.log_end_offset == 2
        await produce(running, batch(None, producer=7, sequence=2))
        await running.synced()
        crashed = killed(files)
    async with engine(crashed) as running:
        assert values(running) == [b"v0"]
        await become(running, clock, [b"v0", b"v0", b"v1"])


async def test_what_a_topic_refuses_is_all_that_is_appended_again(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, left = parked_records.append_anywhere, [2]

    def refuses(partition: TopicPartition, data: bytes) -> tuple[PartitionLog, int]:
        left[0] -= 1
        if left[0] < 0:
            raise StorageUnavailable("for now")
        return append(partition, data)

    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config={"millrace.delay.enable": "true"})
        await produce(running, batch(*["5000"] * 5))
        monkeypatch.setattr(parked_records, "append_anywhere", refuses)
        await become(running, clock, [b"v0", b"v1"])
        monkeypatch.undo()
        await become(running, clock, [b"v0", b"v1", b"v2", b"v3", b"v4"])
        queue = running.broker.topology.queues[QUEUE]
        await running.until(lambda: not queue.outstanding)
        assert running.count(QUEUE) == 0


@pytest.mark.parametrize("broken", [0, 1])
async def test_a_partition_that_takes_nothing_does_not_hold_up_the_others(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """What was due for one with too few in sync was tried first again and again, and what came behind it waited."""
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", partitions=2, config={"millrace.delay.enable": "true"})
        logs = [partition.log for partition in running.broker.topics["t"].partitions]
        for partition in running.broker.topics["t"].partitions:
            data = batch(*["5000"] * 2)
            await running.broker.delayed.park(partition, [validate(data)], [data])
        append = parked_records.append_anywhere

        def refuses(partition: TopicPartition, data: bytes) -> tuple[PartitionLog, int]:
            if partition.index == broken:
                raise StorageUnavailable("too few are in sync")
            return append(partition, data)

        monkeypatch.setattr(parked_records, "append_anywhere", refuses)
        await passing(clock, 8)
        assert [log.log_end_offset for log in logs] == [0 if at == broken else 2 for at in range(2)]
        monkeypatch.undo()
        ends = time.monotonic() + 20
        while [log.log_end_offset for log in logs] != [2, 2] and time.monotonic() < ends:
            await passing(clock, 0.1)
            await trio.to_thread.run_sync(lambda: None)  # as in `become`
        await running.until(lambda: all(log.committed_offset == 2 for log in logs))
        for log in logs:
            found = [one.value for each in log.read_blocking(0, 1 << 20) for one in iterate_records(each)]
            assert found == [b"v0", b"v1"]
        queue = running.broker.topology.queues[QUEUE]
        await running.until(lambda: not queue.outstanding)
        assert running.count(QUEUE) == 0


@pytest.mark.parametrize("config", [{"millrace.delay.enable": "true"}, {"millrace.priority.group": "g"}])
async def test_what_would_be_too_large_when_it_is_due_is_refused_and_holds_up_nobody(
    clock: MockClock, config: dict[str, str]
) -> None:
    builder = BatchBuilder(0, 0, 1_000, compression=Compression.LZ4)
    builder.add(0, b"k", b"x" * 3000, [("x-delay", b"5000")])
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config=config | {"max.message.bytes": "2000"})
        with pytest.raises(BatchTooLarge, match="uncompressed"):
            await produce(running, builder.build())
        await produce(running, batch("5000"))
        await become(running, clock, [b"v0"])


_BY_TURN = {"millrace.delay.enable": "true", "millrace.priority.group": "g"}


@pytest.mark.parametrize("config", [{"millrace.delay.enable": "true"}, _BY_TURN])
async def test_what_is_too_large_by_the_time_is_a_dead_letter_and_holds_up_nobody(
    clock: MockClock, config: dict[str, str]
) -> None:
    builder = BatchBuilder(0, 0, 1_000)
    builder.add(0, b"k", b"first", [("x-delay", b"5000")])
    for _ in range(2):
        builder.add(builder.count, b"k", b"x" * 3000, [("x-delay", b"5000")])
        builder.add(builder.count, b"k", b"other", [("x-delay", b"5000")])
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.create_topic("t", config=config | {"retention.ms": "-1"})
        await broker.create_topic("t.dlq")
        await produce(running, builder.build())
        await broker.topic_control.alter_topic("t", lambda config: config | {"max.message.bytes": "2000"})
        await become(running, clock, [b"first", b"other", b"other"])
        await become(running, clock, [b"x" * 3000] * 2, "t.dlq")
        (letter, _) = records(running, "t.dlq")
        assert dict(letter.headers)["x-dead-letter-reason"] == b"size"
        assert dict(letter.headers)["x-dead-letter-topic"] == b"t"
        (queue,) = broker.topology.queues.values()
        with trio.fail_after(60):
            while queue.message_count or queue.outstanding:
                await passing(clock, 0.1)
                await trio.to_thread.run_sync(lambda: None)  # as in `become`


@pytest.mark.parametrize("delays", [(None, "70"), ("70", "80")])
def test_with_priorities_everything_waits(delays: tuple[str | None, ...]) -> None:
    data = batch(*delays)
    left, parked = divide(parse_header(data), data, 0, delays=False, priorities=True)
    assert validate(left, may_be_empty=True).record_count == 0
    assert [(one.delay_ms, one.priority) for one in parked] == [(0, 0), (0, 0)]
    data = batch("3", None, "12", name="x-priority")
    _, parked = divide(parse_header(data), data, 0, priorities=True)
    assert [one.priority for one in parked] == [3, 0, 9]


async def test_a_group_makes_room_for_what_waits(clock: MockClock) -> None:
    config = {"millrace.priority.group": "g", "millrace.priority.ahead": "2"}
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await broker.create_topic("t", config=config)
        await produce(running, batch(*[None] * 5, producer=7, sequence=0))
        await become(running, clock, [b"v0", b"v1"])
        await produce(running, batch("9", name="x-priority", producer=7, sequence=5))
        await broker.offsets.commit("others", {("t", 0): Committed(100)})
        await passing(clock, 1)
        await running.synced()
        assert len(values(running)) == 2
        urgent = [b"v0", b"v1", b"v0"]
        for expected in ([*urgent, b"v2"], [*urgent, b"v2", b"v3"], [*urgent, b"v2", b"v3", b"v4"]):
            end = broker.topics["t"].partitions[0].log.log_end_offset
            await broker.offsets.commit("g", {("t", 0): Committed(end - 1)})  # all but what was last
            await become(running, clock, expected)
            await passing(clock, 1)
            assert values(running) == expected
        await broker.delete_topic("t")
        assert not [name for name in broker.topology.queues if name.startswith("millrace.waiting.")]


async def test_a_group_that_nobody_answers_for_does_not_hold_up_others(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        fetch = broker.offsets.fetch

        async def answer(group: str, partitions: Sequence[Partition]) -> dict[Partition, Committed]:
            if group == "silent":
                await trio.sleep_forever()
            return await fetch(group, partitions)

        monkeypatch.setattr(broker.offsets, "fetch", answer)
        for topic, group in (("s", "silent"), ("t", "g")):
            await broker.create_topic(topic, config={"millrace.priority.group": group, "millrace.priority.ahead": "1"})
            await produce(running, batch(None, None, producer=7, sequence=0), topic)
        await become(running, clock, [b"v0"])
        await broker.offsets.commit("g", {("t", 0): Committed(1)})
        await become(running, clock, [b"v0", b"v1"])


async def test_others_have_their_turn_while_a_large_batch_is_parked(clock: MockClock) -> None:
    seen: set[int] = set()
    async with engine(MemoryFiles()) as running, trio.open_nursery() as nursery:
        topology = running.broker.topology

        async def look() -> None:
            while True:
                await trio.lowlevel.checkpoint()
                if QUEUE in topology.queues:
                    seen.add(sum(1 for _ in topology.queues[QUEUE].rules.delayed()))

        await running.broker.create_topic("t", config={"millrace.delay.enable": "true"})
        data = batch(*["90000"] * 2_500, producer=7, sequence=0)
        nursery.start_soon(look)
        await running.broker.delayed.park(topology.topics["t"].partitions[0], [validate(data)], [data])
        assert seen >= {1_000, 2_000, 2_500}
        nursery.cancel_scope.cancel()
