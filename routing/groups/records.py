"""What is kept of a group beside its offsets, in the same log: a record of the group, and one of each member.

    [group]             [kind, ...]
    [group, member id]  [...]

msgpack, as the offsets are, whose keys have three parts. Records of a group are put together (`saver.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgpack

from routing.groups.assigned import PROTOCOL_TYPE
from routing.groups.assignors import NOWHERE, Places
from routing.groups.consumer_group import ConsumerGroup
from routing.groups.consumer_member import ConsumerMember, Step
from routing.groups.group import Group
from routing.groups.membership import Joining, Member

CLASSIC, CONSUMER = Group.kind, ConsumerGroup.kind
_SAID_OF_ALL = 15
"""So much is kept of each member of a group that the broker divides; more of those who are classic."""
Puts = list[tuple[bytes, bytes | None]]


def head_key(group: str) -> bytes:
    """Of the record of a group."""
    return msgpack.packb([group])  # type: ignore[no-any-return]


def member_key(group: str, member_id: str) -> bytes:
    """Of the record of a member."""
    return msgpack.packb([group, member_id])  # type: ignore[no-any-return]


def changes(group: Group | ConsumerGroup) -> Puts:
    """The records of what has changed. The group's own is the last."""
    puts: Puts = []
    for member_id in group.touched:
        puts.append((member_key(group.name, member_id), _member_value(group, member_id)))
    if group.head_touched:
        puts.append((head_key(group.name), _head_value(group)))
    return puts


def kept(group: Group | ConsumerGroup) -> None:
    """They were written."""
    group.touched.clear()
    group.head_touched = False


def removal(group: Group | ConsumerGroup) -> Puts:
    """Tombstones of a group without members."""
    return [*((member_key(group.name, member_id), None) for member_id in group.touched), (head_key(group.name), None)]


def _head_value(group: Group | ConsumerGroup) -> bytes:
    if isinstance(group, Group):
        said: list[Any] = [
            CLASSIC, group.empty_since_ms, group.generation, group.protocol_type, group.protocol, group.leader,
        ]  # fmt: skip
    else:
        said = [
            CONSUMER, group.empty_since_ms, group.epoch, group.assignment_epoch, group.assignor,
            {name: list(found) for name, found in group.metadata.items()},
        ]  # fmt: skip
    return msgpack.packb(said)  # type: ignore[no-any-return]


def _member_value(group: Group | ConsumerGroup, member_id: str) -> bytes | None:
    if isinstance(group, Group):
        classic = group.members.get(member_id)
        return None if classic is None else msgpack.packb(_said_of_classic(classic))
    member = group.members.get(member_id)
    if member is None:
        return None
    return msgpack.packb(_said_of(member, group.target.get(member_id, NOWHERE)))  # type: ignore[no-any-return]


def _said_of_classic(member: Member) -> list[Any]:
    joining = member.joining
    return [
        joining.instance_id, joining.client_id, joining.client_host, joining.session_timeout_ms,
        joining.rebalance_timeout_ms, [list(one) for one in joining.protocols], member.assignment,
    ]  # fmt: skip


def _said_of(member: ConsumerMember, target: Places) -> list[Any]:
    joining = member.classic
    classic = [] if joining is None else [joining.session_timeout_ms, [list(one) for one in joining.protocols]]
    return [
        member.instance_id, member.client_id, member.client_host, member.rack_id, member.rebalance_timeout_ms,
        sorted(member.topics), member.pattern, sorted(member.matched), member.assignor, member.epoch,
        member.previous_epoch, member.step.value, _packed(member.assigned), _packed(member.revoking), _packed(target),
        *classic,
    ]  # fmt: skip


def _packed(places: Places) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for topic, number in sorted(places):
        found.setdefault(topic, []).append(number)
    return found


def _places(packed: Mapping[bytes, Iterable[int]]) -> Places:
    return frozenset((topic, number) for topic, numbers in packed.items() for number in numbers)


def kind_of(records: Mapping[str, bytes]) -> str:
    """Of the group that records are of: by member id, the group's own as ""."""
    return str(msgpack.unpackb(records[""], strict_map_key=False)[0])


def restore_classic(group: Group, records: Mapping[str, bytes]) -> None:
    """Make of a new group what its records say."""
    _, group.empty_since_ms, group.generation, group.protocol_type, group.protocol, group.leader = msgpack.unpackb(
        records[""]
    )
    for member_id, value in records.items():
        if member_id:
            instance, client_id, host, session_ms, rebalance_ms, protocols, assignment = msgpack.unpackb(value)
            joining = Joining(
                member_id, instance, client_id, host, session_ms, rebalance_ms, group.protocol_type,
                [(name, metadata) for name, metadata in protocols],
            )  # fmt: skip
            member = group.members[member_id] = Member(member_id, joining)
            member.assignment = assignment
    if group.leader not in group.members:
        group.leader = next(iter(group.members), "")
    group.restored()


def restore_consumer(group: ConsumerGroup, records: Mapping[str, bytes]) -> None:
    """The same of a group that the broker divides."""
    _, group.empty_since_ms, group.epoch, group.assignment_epoch, group.assignor, metadata = msgpack.unpackb(
        records[""], strict_map_key=False
    )
    group.metadata = {name: (topic_id, count) for name, (topic_id, count) in metadata.items()}
    for member_id, value in records.items():
        if member_id:
            group.target[member_id] = _restore_member(group, member_id, value)
    group.restored()


def _restore_member(group: ConsumerGroup, member_id: str, value: bytes) -> Places:
    said = msgpack.unpackb(value, strict_map_key=False)
    member = group.members[member_id] = ConsumerMember(member_id, said[0])
    _, member.client_id, member.client_host, member.rack_id, member.rebalance_timeout_ms = said[:5]
    member.topics, member.pattern, member.matched = frozenset(said[5]), said[6], frozenset(said[7])
    member.assignor, member.epoch, member.previous_epoch = said[8:11]
    member.step = Step(said[11])
    member.assigned, member.revoking = _places(said[12]), _places(said[13])
    if len(said) > _SAID_OF_ALL:
        member.classic = Joining(
            member_id, member.instance_id, member.client_id, member.client_host, said[15], member.rebalance_timeout_ms,
            PROTOCOL_TYPE, [(name, metadata) for name, metadata in said[16]],
        )  # fmt: skip
    return _places(said[14])
