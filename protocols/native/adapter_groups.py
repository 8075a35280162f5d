"""Groups as native clients see them: the same coordinator as that of the Kafka door.

Who joins, or asks what to read, is answered when the group has got so far; no task waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from protocols.adapter_topics import nodes_of
from protocols.native import wire, wire_groups
from protocols.native.adapter_errors import Refused, engine_error
from protocols.native.adapter_rights import require_id
from protocols.native.clients.group_bytes import GroupBytesError, decode_assignment
from protocols.native.config import NativeConfig
from protocols.native.errors import ErrorCode
from routing import queue_lag
from routing.access.grants import Grants
from routing.broker import Broker
from routing.groups.consumer_group import ConsumerGroup
from routing.groups.consumer_member import Beat, Beaten
from routing.groups.errors import CoordinatorUnavailable, GroupNotEmpty, MemberIdRequired, UnknownGroup, UnknownMember
from routing.groups.group import Group
from routing.groups.membership import Joined, Joining, State, Synced
from routing.topics.offset_store import Committed, Partition

PROTOCOL_TYPE = "consumer"


class GroupDoor:
    """A connection's side of the groups. `may_read` raises unless partitions are there and may be read; `answer_later`
    sends a reply, if there is still somebody to send it to.
    """

    def __init__(
        self,
        broker: Broker,
        config: NativeConfig,
        door: str,
        peer: str,
        client_name: str,
        grants: Grants,
        may_read: Callable[[Iterable[tuple[str, int]]], None],
        answer_later: Callable[[wire.Reply], None],
    ) -> None:
        self.broker = broker
        self.config = config
        self.door = door
        self.host = "/" + peer.rpartition(":")[0].strip("[]")
        self.client_name = client_name
        self.grants = grants
        self.may_read = may_read
        self.answer_later = answer_later


async def _find_coordinator(door: GroupDoor, request: wire_groups.FindCoordinator) -> wire.Reply:
    broker, cluster = door.broker, door.broker.cluster
    if request.kind == wire_groups.OF_TRANSACTION:
        require_id(door.grants, request.name)
    node = (broker.groups if request.kind == wire_groups.OF_GROUP else broker.coordinator).broker_of(request.name)
    if cluster is None:
        return wire_groups.FindCoordinatorReply(request.correlation_id, door.config.node_id, "", 0)
    for found in nodes_of(cluster, door.door):
        if found.broker_id == node:
            return wire_groups.FindCoordinatorReply(request.correlation_id, node, found.host, found.port)
    raise CoordinatorUnavailable(f"nobody looks after '{request.name}' now")


async def _join_group(door: GroupDoor, request: wire_groups.JoinGroup) -> None:
    def answer(joined: Joined) -> None:
        if isinstance(joined.error, MemberIdRequired):
            reply = wire_groups.JoinGroupReply(request.correlation_id, -1, "", "", joined.member_id, [], False)
        elif joined.error is not None:
            door.answer_later(wire.ErrorReply(request.correlation_id, engine_error(joined.error)))
            return
        else:
            reply = wire_groups.JoinGroupReply(
                request.correlation_id,
                joined.generation,
                joined.protocol,
                joined.leader,
                joined.member_id,
                list(joined.members),
                joined.skip_assignment,
            )
        door.answer_later(reply)

    joining = Joining(
        request.member_id,
        request.instance_id,
        door.client_name or "millrace",
        door.host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        PROTOCOL_TYPE,
        request.protocols,
        must_have_id=True,
    )
    door.broker.groups.join(request.group, joining, answer)


async def _sync_group(door: GroupDoor, request: wire_groups.SyncGroup) -> None:
    def answer(synced: Synced) -> None:
        if synced.error is not None:
            door.answer_later(wire.ErrorReply(request.correlation_id, engine_error(synced.error)))
        else:
            door.answer_later(wire_groups.SyncGroupReply(request.correlation_id, synced.assignment))

    door.broker.groups.sync(
        request.group,
        request.member_id,
        request.instance_id,
        request.generation,
        PROTOCOL_TYPE,
        request.protocol,
        dict(request.assignments),
        answer,
    )


async def _heartbeat(door: GroupDoor, request: wire_groups.Heartbeat) -> wire.Reply:
    door.broker.groups.heartbeat(request.group, request.member_id, request.instance_id, request.generation)
    return wire_groups.HeartbeatReply(request.correlation_id)


async def _leave_group(door: GroupDoor, request: wire_groups.LeaveGroup) -> wire.Reply:
    door.broker.groups.leave(request.group, request.member_id, request.instance_id)
    return wire_groups.LeaveGroupReply(request.correlation_id)


def offsets_of(entries: Iterable[tuple[str, int, int, str]]) -> dict[Partition, Committed]:
    """What a request says of how far a group has come."""
    return {(topic, index): Committed(offset, note) for topic, index, offset, note in entries}


def entries_of(offsets: Mapping[Partition, Committed]) -> list[tuple[str, int, int, str]]:
    """The same for a reply."""
    return [(topic, index, at.offset, at.note) for (topic, index), at in offsets.items()]


async def _commit_group_offsets(door: GroupDoor, request: wire_groups.CommitGroupOffsets) -> wire.Reply:
    offsets = offsets_of(request.entries)
    door.may_read(offsets)
    try:
        await door.broker.groups.commit(
            request.group, request.member_id, request.instance_id, request.generation, offsets
        )
    except UnknownGroup as error:  # so it has no such member either
        raise UnknownMember(str(error)) from None
    return wire_groups.CommitGroupOffsetsReply(request.correlation_id)


async def _list_groups(door: GroupDoor, request: wire_groups.ListGroups) -> wire.Reply:
    door.broker.groups.require_all_read()
    found = []
    known = door.broker.groups.names()
    found += [
        (name, PROTOCOL_TYPE, State.EMPTY.value, 0) for name in sorted(queue_lag.groups(door.broker).difference(known))
    ]
    for name in known:
        group = door.broker.groups.groups.get(name)
        if group is None:
            found.append((name, PROTOCOL_TYPE, State.EMPTY.value, 0))
        else:
            state = group.state.value if isinstance(group, Group) else group.state
            found.append((name, group.protocol_type, state, len(group.members)))
    return wire_groups.ListGroupsReply(request.correlation_id, found)


async def _describe_group(door: GroupDoor, request: wire_groups.DescribeGroup) -> wire.Reply:
    group = door.broker.groups.describe(request.group)
    if group is None:
        return wire_groups.DescribeGroupReply(request.correlation_id, State.EMPTY.value, PROTOCOL_TYPE, "", 0, [])
    if isinstance(group, ConsumerGroup):
        members = _served_members(door, group)
        return wire_groups.DescribeGroupReply(
            request.correlation_id, group.state, group.protocol_type, group.assignor, group.epoch, members
        )
    return wire_groups.DescribeGroupReply(
        request.correlation_id,
        group.state.value,
        group.protocol_type,
        group.protocol,
        group.generation,
        _members(group),
    )


def _members(group: Group) -> list[wire_groups.MemberDescription]:
    return [
        wire_groups.MemberDescription(
            member.id,
            member.joining.instance_id,
            member.joining.client_id,
            member.joining.client_host,
            _assigned(group, member.assignment),
        )
        for member in group.members.values()
    ]


def _served_members(door: GroupDoor, group: ConsumerGroup) -> list[wire_groups.MemberDescription]:
    """Of a group that the broker divides."""
    return [
        wire_groups.MemberDescription(
            member.id,
            member.instance_id,
            member.client_id,
            member.client_host,
            sorted(_named(door, member.held)),
        )
        for member in group.members.values()
    ]


def _assigned(group: Group, assignment: bytes) -> list[tuple[str, int]]:
    """Groups of another protocol type have bytes that only they know."""
    if group.protocol_type != PROTOCOL_TYPE or group.state is not State.STABLE:
        return []
    try:
        return sorted(decode_assignment(assignment))
    except GroupBytesError:
        return []


def _may_forget(door: GroupDoor, partitions: Iterable[tuple[str, int]]) -> None:
    door.may_read(key for key in partitions if key[0] in door.broker.topics)


async def _delete_group(door: GroupDoor, request: wire_groups.DeleteGroup) -> wire.Reply:
    _may_forget(door, await door.broker.groups.fetch(request.group))
    await door.broker.groups.delete(request.group)
    return wire_groups.DeleteGroupReply(request.correlation_id)


async def _forget_offsets(door: GroupDoor, request: wire_groups.ForgetOffsets) -> wire.Reply:
    _may_forget(door, request.partitions)
    if read := await door.broker.groups.forget(request.group, request.partitions):
        raise GroupNotEmpty(f"members of group '{request.group}' read {', '.join(sorted(read))}")
    return wire_groups.ForgetOffsetsReply(request.correlation_id)


async def _consumer_heartbeat(door: GroupDoor, request: wire_groups.ConsumerHeartbeat) -> None:
    def answer(beaten: Beaten) -> None:
        if beaten.error is not None:
            door.answer_later(wire.ErrorReply(request.correlation_id, engine_error(beaten.error)))
            return
        assignment = None if beaten.assignment is None else sorted(_named(door, beaten.assignment))
        door.answer_later(
            wire_groups.ConsumerHeartbeatReply(
                request.correlation_id, beaten.member_id, beaten.epoch, beaten.interval_ms, assignment
            )
        )

    for topic in request.topics or ():
        door.grants.require("read", "topic", topic)
    topics = door.broker.topics
    owned = None
    if request.owned is not None:
        owned = frozenset((topics[topic].id, index) for topic, index in request.owned if topic in topics)
    beat = Beat(
        request.member_id,
        request.epoch,
        request.instance_id,
        None,
        door.client_name or "millrace",
        door.host,
        request.rebalance_timeout_ms,
        None if request.topics is None else frozenset(request.topics),
        request.pattern,
        request.assignor,
        owned,
        door.grants,
    )
    await door.broker.groups.prepare(request.group, beat)
    door.broker.groups.beat(request.group, beat, answer)


def _named(door: GroupDoor, places: Iterable[tuple[bytes, int]]) -> Iterator[tuple[str, int]]:
    """Partitions whose topics are told by their ids; those of topics that are gone are left out."""
    topics = door.broker.topics.by_id
    return ((topics[topic_id].name, index) for topic_id, index in places if topic_id in topics)


async def _fetch_group_offsets(door: GroupDoor, request: wire_groups.FetchGroupOffsets) -> wire.Reply:
    door.may_read(request.partitions)
    groups = door.broker.groups
    unstable = groups.unstable(request.group, request.partitions)
    found = await groups.fetch(request.group, request.partitions)
    if unstable:
        raise Refused(ErrorCode.TRANSACTION_ENDING, "a transaction may change how far the group has come")
    return wire_groups.FetchGroupOffsetsReply(request.correlation_id, entries_of(found))


HANDLERS: dict[type[wire.Request], Callable[[GroupDoor, Any], Awaitable[wire.Reply | None]]] = {
    wire_groups.FindCoordinator: _find_coordinator,
    wire_groups.JoinGroup: _join_group,
    wire_groups.SyncGroup: _sync_group,
    wire_groups.Heartbeat: _heartbeat,
    wire_groups.LeaveGroup: _leave_group,
    wire_groups.CommitGroupOffsets: _commit_group_offsets,
    wire_groups.ListGroups: _list_groups,
    wire_groups.DescribeGroup: _describe_group,
    wire_groups.DeleteGroup: _delete_group,
    wire_groups.ForgetOffsets: _forget_offsets,
    wire_groups.ConsumerHeartbeat: _consumer_heartbeat,
    wire_groups.FetchGroupOffsets: _fetch_group_offsets,
}
