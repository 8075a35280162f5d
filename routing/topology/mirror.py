"""A shared topology written down in this data directory as well, in the way of a single broker's catalog; and the
catalog of a single broker as a shared store would have it.

So the directory of a cluster's member can be opened alone, to be read and verified. What is written here is never asked
while the broker is a member, and nobody waits for it: while the log refuses, it is kept and written later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from core_log.errors import LogUnavailable
from core_log.keyed_store import KeyedStore
from core_log.metadata.store import MetadataEntry, MetadataStore, Put
from core_log.partition_log import PartitionLog
from routing.topics.topic_ids import id_of
from routing.topology.catalog import SHARED_PREFIX, rewritten, unpack_entry, unpack_key
from routing.topology.queue_ids import NEXT_QUEUE_ID, QUEUE_ID_BLOCKS

_TIDY_AFTER_PUTS = 10_000


class CatalogMirror:
    """See the module; from now on, for as long as the store lives."""

    def __init__(self, shared: MetadataStore, own: KeyedStore, spawn: Callable[..., Any]) -> None:
        self._own = own
        self._spawn = spawn
        self._puts = 0
        there = {key: entry.value for key, entry in shared.items()}
        wanted = {_own_key(key): value for key, value in there.items() if _own_key(key) is not None}
        self._pending: dict[bytes, bytes | None] = {
            key: None for key, _ in own.items() if key not in wanted and key != NEXT_QUEUE_ID
        }
        self._pending |= {key: value for key, value in wanted.items() if key is not None and own.get(key) != value}
        shared.listeners.append(self._applied)
        own.log.listeners.append(self._log_advanced)
        self._write()

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        for entry in entries:
            key = _own_key(entry.key)
            if key is not None:
                self._pending.pop(key, None)
                self._pending[key] = entry.value
        self._write()

    def _log_advanced(self, log: PartitionLog) -> None:
        if log.error is None:
            self._write()

    def _write(self) -> None:
        if not self._pending:
            return
        try:
            self._own.put_all(list(self._pending.items()))
        except LogUnavailable:
            return
        self._own.log.request_sync()  # writes that nobody syncs reach the disk in any order
        self._puts += len(self._pending)
        self._pending.clear()
        if self._puts >= _TIDY_AFTER_PUTS:
            self._puts = 0
            self._spawn(self._tidy)

    async def _tidy(self) -> None:
        """Let go of what was written over."""
        try:
            await self._own.commit()
        except LogUnavailable:
            pass


def _own_key(key: bytes) -> bytes | None:
    """Under which key a single broker has it; None if it has no such thing."""
    if key == QUEUE_ID_BLOCKS:
        return NEXT_QUEUE_ID
    return key[len(SHARED_PREFIX) :] if key.startswith(SHARED_PREFIX) else None


def as_shared(own: Iterable[tuple[bytes, bytes]], uid_of: Callable[[str], str]) -> list[Put]:
    """What a shared store says where a single broker has `own`; topics get the ids that theirs lacks."""
    puts: list[Put] = []
    for key, value in own:
        kind, *names = unpack_key(key)
        if key == NEXT_QUEUE_ID:
            puts.append((QUEUE_ID_BLOCKS, value))
        elif kind == "topic":
            topic_id = id_of(names[0], unpack_entry(key, value)[1])
            puts.append((SHARED_PREFIX + key, rewritten(value, uid=uid_of(names[0]), id=topic_id)))
        else:
            puts.append((SHARED_PREFIX + key, value))
    return puts
