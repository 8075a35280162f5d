"""The durable topology: virtual hosts, exchanges, queues, bindings, policies and topics, as records of a keyed store.

Keys and values are msgpack. A key is an array whose first item is the kind of entity; a value is a map of what was
declared. What an entry means is the business of `topology.py`; this file only knows how it is written down. The names
of entities of the virtual host "/" come without it, as in catalogs of before there were others. Queue ids are never
used twice, because the logs name queues by id: the next one is an entry of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgpack

from core_log.keyed_store import KeyedStore
from routing.topology.entries import Entry, Key

DEFAULT_VHOST = "/"

_NEXT_QUEUE_ID = ["next-queue-id"]
_KEY_LENGTHS = {"exchange": 2, "queue": 2, "binding": 7, "policy": 2, "operator-policy": 2}
"""How long the keys of entities of a virtual host are without it."""

_DECIMAL = 1


def _extend(value: Any) -> Any:
    return msgpack.ExtType(_DECIMAL, str(value).encode()) if isinstance(value, Decimal) else str(value)


def _restore(code: int, data: bytes) -> Any:
    return Decimal(data.decode()) if code == _DECIMAL else msgpack.ExtType(code, data)


def _pack(value: Any) -> bytes:
    return msgpack.packb(value, default=_extend, unicode_errors="surrogateescape")  # type: ignore[no-any-return]


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_restore, unicode_errors="surrogateescape", strict_map_key=False)


def _pack_key(key: Key) -> bytes:
    if key[0] in _KEY_LENGTHS and key[1] == DEFAULT_VHOST:
        return _pack([key[0], *key[2:]])
    return _pack(list(key))


def _unpack_key(data: bytes) -> Key:
    kind, *rest = _unpack(data)
    if len(rest) + 1 == _KEY_LENGTHS.get(kind):
        return (kind, DEFAULT_VHOST, *rest)
    return (kind, *rest)


class Catalog:
    """See the module."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        saved = store.get(_pack(_NEXT_QUEUE_ID))
        self._next_queue_id: int = _unpack(saved) if saved is not None else 1

    def new_queue_id(self) -> int:
        """An id that no queue ever had; `change` records that it was used."""
        queue_id = self._next_queue_id
        self._next_queue_id += 1
        return queue_id

    def skip_queue_ids(self, last_id: int) -> None:
        """Give out no id up to this one: a log names it, though it was never recorded here."""
        self._next_queue_id = max(self._next_queue_id, last_id + 1)

    def _puts(self, entries: Sequence[Entry]) -> list[tuple[bytes, bytes | None]]:
        """What is to be written; entities that go and are not recorded need nothing."""
        puts: list[tuple[bytes, bytes | None]] = []
        for key, value, _, _ in entries:
            packed = _pack_key(key)
            if value is not None:
                puts.append((packed, _pack(value)))
            elif self._store.get(packed) is not None:
                puts.append((packed, None))
        if any(key[0] == "queue" and value is not None for key, value, _, _ in entries):
            self._store.put(_pack(_NEXT_QUEUE_ID), _pack(self._next_queue_id))
        return puts

    async def change(self, entries: Sequence[Entry]) -> dict[bytes, bytes | None]:
        """Write entries, all or none, and wait until they are durable; what was there before, for `restore`.

        Raises LogUnavailable.
        """
        puts = self._puts(entries)
        return await self._store.change(puts) if puts else {}

    async def restore(self, before: dict[bytes, bytes | None]) -> None:
        """Undo a change. Raises LogUnavailable."""
        await self._store.change(list(before.items()))

    def change_unseen(self, entries: Sequence[Entry]) -> None:
        """Write entries that nobody waits for. Raises LogUnavailable; then nothing has changed."""
        puts = self._puts(entries)
        if puts:
            self._store.put_all(puts)

    def entries(self, kind: str) -> Iterator[tuple[Key, dict[str, Any]]]:
        """All (key, value) of "vhost", "exchange", "queue", "binding", "policy", "operator-policy" or "topic"."""
        for packed, value in list(self._store.items()):
            key = _unpack_key(packed)
            if key[0] == kind:
                yield key, _unpack(value)
