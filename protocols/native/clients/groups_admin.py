"""What is asked about groups, whoever asks: the same for clients with an event loop and without one.

Functions here are written as coroutines over an `Asker`. That of a blocking client never suspends, so `finish` runs
them to their end without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

from core_log.containing import Groups
from core_log.wall_clock import wall_clock_ms
from protocols.native import wire, wire_groups
from protocols.native.clients.blocking_link import ReplyType
from protocols.native.clients.group_bytes import Partition
from protocols.native.clients.records import batch_records, offset_after
from protocols.native.errors import ErrorCode, MillraceError, UnknownPartition, error_from_wire
from protocols.native.wire import Request
from protocols.native.wire_groups import MemberDescription

T = TypeVar("T")
PAGE_ROWS = 1000
"""Most that one answer of a list has."""
Which = Literal["earliest", "latest"] | int


class GroupListing(Struct, frozen=True):
    """A group among others. `state` is Kafka's word for it."""

    group: str
    type: str
    state: str
    members: int


class GroupDescription(Struct, frozen=True):
    """Who is in a group. `protocol` is how it divides partitions, `generation` how often it did."""

    group: str
    state: str
    type: str
    protocol: str
    generation: int
    members: list[MemberDescription]


class PartitionLag(Struct, frozen=True):
    """How far a group is behind in a partition.

    `offset` is None where it has not come anywhere, and `lag` counts from the beginning then. `lag_ms` is the age of
    the first record that it has not read; 0 if there is none.
    """

    topic: str
    partition: int
    offset: int | None
    end_offset: int
    lag: int
    lag_ms: int
    member_id: str | None


class QueueLag(Struct, frozen=True):
    """How far a group is behind in a queue that it consumes in steps, or browses (`mode`).

    `offset` is the position, or the place in the log behind the queue, from which on it has not read. `lag_ms` is the
    age of the oldest message that it has not read, 0 if there is none; None: not known, as of transient queues.
    """

    vhost: str
    queue: str
    mode: str
    offset: int
    lag: int
    lag_ms: int | None


class Asker(Protocol):
    """How a client asks. All raise ConnectionLost, RequestTimedOut, or what a broker answered."""

    async def any(self, request: Request, kind: type[ReplyType]) -> ReplyType:
        """Any broker."""

    async def coordinator(self, group: str, request: Request, kind: type[ReplyType]) -> ReplyType:
        """The broker that looks after a group."""

    async def every(self, request: Request, kind: type[ReplyType]) -> list[ReplyType]:
        """All brokers."""

    async def offsets(self, partitions: Sequence[Partition], which: Which) -> list[int | None]:
        """As `list_offsets` of the client."""

    async def batches(
        self, partition: Partition, offset: int, max_bytes: int, wait_ms: int, containing: Groups = ()
    ) -> list[memoryview]:
        """As `BlockingClient.fetch`."""

    async def apart(self, work: Callable[[], T]) -> T:
        """What something returns that takes its time: nobody is to wait for it who need not."""


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that never suspends returns."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it suspended")


async def list_groups(ask: Asker) -> list[GroupListing]:
    """All groups, by name."""
    replies = await ask.every(wire_groups.ListGroups(0), wire_groups.ListGroupsReply)
    every = sorted((listed for reply in replies for listed in reply.groups), key=lambda listed: listed[3])
    found = {listed[0]: GroupListing(*listed) for listed in every}  # one that only reads queues has no members there
    return [found[group] for group in sorted(found)]


async def describe_group(ask: Asker, group: str) -> GroupDescription:
    """Raises NotFound."""
    try:
        reply = await ask.coordinator(group, wire_groups.DescribeGroup(0, group), wire_groups.DescribeGroupReply)
    except MillraceError as error:
        if error.code != ErrorCode.NOT_FOUND or not await queue_lag(ask, group):
            raise
        return GroupDescription(group, "Empty", "consumer", "", 0, [])  # it reads queues alone
    return GroupDescription(group, reply.state, reply.protocol_type, reply.protocol, reply.generation, reply.members)


async def delete_group(ask: Asker, group: str) -> None:
    """Raises NotFound, PreconditionFailed while it has members."""
    await ask.coordinator(group, wire_groups.DeleteGroup(0, group), wire_groups.DeleteGroupReply)


async def forget_offsets(ask: Asker, group: str, partitions: Sequence[Partition]) -> None:
    """Raises NotFound, PreconditionFailed while it has members."""
    request = wire_groups.ForgetOffsets(0, group, list(partitions))
    await ask.coordinator(group, request, wire_groups.ForgetOffsetsReply)


async def committed(ask: Asker, group: str) -> dict[Partition, int]:
    """How far a group has come."""
    reply = await ask.any(wire.FetchOffsets(0, group, None), wire.FetchOffsetsReply)
    return {(topic, partition): offset for topic, partition, offset, _ in reply.entries}


async def set_offsets(ask: Asker, group: str, offsets: Mapping[Partition, int]) -> None:
    """Where a group without members goes on. Raises NotAMember (it has members), OffsetOutOfRange."""
    keys = list(offsets)
    starts, ends = await ask.offsets(keys, "earliest"), await ask.offsets(keys, "latest")
    for key, first, end in zip(keys, starts, ends):
        if not (first or 0) <= offsets[key] <= (end or 0):
            where = f"partition {key[1]} of topic '{key[0]}'"
            raise error_from_wire(
                (ErrorCode.OFFSET_OUT_OF_RANGE, False, f"{where} has offsets {first} to {end}, not {offsets[key]}")
            )
    entries = [(topic, partition, offset, "") for (topic, partition), offset in offsets.items()]
    if entries:
        request = wire_groups.CommitGroupOffsets(0, group, "", None, wire_groups.NO_GENERATION, entries)
        await ask.coordinator(group, request, wire_groups.CommitGroupOffsetsReply)


