"""Filling the queues of a home partition at a start, from its checkpoint and the log behind it.

After a clean stop the checkpoint is the whole truth. After a crash nobody knows which messages were delivered since,
so all that come back are marked redelivered. Where messages lie that were moved, only the
partition knows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from core_log.files import Files
from routing.queues import restoring
from routing.queues.history import HISTORY_BIT
from routing.queues.homes.checkpoints import (
    Checkpoint,
    QueueCheckpoint,
    encode_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from routing.queues.homes.checkpoints import checkpoint_path as checkpoint_path
from routing.queues.homes.destination_sets import Definition
from routing.queues.homes.queue_partition import QueuePartition
from routing.queues.homes.standby import Standby
from routing.queues.picked_facts import PickedFacts
from routing.queues.queue import Queue
from routing.queues.view_pieces import ranges_of
from routing.queues.view_queue import ViewQueue
from routing.queues.view_state import ViewState


def restore(files: Files, partition: QueuePartition) -> int:
    """Fill the partition's queues (already registered in `partition.queues`) from checkpoint and log.

    Returns the highest queue id that the log knows, 0 for none: the catalog may not have become durable in time.
    """
    log = partition.log
    found = load_checkpoint(files, log)
    if found is None:
        found = Checkpoint(Standby(log.log_start_offset), False, {})
    standby = found.standby
    clean = found.clean and standby.offset == log.log_end_offset
    unread = standby.offset < log.log_end_offset
    standby.read(log, log.log_end_offset)
    known_ids = standby.queue_ids
    standby.fold(partition.queues, log.log_start_offset)
    if clean:
        # Only until something happens, of which the log need not know.
        save_checkpoint(files, partition, encode_checkpoint(standby))
        partition.checkpointed = standby.offset
    elif unread:
        partition.replayed = encode_checkpoint(standby)
    entries = found.queues

    def entry_of(queue: Queue) -> QueueCheckpoint:
        if clean:
            return entries.get(queue.id, QueueCheckpoint(array("Q"), array("Q"), 0))
        return unclean(standby, queue, log.log_end_offset)

    for _ in filling(partition, standby, entry_of, clean=clean):
        pass
    return max((queue_id & ~HISTORY_BIT for queue_id in known_ids), default=0)


def unclean(standby: Standby, queue: Queue, end: int) -> QueueCheckpoint:
    """What is there of a queue where nobody knows what was delivered."""
    if queue.settings.view_of is not None:
        known = ViewState.of(standby.states.get(queue.id))
        return QueueCheckpoint(ranges_of(known.parts), array("Q"), known.next_id)
    return QueueCheckpoint(standby.live.get(queue.id) or array("Q"), array("Q"), end)


def filling(
    partition: QueuePartition,
    standby: Standby,
    entry_of: Callable[[Queue], QueueCheckpoint],
    *,
    clean: bool = False,
) -> Iterator[Queue]:
    """Fill the partition's queues, one after the other as one asks for the next. `clean`: nothing was given out that
    they do not know of.
    """
    log = partition.log
    partition.sets.next_id = standby.next_set_id
    partition.facts.take(standby.facts)
    partition.moves.take(standby.moves)
    partition.numbers = standby.numbers
    for set_id, (queue_ids, offset) in standby.sets.items():
        # Without queues it is not known where the log defines it (`Standby.sets`), but at its start at the latest.
        partition.sets.adopt(Definition(set_id, queue_ids, offset if queue_ids else 0, log.log_end_offset))
    picked = PickedFacts(partition.facts)
    for queue in list(partition.queues.values()):
        entry = entry_of(queue)
        state = standby.states.get(queue.id)
        if isinstance(queue, ViewQueue):
            queue.view.restore(ViewState.of(state), clean=clean)
        else:
            partition.restore(entry.ready)
            partition.restore(entry.returned)
        restoring.restore(queue, entry.ready, entry.returned, entry.redelivered_before, picked=picked, state=state)
        yield queue
