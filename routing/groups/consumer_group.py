"""One consumer group that the broker divides (KIP-848): members say what they want and have, and hear what to read.

1. The group's epoch rises when a member comes, goes, or wants other topics, and when these change; with the next word
   of any member it is divided anew (`assignors.py`), and each goes to its target by itself (`consumer_member.py`). The
   others read on meanwhile. A large group is divided for all who come within some milliseconds at once; until then a
   new member has nothing, as with Kafka 4.3 (KIP-1263).
2. A partition has one owner at a time (`owners`): it is the next one's when the one before has said that it reads it no
   more, or is out: not heard of for the session's time, or not done revoking in its rebalance time.
3. A heartbeat with nothing new costs no more than a few comparisons, however many partitions there are.
4. A static member that leaves for now keeps its partitions until its session is over; who comes back has them.
5. Nothing is awaited, time is a parameter. What is to be kept of a change is named in `touched` (`records.py`); the
   coordinator answers when that is safe.

https://cwiki.apache.org/confluence/display/KAFKA/KIP-848
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from routing.groups.assignors import ASSIGNORS, NOWHERE, Place, Places
from routing.groups.consumer_member import (
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    Beat,
    Beaten,
    ConsumerMember,
    Reader,
    SetNow,
    Step,
)
from routing.groups.errors import (
    FencedEpoch,
    FencedInstance,
    GroupError,
    GroupFull,
    StaleEpoch,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from routing.groups.membership import SetTimer
from routing.groups.patterns import Patterns
from routing.topics.offset_store import Partition
from routing.topics.topic_ids import Topics


class GroupTimes(NamedTuple):
    """Of groups that the broker divides, in milliseconds, and how many members one may have."""

    session_ms: int = 45_000
    heartbeat_ms: int = 5_000
    """At most: the fewer members, the more often each is heard of, and hears what it may read."""
    unsettled_heartbeat_ms: int = 300
    """While a group is being divided, or was a moment ago."""
    members_max: int = 10_000


_PATTERNS_MAX = 1000
_SETTLED_HEARTBEAT_MS_MIN = 800
_BEAT_MS_PER_MEMBER, _UNSETTLED_BEAT_MS_PER_MEMBER = 4, 1
"""What the members of a large group say is not to be all that the broker does."""
_SHARES_PER_MS = 100
"""Nor is dividing it: after each time so many members and partitions are a millisecond's rest. It takes a tenth."""


