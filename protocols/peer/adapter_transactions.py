"""What transactions ask of other brokers, over an `engine` link: `TransactionsOut` is the end of who dialled,
`TransactionsIn` that of who was dialled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core_log.errors import LogError
from protocols.peer import wire_transactions as wire
from protocols.peer.wire import ErrorCode, PeerError
from protocols.peer.wire_engine import encode
from protocols.sansio import Outbox
from routing.cluster.clients.asked import answer
from routing.cluster.clients.engine import Engine
from routing.cluster.clients.questions import Questions
from routing.cluster.clients.served_broker import ServedBroker
from routing.cluster.clients.transaction_links import OutcomeUnknown, Settlement
from routing.errors import BrokerError, StorageUnavailable
from routing.groups.errors import GroupError
from routing.log_transactions.errors import BY_NAME, LogTransactionError
from routing.message import NAME_ENCODING_ERRORS

_PATIENCE_S = 10.0
_TEXT_MAX = 4096


class TransactionsOut:
    """See the module; `routing.cluster.clients.transaction_links.TransactionLink`."""

    def __init__(self, broker: int, outbox: Outbox, engine: Engine) -> None:
        self.broker = broker
        self._outbox = outbox
        self._engine = engine
        self._questions = Questions[wire.TransactionAnswer](_PATIENCE_S)
        self._asked = Questions[wire.CoordinatorAnswer](_PATIENCE_S)

    def begin(self) -> None:
        """The link is open."""
        self._engine.transaction_links[self.broker] = self
        self._engine.coordinator_links[self.broker] = self

    def lose(self) -> None:
        """It is lost: nobody answers any more."""
        if self._engine.transaction_links.get(self.broker) is self:
            del self._engine.transaction_links[self.broker]
            del self._engine.coordinator_links[self.broker]
        self._questions.close()
        self._asked.close()

    def take(self, frame: wire.TransactionFrame) -> None:
        """An answer. Raises PeerError."""
        if isinstance(frame, wire.CoordinatorAnswer):
            self._asked.answer(frame.request, frame)
            return
        if not isinstance(frame, wire.TransactionAnswer):
            raise PeerError(ErrorCode.UNEXPECTED_FRAME, f"who was dialled sends no '{type(frame).__name__}'")
        self._questions.answer(frame.request, frame)

    async def keep(self, number: int, key: bytes, record: bytes | None) -> None:
        """See `TransactionLink`."""
        await self._ask(lambda request: wire.KeepTransaction(request, number, key, record))

    async def keep_step(self, number: int, key: bytes, record: bytes, writer: str, step: int) -> bool:
        """See `TransactionLink`."""
        name = writer.encode("utf-8", NAME_ENCODING_ERRORS)
        answer = await self._ask(lambda request: wire.KeepStep(request, number, key, record, name, step))
        return answer.outcome == "done"

    async def put(self, log: str, record: bytes) -> int:
        """See `TransactionLink`."""
        revision = self._engine.forwarding.revision
        answer = await self._ask(lambda request: wire.PutThere(request, revision, log, record))
        return answer.offsets[0] if answer.offsets else 0

    async def places(self, number: int, ids: Sequence[int]) -> Sequence[int]:
        """See `TransactionLink`."""
        return _pairs((await self._ask(lambda request: wire.AskPlaces(request, number, list(ids)))).offsets)

    async def settle(self, log: str, settlements: Sequence[Settlement]) -> None:
        """See `TransactionLink`."""
        entries = [
            wire.SettlementEntry(one.queue_id, one.number, list(one.ids), list(one.offsets), one.rejected)
            for one in settlements
        ]
        revision = self._engine.forwarding.revision
        await self._ask(lambda request: wire.SettleThere(request, revision, log, entries))

    async def ask(self, question: bytes) -> bytes:
        """See `routing.log_transactions.links.CoordinatorLink`."""
        answer = await self._asked.ask(lambda request: self._send(wire.AskCoordinator(request, question)))
        if answer is None:
            raise OutcomeUnknown(f"broker {self.broker} does not answer")
        if answer.error:
            raise BY_NAME.get(answer.error, StorageUnavailable)(answer.text)
        return answer.answer

    def _send(self, frame: wire.TransactionFrame) -> None:
        for piece in encode(frame):
            self._outbox.write(piece)
        self._engine.want_turn()

    async def _ask(self, make: Callable[[int], wire.TransactionFrame]) -> wire.TransactionAnswer:
        answer = await self._questions.ask(lambda request: self._send(make(request)))
        if answer is None:
            raise OutcomeUnknown(f"broker {self.broker} does not answer")
        if answer.outcome in ("refused", "unknown"):
            raise (StorageUnavailable if answer.outcome == "refused" else OutcomeUnknown)(answer.text)
        return answer


class TransactionsIn:
    """See the module."""

    def __init__(self, served: ServedBroker, outbox: Outbox, engine: Engine) -> None:
        self._served = served
        self._outbox = outbox
        self._engine = engine

    def take(self, frame: wire.TransactionFrame) -> None:
        """A question. Raises PeerError."""
        if isinstance(frame, wire.TransactionAnswer | wire.CoordinatorAnswer):
            raise PeerError(ErrorCode.UNEXPECTED_FRAME, f"who dialled sends no '{type(frame).__name__}'")
        if isinstance(frame, wire.AskCoordinator):
            self._engine.spawn(self._answer_coordinator, frame)
            return
        if isinstance(frame, wire.SettleThere):
            for entry in frame.entries:
                _pairs(entry.ids)
                _pairs(entry.offsets)
        elif isinstance(frame, wire.AskPlaces):
            _pairs(frame.ids)
        self._engine.spawn(self._answer, frame)

    async def _answer(self, frame: wire.Question) -> None:
        offsets: Sequence[int] = ()
        outcome: wire.Outcome = "done"
        text = ""
        try:
            if isinstance(frame, wire.KeepStep):
                steps = self._engine.transactions.steps
                writer = frame.writer.decode("utf-8", NAME_ENCODING_ERRORS)
                is_new = await steps.keep_here(frame.number, frame.key, frame.record, writer, frame.step)
                outcome = "done" if is_new else "before"
            else:
                offsets = await self._do(frame)
        except OutcomeUnknown as error:
            outcome, text = "unknown", str(error)
        except StorageUnavailable as error:
            outcome, text = "refused", str(error)
        for piece in encode(wire.TransactionAnswer(frame.request, outcome, text[:_TEXT_MAX], list(offsets))):
            self._outbox.write(piece)
        self._engine.want_turn()

    async def _do(
        self, frame: wire.KeepTransaction | wire.AskPlaces | wire.SettleThere | wire.PutThere
    ) -> Sequence[int]:
        """Offsets, where it is asked for some. Raises StorageUnavailable."""
        transactions = self._engine.transactions
        if isinstance(frame, wire.PutThere):
            return [await transactions.steps.put_here(frame.log, frame.record)]
        if isinstance(frame, wire.AskPlaces):
            return await transactions.places_here(self._served, frame.number, frame.ids)
        if isinstance(frame, wire.KeepTransaction):
            await transactions.keep_here(frame.number, frame.key, frame.record)
        else:
            settlements = [
                Settlement(one.queue_id, one.number, one.ids, one.offsets, one.rejected) for one in frame.entries
            ]
            await transactions.settle_here(frame.log, settlements, self._served)
        return ()

    async def _answer_coordinator(self, frame: wire.AskCoordinator) -> None:
        error = text = ""
        body = b""
        try:
            body = await answer(self._engine.serving.broker, frame.question)
        except (LogTransactionError, GroupError, BrokerError, LogError) as problem:
            error, text = type(problem).__name__[:64], str(problem)[:_TEXT_MAX]
        for piece in encode(wire.CoordinatorAnswer(frame.request, error, text, body)):
            self._outbox.write(piece)
        self._engine.want_turn()


def _pairs(ranges: Sequence[int]) -> Sequence[int]:
    """Firsts and lasts. Raises PeerError."""
    if len(ranges) % 2 or any(first > last for first, last in zip(ranges[::2], ranges[1::2], strict=True)):
        raise PeerError(ErrorCode.MALFORMED_FRAME, "ranges without an end")
    return ranges
