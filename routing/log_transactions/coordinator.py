"""Who looks after transactional ids: producers whose batches and offsets take effect together, or not at all.

1. An id belongs to one log of `transactions`, and who leads that looks after it (`state.py`, `store.py`). What is
   answered is durable there.
2. What is done for one id is done one after the other. A client waits for `patience_s`; the rest goes on without it.
3. A transaction is decided by one record. Then all partitions and groups are told (`endings.py`), by whoever leads the
   log: who begins to lead goes on with what it finds decided.
4. Transactions that take longer than their producers allowed for are given up, and ids forgotten that nobody has used
   for `transactional_id_expiration_ms`.
5. Whoever takes in something of a transaction asks here whether it is a part of it, before its log has any of it: so
   nothing comes behind the end of a transaction and stays open.
"""

from __future__ import annotations

import logging
import secrets
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from core_log.errors import LogError
from core_log.keyed_store import KeyedStore
from routing.cluster.metadata.log_names import TRANSACTIONS, log_of_kind
from routing.errors import BrokerError
from routing.log_transactions.endings import Endings
from routing.log_transactions.errors import (
    LogTransactionError,
    NotATransactionalId,
    NotTransactionCoordinator,
    TooManyInTransaction,
    TransactionCoordinatorUnavailable,
    TransactionEnding,
    UnknownTransactionalId,
    WrongProducerId,
    WrongTimeout,
)
from routing.log_transactions.links import Ending
from routing.log_transactions.questions import Check
from routing.log_transactions.state import IdState, new
from routing.log_transactions.store import IdStore, TransactionalId

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.clients.led_stores import LedStore

logger = logging.getLogger(__name__)

_ID_BITS = 62
_RETRY_S = 0.1
_RETRY_S_MAX = 2.0
_LOOK_S, _LOOK_IDLE_S = 0.25, 1.0
_ID_CHARACTERS_MAX = 1024
_OWNER_CHARACTERS_MAX = 256
_FORGOTTEN_AT_ONCE = 200
_TELLS_MAX = 32
"""Partitions and groups of one transaction that are told at a time."""
Result = TypeVar("Result")
Work = Callable[[IdStore, TransactionalId], Awaitable[Result]]


