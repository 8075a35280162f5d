"""The durable topology: virtual hosts, exchanges, queues, bindings, policies and topics, in a metadata store.

Whoever wants to know what was changed, by anybody, names itself for a kind of entity in `appliers`.

Keys and values are msgpack. A key is an array whose first item is the kind of entity; a value is a map of what was
declared. What an entry means is the business of `topology.py`; this file only knows how it is written down. The names
of entities of the virtual host "/" come without it, as in catalogs of before there were others. In a store that is
shared, which holds other things as well, all keys have a prefix.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import accumulate
from typing import Any

import msgpack

from core_log.errors import BatchTooLarge, Conflict
from core_log.metadata.store import Guard, MetadataEntry, MetadataStore, Put
from routing.errors import InvalidArgument
from routing.topology.entries import Entry, Key
from routing.topology.queue_ids import OwnQueueIds, QueueIds, SharedQueueIds

DEFAULT_VHOST = "/"

SHARED_PREFIX = b"t/"
"""Of the keys in a shared store."""

_KEY_LENGTHS = {"exchange": 2, "queue": 2, "binding": 7, "policy": 2, "operator-policy": 2}
"""How long the keys of entities of a virtual host are without it."""

_PIECE_BYTES_MAX = 256 << 10
"""Of keys and values in a transaction of a shared store; etcd takes 1.5 MiB, in which a key may stand three times."""

_ERASED_AT_ONCE_MAX = 1_000

_DECIMAL = 1


def _extend(value: Any) -> Any:
    if isinstance(value, int):  # which JSON may have; kept as text it would be no setting, and nothing would start
        raise InvalidArgument("a number has over 64 bits")
    return msgpack.ExtType(_DECIMAL, str(value).encode()) if isinstance(value, Decimal) else str(value)


def _restore(code: int, data: bytes) -> Any:
    return Decimal(data.decode()) if code == _DECIMAL else msgpack.ExtType(code, data)


def _pack(value: Any) -> bytes:
    return msgpack.packb(value, default=_extend, unicode_errors="surrogateescape")  # type: ignore[no-any-return]


def _unpack(data: bytes | None) -> Any:
    assert data is not None
    return msgpack.unpackb(data, ext_hook=_restore, unicode_errors="surrogateescape", strict_map_key=False)


def _pack_key(key: Key) -> bytes:
    if key[0] in _KEY_LENGTHS and key[1] == DEFAULT_VHOST:
        return _pack([key[0], *key[2:]])
    return _pack(list(key))


def rewritten(value: bytes, **changes: Any) -> bytes:
    """An entry's value with some of it changed."""
    return _pack(_unpack(value) | changes)


def unpack_key(data: bytes) -> Key:
    """Which entity a key is that of."""
    kind, *rest = _unpack(data)
    if len(rest) + 1 == _KEY_LENGTHS.get(kind):
        return (kind, DEFAULT_VHOST, *rest)
    return (kind, *rest)


def unpack_entry(key: bytes, value: bytes) -> tuple[Key, Any]:
    """An entry as it was declared. Raises ValueError."""
    try:
        return unpack_key(key), _unpack(value)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise ValueError(repr(error)) from error


def _count_at_once(puts: Sequence[Put]) -> int:
    """How many of these a shared store takes in one piece: arguments of bindings are in their keys."""
    sizes = accumulate(len(key) + len(value or b"") for key, value in puts)
    return max(1, sum(size <= _PIECE_BYTES_MAX for size in sizes))


