"""What a client had under way behind a batch that is refused: it comes again in its order, in the same epoch."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from core_log.transaction_marker import marker
from protocols.kafka.adapter_00_produce import Producing
from protocols.kafka.adapter_door import Call
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_records import PRODUCE
from routing.broker import Broker
from tests.protocols.kafka.door import ALL, NOW_MS, Peer, batch_of, idempotent, kafka_broker, records_of
from tests.routing.cluster.test_topics_handed_over import leads, led
from tests.support.home_cluster import mesh, until

TOPIC = "orders"
NONE, ORDER, AGAIN = ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.NOT_LEADER_OR_FOLLOWER


def short_of_memory(broker: Broker, is_short: bool) -> None:
    """Producers are refused, or no longer."""
    broker.alarms.memory_bytes, broker.alarms.memory_bytes_max = int(is_short) * 2, 1
    broker.alarms.check()


async def answers(
    peer: Peer, *sequences: int, producer_id: int = 7, version: int = 9, topic: str = TOPIC
) -> list[ErrorCode]:
    """What batches of one record are answered, one after the other."""
    batches = [idempotent(batch_of([b"%d" % sequence]), producer_id, 0, sequence) for sequence in sequences]
    return [(await peer.produce(topic, batch, version=version)).error_code for batch in batches]


async def values(peer: Peer) -> list[bytes]:
    """What is stored."""
    return [record.value or b"" for record in records_of(await peer.fetch(TOPIC))]


@pytest.mark.parametrize("version", [7, 9])
@pytest.mark.parametrize("before", [0, 3])
async def test_what_comes_behind_a_batch_that_is_refused_is_sent_again_as_well(before: int, version: int) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic(TOPIC)
        peer, other = Peer(broker), Peer(broker)
        assert set(await answers(peer, *range(before), version=version)) <= {NONE}
        short_of_memory(broker, True)
        first, second, third = range(before, before + 3)
        assert await answers(peer, first, version=version) == [ErrorCode.KAFKA_STORAGE_ERROR]
        short_of_memory(broker, False)
        assert await answers(peer, second, third, version=version) == [AGAIN] * 2
        if before:
            assert await answers(other, third) == [ORDER], "nothing was refused there"
        assert await answers(peer, first, second, third, second, version=version) == [NONE] * 4
        assert await values(peer) == [b"%d" % number for number in range(before + 3)]
        assert await answers(peer, before + 9, version=version) == [ORDER], "what was refused is there"


async def test_the_end_of_a_transaction_is_no_batch_that_others_come_behind() -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic(TOPIC)
        said = marker(7, 0, NOW_MS, 0, committed=False)
        await topic.partitions[0].append_marker(said, 0, lambda: None)
        peer = Peer(broker)
        short_of_memory(broker, True)
        assert await answers(peer, 0) == [ErrorCode.KAFKA_STORAGE_ERROR]
        short_of_memory(broker, False)
        assert await answers(peer, 1, 0, 1) == [AGAIN, NONE, NONE]


async def test_who_has_given_up_what_was_refused_is_told_so() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        assert await answers(peer, 0) == [NONE]
        short_of_memory(broker, True)
        assert await answers(peer, 1) == [ErrorCode.KAFKA_STORAGE_ERROR]
        short_of_memory(broker, False)
        assert await answers(peer, 2, 2, 2, 2, 2, 2, 2) == [AGAIN] * 5 + [ORDER] * 2
        short_of_memory(broker, True)
        assert await answers(peer, 5, producer_id=8) == [ErrorCode.KAFKA_STORAGE_ERROR]
        short_of_memory(broker, False)
        assert await answers(peer, 6, 7, 8, 9, 10, 11, producer_id=8) == [AGAIN] * 5 + [NONE], "one that was forgotten"


@pytest.mark.parametrize("behind", [0, 1, 3])
@pytest.mark.parametrize("version", [7, 9])
async def test_a_topic_that_is_made_anew_takes_first_what_was_refused_first(behind: int, version: int) -> None:
    async with kafka_broker(auto_create_topics=False) as broker:
        await broker.create_topic(TOPIC)
        peer = Peer(broker)
        assert await answers(peer, 0, 1, 2, version=version) == [NONE] * 3
        await broker.delete_topic(TOPIC)
        assert await answers(peer, 3, version=version) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await broker.create_topic(TOPIC)
        assert await answers(peer, *range(4, 4 + behind), version=version) == [AGAIN] * behind
        again = await answers(peer, 3, 4, 3, 4, 5, 6, version=version)
        assert again == ([NONE] * 6 if behind else [AGAIN, AGAIN] + [NONE] * 4)
        assert await values(peer) == [b"3", b"4", b"5", b"6"]


async def test_a_partition_that_is_not_known_yet_takes_first_what_was_refused_first() -> None:
    async with kafka_broker(auto_create_topics=False) as broker:
        peer = Peer(broker)
        assert await answers(peer, 0, 1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
        await broker.create_topic(TOPIC)
        assert await answers(peer, 2, 0, 1, 2) == [AGAIN, NONE, NONE, NONE]
        assert await values(peer) == [b"0", b"1", b"2"]


async def test_all_that_may_be_on_the_way_was_refused_by_a_topic_that_is_made_anew() -> None:
    async with kafka_broker(auto_create_topics=False) as broker:
        await broker.create_topic(TOPIC)
        peer = Peer(broker)
        assert await answers(peer, 0) == [NONE]
        await broker.delete_topic(TOPIC)
        five = range(1, 6)
        assert await answers(peer, *five) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 5
        await broker.create_topic(TOPIC)
        assert await answers(peer, *five) == [AGAIN] * 5
        assert await answers(peer, *five) == [NONE] * 5
        assert await values(peer) == [b"%d" % number for number in five]


async def test_what_is_refused_for_good_is_missing_for_good() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic(TOPIC, config={"max.message.bytes": "1000"})
        peer = Peer(broker)
        assert await answers(peer, 0) == [NONE]
        large = idempotent(batch_of([b"x" * 2000]), 7, 0, 1)
        assert (await peer.produce(TOPIC, large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await answers(peer, 2) == [ORDER]


@pytest.mark.parametrize("alike", [False, True], ids=["first request", "like the one before"])
async def test_what_a_leader_had_that_was_cut_off_is_not_missed_when_it_leads_again(alike: bool) -> None:
    async with mesh() as brokers:
        leader, partition = await led(brokers)
        peer, log = Peer(leader.broker), partition.log
        if alike:
            assert await answers(peer, 0, topic="t") == [NONE]
        else:
            assert await answers(Peer(leader.broker), 0, topic="t") == [NONE]
        leader.cut()
        batch = idempotent(batch_of([b"1"]), 7, 0, 1)
        entry = Entity(index=0, records=[batch])
        topics = [Entity(name="t", partition_data=[entry])]
        await peer.send(PRODUCE, 9, acks=ALL, timeout_ms=30_000, topic_data=topics)
        assert (log.log_end_offset, log.high_watermark) == (2, 1)
        others = [member for member in brokers.members.values() if member is not leader]
        await others[0].one.store.revoke(leader.one.store.lease_id)
        await until(lambda: not leads(leader))
        replies: list[Any] = []
        await until(lambda: replies.extend(peer.replies()) or replies)
        assert replies[0].responses[0].partition_responses[0].error_code == AGAIN
        await until(lambda: leader.one.members.epoch)
        brokers.link(leader)
        await until(lambda: log.log_end_offset == 1)
        await until(lambda: len(partition.leadership.standing.isr) == 3)  # type: ignore[union-attr]
        for other in others:
            await other.one.members.update(draining=True)
        await until(lambda: leads(leader) and partition.error() is None)
        assert await answers(peer, 2, 1, 2, topic="t") == [AGAIN, NONE, NONE]


async def test_each_batch_that_is_late_costs_the_same_however_many_there_are() -> None:
    async with kafka_broker() as broker:
        door, told, costs = Peer(broker).adapter.door, list[Any](), dict[int, float]()
        for count in (500, 8000) * 3:  # the least counts: something else may be collected meanwhile
            topics = [Entity(name=TOPIC, partition_data=[Entity(index=at) for at in range(count)])]
            producing = Producing(door, Call(9, None, told.append), Entity(acks=ALL, topic_data=topics))
            began = time.process_time()
            producing.timed_out()
            costs[count] = min(time.process_time() - began, costs.get(count, math.inf))
            answered = {one.error_code for one in told[-1].responses[0].partition_responses}
            assert answered == {ErrorCode.REQUEST_TIMED_OUT}
        assert costs[8000] < 16 * 5 * costs[500], "in proportion"
