"""Where the contract of metadata stores is tried: on a log, on the model of etcd and on a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any

import trio

from core_log.files import MemoryFiles
from core_log.keyed_store import KeyedStore
from core_log.log_flusher import LogFlusher
from core_log.metadata.embedded import EmbeddedStore
from core_log.metadata.etcd_client import EtcdClient, Transport, Unreachable
from core_log.metadata.etcd_store import EtcdStore
from core_log.metadata.store import MetadataEntry, MetadataStore
from gateway.etcd import HttpTransport
from tests.core_log.helpers import open_log
from tests.simulation.etcd_model import EtcdModel, ModelTransport

_prefixes = count(1)


class Line:
    """A transport that can be cut, and that can lose answers."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.members = inner.members
        self.lose_answers = 0
        self._up = trio.Event()
        self._up.set()
        self._streams: set[trio.CancelScope] = set()

    def cut(self) -> None:
        self._up = trio.Event()
        for scope in self._streams:
            scope.cancel()

    def join(self) -> None:
        self._up.set()

    def _require(self) -> None:
        if not self._up.is_set():
            raise Unreachable("cut", sent=False)

    async def call(
        self, member: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        self._require()
        answer = await self.inner.call(member, path, body, headers)
        if self.lose_answers and path.endswith("/txn"):
            self.lose_answers -= 1
            raise Unreachable("the answer is lost", sent=True)
        self._require()
        return answer

    def stream(
        self, member: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[Mapping[str, Any]]]:
        return self._stream(member, path, body, headers)

    @asynccontextmanager
    async def _stream(
        self, member: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        self._require()
        with trio.CancelScope() as scope:
            self._streams.add(scope)
            try:
                async with self.inner.stream(member, path, body, headers) as lines:
                    yield lines
            finally:
                self._streams.discard(scope)
        if scope.cancelled_caught:
            raise Unreachable("cut", sent=True)


class Seen:
    """What a store's listeners are told."""

    def __init__(self, store: MetadataStore) -> None:
        self.revisions: list[tuple[int, list[MetadataEntry]]] = []
        store.listeners.append(lambda revision, entries: self.revisions.append((revision, list(entries))))

    def of(self, prefix: bytes) -> list[tuple[bytes, bytes | None]]:
        """Keys and values, in the order in which they came."""
        return [
            (entry.key, entry.value)
            for _, entries in self.revisions
            for entry in entries
            if entry.key.startswith(prefix)
        ]


class World:
    """Makes stores over the same data."""

    async def store(self, **options: Any) -> tuple[Any, Line]:
        """Another store, and its line to etcd."""
        raise NotImplementedError

    async def compact(self) -> None:
        """Compact to what is now."""


class EtcdWorld(World):
    def __init__(self, nursery: trio.Nursery, transport: Transport) -> None:
        self._nursery = nursery
        self._transport = transport
        self._prefix = b"/test %d/" % next(_prefixes)

    async def store(self, **options: Any) -> tuple[EtcdStore, Line]:
        line = Line(self._transport)
        store = EtcdStore(EtcdClient(line), self._prefix, **options)
        await self._nursery.start(store.run)
        return store, line

    async def compact(self) -> None:
        answer = await self._transport.call(0, "/v3/kv/range", {"key": "AA=="}, {})
        revision = answer["header"]["revision"]
        if isinstance(self._transport, ModelTransport):
            self._transport.model.compact(int(revision))
        else:
            await self._transport.call(0, "/v3/kv/compaction", {"revision": revision}, {})


class EmbeddedWorld(World):
    def __init__(self, flusher: LogFlusher) -> None:
        self._store = EmbeddedStore(KeyedStore(open_log(MemoryFiles(), flusher=flusher)))

    async def store(self, **options: Any) -> tuple[EmbeddedStore, Any]:
        return self._store, None


@asynccontextmanager
async def world(kind: str, address: str = "") -> AsyncIterator[World]:
    """A world of "embedded", "model" or "etcd" (at `address`)."""
    async with trio.open_nursery() as nursery:
        if kind == "embedded":
            flusher = LogFlusher(retry_interval_s=1, unflushed_bytes_max=1 << 20)
            await nursery.start(flusher.run)
            yield EmbeddedWorld(flusher)
        elif kind == "model":
            model = EtcdModel()
            nursery.start_soon(model.run)
            yield EtcdWorld(nursery, ModelTransport(model))
        else:
            transport = HttpTransport([address])
            yield EtcdWorld(nursery, transport)
            nursery.cancel_scope.cancel()
            await transport.aclose()
        nursery.cancel_scope.cancel()
