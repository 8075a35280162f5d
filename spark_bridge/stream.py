"""Topics as a stream: which offsets a micro-batch reads, and how far the query has come.

1. A stream's offset is `{"topic": {"0": n}}`, in the order of topic and partition: all before `n` is read. Spark's
   checkpoint keeps it and is the only truth about the query; what is between two offsets is read as a batch is, so a
   micro-batch that runs again reads the same records. Options that say how it is divided into tasks are kept there,
   too, under an empty topic: sinks need it to come again in the same tasks, whatever the options are by then. Beside
   them are the ids of the topics, so that one which was deleted and made again is known for another, and where
   partitions began of which the micro-batch is the first: that is asked once, as the answer may be another by the time
   it comes again. Offsets of earlier versions have none of these, and earlier versions pass over them.
2. `latestOffset` obeys the limit it is given: what there is to read is shared out in proportion to what waits in each
   partition. With `availableNow` nothing is read that came later than the query's start.
3. Partitions that are new, or whose topics are, are read from their beginning. Those that are gone are lost data, and
   so are those that are new and do not begin at 0, topics that were made again, which with `failOnDataLoss=false` are
   new ones, and the end of a log that is shorter than it was: with that option it is read from where it ends now.
4. The broker is told how far the query has come as offsets of a group, for `millrace groups` and everything else that
   shows lag, and keeps what the query has not read, for `leaseMs` after it was last heard of. Of a queue that is
   browsed it is told where the query stands, and keeps nothing. Nothing is ever read from there; a failure to tell is
   logged, no more.
5. A micro-batch of one small task is read when it is planned, and its rows go with the plan (`handed_over.py`): no task
   in another process is needed. What cannot be read then is left to a task, which says why or is tried again.

The reader lives in one process of the driver for as long as the query runs, and keeps its connection.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from core_log.errors import CorruptBatch
from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import MillraceError, UnknownPartition, UnknownTopic
from spark_bridge.handed_over import HANDED_OVER_BYTES_MAX, HandingOver
from spark_bridge.offsets import (
    JOINED_SIZE_MAX,
    DataLoss,
    OffsetRange,
    Partitions,
    check_named,
    divide,
    existing_topics,
    partitions_of,
    placed,
)
from spark_bridge.options import OptionError, ReadOptions
from spark_bridge.reader import connect, read_ranges, read_small
from spark_bridge.sources import Source, source_of

Offsets = dict[str, dict[str, Any]]
"""A stream's offset; see the module's rule 1."""

_NOTES = ""
"""What stands in place of a topic for how a micro-batch is divided, for the ids of topics, and for beginnings."""
_IDS = "topicIds"
_BEGINS = "begins"

Ids = dict[str, str]
"""The ids of topics, as far as they are known."""

Places = dict[tuple[str, int], int]
"""The same by partition."""

BROWSER_TOLD_S = 30.0
"""The broker is told so often at least where a queue is browsed: it keeps that in memory, and may have begun anew."""

logger = logging.getLogger(__name__)


class MillraceStreamReader(HandingOver, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """See the module. Spark calls all but `read` in one process, one after the other."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._client: BlockingClient | None = None
        self._source: Source | None = None
        self._target: Places | None = None
        """Where to stop, with `availableNow`."""
        self._initial: Offsets | None = None
        """Where the query begins; Spark keeps that nowhere, and asks for it more than once."""
        self._ids: Ids = {}
        """Of the topics whose ends were asked last."""
        self._known_ends: Places = {}
        """Where partitions ended when that was last asked."""
        self._told: Places = {}
        """What the broker knows of how far the query has come."""
        self._lease_due = 0.0
        self._triggered_s = -math.inf
        """When there was a micro-batch to plan last, where one needs so many offsets."""
        self._holder = uuid4().hex
        """Of the lease: other queries with the same options have the same name."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_client": None, "_source": None}

    def initialOffset(self) -> Offsets:
        """Where a query without a checkpoint begins. Raises `OptionError`, `MillraceError`."""
        if self._initial is not None:
            return self._initial
        source = self._connected_source()
        partitions = partitions_of(source.log, source.options)
        check_named(self.options.start, partitions)
        found = placed(source.log, partitions, [self.options.start])
        places = {one: self._start(*one, latest, *places) for one, (_, latest, places) in zip(partitions, found)}
        if self._target is not None:  # Spark has that asked before: what came in between is before the query, too
            self._target |= {one: max(place, self._target.get(one, place)) for one, place in places.items()}
        self._initial = self._offset(places, _ids_by_topic(partitions))
        return self._initial

    def latestOffset(self, start: Offsets | None = None, limit: ReadLimit | None = None) -> Offsets:
        """Up to where the next micro-batch reads. Raises `DataLoss`, `OptionError`, `MillraceError`."""
        begin, known = _places(start or {}), _ids(start or {})
        self._tell(begin)
        ends = self._ends() if self._target is None else self._target
        ids = known | self._ids
        self._check_kept(begin, ends, _made_again(known, ids))
        kept = _without(begin, _made_again(known, ids))
        if self._waits(kept, ends):
            return start or {}
        new = self._beginnings(ends.keys() - kept.keys())
        if isinstance(limit, ReadMaxRows):
            ends = shared_out(kept | new, ends, limit.max_rows)
        begins = new if start != self._initial else new | {one: kept[one] for one in ends.keys() & kept.keys()}
        end = self._offset(ends, ids, begins)
        return start if start and _same(start, end) else end

    def _waits(self, begin: Places, ends: Places) -> bool:
        """Whether there is too little yet for a micro-batch; see `minOffsetsPerTrigger`. New partitions count whole."""
        now_s, due_s = time.monotonic(), self._triggered_s + self.options.trigger_delay_ms_max / 1000
        waiting = sum(max(end - begin.get(one, 0), 0) for one, end in ends.items())
        if waiting < self.options.offsets_per_trigger_min and self._target is None and now_s < due_s:
            return True
        self._triggered_s = now_s
        return False

    def getDefaultReadLimit(self) -> ReadLimit:
        """What `maxOffsetsPerTrigger` says."""
        most = self.options.offsets_per_trigger_max
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def reportLatestOffset(self) -> Offsets:
        """Where the topics ended when that was last asked; Spark shows it as the query's progress."""
        return self._offset(self._known_ends or self._ends())

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes from now on is not for this run of the query."""
        self._target = self._ends()

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """An input partition for each range. Raises `DataLoss`, `MillraceError`."""
        stop, ids = _places(end), _ids(end)
        begin = _without(_places(start), _made_again(_ids(start), ids))
        noted = _places(end.get(_NOTES, {}).get(_BEGINS, {}))
        unknown = stop.keys() - begin.keys()
        new = {one: noted[one] for one in unknown & noted.keys()} | self._beginnings(unknown - noted.keys())
        self._check_whole(new)
        begin |= new if start != self._initial else noted | new
        reader = self._connected_source().reader
        pairs = [(one, last) for one, last in sorted(stop.items()) if begin[one] < last]
        ranges = [OffsetRange(*one, begin[one], last, reader, ids.get(one[0], "")) for one, last in pairs]
        return self._planned(ranges, end)

    def _planned(self, ranges: list[OffsetRange], end: Offsets) -> list[InputPartition]:
        """An input partition for each task. The rows of a single small one are left to be handed over."""
        division = end.get(_NOTES, {})
        options = replace(
            self.options,
            input_partitions_min=division.get("minPartitions", 1),
            records_per_partition_max=division.get("maxRecordsPerPartition", 0),
        )
        tasks = divide(ranges, options)
        self._rows = None
        count = sum(one.end_offset - one.start_offset for task in tasks for one in task)
        if self.may_hand_over and len(tasks) == 1 and count <= JOINED_SIZE_MAX:
            try:
                self._rows = read_small(self._connected(), self.options, tasks[0], HANDED_OVER_BYTES_MAX)
            except (MillraceError, DataLoss, CorruptBatch) as error:
                logger.warning("a micro-batch is read by a task: %s", error)
        return [InputPartition(each) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's ranges. Raises `DataLoss`, `MillraceError`."""
        if partition.value is not None:
            yield from read_ranges(self.options, partition.value)

    def commit(self, end: Offsets) -> None:
        """A micro-batch is done; this is said late, and never of the last one (so `latestOffset` tells, too)."""
        self._tell(_places(end))

    def stop(self) -> None:
        """The query is over."""
        if self._client is not None:
            self._client.close()
            self._client = self._source = None

    def _connected(self) -> BlockingClient:
        if self._client is None:
            self._client = connect(self.options)
        return self._client

    def _connected_source(self) -> Source:
        if self._source is None:
            self._source = source_of(self._connected(), self.options)
        return self._source

    def _start(self, topic: str, partition: int, latest: int, place: int | None) -> int:
        boundary = self.options.start
        if place is None:
            if self.options.start_time_missing == "error":
                raise OptionError(
                    f"{boundary.option}: no record of {topic}-{partition} is that late; "
                    "startingOffsetsByTimestampStrategy=latest begins with what comes next instead"
                )
            return latest
        if place > latest:
            raise OptionError(f"{boundary.option}: {topic}-{partition} ends at {latest}, before {place}")
        return place

    def _ends(self) -> Places:
        source = self._connected_source()
        try:
            partitions = partitions_of(source.log, source.options, as_far=not self.options.fail_on_data_loss)
        except OptionError as error:
            raise OptionError(f"{error}; failOnDataLoss=false reads what there is") from None
        found = source.log.list_many_offsets([(*one, "latest") for one in partitions])
        self._known_ends = {one: end or 0 for one, end in zip(partitions, found, strict=True)}
        self._ids = _ids_by_topic(partitions)
        return dict(self._known_ends)

    def _beginnings(self, partitions: Iterable[tuple[str, int]]) -> Places:
        """Where these begin. With `failOnDataLoss=false` those that are gone began at 0, as new ones do: a micro-batch
        that runs again is to have the same tasks.
        """
        wanted, log = sorted(partitions), self._connected_source().log
        try:
            found = log.list_many_offsets([(*one, "earliest") for one in wanted]) if wanted else []
        except (UnknownTopic, UnknownPartition):
            if self.options.fail_on_data_loss:
                raise
            there = existing_topics(log, sorted({topic for topic, _ in wanted}), as_far=True)
            kept = [one for one in wanted if one[0] in there and one[1] in there[one[0]].partitions]
            return dict.fromkeys(wanted, 0) | (self._beginnings(kept) if kept != wanted else {})
        return {one: start or 0 for one, start in zip(wanted, found, strict=True)}

    def _check_kept(self, begin: Places, ends: Places, made_again: set[str]) -> None:
        """Raises `DataLoss` when what was read so far says that the topic is another one, or a partition is gone."""
        if not self.options.fail_on_data_loss:
            return
        for (topic, partition), place in begin.items():
            end = ends.get((topic, partition))
            if end is None or end < place or topic in made_again:
                gone = "is gone" if end is None else f"ends at {end} now"
                if end is not None and topic in made_again:
                    gone = "is another one now: it was deleted and made again"
                raise DataLoss(
                    f"{topic}-{partition} was read up to {place} and {gone}; failOnDataLoss=false reads what there is"
                )

    def _check_whole(self, new: Places) -> None:
        """Raises `DataLoss` when the first records of new partitions went before they were read."""
        for (topic, partition), place in sorted(new.items()):
            if place and self.options.fail_on_data_loss:
                raise DataLoss(
                    f"{topic}-{partition} is new and begins at {place}, not at 0; failOnDataLoss=false reads what "
                    "there is"
                )

    def _offset(
        self, places: Places, ids: Mapping[str, str] = MappingProxyType({}), begins: Places | None = None
    ) -> Offsets:
        """The offset of these places, with the ids of their topics; see the module's rule 1."""
        options = self.options
        notes: dict[str, Any] = (
            {"minPartitions": options.input_partitions_min} if options.input_partitions_min > 1 else {}
        )
        if options.records_per_partition_max:
            notes["maxRecordsPerPartition"] = options.records_per_partition_max
        said = {topic: ids[topic] for topic in sorted({topic for topic, _ in places}) if topic in ids}
        if said:
            notes[_IDS] = said
        if begins:
            notes[_BEGINS] = _by_topic(begins)
        return ({_NOTES: notes} if notes else {}) | _by_topic(places)

    def _tell(self, places: Places) -> None:
        """Say how far the query has come, and what is to be kept for it; see the module's rule 4."""
        if not places or not self.options.group:
            return
        try:
            client, lease_ms = self._connected(), self.options.lease_ms
            due = time.monotonic() >= self._lease_due
            if self._connected_source().reader is not None:
                self._tell_of_queue(client, places, due=due)
                return
            if places != self._told:
                client.commit_offsets(self.options.group, places, metadata="spark")
                self._told = places
            if lease_ms and due:
                client.lease(self.options.group, places, lease_ms, holder=self._holder)
                self._lease_due = time.monotonic() + lease_ms / 4000
        except MillraceError as error:
            logger.warning("the broker was not told how far the query has come: %s", error)

    def _tell_of_queue(self, client: BlockingClient, places: Places, *, due: bool) -> None:
        """The same of a queue that is browsed: there are no groups' offsets in it, and nothing is kept in it."""
        options = self.options
        if not options.lease_ms or (places == self._told and not due):
            return
        ((queue, _),) = places
        place = places[queue, 0]
        client.lease_queue(options.group, queue, place, options.lease_ms, vhost=options.vhost)
        self._told = places
        self._lease_due = time.monotonic() + min(options.lease_ms / 4000, BROWSER_TOLD_S)


