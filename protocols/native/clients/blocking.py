"""The native protocol over a plain blocking socket: for scripts, tools and Spark workers. No trio, no threads.

1. One request is under way at a time; a client belongs to one thread.
2. The connection is made on first use and made again after it was lost, to another broker if need be. A request that
   changes nothing is repeated on a fresh connection; `produce` is not, as nobody knows whether the lost one was stored.
3. Records are written and read at the leaders of their partitions (`blocking_leaders.py`), each by a connection of its
   own.
4. Records arrive as views of the reply: whole batches, never copied, valid as long as somebody holds them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import index
from ssl import SSLContext
from types import TracebackType
from typing import Any, Literal, Self

from msgspec import Struct

from core_log.containing import Groups
from protocols.buffers import BytesLike
from protocols.native import wire, wire_topics, wire_transactions
from protocols.native.clients.blocking_admin import BlockingAsker, BlockingGroups
from protocols.native.clients.blocking_leaders import BlockingLeaders
from protocols.native.clients.blocking_link import BlockingLink, BlockingTerms, ReplyType
from protocols.native.clients.finding import FOUND_MAX, find_records
from protocols.native.clients.groups_admin import finish
from protocols.native.clients.records import (
    REQUEST_ENTRIES_MAX,
    REQUEST_ENTRY_BYTES,
    REQUEST_OVERHEAD_BYTES,
    ConsumerRecord,
    checked_offset,
    split_batches,
)
from protocols.native.connection import addresses_of
from protocols.native.errors import ConnectionLost, NotLeader, StorageUnavailable, WireError, error_from_wire
from protocols.native.wire import Request
from protocols.native.wire_base import CONTAINING_SINCE, ENTRIES_MAX, READERS_SINCE

_ASK_AGAIN_S = 0.1

Which = Literal["earliest", "latest"] | int


class FetchResult(Struct):
    """What `BlockingClient.fetch` got: whole batches, the first of which may begin before the offset asked for, and the
    id of the topic that they are of, where the broker says it.
    """

    batches: list[memoryview]
    high_watermark: int
    log_start_offset: int
    topic_id: bytes = b""


class TopicDescription(Struct):
    """A topic's own configuration and its partitions."""

    name: str
    config: dict[str, str]
    partitions: list[wire_topics.PartitionDescription]


class KnownTopic(Struct):
    """The numbers of a topic's partitions, and the id that no other topic ever has, also one that is made again under
    its name; empty from brokers that do not say it.
    """

    partitions: list[int]
    id: bytes


def which_offset(which: Which) -> int:
    """`which` as `ListOffsets` wants it. Raises ValueError, and TypeError for a time that is no whole number."""
    if not isinstance(which, str):
        if (timestamp_ms := int(index(which))) < 0:
            raise ValueError(f"a timestamp is not negative: {which}")
        return timestamp_ms
    if which not in ("earliest", "latest"):
        raise ValueError(f"{which!r} is not earliest, latest or a timestamp in ms")
    return wire.EARLIEST if which == "earliest" else wire.LATEST


