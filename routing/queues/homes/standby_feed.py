"""A standby that goes along with a home partition which another broker leads.

1. It is given what is committed, and only that: what a follower may have to cut off it never knew. One look takes all
   that the high watermark has passed in the meantime, from memory as a rule.
2. What its log has written, and memory has not any more, is read and folded in a thread. All of it is one task, so
   nothing else touches the standby; once the task has ended it is whoever's that ended it (`stop`).
3. Which of the queues that a log names are deleted is the topology's to say, and that may be behind the log: nothing is
   dropped unless who asks has caught up first (`Known`).
4. It has checkpoints of its own, as a leader has, so that a start need not read all of the log; and before its log
   begins where the leader's begins now, as what stands before that may be said nowhere else (ids, sizes, returns).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

import trio

from core_log.errors import CorruptBatch, OffsetOutOfRange
from core_log.files import BytesLike, Files
from core_log.partition_log import PartitionLog
from core_log.replica_log import ReplicaLog
from core_log.threads import in_thread
from core_log.whole_batches import readable_behind
from routing.queues.homes.checkpoints import encode_checkpoint, load_checkpoint
from routing.queues.homes.standby import Standby

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.02
_RETRY_S = 1.0
_READ_BYTES = 1 << 20
_UNFOLDED_MAX = 50_000
"""So many slabs and settlements are kept as they came, as much memory as 100 bytes each."""


class Known(NamedTuple):
    """The queues that are there, and from when on ids of messages matter; None: nobody knows which are not."""

    queue_ids: Collection[int] | None
    seen_since_ms: int = 0


class StandbyFeed:
    """See the module. `run` it until `stop`."""

    def __init__(
        self,
        files: Files,
        log: ReplicaLog,
        *,
        checkpoint_interval_bytes: int,
        save: Callable[[PartitionLog, bytes], None],
        known: Callable[[], Awaitable[Known]],
    ) -> None:
        """`save` is `Checkpoints.save`; `known` says which queues there are, as of now or later."""
        self.standby = Standby(log.log_start_offset)
        self._files = files
        self._log = log
        self._checkpoint_interval_bytes = checkpoint_interval_bytes
        self._save = save
        self._known = known
        self._unsaved_bytes = 0
        self._tried_for = 0
        """For this beginning of the leader's log a checkpoint was to be saved."""
        self._loaded = False
        self._scope = trio.CancelScope()
        self._over: trio.Event | None = None
        self._advanced = trio.Event()

    async def run(self) -> None:
        """Go along, until `stop`."""
        self._over = trio.Event()
        self._log.listeners.append(self._log_advanced)
        try:
            with self._scope:
                while True:
                    try:
                        await self._load()
                        await self._catch_up()
                    except (OSError, CorruptBatch, OffsetOutOfRange) as error:
                        if not self._log.closed:  # else its directory may be in the trash, and `stop` is near
                            logger.error("%s: its standby cannot go on: %s", self._log.directory, error)
                        if isinstance(error, CorruptBatch | FileNotFoundError):
                            self._do_without()  # what is damaged may go with it
                        await trio.sleep(_RETRY_S)
                    await self._something_committed()
        finally:
            self._log.listeners.remove(self._log_advanced)
            self._over.set()

    async def _something_committed(self) -> None:
        """What comes soon after is taken along."""
        if self._log.high_watermark <= self.standby.offset and not self._holds_up:
            self._advanced = trio.Event()
            await self._advanced.wait()
        await trio.sleep(_INTERVAL_S)

    def _log_advanced(self, log: PartitionLog) -> None:
        if log.high_watermark > self.standby.offset or self._holds_up:
            self._advanced.set()

    async def stop(self) -> Standby:
        """Go along no more; it is the caller's now."""
        self._scope.cancel()
        if self._over is not None:
            with trio.CancelScope(shield=True):
                await self._over.wait()
        return self.standby

    async def _load(self) -> None:
        if not self._loaded:
            found = await in_thread(load_checkpoint, self._files, self._log)
            self._loaded = True
            if found is not None:
                self.standby = found.standby
            self._log.needed_from = self.standby.offset

    async def _catch_up(self) -> None:
        log, standby = self._log, self.standby
        while not log.truncating and standby.offset < log.high_watermark:
            standby.offset = max(standby.offset, log.log_start_offset)
            try:
                await self._advance(log.high_watermark)
            except OffsetOutOfRange:
                if log.log_start_offset <= standby.offset:
                    raise
                continue  # it has gone since, as no queue needs it
            if standby.unfolded > _UNFOLDED_MAX and standby.is_defined:
                await self._fold(Known(None))
        due = self._unsaved_bytes >= self._checkpoint_interval_bytes or self._holds_up
        if due and standby.is_whole:
            self._tried_for = log.leader_start
            if standby.is_defined:
                await self._checkpoint(await self._known())
            else:
                self._do_without()

    def _do_without(self) -> None:
        """No checkpoint can be saved of what stands where the leader's log begins by now: this one follows it."""
        self._need_from(self._log.leader_start)

    def _need_from(self, offset: int) -> None:
        """What stands before that may go, where it has gone at the leader."""
        self._log.needed_from = offset
        self._log.follow_start(self._log.leader_start)

    @property
    def _holds_up(self) -> bool:
        """Whether the log is to begin where the leader's does, once a checkpoint is saved, which was not tried yet."""
        log = self._log
        return self._tried_for < log.leader_start <= self.standby.offset and log.leader_start > (log.needed_from or 0)

    async def _advance(self, end: int) -> None:
        """Take in a bite of what lies below `end`."""
        log, standby = self._log, self.standby
        batches = log.read(standby.offset, _READ_BYTES, before=end)
        if batches is None:
            before = standby.offset
            await in_thread(self._read_cold, end)
            if standby.offset == before:
                standby.offset = end  # a gap
            return
        self._apply(batches)
        if not batches:
            standby.offset = end  # a gap
        await trio.lowlevel.checkpoint()

    def _read_cold(self, end: int) -> None:
        self._apply(self._log.read_blocking(self.standby.offset, _READ_BYTES, before=end))

    def _apply(self, batches: list[BytesLike]) -> None:
        for batch in batches:
            self.standby.apply(batch)
        self._unsaved_bytes += sum(map(len, batches))

    async def finish(self, end: int, known: Known) -> Standby:
        """Take in all that the log has below `end`, committed or not, after `stop`: this broker leads it now, so that
        nothing of it is cut any more. What is damaged is left out if nobody else could lead it.

        Raises OSError, CorruptBatch, OffsetOutOfRange.
        """
        await self._load()
        log, standby = self._log, self.standby
        standby.offset = max(standby.offset, log.log_start_offset)
        while standby.offset < end:
            batches = log.read_replica(standby.offset, _READ_BYTES)
            if batches is None:
                try:
                    batches = await log.read_replica_cold(standby.offset, _READ_BYTES)
                except (CorruptBatch, FileNotFoundError) as error:
                    if log.is_whole_elsewhere:
                        raise
                    behind = await in_thread(readable_behind, log, standby.offset, end)
                    standby.leave_out(log, behind, error)
                    continue
                if not batches and log.written_offset < end:
                    await trio.sleep(0.001)  # not written yet, and not in memory any more
                    continue
            if not batches:
                break
            self._apply(batches)
            await trio.lowlevel.checkpoint()
        standby.finish(end)
        await self._fold(known)
        return standby

    async def _fold(self, known: Known) -> None:
        standby, log = self.standby, self._log
        queue_ids = standby.queue_ids if known.queue_ids is None else known.queue_ids

        def work() -> None:
            standby.fold(queue_ids, log.log_start_offset, seen_since_ms=known.seen_since_ms)

        await in_thread(work)

    async def close(self) -> None:
        """Write down how it stands, after `stop`, if it is not `finish`'s."""
        if self._unsaved_bytes and self.standby.is_whole and self.standby.is_defined:
            await self._checkpoint(Known(None))

    async def _checkpoint(self, known: Known) -> None:
        await self._fold(known)
        standby, log = self.standby, self._log
        try:
            await in_thread(lambda: self._save(log, encode_checkpoint(standby)))
            self._unsaved_bytes = 0
            self._need_from(standby.offset)
        except OSError as error:
            logger.warning("cannot save the checkpoint of %s: %s", log.directory, error)
