"""What is left of the time to live of messages that are given out.

A home knows it. A slab knows what its messages asked for when they were published, if it was not read from the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from routing.facts import TIMED_FROM, ttl_ms_of
from routing.queues.queue import Queue
from routing.queues.runs_of import runs_of
from routing.unsettled import entry_at

if TYPE_CHECKING:
    from routing.consumer import Consumer


def comes_of_home(consumer: Consumer) -> bool:
    """Whether what the consumer is given now lies in a home of this broker, which knows when it came."""
    queue = consumer.queue
    taken = not consumer.no_ack or consumer.session.given is not None  # not passed on
    return taken and isinstance(queue, Queue) and not queue.elsewhere


def lives_left_ms(consumer: Consumer, first_id: int, count: int) -> list[int | None] | None:
    """Of deliveries from `first_id` on, which come of a home, in ms, below 0 where it is over; None: none has one."""
    session, queue = consumer.session, consumer.queue
    assert isinstance(queue, Queue)
    facts_at = queue.store.facts
    if not facts_at:
        return None
    offsets: Sequence[int]
    if session.given is not None:
        first_given, offsets = session.given
        offsets = offsets[first_id - first_given : first_id - first_given + count]
    else:
        entry = entry_at(session.unsettled, first_id)
        if entry.queue is not queue:  # it was passed, as nothing is that expires
            return None
        offsets = entry.offsets_of(first_id, first_id + count)
    now_ms, left = session.broker.clock.now_ms(), list[int | None]([None] * count)
    at = 0
    for first, length in runs_of(offsets):
        for run in facts_at.between(first, length):
            if max(run.facts) >= TIMED_FROM:
                begin, gone_ms = at + run.first - first, now_ms - run.timestamp_ms
                left[begin : begin + len(run.facts)] = [life_left_ms(one, gone_ms) for one in run.facts]
        at += length
    if left.count(None) == count:
        return None
    if isinstance(offsets, range):
        return left
    by_place = dict(zip(sorted(offsets), left, strict=True))  # which may be in any order, as those that were delayed
    return [by_place[offset] for offset in offsets]


def life_left_ms(facts: int, gone_ms: int) -> int | None:
    """Of one message, so long after it was published; one that a clock ahead of this one dated has all of it left."""
    ttl_ms = ttl_ms_of(facts)
    return None if ttl_ms is None else ttl_ms - max(gone_ms, 0)
