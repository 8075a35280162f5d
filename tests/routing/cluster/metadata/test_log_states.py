"""What becomes of logs whose states etcd has lost; on the model of etcd, in virtual time."""

from __future__ import annotations

from contextlib import AsyncExitStack

from trio.testing import MockClock

from core_log.files import MemoryFiles
from core_log.log_config import LogConfig
from core_log.replication.state import BEYOND_EPOCHS, LogState, encode, log_key
from routing.broker import open_broker
from routing.cluster.cluster import Cluster
from tests.routing.cluster.metadata.test_elections import start
from tests.routing.cluster.metadata.test_members import One, cluster, until
from tests.simulation.etcd_model import EtcdModel

LOG = "topic-a-0"


async def test_who_was_in_sync_says_so_again_when_etcd_was_put_back(autojump_clock: MockClock) -> None:
    """The leader by the snapshot lacks what was committed since."""
    model = EtcdModel()
    async with cluster(model) as nursery, AsyncExitStack() as brokers:
        ones: list[One] = []
        parts: list[Cluster] = []
        for broker_id in (1, 2):
            one, elections = await start(nursery, model, broker_id)
            ones.append(one)
            parts.append(Cluster(one.store, one.members, elections))
            await brokers.enter_async_context(open_broker(MemoryFiles(), cluster=parts[-1]))
        first, second = ((one.members.broker_id, one.members.epoch) for one in ones)
        snapshot = LogState(
            replicas=(2, 1), isr=(second, first), leader=2, leader_broker_epoch=second[1], leader_epoch=1
        )
        key = log_key(b"", LOG)
        await ones[0].store.change([], [(key, encode(snapshot))])
        for part in parts:
            await until(lambda part=part: part.state_of(LOG) is not None)  # type: ignore[misc]
            part.open_log(LOG, "logs/a-0", LogConfig())
        backup = model.revision
        latest = snapshot.with_isr((first,), ()).led_by(*first)
        await ones[0].store.change([], [(key, encode(latest))])
        await until(lambda: parts[0].role_of(LOG) is not None and parts[1].state_of(LOG) == latest)
        model.restore(backup)
        await until(lambda: all(part.leader_of(LOG)[1] > BEYOND_EPOCHS for part in parts))
        for part in parts:
            state = part.state_of(LOG)
            assert state is not None
            assert (state.leader, state.isr) == (1, (first,))
        assert parts[0].role_of(LOG) is not None
        assert parts[1].role_of(LOG) is None
