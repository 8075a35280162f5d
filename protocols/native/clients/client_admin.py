"""What is asked about groups, for `Client`; what each call means is told in `groups_admin.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import trio

from core_log.containing import Groups as Strings
from protocols.native import wire, wire_groups
from protocols.native.clients import groups_admin
from protocols.native.clients.either_loop import on_either_loop
from protocols.native.clients.group_bytes import Partition
from protocols.native.clients.groups_admin import GroupDescription, GroupListing, PartitionLag, QueueLag, Which
from protocols.native.clients.leaders import Leaders
from protocols.native.clients.link import Link, ReplyType
from protocols.native.clients.listed_offsets import list_offsets
from protocols.native.clients.records import split_batches
from protocols.native.errors import MillraceError, error_from_wire
from protocols.native.wire import Request
from protocols.native.wire_base import CONTAINING_SINCE

_ASK_AGAIN_S = 0.1
T = TypeVar("T")


class TrioAsker:
    """See `groups_admin.Asker`. Connections to other brokers last as long as a call."""

    def __init__(self, link: Link, leaders: Leaders) -> None:
        self._link = link
        self._leaders = leaders

    async def any(self, request: Request, kind: type[ReplyType]) -> ReplyType:
        """See `Asker`."""
        return await self._link.call(request, kind)

    async def coordinator(self, group: str, request: Request, kind: type[ReplyType]) -> ReplyType:
        """See `Asker`."""
        deadline = trio.current_time() + self._link.config.request_timeout_ms / 1000
        while True:
            try:
                found = await self._link.call(
                    wire_groups.FindCoordinator(0, wire_groups.OF_GROUP, group), wire_groups.FindCoordinatorReply
                )
                return await self._ask_at((found.node_id, found.host, found.port), request, kind)
            except MillraceError as error:
                if not error.retriable or trio.current_time() > deadline:
                    raise
            await trio.sleep(_ASK_AGAIN_S)

    async def every(self, request: Request, kind: type[ReplyType]) -> list[ReplyType]:
        """See `Asker`."""
        nodes = (await self._link.call(wire.Metadata(0, [], False), wire.MetadataReply)).nodes
        return [await self._ask_at(node, request, kind) for node in nodes]

    async def _ask_at(self, node: tuple[int, str, int], request: Request, kind: type[ReplyType]) -> ReplyType:
        number, host, port = node
        if not host or number == self._link.node_id:
            return await self._link.call(request, kind)
        link = Link([(host, port)], self._link.config)
        await link.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            outcome: ReplyType | MillraceError
            try:
                outcome = await link.request(request, kind)
            except MillraceError as error:
                outcome = error
            nursery.cancel_scope.cancel()
        if isinstance(outcome, MillraceError):
            raise outcome
        return outcome

    async def offsets(self, partitions: Sequence[Partition], which: Which) -> list[int | None]:
        """See `Asker`."""
        for topic in {topic for topic, _ in partitions}:
            await self._leaders.partitions(topic, create_missing=False)
        return await list_offsets(self._leaders, partitions, which)

    async def batches(
        self, partition: Partition, offset: int, max_bytes: int, wait_ms: int, containing: Strings = ()
    ) -> list[memoryview]:
        """See `Asker`."""
        await self._leaders.partitions(partition[0], create_missing=False)
        deadline = trio.current_time() + self._link.config.request_timeout_ms / 1000
        while True:
            (link,) = await self._leaders.wait_for([partition], deadline)
            groups = [list(group) for group in containing] if link.version >= CONTAINING_SINCE else []
            entry = wire.FetchEntry(*partition, offset, max_bytes)
            try:
                reply = await link.request(wire.Fetch(0, wait_ms, 1, max_bytes, [entry], groups), wire.FetchReply)
                (fetched,) = reply.entries
                if fetched.error is not None:
                    raise error_from_wire(fetched.error)
                return split_batches(fetched.records)
            except MillraceError as error:
                if not error.retriable or trio.current_time() > deadline:
                    raise
                self._leaders.stale([partition])
            await trio.sleep(_ASK_AGAIN_S)

    async def apart(self, work: Callable[[], T]) -> T:
        """See `Asker`: in a thread."""
        return await trio.to_thread.run_sync(work)


class Groups:
    """The calls about groups of `Client`."""

    def _asker(self) -> TrioAsker:
        raise NotImplementedError

    @on_either_loop
    async def list_groups(self) -> list[GroupListing]:
        """All groups, by name."""
        return await groups_admin.list_groups(self._asker())

    @on_either_loop
    async def describe_group(self, group: str) -> GroupDescription:
        """Who is in a group. Raises NotFound."""
        return await groups_admin.describe_group(self._asker(), group)

    @on_either_loop
    async def delete_group(self, group: str) -> None:
        """Forget a group, and how far it has come. Raises NotFound, PreconditionFailed while it has members."""
        await groups_admin.delete_group(self._asker(), group)

    @on_either_loop
    async def forget_offsets(self, group: str, partitions: Sequence[Partition]) -> None:
        """Forget how far a group has come in some partitions. Raises as `delete_group` does."""
        await groups_admin.forget_offsets(self._asker(), group, partitions)

    @on_either_loop
    async def reset_offsets(
        self,
        group: str,
        to: Which | None = None,
        *,
        offset: int | None = None,
        shift: int | None = None,
        partitions: Sequence[Partition] | None = None,
        dry_run: bool = False,
    ) -> dict[Partition, int]:
        """See `groups_admin.reset_offsets`."""
        return await groups_admin.reset_offsets(
            self._asker(), group, to, offset=offset, shift=shift, partitions=partitions, dry_run=dry_run
        )

    @on_either_loop
    async def set_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Where a group without members goes on. Raises NotAMember (it has members), OffsetOutOfRange."""
        await groups_admin.set_offsets(self._asker(), group, offsets)

    @on_either_loop
    async def lag(self, group: str) -> list[PartitionLag]:
        """How far a group is behind. Raises NotFound."""
        return await groups_admin.lag(self._asker(), group)

    @on_either_loop
    async def queue_lag(self, group: str) -> list[QueueLag]:
        """How far a group is behind in queues, as a query of Spark's is that reads one."""
        return await groups_admin.queue_lag(self._asker(), group)
