"""Partitions added to a topic whose keys keep their order for some groups (`millrace.split.groups`).

From then on records of a key may come into another partition than before, where a reader could have them while older
ones still wait in the first. So what is added is *held*: it takes records, and nobody sees them, until

1. `millrace.split.settle.ms` have passed, so that all producers know of it, and what they had divided as before is in
   the log or never will be. Where the others end then is noted;
2. each of the groups has committed all that is before that, or it is not there any more.

Then all is seen at once. This is exact if the time is long enough, and what divides keys takes a hash of them modulo
the number of partitions, as Kafka's clients do: with a multiple of that number, the only one that is allowed, no key
goes to another of the partitions that were there.

3. `millrace.split.state` says that this goes on, in the topic's entry, written together with the number of partitions:
   so every broker, old or new leader, holds what is held, and there is nothing else to be kept. The leader of the first
   partition looks; another one notes a later end, which is safe.
4. A group that does not come so far is waited for `millrace.split.wait.max.ms`, no longer. Who takes the groups away
   ends it at once.
5. What a group reads again from before that is not in the order of keys any more, nor what others read that are behind
   the groups then: a log cannot tell who reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from core_log.errors import LogError
from routing.errors import BrokerError, InvalidConfig, InvalidPartitions, PreconditionFailed
from routing.republishing.parked_records import led_here
from routing.topics.offset_store import Partition
from routing.topics.seen_records import record_at
from routing.topics.topic import Topic
from routing.topics.topic_config import SPLIT_GROUPS, SPLIT_STATE

if TYPE_CHECKING:
    from routing.broker import Broker

logger = logging.getLogger(__name__)

_LOOK_S = 0.25


def begun(topic: Topic, count: int, now_ms: int) -> dict[str, str]:
    """The configuration of a topic that gets partitions until there are `count`. Raises InvalidPartitions,
    PreconditionFailed (those that it got last are not read yet).
    """
    config, there = topic.partitions[0].log.config, len(topic.partitions)
    if not config.split_groups:
        return topic.config
    if config.split_from:
        text = f"partitions from {config.split_from} on of topic '{topic.name}' are not read yet ({SPLIT_STATE})"
        raise PreconditionFailed(text)
    if count % there:
        text = f"partitions of topic '{topic.name}' must be a multiple of {there} for keys to keep their order, not "
        raise InvalidPartitions(f"{text}{count} ({SPLIT_GROUPS})")
    return topic.config | {SPLIT_STATE: f"{there}:{now_ms}"}


def kept(before: Mapping[str, str], after: dict[str, str]) -> dict[str, str]:
    """What somebody makes of a configuration, with the state as it is: gone, if there are no groups. Raises
    InvalidConfig.
    """
    state = before.get(SPLIT_STATE)
    if after.get(SPLIT_STATE, state) != state:
        raise InvalidConfig(f"topic config {SPLIT_STATE} is the broker's to set")
    return ended(after) | ({SPLIT_STATE: state} if state and after.get(SPLIT_GROUPS, "").strip(", ") else {})


def ended(config: Mapping[str, str]) -> dict[str, str]:
    """The same where all partitions are read."""
    return {name: value for name, value in config.items() if name != SPLIT_STATE}


class OrderedSplits:
    """See the module; one for each broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._version = -1
        """Of all topics, when it was looked which of them are being split: none is without another version."""
        self._splitting: list[Topic] = []
        self._splits: dict[tuple[Topic, str], _Split] = {}
        """That go on, and are looked at here."""
        broker.spawn(self._run)

    async def _run(self) -> None:
        topics = self._broker.topics
        while True:
            if self._version != topics.version:
                self._version = topics.version
                self._splitting = [topic for topic in topics.values() if SPLIT_STATE in topic.config]
            led = [topic for topic in self._splitting if led_here(topic, 0) is not None]
            self._splits = {(one, one.config[SPLIT_STATE]): self._split(one) for one in led}
            for (topic, _), split in self._splits.items():
                try:
                    if await split.is_over():
                        await self._broker.topic_control.end_split(topic)
                        self._broker.end_turn()
                except (BrokerError, LogError, OSError) as error:
                    logger.info("new partitions of topic %s are not read yet: %s", topic.name, error)
            await trio.sleep(_LOOK_S if self._splitting else 4 * _LOOK_S)

    def _split(self, topic: Topic) -> _Split:
        return self._splits.get((topic, topic.config[SPLIT_STATE])) or _Split(self._broker, topic)


class _Split:
    """Of one topic."""

    def __init__(self, broker: Broker, topic: Topic) -> None:
        self._broker = broker
        self._topic = topic
        self._since_ms = min(topic.partitions[0].log.config.split_since_ms, broker.clock.now_ms())
        """Of a clock that was ahead it is when this was first looked at."""
        self._left: dict[str, dict[Partition, int]] | None = None
        """Rule 2: how far each group still has to come, once that is known."""
        self._reached: dict[tuple[str, Partition], int] = {}

    async def is_over(self) -> bool:
        """Whether nothing is held back any more. Raises StorageUnavailable, LogError."""
        config, now_ms = self._topic.partitions[0].log.config, self._broker.clock.now_ms()
        settled_ms = self._since_ms + config.split_settle_ms
        if now_ms < settled_ms:
            return False
        old = self._topic.partitions[: config.split_from]
        places = {(self._topic.name, one.index): await one.ends() for one in old}
        ends = {place: end for place, (_, end) in places.items()}
        if self._left is None:
            self._left = dict.fromkeys(config.split_groups, ends)
        for group in list(self._left):
            # What was at the end then may be gone with a leader that had it alone.
            wanted = {place: min(end, ends[place]) for place, end in self._left.get(group, {}).items()}
            starts = {place: start for place, (start, _) in places.items()}
            left = self._left[group] = await self._lacking(group, wanted, starts)
            if not left or group not in config.split_groups:
                del self._left[group]
        if self._left and now_ms >= settled_ms + config.split_wait_ms_max:
            text = "new partitions of topic %s are read now, though groups %s have not read what was before"
            logger.warning(text, self._topic.name, ", ".join(self._left))
            return True
        return not self._left

    async def _lacking(
        self, group: str, wanted: dict[Partition, int], starts: dict[Partition, int]
    ) -> dict[Partition, int]:
        """Where a group has not come as far as it should."""
        found = await self._broker.offsets.fetch(group, list(wanted))
        lacking = {}
        for place, end in wanted.items():
            reached = max(found.get(place, (0, ""))[0], starts[place])
            before, self._reached[group, place] = self._reached.get((group, place)), reached
            if reached >= end or (reached == before and await self._is_nothing(place, reached, end)):
                continue
            lacking[place] = end
        return lacking

    async def _is_nothing(self, place: Partition, offset: int, end: int) -> bool:
        """Whether readers see no record there, so that they may never commit the end: what is behind the last record
        may be of transactions, or the record too old.
        """
        partition = self._topic.partitions[place[1]]
        if partition.log.stable_offset < end:
            return False
        record = await record_at(partition, offset)
        return record is None or record.offset >= end
