"""What brokers ask each other for clients that may be connected to any of them: who has whom, and what queues hold.

1. A client that connects here is nobody else's from then on: all others that are there are asked to end what they have
   of it (`take_over`), and answer when it is over and all that was published and settled for it is where it belongs.
   One that there is no link to for `_UNLINKED_S`, or that does not answer for `_PATIENCE_S`, is not waited for. Who has
   something under way that would come over what is said elsewhere (`settled`) keeps the client away from there.
2. Where two brokers ask each other at the same moment the one with the higher id has the client.
3. Then the leader of the client's queue gives the connection its epoch (`begin`), by which homes refuse what those that
   were not waited for still have of the client (`latest_connections.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import trio

from core_log.errors import LogUnavailable
from routing.cluster.clients.asked import AskBegin, AskOperation, TakeOver, encode, name_of, text
from routing.cluster.clients.remote_queue import RemoteQueue
from routing.cluster.clients.served import Sink
from routing.errors import AccessRefused, LedHere, StorageUnavailable
from routing.queues.homes.receipts import begin
from routing.queues.queue import Queue

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.broker import Broker
    from routing.cluster.clients.engine import Engine
    from routing.cluster.clients.served_broker import ServedBroker
    from routing.consumer import Consumer
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.session import Session

_PATIENCE_S = 5.0
_UNLINKED_S = 1.0
_SETTLED_S = 2.0
_RETRY_S = 0.05
FIRST = 1
"""The epoch of the first connection of a client, which its queue's home need not be told of."""

Position = list[tuple["PartitionLog", int]]
GiveUp = Callable[[str, str, bool], Awaitable[bytes | None]]
"""Ends what is here of a client, by virtual host and name; with True also a connection that has only begun. What the
protocol tells whoever has it now (b"": nothing), or None: it is here."""

_verdicts = msgspec.msgpack.Decoder(bool | bytes)
_begun = msgspec.msgpack.Decoder(tuple[int, list[int]])


class Begun(NamedTuple):
    """A connection of a client: its epoch, and what the client's queue holds (`queues/homes/receipts.py`), as first and
    count.
    """

    epoch: int
    held: Sequence[tuple[int, int]]


class Answered(NamedTuple):
    """What other brokers have said."""

    asked: int
    """How many were asked."""
    answers: list[bytes]