class Catalog:
    """See the module."""

    def __init__(self, store: MetadataStore, *, shared: bool = False) -> None:
        self.appliers: dict[str, Callable[[Entry], None]] = {}
        """Called with every entry that was changed, by its kind, """
        self.applied: list[Callable[[], None]] = []
        """and these when all that was changed at once has been applied."""
        self.spread: Callable[[int], Awaitable[None]] | None = None
        """Waits until all that share the store have applied a revision."""
        self.ids: QueueIds = SharedQueueIds(store) if shared else OwnQueueIds(store)
        self.shared = shared
        self._store = store
        self._prefix = SHARED_PREFIX if shared else b""
        store.listeners.append(self._advanced)

    async def catch_up(self) -> None:
        """Know all that anybody has changed before. Raises MetadataUnavailable."""
        await self._store.barrier()

    def is_recorded(self, key: Key) -> bool:
        """Whether there is an entry of an entity; the exchanges of every virtual host have none."""
        return self._store.get(self._key(key)) is not None

    def recorded(self, keys: Iterable[Key]) -> list[Guard]:
        """Those of some entities that there are entries of, as they are now."""
        return [self._guard(self._key(key)) for key in keys if self.is_recorded(key)]

    async def erase(self, entries: Iterable[Guard]) -> None:
        """Remove entries that nobody has changed meanwhile, many at once. Raises MetadataUnavailable."""
        store, left = self._store, list(entries)
        size = min(store.puts_max, _ERASED_AT_ONCE_MAX)
        while left:
            piece, left = left[:size], left[size:]
            try:
                await store.change(piece, [(entry.key, None) for entry in piece])
            except (Conflict, BatchTooLarge):
                for entry in piece:
                    if entry.holds(store.get(entry.key)):
                        with suppress(Conflict):
                            await store.change([entry], [(entry.key, None)])

    def _key(self, key: Key) -> bytes:
        return self._prefix + _pack_key(key)

    def _puts(self, entries: Sequence[Entry]) -> list[Put]:
        """What is to be written; entities that go and are not recorded need nothing."""
        puts: list[Put] = []
        for key, value, _, _ in entries:
            if value is not None:
                puts.append((self._key(key), _pack(value)))
            elif self.is_recorded(key):
                puts.append((self._key(key), None))
        if any(key[0] == "queue" and value is not None for key, value, _, _ in entries):
            self.ids.note()
        return puts

    async def change(
        self,
        entries: Sequence[Entry],
        guards: Sequence[Key] = (),
        *,
        check: Callable[[], None] | None = None,
        also: Sequence[Put] = (),
        relied: Sequence[Guard] = (),
    ) -> None:
        """Write entries, all or none, as long as neither they nor `guards` are other than they are now, and wait until
        they are durable and applied, at all that share the store. For `check` see `MetadataStore.change`; `also` and
        `relied` are a plan's.

        Where a store takes only so much at once, the entries are written in pieces, in their order: what depends on
        others goes before them. Each leaves room for `guards`, unless these are very many. Raises Conflict,
        MetadataUnavailable, BatchTooLarge, and what `check` raises.
        """
        store = self._store
        puts = self._puts(entries)
        if not puts:
            return
        if not self.shared:
            # Nobody else writes, and who plans has what is being written wait for each other.
            await store.change((), puts, check=check)
            return
        relied = [*relied, *(self._guard(self._key(key)) for key in guards)]
        puts = [*(put for put in also if put[1] is not None), *puts, *(put for put in also if put[1] is None)]
        size = max(store.puts_max - len(relied), store.puts_max // 2)
        while puts:
            count = _count_at_once(puts[:size])
            piece, puts = puts[:count], puts[count:]
            own = [self._guard(key) for key, _ in piece]
            revision = await store.change((own + relied)[: store.puts_max], piece, check=check if not puts else None)
        if self.spread is not None:
            await self.spread(revision)

    def _guard(self, key: bytes) -> Guard:
        entry = self._store.get(key)
        return Guard(key, entry.mod_revision if entry is not None else 0)

    def change_now(self, entries: Sequence[Entry]) -> bool:
        """Write entries that nobody waits for; False: the store cannot without being waited for.

        Raises MetadataUnavailable; then nothing has changed.
        """
        puts = self._puts(entries)
        return not puts or self._store.change_now(puts)

    def _advanced(self, revision: int, changed: Sequence[MetadataEntry]) -> None:
        for packed, value, _, _ in changed:
            if not packed.startswith(self._prefix):
                continue
            key = unpack_key(packed[len(self._prefix) :])
            apply = self.appliers.get(key[0])
            if apply is not None:
                apply(Entry(key, _unpack(value) if value is not None else None, True))
        for done in self.applied:
            done()

    def entries(self, kind: str) -> Iterator[tuple[Key, dict[str, Any]]]:
        """All (key, value) of "vhost", "exchange", "queue", "binding", "policy", "operator-policy" or "topic"."""
        # A packed key begins with how long it is, in one byte, and its kind.
        store, prefix, packed_kind = self._store, self._prefix, _pack(kind)
        for packed in [one for one in store.keys(prefix) if one.startswith(packed_kind, len(prefix) + 1)]:
            entry = store.get(packed)
            if entry is not None:
                yield unpack_key(packed[len(prefix) :]), _unpack(entry.value)
