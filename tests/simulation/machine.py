"""What brokers of the simulation are made of besides their process: a log that is watched, a machine, links."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack
from typing import TYPE_CHECKING

import msgspec

from core_log.files import BytesLike, MemoryFiles
from core_log.replica_log import ReplicaLog
from core_log.truncation import Cut

if TYPE_CHECKING:
    from tests.simulation.broker import Process


class SimLog(ReplicaLog):
    """A real log; `mirror` is the batches that it should have, for whoever checks."""

    mirror: list[tuple[int, int, bytes]]
    changes = 0
    """How often its end was cut."""

    def append_replica(self, batch: BytesLike) -> int:
        end = super().append_replica(batch)
        self.mirror.append((end, self.epochs.latest, bytes(batch)))
        return end

    def append(self, batch: BytesLike, *, base_offset: int | None = None, let_in: bool = False) -> int:
        base = super().append(batch, base_offset=base_offset, let_in=let_in)
        patched = b"".join((pack(">q", base), batch[8:12], pack(">i", self.leader_epoch), batch[16:]))
        self.mirror.append((self.log_end_offset, self.leader_epoch, patched))
        return base

    def shorten(self, cut: Cut) -> None:
        super().shorten(cut)
        self.mirror = [entry for entry in self.mirror if entry[0] <= self.log_end_offset]
        self.changes += 1

    def started_anew(self, cut: Cut) -> None:
        self.mirror = []
        super().started_anew(cut)


class Machine:
    """What stays when a process ends."""

    def __init__(self, broker: int, rate: float) -> None:
        self.broker = broker
        self.rate = rate
        self.disk = MemoryFiles()
        self.boot = 0
        self.slow_s = 0.001
        self.failing: dict[str, int] = {}
        self.room_bytes: int | None = None
        self.process: Process | None = None
        self.dropped: dict[str, int] = {}
        """How often it has moved a log aside."""


class Notes(msgspec.Struct):
    """What a broker keeps on its disk about itself."""

    boot: int
    lost: list[str]
    lease: int | None


class Link:
    """From a follower's broker to a leader's; in order. Either side may have given it up."""

    def __init__(self, dialer: Process, acceptor: Process, epoch: int) -> None:
        self.ends = (dialer, acceptor)
        self.epoch = epoch
        self.open = [True, True]
        self.heard_s = [dialer.local_s(), acceptor.local_s()]
        self.arrives_s = [0.0, 0.0]
        self.held: tuple[list[Callable[[], None]], list[Callable[[], None]]] = ([], [])