class TransactionCoordinator:
    """See the module; of one broker."""

    def __init__(self, broker: Broker, *, patience_s: float = 5.0) -> None:
        self.endings = Endings(broker)
        self._broker = broker
        self._config = broker.config
        self._now_ms = broker.clock.now_ms
        store, shared = broker.transactions.store, broker.transactions.shared
        self._alone = IdStore(store, now_ms=self._now_ms()) if store is not None else None
        self._stores = shared.stores if shared is not None else None
        self._led: dict[KeyedStore, IdStore] = {}
        self._patience_s = patience_s
        self._look_for_old = 0
        broker.spawn(self._watch)

    # ---- who looks after an id

    def log_of(self, name: str) -> int:
        """The number of the log that an id belongs to."""
        count = self._stores.count if self._stores is not None else 1
        return zlib.crc32(name.encode("utf-8", "surrogateescape")) % count

    def broker_of(self, name: str) -> int | None:
        """The broker that looks after an id; None: nobody now. A single one is 0."""
        cluster = self._broker.cluster
        return 0 if cluster is None else cluster.leader_of(log_of_kind(TRANSACTIONS, self.log_of(name)))[0]

    def _store_of(self, name: str) -> IdStore:
        """Raises LogTransactionError."""
        if not name or len(name) > _ID_CHARACTERS_MAX:
            raise NotATransactionalId(f"a transactional id has 1 to {_ID_CHARACTERS_MAX} characters")
        if self._alone is not None:
            return self._alone
        assert self._stores is not None
        number, cluster = self.log_of(name), self._broker.cluster
        assert cluster is not None
        broker = self.broker_of(name)
        if broker is not None and broker != cluster.broker_id:
            raise NotTransactionCoordinator(f"broker {broker} looks after transactional id '{name}'")
        for part, store in self._stores.led():
            if part.number == number:
                return self._opened(part, store)
        raise TransactionCoordinatorUnavailable(f"nobody looks after transactional id '{name}' now")

    def _opened(self, part: LedStore[KeyedStore], store: KeyedStore) -> IdStore:
        found = self._led.get(store)
        if found is None:
            role = part.role
            assert role is not None
            found = self._led[store] = IdStore(
                store, role.state.leader_epoch, part.while_led, role.may_append, now_ms=self._now_ms()
            )
            self._recover(found)
        return found

    def _here(self) -> Iterator[IdStore]:
        """All that is led here."""
        if self._alone is not None:
            yield self._alone
        elif self._stores is not None:
            led = list(self._stores.led())
            for store in self._led.keys() - {store for _, store in led}:
                del self._led[store]
            for part, store in led:
                yield self._opened(part, store)

    def _recover(self, store: IdStore) -> None:
        for one in list(store.ids.values()):
            if one.state is not None and one.state.is_prepared:
                logger.info("the transaction of %r was decided before: it is ended now", one.name)
                self._broker.spawn(self._alone_do, store, one, self._complete)

    # ---- one after the other

    async def _do(
        self, name: str, work: Work[Result], *, decided: Callable[[IdState], bool] = lambda _: False
    ) -> Result | None:
        """Have something done for an id, and wait for it. None if it takes longer and what was asked is `decided`.

        Raises LogTransactionError, BrokerError, LogError.
        """
        store = self._store_of(name)
        one = store.ids.get(name) or TransactionalId(name)
        done = trio.Event()
        results: list[Result] = []
        errors: list[Exception] = []
        waiting = trio.CancelScope()

        async def run() -> None:
            try:
                with store.while_led():
                    await self._locked(store, one, work, waiting, results)
            except (LogTransactionError, BrokerError, LogError) as error:
                errors.append(error)
            finally:
                done.set()

        self._broker.spawn(run)
        with trio.move_on_after(self._patience_s):
            await done.wait()
        if results:
            return results[0]
        if errors:
            raise errors[0]
        waiting.cancel()
        state = one.state
        if not done.is_set() and state is not None and state.is_prepared:
            if decided(state):
                return None
            raise TransactionEnding("the transaction before is being ended")
        raise TransactionCoordinatorUnavailable("nobody knows yet what became of it")

    async def _locked(
        self,
        store: IdStore,
        one: TransactionalId,
        work: Work[Result],
        waiting: trio.CancelScope,
        results: list[Result],
    ) -> None:
        with waiting:
            await one.lock.acquire()
        if waiting.cancelled_caught:
            return  # who asked is told so; from here on it is done
        try:
            known = store.ids.get(one.name)
            if known is not None and known is not one:
                raise TransactionCoordinatorUnavailable("another process was made known at the same moment")
            results.append(await work(store, one))
        finally:
            one.lock.release()

    async def _alone_do(self, store: IdStore, one: TransactionalId, work: Work[Any]) -> None:
        """Have something done that no client waits for."""
        try:
            with store.while_led():
                async with one.lock:
                    await work(store, one)
        except (LogTransactionError, BrokerError, LogError) as error:
            logger.warning("the transaction of %r cannot be ended now: %s", one.name, error)

    # ---- what producers ask

    async def begin(self, name: str, timeout_ms: int, expected: tuple[int, int] | None, owner: str) -> tuple[int, int]:
        """A process has the id from now on: its producer id and epoch. What another had under way is given up, or ended
        as it was decided. `expected` is the producer id and epoch that it has.

        Raises WrongTimeout, ProducerFenced, TransactionEnding and what all raise.
        """
        if not 0 < timeout_ms <= self._config.transaction_timeout_ms_max:
            raise WrongTimeout(f"a transaction takes 1 to {self._config.transaction_timeout_ms_max} ms here")
        owner = owner[:_OWNER_CHARACTERS_MAX]

        async def work(store: IdStore, one: TransactionalId) -> tuple[int, int]:
            state = one.state
            if state is None:
                if len(store.ids) >= self._config.transactional_ids_max:
                    raise TooManyInTransaction(f"there are {len(store.ids)} transactional ids")
                state = new(secrets.randbits(_ID_BITS), timeout_ms, owner, self._now_ms())
                await store.put(one, state)
                return state.producer_id, state.epoch
            state.check_expected(expected)
            if state.is_open:
                await store.put(one, state.given_up(keeps=expected is not None, now_ms=self._now_ms()))
            state = await self._complete(store, one)
            after = state.taken_over(expected, timeout_ms, owner, secrets.randbits(_ID_BITS), self._now_ms())
            if after is not state:
                await store.put(one, after)
            return after.producer_id, after.epoch

        found = await self._do(name, work)
        assert found is not None
        return found

    async def add(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        owner: str,
        *,
        partitions: Iterable[tuple[str, int]] = (),
        groups: Iterable[str] = (),
    ) -> None:
        """These are in the transaction, which begins with that if none is under way. Raises WrongProducerId,
        ProducerFenced, TransactionEnding, TooManyInTransaction and what all raise.
        """

        async def work(store: IdStore, one: TransactionalId) -> None:
            state = _known(one)
            state.check_producer(producer_id, epoch)
            after = state.joined(partitions, groups, owner[:_OWNER_CHARACTERS_MAX], self._now_ms())
            if after is None:
                return
            most = self._config.transaction_partitions_max
            if len(after.partitions) + len(after.groups) > most:
                raise TooManyInTransaction(f"a transaction has at most {most} partitions and groups")
            await store.put(one, after)

        await self._do(name, work)

    async def end(self, name: str, producer_id: int, epoch: int, *, committed: bool) -> None:
        """The transaction takes effect, or never will. Raises as `add` does, and WrongTransactionState."""

        async def work(store: IdStore, one: TransactionalId) -> None:
            state = _known(one)
            state.check_producer(producer_id, epoch)
            after = state.decided(committed=committed, now_ms=self._now_ms())
            if after is not None:
                await store.put(one, after)
            await self._complete(store, one)

        def decided(state: IdState) -> bool:
            return (state.producer_id, state.epoch, state.commits) == (producer_id, epoch, committed)

        await self._do(name, work, decided=decided)

    def check(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        *,
        partition: tuple[str, int] | None = None,
        group: str | None = None,
    ) -> None:
        """Whether something is a part of the transaction that is under way. Raises LogTransactionError."""
        one = self._store_of(name).ids.get(name)
        if one is None or one.state is None:
            raise WrongProducerId(f"nobody has transactional id '{name}'")
        one.state.check_has(producer_id, epoch, partition, group)

    async def check_anywhere(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        *,
        partition: tuple[str, int] | None = None,
        group: str | None = None,
    ) -> None:
        """`check`, whoever looks after the id. Raises LogTransactionError, StorageUnavailable."""
        broker, cluster = self.broker_of(name), self._broker.cluster
        if cluster is None or broker == cluster.broker_id:
            self.check(name, producer_id, epoch, partition=partition, group=group)
        else:
            await self.endings.ask(broker, Check(name, producer_id, epoch, partition, group))

    # ---- ends

    async def _complete(self, store: IdStore, one: TransactionalId) -> IdState:
        """Have all told what was decided, if anything was; where the id stands then. Whoever calls holds its lock."""
        state = one.state
        assert state is not None
        if not state.is_prepared:
            return state
        ending = Ending(state.producer_id, state.epoch, state.commits, store.epoch)
        room = trio.CapacityLimiter(_TELLS_MAX)
        async with trio.open_nursery() as nursery:
            for topic, index in state.partitions:
                nursery.start_soon(self._tell, room, self.endings.tell_partition, topic, index, ending)
            for group in state.groups:
                nursery.start_soon(self._tell, room, self.endings.tell_group, group, ending)
        after = state.completed(self._now_ms())
        store.put_later(one, after)
        return after

    async def _tell(self, room: trio.CapacityLimiter, tell: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Until it is told."""
        wait_s = _RETRY_S
        while True:
            try:
                async with room:
                    await tell(*arguments)
                return
            except (BrokerError, LogError, LogTransactionError) as error:
                logger.debug("the end of a transaction cannot be told now: %s", error)
            await trio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)

    async def _give_up(self, store: IdStore, one: TransactionalId) -> bool:
        """Whether there was one to give up."""
        state = one.state
        if state is None or not state.is_open:
            return False
        await store.put(one, state.given_up(keeps=False, now_ms=self._now_ms()))
        await self._complete(store, one)
        return True

    async def _give_up_late(self, store: IdStore, one: TransactionalId) -> None:
        state = one.state
        if state is not None and state.is_over(self._now_ms()):
            logger.warning("the transaction of %r took longer than %d ms: given up", one.name, state.timeout_ms)
            await self._give_up(store, one)

    async def _forget_old(self, store: IdStore, old: Sequence[TransactionalId], before_ms: int) -> None:
        """Some at a time, as there may be many; who is asked for something at the moment is not old any more."""
        with store.while_led():
            for at in range(0, len(old), _FORGOTTEN_AT_ONCE):
                ones = [one for one in old[at : at + _FORGOTTEN_AT_ONCE] if _is_old(one, before_ms)]
                ones = [one for one in ones if not one.lock.locked()]
                for one in ones:
                    one.lock.acquire_nowait()
                try:
                    await store.put_all([(one, None) for one in ones])
                except TransactionCoordinatorUnavailable as error:
                    logger.warning("transactional ids that are not used cannot be forgotten now: %s", error)
                    return
                finally:
                    for one in ones:
                        one.lock.release()

    async def _watch(self) -> None:
        """Rule 4."""
        if self._alone is not None:
            self._recover(self._alone)
        while True:
            stores = self._led.values() if self._alone is None else (self._alone,)
            await trio.sleep(_LOOK_S if any(store.open for store in stores) else _LOOK_IDLE_S)
            now_ms = self._now_ms()
            for store in [store for store in self._here() if store.takes_more]:
                for one in list(store.open.values()):
                    if one.state is not None and one.state.is_over(now_ms) and not one.lock.locked():
                        self._broker.spawn(self._alone_do, store, one, self._give_up_late)
                if now_ms >= self._look_for_old:
                    before_ms = now_ms - self._config.transactional_id_expiration_ms
                    if old := [one for one in store.ids.values() if _is_old(one, before_ms)]:
                        self._broker.spawn(self._forget_old, store, old, before_ms)
            if now_ms >= self._look_for_old:
                self._look_for_old = now_ms + min(self._config.transactional_id_expiration_ms, 60_000)

    # ---- what operators ask

    def known(self) -> Iterator[tuple[str, IdState]]:
        """The ids that are looked after here. Raises TransactionCoordinatorUnavailable: some are not read yet."""
        if self._stores is not None and not self._stores.all_read():
            raise TransactionCoordinatorUnavailable("this broker does not know yet all ids that it looks after")
        for store in self._here():
            for one in list(store.ids.values()):
                if one.state is not None:
                    yield one.name, one.state

    def require_leaders(self) -> None:
        """Raises TransactionCoordinatorUnavailable: nobody looks after some ids now."""
        if self._stores is not None and None in self._stores.leaders():
            raise TransactionCoordinatorUnavailable("nobody looks after some of the transactional ids now")

    def describe(self, name: str) -> IdState:
        """One of them. Raises LogTransactionError."""
        found = self._store_of(name).ids.get(name)
        if found is None or found.state is None:
            raise UnknownTransactionalId(f"there is no transactional id '{name}'")
        return found.state

    async def give_up(self, name: str) -> bool:
        """End what an id has under way, against its producer's will, who is fenced; whether there was anything.

        Raises LogTransactionError.
        """
        self.describe(name)
        return await self._do(name, self._give_up, decided=lambda state: not state.commits) is not False


def _known(one: TransactionalId) -> IdState:
    if one.state is None:
        raise WrongProducerId(f"nobody has transactional id '{one.name}'")
    return one.state


def _is_old(one: TransactionalId, before_ms: int) -> bool:
    state = one.state
    return state is not None and not state.is_open and not state.is_prepared and state.updated_ms < before_ms
