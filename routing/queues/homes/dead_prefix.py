"""Dropping the part of a home partition's log that no queue needs, by whole segments.

Definitions in the part that goes are written again first (their place in the log does not matter to replay), and so is
what views hold; the part goes only when that is durable: the next call sees to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.queues.view_queue import ViewQueue

if TYPE_CHECKING:
    from routing.queues.homes.queue_partition import QueuePartition


def delete_dead_prefix(partition: QueuePartition) -> None:
    """Drop what can go now."""
    log = partition.log
    if log.error is not None or len(log.segments) < 2:
        return
    safe = log.committed_offset  # where others have replicas, as well
    if log.config.fsync == "interval":
        safe = min(safe, log.flushed_offset)
    if partition.moved_before > safe:
        log.request_sync()  # the only copies of what was moved
        return
    before = min(partition.first_live_offset, log.committed_offset if partition.durable else log.written_offset)
    queues = partition.queues.values()
    states = any(
        one.seen or one.rules.sizes or one.reserved or (one.held is not None and one.held.count) for one in queues
    )
    kept = partition.durable and (partition.moves or partition.numbers or states)
    if kept and before > partition.checkpointed:
        # Ids and sizes stand in what would go, and returns of what was moved: a checkpoint keeps them first.
        before = partition.checkpointed
        partition.checkpoint_wanted = log.segments[1].base_offset > before
    if log.segments[1].base_offset > before:
        return
    said = _carry_views(partition, log.segments[1].base_offset) if partition.durable else []
    # Whole segments go, and what stays begins with one: with a batch, and with the directory that speaks of it.
    start = max(segment.base_offset for segment in log.segments if segment.base_offset <= min([before, *said]))
    if partition.durable:
        needed = _carry_definitions(partition, start) + said
        if any(offset >= log.committed_offset for offset in needed):
            log.request_sync()
            return
    log.delete_prefix(start)
    for definition in list(partition.sets.definitions.values()):
        if definition.used_before <= start:
            partition.sets.forget(definition)


def _carry_definitions(partition: QueuePartition, start: int) -> list[int]:
    """Write again what is defined before the log's next start and named behind it, be it by messages that are settled,
    or whose queues have gone: who reads the log waits for all of it. Returns where all that is named is defined.
    """
    named = [one for one in partition.sets.definitions.values() if one.used_before > start]
    for definition in named:
        if definition.offset < start:
            partition.define(definition)
    return [definition.offset for definition in named]


def _carry_views(partition: QueuePartition, before: int) -> list[int]:
    """Say again what views hold of which the log says something below an offset; from where on it says all of each."""
    views = [queue for queue in partition.queues.values() if isinstance(queue, ViewQueue)]
    for queue in views:
        if queue.view.said_at < before:
            queue.view.said_at = partition.next_offset
            partition.append_controls(queue.view.said())
    return [queue.view.said_at for queue in views]
