"""Requests about transactions, one by one: codes and versions. How transactions work is the engine's test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from core_log.wall_clock import wall_clock_ms
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_groups import FIND_COORDINATOR, JOIN_GROUP, OFFSET_COMMIT, OFFSET_FETCH
from protocols.kafka.messages_records import FETCH, LIST_OFFSETS, PRODUCE
from protocols.kafka.messages_transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    TXN_OFFSET_COMMIT,
    WRITE_TXN_MARKERS,
)
from routing.access.grants import Permission
from routing.broker import Broker
from routing.topics.producers import FORGOTTEN_MS
from tests.protocols.kafka.door import NOW_MS, Peer, batch_of, fetching, kafka_broker, records_of
from tests.protocols.kafka.test_consumer_groups import beat
from tests.support.transactional import transactional


class Producer:
    """A transactional producer, request by request."""

    def __init__(self, broker: Broker, name: str = "tx", **of_peer: Any) -> None:
        self.peer = Peer(broker, **of_peer)
        self.name = name
        self.id, self.epoch, self._sequence = -1, -1, 0

    async def init(self, version: int = 4, **more: Any) -> ErrorCode:
        reply = await self.peer.ask(
            INIT_PRODUCER_ID, version, transactional_id=self.name, **{"transaction_timeout_ms": 60_000} | more
        )
        if not reply.error_code:
            self.id, self.epoch, self._sequence = reply.producer_id, reply.producer_epoch, 0
        return ErrorCode(reply.error_code)

    @property
    def _who(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch}

    async def add(self, *places: tuple[str, int], version: int = 3) -> list[ErrorCode]:
        reply = await self.peer.ask(
            ADD_PARTITIONS_TO_TXN,
            version,
            **{f"v3_and_below_{name}": value for name, value in self._who.items()},
            v3_and_below_topics=[Entity(name=topic, partitions=[index]) for topic, index in places],
        )
        return [
            ErrorCode(one.partition_error_code)
            for topic in reply.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        ]

    async def add_group(self, group: str, version: int = 3) -> ErrorCode:
        return ErrorCode((await self.peer.ask(ADD_OFFSETS_TO_TXN, version, group_id=group, **self._who)).error_code)

    async def produce(self, topic: str, value: bytes, name: str | None = "") -> ErrorCode:
        batch = transactional(batch_of([value]), self.id, self.epoch, self._sequence)
        topics = [Entity(name=topic, partition_data=[Entity(index=0, records=[batch])])]
        said = self.name if name == "" else name
        reply = await self.peer.ask(PRODUCE, 9, transactional_id=said, acks=-1, timeout_ms=30_000, topic_data=topics)
        code = ErrorCode(reply.responses[0].partition_responses[0].error_code)
        self._sequence += code == ErrorCode.NONE
        return code

    async def end(self, *, committed: bool = True, version: int = 3) -> ErrorCode:
        return ErrorCode((await self.peer.ask(END_TXN, version, committed=committed, **self._who)).error_code)

    async def commit_offset(self, group: str, topic: str, offset: int, version: int = 3, **more: Any) -> ErrorCode:
        said = {"committed_offset": offset, "committed_leader_epoch": offset + 7, "committed_metadata": "n"}
        partitions = [Entity(partition_index=0, **said)]
        reply = await self.peer.ask(
            TXN_OFFSET_COMMIT,
            version,
            group_id=group,
            topics=[Entity(name=topic, partitions=partitions)],
            **self._who,
            **more,
        )
        return ErrorCode(reply.topics[0].partitions[0].error_code)


@asynccontextmanager
async def producing(name: str = "tx", **settings: Any) -> AsyncIterator[Producer]:
    async with kafka_broker(**settings) as broker:
        await broker.create_topic("t", partitions=1, config={})
        one = Producer(broker, name)
        assert await one.init() == ErrorCode.NONE
        yield one


async def fetched(peer: Peer, isolation_level: int, offset: int = 0) -> tuple[list[bytes | None], Any]:
    """The values that a fetch brings, markers apart, and the rest of it."""
    found = await fetch_at(peer, isolation_level, offset)
    return [record.value for record in records_of(found) if record.key is None], found


async def fetch_at(peer: Peer, isolation_level: int, offset: int) -> Any:
    reply = await peer.ask(FETCH, 11, isolation_level=isolation_level, **fetching("t", offset))
    return reply.responses[0].partitions[0]


@pytest.mark.parametrize("version", range(5))
async def test_who_takes_an_id_over_gets_the_next_epoch(version: int) -> None:
    async with kafka_broker() as broker:
        one = Producer(broker)
        assert await one.init(version) == ErrorCode.NONE
        first = one.id, one.epoch
        assert await one.init(version) == ErrorCode.NONE
        assert (one.id, one.epoch) == (first[0], first[1] + 1)
        assert await one.init(version, transaction_timeout_ms=900_001) == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        if version >= 3:
            assert await one.init(version, producer_id=one.id, producer_epoch=one.epoch) == ErrorCode.NONE
            fenced = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
            assert await one.init(version, producer_id=first[0], producer_epoch=first[1]) == fenced
        one.name = ""
        assert await one.init(version) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(4))
async def test_a_transaction_from_begin_to_end(version: int) -> None:
    async with producing() as one:
        assert await one.add(("t", 0), version=version) == [ErrorCode.NONE]
        assert await one.produce("t", b"x") == ErrorCode.NONE
        values, found = await fetched(one.peer, 1)
        assert (values, found.high_watermark, found.last_stable_offset) == ([], 1, 0)
        values, found = await fetched(one.peer, 0)
        assert (values, found.aborted_transactions) == ([b"x"], None)
        assert await one.end(committed=version % 2 == 0, version=version) == ErrorCode.NONE
        values, found = await fetched(one.peer, 1)
        assert (values, found.last_stable_offset) == ([b"x"], 2)
        aborted = [(one.id, 0)] if version % 2 else []
        assert [(said.producer_id, said.first_offset) for said in found.aborted_transactions] == aborted
        _, found = await fetched(one.peer, 1, 2)
        assert found.aborted_transactions == []


async def test_what_is_not_a_part_of_the_transaction_is_refused() -> None:
    async with producing() as one:
        assert await one.produce("t", b"x") == ErrorCode.INVALID_TXN_STATE
        assert await one.add(("t", 0), ("t", 1), ("s", 0)) == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await one.produce("t", b"x") == ErrorCode.INVALID_TXN_STATE
        assert await one.add(("t", 0)) == [ErrorCode.NONE]
        assert await one.produce("t", b"x", None) == ErrorCode.INVALID_RECORD
        assert await one.produce("t", b"x", "another") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await one.produce("t", b"x") == ErrorCode.NONE
        assert await one.commit_offset("g", "t", 5) == ErrorCode.INVALID_TXN_STATE
        assert await one.end() == ErrorCode.NONE
        assert await one.end() == ErrorCode.NONE
        assert await one.end(committed=False) == ErrorCode.INVALID_TXN_STATE
        assert await one.produce("t", b"late") == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(4))
async def test_a_fenced_producer_is_told_so_in_the_words_of_its_version(version: int) -> None:
    async with producing() as one:
        assert await one.add(("t", 0)) == [ErrorCode.NONE]
        assert await one.produce("t", b"zombie") == ErrorCode.NONE
        heir = Producer(one.peer.broker)
        assert await heir.init() == ErrorCode.NONE
        fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert await one.add(("t", 0), version=version) == [fenced]
        assert await one.add_group("g", version) == fenced
        assert await one.end(version=version) == fenced
        assert await one.produce("t", b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await one.commit_offset("g", "t", 1, version) == ErrorCode.INVALID_PRODUCER_EPOCH
        one.id += 1
        assert await one.end(version=version) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await fetched(one.peer, 1))[1].last_stable_offset == 2


async def test_offsets_are_unstable_until_the_transaction_ends() -> None:
    async with producing() as one:
        assert await one.add_group("") == ErrorCode.INVALID_GROUP_ID
        assert await one.add_group("g") == ErrorCode.NONE
        for version in range(4):
            assert await one.commit_offset("g", "t", version, version) == ErrorCode.NONE
        assert await one.commit_offset("g", "nowhere", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wrong = {"generation_id": 3, "member_id": "m"}
        assert await one.commit_offset("g", "t", 9, 3, **wrong) == ErrorCode.UNKNOWN_MEMBER_ID

        async def known(*, require_stable: bool) -> tuple[int, int, int]:
            groups = [Entity(group_id="g", topics=[Entity(name="t", partition_indexes=[0])])]
            reply = await one.peer.ask(OFFSET_FETCH, 8, groups=groups, require_stable=require_stable)
            found = reply.groups[0].topics[0].partitions[0]
            return found.committed_offset, found.committed_leader_epoch, found.error_code

        assert await known(require_stable=False) == (-1, -1, 0)
        assert await known(require_stable=True) == (-1, -1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert await one.end() == ErrorCode.NONE
        assert await known(require_stable=True) == (3, 10, 0)


async def test_offsets_of_a_member_that_has_another_epoch_are_refused_as_those_of_another_generation() -> None:
    """Java's producer aborts at that, and can go on; STALE_MEMBER_EPOCH would be its end."""
    async with producing() as one:
        assert (await beat(one.peer)).member_epoch == 1
        assert await one.add_group("g") == ErrorCode.NONE
        for epoch, code in ((7, ErrorCode.ILLEGAL_GENERATION), (1, ErrorCode.NONE)):
            assert await one.commit_offset("g", "t", 5, member_id="a", generation_id=epoch) == code
        assert await one.end() == ErrorCode.NONE


