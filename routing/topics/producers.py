"""Idempotent producers of one partition, over restarts and changes of leader.

1. What is known is worked out when the first batch of such a producer comes, from the file of last time and the batches
   behind what that speaks of; and again when the log has another epoch: others may have led it meanwhile.
2. A log of one broker that has no file never had such a batch: the file is there before the first one is written. It
   is empty as long as the log is read in no time: so it costs a new partition no sync, and no thread, as the job that
   writes the first batch makes it before, and syncs its name with others.
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

_NAME = "producers"
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
        return f"{self._log.directory}/{_NAME}"

    async def states(self) -> ProducerStates:
        """What is known; `note` what is appended by it in the same turn. Raises LogUnavailable."""
        log = self._log
        while self._epoch != log.leader_epoch:
            async with self._loading:
                epoch = log.leader_epoch
                if self._epoch != epoch:
                    if log.log_end_offset or not log.syncs_names:
                        await log.wait_written(log.log_end_offset)
                        try:
                            self._states = await in_thread(self._find_out)
                        except (OSError, CorruptBatch) as error:
                            raise LogUnavailable(f"{log.directory}: {error}") from None
                    else:
                        self._begin()
                    self._epoch = epoch
        return self._states

    def _begin(self) -> None:
        """Nothing was ever appended."""
        self._states = ProducerStates()
        self._segment, self._position = self._log.segments[-1].base_offset, 0
        if not isinstance(self._log, ReplicaLog):
            self._log.first_file = _NAME

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """A batch was appended."""
        self._states.note(header, base_offset, wall_clock_ms())

    def note_marker(self, header: BatchHeader, coordinator_epoch: int, base_offset: int) -> None:
        """The end of a transaction was appended."""
        self._states.note_marker(header, coordinator_epoch, base_offset, wall_clock_ms())

    def _find_out(self) -> ProducerStates:
        """Rules 1 and 2, in a thread."""
        log, content = self._log, self._content()
        states = self._load(content)
        last = log.segments[-1]
        if content or last.size > _READ_AGAIN_BYTES or last is not log.segments[0]:
            self._save(self._encoded(states))
        else:
            self._segment, self._position = last.base_offset, 0
            if content is not None or isinstance(log, ReplicaLog):
                return states
            log.files.open(self._path).close()
        if not log.syncs_names:
            log.files.sync_directory(log.directory)
        return states

    def _content(self) -> bytes | None:
        """Of the file; none if it is empty, or damaged."""
        files, path = self._log.files, self._path
        try:
            return checkpoint.read(files, path)
        except ValueError as error:
            if files.size(path):
                self._say_damaged(str(error))
            return b""

    def _load(self, content: bytes | None) -> ProducerStates:
        log = self._log
        states = self._saved(content)
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

    def _saved(self, content: bytes | None) -> ProducerStates:
        """What the file says; without one that is believed, nothing, from where on there may be such batches."""
        log = self._log
        if content is None and not isinstance(log, ReplicaLog):
            return ProducerStates(log.log_end_offset)
        found = self._believed(content) if content else None
        return ProducerStates(log.log_start_offset) if found is None else found

    def _believed(self, content: bytes) -> ProducerStates | None:
        log = self._log
        try:
            states, epoch = ProducerStates.decode(content)
        except ValueError as error:
            self._say_damaged(f"{self._path}: {error}")
            return None
        found = log.epochs.end_of(epoch, log.log_end_offset)
        return states if found is not None and found[0] == epoch and states.offset <= found[1] else None

    def _say_damaged(self, what: str) -> None:
        if not self._damage_said:
            logger.warning("%s, the log is read", what)
        self._damage_said = True

    def _encoded(self, states: ProducerStates) -> bytes:
        log = self._log
        self._segment, self._position = log.segments[-1].base_offset, log.segments[-1].size
        return states.encode(log.epochs.latest)

    def _save(self, content: bytes) -> None:
        checkpoint.save(self._log.files, self._path, content, sync_name=False)

    @property
    def is_due(self) -> bool:
        """The file is to be written again."""
        return self._knows and self._segment != self._log.segments[-1].base_offset

    @property
    def _knows(self) -> bool:
        return self._epoch == self._log.leader_epoch and not self._log.closed

    def forget_silent(self) -> None:
        """Whoever has sent nothing for a day is not known any more."""
        if self._knows:
            self._states.forget(wall_clock_ms() - FORGOTTEN_MS)

    async def save(self) -> None:
        """Write the file, if it lacks more than is read in no time. What cannot be written is logged."""
        if not self._knows:
            return
        last = self._log.segments[-1]
        if last.base_offset == self._segment and last.size - self._position <= _READ_AGAIN_BYTES:
            return
        self.forget_silent()
        self._states.offset = max(self._states.offset, self._log.written_offset)
        try:
            await in_thread(self._save, self._encoded(self._states))
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
