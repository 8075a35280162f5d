"""What the ids of destination sets stand for, as a standby learns it from a log whose start may be gone."""

from __future__ import annotations

from core_log.record_batch import BatchBuilder
from routing.queues.homes.directory import DIRECTORY_BIT, encode_directory
from routing.queues.homes.standby import Standby
from routing.queues.packed_ranges import unpack
from routing.queues.settlement import DESTINATIONS_KEY, encode_destinations

A, B = 11, 12


def defined(standby: Standby, set_id: int, *queue_ids: int) -> None:
    """The log says what an id is."""
    builder = BatchBuilder(standby.offset, 0, 0, control=True)
    builder.add(standby.offset, DESTINATIONS_KEY, encode_destinations(set_id, queue_ids), [])
    standby.apply(builder.build())


def published(standby: Standby, set_id: int, count: int) -> int:
    """Messages; the offset of the first."""
    offset = standby.offset
    builder = BatchBuilder(offset, 0, 0, attributes=DIRECTORY_BIT)
    builder.add_first(encode_directory([(set_id, count)], None))
    for place in range(count):
        builder.add(offset + 1 + place, b"q", b"body", [])
    standby.apply(builder.build())
    return offset + 1


def live(standby: Standby, queue_id: int) -> list[tuple[int, int]]:
    return list(unpack(standby.live[queue_id]))


def test_a_definition_may_come_behind_what_it_is_needed_for() -> None:
    standby = Standby(100)
    first = published(standby, 5, 3)
    assert not standby.is_defined, "nothing is worked out before"
    defined(standby, 5, A)
    assert standby.is_defined
    standby.fold({A}, 100)
    assert live(standby, A) == [(first, 3)]


def test_an_id_that_was_given_again_means_to_each_message_what_it_meant_then() -> None:
    standby = Standby(0)
    defined(standby, 1, A)
    first = published(standby, 1, 2)
    defined(standby, 1, A)
    defined(standby, 1, B)
    second = published(standby, 1, 4)
    assert standby.is_defined
    standby.fold({A, B}, 0)
    assert (live(standby, A), live(standby, B)) == ([(first, 2)], [(second, 4)])
    assert {set_id: queue_ids for set_id, (queue_ids, _) in standby.sets.items()} == {1: (B,)}
    assert standby.next_set_id == 2


def test_a_set_whose_queues_have_gone_is_kept_until_the_log_begins_behind_that() -> None:
    standby = Standby(0)
    for set_id, queue_ids in ((1, (A,)), (2, (A, B)), (3, (B,))):
        defined(standby, set_id, *queue_ids)
        published(standby, set_id, 2)
    standby.fold(standby.queue_ids, 0)  # nobody knows which have gone
    assert standby.queue_ids == {A, B}
    gone_at = standby.offset
    standby.fold({B}, 0)
    assert standby.queue_ids == {A, B}, "one of a set is still there"
    published(standby, 1, 3)  # the leader heard of it later
    last = published(standby, 3, 1)
    assert standby.is_defined
    standby.fold({B}, gone_at)
    assert live(standby, B)[-1] == (last, 1)
    assert set(standby.sets) == {1, 2, 3}
    standby.fold({B}, gone_at + 1)
    assert standby.sets == {2: ((A, B), standby.sets[2][1]), 3: ((B,), standby.sets[3][1])}
    assert standby.next_set_id == 4, "and its id is nobody's again"
    standby.fold((), gone_at + 1)
    standby.fold((), standby.offset + 1)
    assert (standby.sets, standby.queue_ids) == ({}, set())


def test_the_id_of_a_set_whose_queues_have_gone_may_be_given_again() -> None:
    standby = Standby(0)
    defined(standby, 1, A)
    standby.fold((), 0)
    published(standby, 1, 2)
    defined(standby, 1, B)
    second = published(standby, 1, 4)
    standby.fold({B}, 0)
    assert live(standby, B) == [(second, 4)]
