"""Writers on one etcd, which fails under them: what each is told has to fit what all are told in the end."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import trio

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata.etcd_client import EtcdClient, Transport
from core_log.metadata.etcd_store import EtcdStore
from core_log.metadata.store import Guard, MetadataEntry

PREFIX = b"/millrace/test/"
KEYS = [b"a", b"b", b"c"]


class Writer:
    """Counts up keys by compare-and-swap, and writes down what it was told."""

    def __init__(self, transport: Transport, seed: int, number: int) -> None:
        self.random = random.Random(seed * 10 + number)
        self.number = number
        self.store = EtcdStore(EtcdClient(transport), PREFIX)
        self.store.listeners.append(self._applied)
        self.done: dict[bytes, int] = dict.fromkeys(KEYS, 0)
        self.unknown: dict[bytes, int] = dict.fromkeys(KEYS, 0)
        self.mirror: dict[bytes, bytes] = {}
        self.revision = 0

    def _applied(self, revision: int, entries: Sequence[MetadataEntry]) -> None:
        assert revision > self.revision, "revisions rise"
        self.revision = revision
        for entry in entries:
            if entry.value is None:
                assert self.mirror.pop(entry.key, None) is not None, "what goes was there"
            else:
                self.mirror[entry.key] = entry.value
        assert {key: entry.value for key, entry in self.store.items()} == self.mirror

    async def run(self) -> None:
        """Change keys until it is cancelled."""
        while True:
            await trio.sleep(self.random.expovariate(5))
            if self.random.random() < 0.2:
                await self._come_and_go()
                continue
            key = self.random.choice(KEYS)
            entry = self.store.get(key)
            value = int(entry.value or b"0") if entry is not None else 0
            guard = Guard(key, entry.mod_revision if entry is not None else 0)
            try:
                revision = await self.store.change([guard], [(key, b"%d" % (value + 1))])
            except Conflict:
                pass
            except MetadataUnavailable as error:
                self.unknown[key] += "may have been made" in str(error) or "heard" in str(error)
            except trio.Cancelled:
                self.unknown[key] += 1
                raise
            else:
                self.done[key] += 1
                assert self.store.revision >= revision

    async def _come_and_go(self) -> None:
        """A key of its own, now and then under the lease."""
        key = b"own %d" % self.number
        entry = self.store.get(key)
        guard = Guard(key, entry.mod_revision if entry is not None else 0)
        value = None if entry is not None and self.random.random() < 0.5 else b"%f" % self.random.random()
        try:
            await self.store.change([guard], [(key, value)], lease=self.random.random() < 0.5)
        except (Conflict, MetadataUnavailable):
            pass


async def check(writers: Sequence[Writer], there: Mapping[bytes, bytes]) -> None:
    """All follow to what is there, and each change that was told to be made was made once. Raises AssertionError."""
    for writer in writers:
        with trio.fail_after(10):
            await writer.store.barrier()
        assert writer.mirror == there
    for key in KEYS:
        done, unknown = (sum(getattr(writer, name)[key] for writer in writers) for name in ("done", "unknown"))
        assert done <= int(there.get(key, b"0")) <= done + unknown, key
    assert sum(sum(writer.done.values()) for writer in writers) > 20
