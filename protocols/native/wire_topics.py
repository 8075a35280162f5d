"""The native protocol's messages about topics themselves: making and describing them, and what is copied to them; see
`wire` and README.md.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from protocols.native.wire_base import CONFIG_MAX, Argument, Name, NameOrNone, Reply, Request, Text

Partitions = Annotated[int, Meta(ge=1)]
"""How many there may be the broker says."""


class CreateTopic(Request, tag=2):
    """`config` as text, by the names of the log's configuration."""

    name: Name
    partitions: Partitions
    config: Annotated[dict[Name, Text], Meta(max_length=CONFIG_MAX)]


class DeleteTopic(Request, tag=3):
    """The topic and all its records."""

    name: Name


class DescribeTopic(Request, tag=4):
    """Configuration and offsets of a topic."""

    name: Name


class CreatePartitions(Request, tag=14):
    """Have a topic have `partitions` partitions; it never has fewer than before."""

    name: Name
    partitions: Partitions


class Bind(Request, tag=5):
    """Copy what an exchange routes by `pattern` to the topic."""

    topic: Name
    exchange: NameOrNone
    pattern: Text
    arguments: Annotated[dict[Name, Argument], Meta(max_length=CONFIG_MAX)]


class Unbind(Request, tag=6):
    """The inverse of `Bind`, with the same fields."""

    topic: Name
    exchange: NameOrNone
    pattern: Text
    arguments: Annotated[dict[Name, Argument], Meta(max_length=CONFIG_MAX)]


class CreateTopicReply(Reply, tag=2):
    """Created, durably."""


class DeleteTopicReply(Reply, tag=3):
    """Deleted, durably."""


UNKNOWN = -1
"""An offset or a size of a partition of which the broker that is asked has no replica."""


class PartitionDescription(Struct, array_like=True, gc=False):
    """One partition as `DescribeTopic` tells it; its offsets and its size may be UNKNOWN."""

    partition: int
    leader: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    replicas: list[int] = []
    isr: list[int] = []

    @property
    def is_there(self) -> bool:
        """The broker that was asked has a replica."""
        return self.size_bytes != UNKNOWN

    @property
    def single_copy(self) -> bool:
        """One replica at most is in sync: what is confirmed, be it with acks "all", is on one disk."""
        return len(self.isr) <= 1


class DescribeTopicReply(Reply, tag=4):
    """The topic's own configuration and each partition."""

    name: str
    config: dict[str, str]
    partitions: list[PartitionDescription]


class CreatePartitionsReply(Reply, tag=14):
    """It has them, durably."""


class BindReply(Reply, tag=5):
    """Bound, durably."""


class UnbindReply(Reply, tag=6):
    """Unbound, durably."""


AnyTopicRequest = CreateTopic | DeleteTopic | DescribeTopic | CreatePartitions | Bind | Unbind
AnyTopicReply = (
    CreateTopicReply | DeleteTopicReply | DescribeTopicReply | CreatePartitionsReply | BindReply | UnbindReply
)
