"""What to read: the ranges of offsets that options mean.

1. `resolve` asks the broker once, at planning. The ranges it returns are all a task needs, so a task that runs again
   reads the same records.
2. Plain data only: ranges are pickled into other processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from protocols.native.clients.blocking import KnownTopic, Which
from protocols.native.errors import UnknownTopic
from spark_bridge.options import EARLIEST, LATEST, Boundary, OptionError, ReadOptions

JOINED_SIZE_MAX = 5_000
"""Ranges are read by one task up to so many offsets: a task takes longer to start than those take to be read."""
RANGE_SIZE_MIN = 250
"""A smaller range counts as this one there."""

Partitions = dict[tuple[str, int], str]
"""Topic and number of each, in order, with the topic's id (`OffsetRange.topic_id`)."""

Placed = tuple[int, int, list[int | None]]
"""Of a partition: where it begins and ends, and the offsets of some boundaries; None: no record is that late."""


class DataLoss(RuntimeError):
    """Records that were asked for are no longer in the log (and `failOnDataLoss` is true)."""


@dataclass(frozen=True)
class OffsetRange:
    """The records of one partition with start_offset <= offset < end_offset."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    reader: str | None = None
    """None: of a topic. Of a queue: empty for what waits in it, else for whom messages are set aside, by positions."""
    topic_id: str = ""
    """Of the very topic, or queue, that is meant, in hexadecimal; empty when it is not known."""


class OffsetSource(Protocol):
    """What `resolve` asks of a client; `protocols.native.clients.blocking.BlockingClient` has it."""

    def topics(self, names: Sequence[str] | None = None) -> Mapping[str, KnownTopic]:
        """Partitions and ids by topic; all topics for None. Raises UnknownTopic."""

    def list_many_offsets(self, wanted: Sequence[tuple[str, int, Which]]) -> list[int | None]:
        """The offset at "earliest", "latest" or a timestamp in ms of each; None when no record is that late."""


def resolve(client: OffsetSource, options: ReadOptions) -> list[OffsetRange]:
    """The ranges that `options` mean now, one a partition, without empty ones, in the order of topic and partition.

    Raises `OptionError` for partitions that do not exist or are not named, `DataLoss` for offsets out of the log.
    """
    partitions = partitions_of(client, options)
    for boundary in (options.start, options.end):
        check_named(boundary, partitions)
    found = placed(client, partitions, (options.start, options.end))
    ranges = [_resolve_range(options, one, known) for one, known in zip(partitions, found, strict=True)]
    return [
        replace(one, topic_id=partitions[one.topic, one.partition])
        for one in ranges
        if one.start_offset < one.end_offset
    ]


def placed(client: OffsetSource, partitions: Partitions, boundaries: Sequence[Boundary]) -> list[Placed]:
    """Of each partition where it begins and ends, and the offsets that these boundaries mean. One question for all."""
    times = [boundary for boundary in boundaries if boundary.is_time]
    wanted: list[tuple[str, int, Which]] = []
    for one in partitions:
        wanted += [(*one, "earliest"), (*one, "latest"), *((*one, boundary.of(*one)) for boundary in times)]
    answers = iter(client.list_many_offsets(wanted))
    found = []
    for one in partitions:
        known = {EARLIEST: next(answers) or 0, LATEST: next(answers) or 0}
        places: list[int | None] = []
        for boundary in boundaries:
            number = boundary.of(*one)
            place = next(answers) if boundary.is_time else known.get(number, number)
            # What is found by time behind the end is of a transaction that is open: no record that late, yet.
            places.append(None if boundary.is_time and place is not None and place >= known[LATEST] else place)
        found.append((known[EARLIEST], known[LATEST], places))
    return found


def _resolve_range(options: ReadOptions, one: tuple[str, int], known: Placed) -> OffsetRange:
    topic, partition = one
    earliest, latest, places = known
    start, end = places
    if start is None:
        if options.start_time_missing == "error":
            raise OptionError(
                f"{options.start.option}: no record of {topic}-{partition} is that late; "
                "startingOffsetsByTimestampStrategy=latest reads nothing of such a partition instead"
            )
        start = latest
    end = latest if end is None else end
    from_earliest = not options.start.is_time and options.start.of(topic, partition) == EARLIEST
    if start > end and not from_earliest and not options.start.is_time and not options.end.is_time:
        raise OptionError(f"{topic}-{partition}: the starting offset {start} is after the ending offset {end}")
    gone = end < earliest if from_earliest else start < end and not earliest <= start <= latest
    if options.fail_on_data_loss and (gone or (start < end and end > latest)):
        raise DataLoss(
            f"{topic}-{partition}: offsets {start} to {end} were asked for, the log has {earliest} to {latest}; "
            "failOnDataLoss=false reads what there is"
        )
    return OffsetRange(topic, partition, max(start, earliest), min(end, latest))


def divide(ranges: list[OffsetRange], options: ReadOptions) -> list[tuple[OffsetRange, ...]]:
    """What each task reads. Ranges are cut so that there are about `minPartitions`, in proportion to their sizes, and
    none is above `maxRecordsPerPartition`; without `minPartitions` a task reads several small ones.

    The same ranges are always divided in the same way: sinks rely on it.
    """
    count_min, size_max = options.input_partitions_min, options.records_per_partition_max
    total = sum(one.end_offset - one.start_offset for one in ranges)
    parts: list[OffsetRange] = []
    for one in ranges:
        size = one.end_offset - one.start_offset
        pieces = 1 if len(ranges) >= count_min else max(1, min(size, round(size / total * count_min)))
        if size_max:
            pieces = max(pieces, -(-size // size_max))
        cuts = [one.start_offset + size * piece // pieces for piece in range(pieces + 1)]
        parts += [replace(one, start_offset=low, end_offset=high) for low, high in pairwise(cuts)]
    most = min(JOINED_SIZE_MAX, size_max or JOINED_SIZE_MAX)
    return [(one,) for one in parts] if count_min > 1 else _joined(parts, most)


def _joined(parts: list[OffsetRange], most: int) -> list[tuple[OffsetRange, ...]]:
    tasks: list[list[OffsetRange]] = []
    room = 0
    for one in parts:
        weight = max(one.end_offset - one.start_offset, RANGE_SIZE_MIN)
        if weight > room or not tasks:
            tasks.append([])
            room = most
        tasks[-1].append(one)
        room -= weight
    return [tuple(task) for task in tasks]


def partitions_of(client: OffsetSource, options: ReadOptions, *, as_far: bool = False) -> Partitions:
    """What is to be read, in order. Raises `OptionError` for topics and partitions that are not there, but leaves them
    out with `as_far`.
    """
    if options.pattern is not None:
        existing = client.topics(None)
        existing = {name: existing[name] for name in existing if re.fullmatch(options.pattern, name)}
    else:
        existing = existing_topics(client, sorted(set(options.topics or options.assignment or ())), as_far=as_far)
    there = {(topic, number): one.id.hex() for topic, one in existing.items() for number in one.partitions}
    if options.assignment is None:
        return dict(sorted(there.items()))
    pairs = sorted((topic, number) for topic, numbers in options.assignment.items() for number in set(numbers))
    for topic, partition in pairs:
        if not as_far and (topic, partition) not in there:
            raise OptionError(f"assign: topic {topic!r} has no partition {partition}")
    return {one: there[one] for one in pairs if one in there}


def existing_topics(client: OffsetSource, names: list[str], *, as_far: bool) -> Mapping[str, KnownTopic]:
    """These topics. Raises `OptionError` for one that is not there, but leaves it out with `as_far`."""
    try:
        return client.topics(names)
    except UnknownTopic:
        if len(names) == 1 and as_far:
            return {}
        if len(names) == 1:
            raise OptionError(f"there is no topic {names[0]!r}") from None
    return {name: known for one in names for name, known in existing_topics(client, [one], as_far=as_far).items()}


def check_named(boundary: Boundary, partitions: Partitions) -> None:
    """Offsets given one by one must name each partition that is read, and no other."""
    if isinstance(boundary.value, int):
        return
    named = {(topic, partition) for topic, numbers in boundary.value.items() for partition in numbers}
    for what, odd in (("does not name", set(partitions) - named), ("names", named - set(partitions))):
        if odd:
            listed = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(odd))
            raise OptionError(f"{boundary.option} {what} {listed}; it must name the partitions that are read")
