"""Topic aliases towards a client of MQTT 5 that takes them (3.3.2.3.4): first come, first served.

1. An alias stands for its topic once a publish with both was handed to the transport, so only publishes that go out at
   once give one; those that wait for a commit use what there is.
2. No publish becomes larger than the client takes by being given one (MQTT-3.1.2-24), nor does it by the use of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from protocols.mqtt.adapter_properties import with_more
from protocols.mqtt.adapter_terms import heads_for
from protocols.mqtt.properties import Property, encode_property, encode_text
from protocols.mqtt.wire import Blocks, encode_publishes, encode_publishes_with_ids

_NO_TOPIC = encode_text("")
_ALIAS_BYTES = len(encode_property(Property.TOPIC_ALIAS, 1))
_PACKET_BYTES = 16
"""Most of a publish that is neither topic, block nor payload, with the alias."""


class Aliases:
    """Of one connection, from CONNECT on; see the module."""

    def __init__(self, aliases_max: int, packet_bytes_max: int | None) -> None:
        self._max = aliases_max
        self._packet_bytes_max = packet_bytes_max
        self._known: dict[bytes, bytes] = {}
        """Topics as they are written, with their aliases as they stand in a block."""

    def encode(
        self, topics: Sequence[bytes], bodies: Sequence[bytes], qos: int, flags: int, blocks: Blocks, *,
        first_packet_id: int = 0, at_once: bool = True,
    ) -> bytes:  # fmt: skip
        """PUBLISH packets; `at_once`: nothing that is encoded later goes before them."""
        parts = []
        for start, stop, topic, more in self._stretches(topics, bodies, blocks, at_once=at_once):
            some = with_more(blocks if isinstance(blocks, bytes) else blocks[start:stop], stop - start, more)
            payloads = bodies[start:stop]
            heads = heads_for(topic, payloads, qos, flags, some)
            if qos:
                parts.append(encode_publishes_with_ids(heads, payloads, first_packet_id + start, some))
            else:
                parts.append(encode_publishes(heads, payloads))
        return b"".join(parts)

    def _stretches(
        self, topics: Sequence[bytes], bodies: Sequence[bytes], blocks: Blocks, *, at_once: bool
    ) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Where messages of one topic begin and end, what is written as their topic, what is added to their blocks."""
        start, count = 0, len(topics)
        while start < count:
            topic, stop = topics[start], start + 1
            alias = self._known.get(topic)
            if alias is None and at_once:
                block = blocks if isinstance(blocks, bytes) else blocks[start]
                given = self._give(topic, len(block) + len(bodies[start]))
                if given is not None:
                    yield start, stop, topic, given
                    start = stop
                    continue
            # A later one may be small enough to be given what this one is not.
            while stop < count and topics[stop] == topic and (alias is not None or not at_once or self._is_full):
                stop += 1
            yield (start, stop, topic, b"") if alias is None else (start, stop, _NO_TOPIC, alias)
            start = stop

    @property
    def _is_full(self) -> bool:
        return len(self._known) >= self._max

    def _give(self, topic: bytes, other_bytes: int) -> bytes | None:
        """An alias for a topic for which it is worth while, if there is one left and room for it in the packet."""
        if self._is_full or len(topic) <= len(_NO_TOPIC) + _ALIAS_BYTES:
            return None
        if self._packet_bytes_max is not None and _PACKET_BYTES + len(topic) + other_bytes > self._packet_bytes_max:
            return None
        alias = self._known[topic] = encode_property(Property.TOPIC_ALIAS, len(self._known) + 1)
        return alias
