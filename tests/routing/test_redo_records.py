"""Redo records: what they say is what was meant, whatever has the names since."""

from __future__ import annotations

import msgpack
import pytest

from core_log.files import MemoryFiles
from routing.cluster.clients.transaction_effects import TOPICS, Effects
from routing.message import Slab
from routing.publishing.step_parts import parts_of
from routing.redo_records import Places, Published, decode_step, encode, published
from routing.topology.route import Route
from tests.routing.harness import PERSISTENT, engine


@pytest.mark.parametrize("is_anew", [True, False])
async def test_a_topic_that_was_made_anew_since_gets_nothing(is_anew: bool) -> None:
    """Who took up the transactions of a broker that was gone put them into the new topic."""
    async with engine(MemoryFiles()) as running:
        broker, topics = running.broker, running.broker.topics
        for name in ("t", "u"):
            await broker.create_topic(name)
        route = Route([], [topics["t"], topics["u"]])
        places = Places(b"step", [], [("t", 0, 0), ("u", 0, 0)])
        record = encode(published([(route, Slab("", "k", PERSISTENT, [b"1"]), False)]), (), places)
        if is_anew:
            await broker.delete_topic("t")
            await broker.create_topic("t")
        publishes, _, places_again = decode_step(record)
        assert places_again is not None
        parts = parts_of(publishes, places_again, topics)
        assert [part.partition(topics).topic_name for part in parts] == (["u"] if is_anew else ["t", "u"])
        Effects(publishes).put_again(broker.topology, TOPICS, lambda: 0)
        assert [topics[name].partitions[0].next_offset for name in ("t", "u")] == [0 if is_anew else 1, 1]


def test_records_of_earlier_versions_say_only_names_and_these_see_in_ours_no_more() -> None:
    slab = Slab("", "k", PERSISTENT, [b"1"])
    (found,), _, _ = decode_step(encode([Published(slab, [], ["t", "u"], False)], ()))
    assert (found.topics, found.ids) == (["t", "u"], [])
    record = encode([Published(slab, [], ["t", "u"], False, [b"1" * 16, b"2" * 16])], ())
    ((*_, names, delayed),) = msgpack.unpackb(record)[1]
    assert ([one for one in names if isinstance(one, str)], delayed) == (["t", "u"], False)
