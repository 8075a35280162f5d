"""Slabs as they travel between brokers (`wire_slabs.SlabEntry`), and back.

Properties of slabs that agree in them are interned for a link, so that what adapters keep with them is made once.
"""

from __future__ import annotations

from protocols.peer import columns
from protocols.peer.columns import NAMES
from protocols.peer.wire import ErrorCode, PeerError
from protocols.peer.wire_engine import RecordsEntry
from protocols.peer.wire_slabs import SlabEntry
from routing.cluster.clients.streams import Kept, Records
from routing.facts import DELAYED_FROM, PERSISTENT, delay_ms_of, without_delay
from routing.message import Properties, Slab, is_registered

_PROPERTIES_MAX = 1024


def to_entry(slab: Slab, start: int = 0, stop: int | None = None) -> SlabEntry:
    """The messages [start, stop) of a slab, at least one."""
    if start or (stop is not None and stop < len(slab.bodies)):
        slab = slab.part(start, len(slab.bodies) if stop is None else stop)
    properties = slab.properties
    facts = properties.facts
    return SlabEntry(
        slab.exchange.encode("utf-8", NAMES),
        b"" if slab.keys is not None else slab.routing_key.encode("utf-8", NAMES),
        properties.protocol,
        properties.persistent,
        b"" if slab.raws is not None else properties.raw,
        without_delay(facts),
        delay_ms_of(facts),
        len(slab.bodies),
        columns.joined(slab.bodies),
        None if slab.keys is None else columns.joined_text(slab.keys),
        None if slab.raws is None else columns.joined(slab.raws),
        None if slab.facts is None else columns.joined_facts(slab.facts),
    )


def records_entry(log: str, leader_epoch: int, kept: Kept, what: Records, begins: bool) -> RecordsEntry:
    """Records of one log as they travel."""
    keys, blocks = what.keys, what.header_blocks
    return RecordsEntry(
        log,
        leader_epoch,
        kept.position,
        begins,
        len(what.bodies),
        columns.common(keys) if isinstance(keys, bytes) else columns.joined(keys),
        columns.common(blocks) if isinstance(blocks, bytes) else columns.joined(blocks),
        columns.joined(what.bodies),
    )


class SlabReader:
    """Makes slabs of what came over one link."""

    def __init__(self) -> None:
        self._properties: dict[tuple[str, bytes, int], Properties] = {}

    def read(self, entry: SlabEntry) -> Slab:
        """A slab. Raises PeerError."""
        count = entry.count
        bodies = columns.split(entry.bodies, count)
        keys = None if entry.keys is None else columns.split_text(entry.keys, count)
        raws = None if entry.raws is None else columns.split(entry.raws, count)
        facts = None if entry.facts_of_each is None else columns.split_facts(entry.facts_of_each, count)
        common = entry.facts | entry.delay_ms << DELAYED_FROM.bit_length() - 1
        if not is_registered(entry.protocol):
            raise PeerError(ErrorCode.MALFORMED_FRAME, f"messages of an unknown protocol '{entry.protocol}'")
        for fact in (common,) if facts is None else (common, *facts):
            if fact & PERSISTENT != entry.persistent:
                raise PeerError(ErrorCode.MALFORMED_FRAME, "messages of a slab that do not agree in persistence")
        return Slab(
            entry.exchange.decode("utf-8", NAMES),
            keys[0] if keys is not None else entry.routing_key.decode("utf-8", NAMES),
            self._intern(entry, common),
            bodies,
            len(entry.bodies[1]),
            keys=keys,
            raws=raws,
            facts=facts,
        )

    def _intern(self, entry: SlabEntry, facts: int) -> Properties:
        known = self._properties
        key = entry.protocol, entry.raw, facts
        found = known.get(key)
        if found is None:
            if len(known) >= _PROPERTIES_MAX:
                known.clear()
            found = known[key] = Properties(entry.protocol, entry.raw, persistent=entry.persistent, facts=facts)
        return found
