"""A producer with acks=0 learns that a batch was refused by the end of its connection, as with Kafka."""

from __future__ import annotations

import pytest
import trio

from protocols.kafka.codec import Entity
from protocols.kafka.messages_records import FETCH, PRODUCE
from tests.protocols.kafka.door import Peer, batch_of, fetching, kafka_broker

CORRUPT = batch_of([b"a"])[:-1] + b"\xff"


@pytest.mark.parametrize("batches", [[CORRUPT], [batch_of([bytes(2 << 20)])]])
async def test_who_wants_no_answer_is_told_by_the_end_of_the_connection_what_was_refused(batches: list[bytes]) -> None:
    """Else a producer with acks=0 goes on with a broker that does not lead any more, and all of it is lost."""
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await broker.create_topic("t", partitions=1, config={})
        await peer.send(FETCH, 11, **fetching("t", wait_ms=60_000))
        topics = [Entity(name="t", partition_data=[Entity(index=0, records=batches)])]
        await peer.send(PRODUCE, 9, acks=0, topic_data=topics)
        assert not peer.adapter.closed  # what came before it is answered first
        await Peer(broker).produce("t", batch_of([b"a"]))
        with trio.fail_after(5):
            while not peer.adapter.closed:
                await trio.sleep(0.001)
        assert len(peer.replies()) == 1


async def test_who_wants_no_answer_waits_while_publishers_are_blocked() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await broker.create_topic("t", partitions=1, config={})
        broker.alarms.memory_bytes, broker.alarms.memory_bytes_max = 2, 1
        broker.alarms.check()
        topics = [Entity(name="t", partition_data=[Entity(index=0, records=[batch_of([b"a"])])])]
        await peer.send(PRODUCE, 9, acks=0, topic_data=topics)
        left, peer.adapter.left = peer.adapter.left, None
        assert left is not None
        (log,) = [partition.log for partition in broker.topics["t"].partitions]
        assert log.log_end_offset == 0
        broker.alarms.memory_bytes_max = 0
        broker.alarms.check()
        await left()
        assert (peer.adapter.closed, peer.adapter.left, log.log_end_offset) == (False, None, 1)
