"""What goes over a link between brokers beside the queues' own traffic: what queues that end with a broker want, the
messages for these, and group offsets.

`FeedOut` is the end of who dialled, `FeedIn` that of who was dialled; the adapter of the link hands them the frames
that are theirs (`wire_feed.FeedFrame`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from protocols.peer import wire_feed as wire
from protocols.peer.adapter_slabs import SlabReader, to_entry
from protocols.peer.columns import NAMES
from protocols.peer.wire import ErrorCode, PeerError
from protocols.peer.wire_engine import encode
from protocols.sansio import Outbox
from routing.cluster.clients.interests import Interests
from routing.cluster.clients.offsets import ReplicatedOffsets
from routing.cluster.clients.questions import Questions
from routing.errors import StorageUnavailable
from routing.message import Slab
from routing.topics.offset_store import Committed, Partition
from routing.topology.interest import Interest

FORWARD_BYTES_MAX = 16 << 20
"""Messages that may wait for one broker; more are lost."""
_PATIENCE_S = 10.0


def _name(text: str) -> bytes:
    return text.encode("utf-8", NAMES)


def _text(name: bytes) -> str:
    return name.decode("utf-8", NAMES)


def _entries(interests: Sequence[Interest]) -> list[wire.InterestEntry]:
    return [
        wire.InterestEntry(
            _name(one.vhost),
            _name(one.exchange),
            _name(one.pattern),
            one.syntax,
            _name(one.arguments),
            _name(one.queue),
        )
        for one in interests
    ]


def _interests(entries: Sequence[wire.InterestEntry]) -> list[Interest]:
    return [
        Interest(
            _text(one.vhost),
            _text(one.exchange),
            _text(one.pattern),
            one.syntax,
            _text(one.arguments),
            _text(one.queue),
        )
        for one in entries
    ]


def _offsets(entries: Sequence[wire.OffsetEntry]) -> dict[Partition, Committed]:
    return {(_text(one.topic), one.partition): Committed(one.offset, one.note) for one in entries}


def _offset_entries(offsets: Mapping[Partition, Committed]) -> list[wire.OffsetEntry]:
    return [
        wire.OffsetEntry(_name(topic), partition, said.offset, said.note)
        for (topic, partition), said in offsets.items()
    ]


class FeedOut:
    """See the module. `begin` when the link is open, `lose` when it is lost."""

    def __init__(
        self,
        broker: int,
        outbox: Outbox,
        interests: Interests,
        feeds: Feeds,
        takes_ids: Callable[[], bool] = lambda: False,
    ) -> None:
        """`takes_ids`: see `Challenge`."""
        self.broker = broker
        self._takes_ids = takes_ids
        self._outbox = outbox
        self._feeds = feeds
        self._interests = interests
        self._questions = Questions[wire.Offsets](_PATIENCE_S)

    def begin(self) -> None:
        """The link is open."""
        self._feeds.by_broker[self.broker] = self
        self._interests.linked(self)

    def lose(self) -> None:
        """It is lost: nobody answers any more."""
        if self._feeds.by_broker.get(self.broker) is self:
            del self._feeds.by_broker[self.broker]
        self._interests.lost(self)
        self._questions.close()

    @property
    def room_bytes(self) -> int:
        """How much more of messages it takes now."""
        return FORWARD_BYTES_MAX - self._outbox.pending_bytes

    def tell(self, number: int, anew: bool, more: Sequence[Interest], less: Sequence[Interest]) -> None:
        """See `InterestLink`."""
        self._write(wire.Wanted(number, anew, _entries(more), _entries(less)))

    def forward(self, vhost: str, copies: tuple[str, ...], queue: str, slab: Slab, name: bytes = b"") -> None:
        """See `InterestLink`."""
        self._write(wire.Forward(_name(vhost), [_name(key) for key in copies], _name(queue), name, to_entry(slab)))

    def _write(self, frame: wire.FeedFrame | wire.CommitPlainOffsets) -> None:
        for piece in encode(frame):
            self._outbox.write(piece)

    def take(self, frame: wire.FeedFrame) -> None:
        """An answer. Raises PeerError."""
        if isinstance(frame, wire.Noted):
            same = [(_text(vhost), _text(name)) for vhost, name in frame.same]
            self._interests.on_noted(self, frame.number, same)
        elif isinstance(frame, wire.Offsets):
            self._questions.answer(frame.request, frame)
        else:
            raise PeerError(ErrorCode.UNEXPECTED_FRAME, f"who was dialled sends no '{type(frame).__name__}'")

    async def commit_offsets(
        self, group: str, offsets: Mapping[Partition, Committed], topic_ids: Mapping[str, bytes]
    ) -> None:
        """Have the peer commit. Raises StorageUnavailable."""
        entries, ids = _offset_entries(offsets), [(_name(topic), found) for topic, found in topic_ids.items()]
        if self._takes_ids():
            await self._ask(lambda request: wire.CommitOffsets(request, _name(group), entries, ids))
        else:
            await self._ask(lambda request: wire.CommitPlainOffsets(request, _name(group), entries))

    async def fetch_offsets(self, group: str, partitions: Sequence[Partition] | None) -> dict[Partition, Committed]:
        """Ask the peer. Raises StorageUnavailable."""
        wanted = None if partitions is None else [(_name(topic), partition) for topic, partition in partitions]
        return _offsets((await self._ask(lambda request: wire.FetchOffsets(request, _name(group), wanted))).entries)

    async def _ask(self, make: Callable[[int], wire.CommitPlainOffsets | wire.FetchOffsets]) -> wire.Offsets:
        def send(request: int) -> None:
            self._write(make(request))
            self._interests.want_turn()

        answer = await self._questions.ask(send)
        if answer is None:
            raise StorageUnavailable(f"broker {self.broker}, which has the offsets of this group, does not answer")
        if answer.error:
            raise StorageUnavailable(answer.error)
        return answer


class Feeds:
    """The links to others as `ReplicatedOffsets` sees them."""

    def __init__(self) -> None:
        self.by_broker: dict[int, FeedOut] = {}

    def _to(self, broker: int) -> FeedOut:
        found = self.by_broker.get(broker)
        if found is None:
            raise StorageUnavailable(f"broker {broker}, which has the offsets of this group, cannot be reached")
        return found

    async def commit_offsets(
        self, broker: int, group: str, offsets: Mapping[Partition, Committed], topic_ids: Mapping[str, bytes]
    ) -> None:
        """See `Forward`."""
        await self._to(broker).commit_offsets(group, offsets, topic_ids)

    async def fetch_offsets(
        self, broker: int, group: str, partitions: list[Partition] | None
    ) -> dict[Partition, Committed]:
        """See `Forward`."""
        return await self._to(broker).fetch_offsets(group, partitions)


class FeedIn:
    """See the module. `offsets` is None where this broker keeps none."""

    def __init__(
        self,
        broker: int,
        outbox: Outbox,
        interests: Interests,
        offsets: ReplicatedOffsets | None,
        spawn: Callable[..., Any],
    ) -> None:
        self.broker = broker
        self._outbox = outbox
        self._interests = interests
        self._group_offsets = offsets
        self._spawn = spawn
        self._slabs = SlabReader()

    def take(self, frame: wire.FeedFrame) -> None:
        """What the peer tells or asks. Raises PeerError."""
        if isinstance(frame, wire.Forward):
            copies = [_text(key) for key in frame.copies]
            slab = self._slabs.read(frame.slab)
            self._interests.on_forwarded(_text(frame.vhost), copies, _text(frame.queue), slab, frame.name)
        elif isinstance(frame, wire.Wanted):
            same = self._interests.on_told(self.broker, frame.anew, _interests(frame.more), _interests(frame.less))
            self._write(wire.Noted(frame.number, [(_name(vhost), _name(name)) for vhost, name in same]))
        elif isinstance(frame, wire.CommitOffsets | wire.FetchOffsets):
            self._spawn(self._answer, frame)
        else:
            raise PeerError(ErrorCode.UNEXPECTED_FRAME, f"who dialled sends no '{type(frame).__name__}'")

    def _write(self, frame: wire.FeedFrame) -> None:
        for piece in encode(frame):
            self._outbox.write(piece)

    async def _answer(self, frame: wire.CommitOffsets | wire.FetchOffsets) -> None:
        found: dict[Partition, Committed] = {}
        error = ""
        try:
            if self._group_offsets is None:
                raise StorageUnavailable("no group offsets are kept here")
            if isinstance(frame, wire.CommitOffsets):
                ids = {_text(topic): topic_id for topic, topic_id in frame.topic_ids}
                await self._group_offsets.commit_here(_text(frame.group), _offsets(frame.entries), ids)
            else:
                wanted = None
                if frame.partitions is not None:
                    wanted = [(_text(topic), partition) for topic, partition in frame.partitions]
                found = await self._group_offsets.fetch_here(_text(frame.group), wanted)
        except StorageUnavailable as refusal:
            error = str(refusal)[:4096]
        self._write(wire.Offsets(frame.request, error, _offset_entries(found)))
        self._interests.want_turn()
