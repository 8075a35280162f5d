"""The consumer: what it reads and how far it was read, by itself or as a member of a group.

1. The *position* of a partition is the offset of the next record the application will get. `commit` stores positions:
   what was handed out counts as consumed.
2. `assign` chooses partitions; `subscribe` leaves that to the group (`membership.py`). Fetching is `fetcher.py`.
3. A topic that was assigned as a whole is read as a whole: partitions that it gets later are read from their beginning,
   or from where the group committed.
4. With `auto_commit_interval_ms` positions are committed when the application asks for more, so what it was given
   before is done; and before partitions are given up, and at the end of the block.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, Self

import trio

from protocols.native import wire, wire_groups
from protocols.native.clients.assignors import ASSIGNORS
from protocols.native.clients.client import LinkConfig
from protocols.native.clients.coordinators import CoordinatorLink
from protocols.native.clients.either_loop import on_either_loop
from protocols.native.clients.fetcher import Fetcher, FetchLimits, OffsetReset, Partition
from protocols.native.clients.group_bytes import GroupMetadata
from protocols.native.clients.group_reader import GroupReader
from protocols.native.clients.hooks import ConsumerInterceptor, Deserializer, on_records_of, tell_committed
from protocols.native.clients.listed_offsets import list_offsets
from protocols.native.clients.membership import GroupTerms, Membership, RebalanceListener
from protocols.native.clients.positions import Position
from protocols.native.clients.records import ConsumerRecord, checked_offset
from protocols.native.clients.served_membership import ServedMembership
from protocols.native.errors import GONE, MillraceError

logger = logging.getLogger(__name__)

_CLOSE_S_MAX = 5.0
_COME_BY_S_MIN = 0.05
"""How often an application that has records is made to come by: each time what is left of a batch is decoded again."""


class Consumer(Fetcher):
    """`async with Consumer("host:port", group="g") as consumer`; see the module's rules.

    `auto_offset_reset` says where to begin in a partition the group never committed, or whose offset is gone: "latest",
    "earliest" or "error" (whoever asks for records is told so; a member of a group may seek then, or in its listener's
    `on_assigned`). `fetch_min_bytes`, `fetch_max_wait_ms`: when the broker answers a fetch. `fetch_max_bytes`
    and `partition_max_bytes`: how much one answer holds, in all and of each partition. `prefetch_bytes`: how much of a
    partition is read ahead.

    With `topics` or a `pattern` it is a member of the group from the start, see `subscribe`; `listener` is told of what
    it reads. `group_instance_id` makes it a static member. With `group_protocol` "classic" members divide partitions,
    `assignors` are the ways, the preferred one first; with "consumer" the broker does (KIP-848), by `server_assignor`
    ("uniform", or "range"), and the session timeout is the broker's. `session_timeout_ms`: who is not heard of for so
    long is out; `max_poll_interval_ms`: as is who asks for no records. `auto_commit_interval_ms`: None leaves commits
    to the application. What the hooks do is told in `hooks.py`.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        group: str | None = None,
        *,
        auto_offset_reset: OffsetReset = "latest",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 16 << 20,
        partition_max_bytes: int = 1 << 20,
        prefetch_bytes: int = 2 << 20,
        topics: str | Iterable[str] = (),
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
        group_instance_id: str | None = None,
        group_protocol: Literal["classic", "consumer"] = "classic",
        assignors: Sequence[str] = ("range", "cooperative-sticky"),
        server_assignor: str | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        auto_commit_interval_ms: int | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        link: LinkConfig | None = None,
    ) -> None:
        if auto_offset_reset not in ("earliest", "latest", "error"):
            raise ValueError(f"auto_offset_reset is 'earliest', 'latest' or 'error', not {auto_offset_reset!r}")
        limits = FetchLimits(fetch_min_bytes, fetch_max_wait_ms, fetch_max_bytes, partition_max_bytes, prefetch_bytes)
        on_records = on_records_of(key_deserializer, value_deserializer, interceptors)
        super().__init__(server, auto_offset_reset, limits, on_records, link or LinkConfig())
        if group_protocol not in ("classic", "consumer"):
            raise ValueError(f"group_protocol is 'classic' or 'consumer', not {group_protocol!r}")
        if group is None and (pattern is not None or auto_commit_interval_ms is not None):
            raise ValueError("a pattern and automatic commits need a group")
        if unknown := [name for name in assignors if name not in ASSIGNORS] or not assignors:
            raise ValueError(f"assignors are of {', '.join(ASSIGNORS)}, not {unknown}")
        self._interceptors = list(interceptors)
        self._served = group_protocol == "consumer"
        self._group = group
        self._terms = GroupTerms(
            group=group or "",
            instance_id=group_instance_id,
            assignors=tuple(assignors),
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            metadata_max_age_ms=self._link.config.metadata_max_age_ms,
            server_assignor=server_assignor,
        )
        self._given = ([topics] if isinstance(topics, str) else list(topics), pattern, listener)
        self._membership: Membership | None = None
        self._member_scope = trio.CancelScope()
        self._coordinator: CoordinatorLink | None = None
        self._whole: set[str] = set()
        """Topics of which all partitions are read."""
        self._grown = trio.Event()
        self._before_revoked: list[Callable[[list[Partition]], Awaitable[None]]] = []
        self._asked = 0
        """How often the application asked for records that were not there."""
        self._auto_commit_s = math.inf if auto_commit_interval_ms is None else auto_commit_interval_ms / 1000
        self._commit_at = math.inf
        self._committing = False

    def _start(self) -> None:
        super()._start()
        self._nursery.start_soon(self._take_up)
        if self._auto_commit_s < math.inf:
            self._between = self._between_batches
            self._commit_at = trio.current_time() + self._auto_commit_s
            self._nursery.start_soon(self._come_by)

    async def _enter(self) -> None:
        await super()._enter()
        topics, pattern, listener = self._given
        if topics or pattern is not None:
            try:
                await self.subscribe(topics, pattern=pattern, listener=listener)
            except BaseException as error:
                await self._exit(error)
                raise

    async def _exit(self, error: BaseException | None) -> None:
        try:
            with trio.move_on_after(_CLOSE_S_MAX, shield=True):
                if self._membership is not None:
                    await self._leave(commit=error is None)
                elif error is None:
                    await self._commit_by_itself()
        finally:
            await super()._exit(error)

    # Where to read

    @on_either_loop
    async def assign(self, what: str | Partition | Iterable[str | Partition]) -> None:
        """Read these and nothing else: topics (all their partitions) and (topic, partition)s.

        With a group, reading begins where it committed, by itself as well (rule 4). Raises UnknownTopic,
        OffsetOutOfRange (reset "error").
        """
        partitions: list[Partition] = []
        whole: set[str] = set()
        for item in [what] if isinstance(what, str) or _is_partition(what) else what:
            if isinstance(item, str):
                numbers = await self._leaders.partitions(item, create_missing=False)
                partitions += [(item, number) for number in numbers]
                whole.add(item)
            else:
                partitions.append(item)  # type: ignore[arg-type]
        for topic in {topic for topic, _ in partitions} - whole:
            await self._leaders.partitions(topic, create_missing=False)  # which topic it is: by its id
        if partitions or self._membership is None:  # else leaving does it
            await self._commit_by_itself()
        starts = await self._starts(partitions)
        if self._membership is not None:
            await self._leave(commit=True)
        self._set_positions({})
        self._whole = whole
        self._set_positions({key: starts[key] for key in partitions})

    async def _starts(self, partitions: list[Partition]) -> dict[Partition, int]:
        """Where the group has come, or as `auto_offset_reset` says."""
        committed = await self.committed(partitions)
        missing = [partition for partition in partitions if partition not in committed]
        return committed | await self._reset_offsets(missing)

    @on_either_loop
    async def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Be a member of the group, which divides these topics, or all whose whole name matches a regular expression,
        among its members; without a group read all of them. Topics need not be there yet, partitions come as soon as
        records are asked for. Raises UnknownTopic without a group.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        if self._group is None:
            await self.assign(names)
            return
        if (pattern is None) == (not names):
            raise ValueError("a subscription is of topics, or of a pattern")
        if self._membership is not None:
            await self._leave(commit=True)
        self._whole = set()
        self._set_positions({})
        self._member_scope = trio.CancelScope()
        if self._coordinator is None:
            self._coordinator = CoordinatorLink(wire_groups.OF_GROUP, self._group, self._link, self._nursery)
        kind = ServedMembership if self._served else Membership
        self._membership = kind(
            self._terms, self._coordinator, GroupReader(self), names, pattern, listener or RebalanceListener()
        )
        self._between = self._between_batches
        self._nursery.start_soon(self._run_membership, self._membership, self._member_scope)

    @staticmethod
    async def _run_membership(membership: Membership, scope: trio.CancelScope) -> None:
        with scope:
            await membership.run()

    @on_either_loop
    async def unsubscribe(self) -> None:
        """Leave the group, and read nothing."""
        await self.assign([])

    async def _leave(self, *, commit: bool) -> None:
        if self._membership is not None:
            try:
                await self._membership.leave(commit=commit)
            finally:
                self._membership = None
                self._member_scope.cancel()

    async def _between_batches(self) -> None:
        self._asked += 1
        if self._membership is not None:
            await self._membership.step()
        if trio.current_time() >= self._commit_at and not self._committing:
            self._committing = True
            self._commit_at = trio.current_time() + self._auto_commit_s
            self._nursery.start_soon(self._commit_beside, self._next_offsets())

    async def _come_by(self) -> None:
        """Rule 4, also within a batch that takes the application longer than the interval."""
        while True:
            await trio.sleep(max(self._auto_commit_s, _COME_BY_S_MIN))
            if self._next:
                self._put_back()

    async def _commit_beside(self, offsets: dict[Partition, int]) -> None:
        try:
            await self._commit_what_is_there(offsets)
        except MillraceError as error:
            logger.warning("offsets were not committed: %s", error)
        finally:
            self._committing = False

    async def _commit_what_is_there(self, offsets: dict[Partition, int]) -> None:
        """A topic that was deleted does not keep the others from being committed."""
        try:
            await self.commit(offsets)
            return
        except MillraceError as error:
            topics = {topic for topic, _ in offsets}
            if error.code not in GONE or len(topics) < 2:
                raise
        for topic in topics:
            await self._commit_beside({key: offset for key, offset in offsets.items() if key[0] == topic})

    async def _commit_by_itself(self) -> None:
        """Rule 4."""
        if self._auto_commit_s < math.inf:
            await self._commit_beside(self._next_offsets())

    def _next_offsets(self) -> dict[Partition, int]:
        return {key: self.position(*key) for key in self._positions if key not in self._nowhere}

    async def _take_up(self) -> None:
        """Read the partitions that topics get, until cancelled."""
        while True:
            await self._grown.wait()
            self._grown = trio.Event()
            positions = self._positions
            new = self._not_read()
            if not new:
                continue
            try:
                starts: dict[Partition, int | None] = {**await self.committed(new)}
                rest = [key for key in new if key not in starts]
                starts |= dict(zip(rest, await list_offsets(self._leaders, rest, "earliest")))
            except MillraceError as error:
                await self._note_error(error)
                continue  # the leaders will be asked again, and this
            if self._positions is positions:
                here = {key: position.offset for key, position in positions.items()}
                self._set_positions(here | {key: starts[key] or 0 for key in new})

    def _not_read(self) -> list[Partition]:
        """Partitions of topics that are read as a whole."""
        counts = self._leaders.counts
        known = ((topic, number) for topic in self._whole for number in range(counts.get(topic, 0)))
        return [key for key in known if key not in self._positions]

    @property
    def assignment(self) -> list[Partition]:
        """What is read."""
        return list(self._positions)

    @on_either_loop
    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`. Raises KeyError when the partition is not assigned, ValueError for what is no offset."""
        self._seek({(topic, partition): offset})
        await trio.lowlevel.checkpoint()

    @on_either_loop
    async def seek_to_beginning(self, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first record there is, in these or all assigned partitions."""
        await self._seek_to("earliest", partitions)

    @on_either_loop
    async def seek_to_end(self, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at what will be written next, in these or all assigned partitions."""
        await self._seek_to("latest", partitions)

    @on_either_loop
    async def seek_to_time(self, timestamp_ms: int, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first record not before a time; at the end where there is none that young."""
        await self._seek_to(timestamp_ms, partitions)

    async def _seek_to(
        self, which: Literal["earliest", "latest"] | int, partitions: Iterable[Partition] | None
    ) -> None:
        keys = list(self._positions if partitions is None else partitions)
        if not keys:
            return
        offsets = await list_offsets(self._leaders, keys, which)
        if None in offsets:  # ask again when the ends are known: what came meanwhile may be that young
            latest = await list_offsets(self._leaders, keys, "latest")
            offsets = await list_offsets(self._leaders, keys, which)
            offsets = [end if offset is None else offset for offset, end in zip(offsets, latest)]
        self._seek({key: offset or 0 for key, offset in zip(keys, offsets)})

    # Groups

    @on_either_loop
    async def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        """Store positions, or `offsets`, for the group; returns when they are durable.

        Raises ValueError without a group and for what is no offset, NotAMember when the group has gone on without it.
        """
        if self._group is None:
            raise ValueError("a consumer without a group cannot commit")
        if offsets is None:
            offsets = self._next_offsets()
        if not offsets:
            return
        offsets = {key: checked_offset(offset) for key, offset in offsets.items()}
        if self._membership is not None:
            await self._membership.commit(offsets)
        else:
            entries = [(topic, partition, offset, "") for (topic, partition), offset in offsets.items()]
            await self._link.call(wire.CommitOffsets(0, self._group, entries), wire.CommitOffsetsReply)
        tell_committed(self._interceptors, offsets)

    @on_either_loop
    async def committed(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """What the group committed, of these or of all; empty without a group."""
        group, wanted = self._group, None if partitions is None else list(partitions)
        if group is None or wanted == []:
            return {}
        reply: wire.FetchOffsetsReply | wire_groups.FetchGroupOffsetsReply
        if self._coordinator is not None and wanted is not None:
            # Of who looks after the group, and not before transactions that may change them are ended.
            reply = await self._coordinator.call(
                lambda: wire_groups.FetchGroupOffsets(0, group, wanted), wire_groups.FetchGroupOffsetsReply
            )
        else:
            reply = await self._link.call(wire.FetchOffsets(0, group, wanted), wire.FetchOffsetsReply)
        return {(topic, partition): offset for topic, partition, offset, _ in reply.entries}

    def group_metadata(self) -> GroupMetadata:
        """Who it is in its group, for `TransactionalProducer.send_offsets`. Raises ValueError without a group."""
        if self._group is None:
            raise ValueError("a consumer without a group")
        if self._membership is None:
            return GroupMetadata(self._group)
        member = self._membership
        return GroupMetadata(self._group, member.member_id, self._terms.instance_id, member.generation)

    # Records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record; waits for ever."""
        while self._next >= len(self._records):  # what came may have been taken, or put back, before this goes on
            await self._advance()
        index = self._next
        self._next = index + 1
        return self._records[index]

    async def fetch(self, max_records: int = 500) -> list[ConsumerRecord]:
        """1 to `max_records` records: what there is, or else the next to come. Waits for ever."""
        return await self._take_records(max_records, math.inf)

    async def poll(self, timeout_ms: int, max_records: int = 500) -> list[ConsumerRecord]:
        """Up to `max_records` records; none when there are none within `timeout_ms`. What the group's listener does
        takes the time that it takes.
        """
        return await self._take_records(max_records, trio.current_time() + timeout_ms / 1000)

    async def _take_records(self, max_records: int, until: float) -> list[ConsumerRecord]:
        result: list[ConsumerRecord] = []
        while self._next >= len(self._records):  # as in `__anext__`
            if not await self._advance(until):
                return result
        while True:
            taken = self._records[self._next : self._next + max_records - len(result)]
            self._next += len(taken)
            result += taken
            try:
                if len(result) >= max_records or not self._decode_next():
                    return result
            except Exception:  # of a hook: who asks next is told, and what there is by now is not lost
                if not result:
                    raise
                return result

    @on_either_loop
    async def stand_by(self) -> None:
        """Do what a member of a group does between records, without asking for any."""
        self._put_back()
        if self._between is not None:
            await self._between()
        await trio.lowlevel.checkpoint()

    @property
    def commits_by_itself(self) -> bool:
        """Whether it has an `auto_commit_interval_ms`."""
        return self._auto_commit_s < math.inf

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Hand out nothing of these until they are resumed. Raises KeyError for what is not assigned."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Go on with these. Raises KeyError for what is not assigned."""
        self._set_paused(partitions, False)

    @property
    def paused(self) -> list[Partition]:
        """What is paused."""
        return [key for key, position in self._positions.items() if position.paused]

    def _leaders_changed(self) -> None:
        if self._whole and self._not_read():
            self._grown.set()
        super()._leaders_changed()

    def _made_again(self, topic: str) -> None:
        count = self._leaders.counts[topic]
        here = {key: position.offset for key, position in self._positions.items()}
        divided = topic in self._whole or self._membership is not None
        if divided and any(key[0] == topic and key[1] >= count for key in here):
            logger.warning("topic '%s' was made again, and has %d partitions now", topic, count)
            self._set_positions({key: offset for key, offset in here.items() if key[0] != topic or key[1] < count})
        super()._made_again(topic)

    async def _refused(self, position: Position, error: MillraceError) -> None:
        if self._membership is not None and error.code in GONE:
            key = (position.topic, position.partition)
            logger.warning("partition %d of topic '%s' is gone", position.partition, position.topic)
            self._set_positions({one: found.offset for one, found in self._positions.items() if one != key})
        else:
            await super()._refused(position, error)


def _is_partition(what: object) -> bool:
    return isinstance(what, tuple) and len(what) == 2 and isinstance(what[0], str) and isinstance(what[1], int)
