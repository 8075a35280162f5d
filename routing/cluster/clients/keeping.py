"""Retained messages and wills of a cluster: in one keyed store on a replicated log, with whoever leads that.

1. What a client of any broker publishes to be kept, and what is to become of his will, goes to the leader of the log as
   publishes go to homes (`streams.py`): in order, kept until it is there, said again to the next leader. Whoever waits
   for it waits for the stream. To keep a message twice is to keep it once; wills know what they were told.
2. What is given out is asked of the leader, a page at a time, and told when it is committed.
3. `LedKeeping` is what the leader has: `Retained` and `Wills` on the log's store.
4. A message comes to the leader later than to those who were subscribed where it was published. So that who subscribes
   elsewhere meanwhile does not miss it, all brokers are asked to say when all that they have sent so far is committed
   before the leader is asked what there is. One round of that serves all who wait for it to begin.
5. A broker that has registered anew may have been taken for gone meanwhile: it asks the leader which of its clients'
   wills were published, and has these clients' connections end.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import msgspec
import trio

from core_log.errors import BatchTooLarge, CorruptBatch, LogUnavailable
from core_log.keyed_store import KeyedStore
from routing.administration import retained as operations
from routing.cluster.clients.asked import AskAllTold, AskRetained, AskRetainedOperation, AskWills, name_of, text
from routing.cluster.clients.led_stores import LedStore, LedStores
from routing.cluster.clients.led_wills import LedWills
from routing.cluster.clients.orders import fields_of, order
from routing.cluster.clients.streams import Slabs, Stream
from routing.cluster.metadata.log_names import RETAINED, log_of_kind
from routing.commits import storage_error
from routing.errors import BrokerError, LedHere, LimitExceeded, StorageUnavailable
from routing.kept.retained import PIECE_BYTES, PIECE_MESSAGES, Retained, Row, pieces_of
from routing.kept.wills import Will
from routing.message import Slab

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.broker import Broker
    from routing.cluster.clients.engine import Engine
    from routing.cluster.clients.published import Taken
    from routing.session import Session

logger = logging.getLogger(__name__)

KEPT, KEPT_IF_ROOM, WILL = 1, 2, 3
"""What is published to the log, in place of a queue's id: messages that are kept if there is room for all of them, as
far as there is room, and what is said of a will. The exchange is the virtual host."""
_WHAT = "the retained messages"
_PATIENCE_S = 5.0
_LOOK_S = 0.5
_TIDY_LOOKS = 20
_NAMES_FOR_S = 5.0

_WILLS_AT_ONCE = 5_000

_numbers = msgspec.msgpack.Decoder(list[int])
_pages = msgspec.msgpack.Decoder(tuple[bool, list[tuple[bytes, bytes, bytes, int | None]]])


class LedKeeping:
    """See the module: made by who begins to lead the log."""

    def __init__(self, broker: Broker, keeping: Keeping, store: KeyedStore, grace_ms: int) -> None:
        self.log = store.log
        self.retained = Retained(store, broker.config, broker.clock.now_ms)
        self._keeping = keeping
        self._names: dict[tuple[str, str], tuple[float, int, list[str]]] = {}
        self.wills = LedWills(broker, store, self, grace_ms)

    @property
    def is_over(self) -> bool:
        """Another object is this now, maybe another broker's."""
        return self._keeping.part is None or self._keeping.part.store is not self

    @property
    def may_write(self) -> bool:
        """This broker may act as the leader now."""
        return self._keeping.led is self

    async def committed(self) -> None:
        """Return when all that was written so far is committed. Raises StorageUnavailable."""
        part = self._keeping.part
        if part is not None and part.store is self:
            with part.while_led(), trio.move_on_after(_PATIENCE_S):
                try:
                    await self.log.wait_committed(self.log.log_end_offset)
                    return
                except LogUnavailable as error:
                    raise StorageUnavailable(str(error)) from error
        raise StorageUnavailable(f"too few brokers have {_WHAT} in sync")

    def take(self, process: int, position: int, kind: int, slab: Slab, taken: Taken) -> int:
        """Take what a process has published; up to where the log has to get. Raises LogUnavailable."""
        if kind == WILL:
            for at, body in enumerate(slab.bodies):
                try:
                    self.wills.take(process, position + at, slab.exchange, fields_of(body))
                except (BatchTooLarge, CorruptBatch) as error:
                    logger.error("what is said of a will is not understood: %s", error)
            return self.log.log_end_offset
        count = len(slab.bodies)
        if not self._keep(slab):
            if kind == KEPT:
                self.retained.refused += count
                taken.refuse(position, position + count - 1)
            else:
                kept = sum(self._keep(slab.part(at, at + 1)) for at in range(count))
                self.retained.refused += count - kept
        return self.log.log_end_offset

    def _keep(self, slab: Slab) -> bool:
        try:
            self.retained.put(self.retained.plan(slab.exchange, slab))
        except (LimitExceeded, BatchTooLarge) as error:
            logger.debug("not retained: %s", error)
            return False
        return True

    def page(self, vhost: str, pattern: str, after: str | None) -> tuple[bool, list[Row]]:
        """Messages whose keys match a pattern, in the order of the keys, behind one; whether there are more. None only
        if there are no more.
        """
        names = self._matching(vhost, pattern, afresh=after is None)
        first = bisect_right(names, after) if after is not None else 0
        rows: list[Row] = []
        size = 0
        for start in range(first, len(names), PIECE_MESSAGES):
            for row in self.retained.rows(vhost, names[start : start + PIECE_MESSAGES]):
                rows.append(row)
                size += len(row[2])
                if size >= PIECE_BYTES:
                    return row[0] < names[-1], rows
            if rows:
                return start + PIECE_MESSAGES < len(names), rows
        return False, rows

    def _matching(self, vhost: str, pattern: str, *, afresh: bool) -> list[str]:
        """The names are remembered for who asks for the next page, and for who begins while there are no new ones."""
        now_s = trio.current_time()
        for key in [key for key, (since_s, *_) in self._names.items() if now_s - since_s > _NAMES_FOR_S]:
            del self._names[key]
        found = self._names.get((vhost, pattern))
        if found is not None and not (afresh and found[1] < self.retained.added):
            return found[2]
        added = self.retained.added
        names = sorted(self.retained.matching(vhost, pattern, "mqtt"))
        if len(names) > PIECE_MESSAGES:
            self._names[vhost, pattern] = now_s, added, names
        return names


