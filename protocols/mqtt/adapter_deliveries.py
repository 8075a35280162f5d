"""Slabs as PUBLISH packets, encoded once for all who are sent the same bytes.

What is made of a whole slab is kept in `Slab.wire`: the packets at QoS 0, and the heads (fixed header and topic) of its
messages at QoS 1 and 2, where only the packet ids differ between subscribers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from protocols.mqtt.adapter_properties import blocks_of
from protocols.mqtt.wire import (
    Blocks,
    PublishHeads,
    encode_publishes,
    encode_varied,
    interleaved,
    publish_heads,
    varied_heads,
)
from routing.message import Slab

WIRES_QOS_0 = ("mqtt qos 0", "mqtt 5 qos 0")
"""Packets at QoS 0 of a whole slab, for versions before 5 and for version 5."""
HEADS_QOS_0 = "mqtt 5 heads qos 0"
"""What stands before each payload in these for version 5, where that is known beforehand (`PublishRun.heads`)."""
_HEADS = ("mqtt heads", "mqtt 5 heads")


def at_qos_0(topic: bytes, bodies: Sequence[bytes], blocks: Blocks) -> bytes:
    """Packets for messages of one topic."""
    if isinstance(blocks, bytes):
        return encode_publishes(publish_heads(topic + blocks, bodies, 0), bodies)
    return encode_publishes(varied_heads([topic + block for block in blocks], bodies, 0), bodies)


def varied_at_qos_0(topics: Sequence[bytes], bodies: Sequence[bytes], blocks: Blocks, *, flags: int = 0) -> bytes:
    """Packets for messages with a topic each."""
    return encode_varied(topics, bodies, 0, flags=flags, blocks=blocks)


def qos_0_packets(slab: Slab, start: int, stop: int, topic: bytes, *, version_5: bool) -> bytes:
    """Packets at QoS 0 for messages of one topic; those of the whole slab are made once."""
    bodies, blocks = slab.bodies, blocks_of(slab, start, stop) if version_5 else b""
    if stop - start < len(bodies):
        return at_qos_0(topic, bodies[start:stop], blocks)
    memo, key = slab.memo(), WIRES_QOS_0[version_5]
    packets: bytes | None = memo.get(key)
    if packets is None:
        packets = memo[key] = at_qos_0(topic, bodies, blocks)
    return packets


def known_at_qos_0(slab: Slab, *, version_5: bool) -> bytes | None:
    """Packets at QoS 0 of the whole slab, if its publisher has sent the like."""
    memo = slab.memo()
    packets: bytes | None = memo.get(WIRES_QOS_0[version_5])
    if packets is None and version_5:
        heads = memo.get(HEADS_QOS_0)
        if heads is not None:
            packets = memo[WIRES_QOS_0[True]] = interleaved(*heads, slab.bodies)
    return packets


def heads_of(slab: Slab, topic: bytes, qos: int, flags: int, *, version_5: bool) -> PublishHeads:
    """The heads at QoS 1 or 2 of a whole slab of one topic; that of a single message is as soon made as found."""
    if len(slab.bodies) == 1 and not version_5:
        return publish_heads(topic, slab.bodies, qos, flags=flags)
    memo, key = slab.memo(), (_HEADS[version_5], qos, flags)
    heads: PublishHeads | None = memo.get(key)
    if heads is None:
        bodies = slab.bodies
        blocks = blocks_of(slab, 0, len(bodies)) if version_5 else b""
        if isinstance(blocks, bytes):
            heads = publish_heads(topic, bodies, qos, flags=flags, block=blocks)
        else:
            heads = varied_heads([topic] * len(bodies), bodies, qos, flags=flags, blocks=blocks)
        memo[key] = heads
    return heads


def whole_at_qos_0(slab: Slab, topics: Sequence[bytes], *, version_5: bool) -> bytes:
    """Packets at QoS 0 for a whole slab of several topics, made once."""
    memo, key = slab.memo(), WIRES_QOS_0[version_5]
    packets: bytes | None = memo.get(key)
    if packets is None:
        blocks = blocks_of(slab, 0, len(slab.bodies)) if version_5 else b""
        packets = memo[key] = varied_at_qos_0(topics, slab.bodies, blocks)
    return packets


def stretches(kinds: Sequence[int | None]) -> Iterator[tuple[int | None, int, int]]:
    """Runs of equal values: value, where it begins, where it ends."""
    start = 0
    for at in range(1, len(kinds) + 1):
        if at == len(kinds) or kinds[at] != kinds[start]:
            yield kinds[start], start, at
            start = at