class ConsumerGroup:
    """See the module."""

    kind = protocol_type = "consumer"

    def __init__(
        self,
        name: str,
        timer: SetTimer,
        now_ms: SetNow,
        topics: Topics,
        times: GroupTimes,
        changed: Callable[[ConsumerGroup], None],
        wall_clock_ms: Callable[[], int] = lambda: 0,
        patterns: Patterns | None = None,
    ) -> None:
        """`changed` is called when something is in `touched`, or the group itself (`head_touched`) is another.
        `patterns` are those of all groups.
        """
        self.name = name
        self.epoch = self.assignment_epoch = 0
        self.assignor = next(iter(ASSIGNORS))
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, Places] = {}
        self.metadata: dict[str, tuple[bytes, int]] = {}
        """Of the topics that anybody wants, as they were when last looked at: id and number of partitions."""
        self.empty_since_ms = wall_clock_ms()
        self.touched: dict[str, None] = {}
        self.head_touched = True
        self._timer = timer
        self._now_ms = now_ms
        self._topics = topics
        self._patterns = Patterns(topics) if patterns is None else patterns
        self._topics_seen = -1
        self._matched: dict[tuple[str, Reader | None], frozenset[str]] = {}
        """What patterns stand for, as long as no topic comes or goes."""
        self._matched_version = -1
        self._times = times
        self._changed = changed
        self._wall_clock_ms = wall_clock_ms
        self._instances: dict[str, str] = {}
        self._owners: dict[Place, str] = {}
        self._releases = 0
        self._unsettled_until_ms = self._divided_until_ms = 0

    # ---- what members say

    def heartbeat(self, beat: Beat) -> Beaten:
        """A member is there, or comes, or goes. Raises GroupError; then nothing has changed."""
        beat.require_sense()
        if beat.epoch in (LEAVING, LEAVING_FOR_NOW):
            self._leave(beat)
            return Beaten(None, beat.member_id, beat.epoch)
        self.require_known(beat)
        count = len(self.members)
        member = self._joining(beat) if beat.epoch == JOINING else self._known(beat)
        before = member.assigned
        self._take(member, beat, is_new=len(self.members) > count)
        told = member.assigned if beat.is_full or member.assigned is not before else None
        return Beaten(None, member.id, member.epoch, self._interval_ms(), told)

    def _take(self, member: ConsumerMember, beat: Beat, *, is_new: bool) -> None:
        """A member is there, and gets as near to what it is to have as it can."""
        self._heard_of(member)
        wants_others = self._listen(member, beat)
        if wants_others | self._topics_changed() | is_new:
            self._bump()
        at_once = member.classic is not None or (wants_others and not is_new)
        if self.epoch != self.assignment_epoch and (at_once or self._now_ms() >= self._divided_until_ms):
            self._divide()
        self._reconcile(member, beat.owned)

    def require_known(self, beat: Beat) -> None:
        """Whether a member wants what there is. Raises UnsupportedAssignor, InvalidPattern."""
        if beat.assignor is not None and beat.assignor not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            raise UnsupportedAssignor(f"ServerAssignor {beat.assignor} is not supported. Supported assignors: {known}.")
        if beat.pattern and beat.pattern != getattr(self.members.get(beat.member_id), "pattern", ""):
            self._patterns.matching(beat.pattern)

    def _joining(self, beat: Beat) -> ConsumerMember:
        """A member comes, for the first time or again; then it owns nothing any more."""
        found = self.members.get(beat.member_id)
        if beat.instance_id is not None and beat.instance_id in self._instances:
            there = self.members[self._instances[beat.instance_id]]
            if there.epoch == LEAVING_FOR_NOW or there.classic is not None:
                if found is not None and found is not there:
                    self._drop(found)  # under its id it is this one from now on
                return self._replace(there, beat.member_id)
            if there is not found:
                raise UnreleasedInstance(f"static member '{beat.instance_id}' is there as another member")
        if found is not None:
            if found.classic is not None:
                self._forget_timers(found)
                found.classic = None
            self._step(found, Step.STABLE, 0, NOWHERE, NOWHERE)
            return found
        return self._add(beat.member_id, beat.instance_id)

    def _add(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Raises GroupFull."""
        if len(self.members) >= self._times.members_max:
            raise GroupFull(f"group '{self.name}' has {self._times.members_max} members")
        member = self.members[member_id] = ConsumerMember(member_id, instance_id)
        if instance_id is not None:
            self._instances[instance_id] = member_id
        return member

    def _replace(self, there: ConsumerMember, member_id: str) -> ConsumerMember:
        """Rule 4."""
        assert there.instance_id is not None
        member = there.successor(member_id)
        self._own(there.id, there.revoking, NOWHERE)
        self._forget_timers(there)
        del self.members[there.id]
        self._touch(there.id)
        self.members[member_id] = member
        self._instances[there.instance_id] = member_id
        target = self.target.pop(there.id, None)
        if target is not None:
            self.target[member_id] = target
        self._owners.update(dict.fromkeys(member.assigned, member_id))
        self._touch(member_id)
        return member

    def _known(self, beat: Beat) -> ConsumerMember:
        """Raises UnknownMember, FencedInstance, FencedEpoch."""
        member = self._with_epochs(beat)
        if beat.epoch == member.epoch:
            return member
        # Of the answer before only the epoch may have been lost: it goes on if it has no more than it may.
        lost = beat.epoch == member.previous_epoch and beat.owned is not None and beat.owned <= member.assigned
        if beat.epoch > member.epoch or not lost:
            which = "greater" if beat.epoch > member.epoch else "smaller"
            raise FencedEpoch(f"member epoch {beat.epoch} is {which} than {member.epoch}, the one known here")
        return member

    def _with_epochs(self, beat: Beat) -> ConsumerMember:
        """Raises UnknownMember, FencedInstance."""
        member = self.member(beat.member_id, beat.instance_id)
        if member.classic is not None:
            raise UnknownMember(f"member '{member.id}' has generations, and no epochs")
        return member

    def member(self, member_id: str, instance_id: str | None = None) -> ConsumerMember:
        """One that is there. Raises UnknownMember, FencedInstance."""
        if instance_id is not None:
            known = self._instances.get(instance_id)
            if known is None:
                raise UnknownMember(f"group '{self.name}' has no static member '{instance_id}'")
            if known != member_id:
                raise FencedInstance("another process is this static member now")
        found = self.members.get(member_id)
        if found is None:
            raise UnknownMember(f"group '{self.name}' has no member '{member_id}'")
        return found

    def _listen(self, member: ConsumerMember, beat: Beat) -> bool:
        """Note what a member wants; whether it is something else than before."""
        if member.take_words(beat):
            self._touch(member.id)
        before = member.subscribed
        if beat.topics is not None:
            member.topics = beat.topics
        if beat.reader is not member.reader or (beat.pattern is not None and beat.pattern != member.pattern):
            member.reader = beat.reader
            member.pattern = member.pattern if beat.pattern is None else beat.pattern
            member.matched = self._matching(member.pattern, member.reader)
        if member.subscribed == before:
            return False
        self._touch(member.id)
        return True

    def _matching(self, pattern: str, reader: Reader | None) -> frozenset[str]:
        if not pattern:
            return frozenset()
        if self._matched_version != self._topics.version or len(self._matched) >= _PATTERNS_MAX:
            self._matched_version = self._topics.version
            self._matched.clear()
        known = self._matched.get((pattern, reader))
        if known is None:
            known = self._patterns.matching(pattern)
            if reader is not None:
                known = frozenset(name for name in known if reader.allows("read", name))
            self._matched[pattern, reader] = known
        return known

    def reads(self, topic: str) -> bool:
        """Whether a member wants a topic."""
        return any(topic in member.subscribed for member in self.members.values())

    def readers_of(self, places: Collection[Partition]) -> list[str]:
        """The members that have one of these."""
        known = [(topic.id, index) for name, index in places if (topic := self._topics.get(name)) is not None]
        return list(dict.fromkeys(self._owners[place] for place in known if place in self._owners))

    def leave(self, member_id: str, instance_id: str | None) -> None:
        """An operator has a member go. Raises UnknownMember, FencedInstance."""
        if not member_id and instance_id is not None:
            member_id = self._instances.get(instance_id, "")
        self._drop(self.member(member_id, instance_id))

    def _leave(self, beat: Beat) -> None:
        member = self._with_epochs(beat)
        if beat.epoch == LEAVING or member.instance_id is None:
            self._drop(member)
            return
        self._step(member, Step.STABLE, LEAVING_FOR_NOW, member.assigned, NOWHERE)

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, partitions: Collection[Partition] = ()
    ) -> None:
        """Whether offsets of these partitions may be committed, or asked for, so. Raises GroupError.

        A member that has just got another epoch may have sent it before it knew: it counts for what it has had all the
        while (https://cwiki.apache.org/confluence/display/KAFKA/KIP-1251).
        """
        if epoch < 0 and not self.members:
            return
        if self.members and not member_id and instance_id is None:
            raise UnknownMember(f"group '{self.name}' has members: who is none of them moves it when they are gone")
        member = self.member(member_id, instance_id)
        if member.epoch != epoch and not self._was_sent_before(member, epoch, partitions):
            raise StaleEpoch(f"member '{member_id}' has epoch {member.epoch} by now, not {epoch}")

    def _was_sent_before(self, member: ConsumerMember, epoch: int, partitions: Collection[Partition]) -> bool:
        if epoch != member.previous_epoch or epoch <= JOINING or not partitions:
            return False
        return self._places(partitions) <= member.held

    def _places(self, partitions: Iterable[Partition]) -> Places:
        topics = self._topics
        return frozenset((topics[name].id, number) for name, number in partitions if name in topics)

    # ---- who is to have what

    def _topics_changed(self) -> bool:
        """Whether topics that anybody wants came, went or grew since it was looked last."""
        version = self._topics.version
        if version == self._topics_seen:
            return False
        self._topics_seen = version
        for member in self.members.values():
            if member.pattern and member.reader is not None:
                matched = self._matching(member.pattern, member.reader)
                if matched != member.matched:
                    member.matched = matched
                    self._touch(member.id)
        return self._current() != self.metadata

    def _current(self) -> dict[str, tuple[bytes, int]]:
        wanted = frozenset[str]().union(*{member.subscribed for member in self.members.values()})
        topics = self._topics
        return {name: (topics[name].id, len(topics[name].partitions)) for name in sorted(wanted) if name in topics}

    def _bump(self) -> None:
        self.epoch += 1
        self._unsettled_until_ms = self._now_ms() + 2 * self._times.heartbeat_ms
        self._touch_head()

    def _divide(self) -> None:
        self.metadata = self._current()
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        self.assignor = max(votes, key=lambda name: votes[name]) if votes else next(iter(ASSIGNORS))
        ids: dict[frozenset[str], frozenset[bytes]] = {}
        wants: dict[str, frozenset[bytes]] = {}
        order = sorted(self.members.values(), key=lambda one: (one.instance_id is None, one.instance_id or one.id))
        for member in order:
            names = member.subscribed
            if names not in ids:
                ids[names] = frozenset(self.metadata[name][0] for name in names if name in self.metadata)
            wants[member.id] = ids[names]
        target = ASSIGNORS[self.assignor](wants, dict(self.metadata.values()), self.target)
        for member_id, places in target.items():
            if self.target.get(member_id) != places:
                self._touch(member_id)
        self.target = target
        self.assignment_epoch = self.epoch
        shares = len(target) + sum(count for _, count in self.metadata.values())
        self._divided_until_ms = self._now_ms() + shares // _SHARES_PER_MS
        self._touch_head()

    def _reconcile(self, member: ConsumerMember, owned: Places | None) -> None:
        if member.step is Step.UNRELEASED and member.epoch == self.assignment_epoch and member.looked == self._releases:
            return
        target = self.target.get(member.id, NOWHERE)
        taken = member.next_step(target, self.assignment_epoch, owned, self._owners)
        if taken is not None:
            self._step(member, *taken)
            member.looked = self._releases

    def _step(self, member: ConsumerMember, step: Step, epoch: int, assigned: Places, revoking: Places) -> None:
        """A member has other partitions, or another epoch."""
        before = member.held
        if epoch != member.epoch:
            member.previous_epoch, member.epoch = member.epoch, epoch
        if assigned != member.assigned:
            member.assigned = assigned
        member.step, member.revoking = step, revoking
        if member.held != before:
            self._own(member.id, before, member.held)
        if member.revoke_timer is not None:
            member.revoke_timer.cancel()
            member.revoke_timer = None
        if step is Step.REVOKING:
            member.revoke_timer = self._timer(member.rebalance_timeout_ms, lambda: self._too_slow(member))
        self._touch(member.id)

    def _own(self, member_id: str, before: Places, after: Places) -> None:
        for place in before - after:
            del self._owners[place]
            self._releases += 1
        self._owners.update(dict.fromkeys(after, member_id))

    def _too_slow(self, member: ConsumerMember) -> None:
        member.revoke_timer = None
        if self.members.get(member.id) is member and member.step is Step.REVOKING:
            self._drop(member)

    # ---- being there

    def _interval_ms(self) -> int:
        times, count = self._times, len(self.members)
        if self._now_ms() < self._unsettled_until_ms:
            wanted = max(times.unsettled_heartbeat_ms, _UNSETTLED_BEAT_MS_PER_MEMBER * count)
        else:
            wanted = max(_SETTLED_HEARTBEAT_MS_MIN, _BEAT_MS_PER_MEMBER * count)
        return min(times.heartbeat_ms, wanted)

    def _heard_of(self, member: ConsumerMember) -> None:
        session_ms = self._times.session_ms if member.classic is None else member.classic.session_timeout_ms
        member.until_ms = self._now_ms() + session_ms
        if member.session is None:
            member.session = self._timer(session_ms, lambda: self._look(member))

    def _look(self, member: ConsumerMember) -> None:
        """Whether a member was heard of: the timer is not moved with each word."""
        member.session = None
        if self.members.get(member.id) is not member:
            return
        left_ms = member.until_ms - self._now_ms()
        if left_ms > 0:
            member.session = self._timer(left_ms, lambda: self._look(member))
        else:
            self._drop(member)

    def _drop(self, member: ConsumerMember) -> None:
        self._forget_timers(member)
        del self.members[member.id]
        if member.instance_id is not None:
            self._instances.pop(member.instance_id, None)
        self.target.pop(member.id, None)
        self._own(member.id, member.held, NOWHERE)
        self._touch(member.id)
        if not self.members:
            self.empty_since_ms = self._wall_clock_ms()
        self._bump()

    def _forget_timers(self, member: ConsumerMember) -> None:
        for timer in (member.session, member.revoke_timer, member.due):
            if timer is not None:
                timer.cancel()
        member.session = member.revoke_timer = member.due = None

    def _touch(self, member_id: str) -> None:
        self.touched[member_id] = None
        self._changed(self)

    def _touch_head(self) -> None:
        self.head_touched = True
        self._changed(self)

    # ---- as it stands

    @property
    def state(self) -> str:
        """As Kafka calls it."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        settled = all(
            member.step is Step.STABLE and member.epoch == self.assignment_epoch for member in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    def restored(self) -> None:
        """What is kept of it was read back."""
        self._settle_in()
        self.touched.clear()
        self.head_touched = False

    def _settle_in(self) -> None:
        """All members are new here: everybody has a session's time to be heard of."""
        for member in self.members.values():
            if member.instance_id is not None:
                self._instances[member.instance_id] = member.id
            self._owners.update(dict.fromkeys(member.held, member.id))
            self._heard_of(member)
            if member.step is Step.REVOKING:
                self._step(member, member.step, member.epoch, member.assigned, member.revoking)

    def close(self, why: GroupError) -> None:
        """Another broker looks after it from now on, or it is deleted."""
        for member in self.members.values():
            self._forget_timers(member)
        self.members.clear()
