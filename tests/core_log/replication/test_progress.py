"""What the leader of a log knows of a follower."""

from __future__ import annotations

from core_log.replication.isr import ReplicationConfig
from core_log.replication.messages import Position
from core_log.replication.progress import Progress

CONFIG = ReplicationConfig(replica_lag_time_max_s=5, link_down_max_s=1)


def reports(reported: int) -> Position:
    return Position("log", 1, reported, 1, reported, 0, False, 0)


def linked(now_s: float = 0.0) -> Progress:
    found = Progress(3, now_s)
    found.linked()
    return found


def test_who_had_all_that_there_was_a_moment_ago_has_caught_up_with_that_moment() -> None:
    one = linked()
    one.heard(reports(10), 10, 1.0)
    assert one.caught_up_s == 1.0
    one.heard(reports(10), 30, 4.0)  # more has come
    assert one.caught_up_s == 1.0
    one.heard(reports(30), 50, 6.0)  # it has all of that, and not what came since
    assert one.caught_up_s == 4.0
    one.heard(reports(40), 90, 8.0)
    assert (one.caught_up_s, one.reported) == (4.0, 40)
    one.heard(reports(20), 90, 8.0)
    assert one.reported == 40, "a report that comes late takes nothing back"
    assert not one.is_late(9.0, CONFIG)
    assert one.is_late(9.1, CONFIG)


def test_a_promise_lasts_from_when_the_message_was_sent_that_it_answers() -> None:
    one = linked()
    for tag in (1, 2, 3):
        one.sent(tag, float(tag))
    one.promised(2, 1.5)
    assert one.granted_until_s == 3.5
    one.promised(1, 9.0)
    assert one.granted_until_s == 3.5, "messages before one that was answered are forgotten"
    one.promised(3, 0.1)
    assert one.granted_until_s == 3.5
    one.sent(4, 7.0)
    one.linked()
    one.promised(4, 1.5)
    assert one.granted_until_s == 3.5, "what was said on an older link"


def test_the_times_of_what_nobody_answers_are_bounded() -> None:
    one = linked()
    for tag in range(1, 1000):
        one.sent(tag, float(tag))
    assert len(one.sent_s) < 300
    assert (one.tag, one.last_sent_s) == (999, 999.0)


def test_who_refuses_is_late_or_has_had_no_link_for_long_is_not_waited_for() -> None:
    one = linked(10.0)
    assert not one.is_lost(11.0, CONFIG)
    one.unlinked(11.0)
    one.unlinked(20.0)  # it is gone already
    assert not one.is_lost(12.0, CONFIG)
    assert one.is_lost(12.1, CONFIG)
    one.linked()
    assert not one.is_lost(12.1, CONFIG)
    assert one.is_lost(15.1, CONFIG)
    one.caught_up_s, one.refusing = 15.0, True
    assert one.is_lost(15.1, CONFIG)
