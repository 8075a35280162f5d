"""The redo record of a transaction: what is published, where each slab goes, and what is settled, as MessagePack.

Only what outlives the process is in it: durable queues by their ids, topics by their names, and behind these by their
ids, as bytes: to brokers of earlier versions those are names that no topic has. That of a step which takes
effect once (`published_once.py`) also says by what its messages are known, and where the logs that they go to ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from core_log.errors import CorruptBatch
from routing.message import NAME_ENCODING_ERRORS, Properties, Slab
from routing.topology.interest import Elsewhere
from routing.topology.route import Route

if TYPE_CHECKING:
    from routing.topics.topic import Topic

_VERSION = 1


class Settled(NamedTuple):
    """Messages of one queue, by their offsets in its home partition; `rejected` ones die, the others are done with."""

    queue_id: int
    offsets: list[int]
    rejected: bool


class Published(NamedTuple):
    """A slab, and where it goes."""

    slab: Slab
    queue_ids: list[int]
    topics: list[str]
    delayed: bool
    ids: Sequence[bytes] = ()
    """Of the topics, in any order; none in records of earlier versions."""

    def there(self, topics: Mapping[str, Topic]) -> list[Topic]:
        """The topics that are there still; one that was made anew since is another."""
        found = [topics[name] for name in self.topics if name in topics]
        return [topic for topic in found if topic.id in self.ids] if self.ids else found


class Places(NamedTuple):
    """By what bytes in their headers the messages of a step are known, and where logs ended before they got them."""

    marker: bytes
    homes: list[Sequence[int]]
    """Of home partitions: index, offset, and the ids of the queues there that the step goes to."""
    topics: list[tuple[str, int, int]]
    """(topic, partition, offset)."""


def published(routed: Iterable[tuple[Route, Slab, bool]]) -> list[Published]:
    """What of routed slabs outlives the process."""
    found = []
    for route, slab, _ in routed:
        topics = [topic for topic in route.topics if not isinstance(topic, Elsewhere)]
        names, ids = [topic.name for topic in topics], [topic.id for topic in topics]
        found.append(Published(slab, route.durable_queue_ids, names, route.delayed, ids))
    return [one for one in found if one.queue_ids or one.topics]


def encode(publishes: Sequence[Published], settled: Sequence[Settled], places: Places | None = None) -> bytes:
    """The record."""
    written = []
    for slab, queue_ids, topics, delayed, ids in publishes:
        properties = slab.properties
        written.append(
            [
                slab.exchange, slab.routing_key, slab.keys, properties.log_tag, properties.facts, slab.raws,
                slab.facts, slab.bodies, queue_ids, [*topics, *ids], delayed,
            ]
        )  # fmt: skip
    done = [list(entry) for entry in settled]
    said = [_VERSION, written, done] + ([] if places is None else [list(places)])
    packed: bytes = msgpack.packb(said, unicode_errors=NAME_ENCODING_ERRORS)
    return packed


def decode_step(record: bytes) -> tuple[list[Published], list[Settled], Places | None]:
    """The inverse of `encode`. Raises CorruptBatch."""
    try:
        version, written, done, *more = msgpack.unpackb(
            record, unicode_errors=NAME_ENCODING_ERRORS, max_str_len=len(record), max_bin_len=len(record)
        )
        if version != _VERSION:
            raise CorruptBatch(f"a transaction of version {version}")
        places = Places(*more[0]) if more else None
        return [_published(*item) for item in written], [Settled(*item) for item in done], places
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptBatch(f"a damaged transaction: {error}") from error


def _published(
    exchange: str, key: str, keys: list[str] | None, tag: bytes, common: int, raws: list[bytes] | None,
    facts: list[int] | None, bodies: list[bytes], queue_ids: list[int], topics: list[str | bytes], delayed: bool,
) -> Published:  # fmt: skip
    found = Properties.from_log_tag(tag)
    properties: Any = Properties(found.protocol, found.raw, persistent=found.persistent, facts=common)
    slab = Slab(exchange, key, properties, bodies, keys=keys, raws=raws, facts=facts)
    names, ids = [one for one in topics if isinstance(one, str)], [one for one in topics if isinstance(one, bytes)]
    return Published(slab, queue_ids, names, delayed, ids)