class ClientsElsewhere:
    """See the module; of one broker."""

    def __init__(self, broker: Broker, engine: Engine) -> None:
        self._broker = broker
        self._engine = engine
        self.give_ups: dict[str, GiveUp] = {}
        """By protocol."""

    # ---- who has a client

    async def take_over(self, protocol: str, vhost: str, name: str) -> list[bytes] | None:
        """Have no other broker have a client: what they tell of it. None: another has it now."""
        me = self._engine.cluster.broker_id
        answered = await self.ask_others(TakeOver(protocol, name_of(vhost), name_of(name), me, tell=True))
        verdicts = [_verdicts.decode(one) for one in answered.answers]
        return None if False in verdicts else [one for one in verdicts if isinstance(one, bytes)]

    async def ask_others(self, question: Any, patience_s: float = _PATIENCE_S) -> Answered:
        """Ask all other brokers at once: the answers of those that are there and answer in time."""
        answers: list[bytes] = []
        encoded, others = encode(question), self._engine.others()

        async def ask(broker: int) -> None:
            answer = await self._ask_one(broker, encoded, patience_s)
            if answer is not None:
                answers.append(answer)

        async with trio.open_nursery() as nursery:
            for broker in others:
                nursery.start_soon(ask, broker)
        return Answered(len(others), answers)

    async def ask_for_operation(self, name: str, arguments: bytes, patience_s: float) -> Answered:
        """Have all others do an operation of `administration/forwarded.py`."""
        return await self.ask_others(AskOperation(name, arguments), patience_s)

    async def _ask_one(self, broker: int, question: bytes, patience_s: float) -> bytes | None:
        unlinked_until = trio.current_time() + _UNLINKED_S
        with trio.move_on_after(patience_s):
            while broker in self._engine.others():
                link = self._engine.coordinator_links.get(broker)
                if link is not None:
                    try:
                        return await link.ask(question)
                    except StorageUnavailable:
                        pass
                elif trio.current_time() >= unlinked_until:
                    break
                await trio.sleep(_RETRY_S)
        return None

    async def give_up(self, question: TakeOver) -> bool | bytes:
        """What another broker is answered."""
        found = self.give_ups.get(question.protocol)
        if found is None:
            return True
        beaten = question.broker > self._engine.cluster.broker_id
        told = await found(text(question.vhost), text(question.name), beaten)
        return told if told and question.tell else told is not None

    async def consume(self, session: Session, queue_name: str) -> Consumer:
        """Be the exclusive consumer of a client's queue, as soon as its leader knows that nobody else is. Raises as
        `Session.consume`.
        """
        until = trio.current_time() + _PATIENCE_S
        while True:
            try:
                return await session.consume(queue_name, tag="", no_ack=False, exclusive=True)
            except AccessRefused:
                if session.closed or trio.current_time() >= until:
                    raise
            await trio.sleep(_RETRY_S)

    async def settled(self, end: Callable[[], Awaitable[None]]) -> bool:
        """Whether what is under way here for a client has come to its `end`; if not soon, nobody else is to have the
        client yet.
        """
        with trio.move_on_after(_SETTLED_S):
            await end()
            return True
        return False

    def position(self) -> Position:
        """How far has to be got for all that was said to other brokers so far to be where it belongs."""
        streams = self._engine.forwarding.streams.values()
        return [(cast("PartitionLog", stream), stream.next_position) for stream in streams if stream.kept]

    async def reached(self, position: Position) -> None:
        """Wait for that, or until it is known that it will not be."""
        for log, _ in position:
            log.request_sync()
        self._engine.want_turn()
        with trio.move_on_after(_PATIENCE_S), suppress(StorageUnavailable):
            await self._broker.commits.committed(position)

    # ---- leaders

    async def ask_leader(self, log: str, question: Any, *, is_here: Callable[[], bool]) -> bytes:
        """Ask whoever leads a log. Raises StorageUnavailable, and LedHere when it `is_here`."""
        cluster = self._engine.cluster
        until = trio.current_time() + _PATIENCE_S
        while True:
            if is_here():
                raise LedHere(f"{log} is led here now")
            leader = cluster.leader_of(log)[0]
            link = self._engine.coordinator_links.get(leader) if leader is not None else None
            error = StorageUnavailable(f"{log} {self._engine.forwarding.whereabouts(log)}")
            if link is not None:
                try:
                    return await link.ask(encode(question))
                except StorageUnavailable as refusal:
                    error = refusal
            if trio.current_time() >= until:
                raise error
            await trio.sleep(_RETRY_S)

    async def begin(self, queue: Queue, end: Callable[[], None]) -> Begun:
        """A client has connected here whose queue this is: what is said for it over an earlier connection is refused
        from now on, and whoever consumes it over one is ended, which `end` does to this one when a later one is known.
        `ended` is to be called of it. Raises StorageUnavailable.
        """
        log, queue_id = f"home-{queue.partition.index}", queue.id
        try:
            answer = _begun.decode(
                await self.ask_leader(log, AskBegin(log, queue_id), is_here=lambda: self._home(log) is not None)
            )
        except LedHere:
            answer = await self.begin_here(log, queue_id)
        epoch, ranges = answer
        there = self._broker.topology.stripes[queue.partition.index].queues.get(queue_id)
        if isinstance(there, RemoteQueue):
            there.begin()
        self.begun(queue_id, epoch, end)
        held = [(first, last - first + 1) for first, last in zip(ranges[::2], ranges[1::2], strict=True)]
        return Begun(epoch, held)

    def begun(self, queue_id: int, epoch: int, end: Callable[[], None]) -> None:
        """A client has connected here; of a queue that is new it is the `FIRST` connection."""
        self._engine.forwarding.connections.begun(queue_id, epoch, end)

    def ended(self, queue_id: int, epoch: int) -> None:
        """That connection is over."""
        self._engine.forwarding.connections.ended(queue_id, epoch)

    def _home(self, log: str) -> QueuePartition | None:
        return self._engine.serving.home(log, self._engine.cluster.leader_of(log)[1])

    def _end_served(self, queue: Queue, epoch: int) -> None:
        """Take back what other brokers have of a queue, whether it is consumed there or only not settled yet."""
        found = {consumer.session for consumer in queue.turns.consumers}
        if queue.outstanding > 0:
            all_ = self._broker.sessions
            found |= {session for session in all_ if any(entry.queue is queue for entry in session.unsettled)}
        for session in found:
            if isinstance(session.sink, Sink):
                served = cast("ServedBroker", session.owner)
                served.link.fenced(queue.id, epoch)
                served.end(session.sink.number)

    async def begin_here(self, log: str, queue_id: int) -> tuple[int, list[int]]:
        """The same where the queue is led: the epoch of the connection and what the queue holds, first and last of each
        range, when both are committed.
        """
        home = self._home(log)
        if home is None:
            raise StorageUnavailable("the home is not led here")
        epoch = home.numbers.epochs.get(queue_id, FIRST) + 1
        begin(home, queue_id, epoch)
        self._engine.forwarding.connections.fence(queue_id, epoch)
        queue, ranges = home.queues.get(queue_id), list[int]()
        if queue is not None:
            self._end_served(queue, epoch)
            if queue.held is not None:
                ranges = [one for first, count in queue.held.ranges() for one in (first, first + count - 1)]
        home.seal_all()
        if home.unsealed.epochs:
            raise StorageUnavailable("the home's log takes nothing now")
        self._engine.want_turn()
        with trio.move_on_after(_PATIENCE_S):
            try:
                await home.log.wait_committed(home.log.log_end_offset)
            except LogUnavailable as error:
                raise StorageUnavailable(str(error)) from error
            if not home.retired:  # else another leader's log is committed so far
                return epoch, ranges
        raise StorageUnavailable("too few brokers have the home in sync")
