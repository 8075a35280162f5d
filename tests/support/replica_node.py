"""A broker as far as its replicas and its links go: real logs on real files, real sockets, metadata that a test gives.

    python -m tests.support.replica_node DIRECTORY ID SECRET      a process of its own, told what to do line by line

Each line of its standard input is a JSON array, and is answered with a line: ["peers", {id: address}],
["state", leader, leader epoch, [[id, epoch]...], minimum], ["append", first, count, size], ["status"].
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import structlog
import trio

from core_log import checkpoint, high_watermarks
from core_log.files import FaultyFiles, OsFiles
from core_log.log_config import LogConfig
from core_log.log_flusher import LogFlusher
from core_log.record_batch import BatchBuilder
from core_log.replica_log import ReplicaLog
from core_log.replication.isr import ReplicationConfig
from core_log.replication.leader import Leader
from core_log.replication.replica import Replica
from core_log.replication.state import LogState
from delay.timer_service import TimerService
from gateway.config import Limits
from gateway.listener import Listener, open_listener
from gateway.outbox import Outboxes
from gateway.peers import MembersDirectory, Peers, check_epoch
from protocols.peer.config import PeerConfig
from protocols.peer.connection import PeerId
from routing.cluster.metadata.members import Members
from routing.cluster.replicas import Replicas

LOG = "topics/t-0"
LATELY_MS = (time.time_ns() // 86_400_000_000_000 - 2) * 86_400_000
"""Two days ago, the same in all processes: what is older than retention allows is gone with the first look at it."""


def batch_of(first: int, count: int, size: int) -> bytes:
    """Records that tell one from another."""
    builder = BatchBuilder(0, 0, LATELY_MS)
    builder.add_run(0, None, [b"%08d" % number + b"." * size for number in range(first, first + count)])
    return builder.build()


class StaticDirectory:
    """Who is who, as a test says."""

    def __init__(self, me: PeerId) -> None:
        self.listeners: list[Callable[[], None]] = []
        self.me: PeerId | None = me
        self.addresses: Mapping[int, str] = {}
        self.epochs: dict[int, int] = {}

    def admit(self, peer: PeerId) -> None:
        check_epoch(peer, self.epochs.get(peer.broker_id, 0))

    def tell(self, addresses: Mapping[int, str]) -> None:
        """Everybody's address."""
        assert self.me is not None
        self.addresses = {broker: where for broker, where in addresses.items() if broker != self.me.broker_id}
        for listener in self.listeners:
            listener()


class Node:
    """See the module."""

    def __init__(
        self, directory: Path, me: int, nursery: trio.Nursery, *, config: PeerConfig, epoch: int, logs: list[str],
        log_config: LogConfig, members: Members | None = None, listener: Listener | None = None,
    ) -> None:  # fmt: skip
        self.me, self.epoch = me, epoch
        self.files = FaultyFiles(OsFiles(str(directory)))
        self.files.make_directory("")
        self.directory = StaticDirectory(PeerId("cluster", me, epoch, f"d{me}"))
        self.flusher = LogFlusher(retry_interval_s=0.1)
        self.timers = TimerService()
        limits = Limits(close_linger_ms=200)
        self.outboxes = Outboxes(limits, nursery.start_soon)
        self.turns = 0
        self.replicas = Replicas(
            clock=trio.current_time, spawn=nursery.start_soon, want_turn=self.outboxes.want_turn, read_bytes_max=1 << 20
        )
        self.flusher.after_turn = self.timers.after_turn = self.end_turn
        self.listener = listener or open_listener("peer", "127.0.0.1", 0)
        self.address = self.listener.address
        self.peers = Peers(
            config,
            self.directory if members is None else MembersDirectory(members),
            self.replicas,
            limits=limits,
            outboxes=self.outboxes,
            timers=self.timers,
            end_turn=self.end_turn,
            has_room=lambda: self.flusher.unflushed_bytes <= self.flusher.unflushed_bytes_max,
        )
        saved = high_watermarks.load(self.files, "")
        for name in logs:
            log = ReplicaLog.open_replica(
                self.files, name, log_config, self.flusher, wall_clock_ms=lambda: 0, high_watermark=saved.get(name, 0)
            )
            replica = Replica(name, log, me, ReplicationConfig(), now_s=trio.current_time())
            self.replicas.add(replica)
        self.replicas.registered(epoch)

    def end_turn(self) -> None:
        """What a broker does when a turn ends, after its logs were written to."""
        self.turns += 1
        self.replicas.end_turn()
        self.outboxes.flush()

    def log(self, name: str = LOG) -> ReplicaLog:
        """A log."""
        return self.replicas.by_name[name].log

    def append(self, batch: bytes, name: str = LOG, *, wait: bool = True) -> int:
        """What a producer's request does within a turn; where the log ends then."""
        log = self.log(name)
        assert isinstance(self.replicas.by_name[name].role, Leader)
        log.append(batch)
        if wait:
            log.request_sync()
        return log.log_end_offset

    def state(
        self,
        leader: int,
        leader_epoch: int,
        isr: Mapping[int, int],
        minimum: int = 1,
        *,
        replicas: tuple[int, ...] = (),
    ) -> None:
        """What the metadata says of all logs from now on."""
        for name, replica in self.replicas.by_name.items():
            found = LogState(
                replicas=replicas or tuple(isr),
                isr=tuple(isr.items()),
                leader=leader,
                leader_broker_epoch=isr[leader],
                leader_epoch=leader_epoch,
                min_insync=minimum,
            )
            self.replicas.on_state(name, found, replica.revision + 1)
        self.end_turn()

    def close(self) -> None:
        """A clean stop."""
        for replica in self.replicas.by_name.values():
            replica.log.close()


