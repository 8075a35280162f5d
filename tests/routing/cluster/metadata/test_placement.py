"""Where replicas are placed: spread over brokers and racks, growing with the cluster."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from core_log.replication.state import decode, encode
from routing.cluster.metadata.placement import Place, grown, minimum_of, new_state, ring, spread, start_of

THREE = [Place(1, 11), Place(2, 12), Place(3, 13)]


@pytest.mark.parametrize(("factor", "minimum"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_the_minimum_that_nobody_chose(factor: int, minimum: int) -> None:
    assert minimum_of(factor) == minimum


def test_first_replicas_are_spread_and_so_are_the_others() -> None:
    found = spread(12, THREE, 2, {1: 30}, {})
    assert Counter(places[0].broker for places in found) == {1: 4, 2: 4, 3: 4}, "a topic is spread by itself"
    assert [places[0].broker for places in spread(2, THREE, 2, {1: 30}, {})] == [2, 3]
    held = Counter(place.broker for places in found for place in places).values()
    assert max(held) - min(held) <= 2
    assert all(len(set(places)) == 2 for places in found)


def test_racks_come_first() -> None:
    racked = [Place(1, 1, "a"), Place(2, 2, "a"), Place(3, 3, "b"), Place(4, 4, "b")]
    for places in spread(8, racked, 2, {}, {}):
        assert {place.rack for place in places} == {"a", "b"}
    assert [place.broker for place in ring(racked, 0, 3)] == [1, 3, 2]
    assert ring([], 3, 2) == []


def test_a_new_log_is_in_sync_and_led() -> None:
    state = new_state(ring(THREE, 1, 3), factor=3, minimum=2)
    assert (state.replicas, state.isr) == ((2, 3, 1), ((2, 12), (3, 13), (1, 11)))
    assert (state.leader, state.leader_broker_epoch, state.leader_epoch, state.min_insync) == (2, 12, 1, 2)
    assert decode(encode(state)) == state
    assert grown(state, THREE, 1) is state


def test_a_log_grows_as_brokers_come_and_its_minimum_with_its_isr() -> None:
    state = new_state(THREE[:1], factor=3, minimum=2)
    assert (state.min_insync, grown(state, THREE[:1], 2)) == (1, state)
    assert new_state(THREE[:1], factor=3, minimum=2, strict=True).min_insync == 2
    state = grown(state, THREE, 2)
    assert (state.replicas, state.isr_brokers, state.min_insync) == ((3, 1, 2), [1], 1)
    assert grown(state, THREE, 2) == state
    state = msgspec.structs.replace(state, isr=((1, 11), (3, 13)))
    state = grown(state, THREE, 2)
    assert state.min_insync == 2
    left = msgspec.structs.replace(state, isr=((1, 11),))
    assert grown(left, THREE, 2).min_insync == 2, "it never falls"


def test_a_minimum_that_was_asked_for_counts_as_soon_as_it_can_be_met() -> None:
    assert new_state(THREE[:2], factor=3, minimum=2).min_insync == 1
    assert new_state(THREE[:2], factor=3, minimum=2, firm=True).min_insync == 2
    state = new_state(THREE[:1], factor=3, minimum=2, firm=True)
    assert state.min_insync == 1
    state = grown(state, THREE[:2], 0)
    assert (state.replicas, state.min_insync) == ((1, 2), 1)
    assert grown(msgspec.structs.replace(state, isr=((1, 11), (2, 12))), THREE[:2], 0).min_insync == 2
    assert decode(encode(state)) == state


def test_the_number_of_a_log() -> None:
    assert [start_of(log) for log in ("home-3", "topic-ab-12", "else")] == [3, 12, 0]
