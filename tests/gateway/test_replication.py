"""Three brokers, a real etcd, real links: a log has a leader, loses it, gets another, and the first one comes back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from core_log.files import OsFiles
from core_log.log_config import LogConfig
from core_log.replica_log import ReplicaLog
from core_log.replication.isr import ReplicationConfig
from core_log.replication.leader import Leader
from core_log.replication.replica import Replica
from core_log.replication.state import LogState, decode, encode, log_key
from gateway.cluster import ClusterConfig, Membership, membership
from gateway.etcd_process import EtcdProcess
from gateway.listener import open_listener
from protocols.peer.config import PeerConfig
from routing.cluster.metadata.log_states import LogStates
from tests.gateway.test_member import LEASE_S
from tests.support.replica_node import LOG, Node, batch_of, bytes_of, running

KEY = log_key(b"", LOG)


async def until(condition: Callable[[], Any], seconds: float = 15) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.005)


class Broker:
    """A member with one replica."""

    def __init__(self, etcd: str, directory: Path, me: int) -> None:
        self.etcd, self.directory, self.me = etcd, directory, me
        self.scope = trio.CancelScope()
        self.node: Node
        self.part: Membership
        self.over = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        files = OsFiles(str(self.directory))
        files.make_directory("")
        config = ClusterConfig(name="replication", broker_id=self.me, etcd=self.etcd, lease_s=LEASE_S)
        peers = PeerConfig(secret="s", redial_ms_min=5, redial_ms_max=100)
        listener = open_listener("peer", "127.0.0.1", 0)
        with self.scope:
            async with AsyncExitStack() as stack:
                part = await stack.enter_async_context(membership(config, files, {"peer": listener.address}))
                node = running(self.directory, self.me, config=peers, logs=[], members=part.members, listener=listener)
                self.part, self.node = part, await stack.enter_async_context(node)
                nursery = await stack.enter_async_context(trio.open_nursery())
                states = LogStates(part.store, part.members, self.node.replicas, spawn=nursery.start_soon)
                states.add(self._replica())
                task_status.started()
                await trio.sleep_forever()
        self.over.set()

    def _replica(self) -> Replica:
        node, settings = self.node, LogConfig(tail_cache_bytes=1 << 20)
        log = ReplicaLog.open_replica(node.files, LOG, settings, node.flusher, wall_clock_ms=lambda: 0)
        return Replica(LOG, log, self.me, ReplicationConfig(), now_s=trio.current_time())

    @property
    def log(self) -> ReplicaLog:
        return self.node.log()

    @property
    def leads(self) -> bool:
        role = self.node.replicas.by_name[LOG].role
        return isinstance(role, Leader) and role.may_serve(trio.current_time(), self.part.store.lease_deadline)

    @property
    def state(self) -> LogState:
        entry = self.part.store.get(KEY)
        assert entry is not None
        return decode(entry.value or b"")

    async def produce(self, first: int) -> int:
        end = self.node.append(batch_of(first, 10, 100))
        self.node.end_turn()
        with trio.fail_after(10):
            await self.log.wait_committed(end)
        return end


def isr(brokers: dict[int, Broker]) -> set[int]:
    return {me for me, _ in next(iter(brokers.values())).state.isr}


async def test_a_log_outlives_its_leader_and_takes_it_back(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        brokers = {me: Broker(etcd.address, tmp_path / str(me), me) for me in (1, 2, 3)}
        for broker in brokers.values():
            await nursery.start(broker.run)
        await until(lambda: all(len(broker.part.members.brokers) == 3 for broker in brokers.values()))
        members = tuple((me, broker.part.members.epoch) for me, broker in brokers.items())
        state = LogState(replicas=(1, 2, 3), isr=members, min_insync=2)
        await brokers[1].part.store.change([], [(KEY, encode(state))])
        await until(lambda: brokers[1].leads)
        for number in range(5):
            end = await brokers[1].produce(number * 10)
        brokers[1].scope.cancel()
        await brokers[1].over.wait()
        del brokers[1]
        await until(lambda: any(broker.leads for broker in brokers.values()))
        leader = next(broker for broker in brokers.values() if broker.leads)
        assert leader.log.log_end_offset == end, "all that was committed"
        assert leader.state.leader_epoch == 2
        await until(lambda: isr(brokers) == {2, 3})
        end = await leader.produce(100)
        brokers[1] = Broker(etcd.address, tmp_path / "1", 1)
        await nursery.start(brokers[1].run)
        await until(lambda: isr(brokers) == {1, 2, 3})
        end = await leader.produce(200)
        await until(lambda: all(broker.log.high_watermark == end for broker in brokers.values()))
        assert len({bytes_of(broker.log) for broker in brokers.values()}) == 1
        nursery.cancel_scope.cancel()
