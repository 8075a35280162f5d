"""Consumers that name themselves as those of Spark's own source do have a group that shows how far they are."""

from __future__ import annotations

import pytest

from protocols.kafka.messages_groups import LIST_GROUPS, OFFSET_FETCH
from routing.access.grants import Permission
from routing.administration.measures import Measures
from routing.topics.offset_store import Committed
from tests.protocols.kafka.door import Peer, batch_of, kafka_broker
from tests.protocols.kafka.test_fetch import Consumer, asking
from tests.support.metrics import series

GROUP = "spark-kafka-source-5f3c1de2-0d1c-4a53-9c5c-0d9c2f7e8a11--1466372871"


@pytest.mark.parametrize("version", [12, 16])
async def test_what_a_query_has_read_shows_as_a_group(version: int) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.produce("t", batch_of([b"a", b"b", b"c"]))
        topic = "t" if version < 13 else broker.topics["t"]
        peer.client_id = f"consumer-{GROUP}-executor-3".encode()
        consumer = Consumer(peer, version)
        for offset in (2, 1):
            await consumer.fetch(asking(topic, {0: offset, 9: 1}))
        assert broker.offsets.known(GROUP) == {("t", 0): Committed(2, "spark")}
        await consumer.fetch(asking(topic, {0: 3}))
        await peer.send(OFFSET_FETCH, 5, group_id=GROUP, topics=None, require_stable=False)
        await peer.send(LIST_GROUPS, 4, states_filter=[])
        offsets, groups = await consumer.replies(2)
        assert [one.committed_offset for one in offsets.topics[0].partitions] == [3]
        assert [one.group_id for one in groups.groups] == [GROUP]
        measured = series(await Measures(broker, 100).families())
        assert measured["millrace_group_lag_records", GROUP, "t", "0"] == 0
        await peer.produce("t", batch_of([b"d"]))
        measured = series(await Measures(broker, 100).families())
        assert measured["millrace_group_lag_records", GROUP, "t", "0"] == 1


@pytest.mark.parametrize("client_id", [GROUP, f"consumer-{GROUP}-3", f"consumer-{'x' * 300}-executor-1", "test"])
async def test_other_consumers_have_none(client_id: str) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.produce("t", batch_of([b"a"]))
        peer.client_id = client_id.encode()
        await Consumer(peer).fetch(asking(broker.topics["t"], {0: 0}))
        assert broker.offsets.known(GROUP) == {}
        assert broker.groups.names() == []


async def test_nothing_is_noted_of_topics_that_may_not_be_read() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.produce("t", batch_of([b"a"]))
        await broker.rights.set_permission("/", "guest", Permission("", "", "^other$"))
        peer.client_id = f"consumer-{GROUP}-executor-1".encode()
        await Consumer(peer).fetch(asking(broker.topics["t"], {0: 1}))
        assert broker.groups.names() == []
