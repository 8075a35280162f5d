"""Groups that fall too far behind in a topic (`millrace.max.lag`): it is said, or they are moved on, and it is counted.

1. Whoever looks after a group looks at where it stands and where the partition ends, every `reclaim_interval_ms`. That
   costs the same for each such place, however many records lie between.
2. With `alert` a line of the log says that a group got too far behind in a partition, once until it is not any more.
3. With `skip` its position is moved, to `millrace.max.lag` before the end: what lies between is for others. Members
   that have the partition are put out first, so that none commits what it had; they join again and go on there. Only
   groups that the topic names are moved.
4. With `dead-letter` it is moved as far, a MiB at a time, each when the records in it that readers see are copied to
   `TOPIC.dlq` (`republishing/dead_letter_topics.py`) and committed there: none is lost, and what was copied when the
   broker died is copied once more. `_PIECES_MAX` at a time; the rest when it is looked at the next time.
5. A group has a position where it has committed one. While a transaction may change that it is let be. So is it in a
   topic that was made anew since it was looked at.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from core_log.errors import LogError
from routing.errors import BrokerError
from routing.groups.errors import GroupError
from routing.republishing.dead_letter_topics import SUFFIX, bury_range
from routing.topics.offset_store import Partition
from routing.topics.topic_partition import TopicPartition

if TYPE_CHECKING:
    from routing.broker import Broker

logger = logging.getLogger(__name__)

_PIECES_MAX = 64
PATIENCE_S = 2.0
"""For so long the leaders of partitions that are not here are waited for, all together; what they have not said by then
is left out."""


class LagRules:
    """See the module; one for each broker. Counts are since its start."""

    def __init__(self, broker: Broker) -> None:
        self.alerts = 0
        """So often a group got too far behind in a partition."""
        self.skips = 0
        """So often one was moved on there."""
        self.skipped_records = 0
        """And by so many offsets in all."""
        self.dead_letters = 0
        """So many records were copied instead."""
        self._broker = broker
        self._over: set[tuple[str, Partition]] = set()
        self._looking = False

    def due(self) -> None:
        """It is time to look; not twice at once."""
        if not self._looking:
            self._looking = True
            self._broker.spawn(self._look_once)

    async def _look_once(self) -> None:
        try:
            await self.look()
        finally:
            self._looking = False

    async def look(self) -> None:
        """See the module's rules."""
        broker = self._broker
        ruled = {topic.name: topic.partitions for topic in broker.topics.values() if _has_rule(topic.partitions)}
        over: set[tuple[str, Partition]] = set()
        if ruled:
            deadline_s = trio.current_time() + PATIENCE_S
            for group in broker.groups.names():
                places = broker.offsets.known(group)
                found = await self._behind(group, [place for place in places if place[0] in ruled], ruled, deadline_s)
                over.update((group, place) for place in found)
                await self._act(group, found)
        self._over = over

    async def _behind(
        self, group: str, places: list[Partition], ruled: dict[str, list[TopicPartition]], deadline_s: float
    ) -> dict[Partition, tuple[TopicPartition, int, int]]:
        """Where a group is too far behind: the partition, by how many records, and where that has its end."""
        found = {}
        for name, index in places:
            if index >= len(ruled[name]):
                continue
            partition = ruled[name][index]
            config = partition.log.config
            if config.max_lag_groups and group not in config.max_lag_groups:
                continue
            ends = await ends_of(partition, deadline_s)
            where = self._broker.offsets.known(group, [(name, index)]).get((name, index))
            if ends is None or where is None:
                continue
            behind = ends[1] - max(where[0], ends[0])
            if behind > config.max_lag:
                found[name, index] = partition, behind, ends[1]
        return found

    async def _act(self, group: str, found: dict[Partition, tuple[TopicPartition, int, int]]) -> None:
        moves: dict[Partition, int] = {}
        for place, (partition, behind, end) in found.items():
            config = partition.log.config
            if (group, place) not in self._over:
                self.alerts += 1
                logger.warning(
                    "group %s is %d records behind in partition %d of topic %s, more than %d",
                    group, behind, place[1], place[0], config.max_lag,
                )  # fmt: skip
            if config.max_lag_action == "skip":
                moves[place] = end - config.max_lag
            elif config.max_lag_action == "dead-letter":
                await self._bury(group, place, partition, end - config.max_lag)
        moves = {place: offset for place, offset in moves.items() if self._is_there(found[place][0])}
        if not moves:
            return
        try:
            moved = await self._broker.groups.move_on(group, moves)
        except (GroupError, BrokerError) as error:
            logger.warning("group %s is not moved on: %s", group, error)
            return
        for place, count in moved.items():
            self.skips += 1
            self.skipped_records += count
            logger.warning(
                "group %s skips %d records of partition %d of topic %s, and goes on at %d",
                group, count, place[1], place[0], moves[place],
            )  # fmt: skip

    async def _bury(self, group: str, place: Partition, partition: TopicPartition, end: int) -> None:
        """Rule 4."""
        groups, offsets, before = self._broker.groups, self._broker.offsets, self.dead_letters
        at = -1
        try:
            for _ in range(_PIECES_MAX):
                at = offsets.known(group, [place]).get(place, (end, ""))[0]
                if at >= end or groups.unstable(group, [place]) or not self._is_there(partition):
                    break
                count, reached = await bury_range(self._broker, partition, at, end, {"reason": "lag", "group": group})
                self.dead_letters += count
                if reached <= at or not self._is_there(partition):
                    break
                if not await groups.move_on(group, {place: reached}):
                    break
                at = reached
        except (GroupError, BrokerError, LogError) as error:
            logger.warning("group %s is not moved on: %s", group, error)
        if self.dead_letters > before:
            logger.warning(
                "%d records of partition %d of topic %s that group %s is behind are in %s now, and it goes on at %d",
                self.dead_letters - before, place[1], place[0], group, place[0] + SUFFIX, at,
            )  # fmt: skip

    def _is_there(self, partition: TopicPartition) -> bool:
        """Its topic is not deleted, also not if there is another one of the name."""
        topic = self._broker.topics.get(partition.topic_name)
        return topic is not None and partition in topic.partitions


def _has_rule(partitions: list[TopicPartition]) -> bool:
    return bool(partitions) and partitions[0].log.config.max_lag > 0


async def ends_of(partition: TopicPartition, deadline_s: float) -> tuple[int, int] | None:
    """Where a partition begins, and what is behind all that can be read; None if its leader does not say by then."""
    if partition.is_here:
        return partition.log.log_start_offset, partition.log.high_watermark
    if partition.forward is None:
        return None  # it is not known yet who leads
    with trio.move_on_at(deadline_s):
        try:
            return await partition.ends()
        except BrokerError:
            return None
    return None
