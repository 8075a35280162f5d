"""The other side of a replicated log: it asks, takes what it gets as it is, and cuts off what its leader does not have.

1. It cuts only where epochs say so (KIP-101), again and again until both sides' last epochs agree (KIP-279). The high
   watermark never decides: it may be behind what is committed. Nothing below it is cut, but of what was written before
   an unclean election: that is lost to all.
2. Each position that it sends is a promise not to lead the log for `grant_s`.
3. Its high watermark is the leader's, as far as its disk has the bytes. What was appended here before somebody else
   led, and that one has committed, is known to be so without this disk (`ReplicaLog.on_known`): it may refuse.
4. Only what follows its end is appended: what came before may have been dropped.
5. A disk that refuses says so in the next position; nothing is asked for and nothing kept meanwhile.
6. What its leader has sent and cannot be taken, because it is damaged there, is asked for again with the next position
   that is due anyway, not at once: it is sent from the same disk.
7. A little that it has got, and that nobody waits for, is no news by itself (`position`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from core_log.batch_header import parse_header, validate
from core_log.errors import CorruptBatch, LogUnavailable
from core_log.files import BytesLike
from core_log.replication.messages import Batches, Diverging, Position, Refused

if TYPE_CHECKING:
    from core_log.replica_log import ReplicaLog

logger = logging.getLogger(__name__)


class Follower:
    """See the module."""

    def __init__(self, name: str, log: ReplicaLog, leader: int, leader_epoch: int, *, unclean_epoch: int = 0) -> None:
        self.name, self.log, self.leader, self.epoch = name, log, leader, leader_epoch
        self.unclean_epoch = unclean_epoch
        self.cut_to: int | None = None
        self.restart_at: int | None = None
        """What `repair` has to do before anything can be asked for."""
        self._first: tuple[BytesLike, ...] = ()
        """What to append after that."""
        self.refused: Refused | None = None
        self.retries = 0
        self._leader_watermark = 0
        self._tag = 0
        self._missed = self._is_damaged = False
        self._told: tuple[tuple[int, int, int, int, bool], bool] | None = None
        self.unsaid_bytes = 0
        """Appended since the last position."""

    @property
    def needs_repair(self) -> bool:
        """Whether `repair` is to be called."""
        return self.cut_to is not None or self.restart_at is not None

    @property
    def repair_due(self) -> str:
        """What it is to do, in words."""
        what = f"cut to {self.cut_to}" if self.cut_to is not None else f"begun anew at {self.restart_at}"
        return f"ends at {self.log.log_end_offset}, is to be {what} as its leader's"

    def link_up(self) -> None:
        """A new link to the leader: it knows nothing yet."""
        self._tag = 0
        self._missed = self._is_damaged = False
        self._told = self.refused = None

    def position(self, *, again: bool = False, little_bytes: int = 0) -> Position | None:
        """What to tell the leader; None while the log is cut, and when there is nothing new (unless `again`): what was
        appended and is not to be reported yet is not, where it is less than `little_bytes`.
        """
        log = self.log
        if self.needs_repair or log.truncating or log.closed:
            return None
        if (self._is_damaged or self.refused is not None) and not again:
            return None
        news = (
            log.log_end_offset,
            log.last_epoch,
            log.local_committed,
            log.log_start_offset,
            log.error is not None,
        )
        if not again and self._told is not None and self._missed == self._told[1]:
            told = self._told[0]
            if news == told or (news[1:] == told[1:] and self.unsaid_bytes < little_bytes):
                return None
        self._told = news, self._missed
        self.unsaid_bytes = 0
        return Position(self.name, self.epoch, *news, self._tag, self._missed)

    def on_batches(self, message: Batches) -> None:
        """Append what came. What cannot be taken is asked for again."""
        if message.leader_epoch != self.epoch or self.needs_repair or self.log.truncating:
            return
        self._tag = message.tag
        self.refused = None
        log = self.log
        self._missed = message.after != log.log_end_offset
        if message.batches and not self._missed:
            if log.log_start_offset == log.log_end_offset > parse_header(message.batches[0]).base_offset:
                # The leader's log starts within a batch, and this one where that does.
                self.restart_at = parse_header(message.batches[0]).base_offset
                self._first = message.batches
                return
            self._append(message.batches)
        if not self._missed:
            log.skip_to(message.end)
        self._leader_watermark = message.high_watermark
        if log.on_known is not None and not self._missed and message.high_watermark > log.local_committed:
            log.on_known(min(message.high_watermark, log.log_end_offset))
        log.sync_to(message.sync_before)
        self.log_advanced()
        log.follow_start(message.log_start)

    def _append(self, batches: tuple[BytesLike, ...]) -> None:
        try:
            for batch in batches:
                header = validate(batch, may_be_empty=True)
                if header.leader_epoch > self.epoch:  # no CRC is over that
                    raise CorruptBatch(f"a batch of epoch {header.leader_epoch} in epoch {self.epoch}")
                self.log.append_replica(batch)
                self.unsaid_bytes += len(batch)
                self._is_damaged = False
        except LogUnavailable:
            self._missed = True
        except CorruptBatch as error:
            if not self._is_damaged:
                logger.error("%s: broker %d sent what cannot be taken: %s", self.name, self.leader, error)
            self._missed = self._is_damaged = True

    def log_advanced(self) -> None:
        """The log was written or synced."""
        self.log.advance_high_watermark(self._leader_watermark)

    def on_diverging(self, message: Diverging) -> None:
        """Note where to cut: at the end of the leader's epoch, or of ours, whichever comes first."""
        if not self._concerns(message):
            return
        log = self.log
        own = log.epochs.end_of(message.epoch, log.log_end_offset)
        first = log.epochs.entries[0][1] if log.epochs.entries else log.log_start_offset
        self.cut_to = max(min(message.end_offset, own[1] if own is not None else first), log.log_start_offset)

    def _concerns(self, message: Diverging | Refused) -> bool:
        """Whether it speaks of the log as it is: what was appended since may be reported, and counted on."""
        if message.leader_epoch != self.epoch or self.needs_repair or self.log.truncating:
            return False
        return message.answers == (self.log.log_end_offset, self.log.last_epoch)

    def ask_again(self) -> None:
        """What was refused may be granted by now."""
        self.refused = self._told = None
        self.retries += 1

    def on_refused(self, message: Refused) -> None:
        """Begin anew where the leader's log does, or wait for the metadata to say who leads."""
        if message.reason == "fenced_epoch" and message.leader_epoch <= self.epoch:
            return  # it is about a position of the epoch before
        if message.reason != "out_of_range":
            self.refused = message
        elif self._concerns(message):
            self.restart_at = message.log_start
            self._first = ()

    async def repair(self) -> None:
        """Do what is to be done to the log. Raises BelowHighWatermark, LogUnavailable, OSError; then it is still to be
        done, but for BelowHighWatermark: this replica is not one of the leader's log.
        """
        if self.restart_at is not None:
            await self.log.restart_at(self.restart_at)
        elif self.cut_to is not None:
            if self.log.last_epoch < self.unclean_epoch:
                await self.log.truncate_committed(self.cut_to)
            else:
                await self.log.truncate(self.cut_to)
            self.log.epochs.cut(self.log.log_end_offset)
        self.cut_to = self.restart_at = None
        self._told = None
        first, self._first = self._first, ()
        self._append(first)
