"""What goes over links of kind `engine` beside the queues' own traffic, as frames: what queues that end with a broker
want, the messages for these, and group offsets. The codec is `wire_engine.py`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from protocols.peer.wire import ENTRIES_MAX, Frame, Maybe, Number
from protocols.peer.wire_slabs import Name, SlabEntry


class InterestEntry(Frame):
    """What queues that end with their broker want: `routing.topology.interest.Interest`."""

    vhost: Name
    exchange: Name
    pattern: Name
    syntax: Annotated[str, Meta(max_length=16)]
    arguments: Annotated[bytes, Meta(max_length=1 << 20)]
    queue: Name


class Wanted(Frame, tag=32):
    """More and less that is wanted at the sender; with `anew` all that was told before is void."""

    number: Maybe
    anew: bool
    more: Annotated[list[InterestEntry], Meta(max_length=ENTRIES_MAX)]
    less: Annotated[list[InterestEntry], Meta(max_length=ENTRIES_MAX)]


class Noted(Frame, tag=33):
    """All up to a number is known here. Queues of the same names are here, too: virtual host and name of each."""

    number: Maybe
    same: Annotated[list[tuple[Name, Name]], Meta(max_length=ENTRIES_MAX)]


class Forward(Frame, tag=34):
    """Messages for queues that end with the receiver; `copies` are further keys that they are published with. With a
    `queue` they are for that one alone. What has a `name` is not given to them twice; one that begins
    with `died:` says that queues in which it died do not get it.
    """

    vhost: Name
    copies: Annotated[list[Name], Meta(max_length=ENTRIES_MAX)]
    queue: Name
    name: Annotated[bytes, Meta(max_length=64)]
    slab: SlabEntry


class OffsetEntry(Frame):
    """How far a group has come in a partition."""

    topic: Name
    partition: Number
    offset: Number
    note: Annotated[str, Meta(max_length=65_535)]


class CommitPlainOffsets(Frame, tag=35):
    """`CommitOffsets` for brokers of versions that take no ids."""

    request: Number
    group: Name
    entries: Annotated[list[OffsetEntry], Meta(max_length=ENTRIES_MAX)]


class CommitOffsets(CommitPlainOffsets, tag=35):
    """Keep these for a group that the receiver leads, if it knows the topics by the same ids."""

    topic_ids: Annotated[list[tuple[Name, bytes]], Meta(max_length=ENTRIES_MAX)] = []


class FetchOffsets(Frame, tag=36):
    """Tell what a group has committed: in some partitions, or everywhere."""

    request: Number
    group: Name
    partitions: Annotated[list[tuple[Name, Number]], Meta(max_length=ENTRIES_MAX)] | None


class Offsets(Frame, tag=37):
    """To `CommitOffsets` and `FetchOffsets`: why not (empty: done), and what there is."""

    request: Number
    error: Annotated[str, Meta(max_length=4096)]
    entries: Annotated[list[OffsetEntry], Meta(max_length=ENTRIES_MAX)]


FeedFrame = Wanted | Noted | Forward | CommitOffsets | FetchOffsets | Offsets
"""What `adapter_feed.py` deals with."""
