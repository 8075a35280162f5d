"""The transactional ids of one log of `transactions`: their states, beside the redo records of other transactions.

A key of a redo record is a number and begins with a zero byte; that of an id begins with `_PREFIX`, that of a writer
(`published_once.py`) with `ONCE_PREFIX`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import msgspec
import trio
from msgspec.structs import replace

from core_log.errors import LogUnavailable
from core_log.keyed_store import KeyedStore
from routing.log_transactions.errors import TransactionCoordinatorUnavailable
from routing.log_transactions.state import IdState, decode, encode

logger = logging.getLogger(__name__)

_PREFIX = b"id:"
ONCE_PREFIX = b"once:"


def is_redo_record(key: bytes) -> bool:
    """It is none of these."""
    return not key.startswith((_PREFIX, ONCE_PREFIX))


class TransactionalId:
    """One of them; `state` is None before it is made. Who changes it holds the lock."""

    __slots__ = ("lock", "name", "state")

    def __init__(self, name: str, state: IdState | None = None) -> None:
        self.name = name
        self.state = state
        self.lock = trio.Lock()


class IdStore:
    """See the module. While it is led here; `while_led` ends with that what is awaited in it."""

    def __init__(
        self,
        store: KeyedStore,
        epoch: int = 0,
        while_led: Callable[[], AbstractContextManager[None]] = nullcontext,
        may_append: Callable[[], bool] = lambda: True,
        *,
        now_ms: int,
    ) -> None:
        """What began after `now_ms`, by a clock that was ahead, is taken to begin now: else it would end that late."""
        self.epoch = epoch
        """In which it is led."""
        self.while_led = while_led
        self.ids: dict[str, TransactionalId] = {}
        self.open: dict[str, TransactionalId] = {}
        """Those with a transaction under way."""
        self._store = store
        self._may_append = may_append
        for key, value in store.items():
            if key.startswith(_PREFIX):
                name = key[len(_PREFIX) :].decode("utf-8", "surrogateescape")
                try:
                    state = decode(value)
                    self._note(TransactionalId(name), replace(state, started_ms=min(state.started_ms, now_ms)))
                except msgspec.MsgspecError as error:
                    logger.error("the state of transactional id %r is not understood: %s", name, error)

    def _note(self, one: TransactionalId, state: IdState | None) -> None:
        one.state = state
        if state is None:
            self.ids.pop(one.name, None)
        else:
            self.ids[one.name] = one
        if state is not None and state.is_open:
            self.open[one.name] = one
        else:
            self.open.pop(one.name, None)

    @property
    def takes_more(self) -> bool:
        """Whether an id's state could be put now, as far as is known."""
        return self._may_append() and self._store.log.error is None

    async def put(self, one: TransactionalId, state: IdState | None) -> None:
        """Where an id stands from now on, durable when it returns. Raises TransactionCoordinatorUnavailable: it stands
        where it stood.
        """
        await self.put_all([(one, state)])

    async def put_all(self, puts: Sequence[tuple[TransactionalId, IdState | None]]) -> None:
        """`put` of several."""
        if not self._may_append():
            raise TransactionCoordinatorUnavailable("too few brokers have the log of transactions in sync")
        try:
            await self._store.change([(_key(one), None if state is None else encode(state)) for one, state in puts])
        except LogUnavailable as error:
            raise TransactionCoordinatorUnavailable(str(error)) from None
        for one, state in puts:
            self._note(one, state)

    def put_later(self, one: TransactionalId, state: IdState) -> None:
        """The same, of what a crash may take back."""
        try:
            self._store.put(_key(one), encode(state))
        except LogUnavailable as error:
            logger.warning("the end of a transaction of %r is not recorded now: %s", one.name, error)
        self._note(one, state)


def _key(one: TransactionalId) -> bytes:
    return _PREFIX + one.name.encode("utf-8", "surrogateescape")
