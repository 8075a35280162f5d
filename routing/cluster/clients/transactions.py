"""Transactions of a cluster that concern more than one batch of one log here: all or nothing, whoever leads what.

1. What is settled at other brokers is asked for by its place in the log first. Whatever its leader has taken back by
   then ends the transaction: nothing has happened. One that hands over says nothing more of it, and waits, not for
   long, for transactions that it was asked for, as for those of its own clients: the next one would give the same out
   to others, whose transactions took effect as well.
2. Then its redo record is kept in one of the logs `transactions-N`, by whoever leads it: this broker where it leads
   one. When the record is committed the transaction is decided. What is refused before has not happened; where nobody
   knows, the record is kept again, under the same key, until somebody does.
3. What is decided takes effect at each home and topic apart, and again there until all of it is committed: what comes
   twice is marked as redelivered, settlements of messages that are gone change nothing. A message that was given out
   again meanwhile is settled all the same, and what is said of it later means nothing: it may well be the client of the
   transaction that got it, who waits for the answer. Where another transaction has taken it, this one waits for that.
4. When all is committed the client is answered, and the record is forgotten. A client is not kept waiting for longer
   than `PATIENCE_S`: the error says that it is not known yet, and the rest goes on without him.
5. Who leads a log of records does the same for those of processes that are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import trio

from core_log.errors import BatchTooLarge, CorruptBatch, LogUnavailable
from core_log.keyed_store import KeyedStore
from routing.cluster.clients.led_stores import LedStore, LedStores
from routing.cluster.clients.remote_queue import RemoteQueue
from routing.cluster.clients.shared_steps import SharedSteps
from routing.cluster.clients.transaction_effects import (
    Effects,
    Target,
    held_by_transactions,
    places_of,
    take_from_holders,
)
from routing.cluster.clients.transaction_links import OutcomeUnknown, Settlement, TransactionLink, each_in, ranges_of
from routing.cluster.metadata.log_names import TRANSACTIONS, home_log, log_of_kind, number_of
from routing.errors import StorageUnavailable
from routing.log_transactions.store import is_redo_record
from routing.queues.homes.queue_partition import QueuePartition
from routing.queues.queue import Queue
from routing.redo_records import decode_step, encode, published
from routing.transactions import Plan, Transaction, full, taken_back
from routing.unsettled import Outcome, Unsettled

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.clients.engine import Engine
    from routing.cluster.clients.served_broker import ServedBroker
    from routing.session import Session

logger = logging.getLogger(__name__)

PATIENCE_S = 15.0
_KEEP_PATIENCE_S = 5.0
_RETRY_S = 0.1
_LOOK_S = 1.0
_WHAT = "the records of transactions"


class _Work:
    """A commit that is under way."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.effects = Effects()
        self.record = b""
        self.is_applied = False
        """What it settles here is settled."""
        self.answered = trio.Event()
        self.error: StorageUnavailable | None = None

    def answer(self, error: StorageUnavailable | None) -> None:
        """It is over, as far as the client goes."""
        self.error = error
        self.answered.set()


def _is_settled_elsewhere(entry: Unsettled, outcome: Outcome) -> bool:
    """A leader elsewhere is told of it by the transaction, and not by the session."""
    return outcome in (Outcome.ACK, Outcome.DISCARD) and isinstance(entry.queue, RemoteQueue)


def _home_of(session: Session, ids: Sequence[int]) -> QueuePartition | None:
    """Where a delivery lies; None if it was taken back."""
    for entry in session.unsettled:
        queue = entry.queue
        if entry.first <= ids[0] < entry.end:
            return queue.partition if isinstance(queue, Queue) and not queue.deleted else None
    return None


