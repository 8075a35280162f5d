"""Records that no consumer of a group gets past, put off (`millrace.retry.delays.ms`) and at last into a topic of their
own (`millrace.dead.letter.fetches`).

A classic group is divided by its members, reads by requests that name no group, and says only how far it has come. So
what is counted is what can be known:

1. A position is *tried* when a member asks where to go on in a partition (OffsetFetch) and is told it. It is tried
   again when that is asked after the member that had the partition has gone (left, or was not heard of any more, or
   another process took its place). Who only asks, and members that come and share anew, are no tries. A group that
   gets past it and goes back, or has such a position in a topic that was made anew, tries it anew.
2. Where there is nothing yet it is no try. What a member came to by itself, before it went, is none either, as nobody
   knows whether it got that far: a record may be given out once more than the setting says. Nor is it one while a
   transaction has an offset there, which would be forgotten if the position moved.
3. What is to be tried once more than the setting allows is not: the first record from that position on is copied to
   `TOPIC.dlq`, with the reason in its headers, and when that is committed the group's position moves past it.
4. Before that it is put off, as often as there are delays: a copy comes to the end of its partition when its time has
   come (`delayed_records.py`), with headers that say of which record and for which group it is, and how often that was
   tried. A log has no place that only one group sees, so others get the copy as well. Nothing is put off twice, though
   the broker dies before the group's position has moved; a group that goes back to it later gets another copy.
5. So it is exact for groups that commit after each record. Where several records are worked on between commits the
   first of them goes, then the next: it need not be the one that fails. A group without a commit has no position.
6. Tries are counted in memory, where the group is looked after, whether that broker has the partition or not: when
   another one begins to do so it counts anew.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import trio

from core_log.errors import BatchTooLarge, LogError
from core_log.record_batch import Record
from routing.errors import BrokerError, StorageUnavailable
from routing.groups.group import Group
from routing.republishing.dead_letter_topics import SUFFIX, bury
from routing.topics.offset_store import Committed, Partition
from routing.topics.seen_records import record_at
from routing.topics.topic_partition import TopicPartition

if TYPE_CHECKING:
    from routing.broker import Broker

logger = logging.getLogger(__name__)

_COUNT, _TRIES, _OFFSET, _GROUP = (f"x-retry-{what}" for what in ("count", "tries", "offset", "group"))
_OURS = frozenset((_COUNT, _TRIES, _OFFSET, _GROUP))
_DIGITS_MAX = 18
_REMEMBERED_MAX = 100_000
_PATIENCE_S = 10.0
"""For whoever leads the partition; a log of another broker is else waited for as long as nobody leads it."""


class _Tries(NamedTuple):
    """How often a position was tried, to which the group had come so (`OffsetStore.arrival`); `departures` of members
    that had the partition were known then.
    """

    arrival: int
    departures: int
    count: int  # type: ignore[assignment]


class _Past(NamedTuple):
    """What was before a record that is to go: how often it was put off and tried, and where it lay first."""

    retries: int
    tries: int
    offset: int

    @classmethod
    def of(cls, record: Record, group: str) -> _Past:
        """As the headers of a copy have it; a record that is none, or one for another group, has no past."""
        said = {name: (value or b"").decode("utf-8", "replace") for name, value in record.headers if name in _OURS}
        numbers = [said.get(name, "") for name in (_COUNT, _TRIES, _OFFSET)]
        if said.get(_GROUP) != group or not all(one.isdecimal() and len(one) <= _DIGITS_MAX for one in numbers):
            return cls(0, 0, record.offset)
        return cls(*map(int, numbers))


class PoisonRecords:
    """See the module; one for each broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tries: OrderedDict[tuple[str, Partition], _Tries] = OrderedDict()

    async def look(self, group: str, found: dict[Partition, Committed]) -> dict[Partition, Committed]:
        """Where a group goes on, which asks for it: behind what was tried too often. Raises StorageUnavailable."""
        members = self._broker.groups.groups.get(group)
        if not isinstance(members, Group):
            return found
        moved: dict[Partition, Committed] = {}
        for place, (offset, note, _) in found.items():
            topic = self._broker.topics.get(place[0])
            if topic is None or place[1] >= len(topic.partitions) or offset < 0:
                continue
            partition = topic.partitions[place[1]]
            limit = partition.log.config.dead_letter_fetches
            if not limit or not await _is_anything(partition, offset):
                continue  # with nothing to begin with, it is no try
            arrival = self._arrival(group, place, offset)
            if arrival is None:
                continue  # it moves: what were committed here would undo that
            if self._is_too_often((group, place), arrival, members.departed[place], limit):
                try:
                    moved[place] = await self._bury(group, partition, offset, arrival, limit, note)
                except BaseException:
                    self._tries[group, place] = _Tries(arrival, -1, limit)  # whoever asks next
                    raise
                self._tries.pop((group, place), None)  # who goes back to it tries it anew
        return found | moved if moved else found

    def _arrival(self, group: str, place: Partition, offset: int) -> int | None:
        """Of a group that stands at an offset, whatever transactions are under way; None: it does not."""
        store = self._broker.offsets.store_of(group)
        if store is None or place in store.unstable(group, [place]):
            return None
        at = store.known(group, [place]).get(place)
        return store.arrival(group, place) if at is not None and at.offset == offset else None

    def _is_too_often(self, key: tuple[str, Partition], arrival: int, departures: int, limit: int) -> bool:
        known = self._tries.pop(key, None)
        count = 1
        if known is not None and known.arrival == arrival:
            count = known.count + (known.departures != departures)
        self._tries[key] = _Tries(arrival, departures, min(count, limit))
        if len(self._tries) > _REMEMBERED_MAX:
            self._tries.popitem(last=False)
        return count > limit

    async def _bury(
        self, group: str, partition: TopicPartition, offset: int, arrival: int, tries: int, note: str
    ) -> Committed:
        """Put the record at a position off, or copy it; the position behind it, or where the group is meanwhile."""
        place = partition.topic_name, partition.index
        try:
            record = await _found(partition, offset)
            if record is None:
                return Committed(offset, note)
            past, delays = _Past.of(record, group), partition.log.config.retry_delays_ms
            past = past._replace(tries=past.tries + tries)
            plain = record._replace(headers=[one for one in record.headers if one[0] not in _OURS])
            what = await self._move(group, partition, plain, past, delays)
        except (LogError, BrokerError) as error:
            raise StorageUnavailable(f"the dead letter of group '{group}' cannot be written: {error}") from error
        if self._arrival(group, place, offset) != arrival:
            return (await self._broker.offsets.fetch(group, [place])).get(place, Committed(-1))
        await self._broker.offsets.commit(group, {place: Committed(record.offset + 1)})
        logger.warning(
            "group %s got %d times no further than record %d of partition %d of topic %s, which %s",
            group, tries, record.offset, partition.index, partition.topic_name, what,
        )  # fmt: skip
        return Committed(record.offset + 1, note)

    async def _move(
        self, group: str, partition: TopicPartition, record: Record, past: _Past, delays: Sequence[int]
    ) -> str:
        """Put a record off, while there are delays and it has room for what is said about it; what became of it."""
        if past.retries < len(delays):
            try:
                await self._put_off(group, partition, record, past, delays[past.retries])
                return f"comes again in {delays[past.retries]} ms"
            except BatchTooLarge:
                pass
        await self._copy(group, partition, record, past)
        return f"is in {partition.topic_name}{SUFFIX} now"

    async def _put_off(self, group: str, partition: TopicPartition, record: Record, past: _Past, delay_ms: int) -> None:
        said = {_GROUP: group, _COUNT: past.retries + 1, _TRIES: past.tries, _OFFSET: past.offset}
        headers = [(name, str(value).encode()) for name, value in said.items()]
        copy = record._replace(headers=[*record.headers, *headers])
        store = self._broker.offsets.store_of(group)
        place = partition.topic_name, partition.index
        since_ms = store.committed_ms(group, place) if store is not None else None  # others when it comes back to this
        name = f"retry.{group}.{record.offset}.{since_ms or 0}"
        await self._broker.delayed.put_off(partition, copy, delay_ms, name)

    async def _copy(self, group: str, partition: TopicPartition, record: Record, past: _Past) -> None:
        said = {"reason": "fetches", "group": group, "offset": past.offset, "tries": past.tries}
        await bury(self._broker, partition, [(record, said)])


async def _is_anything(partition: TopicPartition, offset: int) -> bool:
    """Whether readers see anything from an offset on: its leader is asked what is not known here, if there is one."""
    if offset < partition.log.stable_offset:
        return True
    if partition.forward is None or partition.forward.error() is not None:
        return False
    with suppress(StorageUnavailable):
        return offset < (await partition.forward.ends())[1]
    return False


async def _found(partition: TopicPartition, offset: int) -> Record | None:
    """The record that readers see there. Raises StorageUnavailable (whoever has it does not answer), LogError."""
    with trio.move_on_after(_PATIENCE_S):
        return await record_at(partition, offset)
    raise StorageUnavailable(f"nobody gives out record {offset} of {partition.topic_name}-{partition.index}")
