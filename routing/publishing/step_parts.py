"""What a step of a writer (`published_once.py`) puts into each log, and what of that a log has already.

1. A part is what goes to one log: a home partition or a partition of a topic. It is put in the order that the step's
   redo record has, so what a log has of it after a crash is the beginning, but for what was for queues that are gone.
   It lies behind where the log ended before the step was decided.
2. The messages of a step are known by a header that all of them have and no reader of messages is shown. Messages that
   were moved within a log (`relocation.py`) count once, where they lay first, also when they lie there no more.
3. A queue or topic that is gone gets nothing. Keys are divided among as many partitions as a topic had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from core_log.batch_header import parse_header
from core_log.files import BytesLike
from core_log.murmur2 import partition_of_key
from core_log.record_fields import decode_fields
from routing.message import Slab
from routing.publishing.deduplication import put
from routing.queues.homes.directory import DIRECTORY_BIT, Directory, directory_of
from routing.queues.homes.home import for_others
from routing.queues.homes.queue_partition import QueuePartition
from routing.redo_records import Places, Published
from routing.topics.topic import Topic
from routing.topics.topic_partition import TopicPartition
from routing.topology.route import Route


class Part(NamedTuple):
    """See the module."""

    publishes: list[Published]
    places: Places
    """Of this log alone."""

    @property
    def home(self) -> int:
        """The home partition that it is for; -1: it is for a topic."""
        return self.places.homes[0][0] if self.places.homes else -1

    def partition(self, topics: Mapping[str, Topic]) -> TopicPartition:
        """That of a topic that it is for. Raises KeyError."""
        name, index, _ = self.places.topics[0]
        return topics[name].partitions[index]

    @property
    def since(self) -> int:
        """Where it lies behind, as far as the log has it."""
        return self.places.homes[0][1] if self.places.homes else self.places.topics[0][2]


def parts_of(publishes: Sequence[Published], places: Places, topics: Mapping[str, Topic]) -> list[Part]:
    """A step by logs."""
    found = []
    for index, since, *queue_ids in places.homes:
        there = frozenset(queue_ids)
        mine = [
            one._replace(queue_ids=[queue_id for queue_id in one.queue_ids if queue_id in there], topics=[])
            for one in publishes
        ]
        where = Places(places.marker, [(index, since, *queue_ids)], [])
        found.append(Part([one for one in mine if one.queue_ids], where))
    for name in dict.fromkeys(name for name, _, _ in places.topics):
        if name in topics:
            found += _parts_of_topic(topics[name], publishes, places)
    return [part for part in found if part.publishes]


def _parts_of_topic(topic: Topic, publishes: Sequence[Published], places: Places) -> list[Part]:
    ends = {index: since for name, index, since in places.topics if name == topic.name}
    mine: dict[int, list[Published]] = {index: [] for index in ends}
    for one in publishes:
        if topic not in one.there({topic.name: topic}):
            continue
        chosen: dict[int, list[int]] = {}
        for at in range(len(one.slab)):
            key, partition = topic.place(topic.key_of(one.slab, at))
            index = partition.index if len(ends) == len(topic.partitions) else partition_of_key(key, len(ends))
            chosen.setdefault(index, []).append(at)
        for index, ats in chosen.items():
            mine[index].append(Published(_picked(one.slab, ats), [], [topic.name], False))
    return [Part(mine[index], Places(places.marker, [], [(topic.name, index, since)])) for index, since in ends.items()]


def _picked(slab: Slab, ats: Sequence[int]) -> Slab:
    """Some of its messages."""
    if len(ats) == len(slab):
        return slab
    keys, raws, facts = slab.keys, slab.raws, slab.facts
    return Slab(
        slab.exchange,
        slab.key_of(ats[0]),
        slab.properties,
        [slab.bodies[at] for at in ats],
        keys=None if keys is None else [keys[at] for at in ats],
        raws=None if raws is None else [raws[at] for at in ats],
        facts=None if facts is None else [facts[at] for at in ats],
    )


class BodiesFound:
    """The bodies of a step's messages in a log, by the offsets that these had first of all."""

    def __init__(self, part: Part) -> None:
        self._marker = part.places.marker
        self._is_home = part.home >= 0
        self._by_first: dict[int, bytes] = {}
        self._moved: list[tuple[int, int, int]] = []
        """Where slabs lie of which the last directory says that they were moved, how many messages they have, and where
        the first of these lay.
        """

    def take(self, batches: Iterable[BytesLike]) -> int:
        """Look into the next batches of the log; the offset behind the last of them. Raises CorruptBatch."""
        end = 0
        for batch in batches:
            header = parse_header(batch)
            end = header.next_offset
            if self._is_home and (header.is_control or header.attributes & DIRECTORY_BIT):
                self._moved = [] if header.is_control else _moved(directory_of(batch, header))
            if header.is_control or not header.record_count:
                continue
            if not (header.compression or self._marker in bytes(batch)):
                continue
            fields = decode_fields(batch)
            for offset, value, block in zip(fields.offsets, fields.values, fields.header_blocks):
                if self._marker in block:
                    self._by_first[self._first(offset)] = value or b""
        return end

    def _first(self, offset: int) -> int:
        for lies, count, first in self._moved:
            if lies <= offset < lies + count:
                return first + offset - lies
        return offset

    @property
    def bodies(self) -> list[bytes]:
        """In the order in which they were put."""
        return [self._by_first[first] for first in sorted(self._by_first)]


def _moved(directory: Directory) -> list[tuple[int, int, int]]:
    if directory.moves is None:
        return []
    return [
        (lies, count, move.offset) for lies, count, move in zip(directory.firsts, directory.counts, directory.moves)
    ]


def _missing(slab: Slab, there: deque[bytes]) -> Slab | None:
    """What of a slab has to be put, if `there` are the bodies that are there of it and of what comes after it."""
    for at, body in enumerate(slab.bodies):
        if not there:
            return slab.part(at, len(slab))
        if there[0] == body:
            there.popleft()
    return None


def put_home(home: QueuePartition, part: Part, bodies: Iterable[bytes], now_ms: Callable[[], int]) -> None:
    """Have a home hold all of its part, of which it has these bodies. Raises LogUnavailable."""
    there = deque(bodies)
    for one in part.publishes:
        rest = _missing(one.slab, there)
        queues = [home.queues[queue_id] for queue_id in one.queue_ids if queue_id in home.queues]
        if rest is not None and queues:
            route = Route(queues, [], delayed=one.delayed)
            with for_others((home,)):
                put(route, rest, now_ms)
    home.seal()


def put_topic(topics: Mapping[str, Topic], part: Part, bodies: Iterable[bytes]) -> None:
    """The same of a partition of a topic. Raises KeyError, LogUnavailable."""
    topic, partition = topics[part.places.topics[0][0]], part.partition(topics)
    there = deque(bodies)
    for one in part.publishes:
        rest = _missing(one.slab, there)
        if rest is not None:
            for _, keys, blocks, chosen, body_bytes in topic.columns(rest):
                partition.append_records(keys, blocks, chosen, body_bytes)
    partition.seal()