class SharedTransactions:
    """See the module; of one broker."""

    def __init__(self, broker: Broker, engine: Engine, stores: LedStores[KeyedStore]) -> None:
        self._broker = broker
        self._topology = broker.topology
        self._engine = engine
        self._cluster = engine.cluster
        self.stores = stores
        self._process = engine.forwarding.process
        self.publish_patience_s = engine.forwarding.patience_s
        """How long a commit waits for homes that have no leader."""
        self._numbers = count(1)
        self._works: dict[_Work, None] = {}
        self._told: dict[tuple[Session, int], tuple[QueuePartition, Sequence[int]]] = {}
        """Deliveries that transactions of clients elsewhere have asked for, by their first id."""
        self._redone: set[bytes] = set()
        self.steps = SharedSteps(broker, engine, self)
        engine.spawn(self._watch)

    # ---- a commit

    async def commit(self, plan: Plan) -> None:
        """Let it take effect; returns when it cannot be lost any more. Raises StorageUnavailable: the session has back
        what it had settled, or, with OutcomeUnknown, will see.
        """
        work = _Work(plan)
        self._works[work] = None
        try:
            work.effects = await self._effects(plan)
            work.record = encode(work.effects.publishes, work.effects.settled)
            number = self._log_for_records()
        except BaseException:
            del self._works[work]
            plan.session.take_back(plan.transaction)
            raise
        self._engine.spawn(self._carry_out, work, number)
        with trio.move_on_after(PATIENCE_S):
            await work.answered.wait()
            if work.error is not None:
                raise work.error
            return
        raise OutcomeUnknown("the transaction is not committed everywhere yet: it may take effect later, as a whole")

    async def require_room(self, plan: Plan) -> None:
        """Raises QueueFull if a queue that another broker leads refuses some, StorageUnavailable if nobody says."""
        for queue, bodies in plan.refusing(elsewhere=True).items():
            assert isinstance(queue, RemoteQueue)
            if not await queue.has_room(list(map(len, bodies))):
                raise full(queue)

    async def _effects(self, plan: Plan) -> Effects:
        """What it comes to, in terms that outlive this broker: rule 1."""
        effects = Effects(published(plan.routed), plan.published, plan.topics)
        elsewhere: dict[tuple[int, int, RemoteQueue, bool], list[int]] = {}
        for queue, entry, rejected in plan.endings():
            offsets = entry.offsets_of(entry.first, entry.end)
            if not queue.elsewhere:
                effects.settle(queue.partition.index, Settlement(queue.id, 0, (), ranges_of(offsets), rejected))
                continue
            assert isinstance(queue, RemoteQueue)
            found = queue.delivered_as(offsets)
            if found is None:
                raise taken_back(queue)
            broker, number, ids = found
            elsewhere.setdefault((broker, number, queue, rejected), []).extend(ids)
        for (broker, number, queue, rejected), ids in elsewhere.items():
            link = self._engine.transaction_links.get(broker)
            if link is None:
                raise StorageUnavailable(f"broker {broker}, which leads a queue of the transaction, cannot be reached")
            ranges = ranges_of(ids)
            places = await link.places(number, ranges)
            if not places:
                raise taken_back(queue)
            effects.settle(queue.partition.index, Settlement(queue.id, number, ranges, places, rejected))
        return effects

    async def _carry_out(self, work: _Work, number: int) -> None:
        key = self.new_key()
        plan = work.plan
        try:
            certain = await self._decide(number, key, work.record)
        except StorageUnavailable as error:
            del self._works[work]
            plan.session.take_back(plan.transaction)
            work.answer(error)
            self._engine.want_turn()
            return
        work.is_applied = True
        put = self._apply(plan, work.effects, again=not certain)
        await self._see_to(work.effects, put, [home for home in plan.settled if isinstance(home, QueuePartition)])
        for entry, outcome in plan.transaction.taken:
            if isinstance(entry.queue, RemoteQueue) and _is_settled_elsewhere(entry, outcome):
                with entry.queue.told():
                    plan.session.finish(entry, outcome)
        del self._works[work]
        work.answer(None)
        self._engine.want_turn()
        await self.forget(number, key)

    def new_key(self) -> bytes:
        """Of a record: of which process it is, and a number."""
        return b"%b%b%b" % tuple(
            one.to_bytes(8, "big") for one in (self._cluster.broker_id, self._process, next(self._numbers))
        )

    async def _decide(self, number: int, key: bytes, record: bytes) -> bool:
        """Have the record kept: rule 2; whether none but the last try may have done it. Raises StorageUnavailable: it
        is not, and nothing of the transaction will ever be.
        """
        certain, until_s = True, trio.current_time() + _KEEP_PATIENCE_S
        while True:
            try:
                await self._keep(number, key, record)
                return certain
            except OutcomeUnknown:
                certain = False
            except StorageUnavailable:
                if certain and trio.current_time() >= until_s:
                    raise
            await trio.sleep(_RETRY_S)

    def _apply(self, plan: Plan, effects: Effects, *, again: bool) -> Mapping[int, Sequence[Target]]:
        """Put everything where it goes, and settle what is here; by place, what to wait for."""
        put: Mapping[int, Sequence[Target]] = {}
        for entry, outcome in plan.transaction.taken:
            if not _is_settled_elsewhere(entry, outcome):
                plan.session.finish(entry, outcome)
        if effects.is_current(self._topology):
            try:
                plan.require_logs()  # the next leader may have what is put into a log that is being handed over, or not
                plan.prepare()
                put = effects.deliver(plan, again=again)
            except (LogUnavailable, StorageUnavailable):
                pass  # `_put` tries again
        plan.seal()
        self._engine.want_turn()
        return put

    # ---- taking effect

    async def _see_to(
        self, effects: Effects, put: Mapping[int, Sequence[Target]], finished: Collection[QueuePartition]
    ) -> None:
        """Return when all of it is committed everywhere. The `finished` homes have settled theirs."""
        async with trio.open_nursery() as nursery:
            for home, settlements in effects.settlements.items():
                nursery.start_soon(self._settle, home, settlements, finished)
            for place in effects.places:
                nursery.start_soon(self._put, effects, place, put.get(place))

    async def _put(self, effects: Effects, place: int, targets: Sequence[Target] | None) -> None:
        while targets is None or not await self.reached(targets):
            if targets is not None:
                await trio.sleep(_RETRY_S)
            try:
                targets = effects.put_again(self._topology, place, self._broker.clock.now_ms)
            except (LogUnavailable, StorageUnavailable):
                targets = None
                await trio.sleep(_RETRY_S)
            self._engine.want_turn()

    async def reached(self, targets: Sequence[Target]) -> bool:
        """Wait until all of it is committed; False: it will not be by itself."""
        found: list[bool] = []
        if len(targets) == 1:
            await self._reach(targets[0], found)
            return all(found)
        async with trio.open_nursery() as nursery:
            for target in targets:  # side by side: what is committed may be handed over while others are waited for
                nursery.start_soon(self._reach, target, found)
        return all(found)

    async def _reach(self, target: Target, found: list[bool]) -> None:
        log, end, stands = target
        while stands() and log.committed_offset < end:
            with suppress(StorageUnavailable):
                await self._broker.commits.committed([(log, end)])
            if log.committed_offset < end:
                await trio.sleep(_RETRY_S / 2)
        found.append(stands())

    async def _settle(self, home: int, settlements: Sequence[Settlement], finished: Collection[QueuePartition]) -> None:
        log = home_log(home)
        while not await self.try_at_leader(
            log,
            partial(self.settle_here, log, settlements, None, finished=finished),
            lambda link: link.settle(log, settlements),
        ):
            finished = ()

    async def try_at_leader(
        self, log: str, here: Callable[[], Awaitable[Any]], there: Callable[[TransactionLink], Awaitable[Any]]
    ) -> bool:
        """Have whoever leads a log do something, `here` or by its link; False, a moment later: nobody has."""
        leader = self._cluster.leader_of(log)[0]
        link = self._engine.transaction_links.get(leader) if leader is not None else None
        with suppress(StorageUnavailable):
            if leader == self._cluster.broker_id:
                await here()
                return True
            if link is not None:
                await there(link)
                return True
        await trio.sleep(_RETRY_S)
        return False

    # ---- records

    def _log_for_records(self) -> int:
        """The number of a log to keep a record in."""
        for part, _ in self.stores.led():
            if part.role is not None and part.role.may_append():
                return part.number
        for place in range(self.stores.count):
            number = (self._cluster.broker_id + place) % self.stores.count
            if self._cluster.leader_of(log_of_kind(TRANSACTIONS, number))[0] in self._engine.transaction_links:
                return number
        return self._cluster.broker_id % self.stores.count  # whoever leads it soon

    async def _keep(self, number: int, key: bytes, record: bytes | None) -> None:
        link = await self.keeper(number)
        keep = self.keep_here if link is None else link.keep
        await keep(number, key, record)

    async def keeper(self, number: int) -> TransactionLink | None:
        """The link to who leads the log of records of a number; None: this broker does. Raises StorageUnavailable."""
        links = self._engine.transaction_links
        found = await self.stores.at(number, _WHAT, may_forward=lambda: bool(links))
        if not isinstance(found, int):
            return None
        if found not in links:
            raise StorageUnavailable(f"broker {found}, which leads {_WHAT}, cannot be reached")
        return links[found]

    async def forget(self, number: int, key: bytes) -> None:
        """Have a record gone, sooner or later."""
        while True:
            try:
                await self._keep(number, key, None)
                return
            except StorageUnavailable:
                await trio.sleep(_LOOK_S)

    async def _watch(self) -> None:
        """Rule 5."""
        while True:
            await trio.sleep(_LOOK_S)
            self._forget_told()
            for part, store in self.stores.led():
                for key, record in list(store.items()):
                    if is_redo_record(key) and key not in self._redone and self._is_gone(key):
                        self._redone.add(key)
                        self._engine.spawn(self._redo, part.number, key, record)

    def _is_gone(self, key: bytes) -> bool:
        """The process that had a record kept is not there to see to it."""
        broker, process = (int.from_bytes(key[start : start + 8], "big") for start in (0, 8))
        return self._engine.is_gone(broker, process)

    async def _redo(self, number: int, key: bytes, record: bytes) -> None:
        try:
            publishes, settled, places = decode_step(record)
        except CorruptBatch as error:
            logger.error("a transaction in %s cannot be read: %s", log_of_kind(TRANSACTIONS, number), error)
            return
        logger.warning("a transaction that another broker had decided is applied again")
        if places is not None:
            await self.steps.see_to(publishes, places)
        else:
            await self._see_to(Effects.found(self._topology, publishes, settled), {}, ())
        await self.forget(number, key)
        self._redone.discard(key)

    # ---- what other brokers ask

    async def keep_here(self, number: int, key: bytes, record: bytes | None) -> None:
        """See `TransactionLink.keep`, of a log that is led here, or will be soon."""
        found = await self.stores.at(number, _WHAT, may_forward=lambda: True)
        if isinstance(found, int):
            raise StorageUnavailable(f"broker {found} leads {_WHAT}")
        part, store = found
        try:
            if record is not None or store.get(key) is not None:
                store.put(key, record)
        except (LogUnavailable, BatchTooLarge) as error:
            raise StorageUnavailable(str(error)) from error
        self._engine.want_turn()
        with part.while_led(), trio.move_on_after(_KEEP_PATIENCE_S):
            try:
                await store.commit()
                return
            except LogUnavailable as error:
                raise OutcomeUnknown(str(error)) from error
        raise OutcomeUnknown(f"too few brokers have {_WHAT} in sync")

    async def store_here(self, number: int) -> tuple[LedStore[KeyedStore], KeyedStore]:
        """A log of records that is led here, or will be soon, and takes something. Raises StorageUnavailable."""
        found = await self.stores.at(number, _WHAT, may_forward=lambda: False)
        assert not isinstance(found, int)
        role = found[0].role
        if role is None or not role.may_append():
            raise StorageUnavailable(f"too few brokers have {_WHAT} in sync")
        return found

    async def places_here(self, served: ServedBroker, number: int, ids: Sequence[int]) -> list[int]:
        """See `TransactionLink.places`. A home that is handed over may lead on, or be gone: that is waited for."""
        until_s = trio.current_time() + self.publish_patience_s
        while True:
            session = served.session_of(number)
            home = _home_of(session, ids) if session is not None else None
            offsets = places_of(session, ids) if session is not None and home is not None else None
            if session is None or home is None or offsets is None:
                return []
            home.look_again()
            if home.refusal is None:
                self._told[session, ids[0]] = home, ids
                return ranges_of(offsets)
            if trio.current_time() >= until_s:
                raise home.refusal
            await trio.sleep(_RETRY_S / 2)

    def under_way(self, home: QueuePartition) -> int:
        """How many transactions are about to settle something of a home here."""
        self._forget_told()
        here = sum(home in work.plan.settled for work in self._works if not work.is_applied)
        return here + sum(there is home for there, _ in self._told.values())

    def _forget_told(self) -> None:
        for (session, first), (_, ids) in list(self._told.items()):
            if session.closed or places_of(session, ids) is None:
                del self._told[session, first]

    async def settle_here(
        self,
        log: str,
        settlements: Sequence[Settlement],
        served: ServedBroker | None,
        *,
        finished: Collection[QueuePartition] = (),
    ) -> None:
        """See `TransactionLink.settle`; in the `finished` homes that was done, and has only to be committed."""
        home = self._led(log)
        held = False
        for one in settlements if home not in finished else ():
            queue = home.queues.get(one.queue_id)
            if queue is None:
                continue
            session = served.session_of(one.number) if served is not None and one.number else None
            if session is not None and one.ids:
                self._told.pop((session, one.ids[0]), None)
            if session is not None and served is not None and places_of(session, one.ids) is not None:
                served.settle(one.number, Outcome.DISCARD if one.rejected else Outcome.ACK, one.ids)
                continue
            offsets = each_in(one.offsets)
            queue.settle_waiting(offsets, rejected=one.rejected)
            if taken := take_from_holders(queue, offsets, self._broker.sessions):
                (queue.reject if one.rejected else queue.settle_offsets)(taken)
            held = held or held_by_transactions(queue, offsets, self._under_way())
        home.seal_all()
        self._engine.want_turn()
        if home.log.error is not None:
            raise OutcomeUnknown(str(home.log.error))
        if not await self.reached([Target.of_home(self._topology, home)]):
            raise OutcomeUnknown("the home has another leader")
        if held:
            raise OutcomeUnknown("a message was delivered again meanwhile")

    def _under_way(self) -> list[Transaction]:
        """Transactions of clients of this broker that may give back yet what they have taken."""
        waiting = [work.plan.transaction for work in self._works if not work.is_applied]
        open_ones = [session.transaction for session in self._broker.sessions if session.transaction is not None]
        return [*open_ones, *self._broker.transactions.under_way, *waiting]

    def _led(self, log: str) -> QueuePartition:
        """Raises StorageUnavailable."""
        number = number_of(log, "home")
        home = self._engine.serving.home(log, self._cluster.leader_of(log)[1]) if number is not None else None
        if home is None:
            raise StorageUnavailable("the home is not led here")
        return home
