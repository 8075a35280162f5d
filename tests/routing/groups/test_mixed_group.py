"""Members of both protocols in a group: it is divided by the broker as long as one of them knows of that."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.native.clients.group_bytes import (
    Partition,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from routing.groups.assignors import NOWHERE
from routing.groups.consumer_group import GroupTimes
from routing.groups.consumer_member import JOINING, LEAVING, LEAVING_FOR_NOW, Beat
from routing.groups.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    RebalanceInProgress,
    StaleEpoch,
    UnknownGroup,
    UnknownMember,
)
from routing.groups.group import Group
from routing.groups.membership import Joined, Joining, State, Synced
from routing.groups.mixed_group import MixedGroup
from tests.routing.groups.clock import Timers
from tests.routing.groups.topics import FakeTopics

SESSION_MS, REBALANCE_MS = 10_000, 20_000
ALL = [("t", number) for number in range(4)]


def joining(
    member: str = "", owned: list[Partition] | None = None, *, topics: list[str] | None = None, **said: Any
) -> Joining:
    metadata = encode_subscription(Subscription(topics or ["t"], owned or []))
    instance = said.pop("instance_id", None)
    protocols = [(name, metadata) for name in said.pop("protocols", ["range", "cooperative-sticky"])]
    return Joining(
        member, instance, "c", "/h", SESSION_MS, REBALANCE_MS, said.pop("protocol_type", "consumer"), protocols
    )


class World:
    """A classic group that is stable, with members `one` and `two`, and what it may become."""

    def __init__(self, *, members_max: int = 10) -> None:
        self.timers = Timers()
        self.topics = FakeTopics()
        self.topics.set("t", 4)
        self.times = GroupTimes(members_max=members_max)
        self.changed: list[Any] = []

    def classic(self, **members: list[Partition]) -> tuple[Group, list[str]]:
        group = Group("g", self.timers, initial_delay_ms=0)
        answers: list[Joined] = []
        for _ in members:
            group.join(joining(), answers.append)
        ids = [answers[0].member_id]
        for _ in range(len(members) - 1):
            ids = self._again(group, ids)
        shares = dict(zip(ids, members.values(), strict=True))
        synced: list[Synced] = []
        for member in ids:
            assignments = (
                {one: encode_assignment(share) for one, share in shares.items()} if member == group.leader else {}
            )
            group.sync(member, None, group.generation, None, None, assignments, synced.append)
        assert group.state is State.STABLE
        return group, ids

    def _again(self, group: Group, ids: list[str]) -> list[str]:
        for member in list(group.members):
            if group.members[member].join is None:
                group.join(joining(member), lambda joined: None)
        return list(group.members)

    def mixed(self) -> MixedGroup:
        return MixedGroup("g", self.timers, lambda: self.timers.now_ms, self.topics, self.times, self.changed.append)


def beat(member: str, epoch: int = JOINING, **said: Any) -> Beat:
    if epoch == JOINING:
        said = {"rebalance_timeout_ms": REBALANCE_MS, "topics": frozenset({"t"}), "owned": NOWHERE, **said}
    return Beat(member, epoch, **said)


def numbers(places: Any) -> list[int]:
    return sorted(number for _, number in places or ())


def read(group: MixedGroup, member: str, generation: int) -> list[int]:
    return numbers(decode_assignment(group.sync(member, None, generation).assignment))


def upgraded(**members: list[Partition]) -> tuple[World, MixedGroup, list[str]]:
    world = World()
    before, ids = world.classic(**members)
    group = world.mixed()
    assert group.take_over(before) == []
    return world, group, ids


def test_a_classic_group_goes_on_where_it_was() -> None:
    _, group, (one, two) = upgraded(one=ALL[:2], two=ALL[2:])
    generation = group.epoch
    for member, has in ((one, [0, 1]), (two, [2, 3])):
        group.classic_heartbeat(member, None, generation)
        assert read(group, member, generation) == has
        group.check_commit(member, None, generation)
        with pytest.raises(IllegalGeneration):
            group.check_commit(member, None, generation - 1)
    assert group.state == "Stable"


def test_a_member_that_has_epochs_gets_what_a_cooperative_one_gives_up() -> None:
    _, group, (one, two) = upgraded(one=ALL[:2], two=ALL[2:])
    before = group.epoch
    new = group.heartbeat(beat("new"))
    assert (new.epoch, numbers(new.assignment)) == (before + 1, [])
    shares = {}
    for member, has in ((one, ALL[:2]), (two, ALL[2:])):
        with pytest.raises(RebalanceInProgress):
            group.classic_heartbeat(member, None, before)
        joined = group.join(joining(member, has))
        assert (joined.error, joined.leader, joined.member_id) == (None, "", member)
        shares[member] = (joined.generation, read(group, member, joined.generation))
    giver, (generation, left) = min(shares.items(), key=lambda share: len(share[1][1]))
    (keeper,) = {one, two} - {giver}
    assert sorted(len(share) for _, share in shares.values()) == [1, 2]
    assert generation == before, "it has to give something up first"
    assert shares[keeper][0] == before + 1
    group.classic_heartbeat(keeper, None, before + 1)
    assert numbers(group.heartbeat(beat("new", new.epoch)).assignment) == []
    with pytest.raises(RebalanceInProgress):
        group.classic_heartbeat(giver, None, before)
    joined = group.join(joining(giver, [("t", number) for number in left]))
    assert joined.generation == before + 1
    assert read(group, giver, joined.generation) == left
    told = numbers(group.heartbeat(beat("new", new.epoch)).assignment)
    assert sorted(told + left + shares[keeper][1]) == [0, 1, 2, 3]
    assert group.state == "Stable"


def test_an_eager_member_has_given_all_up_when_it_joins() -> None:
    _, group, (one, two) = upgraded(one=ALL[:2], two=ALL[2:])
    group.heartbeat(beat("new"))
    epoch = group.epoch
    shares = [read(group, member, group.join(joining(member)).generation) for member in (one, two)]
    told = numbers(group.heartbeat(beat("new", epoch)).assignment)
    assert sorted([*shares[0], *shares[1], *told]) == [0, 1, 2, 3]
    assert sorted(map(len, [*shares, told])) == [1, 1, 2]


def test_a_classic_member_hears_when_what_it_waits_for_is_free() -> None:
    world = World()
    group = world.mixed()
    first = group.heartbeat(beat("new"))
    assert numbers(first.assignment) == [0, 1, 2, 3]
    joined = group.join(joining())
    me, generation = joined.member_id, joined.generation
    assert read(group, me, generation) == []
    group.classic_heartbeat(me, None, generation)  # nothing is free
    has = group.heartbeat(beat("new", first.epoch)).assignment
    group.classic_heartbeat(me, None, generation)
    group.heartbeat(beat("new", first.epoch, owned=has))
    with pytest.raises(RebalanceInProgress):
        group.classic_heartbeat(me, None, generation)
    assert len(read(group, me, group.join(joining(me)).generation)) == 2
    group.classic_heartbeat(me, None, generation)


def test_who_does_not_join_again_in_time_is_out() -> None:
    world, group, (one, two) = upgraded(one=ALL[:2], two=ALL[2:])
    generation = group.epoch
    group.heartbeat(beat("new"))
    for _ in range(REBALANCE_MS // 1000):
        for member in (one, two):
            with pytest.raises(RebalanceInProgress):
                group.classic_heartbeat(member, None, generation)
        group.heartbeat(beat("new", group.members["new"].epoch))
        world.timers.pass_ms(1000)
    for member in (one, two):
        with pytest.raises(UnknownMember):
            group.classic_heartbeat(member, None, generation)
    assert numbers(group.heartbeat(beat("new", group.members["new"].epoch)).assignment) == [0, 1, 2, 3]
    joined = group.join(joining())
    world.timers.pass_ms(SESSION_MS)
    with pytest.raises(UnknownMember):
        group.classic_heartbeat(joined.member_id, None, joined.generation)


def test_a_static_member_has_what_it_had_by_the_other_protocol() -> None:
    world = World()
    group = world.mixed()
    group.heartbeat(beat("new"))
    old = group.join(joining(instance_id="i"))
    has = group.heartbeat(
        beat("new", group.members["new"].epoch, owned=frozenset(group.members["new"].assigned))
    ).assignment
    group.heartbeat(beat("new", group.members["new"].epoch, owned=has))
    old = group.join(joining(old.member_id, instance_id="i"))
    share = numbers(group.members[old.member_id].assigned)
    assert len(share) == 2
    epoch = group.epoch
    now = group.heartbeat(beat("now", instance_id="i"))
    assert (now.epoch, numbers(now.assignment), group.epoch) == (epoch, share, epoch)
    with pytest.raises(FencedInstance):
        group.classic_heartbeat(old.member_id, "i", old.generation)
    again = group.join(joining(instance_id="i"))
    assert (again.generation, numbers(group.members[again.member_id].assigned), group.epoch) == (epoch, share, epoch)
    with pytest.raises(FencedInstance):
        group.heartbeat(beat("now", now.epoch, instance_id="i"))


def test_a_classic_member_that_comes_by_the_other_protocol_owes_nothing_more() -> None:
    world, group, (one, _) = upgraded(one=ALL[:2], two=ALL[2:])
    group.heartbeat(beat("new"))
    group.join(joining(one, ALL[:2]))
    now = group.heartbeat(beat(one))
    for _ in range(REBALANCE_MS // 1000 + 1):
        world.timers.pass_ms(1000)
        now = group.heartbeat(beat(one, now.epoch, owned=group.members[one].assigned))
    assert group.has_epochs(one)


def test_a_classic_member_does_not_go_by_an_epoch() -> None:
    _, group, _ = upgraded(one=ALL[:2], two=ALL[2:])
    static = group.join(joining(instance_id="i"))
    for epoch in (LEAVING, LEAVING_FOR_NOW):
        with pytest.raises(UnknownMember):
            group.heartbeat(beat(static.member_id, epoch, instance_id="i"))
    assert group.members[static.member_id].epoch == static.generation


@pytest.mark.parametrize("was_classic", [True, False])
def test_a_member_that_becomes_a_static_one_leaves_what_it_had_to_others(was_classic: bool) -> None:
    group = World().mixed()
    group.heartbeat(beat("one"))
    if was_classic:
        group.join(joining(instance_id="i", topics=["other"]))
    else:
        gone = group.heartbeat(beat("static", instance_id="i", topics=frozenset({"other"})))
        group.heartbeat(beat("static", LEAVING_FOR_NOW, instance_id="i"))
        assert numbers(gone.assignment) == []
    group.heartbeat(beat("one", instance_id="i", topics=frozenset({"other"})))
    assert (list(group.members), group.members["one"].instance_id) == (["one"], "i")
    assert numbers(group.heartbeat(beat("two")).assignment) == [0, 1, 2, 3]


def test_a_static_classic_member_stays_one_whatever_it_says_when_it_joins_again() -> None:
    world = World()
    group = world.mixed()
    group.heartbeat(beat("new"))
    one = group.join(joining(instance_id="i")).member_id
    group.heartbeat(beat("new", LEAVING))
    group.join(joining(one))
    after = Group("g", world.timers)
    group.hand_over(after)
    assert [member.joining.instance_id for member in after.members.values()] == ["i"]


def test_a_static_member_may_come_back_with_other_ways_to_divide() -> None:
    group = World().mixed()
    group.heartbeat(beat("new"))
    group.join(joining(instance_id="i", protocols=["range"]))
    again = group.join(joining(instance_id="i", protocols=["cooperative-sticky"]))
    assert again.protocol == "cooperative-sticky"
    with pytest.raises(InconsistentProtocol):
        group.join(joining(protocols=["range"]))


def test_each_kind_is_asked_in_its_own_way() -> None:
    world = World(members_max=3)
    group = world.mixed()
    new = group.heartbeat(beat("new"))
    old = group.join(joining())
    for refused in (
        joining(protocol_type="connect"), joining(protocols=["other"]), joining(protocols=[]),
        joining()._replace(protocols=[("range", b"wants")]),
    ):  # fmt: skip
        with pytest.raises(InconsistentProtocol):
            group.join(refused)
    with pytest.raises(UnknownMember):
        group.join(joining("new"))
    with pytest.raises(UnknownMember):
        group.join(joining("nobody"))
    with pytest.raises(UnknownMember):
        group.classic_heartbeat("new", None, new.epoch)
    with pytest.raises(UnknownMember):
        group.sync("new", None, new.epoch)
    with pytest.raises(UnknownMember):
        group.heartbeat(beat(old.member_id, old.generation))
    with pytest.raises(StaleEpoch):
        group.check_commit("new", None, 7)
    assert [group.has_epochs(member) for member in ("new", old.member_id, "nobody")] == [True, False, False]
    group.join(joining())
    with pytest.raises(GroupFull):
        group.join(joining())
    group.heartbeat(beat("new", LEAVING))
    assert not group.is_for_members, "one is behind"
    group.join(joining(old.member_id))
    assert not group.is_for_members, "now the other one is"
    for member in [*group.members]:
        group.join(joining(member))
    assert group.is_for_members


def test_the_members_divide_it_when_the_last_that_knows_epochs_has_gone() -> None:
    world, group, (one, two) = upgraded(one=ALL[:2], two=ALL[2:])
    group.heartbeat(beat("new"))
    generation = group.join(joining(one)).generation
    assert group.join(joining(two)).generation == generation
    held = {member: numbers(group.members[member].assigned) for member in (one, two)}
    assert not group.is_for_members
    group.heartbeat(beat("new", LEAVING))
    assert group.is_for_members
    after = Group("g", world.timers)
    group.hand_over(after)
    assert (after.generation, after.state, after.leader) == (generation, State.PREPARING, one)
    assert {member: numbers(decode_assignment(found.assignment)) for member, found in after.members.items()} == held
    assert (set(after.touched), after.head_touched) == ({one, two, "new"}, True)
    answers: list[Joined] = []
    for member in (one, two):
        after.check_commit(member, None, generation)
        with pytest.raises(RebalanceInProgress):
            after.heartbeat(member, None, generation)
        after.join(joining(member), answers.append)
    assert [(joined.generation, joined.leader, len(joined.members)) for joined in answers] == [
        (generation + 1, one, 2), (generation + 1, one, 0),
    ]  # fmt: skip
    assert world.timers.alive == 3, "two sessions, and until when both have asked what they read"


def test_who_waits_for_a_generation_is_answered_by_the_broker() -> None:
    world = World()
    before, (one, two) = world.classic(one=ALL[:2], two=ALL[2:])
    answers: list[Joined] = []
    before.join(joining(one), answers.append)
    assert before.state is State.PREPARING
    group = world.mixed()
    ((waiting, answer),) = group.take_over(before)
    assert (waiting.member_id, answers) == (one, [])
    group.heartbeat(beat("new"))
    answer(group.join(waiting))
    assert [(joined.error, joined.generation) for joined in answers] == [(None, group.epoch)]
    with pytest.raises(RebalanceInProgress):
        group.classic_heartbeat(two, None, before.generation)


def test_who_waits_for_the_leader_joins_again() -> None:
    world = World()
    before, (one, two) = world.classic(one=ALL[:2], two=ALL[2:])
    for member in (one, two):
        before.join(joining(member), lambda joined: None)
    assert before.state is State.COMPLETING
    synced: list[Synced] = []
    before.sync(two, None, before.generation, None, None, {}, synced.append)
    group = world.mixed()
    assert group.take_over(before) == []
    assert [type(one.error) for one in synced] == [RebalanceInProgress]
    assert read(group, two, before.generation) == [2, 3]


@pytest.mark.parametrize("what", ["protocol type", "subscription", "assignment", "user data", "twice"])
def test_a_group_of_other_bytes_stays_as_it_is(what: str) -> None:
    world = World()
    group, (one, _) = world.classic(one=ALL[:2], two=ALL[2:])
    if what == "protocol type":
        group.protocol_type = "connect"
    elif what == "subscription":
        group.members[one].joining = joining()._replace(protocols=[("range", b"wants")])
    elif what == "assignment":
        group.members[one].assignment = b"everything"
    elif what == "twice":
        group.members[one].assignment = encode_assignment(ALL)
    else:
        group.members[one].assignment = encode_assignment(ALL)[:-4] + b"\0\0\0\1s"
    with pytest.raises(UnknownGroup, match="Cannot upgrade classic group g"):
        world.mixed().take_over(group)
    group.heartbeat(one, None, group.generation)
