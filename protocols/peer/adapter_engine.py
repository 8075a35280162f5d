"""The two ends of an `engine` link: who dials has clients of queues that who is dialled leads.

1. Both are what `routing.cluster.clients.forwarding` and `routing.cluster.clients.serving` see of the other broker;
   they translate calls to frames and frames to calls, and hold nothing but what a turn has brought.
2. What comes is taken in its order. What the other knows of the metadata and this one does not yet is waited for, a
   moment; meanwhile nothing more is read from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core_log.errors import CorruptBatch
from protocols.peer import columns
from protocols.peer import wire_engine as wire
from protocols.peer.adapter import PeerAdapter
from protocols.peer.adapter_feed import FeedIn, FeedOut, Feeds
from protocols.peer.adapter_slabs import SlabReader, records_entry, to_entry
from protocols.peer.adapter_transactions import TransactionsIn, TransactionsOut
from protocols.peer.columns import NAMES
from protocols.peer.config import PeerConfig
from protocols.peer.connection import Acceptor, Dialer
from protocols.peer.values import pack_value, unpack_value
from protocols.peer.wire import ErrorCode, PeerError
from protocols.peer.wire_engine import AnyEngineFrame
from protocols.peer.wire_places import Fenced, Numbered, NumberedEntry, Placed, PlacedEntry
from protocols.peer.wire_transactions import TransactionFrame
from protocols.sansio import Outbox
from routing import errors
from routing.cluster.clients.engine import Engine
from routing.cluster.clients.leader_questions import Answer, LogPart, NotLed
from routing.cluster.clients.remote_queue import Attachment
from routing.cluster.clients.served_logs import LogRead
from routing.cluster.clients.serving import ServedBroker
from routing.cluster.clients.streams import Kept, Records, Slabs
from routing.message import Numbered as Numbers
from routing.message import Slab
from routing.queues.publish_numbers import pack_numbers, unpack_numbers
from routing.unsettled import Outcome

_FRAME_BYTES = 32 << 20
"""A frame is sent when it has grown to this, whatever else the turn brings."""
_DELIVERED_MAX = 1 << 16

_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        errors.NotFound,
        errors.AccessRefused,
        errors.PreconditionFailed,
        errors.ResourceLocked,
        errors.InvalidArgument,
        errors.LimitExceeded,
        errors.StorageUnavailable,
        errors.NotImplementedYet,
        NotLed,
        CorruptBatch,
    )
}
"""What an answer may name; anything else is `StorageUnavailable`."""

_OUTCOMES: dict[str, Outcome] = {outcome.value: outcome for outcome in Outcome}


class _EngineAdapter(PeerAdapter):
    """What both ends have in common."""

    beats = 2

    def _write(self, frame: AnyEngineFrame) -> None:
        self._said_s = self._clock()
        for piece in wire.encode(frame):
            self._outbox.write(piece)

    def _unexpected(self, frame: object) -> PeerError:
        return PeerError(ErrorCode.UNEXPECTED_FRAME, f"a frame '{type(frame).__name__}' that is not due")


class ForwardingAdapter(_EngineAdapter):
    """The end of who dialled; `routing.cluster.clients.forwarding.EngineLink`."""

    def __init__(
        self,
        link: Dialer,
        outbox: Outbox,
        engine: Engine,
        feeds: Feeds,
        *,
        clock: Callable[[], float],
        config: PeerConfig,
    ) -> None:
        super().__init__(link, outbox, clock=clock, config=config)
        self._forwarding = engine.forwarding
        self._unsent = engine.unsent
        self._feed = FeedOut(link.to, outbox, engine.interests, feeds)
        self._transactions = TransactionsOut(link.to, outbox, engine)
        self._slabs = SlabReader()
        self._publish = wire.Publish(0, [], [], [])
        self._publish_bytes = 0
        self._numbered: list[NumberedEntry] = []
        self._settled: list[wire.SettleEntry] = []
        self._credit: dict[int, wire.CreditEntry] = {}

    # ---- `EngineLink`

    def publish(self, log: str, leader_epoch: int, kept: Kept, *, begins: bool, again: bool) -> None:
        """See `EngineLink`."""
        self._unsent[self] = None
        what = kept.what
        if isinstance(what, Slabs):
            slab = to_entry(what.slab)
            ids = list(what.queue_ids)
            entry = wire.PublishEntry(log, leader_epoch, kept.position, ids, what.once_in_ms, begins + 2 * again, slab)
            self._publish.slabs.append(entry)
            if what.slab.once is not None:
                publisher, numbers, epoch = what.slab.once
                self._numbered.append(NumberedEntry(log, kept.position, publisher, epoch, pack_numbers(numbers)))
        else:
            self._publish.records.append(records_entry(log, leader_epoch, kept, what, begins))
        self._publish_bytes += kept.size_bytes
        if self._publish_bytes > _FRAME_BYTES:
            self.flush()

    def wait(self, log: str, leader_epoch: int, sync_before: int, heard_before: int) -> None:
        """See `EngineLink`."""
        self._unsent[self] = None
        self._publish.waiting.append(wire.WaitingEntry(log, leader_epoch, sync_before, heard_before))

    def settle(self, number: int, outcome: Outcome, ranges: list[int]) -> None:
        """See `EngineLink`."""
        self._unsent[self] = None
        settled = self._settled
        assert outcome is not Outcome.RECEIVED, "what others lead is settled in one step"
        if settled and settled[-1].number == number and settled[-1].outcome == outcome.value:
            before = settled[-1].ranges
            if before and before[-1] + 1 == ranges[0]:
                before[-1] = ranges[1]
                ranges = ranges[2:]
            before += ranges
        else:
            settled.append(wire.SettleEntry(number, outcome.value, list(ranges)))

    def credit(self, number: int, messages: int, size_bytes: int) -> None:
        """See `EngineLink`."""
        self._unsent[self] = None
        self._credit[number] = wire.CreditEntry(number, messages, size_bytes)

    def flush(self) -> None:
        """See `EngineLink`."""
        publish = self._publish
        if publish.slabs or publish.records or publish.waiting:
            publish.revision = self._forwarding.revision
            if self._numbered:
                self._write(Numbered(self._numbered))
                self._numbered = []
            self._write(publish)
            self._publish = wire.Publish(0, [], [], [])
            self._publish_bytes = 0
        if self._settled:
            self._write(wire.Settle(self._settled))
            self._settled = []
        if self._credit:
            self._write(wire.Credit(list(self._credit.values())))
            self._credit = {}

    def beat(self) -> None:
        """Say something, if it is time to."""
        if self._silent():
            self._write(wire.Credit([]))

    def consume(self, request: int, log: str, leader_epoch: int, queue_id: int, attachment: Attachment) -> None:
        """See `EngineLink`."""
        consumer = attachment.consumer
        assert consumer is not None
        self._write(
            wire.Consume(
                request,
                self._forwarding.revision,
                attachment.number,
                log,
                leader_epoch,
                queue_id,
                consumer.tag.encode("utf-8", NAMES),
                consumer.no_ack,
                consumer.exclusive,
                consumer.priority,
                attachment.granted,
                attachment.granted_bytes,
                b"",
            )
        )

    def cancel(self, number: int) -> None:
        """See `EngineLink`."""
        self._write(wire.Cancel(number))

    def ask(self, request: int, what: str, log: str, leader_epoch: int, queue_id: int, number: int) -> None:
        """See `EngineLink`."""
        query: Any = what
        self._write(wire.Ask(request, self._forwarding.revision, query, log, leader_epoch, queue_id, number))

    def command(self, request: int, log: str, leader_epoch: int, name: str, arguments: Mapping[str, Any]) -> None:
        """See `EngineLink`."""
        said = pack_value(dict(arguments))
        self._write(wire.Command(request, self._forwarding.revision, log, leader_epoch, name, said))

    def fetch(
        self, request: int, log: str, leader_epoch: int, offset: int, before: int, size_bytes: int, *, waits: bool
    ) -> None:
        """See `EngineLink`."""
        revision = self._forwarding.revision
        self._write(wire.Fetch(request, revision, log, leader_epoch, offset, before, size_bytes, waits))

    def find_time(self, request: int, log: str, leader_epoch: int, timestamp_ms: int) -> None:
        """See `EngineLink`."""
        self._write(wire.FindTime(request, self._forwarding.revision, log, leader_epoch, timestamp_ms))

    # ---- what comes

    def _link_opened(self) -> None:
        self._write(wire.Begin(self._forwarding.process))
        self._forwarding.linked(self)
        self._feed.begin()
        self._transactions.begin()

    def _link_lost(self) -> None:
        self._forwarding.lost(self)
        self._feed.lose()
        self._transactions.lose()
        self._unsent.pop(self, None)

    def _take(self, frame: Any) -> None:
        forwarding = self._forwarding
        if isinstance(frame, wire.Deliver):
            for entry in frame.entries:
                slab = self._slabs.read(entry.slab)
                forwarding.delivered(self, entry.number, entry.first_id, entry.redelivered, slab)
        elif isinstance(frame, Placed):
            for placed in frame.entries:
                forwarding.placed(placed.number, placed.first_id, _pairs(placed.offsets))
        elif isinstance(frame, wire.Done):
            for done in frame.entries:
                forwarding.done(done.log, done.leader_epoch, done.written, done.committed, _pairs(done.refused))
        elif isinstance(frame, wire.Answer):
            forwarding.answered(frame.request, self._answer(frame))
        elif isinstance(frame, wire.Fetched):
            part = LogPart(frame.log_start, frame.high_watermark, list(frame.batches), frame.offset)
            error = _error_of(frame.error, frame.text)
            forwarding.answered(frame.request, Answer(part=part) if error is None else Answer(error))
        elif isinstance(frame, wire.Result):
            error = _error_of(frame.error, frame.text)
            answer = Answer(error) if error is not None else Answer(value=(unpack_value(frame.value),))
            forwarding.answered(frame.request, answer)
        elif isinstance(frame, wire.Over):
            forwarding.over(frame.number, queue_is_gone=frame.queue_is_gone)
        elif isinstance(frame, wire.NotLed):
            forwarding.not_led(self, frame.log, frame.leader_epoch, last=frame.last)
        elif isinstance(frame, Fenced):
            forwarding.connections.fence(frame.client, frame.epoch)
        elif isinstance(frame, TransactionFrame):
            self._transactions.take(frame)
        else:
            self._feed.take(frame)

    def _answer(self, frame: wire.Answer) -> Answer:
        error = _error_of(frame.error, frame.text)
        if error is not None:
            return Answer(error)
        got = frame.got
        if got is None:
            return Answer(None, frame.messages, frame.consumers)
        slab = self._slabs.read(got.slab)
        return Answer(None, frame.messages, frame.consumers, got.number, got.first_id, got.redelivered, slab)


def _error_of(name: str, text: str) -> Exception | None:
    """What an answer says; None: it says of no error."""
    return _ERRORS.get(name, errors.StorageUnavailable)(text) if name else None


class ServedAdapter(_EngineAdapter):
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
        if self._deliveries_bytes > _FRAME_BYTES:
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
            self._write(wire.Result(request, "", "", pack_value(answer.value[0])))
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
            if not self.closed:
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
                served.wait(waiting.log, waiting.leader_epoch, waiting.heard_before)
            self._numbered = {}
        elif isinstance(frame, Numbered):
            self._numbered = {(one.log, one.position): one for one in frame.entries}
        elif isinstance(frame, wire.Settle):
            for settled in frame.entries:
                served.settle(settled.number, _OUTCOMES[settled.outcome], _pairs(settled.ranges))
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


def _pairs(ranges: Sequence[int]) -> Sequence[int]:
    """Firsts and lasts. Raises PeerError."""
    if len(ranges) % 2 or any(first > last for first, last in zip(ranges[::2], ranges[1::2])):
        raise PeerError(ErrorCode.MALFORMED_FRAME, "ranges without an end")
    return ranges