class SharedWills:
    """The wills of this broker's clients, as `Wills`: what is said of them goes to the leader."""

    def __init__(self, keeping: Keeping, holder: tuple[int, int]) -> None:
        self._keeping = keeping
        self.holder = holder
        self._numbers = count(1)
        self._kept: dict[tuple[str, str], tuple[int, Callable[[], None] | None]] = {}

    def returned(self, vhost: str, name: str, *, afresh: bool) -> None:
        """See `Wills`."""
        self._say(vhost, "returned", name, afresh)

    async def keep(self, vhost: str, name: str, will: Will, lost: Callable[[], None] | None = None) -> None:
        """See `Wills`."""
        number = next(self._numbers)
        self._kept[vhost, name] = number, lost
        end = self._say(vhost, "keep", name, list(will._replace(holder=(*self.holder, number))))
        await self._keeping.until_committed(end)

    def erase(self, vhost: str, name: str) -> None:
        """See `Wills`."""
        self._say_of_kept(vhost, "erase", name)

    def send(self, vhost: str, name: str, delay_ms: int) -> None:
        """See `Wills`."""
        self._say_of_kept(vhost, "send", name, delay_ms)

    async def finish(self) -> None:
        """See `Wills`: who leads sees to it, and to those of a process that is gone."""

    def kept(self) -> list[tuple[str, str, int]]:
        """By virtual host and name, with the connection's number."""
        return [(vhost, name, number) for (vhost, name), (number, _) in self._kept.items()]

    def are_lost(self, wills: Sequence[tuple[str, str, int]]) -> None:
        """These, among `kept`, were published: who still has one is told."""
        for vhost, name, number in wills:
            there, lost = self._kept.get((vhost, name), (0, None))
            if there == number and lost is not None:
                lost()

    def _say_of_kept(self, vhost: str, what: str, name: str, *more: object) -> None:
        kept = self._kept.pop((vhost, name), None)
        if kept is not None:
            self._say(vhost, what, name, (*self.holder, kept[0]), *more)

    def _say(self, vhost: str, *fields: object) -> int:
        return order(self._keeping.stream, fields, kind=WILL, about=vhost)


