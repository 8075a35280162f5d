"""What is asked about groups, for `BlockingClient`; what each call means is told in `groups_admin.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from core_log.containing import Groups
from protocols.native import wire, wire_groups
from protocols.native.clients import groups_admin
from protocols.native.clients.blocking_link import Address, BlockingLink, ReplyType
from protocols.native.clients.group_bytes import Partition
from protocols.native.clients.groups_admin import GroupDescription, GroupListing, PartitionLag, QueueLag, Which, finish
from protocols.native.errors import MillraceError, RequestTimedOut
from protocols.native.wire import Request

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient

_ASK_AGAIN_S = 0.1
T = TypeVar("T")


class BlockingAsker:
    """See `groups_admin.Asker`; `link` is to any broker. Methods never suspend."""

    def __init__(self, client: BlockingClient, link: BlockingLink) -> None:
        self._client = client
        self._link = link
        self._others: dict[Address, BlockingLink] = {}
        self.unanswered = False
        """As that of a link, of what coordinators were asked."""

    def close(self) -> None:
        """End the connections to other brokers."""
        for link in self._others.values():
            link.close()
        self._others.clear()

    async def any(self, request: Request, kind: type[ReplyType]) -> ReplyType:
        """See `Asker`."""
        return self._link.call(request, kind)

    async def coordinator(
        self, group: str, request: Request, kind: type[ReplyType], *, of: Literal[0, 1] = wire_groups.OF_GROUP
    ) -> ReplyType:
        """See `Asker`; or of a transactional id."""
        deadline = time.monotonic() + self._link.terms.timeout_s
        while True:
            try:
                found = self._link.call(wire_groups.FindCoordinator(0, of, group), wire_groups.FindCoordinatorReply)
                link = self._at(found.node_id, found.host, found.port)
                try:
                    return link.call(request, kind)
                finally:
                    self.unanswered, link.unanswered = self.unanswered or link.unanswered, False
            except MillraceError as error:
                self.unanswered = self.unanswered or isinstance(error, RequestTimedOut)
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(_ASK_AGAIN_S)  # noqa: ASYNC251

    async def every(self, request: Request, kind: type[ReplyType]) -> list[ReplyType]:
        """See `Asker`."""
        nodes = self._link.call(wire.Metadata(0, [], False), wire.MetadataReply).nodes
        return [self._at(*node).call(request, kind) for node in nodes]

    async def offsets(self, partitions: Sequence[Partition], which: Which) -> list[int | None]:
        """See `Asker`."""
        return [self._client.list_offsets(*partition, which) for partition in partitions]

    async def batches(
        self, partition: Partition, offset: int, max_bytes: int, wait_ms: int, containing: Groups = ()
    ) -> list[memoryview]:
        """See `Asker`."""
        return self._client.fetch(*partition, offset, max_bytes, wait_ms, containing=containing).batches

    async def apart(self, work: Callable[[], T]) -> T:
        """See `Asker`."""
        return work()

    def _at(self, node: int, host: str, port: int) -> BlockingLink:
        if not host or node == self._link.node_id:
            return self._link
        link = self._others.get((host, port))
        if link is None:
            link = self._others[host, port] = BlockingLink([(host, port)], self._link.terms, self._link)
        return link


class BlockingGroups:
    """The calls about groups of `BlockingClient`."""

    _asker: BlockingAsker

    def list_groups(self) -> list[GroupListing]:
        """All groups, by name."""
        return finish(groups_admin.list_groups(self._asker))

    def describe_group(self, group: str) -> GroupDescription:
        """Who is in a group. Raises NotFound."""
        return finish(groups_admin.describe_group(self._asker, group))

    def delete_group(self, group: str) -> None:
        """Forget a group, and how far it has come. Raises NotFound, PreconditionFailed while it has members."""
        finish(groups_admin.delete_group(self._asker, group))

    def forget_offsets(self, group: str, partitions: Sequence[Partition]) -> None:
        """Forget how far a group has come in some partitions. Raises as `delete_group` does."""
        finish(groups_admin.forget_offsets(self._asker, group, partitions))

    def places(self, names: Sequence[str]) -> list[Partition]:
        """The partitions that texts name; see `groups_admin.places`."""
        return finish(groups_admin.places(self._asker, names))

    def reset_offsets(
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
        return finish(
            groups_admin.reset_offsets(
                self._asker, group, to, offset=offset, shift=shift, partitions=partitions, dry_run=dry_run
            )
        )

    def set_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Where a group without members goes on. Raises NotAMember (it has members), OffsetOutOfRange."""
        finish(groups_admin.set_offsets(self._asker, group, offsets))

    def lag(self, group: str) -> list[PartitionLag]:
        """How far a group is behind. Raises NotFound."""
        return finish(groups_admin.lag(self._asker, group))

    def queue_lag(self, group: str) -> list[QueueLag]:
        """How far a group is behind in queues, as a query of Spark's is that reads one."""
        return finish(groups_admin.queue_lag(self._asker, group))
