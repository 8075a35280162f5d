"""The native protocol's messages of groups; see `wire` and README.md.

What a member wants and what it gets are in the bytes of Kafka's consumer protocol (`group_bytes.py`), so that members
of both protocols may share a group.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from protocols.native.wire_base import ENTRIES_MAX, Blob, Count, Name, NameOrNone, Offset, Reply, Request, Text

API_MAX = 31
OF_GROUP: Final = 0
OF_TRANSACTION: Final = 1
NO_GENERATION = -1
"""Of who divides partitions without the group."""

Milliseconds = Annotated[int, Meta(ge=1, le=0x7FFF_FFFF)]
Generation = Annotated[int, Meta(ge=NO_GENERATION, le=0x7FFF_FFFF)]
_Entries = Meta(max_length=ENTRIES_MAX)
_SomeEntries = Meta(min_length=1, max_length=ENTRIES_MAX)


class FindCoordinator(Request, tag=16):
    """Which broker looks after a group (`kind` 0), or a transactional id (1)."""

    kind: Literal[0, 1]
    name: Name


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


class ConsumerHeartbeat(Request, tag=30):
    """A member of a group that the broker divides is there (KIP-848). `epoch` 0: it comes; -1: it goes; -2: it goes,
    and will be back as the same static member. What is null, or a timeout of -1, is as it said before.
    """

    group: Name
    member_id: Name
    epoch: Annotated[int, Meta(ge=-2, le=0x7FFF_FFFF)]
    instance_id: Name | None
    rebalance_timeout_ms: Annotated[int, Meta(ge=-1, le=0x7FFF_FFFF)]
    topics: Annotated[list[Name], _Entries] | None
    pattern: Text | None
    assignor: Name | None
    owned: Annotated[list[tuple[Name, Count]], _Entries] | None


class FetchGroupOffsets(Request, tag=31):
    """`FetchOffsets` of who is about to read on there; asked of who looks after the group."""

    group: Name
    partitions: Annotated[list[tuple[Name, Count]], _Entries]


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


class ConsumerHeartbeatReply(Reply, tag=30):
    """In how many ms to be heard of again, and what the member may read; null: as before."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int
    assignment: list[tuple[str, int]] | None


class FetchGroupOffsetsReply(Reply, tag=31):
    """(topic, partition, offset, metadata) of what is committed; no transaction may change it any more."""

    entries: list[tuple[str, int, int, str]]


AnyGroupRequest = (
    FindCoordinator | JoinGroup | SyncGroup | Heartbeat | LeaveGroup | CommitGroupOffsets | ListGroups | DescribeGroup
    | DeleteGroup | ForgetOffsets | ConsumerHeartbeat | FetchGroupOffsets
)  # fmt: skip
AnyGroupReply = (
    FindCoordinatorReply | JoinGroupReply | SyncGroupReply | HeartbeatReply | LeaveGroupReply | CommitGroupOffsetsReply
    | ListGroupsReply | DescribeGroupReply | DeleteGroupReply | ForgetOffsetsReply
    | ConsumerHeartbeatReply | FetchGroupOffsetsReply
)  # fmt: skip
