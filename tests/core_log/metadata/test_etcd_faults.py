"""Several stores on one etcd whose members and lines fail as a seed has it: whatever happens, all agree afterwards.

`MILLRACE_TEST_SEEDS=500 pytest tests/core_log/metadata/test_etcd_faults.py` tries more of them.
"""

from __future__ import annotations

import os
import random

import pytest
import trio
from trio.testing import MockClock

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata.etcd_client import EtcdClient
from core_log.metadata.etcd_store import EtcdStore
from core_log.metadata.store import Guard, MetadataEntry
from tests.simulation.etcd_model import EtcdModel, ModelTransport

SEEDS = int(os.environ.get("MILLRACE_TEST_SEEDS", "4"))
PREFIX = b"/millrace/test/"
KEYS = [b"a", b"b", b"c"]


class Writer:
    """Counts up keys by compare-and-swap, and writes down what it was told."""

    def __init__(self, model: EtcdModel, seed: int, number: int) -> None:
        self.random = random.Random(seed * 10 + number)
        self.number = number
        self.transport = ModelTransport(model, delay_s=self.random.choice([0.001, 0.02]))
        self.store = EtcdStore(EtcdClient(self.transport), PREFIX)
        self.store.listeners.append(self._applied)
        self.done: dict[bytes, int] = dict.fromkeys(KEYS, 0)
        self.unknown: dict[bytes, int] = dict.fromkeys(KEYS, 0)
        self.mirror: dict[bytes, bytes] = {}
        self.revision = 0

    def _applied(self, revision: int, entries: list[MetadataEntry]) -> None:
        assert revision > self.revision, "revisions rise"
        self.revision = revision
        for entry in entries:
            if entry.value is None:
                assert self.mirror.pop(entry.key, None) is not None, "what goes was there"
            else:
                self.mirror[entry.key] = entry.value
        assert {key: entry.value for key, entry in self.store.items()} == self.mirror

    async def run(self) -> None:
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


async def break_things(model: EtcdModel, writers: list[Writer], seed: int) -> None:
    choose = random.Random(seed)
    while True:
        await trio.sleep(choose.expovariate(0.7))
        member, writer = choose.randrange(3), choose.choice(writers)
        match choose.choice(["down", "mute", "cut", "lag", "lose", "line", "compact", "leader", "well"]):
            case "lag":
                model.fault(member, lag_s=choose.uniform(0, 3))
            case "lose":
                model.lose_answers = choose.randrange(1, 4)
            case "line":
                writer.transport.cut_off = not writer.transport.cut_off
                model.notify()
            case "compact":
                model.compact(model.revision)
            case "leader":
                model.change_leader()
            case "well":
                model.fault(member, down=False, mute=False, cut=False, lag_s=0.0)
            case fault:
                model.fault(member, **{fault: choose.random() < 0.5})


def heal(model: EtcdModel, writers: list[Writer]) -> None:
    for writer in writers:
        writer.transport.cut_off = False
    model.lose_answers = 0
    for member in range(3):
        model.fault(member, down=False, mute=False, cut=False, lag_s=0.0)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_all_agree_and_nothing_is_made_twice(seed: int, autojump_clock: MockClock) -> None:
    model = EtcdModel(3)
    writers = [Writer(model, seed, number) for number in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(model.run)
        for writer in writers:
            await nursery.start(writer.store.run)
        async with trio.open_nursery() as troubled:
            for writer in writers:
                troubled.start_soon(writer.run)
            troubled.start_soon(break_things, model, writers, seed)
            await trio.sleep(60)
            troubled.cancel_scope.cancel()
        heal(model, writers)
        await trio.sleep(20)
        there = {key.removeprefix(PREFIX): kv.value for key, kv in model.keys.items()}
        for writer in writers:
            with trio.fail_after(10):
                await writer.store.barrier()
            assert writer.mirror == there
        for key in KEYS:
            done, unknown = (sum(getattr(writer, name)[key] for writer in writers) for name in ("done", "unknown"))
            assert done <= int(there.get(key, b"0")) <= done + unknown, key
        assert sum(sum(writer.done.values()) for writer in writers) > 20
        nursery.cancel_scope.cancel()
