"""Collecting messages that follow each other in line but not in the log into one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.message import Slab

if TYPE_CHECKING:
    from routing.queues.queue import Queue


def gather(queue: Queue, limit: int) -> tuple[Slab, list[int], bool] | None:
    """Take up to `limit` messages that are in memory off the queue's front: a slab of them, the offset of each, and
    whether they are redelivered. None: the first is not in memory.

    It ends early where the exchange, the protocol, the persistence or the redelivered flag changes.
    """
    offsets: list[int] = []
    keys: list[str] = []
    raws: list[bytes] = []
    bodies: list[bytes] = []
    find, head, take = queue.partition.find, queue.head, queue.take
    like: tuple[str, str, bool, bool] | None = None
    common = None
    entry = None
    while len(offsets) < limit:
        first, count, redelivered = head()
        if not count:
            break
        if entry is None or not entry.first <= first < entry.end:
            entry = find(first)
            if entry is None:
                break
            slab = entry.slab
            properties = slab.properties
        kind = (slab.exchange, properties.protocol, properties.persistent, redelivered)
        if like is None:
            like, common = kind, properties
        elif like != kind:
            break
        count = min(count, limit - len(offsets), entry.end - first)
        take(count)
        start = first - entry.first
        if count == 1:
            offsets.append(first)
            bodies.append(slab.bodies[start])
            keys.append(slab.routing_key if slab.keys is None else slab.keys[start])
            raws.append(properties.raw if slab.raws is None else slab.raws[start])
            continue
        stop = start + count
        offsets += range(first, first + count)
        bodies += slab.bodies[start:stop]
        keys += [slab.routing_key] * count if slab.keys is None else slab.keys[start:stop]
        raws += [properties.raw] * count if slab.raws is None else slab.raws[start:stop]
    if like is None or common is None:
        return None
    same_key = keys.count(keys[0]) == len(keys)
    slab = Slab(like[0], keys[0], common, bodies, keys=None if same_key else keys, raws=raws)
    return slab, offsets, like[3]
