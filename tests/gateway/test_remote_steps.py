"""A step of a writer at members of a real cluster: it takes effect as it was decided, whoever dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.etcd_process import EtcdProcess
from routing.errors import StorageUnavailable
from tests.gateway.test_member import Running
from tests.gateway.test_remote_transactions import bind_all, check_rows, step, town


@pytest.mark.soak
async def test_a_step_that_was_decided_takes_effect_though_its_broker_goes(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with town(etcd, tmp_path, "going") as brokers:
        await bind_all(brokers[1])
        going = brokers[3].server.broker.engine
        assert going is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(going.transactions.steps, "see_to", _never)
            patch.setattr("routing.cluster.clients.shared_steps.PATIENCE_S", 0.5)
            with pytest.raises(StorageUnavailable):
                await step(brokers[3], 2, b"4", b"5")
            with pytest.raises(StorageUnavailable):  # decided, and not done
                await step(brokers[1], 2, b"5", b"4")
        await brokers.pop(3).stop()
        assert await _in_the_end(brokers[1], 2, b"5", b"4") == -1
        assert await step(brokers[2], 3, b"6") == 1
        await check_rows(brokers[2], b"4", b"5", b"6")


async def _never(*_: object) -> None:
    await trio.sleep_forever()


async def _in_the_end(broker: Running, number: int, *bodies: bytes) -> Any:
    with trio.fail_after(20):
        while True:
            try:
                return await step(broker, number, *bodies)
            except StorageUnavailable:
                await trio.sleep(0.05)