async def test_offsets_of_a_member_whose_generation_waits_for_its_leader_count() -> None:
    """Java's producer would take REBALANCE_IN_PROGRESS for its end, librdkafka's abort the transaction."""
    async with producing(group_initial_delay_ms=0) as one:
        joined = await one.peer.ask(
            JOIN_GROUP, 3, group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
            protocol_type="consumer", protocols=[Entity(name="range", metadata=b"")],
        )  # fmt: skip
        assert await one.add_group("g") == ErrorCode.NONE
        me = {"member_id": joined.member_id, "generation_id": 1}
        assert await one.commit_offset("g", "t", 5, **me) == ErrorCode.NONE
        other = {"member_id": joined.member_id, "group_instance_id": "other"}
        assert await one.commit_offset("g", "t", 6, **other) == ErrorCode.UNKNOWN_MEMBER_ID
        plain = Entity(name="t", partitions=[Entity(partition_index=0, committed_offset=5, committed_metadata=None)])
        said = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1, "topics": [plain]}
        reply = await one.peer.ask(OFFSET_COMMIT, 8, group_id="g", **said)
        assert reply.topics[0].partitions[0].error_code == ErrorCode.REBALANCE_IN_PROGRESS


async def test_offsets_sent_with_the_epoch_before_count_for_what_the_member_has_had_all_the_while() -> None:
    async with producing() as one:
        assert (await beat(one.peer)).member_epoch == 1
        for name in "uv":
            await one.peer.broker.create_topic(name, partitions=1, config={})
        held = [Entity(topic_id=one.peer.broker.topology.topics["t"].id, partitions=[0])]
        said = {"subscribed_topic_names": ["t", "u"], "topic_partitions": held}
        found = await beat(one.peer, epoch=1, rebalance_timeout_ms=1000, **said)
        assert (found.error_code, found.member_epoch) == (0, 2)
        assert await one.add_group("g") == ErrorCode.NONE
        for name, code in (("v", ErrorCode.ILLEGAL_GENERATION), ("t", ErrorCode.NONE)):
            assert await one.commit_offset("g", name, 5, member_id="a", generation_id=1) == code


