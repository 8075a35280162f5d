"""What comes over a watch in pieces, and when one is left; without a clock."""

from __future__ import annotations

from core_log.metadata.etcd_watch import Standstill, WholeRevisions
from core_log.metadata.etcd_wire import WatchAnswer
from core_log.metadata.store import MetadataEntry


def entries(*revisions: int) -> list[MetadataEntry]:
    return [MetadataEntry(b"%d" % number, b"", revision, 1) for number, revision in enumerate(revisions)]


def answer(events: list[MetadataEntry], *, is_fragment: bool) -> WatchAnswer:
    return WatchAnswer(events, False, 0, "", is_fragment)


def test_a_revision_is_there_when_all_of_it_is() -> None:
    events, whole = entries(3, 3, 4, 5, 5, 5, 6), WholeRevisions()
    found = []
    for first, end in ((0, 1), (1, 3), (3, 4), (4, 5), (5, 7)):
        found += list(whole.take(answer(events[first:end], is_fragment=end < 7)))
    assert found == [(3, events[:2]), (4, events[2:3]), (5, events[3:6]), (6, events[6:])]
    assert not list(whole.take(answer([], is_fragment=False)))


def test_a_watch_that_brings_something_is_not_left_and_one_that_does_not_later_each_time() -> None:
    standstill = Standstill()
    assert not any(standstill.is_there(revision, 100) for revision in range(100))
    looks = [standstill.is_there(99, 100) for _ in range(12)]
    assert [number for number, left in enumerate(looks) if left] == [0, 3, 8]
    assert not standstill.is_there(100, 100)
    assert [standstill.is_there(100, 101) for _ in range(2)] == [False, True]
