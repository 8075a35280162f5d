"""What is true of the logs of a cluster, whoever looks: what was appended, committed and settled.

A `WatchedLog` is a broker's real log that tells a `Truth` what happens to it. Home partitions are read here by other
code than the engine's: records one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from struct import pack
from typing import TYPE_CHECKING, Any

from core_log.files import BytesLike
from core_log.record_batch import iterate_records, parse_header
from core_log.replica_log import ReplicaLog
from core_log.truncation import Cut
from routing.queues.settlement import DESTINATIONS_KEY, SETTLED_KEY, decode_destinations, decode_settled
from tests.simulation.brokers.virtual import CURRENT

if TYPE_CHECKING:
    from tests.simulation.brokers.process import Process

Entry = tuple[int, int, bytes]
"""Where a batch ends, its epoch, its bytes."""


class WatchedLog(ReplicaLog):
    """A real log; `mirror` is the batches that it should have."""

    mirror: list[Entry]
    truth: Truth
    process: Process
    verified = 0
    """So many batches of the mirror are known to be what all others have below their watermarks."""
    seen = 0
    """The watermark, then."""

    @classmethod
    def open_replica(cls, *arguments: Any, **options: Any) -> WatchedLog:
        """See `ReplicaLog`."""
        log = super().open_replica(*arguments, **options)
        assert isinstance(log, WatchedLog)
        process = CURRENT.get()
        assert process is not None
        log.process, log.mirror = process, entries_of(log)
        log.truth = process.world.truths[log.directory]
        log.listeners.append(log.truth.look)
        process.logs[log.directory] = log
        log.truth.look(log)
        return log

    def append_replica(self, batch: BytesLike) -> int:
        end = super().append_replica(batch)
        self._mirrored((end, self.epochs.latest, bytes(batch)))
        return end

    def append(self, batch: BytesLike, *, base_offset: int | None = None, let_in: bool = False) -> int:
        base = super().append(batch, base_offset=base_offset, let_in=let_in)
        patched = b"".join((pack(">q", base), batch[8:12], pack(">i", self.leader_epoch), batch[16:]))
        if not self.process.ended:
            self.truth.led(self)
            self._mirrored((self.log_end_offset, self.leader_epoch, patched))
        return base

    def _mirrored(self, entry: Entry) -> None:
        if not self.process.ended:
            self.mirror.append(entry)
            self.truth.appended(self, entry)

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        if not self.process.ended:
            self.truth.begins(self, epoch)

    def shorten(self, cut: Cut) -> None:
        super().shorten(cut)
        self.mirror = [entry for entry in self.mirror if entry[0] <= self.log_end_offset]
        self.verified = min(self.verified, len(self.mirror))

    def started_anew(self, cut: Cut) -> None:
        self.mirror, self.verified, self.seen = [], 0, 0
        super().started_anew(cut)


def entries_of(log: ReplicaLog) -> list[Entry]:
    """What the files of a log have, whatever its disk refuses."""
    files: Any = log.files
    before = files.failing, files.hook, files.looked_at
    files.failing, files.hook, files.looked_at = {}, None, True
    offset, found = log.log_start_offset, []
    while batches := log.read_blocking(offset, 1 << 20, unsynced=True):
        for batch in batches:
            header = parse_header(batch)
            offset = header.next_offset
            found.append((offset, header.leader_epoch, bytes(batch)))
    files.failing, files.hook, files.looked_at = before
    return found


class Truth:
    """Of one log; `fail` is told what cannot be."""

    def __init__(self, name: str, fail: Callable[[str], None]) -> None:
        self.name = name
        self.fail = fail
        self.leaders: dict[int, Process] = {}
        self.appended_by_place: dict[tuple[int, int], bytes] = {}
        self.committed: dict[int, Entry] = {}
        self.committed_end = 0
        self.offsets_of: dict[bytes, list[int]] = defaultdict(list)
        """Where messages are committed, by their bodies."""
        self.settled: dict[int, set[int]] = defaultdict(set)
        """Offsets whose settlements are committed, by queue id."""
        self.sets: dict[int, tuple[int, ...]] = {}
        self.begun_epoch = self.served_epoch = 0

    # ---- what logs tell

    def led(self, log: WatchedLog) -> None:
        """A leader has appended."""
        there = self.leaders.setdefault(log.leader_epoch, log.process)
        if there is not log.process:
            self.fail(f"2: {log.process.name} appends to {self.name} in epoch {log.leader_epoch}, {there.name} did too")

    def begins(self, log: WatchedLog, epoch: int) -> None:
        """A leader begins an epoch: it has all that was committed in those before, unless it slept through its own."""
        if epoch < self.begun_epoch:
            return
        self.begun_epoch = epoch
        mine = {parse_header(batch).base_offset: batch for _, _, batch in log.mirror}
        for base, (end, committed_in, batch) in self.committed.items():
            if end > log.log_start_offset and committed_in < epoch and mine.get(base) != batch:
                self.fail(f"4: {log.process.name} begins epoch {epoch} of {self.name} and lacks offset {base}")

    def appended(self, log: WatchedLog, entry: Entry) -> None:
        """A batch is in a log, on its way to the disk."""
        base = parse_header(entry[2]).base_offset
        if self.appended_by_place.setdefault((entry[1], base), entry[2]) != entry[2]:
            self.fail(f"3: {log.process.name}: two batches of {self.name} at offset {base}, epoch {entry[1]}")

    def look(self, log: Any) -> None:
        """A log's watermark may have moved."""
        if log.process.ended:
            return
        watermark, mirror = log.high_watermark, log.mirror
        if watermark == log.seen:
            return
        if watermark < log.seen:
            self.fail(f"5: {log.process.name}: the watermark of {self.name} fell from {log.seen} to {watermark}")
        if not log.log_start_offset <= watermark <= log.local_committed:
            self.fail(
                f"5: {log.process.name}, {self.name}: {log.log_start_offset} <= {watermark} <= {log.local_committed}"
            )
        log.seen = watermark
        stop = bisect_right(mirror, watermark, key=lambda entry: entry[0])
        for entry in mirror[log.verified : stop]:
            self._commit(log, entry)
        log.verified = max(stop, log.verified)

    def _commit(self, log: WatchedLog, entry: Entry) -> None:
        header = parse_header(entry[2])
        known = self.committed.get(header.base_offset)
        if known is not None:
            if known != entry:
                self.fail(f"3: {log.process.name}: other bytes of {self.name} at {header.base_offset}")
            return
        if header.base_offset < self.committed_end:
            self.fail(f"3: {log.process.name}: {self.name} has a batch at {header.base_offset}, others have not")
        self.committed[header.base_offset] = entry
        self.committed_end = entry[0]
        for record in iterate_records(entry[2]):
            if not header.is_control:
                if record.key is not None and record.value is not None:
                    self.offsets_of[bytes(record.value)].append(record.offset)
            elif record.key == DESTINATIONS_KEY:
                set_id, queue_ids = decode_destinations(bytes(record.value or b""))
                self.sets[set_id] = queue_ids
            elif record.key == SETTLED_KEY:
                for queue_id, first, count in decode_settled(bytes(record.value or b"")):
                    self.settled[queue_id].update(range(first, first + count))

    # ---- what leaders do with it

    def serves(self, log: WatchedLog) -> None:
        """A leader gives something out, now. Only one may, and none of an older epoch after one of a newer."""
        process, epoch = log.process, log.leader_epoch
        if epoch < self.served_epoch:
            self.fail(f"7: {process.name} serves {self.name} in epoch {epoch}, another did in {self.served_epoch}")
        self.served_epoch = max(self.served_epoch, epoch)
        for other in process.world.processes():
            if other is not process and other.may_serve(self.name) and not other.is_stopped:
                self.fail(f"7: {process.name} serves {self.name} in epoch {epoch}, and {other.name} may")

    # ---- at the end

    def compare(self, logs: list[WatchedLog]) -> None:
        """All replicas have the same, on their disks too."""
        for log in logs:
            mine = {parse_header(batch).base_offset: (end, epoch, batch) for end, epoch, batch in entries_of(log)}
            for base, entry in self.committed.items():
                if entry[0] > log.log_start_offset and mine.get(base) != entry:
                    self.fail(f"1: {log.process.name} lacks {self.name} at {base} in the end")
