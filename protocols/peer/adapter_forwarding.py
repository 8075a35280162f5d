"""The end of an `engine` link of who dialled: its clients use queues and topics that the other broker leads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from core_log.errors import CorruptBatch
from protocols.peer import wire_engine as wire
from protocols.peer.adapter_engine import FRAME_BYTES, FRAME_ENTRIES, EngineAdapter, as_pairs
from protocols.peer.adapter_feed import FeedOut, Feeds
from protocols.peer.adapter_slabs import SlabReader, records_entry, to_entry
from protocols.peer.adapter_transactions import TransactionsOut
from protocols.peer.columns import NAMES
from protocols.peer.config import PeerConfig
from protocols.peer.connection import Dialer
from protocols.peer.values import pack_value, unpack_value
from protocols.peer.wire_places import Fenced, Numbered, NumberedEntry, Placed
from protocols.peer.wire_transactions import TransactionFrame
from protocols.sansio import Outbox
from routing import errors
from routing.cluster.clients.attachment import Attachment
from routing.cluster.clients.engine import Engine
from routing.cluster.clients.leader_questions import Answer, LogPart, NotLed
from routing.cluster.clients.streams import Kept, Slabs
from routing.queues.publish_numbers import pack_numbers
from routing.unsettled import Outcome

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


class ForwardingAdapter(EngineAdapter):
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
        self._feed = FeedOut(link.to, outbox, engine.interests, feeds, lambda: link.takes_ids)
        self._transactions = TransactionsOut(link.to, outbox, engine)
        self._slabs = SlabReader()
        self._publish = wire.Publish(0, [], [], [])
        self._publish_bytes = 0
        self._numbered: list[NumberedEntry] = []
        self._settled: list[wire.SettleEntry] = []
        self._cancelled: list[int] = []
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
        entries = len(self._publish.slabs) + len(self._publish.records)
        if self._publish_bytes > FRAME_BYTES or entries >= FRAME_ENTRIES:
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
            if len(settled) >= FRAME_ENTRIES:
                self._write(wire.Settle(settled))
                self._settled = []

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
        for number in self._cancelled:
            self._write(wire.Cancel(number))
        self._cancelled.clear()
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
                consumer.no_ack and not attachment.settles,
                consumer.exclusive,
                consumer.priority,
                attachment.granted,
                attachment.granted_bytes,
                wire.AT_MOST_ONCE if attachment.settles else b"",
            )
        )

    def cancel(self, number: int) -> None:
        """See `EngineLink`."""
        self._unsent[self] = None
        self._cancelled.append(number)

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
                forwarding.placed(placed.number, placed.first_id, as_pairs(placed.offsets))
        elif isinstance(frame, wire.Done):
            for done in frame.entries:
                forwarding.done(done.log, done.leader_epoch, done.written, done.committed, as_pairs(done.refused))
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
