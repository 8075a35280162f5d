"""Records that no consumer of a group gets past, put into a topic of their own (`millrace.dead.letter.fetches`).

A classic group is divided by its members, reads by requests that name no group, and says only how far it has come. So
what is counted is what can be known:

1. A position is *tried* when a member asks where to go on in a partition (OffsetFetch) and is told it. It is tried
   again when that is asked after the member that had the partition has gone (left, or was not heard of any more, or
   another process took its place). Who only asks, and members that come and share anew, are no tries.
2. Where there is nothing yet it is no try. What a member came to by itself, before it went, is none either, as nobody
   knows whether it got that far: a record may be given out once more than the setting says.
3. What is to be tried once more than the setting allows is not: the first record from that position on is copied to
   `TOPIC.dlq`, with the reason in its headers, and when that is committed the group's position moves past it.
4. So it is exact for groups that commit after each record. Where several records are worked on between commits the
   first of them goes, then the next: it need not be the one that fails. A group without a commit has no position.
5. Tries are counted in memory, where the group is looked after: when another broker begins to do so it counts anew.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from core_log.batch_header import parse_header
from core_log.committed import committed
from core_log.errors import LogError
from core_log.record_batch import BatchBuilder, Record, iterate_records
from routing.errors import BrokerError, PreconditionFailed, StorageUnavailable
from routing.groups.group import Group
from routing.republishing.parked_records import append_anywhere
from routing.topics.offset_store import Committed, Partition
from routing.topics.topic import TopicPartition

if TYPE_CHECKING:
    from routing.broker import Broker

logger = logging.getLogger(__name__)

SUFFIX = ".dlq"
_REMEMBERED_MAX = 100_000
_READ_BYTES = 1 << 20


class _Tries(NamedTuple):
    """How often a position was tried; `departures` of members that had the partition were known then."""

    offset: int
    departures: int
    count: int  # type: ignore[assignment]


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
        for place, (offset, note) in found.items():
            topic = self._broker.topics.get(place[0])
            if topic is None or place[1] >= len(topic.partitions) or offset < 0:
                continue
            partition = topic.partitions[place[1]]
            limit = partition.log.config.dead_letter_fetches
            if not limit or offset >= partition.log.stable_offset:
                continue  # with nothing to begin with, it is no try
            if self._is_too_often((group, place), offset, members.departed[place], limit):
                try:
                    moved[place] = await self._bury(group, partition, offset, limit), note
                except BaseException:
                    self._tries[group, place] = _Tries(offset, -1, limit)  # whoever asks next
                    raise
        return found | moved if moved else found

    def _is_too_often(self, key: tuple[str, Partition], offset: int, departures: int, limit: int) -> bool:
        known = self._tries.pop(key, None)
        count = 1
        if known is not None and known.offset == offset:
            count = known.count + (known.departures != departures)
        self._tries[key] = _Tries(offset, departures, min(count, limit))
        if len(self._tries) > _REMEMBERED_MAX:
            self._tries.popitem(last=False)
        return count > limit

    async def _bury(self, group: str, partition: TopicPartition, offset: int, tries: int) -> int:
        """Copy the record at a position; the position behind it."""
        try:
            record = await _record_at(partition, offset)
            if record is None:
                return offset
            await self._copy(group, partition, record, tries)
        except (LogError, BrokerError) as error:
            raise StorageUnavailable(f"the dead letter of group '{group}' cannot be written: {error}") from error
        place = partition.topic_name, partition.index
        await self._broker.offsets.commit(group, {place: (record.offset + 1, "")})
        logger.warning(
            "group %s got %d times no further than record %d of partition %d of topic %s, which is in %s%s now",
            group, tries, record.offset, partition.index, partition.topic_name, partition.topic_name, SUFFIX,
        )  # fmt: skip
        return record.offset + 1

    async def _copy(self, group: str, partition: TopicPartition, record: Record, tries: int) -> None:
        broker, name = self._broker, partition.topic_name + SUFFIX
        if name not in broker.topics:
            try:
                await broker.create_topic(name)
            except PreconditionFailed:
                pass  # somebody else does
        said = {
            "reason": "fetches", "group": group, "topic": partition.topic_name, "partition": partition.index,
            "offset": record.offset, "tries": tries, "timestamp": record.timestamp_ms,
        }  # fmt: skip
        headers = [(f"x-dead-letter-{what}", str(value).encode()) for what, value in said.items()]
        builder = BatchBuilder(0, 0, partition.log.wall_clock_ms())
        builder.add(0, record.key, record.value, [*record.headers, *headers])
        target = append_anywhere(broker.topics[name].partitions[0], builder.build())
        broker.want_turn()
        await broker.commits.committed([target])


async def _record_at(partition: TopicPartition, offset: int) -> Record | None:
    """The first record from an offset on that readers may see."""
    log = partition.log
    offset = max(offset, log.log_start_offset)
    while offset < log.stable_offset:
        batches = await log.read_cold(offset, _READ_BYTES, before=log.stable_offset)
        if not batches:
            return None
        for batch in committed(log, batches):
            header = parse_header(batch)
            if not header.is_control:
                for record in iterate_records(batch):
                    if record.offset >= offset:
                        return record
            offset = max(offset, header.next_offset)
    return None
