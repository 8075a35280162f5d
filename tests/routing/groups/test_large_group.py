"""A group of 200 members, which the broker divides over 2,000 partitions, is restarted one by one: in virtual time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from routing.groups.assignors import ASSIGNORS, NOWHERE, Places, uniform
from routing.groups.consumer_group import ConsumerGroup, GroupTimes
from routing.groups.consumer_member import JOINING, LEAVING, Beat
from tests.routing.groups.clock import Timers
from tests.routing.groups.topics import FakeTopics

MEMBERS, TOPICS, PARTITIONS = 200, 2, 1000
RESTARTED = 80
NETWORK_MS, REVOKE_MS, START_MS = 10, 20, 200
STOP_MS_MAX = 1000


class Restarted:
    """The group, and when each partition was read last."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.topics = FakeTopics()
        for number in range(TOPICS):
            self.topics.set(f"t{number}", PARTITIONS)
        self.group = ConsumerGroup(
            "g", self.timers, lambda: self.timers.now_ms, self.topics, GroupTimes(), lambda group: None
        )
        self.beats = self.quiet_beats = 0
        self.beats_s = self.quiet_s = 0.0
        self.stopped_at: dict[tuple[bytes, int], int] = {}
        self.stop_ms = 0

    def ask(self, beat: Beat) -> tuple[int, int, Places | None]:
        """A heartbeat and what it costs."""
        before, began = self.group.epoch, time.process_time()
        found = self.group.heartbeat(beat)
        took = time.process_time() - began
        self.beats, self.beats_s = self.beats + 1, self.beats_s + took
        if found.assignment is None and self.group.epoch == before and found.epoch == beat.epoch:
            self.quiet_beats, self.quiet_s = self.quiet_beats + 1, self.quiet_s + took
        return found.epoch, found.interval_ms, found.assignment


class Process:
    """A member."""

    def __init__(self, it: Restarted, name: str) -> None:
        self.it, self.id, self.epoch, self.owned, self.gone = it, name, JOINING, NOWHERE, False
        self.reads = False
        self._beat(NOWHERE)

    def _beat(self, owned: Places | None) -> None:
        if self.gone:
            return
        words = {"rebalance_timeout_ms": 30_000, "topics": frozenset(self.it.topics)} if self.epoch == JOINING else {}
        self.epoch, wait_ms, told = self.it.ask(Beat(self.id, self.epoch, owned=owned, **words))  # type: ignore[arg-type]
        if told is not None and told != self.owned:
            self.it.timers(NETWORK_MS, lambda: self._take(told))
        else:
            self.it.timers(wait_ms + 2 * NETWORK_MS, lambda: self._beat(None))

    def _take(self, told: Places) -> None:
        if self.gone:
            return
        it, now_ms = self.it, self.it.timers.now_ms
        it.stopped_at.update(dict.fromkeys(self.owned - told, now_ms))
        for place in told - self.owned:
            it.stop_ms = max(it.stop_ms, now_ms - it.stopped_at.pop(place, now_ms))
        self.owned, self.reads = told, True
        it.timers(REVOKE_MS + NETWORK_MS, lambda: self._beat(self.owned))

    def leave(self) -> None:
        """In order."""
        self.gone = True
        self.it.stopped_at.update(dict.fromkeys(self.owned, self.it.timers.now_ms))
        self.it.ask(Beat(self.id, LEAVING))


def test_nothing_stands_still_for_long_while_members_are_restarted() -> None:
    it = Restarted()
    members = []
    for number in range(MEMBERS):
        members.append(Process(it, f"m{number:03}"))
        it.timers.pass_ms(10)
    it.timers.pass_ms(30_000)
    shares = sorted(len(member.owned) for member in members)
    assert (shares[0], shares[-1], it.group.state) == (10, 10, "Stable")
    it.stop_ms, it.beats_s, it.beats = 0, 0.0, 0
    for number in range(RESTARTED):
        members[number].leave()
        it.timers.pass_ms(START_MS)
        members[number] = Process(it, f"again{number:03}")
        it.timers.pass_ms(100)
        while not members[number].owned:
            it.timers.pass_ms(10)
    assert 0 < it.stop_ms <= STOP_MS_MAX
    it.timers.pass_ms(5_000)
    assert it.group.state == "Stable"
    assert sum(len(member.owned) for member in members) == TOPICS * PARTITIONS
    assert it.quiet_s / it.quiet_beats < 100e-6, "a heartbeat with nothing new"
    print(
        f"stopped for {it.stop_ms} ms at most; {it.beats} heartbeats, {it.beats_s / it.beats * 1e6:.0f} us each, "
        f"{it.quiet_s / it.quiet_beats * 1e6:.1f} us with nothing new"
    )


def test_those_who_come_together_have_it_divided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    divided = 0

    def counted(*arguments: Any) -> dict[str, Places]:
        nonlocal divided
        divided += 1
        return uniform(*arguments)

    monkeypatch.setitem(ASSIGNORS, "uniform", counted)
    it = Restarted()
    members = [Process(it, f"m{number:03}") for number in range(MEMBERS)]
    assert divided == 1
    it.timers.pass_ms(2_000)
    assert divided == 2
    assert {len(member.owned) for member in members} == {TOPICS * PARTITIONS // MEMBERS}


def test_a_small_group_is_divided_for_each_who_comes() -> None:
    it = Restarted()
    it.topics.set("t0", 10)
    group = it.group
    for number in range(3):
        group.heartbeat(
            Beat(f"m{number}", JOINING, owned=NOWHERE, rebalance_timeout_ms=30_000, topics=frozenset(["t0"]))
        )
        assert group.assignment_epoch == group.epoch == number + 1
