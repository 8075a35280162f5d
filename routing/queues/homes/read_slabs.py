"""Slabs that were read from the log of a home, with the times to live that their messages have.

A protocol whose properties do not say it (MQTT's) hands a time to live over as a fact, and the facts stand with the
place of a message: what is read knows it no more, the home does.
"""

from __future__ import annotations

from routing.facts import TIMED_FROM, pack, without_delay
from routing.queues.fact_columns import FactColumns
from routing.queues.slab_cache import CachedSlab


def with_lives(entry: CachedSlab, facts: FactColumns) -> CachedSlab:
    """What was read, or the same with times to live."""
    if not facts:
        return entry
    slab, first = entry.slab, entry.first
    count = len(slab.bodies)
    each: list[int] = []
    for run in facts.between(first, count):
        if max(run.facts) >= TIMED_FROM:
            if not each:
                if slab.properties_of(run.first - first).neutral.expiration_ms is not None:
                    return entry  # they say it themselves
                each = [pack(slab.properties.persistent)] * count
            begin = run.first - first
            each[begin : begin + len(run.facts)] = map(without_delay, run.facts)
    return CachedSlab(first, slab.with_facts(each), 0) if each else entry