@asynccontextmanager
async def running(
    directory: Path,
    me: int,
    *,
    config: PeerConfig | None = None,
    epoch: int = 1,
    logs: list[str] | None = None,
    log_config: LogConfig | None = None,
    **also: Any,
) -> AsyncIterator[Node]:
    """A node until the block ends."""
    async with trio.open_nursery() as nursery:
        settings = log_config or LogConfig(tail_cache_bytes=8 << 20)
        names = [LOG] if logs is None else logs
        node = Node(
            directory,
            me,
            nursery,
            config=config or PeerConfig(),
            epoch=epoch,
            logs=names,
            log_config=settings,
            **also,
        )
        await nursery.start(node.flusher.run)
        nursery.start_soon(node.timers.run)
        nursery.start_soon(node.outboxes.run, node.end_turn)
        await nursery.start(node.peers.run, node.listener)
        try:
            yield node
        finally:
            nursery.cancel_scope.cancel()
            node.close()


def bytes_of(log: ReplicaLog) -> bytes:
    """All that is written, as it lies in the files."""
    found = b""
    for segment in log.segments:
        if segment.written_bytes:
            file = log.files.open(segment.log_path, create=False)
            found += file.pread(segment.written_bytes, 0)
            file.close()
    return found


async def main(directory: Path, me: int, secret: str) -> None:
    """The process."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    files = OsFiles(str(directory))
    files.make_directory("")
    epoch = int(checkpoint.load(files, "starts") or b"0") + 1
    checkpoint.save(files, "starts", b"%d" % epoch)
    config = PeerConfig(secret=secret)
    async with running(directory, me, config=config, epoch=epoch) as node:
        await say({"address": node.address, "epoch": epoch})
        async for line in lines():
            what, *rest = json.loads(line)
            if what == "state":
                node.state(rest[0], rest[1], dict(rest[2]), rest[3])
            elif what == "peers":
                node.directory.tell({int(broker): address for broker, address in rest[0].items()})
            elif what == "append":
                first, count, size = rest
                for number in range(first, first + count, 100):
                    node.append(batch_of(number, min(100, first + count - number), size))
                    node.end_turn()
                    await trio.lowlevel.checkpoint()
            log = node.log()
            await say({
                "end": log.log_end_offset,
                "committed": log.high_watermark,
                "written": log.written_offset,
                "digest": sha256(bytes_of(log)).hexdigest(),
            })  # fmt: skip


async def lines() -> AsyncIterator[bytes]:
    """Standard input, line by line."""
    while line := await trio.to_thread.run_sync(sys.stdin.buffer.readline, abandon_on_cancel=True):
        yield line


async def say(what: Any) -> None:
    """A line to whoever started this."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
