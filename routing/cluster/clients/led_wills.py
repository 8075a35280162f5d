"""The wills of a cluster, with whoever leads their log: `routing/kept/wills.py`, for owners at any broker.

1. What brokers say of their clients' wills comes in order, and may come again after a change of leader: with each
   change stands how far a process had got (`positions`), in the same batch, so that none is made twice.
2. A will has a holder: the connection that has it. What another connection says of it means nothing. When the holder's
   process is gone, so is the owner: his will is published after its delay, unless he comes back to any broker before,
   or the process does, which stood still or was cut off for a while, and has him still; and not within `grace_ms` after
   the start of this process, when all brokers may have been gone.
3. What is decided is published under numbers (`Slab.once`) of this leadership's own: homes take it once, though another
   leader publishes it again. They are released when nobody does that any more. Queues that end with their broker know
   it by its title (`publishing/named.py`).
4. `close` is the end of it: what is under way is the next leader's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from core_log.keyed_store import KeyedStore
from routing.errors import StorageUnavailable
from routing.kept.wills import DECIDED, Decision, Will, Wills, key_of, pack_will, unpack
from routing.queues.homes.receipts import release, release_from

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.clients.keeping import LedKeeping

_POSITION = b"p\0"
_PUBLISHERS = 0xFFFF0000
"""Publishers that are no queues: one for each leadership."""
_RETRY_S = 0.5
_FORGOTTEN_AFTER_S = 3600.0


class LedWills(Wills):
    """See the module."""

    def __init__(self, broker: Broker, store: KeyedStore, keeping: LedKeeping, grace_ms: int) -> None:
        self._keeping = keeping
        self._holders: dict[tuple[int, int], set[bytes]] = {}
        """Wills whose owners are there, by broker and process."""
        self._gone: dict[tuple[int, int], set[bytes]] = {}
        """Wills that wait, or did, as their owners' processes are not there."""
        self._publisher = _PUBLISHERS | store.log.leader_epoch % 0xFFFF + 1
        self._positions = {
            int.from_bytes(key[len(_POSITION) :], "big"): int.from_bytes(value, "big")
            for key, value in store.items()
            if key.startswith(_POSITION)
        }
        self._absent_s: dict[int, float] = {}
        """Since when processes are not there that have said something."""
        super().__init__(broker, store, keeping.retained, grace_ms)
        broker.spawn(self._release_former)

    def _found(self, key: bytes, will: Will, grace_ms: int) -> None:
        if will.due_at_ms or not will.holder:
            super()._found(key, will, grace_ms)
        else:
            self._holders.setdefault(_process_of(will), set()).add(key)

    # --- what brokers say ----------------------------------------------------------------

    def take(self, process: int, position: int, vhost: str, fields: Sequence[Any]) -> None:
        """Something is said of a will, at a position of what a process says. Raises LogUnavailable, BatchTooLarge."""
        if position < self._positions.get(process, 0):
            return
        what, name, *rest = fields
        key = key_of(vhost, name)
        also = ((_POSITION + process.to_bytes(8, "big"), (position + 1).to_bytes(8, "big")),)
        before = self._store.get(key)
        there = None if before is None else Will(*unpack(before))
        if what == "keep":
            self._change(key, there, Will(*rest[0]), also)
        elif there is None:
            return
        elif what == "returned":
            self._is_back(key, there, also, afresh=rest[0])
        elif tuple(there.holder) != tuple(rest[0]):
            return  # it is another connection's
        elif what == "erase":
            self._change(key, there, None, also)
        elif rest[1] <= 0:
            self._decide_now(key, there, also)
            self._forget(key, there)
        else:
            self._change(key, there, there._replace(due_at_ms=self._broker.clock.now_ms() + rest[1]), also)
        self._positions[process] = position + 1

    def _is_back(self, key: bytes, will: Will, also: Sequence[tuple[bytes, bytes | None]], *, afresh: bool) -> None:
        waits = key in self._waiting and key not in self._of_before
        is_due = key in self._undecided
        if is_due or (afresh and waits):
            self._decide_now(key, will, also)
        else:
            self._store.put_all([*also, (key, None)])
        self._forget(key, will)  # not before it is written: else it would not be waited for when this is said again

    def _change(
        self, key: bytes, before: Will | None, will: Will | None, also: Sequence[tuple[bytes, bytes | None]]
    ) -> None:
        self._store.put_all([*also, (key, None if will is None else pack_will(will))])
        if before is not None:
            self._forget(key, before)
        if will is None:
            return
        if will.due_at_ms:
            self._wait(key, will.due_at_ms)
        else:
            self._holders.setdefault(_process_of(will), set()).add(key)

    def _forget(self, key: bytes, will: Will) -> None:
        """It is not this one that is waited for."""
        timer = self._waiting.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._of_before.discard(key)
        self._undecided.discard(key)
        if will.holder:
            held = self._holders.get(_process_of(will))
            if held is not None:
                held.discard(key)
                if not held:
                    del self._holders[_process_of(will)]

    # --- owners that are gone ------------------------------------------------------------

    def look(self, is_gone: Callable[[int, int], bool], grace_until_ms: int) -> None:
        """See whose brokers are gone."""
        now_ms = self._broker.clock.now_ms()
        for holder, keys in list(self._gone.items()):
            if not is_gone(*holder):
                self._there_again(holder)
            elif not any(key in self._waiting for key in keys):
                del self._gone[holder]
        for holder in [one for one in self._holders if is_gone(*one)]:
            keys = self._holders.pop(holder)
            self._gone.setdefault(holder, set()).update(keys)
            for key in keys:
                value = self._store.get(key)
                if value is None:
                    continue
                due_ms = max(now_ms + Will(*unpack(value)).delay_ms, grace_until_ms)
                self._of_before.add(key)
                self._wait(key, due_ms)

    def _there_again(self, holder: tuple[int, int]) -> None:
        """A process that was gone is not: what waits for its sake waits no more."""
        for key in self._gone.pop(holder, ()):
            value = self._store.get(key)
            if value is None or key not in self._of_before or _process_of(Will(*unpack(value))) != holder:
                continue
            self._of_before.discard(key)
            timer = self._waiting.pop(key, None)
            if timer is not None:
                timer.cancel()
            self._holders.setdefault(holder, set()).add(key)

    def lost(self, holder: tuple[int, int], wills: Sequence[tuple[str, str, int]]) -> list[int]:
        """A process is there (again), and has clients with these wills, by virtual host, name and the connection's
        number: the numbers of those that were published, or given up, meanwhile.
        """
        self._there_again(holder)
        found = []
        for vhost, name, number in wills:
            value = self._store.get(key_of(vhost, name))
            if value is None or tuple(Will(*unpack(value)).holder) != (*holder, number):
                found.append(number)
        return found

    def forget_processes(self, there: Sequence[int]) -> None:
        """Only these say anything yet; but one that was away for its lease may go on with what it said before."""
        now_s = trio.current_time()
        self._absent_s = {
            process: self._absent_s.get(process, now_s) for process in self._positions if process not in there
        }
        for process, since_s in self._absent_s.items():
            if now_s >= since_s + _FORGOTTEN_AFTER_S:
                self._put(_POSITION + process.to_bytes(8, "big"), None)
                del self._positions[process]

    # --- publishing ----------------------------------------------------------------------

    def _due(self, key: bytes) -> None:
        if self._keeping.is_over:
            return
        if not self._keeping.may_write:
            self._waiting[key] = self._broker.timers.at(trio.current_time() + _RETRY_S, partial(self._due, key))
        else:
            super()._due(key)

    def _later(self, call: Callable[[], None]) -> None:
        super()._later(lambda: None if self._keeping.is_over else call())

    def _put(self, key: bytes, value: bytes | None) -> None:
        if not self._keeping.is_over:
            super()._put(key, value)

    def _decision(self, vhost: str, name: str, will: Will) -> Decision:
        return Decision(self._next, vhost, name, will, {}, self._publisher)

    def _publish(self, decision: Decision, avoided: Any = ()) -> None:
        if not self._keeping.is_over:
            super()._publish(decision, avoided)

    def _over(self, decisions: list[Decision], *, published: bool) -> None:
        if self._keeping.is_over:
            return
        super()._over(decisions, published=published)
        numbers = [decision.once for decision in decisions if decision.publisher == self._publisher]
        if published and numbers:
            self._broker.spawn(self._release, numbers)

    async def _release(self, numbers: Sequence[int]) -> None:
        """The notes of these are gone for good: then their numbers are free."""
        try:
            await self._keeping.committed()
        except StorageUnavailable:
            return  # the next leader releases all of them
        for home in self._broker.topology.stripes:
            release(home, self._publisher, numbers)
        self._broker.end_turn()

    async def _release_former(self) -> None:
        """What former leaders had decided is published: their numbers are free."""
        while not self._keeping.is_over:
            await trio.sleep(_RETRY_S)
            if self._notes_of_others():
                continue
            try:
                await self._keeping.committed()
            except StorageUnavailable:
                continue
            for home in self._broker.topology.stripes:
                release_from(home, _PUBLISHERS, but=self._publisher)
            self._broker.end_turn()
            return

    def _notes_of_others(self) -> bool:
        return any(
            key.startswith(DECIDED) and self._publisher not in unpack(value)[4:] for key, value in self._store.items()
        )

    async def finish(self) -> None:
        """What is under way is the next leader's."""


def _process_of(will: Will) -> tuple[int, int]:
    return will.holder[0], will.holder[1]
