"""One consumer group: its members agree on who reads what, generation by generation.

    EMPTY -> PREPARING -> COMPLETING -> STABLE        and from the last two back to PREPARING

1. In PREPARING everybody who is to be in the next generation joins; it begins when all have, or when the longest time
   that a member wants for this is over: who has not come by then is out. A group that was empty waits a little longer,
   so that members which are started together are in one generation.
2. In COMPLETING the leader, one of the members, works out who reads what and says so (`sync`); what it says is bytes to
   the group. Then it is STABLE, until a member comes, goes, or wants it divided anew.
3. A member that is not heard of for its session timeout is out. One that waits for an answer is there.
4. A static member (`instance_id`) that comes back within its session timeout is the same one: nothing is divided anew
   unless it wants something else. The process before it is fenced; one after it, whose id was not kept, joins again.
5. Answers are callbacks: nobody waits in a task. Time is a parameter of the timers that it is given.
6. A generation is kept (`records.py`) before anybody hears what it reads in it. Who looks after the group next goes on
   with the last one that was: its members need not join again.

https://cwiki.apache.org/confluence/display/KAFKA/Kafka+Client-side+Assignment+Proposal and KIP-345.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from routing.groups.agreement import Agreement
from routing.groups.assigned import assigned, subscribed
from routing.groups.errors import (
    FencedInstance,
    GroupError,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from routing.groups.membership import (
    Cancellable,
    Joined,
    Joining,
    Keep,
    Member,
    SetTimer,
    State,
    Synced,
    new_id,
    require_same,
)
from routing.topics.offset_store import Partition

_LOOK_MS_MIN = 1000
"""Not more often it is looked whether a static member has come, however short a time members want for that."""


class Group:
    """See the module."""

    kind = "classic"

    def __init__(
        self,
        name: str,
        timer: SetTimer,
        *,
        initial_delay_ms: int = 3000,
        members_max: int = 10_000,
        changed: Callable[[Group], None] = lambda group: None,
        keep: Keep = lambda done: done(None),
        wall_clock_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`changed` is called when there is something to be kept: the members in `touched`, and the group itself."""
        self.name = name
        self.touched: dict[str, None] = {}
        self.head_touched = True
        self.empty_since_ms = wall_clock_ms()
        self._changed = changed
        self._keep = keep
        self._wall_clock_ms = wall_clock_ms
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        self.departed: Counter[Partition] = Counter()
        """How often a member that had a partition has gone, or another process has taken its place."""
        self._agreement = Agreement()
        self._timer = timer
        self._initial_delay_ms = initial_delay_ms
        self._members_max = members_max
        self._instances: dict[str, str] = {}
        """Member id of each static member."""
        self.given: dict[str, Cancellable] = {}
        """Ids that were given out and not joined with yet."""
        self._deadline: Cancellable | None = None
        self._initial = False
        """It was empty, and waits whether there are more."""
        self._initial_left_ms = 0

    # ---- joining

    def join(self, joining: Joining, answer: Callable[[Joined], None]) -> None:
        """A member wants to be in the next generation, or in this one if it is in it."""
        try:
            self._join(joining, answer)
        except GroupError as error:
            answer(Joined(error, member_id=getattr(error, "member_id", joining.member_id)))

    def _join(self, joining: Joining, answer: Callable[[Joined], None]) -> None:
        self._agreement.require(joining, self.name, self.protocol_type, self.members.values())
        instance, member_id = joining.instance_id, joining.member_id
        if not member_id:
            if instance is not None and instance in self._instances:
                self._replace(self.members[self._instances[instance]], joining, answer)
                return
            if len(self.members) + len(self.given) >= self._members_max:
                raise GroupFull(f"group '{self.name}' has {self._members_max} members")
            member_id = new_id(joining, "", self._wall_clock_ms())
            if joining.must_have_id and instance is None:
                self.given[member_id] = self._timer(joining.session_timeout_ms, lambda: self._not_taken(member_id))
                raise MemberIdRequired(member_id)
            self._add(member_id, joining, answer)
            return
        if member_id in self.given:
            self.given.pop(member_id).cancel()
            self._add(member_id, joining, answer)
            return
        self._rejoin(self.member(member_id, instance), joining, answer)

    def _rejoin(self, member: Member, joining: Joining, answer: Callable[[Joined], None]) -> None:
        same = list(member.joining.protocols) == list(joining.protocols)
        stays = self.state is State.COMPLETING or (self.state is State.STABLE and member.id != self.leader)
        member.joining = joining._replace(instance_id=member.joining.instance_id)  # it stays the one that it was
        self._agreement.joins(joining)
        if same and stays:
            answer(self._answer_of(member))  # its answer was lost
            self._heard_of(member)
            return
        self._wait(member, answer)
        if self.state is not State.PREPARING:
            self._prepare()
        self._look()

    def _add(self, member_id: str, joining: Joining, answer: Callable[[Joined], None]) -> None:
        member = self.members[member_id] = Member(member_id, joining)
        self._agreement.joins(joining)
        self.protocol_type = joining.protocol_type
        if joining.instance_id is not None:
            self._instances[joining.instance_id] = member_id
        if not self.leader:
            self.leader = member_id
        self._wait(member, answer)
        if self.state is not State.PREPARING:
            self._prepare()
        elif self._initial:
            self._wait_for_more()
        self._look()

    def _replace(self, before: Member, joining: Joining, answer: Callable[[Joined], None]) -> None:
        """Rule 4."""
        self._fence(before)
        self.touched[before.id] = None
        instance = joining.instance_id
        assert instance is not None
        member_id = new_id(joining, before.id, self._wall_clock_ms())
        leader = self.leader
        member = Member(member_id, joining)
        self._agreement.joins(joining)
        member.assignment = before.assignment
        self.departed.update(assigned(before.assignment))
        # In its place: the order of members is that of joining.
        self.members = {
            (member_id if key == before.id else key): (member if key == before.id else found)
            for key, found in self.members.items()
        }
        self._instances[instance] = member_id
        if leader == before.id:
            self.leader = member_id
        same = list(before.joining.protocols) == list(joining.protocols)
        if self.state is State.STABLE and same:
            self._heard_of(member)
            # It is told of the leader before it, lest it take itself for one that has to work something out; what all
            # want it has to know, to notice when their topics change.
            joined = self._answer_of(member)._replace(leader=leader, skip_assignment=leader == before.id)
            self._changed_all((member_id,))
            self._keep(lambda error: answer(joined if error is None else Joined(error, member_id=member_id)))
            return
        self._wait(member, answer)
        if self.state is not State.PREPARING:
            self._prepare()
        self._look()

    def _fence(self, member: Member) -> None:
        fenced = FencedInstance("another process is this static member now")
        self._forget_session(member)
        if member.join is not None:
            member.join(Joined(fenced, member_id=member.id))
        if member.sync is not None:
            member.sync(Synced(fenced))

    def _wait(self, member: Member, answer: Callable[[Joined], None]) -> None:
        if member.join is not None:
            member.join(Joined(UnknownMember("joined again"), member_id=member.id))
        self._forget_session(member)
        member.join = answer

    # ---- a new generation

    def _prepare(self) -> None:
        for member in self.members.values():
            if member.sync is not None:
                sync, member.sync = member.sync, None
                sync(Synced(RebalanceInProgress("the group is divided anew")))
                self._heard_of(member)
        was_empty, self.state = self.state is State.EMPTY, State.PREPARING
        self._stop_waiting()
        self._initial = was_empty and self._initial_delay_ms > 0
        if self._initial:
            self._initial_left_ms = max(self._longest_ms(), self._initial_delay_ms)
            self._wait_for_more()
        else:
            self._deadline = self._timer(self._longest_ms(), self._complete)

    def _wait_for_more(self) -> None:
        """Another one has come: maybe there are more. In all it is no longer than the members can wait."""
        wait_ms = min(self._initial_delay_ms, self._initial_left_ms)
        if wait_ms > 0:
            self._stop_waiting()
            self._initial_left_ms -= wait_ms
            self._deadline = self._timer(wait_ms, self._complete)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _longest_ms(self) -> int:
        return max((member.joining.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _look(self) -> None:
        """Whether all have come. A group that was empty waits its time out all the same."""
        waits = self._initial or self.given or any(member.join is None for member in self.members.values())
        if self.state is State.PREPARING and not waits:
            self._complete()

    def _complete(self) -> None:
        """The next generation begins with those that have come."""
        self._stop_waiting()
        self._initial = False
        for member in [one for one in self.members.values() if one.join is None and one.joining.instance_id is None]:
            self._drop(member)
        if self.members and (self.leader not in self.members or self.members[self.leader].join is None):
            here = [member.id for member in self.members.values() if member.join is not None]
            if not here:  # static members only, none of which has come
                self._deadline = self._timer(max(self._longest_ms(), _LOOK_MS_MIN), self._complete)
                return
            self.leader = here[0]
        self.generation += 1
        if not self.members:
            self._empty()
            return
        self.protocol = self._chosen()
        self.state = State.COMPLETING
        for member in list(self.members.values()):
            join, member.join = member.join, None
            self._heard_of(member)
            if join is not None:
                join(self._answer_of(member))
        self._deadline = self._timer(self._longest_ms(), self._not_synced)

    def _answer_of(self, member: Member) -> Joined:
        wants: list[tuple[str, str | None, bytes]] = []
        if member.id == self.leader:
            wants = [
                (one.id, one.joining.instance_id, one.metadata_for(self.protocol)) for one in self.members.values()
            ]
        return Joined(None, self.generation, self.protocol, self.leader, member.id, wants)

    def _chosen(self) -> str:
        """Each member votes for the first of its ways that all have."""
        known = [{name for name, _ in member.joining.protocols} for member in self.members.values()]
        common = set.intersection(*known)
        votes: dict[str, int] = {}
        for member in self.members.values():
            first = next(name for name, _ in member.joining.protocols if name in common)
            votes[first] = votes.get(first, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _not_synced(self) -> None:
        """The leader has said nothing, or others have not asked: those are out."""
        self._deadline = None
        for member in [one for one in self.members.values() if one.sync is None]:
            self._drop(member)
        self._after_loss()

    # ---- who reads what

    def sync(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Mapping[str, bytes],
        answer: Callable[[Synced], None],
    ) -> None:
        """A member asks what it reads; the leader says what everybody does."""
        try:
            member = self._current(member_id, instance_id, generation)
            if protocol_type not in (None, self.protocol_type) or protocol not in (None, self.protocol):
                raise InconsistentProtocol(f"group '{self.name}' divides partitions by {self.protocol}")
            self.require_not(State.PREPARING)
        except GroupError as error:
            answer(Synced(error))
            return
        if self.state is State.STABLE:
            self._heard_of(member)
            synced = Synced(None, member.assignment, self.protocol)
            self._keep(lambda error: answer(synced if error is None else Synced(error)))
            return
        self._forget_session(member)
        member.sync = answer
        if member_id == self.leader:
            self._divide(assignments)

    def _divide(self, assignments: Mapping[str, bytes]) -> None:
        self._stop_waiting()
        self.state = State.STABLE
        answers: list[tuple[Callable[[Synced], None], Synced]] = []
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            sync, member.sync = member.sync, None
            self._heard_of(member)
            if sync is not None:
                answers.append((sync, Synced(None, member.assignment, self.protocol)))

        def tell(error: GroupError | None) -> None:
            for answer, synced in answers:
                answer(synced if error is None else Synced(error))

        self._changed_all(self.members)
        self._keep(tell)

    # ---- being there

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> None:
        """A member is there. Raises GroupError."""
        member = self._current(member_id, instance_id, generation)
        self._heard_of(member)
        self.require_not(State.PREPARING)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, partitions: Collection[Partition] = ()
    ) -> None:
        """Whether offsets may be committed so, whichever. Raises GroupError."""
        if generation < 0 and self.state is State.EMPTY:
            return  # whoever divides partitions without the group
        if self.members and not member_id and instance_id is None:
            raise UnknownMember(f"group '{self.name}' has members: who is none of them moves it when they are gone")
        self._heard_of(self._current(member_id, instance_id, generation))

    def require_not(self, state: State) -> None:
        """It is not in this state, in which it is divided anew. Raises RebalanceInProgress."""
        if self.state is state:
            raise RebalanceInProgress("the group is divided anew")

    def reads(self, topic: str) -> bool:
        """Whether a member wants a topic, or may, for all that is known."""
        wants = (subscribed(member.metadata_for(self.protocol)) for member in self.members.values())
        return any(names is None or topic in names for names in wants)

    def readers_of(self, places: Collection[Partition]) -> list[str]:
        """The members that have one of these."""
        return [one.id for one in self.members.values() if any(place in places for place in assigned(one.assignment))]

    def leave(self, member_id: str, instance_id: str | None) -> None:
        """A member goes, of its own will or an operator's. Raises GroupError."""
        if not member_id and instance_id is not None:
            member_id = self._instances.get(instance_id, "")
        if member_id in self.given:
            self.given.pop(member_id).cancel()
            self._look()
        else:
            self._drop(self.member(member_id, instance_id))
            self._after_loss()

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """One that is there. Raises UnknownMember, FencedInstance."""
        if instance_id is not None:
            if instance_id not in self._instances:
                raise UnknownMember(f"group '{self.name}' has no static member '{instance_id}'")
            require_same(instance_id, member_id, self._instances[instance_id])
        found = self.members.get(member_id)
        if found is None:
            raise UnknownMember(f"group '{self.name}' has no member '{member_id}'")
        return found

    def _current(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        found = self.member(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGeneration(f"group '{self.name}' is in generation {self.generation}")
        return found

    def _heard_of(self, member: Member) -> None:
        """Rule 3."""
        self._forget_session(member)
        if member.join is None and member.sync is None and member.id in self.members:
            member.session = self._timer(member.joining.session_timeout_ms, lambda: self._silent(member))

    def _forget_session(self, member: Member) -> None:
        if member.session is not None:
            member.session.cancel()
            member.session = None

    def _silent(self, member: Member) -> None:
        member.session = None
        if self.members.get(member.id) is member:
            self._drop(member)
            self._after_loss()

    def _not_taken(self, member_id: str) -> None:
        self.given.pop(member_id, None)
        self._look()

    def _drop(self, member: Member) -> None:
        self._forget_session(member)
        self.departed.update(assigned(member.assignment))
        del self.members[member.id]
        self.touched[member.id] = None
        if member.joining.instance_id is not None:
            self._instances.pop(member.joining.instance_id, None)
        if self.leader == member.id:
            self.leader = next(iter(self.members), "")
        gone = UnknownMember("not a member any more")
        if member.join is not None:
            member.join(Joined(gone, member_id=member.id))
        if member.sync is not None:
            member.sync(Synced(gone))

    def _after_loss(self) -> None:
        if self.state in (State.STABLE, State.COMPLETING):
            self._prepare()
        self._look()

    def _empty(self) -> None:
        self.state, self.protocol, self.leader = State.EMPTY, "", ""
        self.empty_since_ms = self._wall_clock_ms()
        self._changed_all(())

    def _changed_all(self, members: Iterable[str]) -> None:
        self.touched.update(dict.fromkeys(members))
        self.head_touched = True
        self._changed(self)

    def restored(self) -> None:
        """Members and generation were read back: everybody has a session's time to be heard of."""
        self._agreement.forget()
        if self.members:
            self.state = State.STABLE
        for member in self.members.values():
            if member.joining.instance_id is not None:
                self._instances[member.joining.instance_id] = member.id
            self._heard_of(member)
        self.touched.clear()
        self.head_touched = False

    def begin_with(self, members: Iterable[Member], generation: int, protocol_type: str) -> None:
        """These were divided by the broker up to now, and do it by themselves from now on."""
        self.members = {member.id: member for member in members}
        self.generation, self.protocol_type, self.protocol = generation, protocol_type, self._chosen()
        self.leader = next(iter(self.members))
        self.restored()
        self._changed_all(self.members)
        self._prepare()

    def let_go(self) -> list[tuple[Joining, Callable[[Joined], None]]]:
        """The broker divides it from now on, and has its members: those that wait to be in the next generation."""
        waiting = []
        for member in self.members.values():
            if member.join is not None:
                waiting.append((member.joining._replace(member_id=member.id), member.join))
                member.join = None
        self.close(RebalanceInProgress("the broker divides the group"))
        return waiting

    def close(self, why: GroupError) -> None:
        """Another broker looks after it from now on, or it is deleted."""
        self.state = State.DEAD
        self._stop_waiting()
        for given in self.given.values():
            given.cancel()
        self.given.clear()
        for member in self.members.values():
            self._forget_session(member)
            if member.join is not None:
                member.join(Joined(why, member_id=member.id))
            if member.sync is not None:
                member.sync(Synced(why))
        self.members.clear()
