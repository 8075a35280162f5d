"""Groups that are too far behind: said once, moved on if that is asked for, and told without reading a record."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from core_log.files import BytesLike
from core_log.memory_files import MemoryFiles
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, Compression, Record, iterate_records
from routing.administration.measures import Measures
from routing.config import BrokerConfig
from routing.errors import InvalidConfig, StorageUnavailable
from routing.groups import lag_rules
from routing.republishing import dead_letter_topics
from routing.topics import seen_records
from routing.topics.offset_store import Committed
from routing.topics.topic_config import log_config
from routing.topics.topic_partition import TopicPartition
from tests.routing.harness import Engine, engine, killed, passing
from tests.routing.queues.test_views import append
from tests.support.metrics import series

PLACE = ("t", 0)
DEAD_LETTER = {"millrace.max.lag.action": "dead-letter", "millrace.max.lag.groups": "g, h"}
SKIP = {"millrace.max.lag.action": "skip", "millrace.max.lag.groups": "g, h"}


async def topic(running: Engine, **config: str) -> None:
    await running.broker.create_topic("t", config={"millrace.max.lag": "4"} | config)
    await append(running, *range(10))


async def stand(running: Engine, group: str, offset: int) -> None:
    await running.broker.offsets.commit(group, {PLACE: Committed(offset, "note")})


async def position(running: Engine, group: str) -> int:
    return (await running.broker.offsets.fetch(group, [PLACE]))[PLACE][0]


async def counted(running: Engine) -> list[float]:
    found = series(await Measures(running.broker, 100).families())
    return [found[f"millrace_group_lag_{what}",] for what in ("alerts", "skips", "skipped_records")]


async def test_it_is_said_once_until_a_group_has_caught_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running)
        await running.broker.create_topic("free")
        await running.broker.offsets.commit("g", {("free", 0): Committed(0), ("t", 7): Committed(0)})
        look = running.broker.lag_rules.look
        await stand(running, "g", 5)
        await stand(running, "near", 6)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "read", None)
            patch.setattr(PartitionLog, "read_cold", None)
            for _ in range(3):
                await look()
        (said,) = [one.getMessage() for one in caplog.records if one.name == "routing.groups.lag_rules"]
        assert said == "group g is 5 records behind in partition 0 of topic t, more than 4"
        assert await counted(running) == [1, 0, 0]
        await stand(running, "g", 10)
        await look()
        await stand(running, "g", 0)
        await look()
        assert await position(running, "g") == 0
        assert await counted(running) == [2, 0, 0]
        await running.broker.topics["t"].partitions[0].log.delete_records(7)
        await look()
        await stand(running, "late", 0)
        await look()
        assert await counted(running) == [2, 0, 0], "what is gone is nothing to be behind of"


async def test_groups_that_are_named_are_moved_on(caplog: pytest.LogCaptureFixture) -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running, **SKIP)
        for group, offset in (("g", 2), ("h", 7), ("other", 0)):
            await stand(running, group, offset)
        for _ in range(2):
            await running.broker.lag_rules.look()
        assert [await position(running, group) for group in ("g", "h", "other")] == [6, 7, 0]
        assert (await running.broker.offsets.fetch("g", [PLACE]))[PLACE][1] == "note"
        assert await counted(running) == [1, 1, 4]
        said = [one.getMessage() for one in caplog.records if one.name == "routing.groups.lag_rules"]
        assert said[1:] == ["group g skips 4 records of partition 0 of topic t, and goes on at 6"]
        await running.broker.topic_control.alter_topic("t", lambda config: {})
        await stand(running, "g", 0)
        await running.broker.lag_rules.look()
        assert await position(running, "g") == 0


def buried(running: Engine) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
    """Values and headers in the topic of dead letters."""
    log = running.broker.topics["t.dlq"].partitions[0].log
    batches = log.read_blocking(0, 1 << 20)
    return [(record.value, dict(record.headers)) for batch in batches for record in iterate_records(batch)]


async def test_what_a_group_is_not_to_read_goes_to_a_topic_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running, **DEAD_LETTER)
        for group, offset in (("g", 2), ("h", 7), ("other", 0)):
            await stand(running, group, offset)
        for _ in range(2):
            await running.broker.lag_rules.look()
        assert [await position(running, group) for group in ("g", "h", "other")] == [6, 7, 0]
        assert [value for value, _ in buried(running)] == [b"2", b"3", b"4", b"5"]
        said = {name: value for name, value in buried(running)[1][1].items() if name.startswith("x-dead-letter")}
        written = said.pop("x-dead-letter-timestamp")
        assert written is not None
        assert said == {
            "x-dead-letter-reason": b"lag", "x-dead-letter-group": b"g", "x-dead-letter-topic": b"t",
            "x-dead-letter-partition": b"0", "x-dead-letter-offset": b"3",
        }  # fmt: skip
        assert await counted(running) == [1, 0, 0]
        assert running.broker.lag_rules.dead_letters == 4
        (_, told) = [one.getMessage() for one in caplog.records if one.name == "routing.groups.lag_rules"]
        assert told.endswith("that group g is behind are in t.dlq now, and it goes on at 6"), told


async def write(running: Engine, *values: bytes, compression: Compression = Compression.NONE) -> None:
    """One batch of a producer."""
    log = running.broker.topics["t"].partitions[0].log
    builder = BatchBuilder(0, 0, 1_000, compression=compression)
    for number, value in enumerate(values):
        builder.add(number, b"k", value, [])
    running.broker.topics["t"].partitions[0].append_new(builder.build())
    await running.broker.commits.committed([(log, log.log_end_offset)])


async def test_what_a_producer_has_compressed_may_be_larger_than_its_topic_takes() -> None:
    async with engine(MemoryFiles()) as running:
        await running.broker.create_topic("t", config={"millrace.max.lag": "4"} | DEAD_LETTER)
        values = [b"%d" % number * 20_000 for number in range(10, 110)]
        await write(running, b"x" * (2 << 20), *values, compression=Compression.LZ4)
        await stand(running, "g", 0)
        await running.broker.lag_rules.look()
        assert await position(running, "g") == 97
        log = running.broker.topics["t.dlq"].partitions[0].log
        batches = log.read_blocking(0, 8 << 20)
        found = [record.value for batch in batches for record in iterate_records(batch)]
        assert found == [b"x" * (2 << 20), *values[:96]]
        assert max(map(len, batches[1:])) < 1 << 20


async def test_others_have_their_turn_while_a_large_batch_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_in: set[int] = set()

    def decoded(batch: BytesLike) -> Iterator[Record]:
        decoded_in.add(threading.get_ident())
        return iterate_records(batch)

    monkeypatch.setattr(seen_records, "iterate_records", decoded)
    async with engine(MemoryFiles()) as running, trio.open_nursery() as nursery:
        await running.broker.create_topic("t", config={"millrace.max.lag": "4"} | DEAD_LETTER)
        await running.broker.create_topic("t.dlq")
        letters = running.broker.topics["t.dlq"]
        await write(running, *[b""] * 2_000, compression=Compression.ZSTD)
        await stand(running, "g", 0)
        seen: set[int] = set()

        async def look() -> None:
            while True:
                seen.add(letters.partitions[0].log.log_end_offset)
                await trio.lowlevel.checkpoint()

        nursery.start_soon(look)
        await running.broker.lag_rules.look()
        nursery.cancel_scope.cancel()
        assert await position(running, "g") == 1_996
        assert seen & {500, 1_000, 1_500}, "tasks take turns in any order"
        assert decoded_in
        assert threading.get_ident() not in decoded_in


async def test_where_the_next_record_cannot_be_copied_a_group_goes_on_behind_the_last_that_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letter_topics, "_PIECE_BYTES", 1)
    async with engine(MemoryFiles()) as running:
        await topic(running, **DEAD_LETTER)
        await running.broker.create_topic("t.dlq", config={"max.message.bytes": "2000"})
        await write(running, b"x" * 3000, *[b""] * 4)
        await stand(running, "g", 0)
        for _ in range(2):
            await running.broker.lag_rules.look()
            assert await position(running, "g") == 10
        assert [value for value, _ in buried(running)] == [b"%d" % number for number in range(10)]


async def test_a_group_moves_piece_by_piece_and_goes_on_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_topics, "_PIECE_BYTES", 1)
    monkeypatch.setattr(dead_letter_topics, "_BURIED_BYTES", 1)
    monkeypatch.setattr(lag_rules, "_PIECES_MAX", 2)
    async with engine(MemoryFiles()) as running:
        await topic(running, **DEAD_LETTER)
        for number in range(10, 17):
            await append(running, number)  # each a batch
        await running.broker.topics["t"].partitions[0].log.delete_records(1)
        await stand(running, "g", 0)
        moves = []
        for _ in range(3):
            await running.broker.lag_rules.look()
            moves.append(await position(running, "g"))
        assert moves == [11, 13, 13]
        assert [value for value, _ in buried(running)] == [b"%d" % number for number in range(1, 13)]


@pytest.mark.parametrize("fails", ["copy", "move"])
async def test_nothing_is_lost_when_the_broker_dies_in_between(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise StorageUnavailable("not now")

    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running, **DEAD_LETTER)
        await stand(running, "g", 2)
        place = (running.broker.commits, "committed") if fails == "copy" else (running.broker.groups, "move_on")
        with monkeypatch.context() as patch:
            patch.setattr(*place, refuse)
            await running.broker.lag_rules.look()
        assert await position(running, "g") == 2
        await running.synced()
        crashed = killed(files)
    async with engine(crashed) as running:
        await running.broker.lag_rules.look()
        assert await position(running, "g") == 6
        values = [value for value, _ in buried(running)]
        once = [b"2", b"3", b"4", b"5"]
        assert values == once * 2 or (fails == "copy" and values == once), "at least once"


async def test_a_position_that_a_transaction_may_change_is_let_be() -> None:
    async def there() -> None:
        pass

    async with engine(MemoryFiles()) as running:
        await topic(running, **SKIP)
        await stand(running, "g", 1)
        offsets = running.broker.groups._store_of("g")
        assert offsets is not None
        await offsets.commit_pending("g", 7, {PLACE: Committed(3)}, there)
        await running.broker.lag_rules.look()
        assert await position(running, "g") == 1
        await offsets.end_pending("g", 7, committed=True)
        await running.broker.lag_rules.look()
        assert await position(running, "g") == 6
        assert await counted(running) == [1, 1, 3]


async def test_it_is_looked_at_now_and_then(mock_clock: MockClock) -> None:
    often = {"housekeeping_interval_ms": 1000, "reclaim_interval_ms": 10_000, "group_offsets_retention_ms": 1 << 50}
    async with engine(MemoryFiles(), **often) as running:
        await topic(running, **{"retention.ms": "-1"} | SKIP)
        await stand(running, "g", 0)
        for _ in range(12):
            await passing(mock_clock, 1)
        assert await position(running, "g") == 6


def test_only_groups_that_are_named_can_be_moved() -> None:
    config = {"millrace.max.lag": "4", "millrace.max.lag.action": "skip"}
    with pytest.raises(InvalidConfig, match=r"wants millrace\.max\.lag\.groups"):
        log_config(config, BrokerConfig())
    with pytest.raises(InvalidConfig, match="is none of alert, skip, dead-letter"):
        log_config(config | {"millrace.max.lag.action": "drop"}, BrokerConfig())
    with pytest.raises(InvalidConfig, match=r"'dead-letter' wants millrace\.max\.lag\.groups"):
        log_config(config | {"millrace.max.lag.action": "dead-letter"}, BrokerConfig())
    found = log_config(config | {"millrace.max.lag.groups": "a,b"}, BrokerConfig())
    assert (found.max_lag, found.max_lag_action, list(found.max_lag_groups)) == (4, "skip", ["a", "b"])


@pytest.mark.parametrize("config", [SKIP, DEAD_LETTER])
async def test_a_group_is_not_moved_on_in_a_topic_that_is_made_anew_meanwhile(
    config: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was moved to where it had to be in the former one, far behind the end of this."""
    async with engine(MemoryFiles()) as running:
        broker = running.broker
        await topic(running, **config)
        await stand(running, "g", 0)

        async def anew(partition: TopicPartition, deadline_s: float) -> tuple[int, int]:
            monkeypatch.undo()
            await broker.delete_topic("t")
            await broker.create_topic("t", config={"millrace.max.lag": "4"} | config)
            await append(running, 1, 2)
            await stand(running, "g", 1)
            return 0, 10

        monkeypatch.setattr(lag_rules, "ends_of", anew)
        await broker.lag_rules.look()
        assert await position(running, "g") == 1
        assert (broker.lag_rules.skips, broker.lag_rules.dead_letters) == (0, 0)
