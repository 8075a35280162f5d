"""The metadata of one broker: a keyed store in its own directory, with the interface of one that is shared.

1. A change is put, made durable in one flush with all others that are under way, and then applied. What the log refuses
   is taken back, there too.
2. Changes that have a key in common wait for each other; so `Conflict` is for guards only.
3. Revisions count from 1 at each start, which is all that anybody compares within one process. Those of single keys are
   forgotten when there are many: then all count as changed just now, and what relies on one is told of a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from core_log.errors import Conflict, LogUnavailable, MetadataUnavailable
from core_log.keyed_store import KeyedStore
from core_log.metadata.store import Guard, Listener, MetadataEntry, Put

_REVISIONS_MAX = 1 << 12


class EmbeddedStore:
    """See the module; a `MetadataStore`."""

    puts_max = 1 << 30
    reads_anew = False

    def __init__(self, store: KeyedStore) -> None:
        self.listeners: list[Listener] = []
        self.revision = 1
        self._store = store
        self._revisions: dict[bytes, tuple[int, int]] = {}
        """Last change, and when it was made anew, of what was changed since `_before_that`."""
        self._before_that = (1, 1)
        """The same of all others."""
        self._writing: dict[bytes, bytes | None] = {}
        """The keys that are being written, and what they are until that is applied."""
        self._settled: trio.Event | None = None
        """Set when what is being written is; there is one if somebody waits for it."""

    def get(self, key: bytes) -> MetadataEntry | None:
        """The entry of a key; None when it is not there."""
        value = self._writing[key] if key in self._writing else self._store.get(key)
        return self._entry(key, value) if value is not None else None

    def _entry(self, key: bytes, value: bytes) -> MetadataEntry:
        return MetadataEntry(key, value, *self._revisions.get(key, self._before_that))

    def keys(self, prefix: bytes = b"") -> Sequence[bytes]:
        """All keys that begin with `prefix`, in the order in which they were first put."""
        keys = [key for key, _ in self._store.items() if key.startswith(prefix)]
        if self._writing:
            keys += [key for key in self._writing if key.startswith(prefix) and self._store.get(key) is None]
            keys = [key for key in keys if self.get(key) is not None]
        return keys

    def items(self, prefix: bytes = b"") -> Iterable[tuple[bytes, MetadataEntry]]:
        """All keys that begin with `prefix`, in the order in which they were first put."""
        for key in self.keys(prefix):
            if (entry := self.get(key)) is not None:
                yield key, entry

    async def change(
        self,
        guards: Sequence[Guard],
        puts: Sequence[Put],
        *,
        lease: bool = False,
        check: Callable[[], None] | None = None,
    ) -> int:
        """See `MetadataStore`; there are no leases here."""
        if lease:
            raise MetadataUnavailable("the metadata of a single broker knows no leases")
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._writing and self._meets(guards, puts):
            if self._settled is None:
                self._settled = trio.Event()
            await self._settled.wait()
        for guard in guards:
            if not guard.holds(self.get(guard.key)):
                raise Conflict(f"{guard.key!r} was changed meanwhile")
        if not puts:
            return self.revision
        before = {key: self._store.get(key) for key, _ in puts}
        self._writing.update(before)
        try:
            # What is written has to be applied, whoever waits for it.
            with trio.CancelScope(shield=True):
                await self._write(puts, check)
        except LogUnavailable as error:
            raise MetadataUnavailable(str(error)) from error
        finally:
            for key in before:
                del self._writing[key]
            if self._settled is not None:
                self._settled.set()
                self._settled = None
        return self._applied(puts, before)

    def _meets(self, guards: Sequence[Guard], puts: Sequence[Put]) -> bool:
        """Whether a key of a change is being written by another."""
        writing = self._writing
        return any(key in writing for key, _ in puts) or any(guard.key in writing for guard in guards)

    async def _write(self, puts: Sequence[Put], check: Callable[[], None] | None) -> None:
        before = await self._store.change(puts)
        if check is not None:
            try:
                check()
            except Exception:
                await self._store.change(list(before.items()))
                raise

    def change_now(self, puts: Sequence[Put]) -> bool:
        """See `MetadataStore`: done when the log has taken it."""
        before = {key: self._store.get(key) for key, _ in puts}
        if not self._writing.keys().isdisjoint(before):
            return False
        try:
            self._store.put_all(puts)
        except LogUnavailable as error:
            raise MetadataUnavailable(str(error)) from error
        self._applied(puts, before)
        return True

    def _applied(self, puts: Sequence[Put], before: Mapping[bytes, bytes | None]) -> int:
        revision = self.revision = self.revision + 1
        entries = []
        for key, value in puts:
            created = revision
            if before[key] is not None:
                created = self._revisions.pop(key, self._before_that)[1]
            if value is not None:
                self._revisions[key] = (revision, created)
            entries.append(MetadataEntry(key, value, revision, created if value is not None else 0))
        if len(self._revisions) > _REVISIONS_MAX:
            self._revisions.clear()
            self._before_that = (revision, revision)
        for listener in self.listeners:
            listener(revision, entries)
        return revision

    async def caught_up(self, revision: int) -> None:
        """Everything is applied when its change returns."""

    async def barrier(self) -> None:
        """Nobody else changes anything."""
