"""The native protocol's messages of groups and of idempotent producers; see `wire` and README.md.

What a member wants and what it gets are in the bytes of Kafka's consumer protocol (`group_bytes.py`), so that members
of both protocols may share a group.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from protocols.native.wire_base import ENTRIES_MAX, Blob, Count, Name, NameOrNone, Offset, Reply, Request, Text

API_MAX = 26
NO_GENERATION = -1
"""Of who divides partitions without the group."""

Milliseconds = Annotated[int, Meta(ge=1, le=0x7FFF_FFFF)]
Generation = Annotated[int, Meta(ge=NO_GENERATION, le=0x7FFF_FFFF)]
_Entries = Meta(max_length=ENTRIES_MAX)
_SomeEntries = Meta(min_length=1, max_length=ENTRIES_MAX)


class FindCoordinator(Request, tag=16):
    """Which broker looks after a group."""

    group: Name


class JoinGroup(Request, tag=17):
    """Be in the group's next generation. `protocols` are (name, what the member wants), the preferred one first."""

    group: Name
    member_id: NameOrNone
    instance_id: Name | None
    session_timeout_ms: Milliseconds
    rebalance_timeout_ms: Milliseconds
    protocols: Annotated[list[tuple[Name, Blob]], Meta(min_length=1, max_length=100)]


class SyncGroup(Request, tag=18):
    """What the member is to read; the leader says what each one is."""

    group: Name
    member_id: Name
    instance_id: Name | None
    generation: Generation
    protocol: Name
    assignments: Annotated[list[tuple[Name, Blob]], _Entries]


class Heartbeat(Request, tag=19):
    """The member is there."""

    group: Name
    member_id: Name
    instance_id: Name | None
    generation: Generation


class LeaveGroup(Request, tag=20):
    """The member goes; one with an instance id may be named by that alone."""

    group: Name
    member_id: NameOrNone
    instance_id: Name | None


class CommitGroupOffsets(Request, tag=21):
    """`CommitOffsets` of a member, or with generation -1 of who moves a group that has none."""

    group: Name
    member_id: NameOrNone
    instance_id: Name | None
    generation: Generation
    entries: Annotated[list[tuple[Name, Count, Offset, Text]], _SomeEntries]


class ListGroups(Request, tag=22):
    """The groups that the broker looks after."""


class DescribeGroup(Request, tag=23):
    """Who is in a group, and what each member reads."""

    group: Name


class DeleteGroup(Request, tag=24):
    """Forget a group without members, and how far it has come."""

    group: Name


class ForgetOffsets(Request, tag=25):
    """Forget how far a group without members has come in some partitions."""

    group: Name
    partitions: Annotated[list[tuple[Name, Count]], _SomeEntries]


class InitProducer(Request, tag=26):
    """An id for a producer each of whose batches is to be there once."""


class FindCoordinatorReply(Reply, tag=16):
    """An empty host: the broker that was asked."""

    node_id: int
    host: str
    port: int


class JoinGroupReply(Reply, tag=17):
    """The generation has begun; -1: join again, with this member id. `members` are (id, instance id, what it wants),
    told to the leader alone. `skip_assignment`: what they read is known already.
    """

    generation: int
    protocol: str
    leader: str
    member_id: str
    members: list[tuple[str, str | None, bytes]]
    skip_assignment: bool


class SyncGroupReply(Reply, tag=18):
    """What the member reads."""

    assignment: bytes


class HeartbeatReply(Reply, tag=19):
    """So it is known."""


class LeaveGroupReply(Reply, tag=20):
    """It is out."""


class CommitGroupOffsetsReply(Reply, tag=21):
    """Committed, durably."""


class ListGroupsReply(Reply, tag=22):
    """(group, protocol type, state, number of members) of each."""

    groups: list[tuple[str, str, str, int]]


class MemberDescription(Struct, array_like=True, gc=False):
    """A member, and the (topic, partition)s that it reads."""

    member_id: str
    instance_id: str | None
    client_name: str
    host: str
    assignment: list[tuple[str, int]]


class DescribeGroupReply(Reply, tag=23):
    """`protocol` is how it divides partitions."""

    state: str
    protocol_type: str
    protocol: str
    generation: int
    members: list[MemberDescription]


class DeleteGroupReply(Reply, tag=24):
    """Forgotten, durably."""


class ForgetOffsetsReply(Reply, tag=25):
    """Forgotten, durably."""


class InitProducerReply(Reply, tag=26):
    """Nobody else has this id; epochs begin with 0 and are the producer's to count."""

    producer_id: int
    producer_epoch: int


AnyGroupRequest = (
    FindCoordinator | JoinGroup | SyncGroup | Heartbeat | LeaveGroup | CommitGroupOffsets | ListGroups | DescribeGroup
    | DeleteGroup | ForgetOffsets | InitProducer
)  # fmt: skip
AnyGroupReply = (
    FindCoordinatorReply | JoinGroupReply | SyncGroupReply | HeartbeatReply | LeaveGroupReply | CommitGroupOffsetsReply
    | ListGroupsReply | DescribeGroupReply | DeleteGroupReply | ForgetOffsetsReply | InitProducerReply
)  # fmt: skip