class Keeping:
    """See the module; of one broker."""

    def __init__(self, broker: Broker, engine: Engine, open_stores: Callable[..., LedStores[LedKeeping]]) -> None:
        self._broker = broker
        self._engine = engine
        self._started_ms = broker.clock.now_ms()
        self.log_name = log_of_kind(RETAINED, 0)
        self.stream: Stream = engine.forwarding.stream(self.log_name)
        self.wills = SharedWills(self, (engine.cluster.broker_id, engine.forwarding.process))
        self.none = Retained(cast("KeyedStore", _NoStore()), broker.config, broker.clock.now_ms)
        self._stores = open_stores(self._read)
        self._stores.ended = lambda store: store.wills.close()
        self._round: trio.Event | None = None
        """Set when all have answered who are being asked by rule 4."""
        self._next_round: trio.Event | None = None
        """The same of who is asked then."""
        engine.spawn(self._watch)
        engine.spawn(self._look_after_wills)

    def _read(self, store: KeyedStore) -> LedKeeping:
        return LedKeeping(self._broker, self, store, max(self._grace_until_ms - self._broker.clock.now_ms(), 0))

    @property
    def _grace_until_ms(self) -> int:
        return self._started_ms + self._broker.config.will_grace_ms

    @property
    def part(self) -> LedStore[LedKeeping] | None:
        """The log, if this broker has a replica."""
        return self._stores.parts.get(0)

    @property
    def led(self) -> LedKeeping | None:
        """What is kept, while this broker may act as the leader of the log."""
        return next((found for _, found in self._stores.led()), None)

    @property
    def retained(self) -> Retained:
        """What is retained, while that is known here: for figures."""
        part = self.part
        return part.store.retained if part is not None and part.store is not None else self.none

    def served(self, log: str, leader_epoch: int) -> LedKeeping | None:
        """What another broker publishes to, if this one leads it in that epoch."""
        if log != self.log_name or self._engine.cluster.leader_of(log) != (
            self._engine.cluster.broker_id,
            leader_epoch,
        ):
            return None
        return self.led

    async def _watch(self) -> None:
        for look in count(1):
            await trio.sleep(_LOOK_S)
            led = self.led
            if led is not None:
                led.wills.look(self._engine.is_gone, self._grace_until_ms)
                there = self._engine.processes()
                if there is not None and look % _TIDY_LOOKS == 0:
                    led.wills.forget_processes(there)
                self._broker.end_turn()

    async def _look_after_wills(self) -> None:
        """See rule 5."""
        members, asked_in = self._engine.cluster.members, 0
        while True:
            await trio.sleep(_LOOK_S)
            epoch = members.epoch
            if not epoch or epoch == asked_in:
                continue
            try:
                await self.ask_for_wills()
                asked_in = epoch
            except BrokerError as error:
                logger.debug("whether clients' wills were published is not known yet: %s", error)

    async def ask_for_wills(self) -> None:
        """See rule 5. Raises StorageUnavailable."""
        kept = self.wills.kept()
        if kept and self.stream.kept:
            await self.until_committed(self.stream.next_position)
        for start in range(0, len(kept), _WILLS_AT_ONCE):
            asked = kept[start : start + _WILLS_AT_ONCE]
            wills = [(name_of(vhost), name_of(name), number) for vhost, name, number in asked]
            question = AskWills(*self.wills.holder, wills)
            try:
                numbers = set(_numbers.decode(await self._ask(question)))
            except LedHere:
                numbers = set(await self.lost_wills_here(question))
            self.wills.are_lost([one for one in asked if one[2] in numbers])
            self._broker.end_turn()

    async def lost_wills_here(self, question: AskWills) -> list[int]:
        """See `LedWills.lost`; raises StorageUnavailable where it is not led here."""
        led = await self._led_here()
        wills = [(text(vhost), text(name), number) for vhost, name, number in question.wills]
        return led.wills.lost((question.broker, question.process), wills)

    async def until_committed(self, end: int) -> None:
        """Return when the stream has got so far. Raises StorageUnavailable."""
        self._engine.want_turn()
        await self._broker.commits.committed([(cast("PartitionLog", self.stream), end)])

    # ---- retained messages

    def require_writable(self) -> None:
        """Raises StorageUnavailable while nobody takes what is to be kept."""
        if self.stream.error is not None:
            raise storage_error(self.stream)

    def keep(self, session: Session, slab: Slab, *, confirm: bool, may_refuse: bool) -> None:
        """Keep messages that were published just now. What there is no room for is not kept; with `may_refuse` their
        publisher is told so, if he waits for a confirm.
        """
        sent = Slab(
            session.vhost.name, slab.routing_key, slab.properties, slab.bodies, slab.size,
            keys=slab.keys, raws=slab.raws, facts=slab.facts,
        )  # fmt: skip
        may_refuse = may_refuse and confirm
        kind = KEPT if may_refuse else KEPT_IF_ROOM
        end = self.stream.take(len(slab.bodies), slab.size, Slabs((kind,), 0, sent))
        if confirm:
            session.confirms.also(len(slab.bodies), self.stream, end, asks=may_refuse)

    async def all_told(self) -> None:
        """See rule 4: of what was published before a subscription was known there; or for a while."""
        if self._next_round is None:
            self._next_round = trio.Event()
            self._engine.spawn(self._ask_all, self._next_round)
        await self._next_round.wait()

    async def _ask_all(self, over: trio.Event) -> None:
        if self._round is not None:
            await self._round.wait()
        self._round, self._next_round = over, None
        revision = self._engine.cluster.store.revision
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.all_told_here, revision)
            nursery.start_soon(self._engine.elsewhere.ask_others, AskAllTold(revision))
        over.set()

    async def all_told_here(self, revision: int) -> bool:
        """The same of this broker, which has to know the metadata of a revision first."""
        with trio.move_on_after(_PATIENCE_S):
            await self._engine.cluster.store.caught_up(revision)
            if self.stream.kept:
                await self._engine.elsewhere.reached([(cast("PartitionLog", self.stream), self.stream.next_position)])
        return True

    async def pages(self, vhost: str, pattern: str, exchange: str) -> AsyncGenerator[list[Slab], None]:
        """What is kept of the keys that match a pattern, as messages of an exchange; after `all_told` all of it.
        Raises StorageUnavailable.
        """
        after: str | None = None
        while True:
            more, rows = await self._page(vhost, pattern, after)
            for piece in pieces_of(rows, exchange):
                yield piece
            if not more or not rows:
                return
            after = rows[-1][0]

    async def rows(self, vhost: str, pattern: str) -> list[Row]:
        """The first page of that, as it is kept. Raises StorageUnavailable."""
        return (await self._page(vhost, pattern, None))[1]

    async def _page(self, vhost: str, pattern: str, after: str | None) -> tuple[bool, list[Row]]:
        """See `LedKeeping.page`. Raises StorageUnavailable."""
        while True:
            found = await self._stores.at(0, _WHAT, may_forward=lambda: True)
            if not isinstance(found, int):
                await found[1].committed()
                return found[1].page(vhost, pattern, after)
            question = AskRetained(name_of(vhost), name_of(pattern), None if after is None else name_of(after))
            try:
                more, told = _pages.decode(await self._ask(question))
            except LedHere:
                continue
            return more, [(text(name), tag, body, left_ms) for name, tag, body, left_ms in told]

    async def _ask(self, question: object) -> bytes:
        """Raises StorageUnavailable, LedHere."""
        elsewhere = self._engine.elsewhere
        return await elsewhere.ask_leader(self.log_name, question, is_here=lambda: self.led is not None)

    async def page_here(self, vhost: str, pattern: str, after: str | None) -> Any:
        """See `LedKeeping.page`; raises StorageUnavailable where it is not led here."""
        led = await self._led_here()
        more, rows = led.page(vhost, pattern, after)
        return more, [(name_of(name), tag, body, left_ms) for name, tag, body, left_ms in rows]

    async def _led_here(self) -> LedKeeping:
        found = await self._stores.at(0, _WHAT, may_forward=lambda: True)
        if isinstance(found, int):
            raise StorageUnavailable(f"broker {found} has {_WHAT}")
        await found[1].committed()
        return found[1]

    # ---- operations

    async def operate(self, name: str, vhost: str, pattern: str = "#", limit: int = 0, start: int = 0) -> Any:
        """An operation of `administration/retained.py`, or "forget" for all of a virtual host. Raises BrokerError."""
        question = AskRetainedOperation(name, name_of(vhost), name_of(pattern), limit, start)
        found = await self._stores.at(0, _WHAT, may_forward=lambda: True)
        if isinstance(found, int):
            try:
                return msgspec.msgpack.decode(await self._ask(question))
            except LedHere:
                pass
        return await self.operate_here(question)

    async def operate_here(self, question: AskRetainedOperation) -> Any:
        """The same where it is led."""
        led = await self._led_here()
        vhost, pattern = text(question.vhost), text(question.pattern)
        if question.name == "list":
            return await operations.listed(led.retained, vhost, pattern, question.limit, question.start)
        if question.name == "forget":
            led.retained.forget(vhost)
            await led.committed()
            return 0
        return await operations.clear(led.retained, vhost, pattern, led.committed)


class _NoStore:
    """Of who does not lead the log."""

    has_garbage = False

    @staticmethod
    def items() -> tuple[()]:
        return ()

    @staticmethod
    def get(key: bytes) -> None:
        return None
