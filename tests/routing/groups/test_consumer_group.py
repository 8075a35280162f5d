"""A group that the broker divides, step by step, on a clock that a test turns."""

from __future__ import annotations

from typing import Any

import pytest

from routing.groups.assignors import NOWHERE, Places
from routing.groups.consumer_group import ConsumerGroup, GroupTimes
from routing.groups.consumer_member import JOINING, LEAVING, LEAVING_FOR_NOW, Beat, Beaten
from routing.groups.errors import (
    FencedEpoch,
    FencedInstance,
    GroupError,
    GroupFull,
    InvalidBeat,
    InvalidPattern,
    StaleEpoch,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from tests.routing.groups.clock import Timers
from tests.routing.groups.topics import FakeTopics

SESSION_MS, REBALANCE_MS = 45_000, 10_000


class Clients:
    """A group, and what its members know."""

    def __init__(self, **topics: int) -> None:
        self.timers = Timers()
        self.topics = FakeTopics()
        for name, count in topics.items():
            self.topics.set(name, count)
        self.changes = 0
        self.group = ConsumerGroup(
            "g", self.timers, lambda: self.timers.now_ms, self.topics, GroupTimes(members_max=5), self._changed
        )
        self.known: dict[str, Beaten] = {}

    def _changed(self, group: ConsumerGroup) -> None:
        self.changes += 1

    def join(self, name: str, **said: Any) -> Beaten:
        topics = None if "pattern" in said else frozenset({"t"})
        words = {"rebalance_timeout_ms": REBALANCE_MS, "topics": topics, "owned": NOWHERE, **said}
        return self._beat(Beat(name, JOINING, **words))

    def beat(self, name: str, *, epoch: int | None = None, **said: Any) -> Beaten:
        return self._beat(Beat(name, self.known[name].epoch if epoch is None else epoch, **said))

    def _beat(self, beat: Beat) -> Beaten:
        found = self.group.heartbeat(beat)
        before = self.known.get(beat.member_id)
        if found.assignment is None and before is not None:
            found = found._replace(assignment=before.assignment)
        self.known[beat.member_id] = found
        return found

    def numbers(self, name: str) -> list[int]:
        """Of the partitions that it may read."""
        return sorted(number for _, number in self.known[name].assignment or ())

    def has(self, name: str) -> Places:
        return self.known[name].assignment or NOWHERE


def test_a_member_alone_has_everything_and_hears_it_once() -> None:
    it = Clients(t=3)
    found = it.join("a")
    assert (found.epoch, it.numbers("a"), found.interval_ms) == (1, [0, 1, 2], 300)
    assert it.group.state == "Stable"
    before = it.changes
    assert it.group.heartbeat(Beat("a", 1)).assignment is None
    assert it.changes == before, "nothing new is nothing to be kept"
    it.timers.pass_ms(10_000)
    assert it.beat("a").interval_ms == 800


def test_what_moves_is_given_up_before_somebody_else_has_it() -> None:
    it = Clients(t=4)
    it.join("a")
    assert (it.join("b").epoch, it.numbers("b")) == (2, [])
    assert it.group.state == "Reconciling"
    assert (it.beat("a").epoch, it.numbers("a")) == (1, [0, 1])
    assert it.numbers("b") == [], "it is being revoked"
    assert it.beat("b").epoch == 2
    assert it.numbers("b") == []
    assert it.beat("a", owned=it.has("a")).epoch == 2
    it.beat("b")
    assert (it.numbers("a"), it.numbers("b"), it.group.state) == ([0, 1], [2, 3], "Stable")


def test_who_does_not_give_up_in_time_is_out() -> None:
    it = Clients(t=4)
    it.join("a")
    it.join("b")
    it.beat("a")
    it.timers.pass_ms(REBALANCE_MS - 1)
    it.beat("a")
    it.timers.pass_ms(1)
    with pytest.raises(UnknownMember):
        it.beat("a")
    it.beat("b")
    assert it.numbers("b") == [0, 1, 2, 3]


def test_who_is_not_heard_of_is_out() -> None:
    it = Clients(t=2)
    it.join("a")
    it.join("b")
    it.timers.pass_ms(SESSION_MS - 1)
    it.beat("b")
    it.timers.pass_ms(1)
    it.beat("b")
    assert it.numbers("b") == [0, 1]
    assert list(it.group.members) == ["b"]
    it.timers.pass_ms(SESSION_MS)
    assert (it.group.state, it.timers.alive) == ("Empty", 0)


def test_who_leaves_leaves_everything() -> None:
    it = Clients(t=2)
    it.join("a")
    it.join("b")
    assert it.group.heartbeat(Beat("a", LEAVING)).epoch == LEAVING
    assert it.group.state == "Assigning"
    it.beat("b")
    assert (it.numbers("b"), it.known["b"].epoch) == ([0, 1], 3)


def test_an_answer_that_was_lost() -> None:
    it = Clients(t=2)
    it.join("a")
    it.join("b")
    it.beat("a")
    it.beat("a", owned=it.has("a"))
    assert it.known["a"].epoch == 2
    again = it.beat("a", epoch=1, owned=it.has("a"), rebalance_timeout_ms=REBALANCE_MS, topics=frozenset({"t"}))
    assert (again.epoch, it.numbers("a")) == (2, [0])
    with pytest.raises(FencedEpoch):
        it.beat("a", epoch=1, owned=it.has("a") | it.has("b") | frozenset({(it.topics["t"].id, 1)}))
    with pytest.raises(FencedEpoch):
        it.beat("a", epoch=1)
    with pytest.raises(FencedEpoch):
        it.beat("a", epoch=3)
    rejoined = it.join("a")
    assert (rejoined.epoch, it.numbers("a")) == (2, [0])


def test_a_static_member_that_comes_back_has_what_it_had() -> None:
    it = Clients(t=4)
    it.join("a", instance_id="one")
    it.join("b", instance_id="two")
    it.beat("a", instance_id="one")
    it.beat("a", instance_id="one", owned=it.has("a"))
    it.beat("b", instance_id="two")
    with pytest.raises(UnreleasedInstance):
        it.join("c", instance_id="one")
    it.group.heartbeat(Beat("a", LEAVING_FOR_NOW, "one"))
    it.beat("b", instance_id="two")
    assert (it.known["b"].epoch, it.numbers("b")) == (2, [2, 3]), "nothing moves"
    assert it.join("c", instance_id="one").epoch == 2
    assert it.numbers("c") == [0, 1]
    with pytest.raises(FencedInstance):
        it.group.heartbeat(Beat("a", 2, "one"))
    with pytest.raises(UnknownMember):
        it.group.heartbeat(Beat("a", 2))
    it.group.heartbeat(Beat("c", LEAVING_FOR_NOW, "one"))
    it.timers.pass_ms(SESSION_MS - 1)
    it.beat("b", instance_id="two")
    it.timers.pass_ms(1)
    it.beat("b", instance_id="two")
    assert it.numbers("b") == [0, 1, 2, 3]


def test_topics_that_come_grow_and_go() -> None:
    it = Clients()
    it.join("a", topics=frozenset({"t", "u"}))
    assert it.numbers("a") == []
    it.topics.set("t", 2)
    assert (it.beat("a").epoch, it.numbers("a")) == (2, [0, 1])
    it.topics.set("other", 2)
    assert it.beat("a").epoch == 2, "nobody wants it"
    it.topics.set("t", 3)
    assert (it.beat("a").epoch, it.numbers("a")) == (3, [0, 1, 2])
    it.topics.set("t", 0)
    it.topics.set("u", 1)
    assert it.beat("a").assignment == NOWHERE
    it.beat("a", owned=NOWHERE)
    assert it.has("a") == frozenset({(it.topics["u"].id, 0)})


def test_a_regular_expression() -> None:
    class Rights:
        def allows(self, access: str, topic: str) -> bool:
            return topic != "t-secret"

    rights: Any = Rights()
    it = Clients(**{"t-1": 1, "t-secret": 1, "other-t": 1})
    it.join("a", pattern="t-.*", reader=rights)
    assert {topic for topic, _ in it.has("a")} == {it.topics["t-1"].id}
    it.topics.set("t-2", 1)
    it.beat("a", reader=rights)
    assert {topic for topic, _ in it.has("a")} == {it.topics["t-1"].id, it.topics["t-2"].id}
    for wrong in ("t-(", "(?=a)b", "a" * 5000, "((a{100}){100}){100}"):
        with pytest.raises(InvalidPattern):
            it.beat("a", pattern=wrong, reader=rights)
    it.beat("a", pattern="", topics=frozenset({"other-t"}), reader=rights, owned=it.has("a"))
    it.beat("a", owned=NOWHERE, reader=rights)
    assert {topic for topic, _ in it.has("a")} == {it.topics["other-t"].id}


def test_most_members_choose_the_assignor() -> None:
    it = Clients(t=3)
    it.join("a")
    assert it.group.assignor == "uniform"
    it.join("b", assignor="range")
    assert it.group.assignor == "range"
    with pytest.raises(UnsupportedAssignor, match="uniform, range"):
        it.join("c", assignor="mine")


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"rebalance_timeout_ms": -1}, InvalidBeat),
        ({"owned": None}, InvalidBeat),
        ({"owned": frozenset({(bytes(16), 0)})}, InvalidBeat),
        ({"topics": None}, InvalidBeat),
        ({"topics": frozenset(map(str, range(10_001)))}, InvalidBeat),
    ],
)
def test_what_makes_no_sense(said: dict[str, Any], wrong: type[GroupError]) -> None:
    it = Clients(t=1)
    with pytest.raises(wrong):
        it.join("a", **said)
    assert not it.group.members
    assert (it.group.epoch, it.changes, it.timers.alive) == (0, 0, 0)
    it.join("a")
    for epoch, error in ((-3, InvalidBeat), (LEAVING_FOR_NOW, InvalidBeat)):
        with pytest.raises(error):
            it.beat("a", epoch=epoch)


def test_a_group_is_full() -> None:
    it = Clients(t=1)
    for name in "abcde":
        it.join(name)
    with pytest.raises(GroupFull):
        it.join("f")


def test_commits_are_of_members_in_their_epoch() -> None:
    it = Clients(t=1)
    it.group.check_commit("", None, -1)
    it.join("a")
    it.group.check_commit("a", None, 1)
    for member, epoch, wrong in (
        ("a", 0, StaleEpoch),
        ("a", 2, StaleEpoch),
        ("b", 1, UnknownMember),
        ("", -1, UnknownMember),
    ):
        with pytest.raises(wrong):
            it.group.check_commit(member, None, epoch)
