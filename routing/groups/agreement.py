"""Whether the members of a group have a way in common to divide partitions.

Each of thousands that join is asked: what all have in common is kept from one to the next. It is never more than what
they have in common now, as nobody is forgotten who went; where that is not enough all are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from routing.groups.errors import InconsistentProtocol
from routing.groups.membership import Joining, Member


class Agreement:
    """See the module. `joins` is called with all who join, `forget` when members come otherwise."""

    def __init__(self) -> None:
        self._common: set[str] | None = None

    def joins(self, joining: Joining) -> None:
        """It is a member's from now on."""
        if self._common is not None:
            self._common &= _ways(joining)

    def forget(self) -> None:
        """There are other members."""
        self._common = None

    def require(self, joining: Joining, group: str, protocol_type: str, members: Iterable[Member]) -> None:
        """Raises InconsistentProtocol if somebody who wants to join has nothing in common with the other members."""
        if not joining.protocols or not joining.protocol_type:
            raise InconsistentProtocol("a member has to say how partitions can be divided")
        mine = _ways(joining)
        if joining.protocol_type == protocol_type:
            if self._common is None:
                self._common = _common([member.joining for member in members])
            if not mine.isdisjoint(self._common):
                return
        self._common = None
        others = [member.joining for member in members if member.id != joining.member_id]
        if joining.instance_id is not None:
            others = [other for other in others if other.instance_id != joining.instance_id]
        if others and (joining.protocol_type != protocol_type or mine.isdisjoint(_common(others))):
            raise InconsistentProtocol(f"the members of group '{group}' have no way to divide partitions in common")


def _ways(joining: Joining) -> set[str]:
    return {name for name, _ in joining.protocols}


def _common(joined: list[Joining]) -> set[str]:
    return set.intersection(*map(_ways, joined)) if joined else set()
