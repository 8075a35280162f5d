"""Giving back the space of a home partition in which nothing is live: its last segment, too.

Prefixes go by whole segments (`QueuePartition.delete_dead_prefix`), and the segment that is written to is not whole.
When no message is left it is closed, a new one begun, and all before it deleted. What makes no promises loses messages
when its space is full.
"""

from __future__ import annotations

import logging

from routing.queues.homes.queue_partition import QueuePartition

logger = logging.getLogger(__name__)

_WORTH_BYTES = 64 << 10
"""Less than this is not worth the few small writes it takes."""


def give_back(partition: QueuePartition) -> bool:
    """Empty the log of a partition whose messages are all settled; False when there is nothing to gain, or not yet."""
    log = partition.log
    if log.error is not None or log.size_bytes < _WORTH_BYTES or partition.first_live_offset != partition.next_offset:
        return False
    if partition.durable:
        if log.log_end_offset < partition.next_offset:
            return False  # some of it is not appended yet
        if log.committed_offset < log.log_end_offset:
            log.request_sync()
            return False
    elif log.written_offset < log.log_end_offset:
        return False
    log.roll()
    partition.delete_dead_prefix()
    return True


def shed(transient: QueuePartition, bytes_max: int) -> int:
    """While a transient partition's log is larger, its longest queues lose half of what waits; how many messages."""
    dropped = 0
    if transient.log.size_bytes > bytes_max and transient.queues:
        longest = max(queue.message_count for queue in transient.queues.values())
        for queue in list(transient.queues.values()):
            if queue.message_count > longest // 2:
                count = queue.shed(queue.message_count // 2 + 1)
                logger.warning("queue %s loses its %d oldest messages: scratch space is full", queue.name, count)
                dropped += count
    return dropped
