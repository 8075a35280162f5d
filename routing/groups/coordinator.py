"""The consumer groups that this broker looks after: their members, and how far they have come.

1. In a cluster a group is looked after by whoever leads the log of its offsets; who leads that no more lets go of all
   its groups, and their members find the next one. Members and assignments are kept in that log (`saver.py`,
   `records.py`): the next one goes on with them, as the same broker does after a start.
2. Offsets are those of `offset_store`, the same for members of every protocol and for who is none.
3. A group is divided by one of its members (`group.py`) or by the broker (`consumer_group.py`): by the broker as long
   as a member knows of that, whatever the others are (`mixed_group.py`). Whether the last such has gone is looked at
   when a turn ends.
4. A group that has no members and no offsets is empty until that is looked at, and forgotten then. Offsets of a group
   without members are kept for `group_offsets_retention_ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import trio

from routing.cluster.metadata.log_names import offsets_log
from routing.errors import StorageUnavailable
from routing.groups.consumer_group import GroupTimes
from routing.groups.consumer_member import JOINING, Beat, Beaten
from routing.groups.errors import (
    CoordinatorLoading,
    CoordinatorUnavailable,
    GroupError,
    GroupFull,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidGroup,
    InvalidSessionTimeout,
    NeedsEpochs,
    NotCoordinator,
    UnknownGroup,
    UnknownMember,
)
from routing.groups.group import Group
from routing.groups.membership import Joined, Joining, SetTimer, State, Synced
from routing.groups.mixed_group import MixedGroup
from routing.groups.patterns import Patterns
from routing.groups.records import CONSUMER, kind_of, removal, restore_classic, restore_consumer
from routing.groups.saver import Saver
from routing.topics.offset_store import Committed, OffsetStore, Partition

if TYPE_CHECKING:
    from routing.broker import Broker

logger = logging.getLogger(__name__)

Told = TypeVar("Told", Joined, Synced, Beaten)
_EXPIRED_AT_ONCE = 1000
_JUST_MOVED_MS = 15_000
"""Within this members of a group have heard, by a heartbeat at the latest, that it has moved."""


class Coordinator:
    """See the module."""

    def __init__(
        self,
        broker: Broker,
        timer: SetTimer,
        wall_clock_ms: Callable[[], int],
        now_ms: Callable[[], int] = lambda: int(trio.current_time() * 1000),
    ) -> None:
        """Of a broker that has its topics and offsets. `timer` goes by `now_ms`."""
        self.groups: dict[str, Group | MixedGroup] = {}
        self._config = broker.config
        self._offsets = offsets = broker.offsets
        self._topics = broker.topology.topics
        self._patterns = Patterns(self._topics)
        self._timer = timer
        self._now_ms = now_ms
        self._wall_clock_ms = wall_clock_ms
        self._cluster = cluster = broker.cluster
        self._just_moved_until_ms: dict[str, int] = {}
        """By log: what has moved from here."""
        self.saver = Saver(self._store_of, broker.commits, broker.spawn)
        if isinstance(offsets, OffsetStore):
            self._load(offsets)
        else:
            offsets.begun = self._begun
            assert cluster is not None
            cluster.moved.append(self._moved)

    # ---- who looks after a group

    def broker_of(self, group: str) -> int | None:
        """The broker that does; None: nobody now. A single one is 0."""
        return 0 if self._cluster is None else self._cluster.leader_of(self._log_of(group))[0]

    def _log_of(self, group: str) -> str:
        assert not isinstance(self._offsets, OffsetStore)
        return offsets_log(self._offsets.log_of(group))

    def _store_of(self, group: str) -> OffsetStore | None:
        if self._cluster is not None and not self._cluster.may_append(self._log_of(group)):
            return None
        return self._offsets.store_of(group)

    def _require_here(self, group: str) -> None:
        """Raises InvalidGroup, NotCoordinator, CoordinatorUnavailable."""
        if not group:
            raise InvalidGroup("a group needs a name")
        cluster = self._cluster
        if cluster is not None:
            broker = self.broker_of(group)
            if broker is not None and broker != cluster.broker_id:
                raise NotCoordinator(f"broker {broker} looks after group '{group}'")
            if broker is None or not cluster.may_append(self._log_of(group)):
                raise CoordinatorUnavailable(f"nobody looks after group '{group}' now")
            if self._offsets.store_of(group) is None:
                raise CoordinatorLoading(f"what is kept of group '{group}' is being read")

    def _moved(self, log: str) -> None:
        cluster = self._cluster
        assert cluster is not None
        if cluster.leader_of(log)[0] != cluster.broker_id:
            self._let_go(log)

    def _let_go(self, log: str) -> None:
        for name in [name for name in self.groups if self._log_of(name) == log]:
            self._just_moved_until_ms[log] = self._now_ms() + _JUST_MOVED_MS
            self._close(name, NotCoordinator(f"group '{name}' has moved to another broker"))

    def _close(self, name: str, why: GroupError) -> None:
        self.groups.pop(name).close(why)
        self.saver.drop(name, why)

    def _begun(self, store: OffsetStore, number: int) -> None:
        """A log is led here, for the first time or again: what was known of its groups may not have been kept."""
        self._let_go(offsets_log(number))
        self._load(store)

    def _load(self, store: OffsetStore) -> None:
        for name, records in store.take_states().items():
            if "" not in records:
                continue
            try:
                if kind_of(records) == CONSUMER:
                    restore_consumer(self._add_consumer(name), records)
                else:
                    restore_classic(self._add_classic(name), records)
            except (ValueError, TypeError, LookupError) as error:
                logger.error("the members of group '%s' are not known any more: %s", name, error)
                self._close(name, CoordinatorUnavailable("its members are not known any more"))
            self.saver.unsaved.pop(name, None)

    def _add_classic(self, name: str) -> Group:
        found = self.groups[name] = Group(
            name,
            self._timer,
            initial_delay_ms=self._config.group_initial_delay_ms,
            members_max=self._config.group_members_max,
            changed=self.saver.changed,
            keep=lambda done: self.saver.keep(name, done),
            wall_clock_ms=self._wall_clock_ms,
        )
        return found

    def _add_consumer(self, name: str) -> MixedGroup:
        config = self._config
        times = GroupTimes(
            config.consumer_session_timeout_ms,
            config.consumer_heartbeat_interval_ms,
            config.consumer_unsettled_heartbeat_interval_ms,
            config.group_members_max,
        )
        found = self.groups[name] = MixedGroup(
            name, self._timer, self._now_ms, self._topics, times, self.saver.changed, self._wall_clock_ms,
            self._patterns,
        )  # fmt: skip
        return found

    def _require_room(self, name: str) -> None:
        if name not in self.groups and len(self.groups) >= self._config.groups_max:
            raise GroupFull(f"there are {len(self.groups)} groups")

    def _known(self, name: str) -> Group | MixedGroup:
        """One that has, or had, members. Raises UnknownMember as well."""
        self._require_here(name)
        found = self.groups.get(name)
        if found is None:
            raise UnknownMember(f"group '{name}' has no members")
        return found

    # ---- members of groups that are divided by one of them

    def join(self, group: str, joining: Joining, answer: Callable[[Joined], None]) -> None:
        """See `Group.join`. Raises GroupError."""
        self._require_here(group)
        config = self._config
        least, most = config.group_session_timeout_ms_min, config.group_session_timeout_ms_max
        if not least <= joining.session_timeout_ms <= most:
            raise InvalidSessionTimeout(f"a session timeout is {least} to {most} ms here")
        found = self.groups.get(group)
        if isinstance(found, MixedGroup) and found.members:
            joined = found.join(joining)
            self._answer(group, answer, joined, lambda error: Joined(error, member_id=joined.member_id))
            return
        if not isinstance(found, Group):
            if joining.member_id:
                raise UnknownMember(f"group '{group}' has no members")
            self._require_room(group)
            before, found = found, self._add_classic(group)
            found.touched.update({} if before is None else before.touched)
        found.join(joining, answer)

    def sync(
        self,
        group: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Mapping[str, bytes],
        answer: Callable[[Synced], None],
    ) -> None:
        """See `Group.sync`. Raises GroupError."""
        found = self._known(group)
        if isinstance(found, Group):
            found.sync(member_id, instance_id, generation, protocol_type, protocol, assignments, answer)
            return
        synced = found.sync(member_id, instance_id, generation)
        if protocol_type not in (None, found.protocol_type) or protocol not in (None, synced.protocol):
            raise InconsistentProtocol(f"a member of group '{group}' says that it is one of another")
        self._answer(group, answer, synced, Synced)

    def heartbeat(self, group: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """See `Group.heartbeat`. Raises GroupError."""
        found = self._known(group)
        if isinstance(found, Group):
            found.heartbeat(member_id, instance_id, generation)
        else:
            found.classic_heartbeat(member_id, instance_id, generation)

    def leave(self, group: str, member_id: str, instance_id: str | None) -> None:
        """See `Group.leave`; an operator's word counts in groups of both kinds. Raises GroupError."""
        self._known(group).leave(member_id, instance_id)

    # ---- members of groups that are divided by the broker

    async def prepare(self, group: str, beat: Beat) -> None:
        """Call it before `beat`: what takes long is done while others have their turn. Raises GroupError."""
        self._require_here(group)
        pattern, found = beat.pattern, self.groups.get(group)
        if pattern is None and isinstance(found, MixedGroup) and beat.member_id in found.members:
            pattern = found.members[beat.member_id].pattern  # after a start nothing is known of it yet
        if pattern:
            await self._patterns.prepare(pattern)

    def beat(self, group: str, beat: Beat, answer: Callable[[Beaten], None]) -> None:
        """See `ConsumerGroup.heartbeat`. Raises GroupError."""
        self._require_here(group)
        beat.require_sense()
        found = self.groups.get(group)
        if not isinstance(found, MixedGroup):
            if beat.epoch != JOINING:
                raise UnknownGroup(f"Group {group} not found.")
            beaten = self._first(group, found, beat)
        else:
            beaten = found.heartbeat(beat)
        if beaten.assignment is None and beaten.epoch == beat.epoch > 0:
            answer(beaten)  # nothing that could be forgotten
        else:
            self._answer(group, answer, beaten, Beaten)

    def _answer(
        self, group: str, answer: Callable[[Told], None], told: Told, refused: Callable[[GroupError], Told]
    ) -> None:
        """When what has changed of the group is safe."""
        self.saver.keep(group, lambda error: answer(told if error is None else refused(error)))

    def _first(self, name: str, before: Group | None, beat: Beat) -> Beaten:
        """A group that was not divided by the broker, or was not there, is from now on."""
        self._require_room(name)
        group = self._add_consumer(name)
        waiting: list[tuple[Joining, Callable[[Joined], None]]] = []
        try:
            group.require_known(beat)
            if before is None or before.state is State.EMPTY:
                group.touched.update({} if before is None else before.touched)
            else:
                waiting = group.take_over(before)
            beaten = group.heartbeat(beat)
        except GroupError:
            if not group.members:
                del self.groups[name]
                if before is not None:
                    self.groups[name] = before
            raise
        for joining, answer in waiting:
            try:
                self.join(name, joining, answer)
            except GroupError as error:
                answer(Joined(error, member_id=joining.member_id))
        return beaten

    def flush(self) -> None:
        """The end of a turn in which something has changed (rule 3)."""
        for group in [one for one in self.saver.unsaved.values() if isinstance(one, MixedGroup)]:
            if group.is_for_members and self.groups.get(group.name) is group:
                group.hand_over(self._add_classic(group.name))
        self.saver.flush()

    # ---- offsets

    async def commit(
        self,
        group: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[Partition, Committed],
        *,
        knows_epochs: bool = True,
    ) -> None:
        """Store offsets of a group's member, or of who divides partitions without it. `knows_epochs` is whether the
        generation can be a member's epoch. Raises GroupError, StorageUnavailable.
        """
        self._require_here(group)
        found = self.groups.get(group)
        if found is not None:
            if isinstance(found, MixedGroup) and not knows_epochs and found.has_epochs(member_id):
                raise NeedsEpochs(f"members of group '{group}' have epochs")
            found.check_commit(member_id, instance_id, generation, offsets.keys())
            if isinstance(found, Group):  # in a transaction nobody asks again: it would be the end of Java's producer
                found.require_not(State.COMPLETING)
        elif generation >= 0:
            if group in self._offsets.groups:
                raise UnknownMember(f"group '{group}' has no members")
            if knows_epochs:
                raise UnknownGroup(f"there is no group '{group}'")
            raise IllegalGeneration(f"group '{group}' has no members")
        await self._offsets.commit(group, offsets)

    def check_member(
        self,
        group: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        partitions: Collection[Partition] = (),
    ) -> None:
        """Whether who commits offsets of these in a transaction may; who says of no member that it is one may always.
        Raises GroupError.
        """
        self._require_here(group)
        found = self.groups.get(group)
        if found is not None and (member_id or instance_id is not None or generation >= 0):
            found.check_commit(member_id, instance_id, generation, partitions)
        elif generation >= 0:
            raise UnknownMember(f"group '{group}' has no members")

    def unstable(self, group: str, partitions: Iterable[Partition] | None = None) -> set[Partition]:
        """Where a transaction that is not ended may change how far a group has come."""
        return self._offsets.unstable(group, partitions)

    async def fetch(
        self,
        group: str,
        partitions: Iterable[Partition] | None = None,
        *,
        member_id: str | None = None,
        epoch: int = -1,
    ) -> dict[Partition, Committed]:
        """How far a group has come; who says which member it is has to be that one. While this broker hands its log
        over, whoever leads it next is waited for and asked: a client that has just been given partitions may ask once.
        What is `unstable` then is known here, as members of before commit nothing any more. Where it has just moved
        to is not told: librdkafka, told NotCoordinator here, reads nothing more, for ever, and asks again otherwise.

        Raises GroupError, StorageUnavailable.
        """
        nobody: CoordinatorUnavailable | None = None
        try:
            self._require_here(group)
        except NotCoordinator as error:
            if self._now_ms() < self._just_moved_until_ms.get(self._log_of(group), 0):
                raise CoordinatorLoading(str(error)) from None
            raise
        except CoordinatorUnavailable as error:
            if self._offsets.store_of(group) is None:
                raise
            nobody = error
        found = self.groups.get(group)
        if isinstance(found, MixedGroup) and (member_id is not None or epoch >= 0):
            found.check_commit(member_id or "", None, epoch)
        try:
            return await self._offsets.fetch(group, partitions)
        except StorageUnavailable:
            if nobody is not None:
                raise nobody from None
            raise

    # ---- what operators ask

    def require_all_read(self) -> None:
        """Raises CoordinatorLoading: some of the groups that are looked after here are not known yet."""
        if not (isinstance(self._offsets, OffsetStore) or self._offsets.all_read()):
            raise CoordinatorLoading("what is kept of some groups is being read")

    def names(self) -> list[str]:
        """The groups that are looked after here, as far as they are known."""
        return sorted({*self.groups, *self._offsets.groups})

    def describe(self, name: str) -> Group | MixedGroup | None:
        """A group with its members; None if it has had none but has come somewhere. Raises GroupError."""
        self._require_here(name)
        found = self.groups.get(name)
        if found is None and name not in self._offsets.groups:
            raise UnknownGroup(f"there is no group '{name}'")
        return found

    async def delete(self, name: str) -> None:
        """Forget a group without members. Raises GroupError, StorageUnavailable."""
        found = self.describe(name)
        if found is not None and not _is_empty(found):
            raise GroupNotEmpty(f"group '{name}' has {len(found.members)} members")
        await self._forget(name, {*self._offsets.known(name), *self.unstable(name)})

    async def _forget(self, name: str, partitions: Iterable[Partition]) -> None:
        found = self.groups.get(name)
        states = removal(found) if found is not None else ()
        if found is not None:
            self._close(name, UnknownMember(f"group '{name}' was deleted"))
        await self._offsets.forget(name, partitions, states)

    async def forget(self, name: str, partitions: Iterable[Partition]) -> set[str]:
        """Forget where a group has come, but in topics that members read: which these are. Raises GroupError,
        StorageUnavailable.
        """
        found, places = self.describe(name), list(partitions)
        read = {topic for topic, _ in places if found is not None and found.reads(topic)}
        if found is None and set(places).issuperset(self._offsets.known(name)):
            self._add_classic(name)  # rule 4: its last offsets are not the end of it
        await self._offsets.forget(name, [place for place in places if place[0] not in read])
        return read

    async def move_on(self, name: str, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Have a group go on further ahead: by how much it was moved, where it was. Members that have such a partition
        are put out, and join again. Raises GroupError, StorageUnavailable.
        """
        self._require_here(name)
        known, unsure = self._offsets.known(name, offsets), self.unstable(name, offsets)
        moves = {
            place: Committed(offsets[place], was.note)
            for place, was in known.items()
            if was.offset < offsets[place] and place not in unsure
        }
        found = self.groups.get(name)
        if found is not None:
            for member_id in found.readers_of(moves):
                found.leave(member_id, None)
        if moves:
            await self._offsets.commit(name, moves)
        return {place: to.offset - known[place].offset for place, to in moves.items()}

    async def expire(self) -> None:
        """Forget what is not kept any longer (rule 4)."""
        before_ms = self._wall_clock_ms() - self._config.group_offsets_retention_ms
        for store in self._offsets.stores():
            names = [name for name in {*store.groups, *self.groups} if self._store_of(name) is store]
            for start in range(0, len(names), _EXPIRED_AT_ONCE):
                async with trio.open_nursery() as nursery:  # they wait for the disk together
                    for name in names[start : start + _EXPIRED_AT_ONCE]:
                        if self._is_due(name, store, before_ms):
                            nursery.start_soon(self._expire, name, store, before_ms)

    def _is_due(self, name: str, store: OffsetStore, before_ms: int) -> bool:
        found = self.groups.get(name)
        if found is not None and (not _is_empty(found) or (isinstance(found, Group) and found.given)):
            return False
        if self.saver.owes(name):
            return False  # or its last member, leaving, would be told that there is no group
        if store.last_ms(name) is None:
            return found is not None
        return (found is None or found.empty_since_ms < before_ms) and bool(store.older(name, before_ms))

    async def _expire(self, name: str, store: OffsetStore, before_ms: int) -> None:
        if self._store_of(name) is not store or not self._is_due(name, store, before_ms):
            return
        found, old = self.groups.get(name), store.older(name, before_ms)
        try:
            if len(old) < len(store.known(name)):
                await self._offsets.forget(name, old)
            elif found is not None and not old and found.head_touched and name not in self.saver.unsaved:
                self._close(name, UnknownMember(f"group '{name}' has no members"))  # it never had any
            else:
                await self._forget(name, old)
        except StorageUnavailable as error:
            logger.warning("what is over of group '%s' is kept longer: %s", name, error)


def _is_empty(group: Group | MixedGroup) -> bool:
    return not group.members if isinstance(group, MixedGroup) else group.state is State.EMPTY
