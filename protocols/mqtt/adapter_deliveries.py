"""Slabs as PUBLISH packets, encoded once for all who are sent the same bytes.

What is made of a whole slab is kept in `Slab.wire`: the packets at QoS 0, and the heads (fixed header and topic) of its
messages at QoS 1, where only the packet ids differ between subscribers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from protocols.mqtt.wire import PublishHeads, encode_publishes, publish_heads, varied_heads
from routing.message import Slab

WIRE_QOS_0 = "mqtt qos 0"
_HEADS_QOS_1 = "mqtt qos 1 heads"


def _memo(slab: Slab) -> dict[Any, Any]:
    if slab.wire is None:
        slab.wire = {}
    return slab.wire


def qos_0_packets(slab: Slab, start: int, stop: int, topic: bytes) -> bytes:
    """Packets at QoS 0 for messages of one topic; those of the whole slab are made once."""
    bodies = slab.bodies
    if stop - start < len(bodies):
        bodies = bodies[start:stop]
        return encode_publishes(publish_heads(topic, bodies, 0), bodies)
    memo = _memo(slab)
    packets: bytes | None = memo.get(WIRE_QOS_0)
    if packets is None:
        packets = memo[WIRE_QOS_0] = encode_publishes(publish_heads(topic, bodies, 0), bodies)
    return packets


def heads_at_qos_1(slab: Slab, topic: bytes) -> PublishHeads:
    """The heads of a whole slab of one topic."""
    memo = _memo(slab)
    heads: PublishHeads | None = memo.get(_HEADS_QOS_1)
    if heads is None:
        heads = memo[_HEADS_QOS_1] = publish_heads(topic, slab.bodies, 1)
    return heads


def whole_at_qos_0(slab: Slab, topics: Sequence[bytes]) -> bytes:
    """Packets at QoS 0 for a whole slab of several topics, made once."""
    memo = _memo(slab)
    packets: bytes | None = memo.get(WIRE_QOS_0)
    if packets is None:
        packets = memo[WIRE_QOS_0] = encode_publishes(varied_heads(topics, slab.bodies, 0), slab.bodies)
    return packets


def stretches(kinds: Sequence[int | None]) -> Iterator[tuple[int | None, int, int]]:
    """Runs of equal values: value, where it begins, where it ends."""
    start = 0
    for at in range(1, len(kinds) + 1):
        if at == len(kinds) or kinds[at] != kinds[start]:
            yield kinds[start], start, at
            start = at