async def test_the_latest_offset_of_who_reads_what_is_committed_is_the_stable_one() -> None:
    async with producing() as one:
        await one.add(("t", 0))
        await one.produce("t", b"x")
        for isolation_level, timestamp, expected in (
            (0, -1, 1), (1, -1, 0), (0, -2, 0), (1, -2, 0), (0, 0, 0), (1, 0, -1), (0, -3, 0), (1, -3, -1),
        ):  # fmt: skip
            topics = [Entity(name="t", partitions=[Entity(partition_index=0, timestamp=timestamp)])]
            reply = await one.peer.ask(LIST_OFFSETS, 8, isolation_level=isolation_level, topics=topics)
            assert reply.topics[0].partitions[0].offset == expected


async def test_operators_see_who_has_what_open_and_end_it() -> None:
    async with producing("Zürich") as one:

        async def listed(version: int = 1, **asked: Any) -> list[str]:
            every = {"state_filters": [], "producer_id_filters": []}
            reply = await one.peer.ask(LIST_TRANSACTIONS, version, **every | asked)
            return [said.transactional_id for said in reply.transaction_states]

        # 0 is what clients send that leave the field alone: whoever has nothing open is listed, too
        assert await listed(duration_filter=0) == await listed() == ["Zürich"]
        assert await listed(duration_filter=1) == []
        await one.add(("t", 0))
        await one.produce("t", b"x")
        assert await listed(0) == await listed(state_filters=["Ongoing"]) == ["Zürich"]
        assert await listed(state_filters=["Empty"]) == await listed(producer_id_filters=[1]) == []
        assert await listed(duration_filter=60_000) == []
        for pattern, found in (("Z.*", ["Zürich"]), ("Z.rich", ["Zürich"]), ("ric", []), ("", ["Zürich"])):
            assert await listed(2, transactional_id_pattern=pattern) == found, pattern
        every: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], "transactional_id_pattern": "(["}
        reply = await one.peer.ask(LIST_TRANSACTIONS, 2, **every)
        assert (reply.error_code, reply.transaction_states) == (ErrorCode.INVALID_REGULAR_EXPRESSION, [])
        reply = await one.peer.ask(LIST_TRANSACTIONS, 1, state_filters=["Dead"], producer_id_filters=[])
        assert reply.unknown_state_filters == ["Dead"]
        reply = await one.peer.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=["Zürich", "nobody", "Zürich"])
        mine, none = reply.transaction_states
        assert (mine.transaction_state, mine.producer_id, mine.producer_epoch) == ("Ongoing", one.id, 0)
        assert [(topic.topic, topic.partitions) for topic in mine.topics] == [("t", [0])]
        assert none.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        topics = [Entity(name="t", partition_indexes=[0, 1, 0])] * 2
        reply = await one.peer.ask(DESCRIBE_PRODUCERS, 0, topics=topics)
        here, elsewhere = reply.topics[0].partitions
        (producer,) = here.active_producers
        assert (producer.producer_id, producer.current_txn_start_offset, producer.last_sequence) == (one.id, 0, 0)
        assert elsewhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        marker = Entity(
            producer_id=one.id,
            producer_epoch=one.epoch,
            transaction_result=False,
            topics=[Entity(name="t", partition_indexes=[0])],
            coordinator_epoch=0,
        )
        reply = await one.peer.ask(WRITE_TXN_MARKERS, 1, markers=[marker])
        assert reply.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
        values, found = await fetched(one.peer, 1)
        assert (values, found.last_stable_offset) == ([b"x"], 2)
        assert [said.first_offset for said in found.aborted_transactions] == [0]
        for epochs, code in (
            ({"coordinator_epoch": -1}, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
            ({"producer_epoch": one.epoch - 1}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ):
            reply = await one.peer.ask(WRITE_TXN_MARKERS, 1, markers=[Entity(**vars(marker) | epochs)])
            assert reply.markers[0].topics[0].partitions[0].error_code == code
        reply = await one.peer.ask(DESCRIBE_PRODUCERS, 0, topics=topics)
        assert [said.coordinator_epoch for said in reply.topics[0].partitions[0].active_producers] == [0]


async def test_what_hangs_is_told_though_its_producer_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nobody could find it a day later, and end it."""
    async with producing() as one:
        await one.add(("t", 0))
        assert await one.produce("t", b"x") == ErrorCode.NONE
        producers = one.peer.adapter.door.broker.topics["t"].partitions[0].producers
        later = wall_clock_ms() + FORGOTTEN_MS + 1
        monkeypatch.setattr("routing.topics.producers.wall_clock_ms", lambda: later)
        producers.forget_silent()
        assert not len(await producers.states())
        reply = await one.peer.ask(DESCRIBE_PRODUCERS, 0, topics=[Entity(name="t", partition_indexes=[0])])
        (producer,) = reply.topics[0].partitions[0].active_producers
        assert (producer.producer_id, producer.producer_epoch) == (one.id, one.epoch)
        assert (producer.current_txn_start_offset, producer.last_timestamp) == (0, NOW_MS)
        assert (producer.last_sequence, producer.coordinator_epoch) == (-1, -1)


@pytest.mark.parametrize("version", [1, 4])
async def test_who_looks_after_a_transactional_id(version: int) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        reply = await peer.ask(FIND_COORDINATOR, version, key="tx", key_type=1, coordinator_keys=["tx"])
        found = reply.coordinators[0] if version >= 4 else reply
        assert (found.error_code, found.node_id) == (0, 0)


async def test_without_the_right_to_write_to_its_name_nobody_uses_a_transactional_id() -> None:
    async with kafka_broker() as broker:
        await broker.rights.set_permission("/", "guest", Permission("", "^t$", ".*"))
        one = Producer(broker)
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await one.init() == refused
        one.id = one.epoch = 0
        assert await one.end() == await one.add_group("g") == refused
        one.name = "t"
        assert await one.init() == ErrorCode.NONE
