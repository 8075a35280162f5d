"""Checkpoints of home partitions: what was live when the log ended at an offset, so that a start reads only the rest.

1. While the broker runs, a checkpoint is the one before plus what was appended since (`standby.py`): a thread makes and
   saves it. The queues are not looked at, and however much they hold, the event loop only hands over a list.
2. It is saved when the log is durable up to where it speaks of.
3. On a clean stop it is taken from the queues themselves (`clean_checkpoint`): then it also knows what was given back.
4. The first one after a crash is what the start has worked out.
5. Where stragglers pin the log, one is made to find them, and they are written again (`relocation.py`).
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import trio

from core_log.checkpoint import load, save
from core_log.disk_space import DiskSpace
from core_log.errors import CorruptBatch, OffsetOutOfRange
from core_log.files import Files
from core_log.partition_log import PartitionLog
from core_log.threads import in_thread
from routing.commits import CommitWaiter
from routing.errors import StorageUnavailable
from routing.queues.homes.journal import Journal
from routing.queues.homes.relocation import Straggler, end_of_stragglers, read_stragglers, relocate
from routing.queues.homes.standby import Standby, packed_of
from routing.queues.packed_ranges import from_bytes, pack, to_bytes, unpack
from routing.queues.restoring import state_of
from routing.queues.settlement import pack_sizes
from routing.queues.view_state import VIEW
from routing.queues.waiting import waiting_ranges

if TYPE_CHECKING:
    from routing.queues.homes.queue_partition import QueuePartition

logger = logging.getLogger(__name__)

_VERSION = 2


class QueueCheckpoint(NamedTuple):
    """What a clean stop notes of a queue: what was never given out, and what was, each as rising packed ranges."""

    ready: array[int]
    returned: array[int]
    redelivered_before: int


class Checkpoint(NamedTuple):
    """As read back; `queues` is empty unless it is clean."""

    standby: Standby
    clean: bool
    queues: dict[int, QueueCheckpoint]


def checkpoint_path(log: PartitionLog) -> str:
    """Where the checkpoint of a home partition lies."""
    return f"{log.directory}/checkpoint"


# --- the file ----------------------------------------------------------------------------------------------------


def encode_checkpoint(standby: Standby) -> bytes:
    """The content of a checkpoint."""
    queues = {queue_id: (to_bytes(packed), b"", 0) for queue_id, packed in standby.live.items()}
    return _encode(standby, queues, clean=False)


def _encode(standby: Standby, queues: dict[int, tuple[bytes, bytes, int]], *, clean: bool) -> bytes:
    state = {
        "version": _VERSION,
        "offset": standby.offset,
        "clean": clean,
        "next_set_id": standby.next_set_id,
        "sets": {set_id: queue_ids for set_id, (queue_ids, _) in standby.sets.items()},
        "queues": queues,
        "states": standby.states,
        "numbers": standby.numbers.dump(),
        "epochs": standby.numbers.epochs,
        "facts": [[_optional(column) for column in block] for block in standby.facts.columns()],
        "moves": [[to_bytes(column) for column in block] for block in standby.moves.columns()],
    }
    return msgpack.packb(state, default=pack_sizes)  # type: ignore[no-any-return]


def _optional(column: array[int] | None) -> bytes | None:
    return None if column is None else to_bytes(column)


def decode_checkpoint(content: bytes) -> Checkpoint:
    """The inverse of `encode_checkpoint`, of all versions. Raises ValueError."""
    try:
        state: dict[str, Any] = msgpack.unpackb(content, strict_map_key=False)
        standby = Standby(state["offset"])
        standby.next_set_id = state["next_set_id"]
        standby.sets = {set_id: (tuple(ids), 0 if ids else standby.offset) for set_id, ids in state["sets"].items()}
        read = from_bytes if state.get("version") else _listed
        queues = {}
        for queue_id, (ready, returned, before) in state["queues"].items():
            if state["clean"]:
                queues[queue_id] = QueueCheckpoint(read(ready), read(returned), before)
            standby.live[queue_id] = read(ready)
            if returned:
                standby.live[queue_id] = packed_of([*unpack(read(ready)), *unpack(read(returned))])
        standby.states = state.get("states", {})
        standby.numbers.load(state.get("numbers", {}))
        standby.numbers.epochs = state.get("epochs", {})
        for queue_id, known in standby.states.items():
            if VIEW in known:
                standby.live.pop(queue_id, None)  # what it holds does not lie here
        standby.facts.load(
            (from_bytes(runs), from_bytes(times), from_bytes(low), None if high is None else from_bytes(high))
            for runs, times, low, high in state.get("facts", ())
        )
        standby.moves.load(
            (from_bytes(firsts), from_bytes(counts), from_bytes(positions))
            for firsts, counts, positions in state.get("moves", ())
        )
    except (KeyError, TypeError, AttributeError, ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"not a checkpoint: {error!r}") from error
    return Checkpoint(standby, state["clean"], queues)


def _listed(ranges: list[list[int]]) -> array[int]:
    return pack((first, count) for first, count in ranges)


def load_checkpoint(files: Files, log: PartitionLog) -> Checkpoint | None:
    """The last checkpoint, if there is one and it is of this log."""
    content = load(files, checkpoint_path(log))
    if content is None:
        return None
    try:
        found = decode_checkpoint(content)
    except ValueError as error:
        logger.warning("%s: %s, replaying all of the log", log.directory, error)
        return None
    known = found.standby
    if known.offset > log.log_end_offset:
        logger.warning("%s: the log has lost its end, what is left is replayed", log.directory)
        standby = Standby(log.log_start_offset)
        standby.sets, standby.next_set_id = known.sets, known.next_set_id  # the log may have lost where it says so
        return Checkpoint(standby, False, {})
    if known.offset < log.log_start_offset:
        logger.info("%s: the log begins behind what the checkpoint speaks of, all of it is replayed", log.directory)
        return None
    return found


def clean_checkpoint(partition: QueuePartition) -> bytes:
    """The checkpoint of a partition that is stopped: all is sealed, nothing is delivered."""
    standby = _standby_of(partition)
    queues = {}
    for queue in partition.queues.values():
        ready, returned = waiting_ranges(queue)
        queues[queue.id] = (to_bytes(pack(ready)), to_bytes(pack(returned)), queue.redelivered_before)
    standby.facts, standby.moves = partition.facts, partition.moves
    return _encode(standby, queues, clean=True)


def _standby_of(partition: QueuePartition) -> Standby:
    """All of the partition that is known without looking at messages; it must be sealed."""
    standby = Standby(partition.next_offset)
    sets = partition.sets
    standby.next_set_id = sets.next_id
    standby.sets = {
        definition.id: (definition.queue_ids, definition.offset) for definition in sets.definitions.values()
    }
    standby.numbers = partition.numbers.copy()
    states = {queue.id: state_of(queue) for queue in partition.queues.values()}
    standby.states = {queue_id: state for queue_id, state in states.items() if state is not None}
    return standby


def save_checkpoint(files: Files, partition: QueuePartition, content: bytes) -> None:
    """Write a checkpoint; what it speaks of must be durable in the log. Raises OSError."""
    save(files, checkpoint_path(partition.log), content)


# --- while the broker runs ------------------------------------------------------------------------------------------


class Checkpoints:
    """Takes checkpoints of home partitions; see the module."""

    def __init__(
        self,
        files: Files,
        space: DiskSpace,
        commits: CommitWaiter,
        interval_bytes: int,
        spawn: Callable[[Callable[[], Awaitable[None]]], Any],
    ) -> None:
        self._files = files
        self._space = space
        self._commits = commits
        self._interval_bytes = interval_bytes
        self._spawn = spawn
        self._saving = trio.Lock()
        self._under_way: set[QueuePartition] = set()
        self._stopped = False

    def drop(self, log: PartitionLog) -> None:
        """Have none of a log any more, if there is one. Blocks, as it is hardly ever done."""
        try:
            self._files.remove(checkpoint_path(log))
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.error("%s: its checkpoint cannot be removed: %s", log.directory, error)

    def take(self, partition: QueuePartition) -> None:
        """Have a checkpoint made if enough was written since the last one."""
        log = partition.log
        if partition in self._under_way or log.error is not None:
            return
        replayed, partition.replayed = partition.replayed, None
        if replayed is not None:
            self._when_durable(partition, log.log_end_offset, lambda: (replayed, []))
            return
        stragglers_end = end_of_stragglers(partition)
        wanted = partition.checkpoint_wanted or stragglers_end
        if partition.unchecked_bytes < self._interval_bytes and not wanted:
            return
        partition.seal()
        if log.log_end_offset != partition.next_offset:
            return  # the log has begun to refuse
        partition.unchecked_bytes = 0
        partition.checkpoint_wanted = False
        journal, partition.journal = partition.journal, Journal(partition.next_offset)
        known = _standby_of(partition)
        queue_ids = list(partition.queues)

        def make() -> tuple[bytes, list[Straggler]]:
            standby = self._next(partition, journal, known, queue_ids)
            room_bytes = self._space.room_bytes
            stragglers = read_stragglers(log, standby, stragglers_end, room_bytes) if stragglers_end else []
            if not stragglers and room_bytes:
                partition.searched_before = max(partition.searched_before, stragglers_end)
            return encode_checkpoint(standby), stragglers

        self._when_durable(partition, known.offset, make)

    def _next(self, partition: QueuePartition, journal: Journal, known: Standby, queue_ids: list[int]) -> Standby:
        """The next checkpoint, worked out in a thread. Raises OSError, CorruptBatch, OffsetOutOfRange."""
        log = partition.log
        last = load_checkpoint(self._files, log)
        standby = last.standby if last is not None else Standby(log.log_start_offset)
        if standby.offset < journal.start:
            standby.read(log, journal.start)
        standby.follow(journal, known.offset)
        standby.sets |= known.sets  # their definitions may have gone with the log's start
        standby.fold(queue_ids, log.log_start_offset)
        views = {queue_id: {VIEW: state[VIEW]} for queue_id, state in standby.states.items() if VIEW in state}
        standby.sets, standby.states, standby.numbers = known.sets, known.states, known.numbers
        for queue_id, view in views.items():
            standby.states[queue_id] = known.states.get(queue_id, {}) | view
        standby.next_set_id = max(standby.next_set_id, known.next_set_id)
        return standby

    def _when_durable(
        self, partition: QueuePartition, end: int, make: Callable[[], tuple[bytes, list[Straggler]]]
    ) -> None:
        log = partition.log
        self._under_way.add(partition)

        def work() -> list[Straggler]:
            content, stragglers = make()
            self.save(log, content)
            partition.checkpointed = end
            return stragglers

        async def write() -> None:
            stragglers: list[Straggler] = []
            try:
                async with self._saving:
                    if not self._stopped:
                        stragglers = await in_thread(work)
                    if stragglers:
                        moved = await relocate(partition, stragglers, lambda: self._stopped)
                        logger.info("%s: %d messages were written again, for old segments to go", log.directory, moved)
            except (OSError, CorruptBatch, OffsetOutOfRange) as error:
                logger.warning("cannot save the checkpoint of %s: %s", log.directory, error)
            finally:
                self._under_way.discard(partition)

        def durable(error: StorageUnavailable | None) -> None:
            if error is None:
                self._spawn(write)
            else:
                self._under_way.discard(partition)

        self._commits.when_committed([(log, end)], durable)

    def save(self, log: PartitionLog, content: bytes) -> None:
        """As `save_checkpoint`, with some of the disk's reserve if there is no other room: it is what makes room."""
        self._space.save(checkpoint_path(log), content)

    async def stop(self) -> None:
        """No more, and nothing is written again; one that is being written is waited for, it must not replace what is
        saved afterwards.
        """
        self._stopped = True
        async with self._saving:
            pass
