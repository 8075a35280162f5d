"""What a routed slab puts into the partitions of a topic: columns of keys, header blocks and bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from core_log.expiry import EXPIRATION
from core_log.record_batch import encode_entries
from core_log.varint import varint
from routing.facts import ttl_ms_of
from routing.message import Properties, Slab, record_encoder
from routing.runs import item, record_bytes
from routing.topics.stream_records import source_headers, source_lead

if TYPE_CHECKING:
    from routing.topics.topic_partition import TopicPartition

_KNOWN_MAX = 1024


class RecordHeaders:
    """The headers of a topic's records."""

    def __init__(self) -> None:
        self._says_source = False
        self._known: dict[tuple[str, Properties], bytes] = {}

    def say_source(self, say: bool) -> None:
        """Records say where they came from, or no longer."""
        self._says_source = say
        self._known.clear()

    def blocks(self, slab: Slab) -> bytes | list[bytes]:
        """The header block of all records of a slab, or that of each."""
        return self._block(slab) if slab.raws is None else self._varied(slab, slab.raws)

    def _block(self, slab: Slab) -> bytes:
        properties, exchange = slab.properties, slab.exchange
        block = self._known.get((exchange, properties))
        if block is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            count, entries = _timed(record_encoder(properties.protocol)(properties.raw), properties.facts)
            source = source_headers(exchange, properties) if self._says_source else []
            block = varint(count + len(source)) + encode_entries(source) + entries
            self._known[exchange, properties] = block
        return block

    def _varied(self, slab: Slab, raws: list[bytes]) -> list[bytes]:
        encoded = map(record_encoder(slab.properties.protocol), raws)
        if not slab.plain:
            encoded = map(_timed, encoded, slab.facts or [slab.properties.facts] * len(raws))
        if not self._says_source:
            return [b"%b%b" % (varint(count), entries) for count, entries in encoded]
        more, lead = source_lead(slab.exchange, slab.properties.protocol)
        return [
            b"%b%b%b%b%b" % (varint(count + more), lead, varint(len(raw)), raw, entries)
            for raw, (count, entries) in zip(raws, encoded)
        ]


def _timed(encoded: tuple[int, bytes], facts: int) -> tuple[int, bytes]:
    """Headers with the time to live, where a protocol keeps it apart from its property bytes."""
    ttl_ms = ttl_ms_of(facts)
    count, entries = encoded
    if ttl_ms is None or EXPIRATION.encode() in entries:
        return encoded
    return count + 1, entries + encode_entries([(EXPIRATION, b"%d" % ttl_ms)])


class Column(NamedTuple):
    """Records for one partition."""

    partition: TopicPartition
    keys: bytes | list[bytes]
    header_blocks: bytes | list[bytes]
    bodies: list[bytes]
    body_bytes: int

    def record_bytes(self, index: int) -> int:
        """How much one record takes at most."""
        return len(self.bodies[index]) + record_bytes(item(self.keys, index), item(self.header_blocks, index))


def longest(column: bytes | list[bytes]) -> int:
    """The length of the longest in it."""
    return len(column) if isinstance(column, bytes) else max(map(len, column), default=0)