class BlockingClient(BlockingGroups):
    """Every request of the protocol as a method. See the module's rules.

    With `tls` the connection speaks TLS on these terms; see `protocols.native.clients.client_tls.tls_context`.
    `timeout_s` bounds connecting and each reply (on top of the wait a request itself asks for); `patience_s` is for how
    long a broker that is not reached is tried again. All methods raise `ConnectionLost`, `RequestTimedOut` or the
    `MillraceError` the broker answered.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        timeout_s: float = 30,
        client_name: str = "",
        credentials: tuple[str, str] | None = None,
        tls: SSLContext | None = None,
        patience_s: float = 0,
    ) -> None:
        self._terms = BlockingTerms(timeout_s, client_name, credentials, tls, patience_s)
        self._any = BlockingLink(addresses_of(server), self._terms)
        self._leaders = BlockingLeaders(self._any)
        self._asker = BlockingAsker(self, self._any)

    @property
    def limits(self) -> dict[str, int]:
        """What the broker announced, by name; empty before the first request."""
        return self._any.limits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; a later request makes new ones."""
        self._any.close()
        self._leaders.close()
        self._asker.close()

    # Topics

    def metadata(self, topics: Sequence[str] | None = None, *, create_missing: bool = False) -> dict[str, list[int]]:
        """Partition numbers by topic; None asks for all topics. Raises UnknownTopic."""
        return {name: one.partitions for name, one in self.topics(topics, create_missing=create_missing).items()}

    def topics(self, names: Sequence[str] | None = None, *, create_missing: bool = False) -> dict[str, KnownTopic]:
        """As `metadata`, with the topics' ids."""
        return self._topics(names, create_missing=create_missing)

    def topics_found(self, names: Sequence[str]) -> dict[str, KnownTopic]:
        """The same of those of these that can be told of; of the others nothing is said."""
        return self._topics(names, passed_over=True)

    def _topics(
        self, names: Sequence[str] | None, *, create_missing: bool = False, passed_over: bool = False
    ) -> dict[str, KnownTopic]:
        request = wire.Metadata(0, None if names is None else list(names), create_missing)
        reply = self._any.call(request, wire.MetadataReply)
        found = {}
        ids = reply.topic_ids or [b""] * len(reply.topics)
        for (name, error, partitions), topic_id in zip(reply.topics, ids, strict=True):
            if error is None:
                found[name] = KnownTopic([one.partition for one in partitions], topic_id)
            elif not passed_over:
                raise error_from_wire(error)
        return found

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create it durably. Raises PreconditionFailed when it exists."""
        self._any.call(
            wire_topics.CreateTopic(0, name, partitions, dict(config or {})), wire_topics.CreateTopicReply, repeat=False
        )

    def create_partitions(self, name: str, partitions: int) -> None:
        """Have a topic have `partitions` partitions; records with a key go by the new number from then on.

        Raises UnknownTopic, PreconditionFailed (it is a stream), and InvalidArgument's code where it has more.
        """
        self._any.call(wire_topics.CreatePartitions(0, name, partitions), wire_topics.CreatePartitionsReply)

    def alter_topic(self, name: str, config: Mapping[str, str], *, unset: Sequence[str] = ()) -> None:
        """Configure it otherwise while it is used; `unset` are to be the defaults again. Raises NotFound."""
        self.administer("topics.alter", name=name, config=dict(config), unset=list(unset))

    def delete_records(self, topic: str, partition: int, before: int | None = None) -> int:
        """Delete what lies before an offset, or all that is committed, where the partition is led; where it begins
        then. Raises NotFound, NotLeader, InvalidArgument's code for an offset beyond the end.
        """
        said = {"name": topic, "partition": partition, "before": -1 if before is None else before}
        ((link, _),) = self._leaders.by_leader([(topic, partition)])
        asked = wire.Administer(0, "topics.delete_records", said)
        try:
            start: int = link.call(asked, wire.AdministerReply, repeat=False).result
        except NotLeader:
            self._leaders.forget([topic])
            raise
        return start

    def lease(self, reader: str, offsets: Mapping[tuple[str, int], int], lease_ms: int, *, holder: str = "") -> None:
        """Have retention keep what `reader` has not read, by (topic, partition) from an offset on, for `lease_ms` or
        the broker's limit; 0 gives it back. Several holders may have one reader's name: each has a lease of its own
        (brokers of versions before 5 know one for all). Asked where partitions are led. Raises NotFound, NotLeader.
        """
        keys = list(offsets)
        for link, numbers in self._leaders.by_leader(keys):
            by_topic: dict[str, dict[str, int]] = {}
            for topic, partition in (keys[number] for number in numbers):
                by_topic.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
            link.connected()
            known = {"holder": holder} if link.version >= READERS_SINCE else {}
            for topic, each in by_topic.items():
                said = {"name": topic, "reader": reader, "offsets": each, "lease_ms": lease_ms, **known}
                try:
                    link.call(wire.Administer(0, "topics.lease", said), wire.AdministerReply)
                except NotLeader:
                    self._leaders.forget([topic])
                    raise

    def lease_queue(self, reader: str, name: str, offset: int, lease_ms: int, *, vhost: str = "/") -> None:
        """Say up to where `reader` has browsed a queue, so that `queue_lag` shows it for `lease_ms` or the broker's
        limit; 0: no longer. Nothing is kept for it. Brokers of versions before 5 are not told. Raises NotFound.
        """
        self._any.connected()
        if self._any.version >= READERS_SINCE:
            self.look("queues.lease", name=name, reader=reader, offset=offset, lease_ms=lease_ms, vhost=vhost)

    def delete_topic(self, name: str) -> None:
        """Delete it and all its records. Raises UnknownTopic."""
        self._any.call(wire_topics.DeleteTopic(0, name), wire_topics.DeleteTopicReply, repeat=False)

    def describe_topic(self, name: str) -> TopicDescription:
        """Configuration, offsets and sizes. Raises UnknownTopic."""
        reply = self._any.call(wire_topics.DescribeTopic(0, name), wire_topics.DescribeTopicReply)
        return TopicDescription(reply.name, reply.config, reply.partitions)

    def describe_broker(self) -> wire.DescribeBrokerReply:
        """What the home partitions of queues hold."""
        return self._any.call(wire.DescribeBroker(0), wire.DescribeBrokerReply)

    def administer(self, operation: str, /, **arguments: Any) -> Any:
        """Run an operation of administration by its name; what it answers. Raises AccessRefused, NotFound, and whatever
        the operation refuses.
        """
        return self._any.call(wire.Administer(0, operation, arguments), wire.AdministerReply, repeat=False).result

    def look(self, operation: str, /, **arguments: Any) -> Any:
        """As `administer`, for operations that may be done twice: asked again where the connection was lost."""
        return self._any.call(wire.Administer(0, operation, arguments), wire.AdministerReply).result

    def bind_topic(
        self, topic: str, exchange: str, pattern: str, arguments: Mapping[str, wire.Argument] | None = None
    ) -> None:
        """Copy what `exchange` routes by `pattern` to the topic. Raises NotFound."""
        self._any.call(wire_topics.Bind(0, topic, exchange, pattern, dict(arguments or {})), wire_topics.BindReply)

    def unbind_topic(
        self, topic: str, exchange: str, pattern: str, arguments: Mapping[str, wire.Argument] | None = None
    ) -> None:
        """The inverse of `bind_topic`."""
        self._any.call(wire_topics.Unbind(0, topic, exchange, pattern, dict(arguments or {})), wire_topics.UnbindReply)

    # Records

    def produce(
        self, topic: str, partition: int, batch: BytesLike, *, acks: int = wire.ACKS_ALL, timeout_ms: int = 30_000
    ) -> int | None:
        """Append one record batch (format 2); its base offset, None with `acks` 0. Not repeated: see rule 2."""
        offsets = self.produce_batches([(topic, partition, batch)], acks=acks, timeout_ms=timeout_ms)
        return offsets[0] if offsets else None

    def produce_batches(
        self,
        batches: Iterable[tuple[str, int, BytesLike]],
        *,
        acks: int = wire.ACKS_ALL,
        timeout_ms: int = 30_000,
    ) -> list[int]:
        """Append (topic, partition, batch) each, in requests of a size that the broker takes; base offsets, nothing
        with `acks` 0.

        Raises the first error among them; others may have been stored.
        """
        offsets = []
        for error, base_offset in self.try_produce(batches, acks=acks, timeout_ms=timeout_ms):
            if error is not None:
                raise error_from_wire(error)
            offsets.append(base_offset)
        return offsets

    def try_produce(
        self,
        batches: Iterable[tuple[str, int, BytesLike]],
        *,
        acks: int,
        timeout_ms: int,
        transactional_id: str | None = None,
    ) -> list[tuple[WireError | None, int]]:
        """Like `produce_batches`, with the error and base offset of each batch; nothing with `acks` 0."""
        wanted = list(batches)
        results: list[tuple[WireError | None, int]] = [(None, -1)] * len(wanted)
        for link, numbers in self._leaders.by_leader([batch[:2] for batch in wanted], create_missing=True):
            chosen = [wanted[number] for number in numbers]
            answers = self._produce(link, chosen, acks, timeout_ms, transactional_id)
            for number, answer in zip(numbers, answers):
                results[number] = answer
        return [] if acks == wire.ACKS_NONE else results

    def _produce(
        self,
        link: BlockingLink,
        batches: list[tuple[str, int, BytesLike]],
        acks: int,
        timeout_ms: int,
        transactional_id: str | None,
    ) -> list[tuple[WireError | None, int]]:
        results: list[tuple[WireError | None, int]] = []
        try:
            connection = link.connected()
            for part in _requests(link.limits, batches):
                entries = [
                    wire.ProduceEntry(
                        topic,
                        partition,
                        link.rounds.get((topic, partition), 0),
                        memoryview(batch),
                        self._leaders.epoch_of(link, (topic, partition)),
                    )
                    for topic, partition, batch in part
                ]
                request = wire.Produce(0, acks, timeout_ms, entries, transactional_id)  # type: ignore[arg-type]
                if acks == wire.ACKS_NONE:
                    link.send(connection, request)
                    continue
                answer = link.call(request, wire.ProduceReply, repeat=False, wait_s=timeout_ms / 1000).entries
                for entry, (error, _) in zip(entries, answer):
                    if error is not None and error[1]:
                        link.rounds[entry.topic, entry.partition] = entry.round + 1
                        self._leaders.refused(entry.topic, error)
                results += answer
        except ConnectionLost:
            self._leaders.forget(topic for topic, _, _ in batches)
            raise
        return results

    def init_producer(self) -> int:
        """An id for a producer whose batches are stored once; -1 from a broker that gives out none."""
        self._any.connected()
        if self._any.version < wire.GROUPS_SINCE:
            return -1
        return self._any.call(
            wire_transactions.InitProducer(0, None, 0, -1, -1), wire_transactions.InitProducerReply
        ).producer_id

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        containing: Groups = (),
    ) -> FetchResult:
        """Whole batches from the one that holds `offset` on, at least one if any is there; waits for `min_bytes`. With
        `containing` the broker may leave out those that do not have one byte string of each group; see `fetch_many`.

        Raises OffsetOutOfRange, UnknownTopic, UnknownPartition.
        """
        entry = wire.FetchEntry(topic, partition, offset, max_bytes)
        (fetched,) = self.fetch_many([entry], max_bytes, max_wait_ms, min_bytes, containing)
        if fetched.error is not None:
            raise error_from_wire(fetched.error)
        batches = split_batches(fetched.records)
        return FetchResult(batches, fetched.high_watermark, fetched.log_start_offset, fetched.topic_id)

    def fetch_many(
        self,
        entries: list[wire.FetchEntry],
        max_bytes: int,
        max_wait_ms: int,
        min_bytes: int,
        containing: Groups = (),
    ) -> list[wire.FetchedPartition]:
        """Fetch several partitions in one request; each result has its own error. Entries that name a leader epoch, as
        all or none do, are not asked for again in another one. Brokers of versions before 4 send all, whatever batches
        are to contain; others put a control batch in the place of the last that they leave out.
        """
        groups = [list(group) for group in containing]
        fixed = any(entry.leader_epoch != wire.NO_EPOCH for entry in entries)

        def ask(link: BlockingLink, chosen: list[wire.FetchEntry], share: int) -> list[wire.FetchedPartition]:
            if groups:
                link.connected()
            looks_for = groups if link.version >= CONTAINING_SINCE else []
            request = wire.Fetch(0, max_wait_ms // share, min_bytes, max_bytes, chosen, looks_for)
            return link.call(request, wire.FetchReply, wait_s=max_wait_ms / 1000).entries

        keys = [(entry.topic, entry.partition) for entry in entries]
        return self._leaders.read(keys, entries, ask, lambda fetched: fetched.error, fixed=fixed)

    def find_records(
        self, topic: str, key: bytes, *, limit: int = FOUND_MAX, partition: int | None = None
    ) -> list[ConsumerRecord]:
        """Every record with a key, up to so many; see `finding.find_records`."""
        return finish(find_records(self._asker, topic, key, limit=limit, partition=partition))

    def leader_epochs(self, partitions: Sequence[tuple[str, int]]) -> list[int]:
        """The leader epochs of partitions, as far as they are known: for `wire.FetchEntry`."""
        found = [wire.NO_EPOCH] * len(partitions)
        for link, numbers in self._leaders.by_leader(partitions):
            link.connected()
            for number in numbers:
                found[number] = self._leaders.epoch_of(link, partitions[number])
        return found

    def offsets_for_epochs(
        self, entries: Sequence[tuple[str, int, int, int]]
    ) -> list[tuple[WireError | None, int, int]]:
        """For each (topic, partition, current leader epoch, epoch): an error, the largest epoch that is not above the
        last one, and where that ends.
        """

        def ask(
            link: BlockingLink, chosen: list[tuple[str, int, int, int]], share: int
        ) -> list[tuple[WireError | None, int, int]]:
            return link.call(wire.OffsetsForEpochs(0, chosen), wire.OffsetsForEpochsReply).entries

        keys = [entry[:2] for entry in entries]
        return self._leaders.read(keys, entries, ask, lambda found: found[0], fixed=True)

    def list_offsets(self, topic: str, partition: int, which: Which) -> int | None:
        """The first offset ("earliest"), the next to be readable ("latest"), or that of the first record not before a
        time in ms; None when there is no such record.
        """
        return self.list_many_offsets([(topic, partition, which)])[0]

    def list_many_offsets(self, wanted: Sequence[tuple[str, int, Which]]) -> list[int | None]:
        """`list_offsets` of each (topic, partition, which), with one request to each leader."""

        def ask(
            link: BlockingLink, chosen: list[tuple[str, int, int]], share: int
        ) -> list[tuple[WireError | None, int | None, int]]:
            link.connected()
            entries = [wire.ListOffsetsEntry(*one, self._leaders.epoch_of(link, one[:2])) for one in chosen]
            return link.call(wire.ListOffsets(0, entries), wire.ListOffsetsReply).entries

        found: list[int | None] = []
        for start in range(0, len(wanted), ENTRIES_MAX):
            entries = [(*one[:2], which_offset(one[2])) for one in wanted[start : start + ENTRIES_MAX]]
            keys = [one[:2] for one in entries]
            for error, offset, _ in self._leaders.read(keys, entries, ask, lambda answer: answer[0]):
                if error is not None:
                    raise error_from_wire(error)
                found.append(offset)
        return found

    # Groups

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int], *, metadata: str = "") -> None:
        """Remember the next offset to read of each (topic, partition), durably. Raises StorageUnavailable when nobody
        could do that for `timeout_s`.
        """
        entries = [(*key, checked_offset(offset), metadata) for key, offset in offsets.items()]
        if entries:
            self._of_group(wire.CommitOffsets(0, group, entries), wire.CommitOffsetsReply)

    def committed_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[tuple[str, int], int]:
        """What the group committed of these (topic, partition)s, or of all; what it never did is absent."""
        request = wire.FetchOffsets(0, group, None if partitions is None else list(partitions))
        entries = self._of_group(request, wire.FetchOffsetsReply).entries
        return {(topic, partition): offset for topic, partition, offset, _ in entries}

    def _of_group(self, request: Request, kind: type[ReplyType]) -> ReplyType:
        """Ask again while nobody leads the group's offsets, as for some seconds after a broker has died."""
        deadline = time.monotonic() + self._any.terms.timeout_s
        while True:
            try:
                return self._any.call(request, kind)
            except StorageUnavailable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_ASK_AGAIN_S)


def _requests(
    limits: Mapping[str, int], batches: Iterable[tuple[str, int, BytesLike]]
) -> Iterator[list[tuple[str, int, BytesLike]]]:
    """Batches divided into requests as large as the broker takes them; one that is larger is in one alone."""
    chosen: list[tuple[str, int, BytesLike]] = []
    bytes_max = bytes_left = limits["request_bytes_max"] - REQUEST_OVERHEAD_BYTES
    for batch in batches:
        size = len(batch[2]) + len(batch[0]) * 4 + REQUEST_ENTRY_BYTES
        if chosen and (size > bytes_left or len(chosen) >= REQUEST_ENTRIES_MAX):
            yield chosen
            chosen, bytes_left = [], bytes_max
        chosen.append(batch)
        bytes_left -= size
    if chosen:
        yield chosen
