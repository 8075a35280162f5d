"""A consumer group, step by step and at random, on a clock that a test turns."""

from __future__ import annotations

import random
from typing import Any

import pytest

from routing.groups.errors import (
    FencedInstance,
    GroupError,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMember,
)
from routing.groups.group import Group
from routing.groups.membership import Joined, Joining, State, Synced
from tests.routing.groups.clock import Timers

SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 30_000, 3_000


class Client:
    """A member, as far as its client knows."""

    def __init__(self, group: Group, name: str = "c", *, instance: str | None = None, protocols: Any = None) -> None:
        self.group = group
        self.name = name
        self.instance = instance
        self.protocols = protocols or [("range", name.encode())]
        self.id = ""
        self.joined: list[Joined] = []
        self.synced: list[Synced] = []
        self.asked = -1
        """The generation in which it has asked what it reads."""

    def join(self, *, must_have_id: bool = False, kind: str = "consumer") -> Client:
        def answer(joined: Joined) -> None:
            self.joined.append(joined)
            self.id = joined.member_id

        self.group.join(
            Joining(
                self.id, self.instance, self.name, "/host", SESSION_MS, REBALANCE_MS, kind, self.protocols, must_have_id
            ),
            answer,
        )
        return self

    def sync(self, assignments: dict[str, bytes] | None = None, *, generation: int | None = None) -> Client:
        number = self.last.generation if generation is None else generation
        self.group.sync(self.id, self.instance, number, "consumer", None, assignments or {}, self.synced.append)
        return self

    def heartbeat(self) -> None:
        self.group.heartbeat(self.id, self.instance, self.last.generation)

    @property
    def last(self) -> Joined:
        return self.joined[-1]

    @property
    def leads(self) -> bool:
        return self.last.leader == self.id

    @property
    def wrong(self) -> type[GroupError] | None:
        return type(self.last.error) if self.last.error is not None else None


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def group(timers: Timers) -> Group:
    return Group("g", timers, initial_delay_ms=DELAY_MS)


def settled(group: Group, timers: Timers, *clients: Client) -> None:
    """All join and are told what they read: their own names."""
    for client in clients:
        client.join()
    timers.pass_ms(REBALANCE_MS if group.generation == 0 and len(clients) > 9 else DELAY_MS)
    share(*clients)
    assert group.state is State.STABLE


def share(*clients: Client) -> None:
    for client in clients:
        client.sync({one.id: one.name.encode() for one in clients} if client.leads else None)


def test_members_that_come_together_are_one_generation(group: Group, timers: Timers) -> None:
    one, two, three = (Client(group, name).join() for name in "abc")
    timers.pass_ms(DELAY_MS - 1)
    assert (one.joined, group.state) == ([], State.PREPARING)
    timers.pass_ms(1)
    assert [client.last.generation for client in (one, two, three)] == [1, 1, 1]
    assert {client.last.leader for client in (one, two, three)} == {one.id}
    assert one.last.members == [(client.id, None, client.name.encode()) for client in (one, two, three)]
    assert two.last.members == []
    two.sync()
    assert (two.synced, group.state) == ([], State.COMPLETING)
    one.sync({one.id: b"1", two.id: b"2"})
    three.sync()
    assert [client.synced[-1].assignment for client in (one, two, three)] == [b"1", b"2", b""]
    assert (group.state, group.generation) == (State.STABLE, 1)


def test_each_that_comes_in_time_has_the_group_wait_a_little_longer_but_not_for_ever(
    group: Group, timers: Timers
) -> None:
    first = Client(group).join()
    for _ in range(12):
        timers.pass_ms(DELAY_MS - 1)
        if first.joined:
            break
        Client(group).join()
    assert REBALANCE_MS - DELAY_MS < timers.now_ms <= REBALANCE_MS + DELAY_MS


def test_a_new_member_has_all_others_join_again(group: Group, timers: Timers) -> None:
    one, two = Client(group, "a"), Client(group, "b")
    settled(group, timers, one)
    two.join()
    with pytest.raises(RebalanceInProgress):
        one.heartbeat()
    assert two.joined == []
    one.join()
    assert (one.last.generation, two.last.generation) == (2, 2)
    share(one, two)
    assert two.synced[-1].assignment == b"b"


