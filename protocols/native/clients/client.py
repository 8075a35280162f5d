"""The native protocol with trio: what the clients have in common, and the control operations.

`Link` is one connection that heals itself, `Leaders` knows which broker is to be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

import trio
from trio.lowlevel import in_trio_task

from protocols.native import wire, wire_topics
from protocols.native.clients.blocking import TopicDescription, Which
from protocols.native.clients.client_admin import Groups, TrioAsker
from protocols.native.clients.either_loop import OnEitherLoop, on_either_loop
from protocols.native.clients.finding import FOUND_MAX, find_records, read_records
from protocols.native.clients.groups_admin import places
from protocols.native.clients.leaders import Leaders, Partition
from protocols.native.clients.link import Dial, Link, LinkConfig
from protocols.native.clients.listed_offsets import list_offsets
from protocols.native.clients.records import ConsumerRecord
from protocols.native.connection import addresses_of
from protocols.native.errors import ConnectionLost, NotLeader

__all__ = ["Client", "Link", "LinkConfig", "Service", "list_offsets"]

_DIALLED = ("the broker", 0)


class Service(OnEitherLoop):
    """Base of the clients: a link and the tasks beside it, between `async with` and its end.

    Errors of the body come out as they are, not in an exception group.
    """

    def __init__(self, server: str | Sequence[str] | Dial, config: LinkConfig) -> None:
        """`server` is one "host:port" or several, of which any will do; or what makes connections to the one meant."""
        self._link = Link([_DIALLED], config, server) if callable(server) else Link(addresses_of(server), config)
        self._link.failure = ConnectionLost("the client is not open: it is used in its block (`async with`)")
        self._leaders = Leaders(self._link)

    async def __aenter__(self) -> Self:
        if in_trio_task():
            await self._enter()
        else:
            from protocols.native.clients.asyncio_host import Hosted  # nobody else needs asyncio

            self._hosted = await Hosted.opened(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await (self._exit(error) if self._hosted is None else self._hosted.ended(error))

    async def _enter(self) -> None:
        self._link.failure = None
        await self._link.connect_somewhere()
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._link.run)
        self._nursery.start_soon(self._leaders.run)
        try:
            await self._prepare()
            self._start()
        except BaseException as error:
            await self._exit(error)
            raise

    async def _exit(self, error: BaseException | None) -> None:
        """The block was left, by an error if there is one."""
        try:
            if error is None:
                await self._finish()
        finally:
            self._nursery.cancel_scope.cancel()
            self._link.fail(self._link.closing)  # also for tasks beside the block, that would wait for ever
            try:
                await self._manager.__aexit__(None, None, None)
            finally:
                self._closed()

    async def _prepare(self) -> None:
        """Ask what has to be known."""

    def _start(self) -> None:
        """Start further tasks."""

    def _closed(self) -> None:
        """Everything has stopped."""

    async def _finish(self) -> None:
        """What remains to be done when the body ended well."""

    @property
    def limits(self) -> Mapping[str, int]:
        """What the broker announced, by name."""
        return self._link.limits


class Client(Groups, Service):
    """Control operations: `async with Client("host:port") as client`; those about groups are in `client_admin.py`."""

    def __init__(
        self,
        server: str | Sequence[str] | Dial,
        *,
        client_name: str = "",
        credentials: tuple[str, str] | None = None,
        tls: SSLContext | None = None,
        link: LinkConfig | None = None,
    ) -> None:
        """`link` says all of what follows `server`, and more."""
        super().__init__(server, link or LinkConfig(client_name=client_name, credentials=credentials, tls=tls))

    def _asker(self) -> TrioAsker:
        return TrioAsker(self._link, self._leaders)

    @on_either_loop
    async def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create it durably. Raises PreconditionFailed when it exists."""
        await self._link.request_once(
            wire_topics.CreateTopic(0, name, partitions, dict(config or {})), wire_topics.CreateTopicReply
        )

    @on_either_loop
    async def create_partitions(self, name: str, partitions: int) -> None:
        """Have a topic have `partitions` partitions; see `BlockingClient.create_partitions`."""
        await self._link.call(wire_topics.CreatePartitions(0, name, partitions), wire_topics.CreatePartitionsReply)

    @on_either_loop
    async def alter_topic(self, name: str, config: Mapping[str, str], *, unset: Sequence[str] = ()) -> None:
        """Configure it otherwise while it is used; see `BlockingClient.alter_topic`."""
        await self.administer("topics.alter", name=name, config=dict(config), unset=list(unset))

    @on_either_loop
    async def delete_records(self, topic: str, partition: int, before: int | None = None) -> int:
        """Delete what lies before an offset; see `BlockingClient.delete_records`."""
        await self._leaders.partitions(topic, create_missing=False)
        deadline = trio.current_time() + self._link.config.request_timeout_ms / 1000
        (link,) = await self._leaders.wait_for([(topic, partition)], deadline)
        said = {"name": topic, "partition": partition, "before": -1 if before is None else before}
        try:
            start: int = (
                await link.request_once(wire.Administer(0, "topics.delete_records", said), wire.AdministerReply)
            ).result
        except NotLeader:
            self._leaders.stale([(topic, partition)])
            raise
        return start

    @on_either_loop
    async def delete_topic(self, name: str) -> None:
        """Delete it and all its records. Raises UnknownTopic."""
        await self._link.request_once(wire_topics.DeleteTopic(0, name), wire_topics.DeleteTopicReply)

    @on_either_loop
    async def list_topics(self) -> dict[str, int]:
        """Number of partitions by topic."""
        reply = await self._link.call(wire.Metadata(0, None, False), wire.MetadataReply)
        return {name: len(partitions) for name, _, partitions in reply.topics}

    @on_either_loop
    async def describe_topic(self, name: str) -> TopicDescription:
        """Configuration, offsets and sizes. Raises UnknownTopic."""
        reply = await self._link.call(wire_topics.DescribeTopic(0, name), wire_topics.DescribeTopicReply)
        return TopicDescription(reply.name, reply.config, reply.partitions)

    @on_either_loop
    async def describe_broker(self) -> wire.DescribeBrokerReply:
        """What the home partitions of queues hold."""
        return await self._link.call(wire.DescribeBroker(0), wire.DescribeBrokerReply)

    @on_either_loop
    async def administer(self, operation: str, /, **arguments: Any) -> Any:
        """Run an operation of administration; see `BlockingClient.administer`."""
        return (await self._link.request_once(wire.Administer(0, operation, arguments), wire.AdministerReply)).result

    @on_either_loop
    async def bind_topic(
        self, topic: str, exchange: str, pattern: str, arguments: Mapping[str, wire.Argument] | None = None
    ) -> None:
        """Copy what `exchange` routes by `pattern` to the topic. Raises UnknownTopic, NotFound."""
        await self._link.call(
            wire_topics.Bind(0, topic, exchange, pattern, dict(arguments or {})), wire_topics.BindReply
        )

    @on_either_loop
    async def unbind_topic(
        self, topic: str, exchange: str, pattern: str, arguments: Mapping[str, wire.Argument] | None = None
    ) -> None:
        """The inverse of `bind_topic`."""
        await self._link.call(
            wire_topics.Unbind(0, topic, exchange, pattern, dict(arguments or {})), wire_topics.UnbindReply
        )

    @on_either_loop
    async def find_records(
        self, topic: str, key: bytes, *, limit: int = FOUND_MAX, partition: int | None = None
    ) -> list[ConsumerRecord]:
        """Every record with a key, up to so many; see `finding.find_records`."""
        return await find_records(self._asker(), topic, key, limit=limit, partition=partition)

    @on_either_loop
    async def read_records(
        self, topic: str, partition: int, offset: int, end: int, *, limit: int, bytes_max: int
    ) -> tuple[list[ConsumerRecord], int]:
        """The records from an offset on; see `finding.read_records`."""
        return await read_records(self._asker(), (topic, partition), offset, end, limit=limit, bytes_max=bytes_max)

    @on_either_loop
    async def places(self, names: Sequence[str]) -> list[Partition]:
        """The partitions that texts name; see `groups_admin.places`."""
        return await places(self._asker(), names)

    @on_either_loop
    async def list_offsets(self, partitions: Sequence[tuple[str, int]], which: Which) -> list[int | None]:
        """Offsets of each (topic, partition); see `BlockingClient.list_offsets`."""
        for topic in {topic for topic, _ in partitions}:
            await self._leaders.partitions(topic, create_missing=False)
        return await list_offsets(self._leaders, partitions, which)