async def partitions_of(ask: Asker, topics: Sequence[str]) -> list[Partition]:
    """All partitions of some topics. Raises UnknownTopic."""
    if not topics:
        return []
    found: list[Partition] = []
    for name, error, partitions in (await ask.any(wire.Metadata(0, list(topics), False), wire.MetadataReply)).topics:
        if error is not None:
            raise error_from_wire(error)
        found += [(name, one.partition) for one in partitions]
    return found


async def place_of(ask: Asker, topic: str, partition: int) -> Partition:
    """One partition of a topic. Raises UnknownTopic, UnknownPartition."""
    there = await partitions_of(ask, [topic])
    if (topic, partition) not in there:
        raise UnknownPartition(f"topic {topic!r} has no partition {partition}, but {len(there)}")
    return topic, partition


async def places(ask: Asker, names: Sequence[str]) -> list[Partition]:
    """The partitions of TOPIC and TOPIC:0,1 each. Raises UnknownTopic, UnknownPartition."""
    found: list[Partition] = []
    for name in names:
        topic, colon, numbers = name.rpartition(":")
        if colon and all(number.isascii() and number.isdigit() for number in numbers.split(",")):
            found += [await place_of(ask, topic, int(number)) for number in numbers.split(",")]
        else:
            found += await partitions_of(ask, [name])
    return found


async def reset_offsets(
    ask: Asker,
    group: str,
    to: Which | None = None,
    *,
    offset: int | None = None,
    shift: int | None = None,
    partitions: Sequence[Partition] | None = None,
    dry_run: bool = False,
) -> dict[Partition, int]:
    """Have a group without members go on at its partitions' earliest or latest offset, at the first record not before a
    time in ms, at an offset, or so many records further (or, below 0, back); cut to what there is. `partitions` None:
    wherever it has come. Where it goes on then; with `dry_run` where it would.

    Raises NotFound if it has come nowhere, NotAMember while it has members.
    """
    if [to, offset, shift].count(None) != 2:
        raise ValueError("a reset is to a place or a time, to an offset, or by a number of records")
    now = await committed(ask, group)
    keys = list(now) if partitions is None else list(partitions)
    if not keys:
        raise error_from_wire((ErrorCode.NOT_FOUND, False, f"group '{group}' has come nowhere"))
    starts, ends = await ask.offsets(keys, "earliest"), await ask.offsets(keys, "latest")
    if to is not None:
        wanted = await ask.offsets(keys, to)
    elif offset is not None:
        wanted = [offset] * len(keys)
    else:
        wanted = [now.get(key, first or 0) + (shift or 0) for key, first in zip(keys, starts)]
    found = {
        key: min(max(end or 0 if where is None else where, first or 0), end or 0)
        for key, where, first, end in zip(keys, wanted, starts, ends)
    }
    if not dry_run:
        entries = [(topic, partition, where, "") for (topic, partition), where in found.items()]
        request = wire_groups.CommitGroupOffsets(0, group, "", None, wire_groups.NO_GENERATION, entries)
        await ask.coordinator(group, request, wire_groups.CommitGroupOffsetsReply)
    return found


async def lag(ask: Asker, group: str) -> list[PartitionLag]:
    """How far a group is behind, in each partition that it has come in or that a member reads. Raises NotFound."""
    described = await describe_group(ask, group)
    owners = {key: member.member_id for member in described.members for key in member.assignment}
    where = await committed(ask, group)
    keys = await _that_are_there(ask, sorted({*where, *owners}))
    starts, ends = await ask.offsets(keys, "earliest"), await ask.offsets(keys, "latest")
    found = []
    for key, first, last in zip(keys, starts, ends):
        end, offset = last or 0, where.get(key)
        begin = max(offset if offset is not None else 0, first or 0)
        lag_ms = 0
        if begin < end:
            timestamp_ms = await _timestamp_at(ask, key, begin)
            lag_ms = 0 if timestamp_ms is None else max(0, wall_clock_ms() - timestamp_ms)
        found.append(PartitionLag(*key, offset, end, max(0, end - begin), lag_ms, owners.get(key)))
    return found


async def _timestamp_at(ask: Asker, partition: Partition, offset: int) -> int | None:
    """Time in ms of the first record from an offset on; None if there is none."""
    while batches := await ask.batches(partition, offset, 1, 0):
        records = batch_records(*partition, batches[0], offset)
        if records:
            return records[0].timestamp_ms
        offset = offset_after(batches[0])
    return None


async def queue_lag(ask: Asker, group: str) -> list[QueueLag]:
    """How far a group is behind in queues; by these."""
    found: list[QueueLag] = []
    start, more = 0, True
    while more:
        request = wire.Administer(0, "queues.readers", {"group": group, "start": start})
        try:
            pages = [reply.result["rows"] for reply in await ask.every(request, wire.AdministerReply)]
        except MillraceError as error:
            if error.code == ErrorCode.NOT_FOUND:
                return []  # a broker of a version before 5
            raise
        found += [QueueLag(vhost, queue, *rest) for page in pages for vhost, queue, _, *rest in page]
        more = any(len(page) == PAGE_ROWS for page in pages)
        start += PAGE_ROWS
    return sorted(found, key=lambda one: (one.vhost, one.queue, one.mode))


async def _that_are_there(ask: Asker, partitions: Sequence[Partition]) -> list[Partition]:
    """Without those of topics that were deleted."""
    there: set[Partition] = set()
    for topic in dict.fromkeys(topic for topic, _ in partitions):
        try:
            there.update(await partitions_of(ask, [topic]))
        except MillraceError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC:
                raise
    return [key for key in partitions if key in there]