def test_who_does_not_come_again_in_time_is_out(group: Group, timers: Timers) -> None:
    one, two = Client(group, "a"), Client(group, "b")
    settled(group, timers, one, two)
    three = Client(group, "c").join()
    one.join()
    for _ in range(4):
        timers.pass_ms(REBALANCE_MS // 4 - 1)
        with pytest.raises((RebalanceInProgress, UnknownMember)):
            two.heartbeat()
    assert three.joined == []
    timers.pass_ms(4)
    assert [client.last.generation for client in (one, three)] == [2, 2]
    with pytest.raises(UnknownMember):
        two.heartbeat()


def test_who_is_silent_is_out(group: Group, timers: Timers) -> None:
    one, two = Client(group, "a"), Client(group, "b")
    settled(group, timers, one, two)
    timers.pass_ms(SESSION_MS - 1)
    two.heartbeat()
    timers.pass_ms(1)
    with pytest.raises(RebalanceInProgress):
        two.heartbeat()
    two.join()
    assert (two.last.generation, two.leads) == (2, True)


def test_who_goes_is_out_at_once_and_the_last_leaves_the_group_empty(group: Group, timers: Timers) -> None:
    one, two = Client(group, "a"), Client(group, "b")
    settled(group, timers, one, two)
    group.leave(one.id, None)
    two.join()
    assert (two.last.generation, two.leads, two.last.members) == (2, True, [(two.id, None, b"b")])
    group.leave(two.id, None)
    assert (group.state, group.members) == (State.EMPTY, {})
    timers.pass_ms(REBALANCE_MS)
    assert timers.alive == 0
    with pytest.raises(UnknownMember):
        group.leave(two.id, None)


def test_a_leader_that_says_nothing_is_out(group: Group, timers: Timers) -> None:
    one, two = Client(group, "a").join(), Client(group, "b").join()
    timers.pass_ms(DELAY_MS)
    two.sync()
    timers.pass_ms(SESSION_MS)
    assert isinstance(two.synced[-1].error, RebalanceInProgress)
    assert one.id not in group.members
    two.join()
    assert (two.last.generation, two.leads) == (2, True)


def test_an_answer_that_was_lost_is_given_again(group: Group, timers: Timers) -> None:
    one, two = Client(group, "a").join(), Client(group, "b").join()
    timers.pass_ms(DELAY_MS)
    again = two.join().last
    assert (again.error, again.generation, group.state) == (None, 1, State.COMPLETING)
    share(one, two)
    assert two.join().last.generation == 1, "a follower that wants the same divides nothing anew"
    assert two.sync().synced[-1].assignment == b"b"
    two.protocols = [("range", b"more")]
    two.join()
    assert group.state is State.PREPARING
    one.join()
    assert one.last.generation == 2
    share(one, two)
    one.join()
    assert group.state is State.PREPARING, "the leader says that something is to be divided anew"


def test_a_member_may_have_to_take_its_id_first(group: Group, timers: Timers) -> None:
    one = Client(group).join(must_have_id=True)
    assert one.wrong is MemberIdRequired
    assert one.id
    assert group.members == {}
    one.join(must_have_id=True)
    timers.pass_ms(DELAY_MS)
    assert one.last.generation == 1
    two = Client(group).join(must_have_id=True)
    timers.pass_ms(SESSION_MS)
    assert two.join().wrong is UnknownMember, "it was not taken in time"


def test_who_gives_back_an_id_that_it_has_not_joined_with_stops_nobody(group: Group, timers: Timers) -> None:
    a = Client(group, "a")
    settled(group, timers, a)
    b = Client(group, "b").join(must_have_id=True)
    group.leave(b.id, None)
    assert group.state is State.STABLE
    a.heartbeat()
    assert b.join().wrong is UnknownMember


def test_wrong_members_and_generations_are_told(group: Group, timers: Timers) -> None:
    one = Client(group, "a")
    settled(group, timers, one)
    stranger = Client(group)
    stranger.id = "nobody"
    assert stranger.join().wrong is UnknownMember
    assert isinstance(one.sync(generation=7).synced[-1].error, IllegalGeneration)
    with pytest.raises(IllegalGeneration):
        group.heartbeat(one.id, None, 0)
    with pytest.raises(IllegalGeneration):
        group.check_commit(one.id, None, 2)
    with pytest.raises(UnknownMember):
        group.check_commit("nobody", None, 1)
    with pytest.raises(UnknownMember):
        group.check_commit("", None, -1)
    group.check_commit(one.id, None, 1)
    group.leave(one.id, None)
    group.check_commit("", None, -1)


def test_who_cannot_divide_as_the_others_is_refused(group: Group, timers: Timers) -> None:
    one = Client(group, "a", protocols=[("range", b""), ("sticky", b"")])
    settled(group, timers, one)
    assert Client(group, protocols=[("other", b"")]).join().wrong is InconsistentProtocol
    assert Client(group).join(kind="connect").wrong is InconsistentProtocol
    two, three = (Client(group, protocols=[("sticky", b"2"), ("range", b"1")]) for _ in range(2))
    two.join()
    three.join()
    one.join()
    assert {client.last.protocol for client in (one, two, three)} == {"sticky"}, "what most prefer"
    assert [metadata for _, _, metadata in one.last.members] == [b"", b"2", b"2"]


def test_members_may_change_to_another_way_one_by_one(group: Group, timers: Timers) -> None:
    clients = [Client(group, f"c{number}") for number in range(3)]
    settled(group, timers, *clients)
    late = Client(group, protocols=[("sticky", b"")])
    assert late.join().wrong is InconsistentProtocol
    for client in clients:
        client.protocols = [("sticky", b""), ("range", b"")]
        assert late.join().wrong is InconsistentProtocol
        client.join()
    for client in (late, *clients):
        client.join()
    assert {client.last.protocol for client in (*clients, late)} == {"sticky"}
    assert Client(group).join().wrong is InconsistentProtocol


def test_who_joins_does_not_have_all_others_looked_at(timers: Timers, monkeypatch: pytest.MonkeyPatch) -> None:
    group, looked = Group("g", timers, initial_delay_ms=DELAY_MS), 0

    def ways(joining: Joining) -> set[str]:
        nonlocal looked
        looked += 1
        return {name for name, _ in joining.protocols}

    monkeypatch.setattr("routing.groups.agreement._ways", ways)
    for number in range(200):
        Client(group, f"c{number}").join()
    assert looked <= 3 * 200


def test_a_group_has_so_many_members(timers: Timers) -> None:
    group = Group("g", timers, initial_delay_ms=0, members_max=2)
    Client(group).join()
    assert Client(group).join(must_have_id=True).wrong is MemberIdRequired
    assert Client(group).join().wrong is GroupFull


def test_without_a_delay_the_first_is_a_generation(timers: Timers) -> None:
    group = Group("g", timers, initial_delay_ms=0)
    assert Client(group).join().last.generation == 1


# Static members


def test_a_static_member_that_comes_back_divides_nothing_anew(group: Group, timers: Timers) -> None:
    one, two = Client(group, "a", instance="i1"), Client(group, "b", instance="i2")
    settled(group, timers, one, two)
    again = Client(group, "b", instance="i2").join()
    assert (again.last.error, again.last.generation, group.state) == (None, 1, State.STABLE)
    assert again.id != two.id
    assert again.sync().synced[-1].assignment == b"b"
    with pytest.raises(FencedInstance):
        two.heartbeat()
    assert two.join().wrong is FencedInstance
    leader = Client(group, "a", instance="i1").join()
    assert (leader.last.leader, leader.last.skip_assignment) == (one.id, True)
    assert [wants for _, *wants in leader.last.members] == [["i1", b"a"], ["i2", b"b"]]
    assert leader.sync().synced[-1].assignment == b"a"
    more = Client(group, "a", instance="i1", protocols=[("range", b"more")]).join()
    assert group.state is State.PREPARING
    again.join()
    assert (more.last.generation, more.leads) == (2, True)


def test_a_static_member_that_does_not_come_back_is_out_in_the_end(group: Group, timers: Timers) -> None:
    one, two = Client(group, "a", instance="i1"), Client(group, "b", instance="i2")
    settled(group, timers, one, two)
    for _ in range(2):
        timers.pass_ms(SESSION_MS - 1)
        try:
            one.heartbeat()
        except RebalanceInProgress:
            one.join()
    assert (one.last.generation, set(group.members)) == (2, {one.id})


def test_no_generation_begins_while_static_members_are_away_however_short_a_time_they_want(
    group: Group, timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.routing.groups.test_group.REBALANCE_MS", 1)
    one = Client(group, "a", instance="one").join()
    timers.pass_ms(DELAY_MS)
    one.sync({one.id: b"all"})
    before = one.last.generation
    Client(group, "b").join()
    (other,) = set(group.members) - {one.id}
    group.leave(other, None)
    for _ in range(5):
        timers.pass_ms(1000)
        with pytest.raises(RebalanceInProgress):
            one.heartbeat()
    assert (group.generation, timers.alive) == (before, 2), "its session, and when it is looked again"
    one.join()
    assert (one.wrong, one.last.generation) == (None, before + 1)


def test_a_static_member_that_joins_again_without_saying_so_is_one(group: Group, timers: Timers) -> None:
    one = Client(group, "a", instance="i1")
    settled(group, timers, one)
    one.instance = None
    one.join()
    group.leave(one.id, None)
    again = Client(group, "a", instance="i1").join()
    timers.pass_ms(DELAY_MS)
    assert (again.wrong, list(group.members)) == (None, [again.id])


def test_a_static_member_waits_only_once(group: Group, timers: Timers) -> None:
    one = Client(group, "a", instance="i1").join()
    again = Client(group, "a", instance="i1").join()
    assert one.wrong is FencedInstance
    timers.pass_ms(DELAY_MS)
    assert again.last.generation == 1
    group.leave("", "i1")
    assert group.state is State.EMPTY


def test_whoever_waits_is_told_when_the_group_goes_elsewhere(group: Group, timers: Timers) -> None:
    one = Client(group).join()
    Client(group).join(must_have_id=True)
    group.close(NotCoordinator("elsewhere"))
    assert one.wrong is NotCoordinator
    timers.pass_ms(REBALANCE_MS)
    assert timers.alive == 0


# At random


@pytest.mark.parametrize("seed", range(60))
def test_no_generation_has_two_leaders_and_nobody_waits_for_ever(seed: int) -> None:
    dice, timers = random.Random(seed), Timers()
    group = Group("g", timers, initial_delay_ms=dice.choice((0, DELAY_MS)))
    clients: list[Client] = []
    leaders: dict[int, str] = {}
    before = 0
    for step in range(400):
        what = dice.random()
        if what < 0.1 and len(clients) < 6:
            instance = f"i{step}" if dice.random() < 0.3 else None
            clients.append(Client(group, f"c{step}", instance=instance).join(must_have_id=dice.random() < 0.5))
        elif what < 0.14 and clients:
            clients.pop(dice.randrange(len(clients)))  # killed
        elif what < 0.17 and clients:
            gone = clients.pop(dice.randrange(len(clients)))
            try:
                group.leave(gone.id, gone.instance)
            except GroupError:
                pass
        elif what < 0.2 and clients:
            static = [client for client in clients if client.instance is not None]
            if static:
                old = dice.choice(static)
                clients[clients.index(old)] = Client(group, old.name, instance=old.instance).join()
        else:
            timers.pass_ms(dice.randrange(1, 2000))
        for client in clients:
            act(client, dice)
        assert group.generation >= before
        before = group.generation
        for client in clients:
            for joined in client.joined:
                if joined.error is None and joined.leader == joined.member_id:
                    assert leaders.setdefault(joined.generation, joined.member_id) == joined.member_id
    for _ in range(60):
        timers.pass_ms(1500)
        for client in clients:
            act(client, dice)
    if clients:
        assert group.state is State.STABLE
        assert {client.id for client in clients} == set(group.members)
        assert {client.synced[-1].assignment for client in clients} == {client.name.encode() for client in clients}
    else:
        assert group.state is State.EMPTY


def act(client: Client, dice: random.Random) -> None:
    """What a client does by itself: join where it is told to, ask what it reads, show that it is there."""
    if not client.joined:
        return
    if client.last.error is not None:
        if not isinstance(client.last.error, MemberIdRequired):
            client.id = ""
        told = client.joined.copy()
        client.joined.clear()
        client.join()
        client.joined[:0] = [one for one in told if one.error is None] if client.joined else []
        return
    if client.asked != client.last.generation:
        client.asked = client.last.generation
        client.sync({member_id: metadata for member_id, _, metadata in client.last.members})
    try:
        client.heartbeat()
    except GroupError as error:
        rejoin(client, error)


def rejoin(client: Client, error: GroupError) -> None:
    if not isinstance(error, RebalanceInProgress):
        client.id = ""
    waiting = client.group.members.get(client.id)
    if waiting is None or waiting.join is None:
        client.joined.clear()
        client.asked = -1
        client.join()
