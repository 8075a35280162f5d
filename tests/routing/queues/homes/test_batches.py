"""What a turn brings a home partition, until it is a batch with a directory."""

from __future__ import annotations

from array import array

from routing.facts import pack
from routing.message import Numbered, Slab
from routing.queues.homes.batches import BATCH_BYTES, OpenBatch
from routing.queues.homes.destination_sets import Definition, DestinationSet
from routing.queues.homes.directory import Directory, decode_directory
from tests.routing.harness import PERSISTENT

ONE, OTHER = (DestinationSet(Definition(number, (number,), 0, 0), ()) for number in (1, 2))


def directory(opened: OpenBatch) -> Directory:
    return decode_directory(opened.directory(), opened.slabs[0][0])


def test_the_directory_says_what_goes_where_and_nothing_that_nobody_asked_for() -> None:
    opened = OpenBatch()
    opened.slabs.append((10, Slab("", "one", PERSISTENT, [b"a", b"b"]), ONE))
    opened.slabs.append((12, Slab("", "other", PERSISTENT, [b"c"]), OTHER))
    found = directory(opened)
    assert (list(found.set_ids), list(found.firsts), list(found.counts)) == ([1, 2], [10, 12], [2, 1])
    assert (found.facts, found.each, found.numbers, opened.bytes_max) == (None, None, None, BATCH_BYTES)


def test_facts_and_numbers_stand_in_it_and_what_waits_is_in_small_batches_until_it_is_cleared() -> None:
    opened = OpenBatch()
    asking = Slab("", "one", PERSISTENT, [b"a"], facts=[pack(True, 4, delay_ms=100)])
    asking.once = Numbered(7, array("H", [3]))
    opened.slabs.append((10, asking, ONE))
    opened.note_facts(delayed=False)
    assert opened.bytes_max == BATCH_BYTES
    opened.note_facts(delayed=True)
    assert opened.bytes_max < BATCH_BYTES
    opened.slabs.append((11, Slab("", "other", PERSISTENT, [b"b"]), OTHER))
    found = directory(opened)
    assert found.numbers is not None
    assert [one and (one.publisher, list(one.numbers)) for one in found.numbers] == [(7, [3]), None]
    assert found.facts is not None or found.each is not None
    opened.clear()
    assert (opened.slabs, opened.bytes_max) == ([], BATCH_BYTES)
    opened.slabs.append((20, Slab("", "other", PERSISTENT, [b"b"]), OTHER))
    found = directory(opened)
    assert (found.facts, found.each, found.numbers) == (None, None, None)
