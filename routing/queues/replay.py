"""Filling the queues of a home partition at a start, from its checkpoint and the log behind it.

After a clean stop the checkpoint is the whole truth. After a crash nobody knows which messages were delivered since,
so all that come back are marked redelivered. Where messages lie that were moved, only the
partition knows.
"""

from __future__ import annotations

from core_log.files import Files
from routing.queues import restoring
from routing.queues.checkpoints import Checkpoint, QueueCheckpoint, encode_checkpoint, load_checkpoint, save_checkpoint
from routing.queues.checkpoints import checkpoint_path as checkpoint_path
from routing.queues.destination_sets import Definition
from routing.queues.history import HISTORY_BIT
from routing.queues.packed_ranges import unpack
from routing.queues.queue_partition import QueuePartition
from routing.queues.standby import Standby


def restore(files: Files, partition: QueuePartition) -> int:
    """Fill the partition's queues (already registered in `partition.queues`) from checkpoint and log.

    Returns the highest queue id that the log knows, 0 for none: the catalog may not have become durable in time.
    """
    log = partition.log
    found = load_checkpoint(files, partition)
    if found is None:
        found = Checkpoint(Standby(log.log_start_offset), False, {})
    standby = found.standby
    clean = found.clean and standby.offset == log.log_end_offset
    unread = standby.offset < log.log_end_offset
    standby.read(log, log.log_end_offset)
    standby.fold(partition.queues, log.log_start_offset)
    if clean:
        # Only until something happens, of which the log need not know.
        save_checkpoint(files, partition, encode_checkpoint(standby))
        partition.checkpointed = standby.offset
    elif unread:
        partition.replayed = encode_checkpoint(standby)
    partition.sets.next_id = standby.next_set_id
    partition.facts.take(standby.facts)
    partition.moves.take(standby.moves)
    for queue in partition.queues.values():
        if clean:
            entry = found.queues.get(queue.id, QueueCheckpoint([], [], 0))
        else:
            entry = QueueCheckpoint(list(unpack(standby.live[queue.id])), [], log.log_end_offset)
        partition.restore([*entry.ready, *entry.returned])
        state = standby.states.get(queue.id)
        restoring.restore(queue, entry.ready, entry.returned, entry.redelivered_before, state=state)
    for set_id, (queue_ids, offset) in standby.sets.items():
        if any(queue_id in partition.queues for queue_id in queue_ids):
            partition.sets.adopt(Definition(set_id, queue_ids, offset, log.log_end_offset))
    return max((queue_id & ~HISTORY_BIT for queue_ids, _ in standby.sets.values() for queue_id in queue_ids), default=0)