def shared_out(begin: Mapping[tuple[str, int], int], end: Places, most: int) -> Places:
    """How far to read when only `most` offsets may be: each partition's share of them is its share of what waits."""
    waiting = {one: max(end[one] - begin[one], 0) for one in end}
    total = sum(waiting.values())
    if total <= most:
        return end
    shares = {one: most * count // total for one, count in waiting.items()}
    # What the rounding left goes to who has more waiting, so that a limit below the number of partitions moves, too.
    left = most - sum(shares.values())
    for one in sorted(waiting, key=lambda one: (shares[one] - most * waiting[one] / total, one)):
        if left and shares[one] < waiting[one]:
            shares[one] += 1
            left -= 1
    return {one: begin[one] + shares[one] if waiting[one] else end[one] for one in end}


def _places(offset: Offsets) -> Places:
    return {
        (topic, int(partition)): number
        for topic, each in offset.items()
        if topic != _NOTES
        for partition, number in each.items()
    }


def _by_topic(places: Places) -> Offsets:
    found: Offsets = {}
    for topic, partition in sorted(places):
        found.setdefault(topic, {})[str(partition)] = places[topic, partition]
    return found


def _same(start: Offsets, end: Offsets) -> bool:
    """Whether nothing lies between them: that a note is done with is not worth a micro-batch."""
    notes = [{name: said for name, said in one.get(_NOTES, {}).items() if name != _BEGINS} for one in (start, end)]
    return notes[0] == notes[1] and _places(start) == _places(end)


def _ids(offset: Offsets) -> Ids:
    found: Ids = offset.get(_NOTES, {}).get(_IDS, {})
    return found


def _ids_by_topic(partitions: Partitions) -> Ids:
    return {topic: topic_id for (topic, _), topic_id in partitions.items() if topic_id}


def _made_again(before: Ids, now: Ids) -> set[str]:
    """Topics that were deleted and made again in between."""
    return {topic for topic, topic_id in before.items() if now.get(topic, topic_id) != topic_id}


def _without(places: Places, topics: set[str]) -> Places:
    return {one: place for one, place in places.items() if one[0] not in topics}
