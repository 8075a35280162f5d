"""Members of the classic protocol in a group that the broker divides, so that its programs may be restarted one by
one, by the new protocol or by the old one, and the others go on reading (KIP-848, online migration).

1. A group of the classic kind becomes one that the broker divides when the first member comes that knows of that, and
   is a classic one again when the last of these has gone, and the others are in one generation (`coordinator.py`).
   Who has what stays.
2. To a classic member its epoch is the generation. It says what it wants and has when it joins, is answered at once,
   and asks (`sync`) what it may read: the broker's word, as if a leader's.
3. It cannot be told by itself. It hears with a heartbeat that the group is divided anew, and joins again: when the
   group has another epoch, when it has something to give up, when something is free that was to be its. Who does not
   in its rebalance timeout is out.
4. A static member (`instance_id`) that comes back by the other protocol is the same one, and has what it had.

https://cwiki.apache.org/confluence/display/KAFKA/KIP-848
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from routing.groups.assigned import PROTOCOL_TYPE, NotConsumers, assigned_alone, packed, subscription
from routing.groups.assignors import NOWHERE, Place, Places
from routing.groups.consumer_group import ConsumerGroup
from routing.groups.consumer_member import JOINING, Beat, ConsumerMember, Step
from routing.groups.errors import (
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    RebalanceInProgress,
    StaleEpoch,
    UnknownGroup,
    UnknownMember,
)
from routing.groups.group import Group
from routing.groups.membership import Joined, Joining, Member, Synced, new_id
from routing.topics.offset_store import Partition


class MixedGroup(ConsumerGroup):
    """See the module."""

    # ---- what classic members say

    def join(self, joining: Joining) -> Joined:
        """A classic member comes, or comes again. Raises GroupError; then nothing has changed."""
        beat = self._understood(joining)
        count = len(self.members)
        member = self._classic_joining(joining)
        before, member.classic = member.classic, joining._replace(member_id=member.id, instance_id=member.instance_id)
        if before != member.classic:
            self._touch(member.id)
        self._take(member, beat, is_new=len(self.members) > count)
        self._expect(member)
        return Joined(None, member.epoch, joining.protocols[0][0], member_id=member.id)

    def _understood(self, joining: Joining) -> Beat:
        """What a classic member says, in the broker's words. Raises InconsistentProtocol."""
        others = [
            one.classic
            for one in self.members.values()
            if one.classic is not None
            and one.id != joining.member_id
            and (one.instance_id is None or one.instance_id != joining.instance_id)
        ]
        common = {name for name, _ in joining.protocols}.intersection(
            *({name for name, _ in one.protocols} for one in others)
        )
        if joining.protocol_type != PROTOCOL_TYPE or not common:
            raise InconsistentProtocol(f"the members of group '{self.name}' have no way to divide partitions in common")
        try:
            wants = subscription(joining.protocols[0][1])
        except NotConsumers as error:
            raise InconsistentProtocol(f"what the member wants is no subscription: {error}") from None
        return Beat(
            joining.member_id, JOINING, joining.instance_id, None, joining.client_id, joining.client_host,
            joining.rebalance_timeout_ms, wants.topics, pattern="", owned=self._places(wants.owned),
        )  # fmt: skip

    def _classic_joining(self, joining: Joining) -> ConsumerMember:
        member_id, instance_id = joining.member_id, joining.instance_id
        if not member_id:
            before = self._instances.get(instance_id or "", "")
            member_id = new_id(joining, before, self._wall_clock_ms())
            return self._replace(self.members[before], member_id) if before else self._add(member_id, instance_id)
        return self._classic(member_id, instance_id)

    def _classic(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Raises UnknownMember, FencedInstance."""
        member = self.member(member_id, instance_id)
        if member.classic is None:
            raise UnknownMember(f"member '{member_id}' has epochs, and no generations")
        return member

    def _current_classic(self, member_id: str, instance_id: str | None, generation: int) -> ConsumerMember:
        """Raises IllegalGeneration as well."""
        member = self._classic(member_id, instance_id)
        if member.epoch != generation:
            raise IllegalGeneration(f"member '{member_id}' is in generation {member.epoch}")
        return member

    def sync(self, member_id: str, instance_id: str | None, generation: int) -> Synced:
        """A classic member asks what it reads. Raises GroupError."""
        member = self._current_classic(member_id, instance_id, generation)
        self._heard_of(member)
        if member.epoch < self.epoch and member.step is not Step.REVOKING:
            raise RebalanceInProgress("the group is divided anew")
        self._forget_due(member)
        assert member.classic is not None
        protocol, metadata = member.classic.protocols[0]
        return Synced(None, packed(self._named(member.assigned), metadata), protocol)

    def classic_heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """A classic member is there. Raises GroupError."""
        member = self._current_classic(member_id, instance_id, generation)
        self._heard_of(member)
        if member.epoch < self.epoch or member.step is Step.REVOKING or self._has_free(member):
            if member.due is None:
                self._expect(member)
            raise RebalanceInProgress("the group is divided anew")

    def _has_free(self, member: ConsumerMember) -> bool:
        """Whether something that it waits for is nobody's any more."""
        if member.step is not Step.UNRELEASED or member.looked == self._releases:
            return False
        wanted = self.target.get(member.id, NOWHERE) - member.assigned
        return any(place not in self._owners for place in wanted)

    def _expect(self, member: ConsumerMember) -> None:
        """Rule 3: what a member has to do next it does in time."""
        self._forget_due(member)
        member.due = self._timer(member.rebalance_timeout_ms, lambda: self._not_done(member))

    def _forget_due(self, member: ConsumerMember) -> None:
        if member.due is not None:
            member.due.cancel()
            member.due = None

    def _not_done(self, member: ConsumerMember) -> None:
        member.due = None
        if self.members.get(member.id) is member:
            self._drop(member)

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, partitions: Collection[Partition] = ()
    ) -> None:
        """See `ConsumerGroup`."""
        try:
            super().check_commit(member_id, instance_id, epoch, partitions)
        except StaleEpoch as error:
            if self.has_epochs(member_id):
                raise
            raise IllegalGeneration(str(error)) from None
        member = self.members.get(member_id)
        if member is not None and member.classic is not None:
            self._heard_of(member)

    def has_epochs(self, member_id: str) -> bool:
        """Whether this is a member, and no classic one."""
        member = self.members.get(member_id)
        return member is not None and member.classic is None

    @property
    def is_for_members(self) -> bool:
        """Whether the members may divide it by themselves: all are classic, and have come to the same generation."""
        members = self.members.values()
        return all(one.classic is not None for one in members) and len({one.epoch for one in members}) == 1

    def _named(self, places: Places) -> list[Partition]:
        by_id = self._topics.by_id
        return [(by_id[topic].name, number) for topic, number in places if topic in by_id]

    # ---- rule 1

    def take_over(self, before: Group) -> list[tuple[Joining, Callable[[Joined], None]]]:
        """Begin with the members of a classic group, of which nothing is left; who waits to be in its next generation.
        Raises UnknownGroup, GroupFull; then nothing has changed.
        """
        if len(before.members) >= self._times.members_max:
            raise GroupFull(f"group '{self.name}' has {self._times.members_max} members")
        try:
            if before.protocol_type != PROTOCOL_TYPE:
                raise NotConsumers(f"its members are of the protocol type {before.protocol_type}")
            members = [self._of_classic(member, before.generation) for member in before.members.values()]
            self._note_what_is_given_up(members)
        except NotConsumers as error:
            raise UnknownGroup(f"Cannot upgrade classic group {self.name} to consumer group: {error}.") from None
        waiting = before.let_go()
        self.epoch = self.assignment_epoch = before.generation
        for member in members:
            self.members[member.id] = member
            self.target[member.id] = member.assigned
        self.touched.update(before.touched)
        for member in members:
            self._touch(member.id)
        self._touch_head()
        self._settle_in()
        return waiting

    def _of_classic(self, member: Member, generation: int) -> ConsumerMember:
        joining = member.joining._replace(member_id=member.id)
        found = ConsumerMember(member.id, joining.instance_id)
        found.classic = joining
        found.client_id, found.client_host = joining.client_id, joining.client_host
        found.rebalance_timeout_ms = joining.rebalance_timeout_ms
        found.topics = subscription(joining.protocols[0][1]).topics
        found.epoch = found.previous_epoch = generation
        found.assigned = self._places(assigned_alone(member.assignment))
        return found

    def _note_what_is_given_up(self, members: Collection[ConsumerMember]) -> None:
        """A cooperative member has what it said that it has until it joins without it. Nobody else was given that.
        Raises NotConsumers.
        """
        taken = set[Place]()
        for member in members:
            if not taken.isdisjoint(member.assigned):
                raise NotConsumers("two of its members read the same partition")
            taken |= member.assigned
        for member in members:
            assert member.classic is not None
            left = self._places(subscription(member.classic.protocols[0][1]).owned) - taken
            if left:
                member.step, member.revoking = Step.REVOKING, left
                taken |= left

    def hand_over(self, after: Group) -> None:
        """Have a new classic group begin with the members, of which nothing is left here (`is_for_members`)."""
        members: list[Member] = []
        for one in self.members.values():
            assert one.classic is not None
            member = Member(one.id, one.classic)
            member.assignment = packed(self._named(one.held), one.classic.protocols[0][1])
            members.append(member)
        (generation,) = {one.epoch for one in self.members.values()}
        self.close(UnknownMember("the members divide the group by themselves"))
        after.begin_with(members, generation, PROTOCOL_TYPE)
        after.touched.update(self.touched)
