"""Several stores on one etcd whose members and lines fail as a seed has it: whatever happens, all agree afterwards.

`MILLRACE_TEST_SEEDS=500 pytest tests/core_log/metadata/test_etcd_faults.py` tries more of them.
"""

from __future__ import annotations

import os
import random

import pytest
import trio
from trio.testing import MockClock

from tests.core_log.metadata.writers import PREFIX, Writer, check
from tests.simulation.etcd_model import EtcdModel, ModelTransport

SEEDS = int(os.environ.get("MILLRACE_TEST_SEEDS", "4"))


async def break_things(model: EtcdModel, lines: list[ModelTransport], seed: int) -> None:
    choose = random.Random(seed)
    while True:
        await trio.sleep(choose.expovariate(0.7))
        member, line = choose.randrange(3), choose.choice(lines)
        match choose.choice(["down", "mute", "cut", "lag", "lose", "line", "compact", "leader", "well"]):
            case "lag":
                model.fault(member, lag_s=choose.uniform(0, 3))
            case "lose":
                model.lose_answers = choose.randrange(1, 4)
            case "line":
                line.cut_off = not line.cut_off
                model.notify()
            case "compact":
                model.compact(model.revision)
            case "leader":
                model.change_leader()
            case "well":
                model.fault(member, down=False, mute=False, cut=False, lag_s=0.0)
            case fault:
                model.fault(member, **{fault: choose.random() < 0.5})


def heal(model: EtcdModel, lines: list[ModelTransport]) -> None:
    for line in lines:
        line.cut_off = False
    model.lose_answers = 0
    for member in range(3):
        model.fault(member, down=False, mute=False, cut=False, lag_s=0.0)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_all_agree_and_nothing_is_made_twice(seed: int, autojump_clock: MockClock) -> None:
    model = EtcdModel(3)
    delays = random.Random(seed)
    lines = [ModelTransport(model, delay_s=delays.choice([0.001, 0.02])) for _ in range(3)]
    writers = [Writer(line, seed, number) for number, line in enumerate(lines)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(model.run)
        for writer in writers:
            await nursery.start(writer.store.run)
        async with trio.open_nursery() as troubled:
            for writer in writers:
                troubled.start_soon(writer.run)
            troubled.start_soon(break_things, model, lines, seed)
            await trio.sleep(60)
            troubled.cancel_scope.cancel()
        heal(model, lines)
        await trio.sleep(20)
        await check(writers, {key.removeprefix(PREFIX): kv.value for key, kv in model.keys.items()})
        nursery.cancel_scope.cancel()
