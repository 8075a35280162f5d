"""Transactions of producers in a real cluster: coordinator, partitions and groups are led by different brokers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from core_log.batch_header import parse_header
from core_log.committed import committed
from core_log.record_batch import iterate_records
from gateway.etcd_process import EtcdProcess
from routing.administration import administer
from routing.broker import Broker
from routing.log_transactions import questions
from routing.log_transactions.errors import (
    NotTransactionCoordinator,
    ProducerFenced,
    TransactionCoordinatorUnavailable,
    WrongTransactionState,
)
from routing.log_transactions.state import Stage
from routing.topics.offset_store import Committed
from routing.topics.topic_partition import TopicPartition
from tests.core_log.helpers import make_batch
from tests.gateway.test_member import Running, three, until
from tests.support.transactional import transactional

TOPIC, GROUP = "t", "g"
PARTITIONS = 6
OTHERS = [f"other-{number}" for number in range(8)]


class Town:
    """Brokers, by what they lead."""

    def __init__(self, brokers: dict[int, Running]) -> None:
        self.brokers = brokers

    def all(self) -> list[Broker]:
        return [one.server.broker for one in self.brokers.values()]

    def coordinator(self, name: str) -> Broker | None:
        number = self.all()[0].coordinator.broker_of(name)
        return self.brokers[number].server.broker if number in self.brokers else None

    async def ask(self, name: str, what: str, *arguments: Any, **more: Any) -> Any:
        """As a client, that looks for the coordinator again until one is there."""
        with trio.fail_after(30):
            while True:
                broker = self.coordinator(name)
                if broker is not None:
                    with suppress(NotTransactionCoordinator, TransactionCoordinatorUnavailable):
                        return await getattr(broker.coordinator, what)(name, *arguments, **more)
                await trio.sleep(0.05)

    def partition(self, index: int) -> tuple[Broker, TopicPartition] | None:
        for broker in self.all():
            topic = broker.topics.get(TOPIC)
            if topic is not None and len(topic.partitions) > index:
                leadership = topic.partitions[index].leadership
                assert leadership is not None
                if leadership.refusal() is None:
                    return broker, topic.partitions[index]
        return None

    async def write(self, name: str, producer: tuple[int, int], index: int, sequence: int) -> None:
        await until(lambda: self.partition(index) is not None)
        found = self.partition(index)
        assert found is not None
        broker, partition = found
        batch = transactional(make_batch([b"%d" % sequence]), *producer, sequence)

        async def check() -> None:
            await broker.coordinator.check_anywhere(name, *producer, partition=(TOPIC, index))

        await partition.append_once([parse_header(batch)], [batch], check)
        broker.end_turn()

    async def commit_offset(self, name: str, producer: tuple[int, int], offset: int) -> None:
        broker = self.brokers[self.all()[0].groups.broker_of(GROUP) or 0].server.broker

        async def check() -> None:
            await broker.coordinator.check_anywhere(name, *producer, group=GROUP)

        await broker.offsets.commit_pending(GROUP, producer[0], {(TOPIC, 0): Committed(offset)}, check)

    def seen(self, index: int) -> list[bytes]:
        found = self.partition(index)
        if found is None:
            return []
        log = found[1].log
        values: list[bytes] = []
        offset = log.log_start_offset
        while batches := log.read(offset, 1 << 20, before=log.stable_offset):
            for batch in committed(log, batches):
                offset = parse_header(batch).next_offset
                if not parse_header(batch).is_control:
                    values += [record.value or b"" for record in iterate_records(batch)]
        return values


async def test_a_transaction_is_ended_everywhere_whoever_leads_and_whoever_goes(
    etcd: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(etcd, tmp_path, "producers") as (_, brokers):
        town = Town(brokers)
        engines = [broker.engine for broker in town.all()]
        await until(lambda: all(len(one.coordinator_links) == 2 for one in engines if one is not None))
        await town.all()[0].create_topic(TOPIC, partitions=PARTITIONS, config={})
        await until(lambda: all(TOPIC in broker.topics for broker in town.all()))
        places = [(TOPIC, index) for index in range(PARTITIONS)]
        await until(lambda: all(town.partition(index) for index in range(PARTITIONS)))
        led = [found[0] for index in range(PARTITIONS) if (found := town.partition(index)) is not None]
        assert len(set(map(id, led))) > 1, "some markers go over a link"
        producers = {}
        for name, ends in (("commits", True), ("aborts", False)):
            producer = producers[name] = await town.ask(name, "begin", 60_000, None, "u@here")
            with pytest.raises(WrongTransactionState):
                await town.write(name, producer, 0, 0)
            await town.ask(name, "add", *producer, "u@here", partitions=places, groups=[GROUP])
            for index in range(PARTITIONS):
                await town.write(name, producer, index, 0)
            await town.commit_offset(name, producer, 7 if ends else 9)
            await town.ask(name, "end", *producer, committed=ends)
            for index in range(PARTITIONS):
                assert town.seen(index) == [b"0"]
        known = await town.all()[0].offsets.fetch(GROUP)
        assert known == {(TOPIC, 0): Committed(7)}

        for other in OTHERS:  # several at each broker
            await town.ask(other, "begin", 60_000, None, "u@here")

        # The coordinator goes in the middle of the next one.
        name, producer = "commits", producers["commits"]
        await town.ask(name, "add", *producer, "u@here", partitions=places[:2])
        await town.write(name, producer, 0, 1)
        rows = (await administer(town.all()[-1], "guest", "transactions.list", {}))["rows"]
        assert [(row[0], row[1], row[2], row[7]) for row in rows] == [
            (name, "Ongoing", "u@here", [f"{TOPIC}-0", f"{TOPIC}-1"])
        ]
        monkeypatch.setattr(questions, "ROWS_MAX", 1)  # what one answer may have
        for broker in town.all():
            rows = (await administer(broker, "guest", "transactions.list", {"only_open": False}))["rows"]
            assert [row[0] for row in rows] == ["aborts", "commits", *OTHERS]
        first = town.coordinator(name)
        (number,) = [number for number, one in brokers.items() if one.server.broker is first]
        await brokers[number].stop()
        del brokers[number]
        await town.write(name, producer, 1, 1)
        await town.ask(name, "end", *producer, committed=True)
        assert town.coordinator(name) is not first
        await until(lambda: town.seen(0) == town.seen(1) == [b"0", b"1"])
        assert (await town.ask(name, "begin", 60_000, producer, "u@here")) == (producer[0], producer[1] + 1)
        with pytest.raises(ProducerFenced):
            await town.ask(name, "end", *producer, committed=True)

        # An operator asks any broker.
        producer = (producer[0], producer[1] + 1)
        await town.ask(name, "add", *producer, "u@here", partitions=places[:1])
        await town.write(name, producer, 0, 0)
        for broker in town.all():
            aborted = await administer(broker, "guest", "transactions.abort", {"transactional_id": name})
            assert aborted is (broker is town.all()[0])
        found = town.coordinator(name)
        assert found is not None
        assert found.coordinator.describe(name).stage is Stage.COMPLETE_ABORT
        await until(lambda: town.seen(0) == [b"0", b"1"])
