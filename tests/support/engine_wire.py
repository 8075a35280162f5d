"""A link between the engines of two brokers in one process: what is said is heard when the other's task runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import trio

from routing.cluster.clients.served_logs import LogRead
from routing.cluster.clients.streams import Kept, Records
from routing.cluster.clients.transaction_links import OutcomeUnknown, Settlement
from routing.errors import StorageUnavailable
from routing.message import Slab

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.clients.attachment import Attachment
    from routing.cluster.clients.leader_questions import Answer
    from routing.unsettled import Outcome


class _End:
    """What one end says is called at the other, one after the other."""

    def __init__(self, me: int, other: Broker) -> None:
        self.broker = me
        self.is_cut = False
        self._other = other
        self._send, self._receive = trio.open_memory_channel[Callable[[], Any]](1 << 20)

    def _say(self, what: Callable[[], Any]) -> None:
        self._send.send_nowait(what)

    async def run(self) -> None:
        """Deliver."""
        async for what in self._receive:
            if self.is_cut:
                return
            what()
            self._other.end_turn()

    def flush(self) -> None:
        """All is on its way."""

    def beat(self) -> None:
        """Nobody listens."""


class Asking(_End):
    """The end of who dialled: `EngineLink`."""

    def __init__(self, leader: int, asker: Broker, other: Broker, me: int) -> None:
        super().__init__(leader, other)
        assert asker.engine is not None
        assert other.engine is not None
        self.answering = Answering(me, asker, self)
        self._serving = other.engine.serving
        self.served = self._serving.linked(self.answering)
        self.served.begin(asker.engine.forwarding.process)
        self.transactions = Transactions(self, asker, other)

    def publish(self, log: str, leader_epoch: int, kept: Kept, *, begins: bool, again: bool) -> None:
        what = kept.what
        if isinstance(what, Records):
            self._say(lambda: self.served.append(log, leader_epoch, kept.position, what, begins=begins))
            return
        ids, once_in_ms, slab, _ = what
        self._say(
            lambda: self.served.publish(
                log, leader_epoch, kept.position, ids, once_in_ms, slab, begins=begins, again=again
            )
        )

    def wait(self, log: str, leader_epoch: int, sync_before: int, heard_before: int) -> None:
        self._say(lambda: self.served.wait(log, leader_epoch, sync_before, heard_before))

    def settle(self, number: int, outcome: Outcome, ranges: list[int]) -> None:
        self._say(lambda: self.served.settle(number, outcome, ranges))

    def credit(self, number: int, messages: int, size_bytes: int) -> None:
        self._say(lambda: self.served.credit(number, messages, size_bytes))

    def consume(self, request: int, log: str, leader_epoch: int, queue_id: int, attachment: Attachment) -> None:
        consumer = attachment.consumer
        assert consumer is not None
        told: dict[str, Any] = {
            "tag": consumer.tag,
            "no_ack": consumer.no_ack and not attachment.settles,
            "at_most_once": attachment.settles,
            "exclusive": consumer.exclusive,
            "priority": consumer.priority,
            "messages": attachment.granted,
            "size_bytes": attachment.granted_bytes,
        }
        self._say(lambda: self.served.consume(request, log, leader_epoch, queue_id, attachment.number, **told))

    def cancel(self, number: int) -> None:
        self._say(lambda: self.served.cancel(number))

    def ask(self, request: int, what: str, log: str, leader_epoch: int, queue_id: int, number: int) -> None:
        self._say(lambda: self.served.ask(request, what, log, leader_epoch, queue_id, number))

    def fetch(
        self, request: int, log: str, leader_epoch: int, offset: int, before: int, size_bytes: int, *, waits: bool
    ) -> None:
        read = LogRead(request, log, leader_epoch, offset, before, size_bytes)
        self._say(lambda: self.served.logs.fetch(read, waits=waits))

    def find_time(self, request: int, log: str, leader_epoch: int, timestamp_ms: int) -> None:
        self._say(lambda: self.served.logs.find_time(request, log, leader_epoch, timestamp_ms))

    def command(self, request: int, log: str, leader_epoch: int, name: str, arguments: Mapping[str, Any]) -> None:
        self._say(lambda: self.served.commands.run(request, log, leader_epoch, name, arguments))

    def cut(self) -> None:
        """No word more, and both ends know."""
        self.is_cut = self.answering.is_cut = True
        self.transactions.cut()
        self._serving.lost(self.served)
        self.answering.forwarding.lost(self)


class Transactions:
    """What transactions ask over the same link: `TransactionLink`. What is asked is done, whoever waits for it."""

    def __init__(self, link: Asking, asker: Broker, other: Broker) -> None:
        assert asker.engine is not None
        assert other.engine is not None
        self._link = link
        self._links = asker.engine.transaction_links
        self._there = other.engine
        self._cut = trio.Event()
        self._links[link.broker] = self

    def cut(self) -> None:
        """Nobody answers any more."""
        if self._links.get(self._link.broker) is self:
            del self._links[self._link.broker]
        self._cut.set()

    async def keep(self, number: int, key: bytes, record: bytes | None) -> None:
        await self._ask(lambda: self._there.transactions.keep_here(number, key, record))

    async def keep_step(self, number: int, key: bytes, record: bytes, writer: str, step: int) -> bool:
        steps = self._there.transactions.steps
        return bool(await self._ask(lambda: steps.keep_here(number, key, record, writer, step)))

    async def put(self, log: str, record: bytes) -> int:
        return int(await self._ask(lambda: self._there.transactions.steps.put_here(log, record)))

    async def places(self, number: int, ids: Sequence[int]) -> Sequence[int]:
        async def find() -> Sequence[int]:
            return await self._there.transactions.places_here(self._link.served, number, ids)

        return cast(Sequence[int], await self._ask(find))

    async def settle(self, log: str, settlements: Sequence[Settlement]) -> None:
        await self._ask(lambda: self._there.transactions.settle_here(log, settlements, self._link.served))

    async def _ask(self, what: Callable[[], Awaitable[Any]]) -> Any:
        answers: list[Any] = []
        over = trio.Event()

        async def run() -> None:
            try:
                answers.append(await what())
            except StorageUnavailable as error:
                answers.append(error)
            over.set()

        if self._link.is_cut:
            raise StorageUnavailable("no link")
        self._there.spawn(run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_cut, nursery.cancel_scope)
            await over.wait()
            nursery.cancel_scope.cancel()
        if not answers:
            raise OutcomeUnknown("the link is cut")
        if isinstance(answers[0], StorageUnavailable):
            raise answers[0]
        return answers[0]

    async def _until_cut(self, scope: trio.CancelScope) -> None:
        await self._cut.wait()
        scope.cancel()


class Answering(_End):
    """The other end: `ServedLink`."""

    writable = True

    def __init__(self, asker: int, other: Broker, asking: Asking) -> None:
        super().__init__(asker, other)
        assert other.engine is not None
        self.forwarding = other.engine.forwarding
        self._asking = asking

    def replaced(self) -> None:
        """There are no others."""

    def fenced(self, client: int, epoch: int) -> None:
        self._say(lambda: self.forwarding.connections.fence(client, epoch))

    def placed(self, number: int, first_id: int, ranges: Sequence[int]) -> None:
        told = list(ranges)
        self._say(lambda: self.forwarding.placed(number, first_id, told))

    def deliver(self, number: int, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        part = slab.part(start, stop)
        self._say(lambda: self.forwarding.delivered(self._asking, number, first_id, redelivered, part))

    def done(self, log: str, leader_epoch: int, written: int, committed: int, refused: Sequence[int]) -> None:
        told = list(refused)
        self._say(lambda: self.forwarding.done(log, leader_epoch, written, committed, told))

    def not_led(self, log: str, leader_epoch: int, *, last: bool) -> None:
        self._say(lambda: self.forwarding.not_led(self._asking, log, leader_epoch, last=last))

    def answer(self, request: int, answer: Answer) -> None:
        self._say(lambda: self.forwarding.answered(request, answer))

    def over(self, number: int, *, queue_is_gone: bool) -> None:
        self._say(lambda: self.forwarding.over(number, queue_is_gone=queue_is_gone))


def linked(asker: int, at: Broker, leader: int, other: Broker, nursery: trio.Nursery) -> Asking:
    """A broker dials another."""
    link = Asking(leader, at, other, asker)
    nursery.start_soon(link.run)
    nursery.start_soon(link.answering.run)
    assert at.engine is not None
    at.engine.forwarding.linked(link)
    return link
