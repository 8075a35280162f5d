"""Idempotent producers of one partition, over restarts and changes of leader.

1. What is known is worked out when the first batch of such a producer comes, from the file of last time and the batches
   behind what that speaks of; and again when the log has another epoch: others may have led it meanwhile.
2. A log of one broker that has no file never had such a batch: the file is there before the first one is appended.
3. The file is written again when a segment is full, so that no more than one has to be read, and at a clean stop if
   it lacks more than is read in no time. One that speaks of what was cut off since is not believed; an older one, which
   a crash brings back, costs reading, as does one that is damaged.
4. What cannot be read of the log, and that nobody else has, may have been any producer's: all that was known before it
   is forgotten, and they go on with any number.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial

import trio

from core_log import checkpoint
from core_log.batch_header import BatchHeader, parse_header
from core_log.errors import CorruptBatch, LogUnavailable
from core_log.files import BytesLike
from core_log.partition_log import PartitionLog
from core_log.producer_states import ProducerStates
from core_log.replica_log import ReplicaLog
from core_log.threads import in_thread
from core_log.transaction_marker import coordinator_epoch_of
from core_log.wall_clock import wall_clock_ms
from core_log.whole_batches import whole_batches

logger = logging.getLogger(__name__)

_UNKNOWN = -1
_AT_ONCE = 8
_READ_AGAIN_BYTES = 64 << 10
FORGOTTEN_MS = 24 * 3600 * 1000
"""A producer that sends nothing for so long is forgotten."""


class Producers:
    """See the module."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._states = ProducerStates()
        self._epoch = _UNKNOWN
        self._segment = _UNKNOWN
        """The base of the segment that was the last one when the file was written, and how far that went."""
        self._position = 0
        self._damage_said = False
        self._loading = trio.Lock()

    @property
    def _path(self) -> str:
        return f"{self._log.directory}/producers"

    async def states(self) -> ProducerStates:
        """What is known; `note` what is appended by it in the same turn. Raises LogUnavailable."""
        log = self._log
        while self._epoch != log.leader_epoch:
            async with self._loading:
                epoch = log.leader_epoch
                if self._epoch != epoch:
                    await log.wait_written(log.log_end_offset)
                    try:
                        self._states = await in_thread(self._load)
                        await self._write()
                        if not log.syncs_names:  # rule 2
                            await in_thread(log.files.sync_directory, log.directory)
                    except (OSError, CorruptBatch) as error:
                        raise LogUnavailable(f"{log.directory}: {error}") from None
                    self._epoch = epoch
        return self._states

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """A batch was appended."""
        self._states.note(header, base_offset, wall_clock_ms())

    def note_marker(self, header: BatchHeader, coordinator_epoch: int, base_offset: int) -> None:
        """The end of a transaction was appended."""
        self._states.note_marker(header, coordinator_epoch, base_offset, wall_clock_ms())

    def _load(self) -> ProducerStates:
        log = self._log
        states = self._saved()
        states.offset = max(states.offset, log.log_start_offset)
        now_ms = wall_clock_ms()
        lost: list[int] = []

        def damaged(offset: int, behind: int, error: Exception) -> None:
            if log.is_whole_elsewhere:
                raise error
            lost.append(behind)
            text = "%s: what producers sent up to offset %d is forgotten, as it cannot be read at offset %d: %s"
            logger.error(text, log.directory, behind, offset, error)

        for batch in whole_batches(log, states.offset, damaged):
            if lost:
                states, lost = ProducerStates(lost[-1]), []
            header = parse_header(batch)
            if header.producer_id >= 0:
                _take(states, header, batch, now_ms)
        if lost:
            states = ProducerStates(log.written_offset)
        states.offset = max(states.offset, log.written_offset)
        return states

    def _saved(self) -> ProducerStates:
        """What the file says; without one that is believed, nothing, from where on there may be such batches."""
        log = self._log
        try:
            content = checkpoint.read(log.files, self._path)
            if content is None and not isinstance(log, ReplicaLog):
                return ProducerStates(log.log_end_offset)
            found = None if content is None else self._believed(content)
        except ValueError as error:
            found = None
            if not self._damage_said:
                logger.warning("%s, the log is read", error)
            self._damage_said = True
        return ProducerStates(log.log_start_offset) if found is None else found

    def _believed(self, content: bytes) -> ProducerStates | None:
        """Raises ValueError."""
        log = self._log
        states, epoch = ProducerStates.decode(content)
        found = log.epochs.end_of(epoch, log.log_end_offset)
        return states if found is not None and found[0] == epoch and states.offset <= found[1] else None

    async def _write(self) -> None:
        log = self._log
        self._segment, self._position = log.segments[-1].base_offset, log.segments[-1].size
        content = self._states.encode(log.epochs.latest)
        await in_thread(partial(checkpoint.save, log.files, self._path, content, sync_name=False))

    @property
    def is_due(self) -> bool:
        """The file is to be written again."""
        return self._knows and self._segment != self._log.segments[-1].base_offset

    @property
    def _knows(self) -> bool:
        return self._epoch == self._log.leader_epoch and not self._log.closed

    async def save(self) -> None:
        """Write the file, if it lacks more than is read in no time. What cannot be written is logged."""
        if not self._knows:
            return
        last = self._log.segments[-1]
        if last.base_offset == self._segment and last.size - self._position <= _READ_AGAIN_BYTES:
            return
        self._states.forget(wall_clock_ms() - FORGOTTEN_MS)
        self._states.offset = max(self._states.offset, self._log.written_offset)
        try:
            await self._write()
        except OSError as error:
            logger.warning("%s cannot be saved: %s", self._path, error)

    @property
    def are_known(self) -> bool:
        """`states` is answered at once."""
        return self._epoch == self._log.leader_epoch


async def know_all(wanted: Iterable[Producers]) -> None:
    """Have `states` of all answered at once. What cannot be known is found out by who asks."""
    await _each(wanted, _know)


async def save_all(known: Iterable[Producers]) -> None:
    """`save` each."""
    await _each(known, Producers.save)


async def _each(wanted: Iterable[Producers], act: Callable[[Producers], Awaitable[object]]) -> None:
    """Each takes a sync or two, and many of them hardly longer than one."""
    left = iter(wanted)

    async def work() -> None:
        for one in left:  # whoever comes to it
            await act(one)

    async with trio.open_nursery() as nursery:
        for _ in range(_AT_ONCE):
            nursery.start_soon(work)


async def _know(one: Producers) -> None:
    with suppress(LogUnavailable):
        await one.states()


def _take(states: ProducerStates, header: BatchHeader, batch: BytesLike, now_ms: int) -> None:
    """Note a batch that is read. Raises CorruptBatch."""
    if not header.is_control:
        states.note(header, header.base_offset, now_ms)
    elif (epoch := coordinator_epoch_of(batch)) is not None:
        states.note_marker(header, epoch, header.base_offset, now_ms)
