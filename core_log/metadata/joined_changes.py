"""Changes of a shared store that come together, as few transactions.

1. A change is sent at once while fewer than `SENDING_MAX` are under way. What comes meanwhile waits, and is sent
   together as soon as one of these is answered: so who is alone never waits, and many cost little more than one.
2. Changes are only joined if it is the same in whatever order they are made: none puts what another puts or relies on,
   and what two rely on is the same. The others wait for the next transaction, before whatever came later.
3. Where a guard does not hold, each of those that were joined is sent by itself, so nobody is refused for another.
4. Where a change found nobody who answers for as long as it may wait (`Unanswered`), all that waited behind it for all
   that time are told so, too: hundreds, one after the other, would keep a broker that stops for a quarter of an hour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio

from core_log.errors import MetadataUnavailable
from core_log.metadata.store import Guard, Put

SENDING_MAX = 2
BYTES_MAX = 256 << 10
"""Of keys and values in a transaction that is joined; etcd takes 1.5 MiB unless told otherwise."""


class Unanswered(MetadataUnavailable):
    """Nobody has answered for as long as a change may wait."""


Send = Callable[[list[Guard], list[Put]], Awaitable[int]]
"""Makes a change; its revision. Raises Conflict, MetadataUnavailable, BatchTooLarge."""


def is_repeatable(guards: Iterable[Guard], puts: Iterable[Put]) -> bool:
    """Whether a change cannot be made twice: it guards all that it puts."""
    guarded = {guard.key for guard in guards if guard.mod_revision is not None}
    return guarded.issuperset(key for key, _ in puts)


class _Change:
    """A change, and what became of it; `ready` is set when that is known, or when it is to send what waits."""

    __slots__ = ("check", "error", "guards", "puts", "ready", "revision", "size")

    def __init__(self, guards: Sequence[Guard], puts: Sequence[Put], check: Callable[[], None] | None) -> None:
        self.guards = {guard.key: guard for guard in guards}
        self.puts = dict(puts)
        self.check = check
        self.size = sum(len(key) + len(value or b"") for key, value in puts)
        self.ready = trio.Event()
        self.revision = 0
        self.error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """It was made, or refused."""
        return bool(self.revision) or self.error is not None


class _Group:
    """Changes that are made at once."""

    def __init__(self, operations_max: int) -> None:
        self.changes: list[_Change] = []
        self.guards: dict[bytes, Guard] = {}
        self.puts: dict[bytes, bytes | None] = {}
        self._operations_max = operations_max
        self._comparisons = self._size = 0

    def take(self, change: _Change) -> bool:
        """Add a change if it fits, and has nothing to do with those that are there."""
        guards, puts = self.guards, self.puts
        comparisons = sum(
            (guard.mod_revision is not None) + (guard.create_revision is not None)
            for key, guard in change.guards.items()
            if key not in guards
        )
        if self.changes:
            fits = (
                len(puts) + len(change.puts) <= self._operations_max
                and self._comparisons + comparisons <= self._operations_max
                and self._size + change.size <= BYTES_MAX
            )
            apart = (
                puts.keys().isdisjoint(change.puts)
                and puts.keys().isdisjoint(change.guards)
                and guards.keys().isdisjoint(change.puts)
                and all(guards.get(key, guard) == guard for key, guard in change.guards.items())
            )
            if not (fits and apart):
                return False
        self.changes.append(change)
        guards.update(change.guards)
        puts.update(change.puts)
        self._comparisons += comparisons
        self._size += change.size
        return True


class JoinedChanges:
    """See the module. No key comes twice among a change's guards, nor among its puts."""

    def __init__(self, send: Send, operations_max: int) -> None:
        self._send = send
        self._operations_max = operations_max
        self._waiting: list[_Change] = []
        self._sending = 0

    async def make(self, guards: Sequence[Guard], puts: Sequence[Put], check: Callable[[], None] | None = None) -> int:
        """Make a change; its revision. `check` is called right before it is sent. Raises what that raises, Conflict,
        MetadataUnavailable, BatchTooLarge.
        """
        change = _Change(guards, puts, check)
        if self._sending < SENDING_MAX:
            self._sending += 1
        else:
            self._waiting.append(change)
            await change.ready.wait()
        if not change.is_over:
            await self._send_with_others(change)
        if change.error is not None:
            raise change.error
        return change.revision

    async def _send_with_others(self, first: _Change) -> None:
        """Send a change, and what waits and goes together with it; then it is for the next one that waits to do so."""
        group, left = _Group(self._operations_max), []
        for change in (first, *self._waiting):
            if not group.take(change):
                left.append(change)
        self._waiting = left
        try:
            await self._make(group)
            if isinstance(first.error, Unanswered):
                self._give_up(left, first.error)
        finally:
            for change in group.changes:
                if not change.is_over:
                    change.error = MetadataUnavailable("given up; the change may have been made")
                change.ready.set()
            if self._waiting:
                self._waiting.pop(0).ready.set()
            else:
                self._sending -= 1

    def _give_up(self, behind: list[_Change], error: Unanswered) -> None:
        """Those of these that still wait are told what another was: rule 4."""
        for change in [change for change in self._waiting if change in behind]:
            self._waiting.remove(change)
            change.error = Unanswered(str(error))
            change.ready.set()

    async def _make(self, group: _Group) -> None:
        joined = len(group.changes) > 1
        try:
            for change in group.changes:
                if change.check is not None:
                    change.check()
            revision = await self._send(list(group.guards.values()), list(group.puts.items()))
        except Exception as error:
            if not joined:
                group.changes[0].error = error
            elif isinstance(error, MetadataUnavailable):
                for change in group.changes:
                    change.error = type(error)(str(error))
            else:
                await self._make_each_alone(group)
        else:
            for change in group.changes:
                change.revision = revision

    async def _make_each_alone(self, group: _Group) -> None:
        unanswered: Unanswered | None = None
        for change in group.changes:
            if unanswered is not None:
                change.error = Unanswered(str(unanswered))
                continue
            await self._make_alone(change)
            if isinstance(change.error, Unanswered):
                unanswered = change.error

    async def _make_alone(self, change: _Change) -> None:
        try:
            if change.check is not None:
                change.check()
            change.revision = await self._send(list(change.guards.values()), list(change.puts.items()))
        except Exception as error:
            change.error = error
