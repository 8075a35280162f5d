"""The end of an `engine` link of who was dialled: it leads what clients of the other broker use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from protocols.peer import columns
from protocols.peer import wire_engine as wire
from protocols.peer.adapter_engine import FRAME_BYTES, FRAME_ENTRIES, EngineAdapter, as_pairs
from protocols.peer.adapter_feed import FeedIn
from protocols.peer.adapter_slabs import SlabReader, to_entry
from protocols.peer.adapter_transactions import TransactionsIn
from protocols.peer.columns import NAMES
from protocols.peer.config import PeerConfig
from protocols.peer.connection import Acceptor
from protocols.peer.values import pack_value, unpack_value
from protocols.peer.wire import ErrorCode, PeerError
from protocols.peer.wire_places import Fenced, Numbered, NumberedEntry, Placed, PlacedEntry
from protocols.peer.wire_transactions import TransactionFrame
from protocols.sansio import Outbox
from routing.cluster.clients.engine import Engine
from routing.cluster.clients.leader_questions import Answer
from routing.cluster.clients.served_broker import ServedBroker
from routing.cluster.clients.served_logs import LogRead
from routing.cluster.clients.streams import Records
from routing.errors import LimitExceeded
from routing.message import Numbered as Numbers
from routing.message import Slab
from routing.queues.publish_numbers import unpack_numbers
from routing.unsettled import Outcome

_DELIVERED_MAX = 1 << 16

_OUTCOMES: dict[str, Outcome] = {outcome.value: outcome for outcome in Outcome}


class ServedAdapter(EngineAdapter):
    """The end of who was dialled; `routing.cluster.clients.serving.ServedLink`."""

    def __init__(
        self, link: Acceptor, outbox: Outbox, engine: Engine, *, clock: Callable[[], float], config: PeerConfig
    ) -> None:
        super().__init__(link, outbox, clock=clock, config=config)
        self._engine = engine
        self._serving = engine.serving
        self._unsent = engine.unsent
        self._feed: FeedIn | None = None
        self._transactions: TransactionsIn | None = None
        self._served: ServedBroker | None = None
        self._slabs = SlabReader()
        self._deliveries: list[wire.DeliverEntry] = []
        self._deliveries_bytes = 0
        self._placed: list[PlacedEntry] = []
        self._numbered: dict[tuple[str, int], NumberedEntry] = {}
        self._done: list[wire.DoneEntry] = []

    # ---- `ServedLink`

    @property
    def writable(self) -> bool:
        """See `ServedLink`."""
        return self._outbox.writable

    def placed(self, number: int, first_id: int, ranges: Sequence[int]) -> None:
        """See `ServedLink`."""
        self._placed.append(PlacedEntry(number, first_id, list(ranges)))

    def deliver(self, number: int, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """See `ServedLink`."""
        self._unsent[self] = None
        for at in range(start, stop, _DELIVERED_MAX):
            end = min(at + _DELIVERED_MAX, stop)
            entry = wire.DeliverEntry(number, first_id + at - start, redelivered, to_entry(slab, at, end))
            self._deliveries.append(entry)
            self._deliveries_bytes += len(entry.slab.bodies[1])
        if self._deliveries_bytes > FRAME_BYTES or len(self._deliveries) >= FRAME_ENTRIES:
            self._send_deliveries()

    def _send_deliveries(self) -> None:
        if self._placed:
            self._write(Placed(self._placed))
            self._placed = []
        if self._deliveries:
            self._write(wire.Deliver(self._deliveries))
            self._deliveries = []
            self._deliveries_bytes = 0

    def done(self, log: str, leader_epoch: int, written: int, committed: int, refused: Sequence[int]) -> None:
        """See `ServedLink`."""
        self._unsent[self] = None
        self._done.append(wire.DoneEntry(log, leader_epoch, written, committed, list(refused)))

    def not_led(self, log: str, leader_epoch: int, *, last: bool) -> None:
        """See `ServedLink`."""
        if last:
            self.flush()
        self._write(wire.NotLed(log, leader_epoch, last))

    def fenced(self, client: int, epoch: int) -> None:
        """See `ServedLink`."""
        self._write(Fenced(client, epoch))

    def answer(self, request: int, answer: Answer) -> None:
        """See `ServedLink`."""
        self._send_deliveries()
        error = answer.error
        name, text = ("", "") if error is None else (type(error).__name__, str(error)[:1000])
        if answer.part is not None:
            part = answer.part
            batches = [memoryview(batch) for batch in part.batches]
            self._write(wire.Fetched(request, "", "", part.log_start, part.high_watermark, part.offset, batches))
            return
        if answer.value:
            value = pack_value(answer.value[0])
            if len(value) > wire.COMMAND_BYTES_MAX:
                text = f"the answer would be {len(value):,} bytes long: ask for less at once"
                self._write(wire.Result(request, LimitExceeded.__name__, text, b""))
            else:
                self._write(wire.Result(request, "", "", value))
            return
        got = None
        if answer.slab is not None:
            got = wire.DeliverEntry(answer.number, answer.first_id, answer.redelivered, to_entry(answer.slab))
        self._write(wire.Answer(request, name, text, answer.messages, answer.consumers, got))

    def over(self, number: int, *, queue_is_gone: bool) -> None:
        """See `ServedLink`."""
        self._send_deliveries()
        self._write(wire.Over(number, queue_is_gone))

    def flush(self) -> None:
        """See `ServedLink`."""
        self._send_deliveries()
        if self._done:
            self._write(wire.Done(self._done))
            self._done = []

    def beat(self) -> None:
        """Say something, if it is time to."""
        if self._silent():
            self._write(wire.Done([]))

    # ---- what comes

    def _link_opened(self) -> None:
        self._outbox.on_writable = self._writable
        self._served = self._serving.linked(self)
        engine = self._engine
        self._feed = FeedIn(self.broker, self._outbox, engine.interests, engine.offsets, engine.spawn)
        self._transactions = TransactionsIn(self._served, self._outbox, engine)

    def _link_lost(self) -> None:
        if self._served is not None:
            self._serving.lost(self._served)
        self._unsent.pop(self, None)

    def _writable(self) -> None:
        if self._served is not None:
            self._served.resume()

    async def _take_all(self, frames: Sequence[Any]) -> None:
        for frame in frames:
            revision = getattr(frame, "revision", 0)
            if revision > self._serving.revision:
                await self._serving.catch_up(revision)
                self._heard_s = self._clock()
            if not (self.closed or self._lost):
                self._take(frame)

    def _take(self, frame: Any) -> None:
        served = self._served
        if served is None:
            raise self._unexpected(frame)
        if isinstance(frame, wire.Publish):
            for entry in frame.slabs:
                slab = self._slabs.read(entry.slab)
                numbered = self._numbered.get((entry.log, entry.position)) if self._numbered else None
                if numbered is not None:
                    slab.once = _once(numbered, slab)
                served.publish(
                    entry.log,
                    entry.leader_epoch,
                    entry.position,
                    entry.queue_ids,
                    entry.once_in_ms,
                    slab,
                    begins=bool(entry.follows & 1),
                    again=bool(entry.follows & 2),
                )
            for records in frame.records:
                self._take_records(served, records)
            for waiting in frame.waiting:
                served.wait(waiting.log, waiting.leader_epoch, waiting.sync_before, waiting.heard_before)
            self._numbered = {}
        elif isinstance(frame, Numbered):
            self._numbered = {(one.log, one.position): one for one in frame.entries}
        elif isinstance(frame, wire.Settle):
            for settled in frame.entries:
                served.settle(settled.number, _OUTCOMES[settled.outcome], as_pairs(settled.ranges))
        elif isinstance(frame, wire.Credit):
            for credit in frame.entries:
                served.credit(credit.number, credit.messages, credit.size_bytes)
        elif isinstance(frame, wire.Ask):
            served.ask(frame.request, frame.query, frame.log, frame.leader_epoch, frame.queue_id or 0, frame.number)
        elif isinstance(frame, wire.Consume):
            served.consume(
                frame.request,
                frame.log,
                frame.leader_epoch,
                frame.queue_id or 0,
                frame.number,
                tag=frame.tag.decode("utf-8", NAMES),
                no_ack=frame.no_ack,
                exclusive=frame.exclusive,
                priority=frame.priority,
                messages=frame.messages,
                size_bytes=frame.size_bytes,
                at_most_once=frame.arguments == wire.AT_MOST_ONCE,
            )
        elif isinstance(frame, wire.Fetch):
            size_bytes = min(frame.size_bytes, self._config.read_bytes_max)
            read = LogRead(frame.request, frame.log, frame.leader_epoch, frame.offset, frame.before, size_bytes)
            served.logs.fetch(read, waits=frame.waits)
        elif isinstance(frame, wire.Command):
            arguments = unpack_value(frame.arguments)
            served.commands.run(frame.request, frame.log, frame.leader_epoch, frame.name, arguments)
        elif isinstance(frame, wire.FindTime):
            served.logs.find_time(frame.request, frame.log, frame.leader_epoch, frame.timestamp_ms)
        elif isinstance(frame, wire.Cancel):
            served.cancel(frame.number)
        elif isinstance(frame, wire.Begin):
            served.begin(frame.process)
        elif isinstance(frame, TransactionFrame):
            if self._transactions is not None:
                self._transactions.take(frame)
        elif self._feed is not None:
            self._feed.take(frame)

    def _take_records(self, served: ServedBroker, entry: wire.RecordsEntry) -> None:
        count = entry.count
        keys = columns.split_or_common(entry.keys, count)
        blocks = columns.split_or_common(entry.header_blocks, count)
        records = Records(keys, blocks, columns.split(entry.bodies, count))
        served.append(entry.log, entry.leader_epoch, entry.position, records, begins=entry.begins)


def _once(numbered: NumberedEntry, slab: Slab) -> Numbers:
    """Who numbers the messages of a slab, and how. Raises PeerError."""
    numbers = unpack_numbers(numbered.numbers)
    if len(numbers) != len(slab.bodies):
        raise PeerError(ErrorCode.MALFORMED_FRAME, "another number of numbers than of messages")
    return Numbers(numbered.publisher, numbers, numbered.epoch)
