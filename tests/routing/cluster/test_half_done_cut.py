"""A follower's disk refuses in the middle of a cut, and the metadata wants this broker to lead before it is done."""

from __future__ import annotations

import errno

import pytest
import trio

from core_log.errors import LogUnavailable
from core_log.files import FaultyFiles, MemoryFiles
from core_log.log_config import LogConfig
from core_log.log_flusher import LogFlusher
from core_log.replication.follower import Follower
from core_log.replication.isr import ReplicationConfig
from core_log.replication.leader import Leader
from core_log.replication.messages import Diverging, Refused
from core_log.replication.replica import Replica
from core_log.replication.state import LogState
from routing.cluster.replicas import Replicas
from tests.core_log.helpers import flush, make_batch
from tests.core_log.test_replica_log import content, open_replica
from tests.support.home_cluster import until

STATE = LogState(replicas=(1, 2), isr=((1, 10), (2, 20)), leader=2, leader_broker_epoch=20, leader_epoch=1)


@pytest.mark.parametrize("answer", ["diverging", "out of range"])
async def test_nothing_is_appended_behind_the_hole(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It led, and what it confirmed was gone with the next start."""
    monkeypatch.setattr("routing.cluster.replicas._RETRY_S", 0.001)
    memory = MemoryFiles()
    files = FaultyFiles(memory)
    flusher = LogFlusher()
    async with trio.open_nursery() as nursery:
        await nursery.start(flusher.run)
        log = open_replica(files, LogConfig(segment_bytes=300), flusher=flusher)
        for offset in range(20):
            log.append_replica(make_batch([b"x" * 50], base_offset=offset, epoch=0))
        log.sync_to(20)
        await flusher.drain(log)
        log.advance_high_watermark(6)
        replicas = Replicas(clock=trio.current_time, spawn=nursery.start_soon, want_turn=lambda: None)
        replica = Replica("x", log, 1, ReplicationConfig(), now_s=0.0)
        replica.registered(10)
        replicas.add(replica)
        replicas.on_state("x", STATE, 100)
        role = replica.role
        assert isinstance(role, Follower)
        ends = (log.log_end_offset, log.last_epoch)
        if answer == "diverging":
            role.on_diverging(Diverging("x", 1, 0, 10, ends))
        else:
            role.on_refused(Refused("x", "out_of_range", 2, 1, 40, ends))
        removed, bad = [], True

        def hook(operation: str, path: str) -> None:
            if bad and operation == "remove":
                removed.append(path)
                if len(removed) > 1:
                    raise OSError(errno.EIO, "bad", path)

        files.hook = hook
        replicas.end_turn()
        await until(lambda: len(removed) > 1)
        replicas.on_state("x", STATE.led_by(1, 10), 101)
        assert replica.role is role
        with pytest.raises(LogUnavailable):
            log.append_replica(make_batch([b"behind"], base_offset=log.log_end_offset, epoch=2))
        await until(lambda: len(removed) > 3)
        assert replica.role is role
        bad = False
        await until(lambda: isinstance(replica.role, Leader))
        log.append(make_batch([b"anew"]))
        flush(log)
        first, last = (0, 10) if answer == "diverging" else (40, 40)
        for found in (log, open_replica(memory.crash(), log.config)):
            assert (found.log_start_offset, found.log_end_offset) == (first, last + 1)
            assert len(content(found, cold=True)) == last + 1 - first
            assert found.verify() == []
        nursery.cancel_scope.cancel()
