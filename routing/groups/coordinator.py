"""The consumer groups that this broker looks after: their members, and how far they have come.

1. In a cluster a group is looked after by whoever leads the log of its offsets; who leads that no more lets go of all
   its groups, and their members find the next one. Members are in memory alone: they join again, at the same offsets.
2. Offsets are those of `offset_store`, the same for members of every protocol and for who is none.
3. A group that has no members and no offsets is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from routing.cluster.log_names import offsets_log
from routing.config import BrokerConfig
from routing.groups.errors import (
    CoordinatorUnavailable,
    GroupNotEmpty,
    InvalidGroup,
    InvalidSessionTimeout,
    NotCoordinator,
    UnknownGroup,
    UnknownMember,
)
from routing.groups.group import Group, Joined, Joining, SetTimer, State, Synced
from routing.topics.offset_store import Committed, OffsetStore, Partition

if TYPE_CHECKING:
    from routing.cluster.cluster import Cluster
    from routing.cluster.offsets import ReplicatedOffsets


class Coordinator:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        offsets: OffsetStore | ReplicatedOffsets,
        timer: SetTimer,
        cluster: Cluster | None = None,
    ) -> None:
        self.groups: dict[str, Group] = {}
        self._config = config
        self._offsets = offsets
        self._timer = timer
        self._cluster = cluster
        if cluster is not None:
            cluster.moved.append(self._moved)

    # ---- who looks after a group

    def broker_of(self, group: str) -> int | None:
        """The broker that does; None: nobody now. A single one is 0."""
        return 0 if self._cluster is None else self._cluster.leader_of(self._log_of(group))[0]

    def _log_of(self, group: str) -> str:
        assert not isinstance(self._offsets, OffsetStore)
        return offsets_log(self._offsets.log_of(group))

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

    def _moved(self, log: str) -> None:
        cluster = self._cluster
        assert cluster is not None
        if cluster.leader_of(log)[0] != cluster.broker_id:
            for name in [name for name in self.groups if self._log_of(name) == log]:
                self.groups.pop(name).close(NotCoordinator(f"group '{name}' has moved to another broker"))

    def _group(self, name: str) -> Group:
        """One that has, or had, members. Raises UnknownMember as well."""
        self._require_here(name)
        found = self.groups.get(name)
        if found is None:
            raise UnknownMember(f"group '{name}' has no members")
        return found

    # ---- members

    def join(self, group: str, joining: Joining, answer: Callable[[Joined], None]) -> None:
        """See `Group.join`. Raises GroupError."""
        self._require_here(group)
        config = self._config
        least, most = config.group_session_timeout_ms_min, config.group_session_timeout_ms_max
        if not least <= joining.session_timeout_ms <= most:
            raise InvalidSessionTimeout(f"a session timeout is {least} to {most} ms here")
        found = self.groups.get(group)
        if found is None:
            if joining.member_id:
                raise UnknownMember(f"group '{group}' has no members")
            found = self.groups[group] = Group(
                group,
                self._timer,
                initial_delay_ms=config.group_initial_delay_ms,
                members_max=config.group_members_max,
            )
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
        self._group(group).sync(member_id, instance_id, generation, protocol_type, protocol, assignments, answer)

    def heartbeat(self, group: str, member_id: str, instance_id: str | None, generation: int) -> None:
        """See `Group.heartbeat`. Raises GroupError."""
        self._group(group).heartbeat(member_id, instance_id, generation)

    def leave(self, group: str, member_id: str, instance_id: str | None) -> None:
        """See `Group.leave`. Raises GroupError."""
        self._group(group).leave(member_id, instance_id)

    # ---- offsets

    async def commit(
        self,
        group: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[Partition, Committed],
    ) -> None:
        """Store offsets of a group's member, or of who divides partitions without it. Raises GroupError,
        StorageUnavailable.
        """
        self._require_here(group)
        found = self.groups.get(group)
        if found is not None:
            found.check_commit(member_id, instance_id, generation)
        elif generation >= 0:
            raise UnknownMember(f"group '{group}' has no members")
        await self._offsets.commit(group, offsets)

    async def fetch(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """How far a group has come. Raises GroupError, StorageUnavailable."""
        self._require_here(group)
        return await self._offsets.fetch(group, partitions)

    # ---- what operators ask

    def names(self) -> list[str]:
        """The groups that are looked after here."""
        return sorted({name for name, group in self.groups.items() if group.members} | set(self._offsets.groups))

    def describe(self, name: str) -> Group | None:
        """A group with its members; None if it has none but has come somewhere. Raises GroupError."""
        self._require_here(name)
        found = self.groups.get(name)
        if (found is None or not found.members) and name not in self._offsets.groups:
            raise UnknownGroup(f"there is no group '{name}'")
        return found

    async def delete(self, name: str) -> None:
        """Forget a group without members. Raises GroupError, StorageUnavailable."""
        self._require_empty(name)
        self.describe(name)
        await self._offsets.forget(name, await self._offsets.fetch(name))
        found = self.groups.pop(name, None)
        if found is not None:
            found.close(UnknownMember(f"group '{name}' was deleted"))

    async def forget(self, name: str, partitions: Iterable[Partition]) -> None:
        """Forget where a group without members has come. Raises GroupError, StorageUnavailable."""
        self._require_empty(name)
        self.describe(name)
        await self._offsets.forget(name, partitions)

    def _require_empty(self, name: str) -> None:
        self._require_here(name)
        found = self.groups.get(name)
        if found is not None and found.state is not State.EMPTY:
            raise GroupNotEmpty(f"group '{name}' has {len(found.members)} members")
