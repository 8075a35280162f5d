"""Records deleted from the beginning of a partition, at somebody's wish: see `TopicPartition.delete_records`.

What was appended before the question counts as being there, though nobody may have asked for its sync yet. When
everything goes the disk is given back what it took, as retention would.
"""

from __future__ import annotations

import trio

from core_log.errors import OffsetOutOfRange
from routing.errors import NotAllowed, TimedOut
from routing.topics.topic_partition import TopicPartition

EVERYTHING = -1
_DISK_S = 5.0


async def delete_records(partition: TopicPartition, before_offset: int, *, timeout_ms: int) -> int:
    """Delete what lies before an offset, or `EVERYTHING`; where the partition begins then. The time is how long other
    replicas are waited for: with none at all it is done here and, where there are no others, everywhere.

    Raises OffsetOutOfRange for what lies beyond the end, NotAllowed where the topic only compacts, StorageUnavailable
    (NotLeader), TimedOut when it is not known in time that all replicas have followed.
    """
    end = await partition.latest()
    log = partition.log
    if not log.config.deletes:
        raise NotAllowed(f"the cleanup.policy of topic '{partition.topic_name}' deletes nothing")
    if before_offset == EVERYTHING:
        before_offset = end
    if not 0 <= before_offset <= end:
        raise OffsetOutOfRange(before_offset, log.log_start_offset, end)
    if before_offset == log.log_end_offset > log.log_start_offset:
        log.roll()
    followed_by_s = trio.current_time() + timeout_ms / 1000
    with trio.move_on_after(max(timeout_ms / 1000, _DISK_S)):
        return await partition.delete_records(before_offset, followed_by_s=followed_by_s)
    what = f"partition {partition.index} of topic '{partition.topic_name}'"
    raise TimedOut(f"{what} is not known to begin at offset {before_offset} yet")
