"""What a view holds: messages that are records of a topic and are written nowhere else.

1. A view takes records in as they are wanted, a slab at a time, from one partition after the other. What it takes gets
   ids of the view's own, 0, 1, ...; these are the offsets that its queue knows, in every line, count and settlement.
2. The home partition's log says what was taken in (TAKEN) and what of it is settled (SETTLED), and no more: the bodies
   are the topic's. So a view is restored as any queue is, and a backlog that nobody wants yet costs nothing at all. No
   part of that log has to stay for it: what it says is said again before it goes (`dead_prefix.py`).
3. What was taken in and not written down when a process ended is taken in once more. Nobody knows then what was given
   out: whatever the topic had by the time of the start is marked as redelivered. Who leads a partition is asked how
   much that is, and until he says it all is marked. Ids leave a gap there, so that no id ever means two records.
4. What the topic does not keep any more, or cannot be read of it, is dropped when it is its turn, counted and logged.
5. What was taken in was committed. A broker that takes a view over may have to be told so: of its replica, or of one
   elsewhere. Until then these messages wait, and are not taken for gone. Where a log has lost its end for good they
   wait for what will be there in its place.
6. A view with a filter (`view_filter.py`) takes in the records whose keys it wants, and passes the others: they get no
   ids. However many it passes, others have their turns meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from core_log.errors import Damaged
from routing.errors import StorageUnavailable
from routing.message import StreamSlab
from routing.queues.fact_columns import FactColumns
from routing.queues.runs_of import runs_of
from routing.queues.settlement import CARRIED_KEY, RETURNED_KEY, Taken, encode_returned, encode_taken
from routing.queues.slab_cache import CachedSlab
from routing.queues.unsealed import Record
from routing.queues.view_filter import KeyFilter, picked
from routing.queues.view_pieces import Part, Piece, Pieces, within
from routing.queues.view_state import ViewState
from routing.queues.waiting import live_ranges

if TYPE_CHECKING:
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.queues.view_queue import ViewQueue

logger = logging.getLogger(__name__)

_RECORD_ENTRIES = 1 << 15
_LOOK_S = 1.0
"""So often who waits looks whether the queue is still served here."""
_PASSED_MAX = 1 << 13
"""So many records are passed before others have their turn."""
_ID_GAP = 1 << 24
"""More than can have been taken in and not be written when a process ends."""
_ALL = (1 << 63) - 1


class Source(Protocol):
    """A partition of a topic, as its readers see it."""

    @property
    def start(self) -> int:
        """Where it begins."""

    @property
    def end(self) -> int:
        """The offset behind all that readers may see."""

    @property
    def is_behind(self) -> bool:
        """Whether readers elsewhere may have seen more than `end`."""

    async def told_end(self) -> int:
        """`end` as whoever leads it knows it. Raises StorageUnavailable."""

    def find_end(self, done: Callable[[int], None]) -> None:
        """Tell `done` an offset behind all that readers anywhere have seen: at once, or when its leader has said it."""

    def slab_at(self, offset: int) -> StreamSlab | int | None:
        """What holds an offset or comes next: a slab, or an offset before which there is nothing; None: ask for it with
        `load`.
        """

    def load(self, offset: int, done: Callable[[Damaged | None], None]) -> None:
        """Read what an offset begins, off the loop; `done` is told, and a turn ends."""


class TopicFeed(Protocol):
    """A topic as a view sees it."""

    def sources(self) -> Sequence[Source]:
        """Its partitions, as many as there are now; none where there is no such topic."""

    def waits(self, count: int) -> None:
        """So many more (or less) wait for what comes."""

    def close(self) -> None:
        """It is not wanted any more."""


class View:
    """See the module. To its queue it is what has the messages (`Queue.store`)."""

    def __init__(
        self, queue: ViewQueue, home: QueuePartition, open_feed: Callable[[], TopicFeed], pattern: str | None
    ) -> None:
        self.facts = FactColumns()
        """Of its messages: there are none."""
        self.news = True
        """There may be more to take in."""
        self.gone = 0
        """Messages that the topic did not keep."""
        self.said_at = 0
        """From this offset of the home's log on all of it is said."""
        self._queue = queue
        self._home = home
        self._open_feed = open_feed
        self._filter = None if pattern is None else KeyFilter(pattern)
        self._feed: TopicFeed | None = None
        self._next_id = 0
        self._positions: dict[int, int] = {}
        self._pieces = Pieces()
        self._marks: dict[int, int] | None = None
        """By partition, what lies before this offset may have been given out before."""
        self._told: dict[int, int] = {}
        """By partition, how far it was for its leader when that was last asked."""
        self._turn = 0
        self._behind = -1
        self._last: CachedSlab | None = None
        self._reading: set[tuple[int, int]] = set()
        self._damaged: dict[int, list[range]] = {}
        """By partition, which records cannot be read."""
        self._read = trio.Event()

    @property
    def sources(self) -> Sequence[Source]:
        """The topic's partitions."""
        if self._feed is None:
            if self._queue.deleted:
                return ()
            self._feed = self._open_feed()
        return self._feed.sources()

    def advanced(self) -> None:
        """The topic has more, or begins elsewhere."""
        self._behind = -1
        self.news = True
        self._tell()
        self._queue.wake()

    def waits(self, count: int) -> None:
        """So many more (or less) consumers wait."""
        if self._feed is None and not self._queue.deleted:
            self._feed = self._open_feed()
        if self._feed is not None:
            self._feed.waits(count)

    def close(self) -> None:
        """The queue is no more, or another object is it."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None
        self._pieces.clear()
        self._last = None

    # --- taking in ---------------------------------------------------------------------

    def _position(self, partition: int) -> int:
        found = self._positions.get(partition)
        if found is None:
            start = self._queue.start
            found = self._positions[partition] = start[partition] if partition < len(start) else 0
        return found

    @property
    def backlog(self) -> int:
        """Records that were not taken in yet."""
        if self._behind < 0:
            self._behind = sum(
                max(0, self._end(partition, source) - max(self._position(partition), source.start))
                for partition, source in enumerate(self.sources)
            )
        return self._behind

    def _end(self, partition: int, source: Source) -> int:
        return max(source.end, self._told.get(partition, 0))

    @property
    def is_behind(self) -> bool:
        """Whether `refresh` may learn of more."""
        return any(source.is_behind for source in self.sources)

    async def refresh(self) -> None:
        """Have whoever leads a partition asked how far it is; who does not say it soon is not waited for."""
        told: dict[int, int] = {}

        async def ask(partition: int, source: Source) -> None:
            with suppress(StorageUnavailable):
                told[partition] = await source.told_end()

        with trio.move_on_after(_LOOK_S):
            async with trio.open_nursery() as nursery:
                for partition, source in enumerate(self.sources):
                    if source.is_behind:
                        nursery.start_soon(ask, partition, source)
        self._told, self._behind = told, -1

    def take_in(self) -> bool:
        """Have the queue's line go on with the next slab that is in memory, if there is one; what is not is read."""
        sources = self.sources
        for step in range(len(sources)):
            partition = (self._turn + step) % len(sources)
            if self._take_in(partition, sources[partition]):
                self._turn = partition + 1
                return True
        self.news = False
        return False

    def _take_in(self, partition: int, source: Source) -> bool:
        position = self._position(partition)
        if position < source.start:
            self._lose(source.start - position, f"partition {partition} begins at {source.start} now")
            position = self._pass_to(partition, source.start)
        if self._marks is not None and partition not in self._marks:
            self._marks[partition] = _ALL
            source.find_end(partial(self._marks.__setitem__, partition))
        end, passed = source.end, position
        while position < end:
            if position - passed > _PASSED_MAX:
                self._go_on_later(partition, position)
                return False
            slab = source.slab_at(position)
            if slab is None:
                self._load(partition, source, position)
                return False
            if isinstance(slab, int):
                passed = position = self._pass_to(partition, min(slab, end))
                continue
            if self._enter(partition, source, position, slab):
                return True
            position = self._position(partition)
        return False

    def _pass_to(self, partition: int, offset: int) -> int:
        self._positions[partition] = offset
        self._behind = -1
        return offset

    def _go_on_later(self, partition: int, offset: int) -> None:
        """As if this had to be read: whoever waits for the view waits for that."""
        self._reading.add((partition, offset))
        host = self._queue.host
        host.at_ms(host.now_ms(), partial(self._loaded, partition, offset, None))

    def _enter(self, partition: int, source: Source, position: int, slab: StreamSlab) -> bool:
        """Take in what is wanted of a slab from a position on; False if nothing is."""
        queue, first = self._queue, self._next_id
        start, stop = _span(slab, position, source.end)
        stretches = [(start, stop - start)] if self._filter is None else self._filter.wanted(slab, start, stop)
        end, marked = slab.first_offset + stop, 0
        mark = 0 if self._marks is None else self._marks[partition]
        for place, count in stretches:
            offset = slab.first_offset + place
            self._pieces.add(Part(self._next_id, count, partition, offset))
            self._home.note_taken(Taken(queue.id, partition, offset, self._next_id, count))
            self._next_id += count
            marked += min(max(mark - offset, 0), count)
        if self._behind >= 0:
            self._behind -= end - position
        self._positions[partition] = end
        if not stretches:
            self._home.note_taken(Taken(queue.id, partition, end, first, 0))
            return False
        self._last = CachedSlab(first, picked(slab, stretches), 0)
        if marked:
            queue.line.placed.add(first, marked)
        if first + marked < self._next_id:
            queue.line.ready.append(first + marked, self._next_id - first - marked)
        return True

    def skip_to_end(self) -> None:
        """What was not taken in yet is done with."""
        for partition, source in enumerate(self.sources):
            end = self._end(partition, source)
            if self._position(partition) < end:
                self._pass_to(partition, end)
                self._home.note_taken(Taken(self._queue.id, partition, end, self._next_id, 0))

    async def more(self) -> bool:
        """Wait until the line goes on; False if there is nothing, nor anything that nobody has waited for yet."""
        is_told = False
        while not self._queue.deleted:
            if self._queue.line.count or self.take_in():
                return True
            if self._reading:
                await self._read.wait()
            elif is_told or not self.is_behind:
                return False
            else:
                is_told = True
                await self._catch_up()
        return False

    async def _catch_up(self) -> None:
        """Wait, though not for long, for what whoever leads a partition has now."""
        await self.refresh()
        with trio.move_on_after(_LOOK_S):
            while any(self._told.get(at, 0) > max(one.end, self._position(at)) for at, one in enumerate(self.sources)):
                await self._be_told()

    # --- reading -----------------------------------------------------------------------

    def _load(self, partition: int, source: Source, offset: int) -> None:
        if (partition, offset) not in self._reading:
            self._reading.add((partition, offset))
            source.load(offset, partial(self._loaded, partition, offset))

    def _loaded(self, partition: int, offset: int, error: Damaged | None) -> None:
        self._reading.discard((partition, offset))
        self._tell()
        if error is not None:
            self._damaged.setdefault(partition, []).append(range(offset, error.behind))
            if self._position(partition) == offset:
                self._lose(error.behind - offset, f"partition {partition} cannot be read at {offset}: {error}")
                self._pass_to(partition, error.behind)
        self.news = True
        self._queue.wake()

    def _tell(self) -> None:
        """Whoever waits looks again."""
        read, self._read = self._read, trio.Event()
        read.set()

    def find(self, message: int) -> CachedSlab | None:
        """The slab that holds a message, if it is in memory."""
        last = self._last
        if last is not None and last.first <= message < last.end:
            return last
        found = self._look(message)
        if found is None:
            return None
        piece, offset, slab = found
        if slab is None or isinstance(slab, int) or slab.first_offset > offset:
            return None
        start, stop = _span(slab, piece.offset, piece.offset + piece.end - piece.first)
        first = piece.first + slab.first_offset + start - piece.offset
        self._last = last = CachedSlab(first, picked(slab, [(start, stop - start)]), 0)
        return last

    def _is_early(self, message: int) -> bool:
        """Whether this broker, which just began to lead, does not know yet that its record is committed (rule 5)."""
        place = self._place(message)
        return place is not None and place[1] >= place[2].end

    def _place(self, message: int) -> tuple[Piece, int, Source] | None:
        """The piece that has a message, its offset, and the partition; None if there is none."""
        piece, sources = self._pieces.find(message), self.sources
        if piece is None or piece.partition >= len(sources):
            return None
        return piece, piece.offset + message - piece.first, sources[piece.partition]

    def _look(self, message: int) -> tuple[Piece, int, StreamSlab | int | None] | None:
        """The piece that has a message, its offset, and what the topic has there. None: nobody knows now."""
        place = self._place(message)
        if place is None:
            return None
        piece, offset, source = place
        if offset < source.start:
            return piece, offset, source.start
        if offset >= source.end:
            return None
        for damaged in self._damaged.get(piece.partition, ()):
            if offset in damaged:
                return piece, offset, damaged.stop
        return piece, offset, source.slab_at(offset)

    def _gone_from(self, message: int) -> int:
        """So many messages from one on are not there any more, be it that the topic has fewer partitions."""
        cut = self._pieces.find(message)
        if cut is not None and 0 < len(self.sources) <= cut.partition:
            return cut.end - message
        found = self._look(message)
        if found is None:
            return 0
        piece, offset, slab = found
        if slab is None:
            return 0
        following = slab if isinstance(slab, int) else slab.first_offset
        return max(0, min(following - offset, piece.end - message))

    def load(self, message: int, queue: ViewQueue) -> None:
        """Read what a message begins; the queue is pumped again when it is here, or when it is known to be gone."""
        gone = self._gone_from(message)
        if gone:
            self._drop(message, gone)
            return
        found = self._look(message)
        if found is not None and found[2] is None:
            piece, offset, _ = found
            self._load(piece.partition, self.sources[piece.partition], offset)

    async def load_now(self, message: int, queue: ViewQueue) -> None:
        """As `load`, for one who can wait: until it is in memory, or gone. What was read may be out of memory again
        before he looks, and a read may end with nothing where a partition has another log now.
        """
        while not (queue.deleted or queue.partition.suspended or self.find(message) is not None):
            is_left = self._pieces.find(message) is not None and not self._gone_from(message)
            self.load(message, queue)
            if not is_left:
                break
            if self._is_early(message):
                await self._be_told()
            else:
                with trio.move_on_after(_LOOK_S):
                    await self._read.wait()
        await trio.lowlevel.checkpoint()

    async def _be_told(self) -> None:
        """Have whoever leads asked how much is committed, and wait for news."""
        feed = self._feed
        assert feed is not None
        feed.waits(1)
        try:
            with trio.move_on_after(_LOOK_S):
                await self._read.wait()
        finally:
            if feed is self._feed:
                feed.waits(-1)

    def load_scattered(self, messages: list[int], queue: ViewQueue) -> bool:
        """Those that lie far apart are read like all others."""
        return False

    async def read_scattered(self, messages: Sequence[int]) -> None:
        """See `load_scattered`: whoever wants them asks for each."""

    def awaits(self, queue: ViewQueue) -> bool:
        """It will be pumped again, for all of what it asked for."""
        return False

    def _drop(self, message: int, count: int) -> None:
        """Messages that come next are not there any more."""
        first, there, _ = self._queue.line.head()
        count = min(count, there) if first == message else 0
        if count:
            self._queue.take(count)
            self._queue.settle(first, count)
            self._lose(count, "records it had not settled are gone")
            self._queue.wake()

    def _lose(self, count: int, why: str) -> None:
        self.gone += count
        logger.warning("queue %s lacks %d messages that its topic does not have: %s", self._queue.name, count, why)

    # --- done with ---------------------------------------------------------------------

    def settle(self, queue_id: int, first: int, count: int) -> None:
        """See `QueuePartition.settle`."""
        self._pieces.settle(first, count)
        self._home.note_settled(queue_id, first, count)

    def settle_offsets(self, queue_id: int, offsets: list[int]) -> None:
        """See `QueuePartition.settle_offsets`."""
        for first, count in runs_of(offsets):
            self.settle(queue_id, first, count)

    def forget(self, first: int, count: int) -> None:
        """Of a view that is deleted nothing has to be known."""

    # --- over a stop -------------------------------------------------------------------

    def restore(self, state: ViewState, *, clean: bool) -> None:
        """Take over what was written down; the lines are filled by whoever calls."""
        self._next_id = state.next_id if clean else state.next_id + _ID_GAP
        self._positions = dict(state.positions)
        self._marks = None if clean else {}
        for part in state.parts:
            self._pieces.add(part)

    def state(self) -> ViewState:
        """What a clean stop writes down."""
        parts = within(list(self._pieces.left()), live_ranges(self._queue))
        return ViewState(self._next_id, self._positions, parts)

    def said(self) -> Iterator[Record]:
        """All of it for the log, which is to forget what it has said before."""
        queue = self._queue
        known = [Taken(queue.id, partition, offset, self._next_id, 0) for partition, offset in self._positions.items()]
        known += [Taken(queue.id, one.partition, one.offset, one.first, one.count) for one in self._pieces.left()]
        for at in range(0, len(known), _RECORD_ENTRIES):
            yield CARRIED_KEY, encode_taken(known[at : at + _RECORD_ENTRIES])
        tries = [] if queue.returns is None else list(queue.returns.tries.items())
        for at in range(0, len(tries), _RECORD_ENTRIES):
            some = tries[at : at + _RECORD_ENTRIES]
            yield RETURNED_KEY, encode_returned((queue.id, one, kept.packed, kept.due_ms) for one, kept in some)


def _span(slab: StreamSlab, start: int, end: int) -> tuple[int, int]:
    """Which messages of a slab are records [start, end)."""
    return max(start - slab.first_offset, 0), min(end, slab.end_offset) - slab.first_offset
