"""The last message of each routing key that was published to be kept: what newcomers are given at once.

1. A message is kept with its properties by virtual host and routing key, in a keyed store of its own: a slab is one
   append, and of several messages with one key the last is written. An empty body means that nothing is kept from now
   on. Who published it waits for the store's log as for any other (`Confirms.require`).
2. What has a time to live is not given out after it, and is removed in bites. What is left of it goes along.
3. Values are in memory. `retained_messages_max` and `retained_bytes_max` bound them; what would go beyond is refused,
   and nothing of its slab is kept then.
4. Look-ups go through a trie of the keys of each virtual host, and values are given out as slabs, a piece of some at a
   time (`pieces`): what is replaced between two pieces is given out as it is then, in the piece that has it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from core_log.errors import CorruptBatch, LogUnavailable
from core_log.keyed_store import KeyedStore
from core_log.partition_log import PartitionLog
from routing.commits import storage_error, storage_errors
from routing.config import BrokerConfig
from routing.errors import LimitExceeded
from routing.facts import TTL_MS_MAX, pack, ttl_ms_of
from routing.kept.retained_names import NameTrie
from routing.key_patterns import parse_pattern
from routing.message import NAME_ENCODING_ERRORS, Properties, Slab

PREFIX = b"r\0"
_HEAD = struct.Struct(">QI")
"""When it ends, in ms since 1970 (0: never); the length of the properties that follow. The body is the rest."""
PIECE_MESSAGES, PIECE_BYTES = 1000, 1 << 18
_EXPIRED_AT_ONCE = 1000
_BATCH_ROOM_BYTES = 128
"""What a batch of one record has besides key and value."""
_STALE_MIN = 1024


Row = tuple[str, bytes, bytes, int | None]
"""A message that is kept: its key, its properties as a tag, its body, and what is left of its time in ms."""


class Value(NamedTuple):
    """What is kept of a key."""

    ends_at_ms: int
    """0: never."""
    tag: bytes
    """Of `Properties.log_tag`."""
    body: bytes

    @property
    def properties(self) -> Properties:
        """Those that it was kept with."""
        return Properties.from_log_tag(self.tag)

    def is_over(self, now_ms: int) -> bool:
        """It is not given out any more."""
        return 0 < self.ends_at_ms <= now_ms


def decode(value: bytes) -> Value:
    """A value as it was written. Raises CorruptBatch."""
    if len(value) < _HEAD.size:
        raise CorruptBatch("a retained message is cut off")
    ends_at_ms, length = _HEAD.unpack_from(value)
    body = _HEAD.size + length
    return Value(ends_at_ms, value[_HEAD.size : body], value[body:])


class Retained:
    """See the module. The store may hold other things under keys that do not begin with `PREFIX`."""

    def __init__(self, store: KeyedStore, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self.count = 0
        self.added = 0
        """How often a key that had no message has got one."""
        self.size_bytes = 0
        """Of keys and values together."""
        self.refused = 0
        """Messages that were not kept because of a limit: who keeps them counts those."""
        self._store = store
        self._config = config
        self._now_ms = now_ms
        self._names: dict[str, NameTrie] = {}
        self._ends: dict[bytes, int] = {}
        """When what has an end ends, by key of the store."""
        self._due: list[tuple[int, bytes]] = []
        """The same as a heap; entries that `_ends` does not have any more mean nothing."""
        for key, value in store.items():
            if key.startswith(PREFIX):
                decode(value)
                self._note(key, value)

    @property
    def log(self) -> PartitionLog:
        """What has to be committed for what was kept to be safe."""
        return self._store.log

    # --- keeping -----------------------------------------------------------------------

    def require_writable(self) -> None:
        """Raises StorageUnavailable while the log refuses."""
        if self.log.error is not None:
            raise storage_error(self.log)

    def keep(self, vhost: str, slab: Slab) -> int:
        """Keep the messages of a slab instead of what there was; up to where `log` has to get for that to be safe.

        Raises LimitExceeded, StorageUnavailable; then nothing has changed.
        """
        puts = self.plan(vhost, slab)
        if puts:
            with storage_errors():
                self.put(puts)
        return self.log.log_end_offset

    def plan(self, vhost: str, slab: Slab) -> dict[bytes, bytes | None]:
        """What `keep` puts into the store, see `put`. Raises LimitExceeded."""
        store, now_ms = self._store, self._now_ms()
        count = len(slab.bodies)
        last = {slab.routing_key: count - 1} if slab.keys is None else dict(zip(slab.keys, range(count), strict=True))
        common = slab.properties.common_tag
        puts: dict[bytes, bytes | None] = {}
        more = more_bytes = 0
        most_bytes = self.log.config.message_bytes_max - _BATCH_ROOM_BYTES
        for name, index in last.items():
            key, body = _key(vhost, name), slab.bodies[index]
            there = store.get(key)
            value = None
            if body:
                tag = common + (slab.properties.raw if slab.raws is None else slab.raws[index])
                ttl_ms = ttl_ms_of(slab.properties.facts if slab.facts is None else slab.facts[index])
                value = _HEAD.pack(0 if ttl_ms is None else now_ms + ttl_ms, len(tag)) + tag + body
                if len(key) + len(value) > most_bytes:
                    raise LimitExceeded(f"a retained message of {len(value)} bytes with its properties")
                more += there is None
                more_bytes += len(value) + (len(key) if there is None else -len(there))
            elif there is None:
                continue
            else:
                more -= 1
                more_bytes -= len(key) + len(there)
            puts[key] = value
        if more > 0 and self.count + more > self._config.retained_messages_max:
            raise LimitExceeded(f"more than {self._config.retained_messages_max} retained messages")
        if more_bytes > 0 and self.size_bytes + more_bytes > self._config.retained_bytes_max:
            raise LimitExceeded(f"more than {self._config.retained_bytes_max} bytes of retained messages")
        return puts

    def put(self, puts: Mapping[bytes, bytes | None], also: Sequence[tuple[bytes, bytes | None]] = ()) -> None:
        """Write what was planned, behind other records of the store. Raises LogUnavailable, BatchTooLarge."""
        store = self._store
        before = [store.get(key) for key in puts]
        store.put_all([*also, *puts.items()])
        for (key, value), there in zip(puts.items(), before, strict=True):
            self._note(key, value, there)

    def _note(self, key: bytes, value: bytes | None, before: bytes | None = None) -> None:
        """Count what a key has now, and find it."""
        if before is not None:
            self.size_bytes -= len(key) + len(before)
            self.count -= 1
        self._ends.pop(key, None)
        if value is None:
            if before is not None:
                vhost, name = _parts(key)
                self._names[vhost].remove(name)
            return
        self.size_bytes += len(key) + len(value)
        self.count += 1
        if before is None:
            self.added += 1
            vhost, name = _parts(key)
            self._trie(vhost).add(name)
        ends_at_ms: int = _HEAD.unpack_from(value)[0]
        if ends_at_ms:
            self._ends[key] = ends_at_ms
            if len(self._due) > 2 * len(self._ends) + _STALE_MIN:
                self._due = [(time_ms, one) for one, time_ms in self._ends.items()]
                heapify(self._due)
            else:
                heappush(self._due, (ends_at_ms, key))

    def _trie(self, vhost: str) -> NameTrie:
        found = self._names.get(vhost)
        if found is None:
            found = self._names[vhost] = NameTrie()
        return found

    # --- giving out --------------------------------------------------------------------

    def matching(self, vhost: str, pattern: str, syntax: str) -> list[str]:
        """The keys that match a pattern (`syntax` as in `Broker.bind`) and have a message, in no order."""
        names = self._names.get(vhost)
        return [] if names is None else names.matching(parse_pattern(pattern, syntax))

    def get(self, vhost: str, name: str) -> Value | None:
        """What is kept of a key."""
        return self._at(vhost, name, self._now_ms())

    def _at(self, vhost: str, name: str, now_ms: int) -> Value | None:
        value = self._store.get(_key(vhost, name))
        found = None if value is None else decode(value)
        return None if found is None or found.is_over(now_ms) else found

    def pieces(self, vhost: str, names: Sequence[str], exchange: str) -> Iterator[list[Slab]]:
        """The messages of these keys, as messages of an exchange: pieces of some 256 KiB, each as it is then."""
        return pieces_of(self.rows(vhost, names), exchange)

    def rows(self, vhost: str, names: Iterable[str]) -> Iterator[Row]:
        """What is kept of these keys now."""
        for name in names:
            now_ms = self._now_ms()
            found = self._at(vhost, name, now_ms)
            if found is not None:
                # A clock that was ahead may have said when it ends.
                left_ms = min(found.ends_at_ms - now_ms, TTL_MS_MAX)
                yield name, found.tag, found.body, left_ms if found.ends_at_ms else None

    # --- upkeep ------------------------------------------------------------------------

    def tidy(self, spawn: Callable[..., Any]) -> None:
        """Called every now and then: remove what has ended, have the log no longer than it has to be."""
        self.expire()
        if self._store.has_garbage and self.log.error is None:
            spawn(self._tidy_log)

    async def _tidy_log(self) -> None:
        with suppress(LogUnavailable):  # once more the next time
            await self._store.commit()

    def expire(self) -> None:
        """Remove some of what has ended. What cannot be written now is removed later."""
        now_ms, ends, due = self._now_ms(), self._ends, self._due
        gone: dict[bytes, bytes | None] = {}
        while due and due[0][0] <= now_ms and len(gone) < _EXPIRED_AT_ONCE:
            ends_at_ms, key = heappop(due)
            if ends.get(key) == ends_at_ms:
                gone[key] = None
        if not gone:
            return
        try:
            self.put(gone)
        except LogUnavailable:
            for key in gone:
                heappush(due, (ends[key], key))

    def clear(self, vhost: str, names: Sequence[str]) -> int:
        """Keep nothing of these keys any more; up to where `log` has to get. Raises StorageUnavailable."""
        keys = (_key(vhost, name) for name in names)
        with storage_errors():
            self.put({key: None for key in keys if self._store.get(key) is not None})
        return self.log.log_end_offset

    def forget(self, vhost: str) -> None:
        """A virtual host is deleted, and what was kept in it. Raises StorageUnavailable."""
        names = self._names.get(vhost)
        if names is not None:
            self.clear(vhost, names.all())
            self._names.pop(vhost, None)


def pieces_of(rows: Iterable[Row], exchange: str) -> Iterator[list[Slab]]:
    """See `Retained.pieces`: nothing of a piece is left for the next."""
    properties: dict[bytes, Properties] = {}
    kinds: dict[tuple[str, bool], _Kind] = {}
    count = size = 0
    for name, tag, body, left_ms in rows:
        shared = properties.get(tag)
        if shared is None:
            if len(properties) >= PIECE_MESSAGES:
                properties.clear()
            shared = properties[tag] = Properties.from_log_tag(tag)
        key = (shared.protocol, shared.persistent)
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = _Kind(exchange)
        kind.add(name, shared, body, left_ms)
        count += 1
        size += len(body)
        if count >= PIECE_MESSAGES or size >= PIECE_BYTES:
            yield [one.slab() for one in kinds.values()]
            kinds.clear()
            count = size = 0
    if kinds:
        yield [one.slab() for one in kinds.values()]


class _Kind:
    """Messages on their way into a slab: of one protocol, and all of them persistent or none."""

    __slots__ = ("_bodies", "_exchange", "_facts", "_keys", "_properties", "_size")

    def __init__(self, exchange: str) -> None:
        self._exchange = exchange
        self._keys: list[str] = []
        self._bodies: list[bytes] = []
        self._properties: list[Properties] = []
        self._facts: list[int] = []
        self._size = 0

    def add(self, name: str, properties: Properties, body: bytes, left_ms: int | None) -> None:
        self._keys.append(name)
        self._bodies.append(body)
        self._properties.append(properties)
        self._facts.append(properties.facts if left_ms is None else pack(properties.persistent, ttl_ms=left_ms))
        self._size += len(body)

    def slab(self) -> Slab:
        common = self._properties[0]
        keys, facts = self._keys, self._facts
        alike = self._properties.count(common) == len(keys)
        return Slab(
            self._exchange, keys[0], common, self._bodies, self._size,
            keys=keys if len(keys) > 1 else None,
            raws=None if alike else [one.raw for one in self._properties],
            facts=None if facts.count(common.facts) == len(facts) else facts,
        )  # fmt: skip


def _key(vhost: str, name: str) -> bytes:
    return PREFIX + f"{vhost}\0{name}".encode("utf-8", NAME_ENCODING_ERRORS)


def _parts(key: bytes) -> tuple[str, str]:
    vhost, _, name = key[len(PREFIX) :].decode("utf-8", NAME_ENCODING_ERRORS).partition("\0")
    return vhost, name
