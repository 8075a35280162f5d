"""What a system for monitoring wants to know of a broker: its figures, by families of series.

1. Nothing is counted for it per message: what the engine knows anyway is looked at when somebody asks. That takes turns
   (`bites`), so that ten thousand queues hold up nobody.
2. A family has at most `series_max` series, those that came first; `left_off` says how many it lacks. Totals count all.
3. Each broker of a cluster tells of the queues and partitions that it leads and of the groups that it looks after, so
   that the brokers together tell of each once. Of readers of queues (`queue_lag.py`) the queue's leader tells.
4. How far a group is behind in seconds is the age of the batch that holds the first record it has not read (of a queue:
   the oldest message), which is looked up once for each place where a group stands. So is the age of a queue's first
   message, within `_HEADS_S` for all of them: those that are not known by then come with the next round.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

import trio

from core_log.batch_header import TIMESTAMP_TYPE_BIT, parse_header
from core_log.errors import LogError
from core_log.partition_log import PartitionLog
from routing import queue_lag
from routing.administration.figures import figures_here
from routing.administration.operations import plain
from routing.administration.status import logs_of_one
from routing.bites import bites
from routing.groups.lag_rules import PATIENCE_S, ends_of
from routing.queues.death_history import REASONS

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.queue import Queue
    from routing.topics.topic_partition import TopicPartition

Kind = Literal["gauge", "counter"]

_HEADS_S = 0.5
"""For so long it is looked up each time when the first messages of queues were published."""
_DUPLICATES = "Messages that were dropped, as their id had come within the deduplication window."


@dataclass(slots=True)
class Family:
    """Figures of one kind. `kind` and names are Prometheus'; a counter has its name without `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    series_max: int | None = None
    """None: there are few by nature."""
    series: list[tuple[str, ...]] = field(default_factory=list)
    """The values of their labels: families share them, so that there are few objects to be collected again."""
    values: list[float] = field(default_factory=list)
    left_off: int = 0

    def add(self, value: float, labels: tuple[str, ...] = ()) -> None:
        """One more series, if there is room."""
        if self.is_full:
            self.left_off += 1
        else:
            self.series.append(labels)
            self.values.append(value)

    @property
    def is_full(self) -> bool:
        """There is no room."""
        return self.series_max is not None and len(self.series) >= self.series_max


def _single(name: str, kind: Kind, help: str, value: float) -> Family:
    """A figure without labels."""
    return Family(f"millrace_{name}", kind, help, series=[()], values=[value])


class _Published:
    """When that was published which readers have not read: looked up once for each place where one stands."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, ...], tuple[int, int]] = {}
        self._now: dict[tuple[str, ...], tuple[int, int]] = {}

    def next_round(self) -> None:
        """Who is not asked for in it is forgotten after it."""
        self._before, self._now = self._now, {}

    async def time_ms(
        self, reader: tuple[str, ...], offset: int, look: Callable[[], Awaitable[int | None]]
    ) -> int | None:
        """The time of what lies at an offset; None if it cannot be looked up now."""
        known = self._before.get(reader)
        found_ms = known[1] if known is not None and known[0] == offset else await look()
        if found_ms is not None:
            self._now[reader] = (offset, found_ms)
        return found_ms


class Measures:
    """See the module; one for a broker."""

    def __init__(self, broker: Broker, series_max: int) -> None:
        self._broker = broker
        self._series_max = series_max
        self._records, self._messages, self._heads = _Published(), _Published(), _Published()

    async def families(self) -> list[Family]:
        """All figures."""
        return [
            *self._process(),
            *await self._traffic(),
            *self._cluster(),
            *await self._queues(),
            *await self._topics(),
            *await self._groups(),
            *await self._queue_groups(),
        ]

    def _family(self, name: str, help: str, *labels: str) -> Family:
        return Family(name, "gauge", help, labels, self._series_max)

    def _duplicates(self, of: str, *labels: str) -> Family:
        """Counted of those alone that look for them."""
        return Family(f"millrace_{of}_duplicates", "counter", _DUPLICATES, labels, self._series_max)

    # --- the process -------------------------------------------------------------------

    def _process(self) -> list[Family]:
        broker, alarms = self._broker, self._broker.alarms
        homes = broker.home_statuses()
        figures: list[tuple[str, Kind, str, float]] = [
            ("publishers_blocked", "gauge", "1 while publishers wait for room on the disk or in memory.",
             broker.blocked is not None),
            ("disk_free_bytes", "gauge", "What is free on the disk.", alarms.space.free_bytes),
            ("disk_free_bytes_min", "gauge", "With less than that free publishers wait.", alarms.disk_free_bytes_min),
            ("memory_bytes_max", "gauge", "With more than that in the process publishers wait; 0: no limit.",
             alarms.memory_bytes_max or 0),
            ("unflushed_bytes", "gauge", "What is appended to logs and not written yet.",
             broker.flusher.unflushed_bytes),
            ("sessions", "gauge", "Channels and sessions of clients.", len(broker.sessions)),
            ("topics", "gauge", "Topics, streams among them.", len(broker.topics)),
            ("messages_refused", "counter", "Messages that a failing log could not take, or that were shed.",
             broker.refused_messages),
            ("fetch_looked_bytes", "counter", "Bytes of logs in which fetches looked for keys or headers.",
             broker.looked_bytes),
            ("fetch_left_out_bytes", "counter", "Bytes of these that were not sent: they have none of them.",
             broker.left_out_bytes),
            ("group_lag_alerts", "counter", "So often a group got further behind than a topic's millrace.max.lag.",
             broker.lag_rules.alerts),
            ("group_lag_skips", "counter", "So often one was moved on for that.", broker.lag_rules.skips),
            ("group_lag_skipped_records", "counter", "By so many records in all.", broker.lag_rules.skipped_records),
            ("group_lag_dead_letters", "counter", "Records copied to dead letters for that.",
             broker.lag_rules.dead_letters),
            ("home_log_bytes", "gauge", "The logs of queues that are led here.", sum(one.log_bytes for one in homes)),
            ("home_pinned_bytes", "gauge", "What of that only stays for messages that nobody has settled; estimated.",
             sum(one.pinned_bytes for one in homes)),
        ]  # fmt: skip
        return [_single(*figure) for figure in figures]

    async def _traffic(self) -> list[Family]:
        received, delivered = (
            Family("millrace_messages_received", "counter", "Messages published through sessions.", ("protocol",)),
            Family("millrace_messages_delivered", "counter", "Messages given to consumers and gets.", ("protocol",)),
        )
        broker = self._broker
        counted = dict(broker.ended)
        async for session in bites(broker.sessions):
            before = counted.get(session.protocol, (0, 0))
            counted[session.protocol] = before[0] + session.published, before[1] + session.next_id - 1
        for protocol, (incoming, outgoing) in sorted(counted.items()):
            received.add(incoming, (protocol,))
            delivered.add(outgoing, (protocol,))
        died = Family("millrace_messages_died", "counter", "Messages that left queues unacknowledged.", ("reason",))
        for reason in REASONS:
            died.add(broker.host.deaths[reason], (reason,))
        return [received, delivered, died]

    def _cluster(self) -> list[Family]:
        cluster = self._broker.cluster
        copies = partial(
            _single, "partitions_single_copy", "gauge", "Partitions here of which one copy at most is in sync."
        )
        if cluster is None:
            return [copies(len(logs_of_one(self._broker)))]
        now = {
            "replicas": ("partition_replicas", "Partitions with a replica here."),
            "leaders": ("partition_leaders", "Partitions led here."),
            "leaderless": ("partitions_leaderless", "Partitions with a replica here and no leader."),
            "under_replicated": (
                "partitions_under_replicated",
                "Partitions with a replica here that lack one in sync.",
            ),
        }
        counted = {
            "isr_shrinks": "Replicas of partitions led here that fell out of sync.",
            "isr_expands": "Replicas of partitions led here that came into sync.",
            "leader_changes": "Changes of the leader of partitions led here.",
            "unclean_elections": "Elections of replicas that may lack what was confirmed.",
            "catch_up_bytes": "What was sent to replicas that are not in sync.",
        }
        found = cluster.counters.snapshot()
        brokers = len(cluster.members.brokers)
        return [
            copies(found["single_copy"]),
            _single("brokers", "gauge", "Brokers of the cluster that are there.", brokers),
            *(_single(name, "gauge", told, found[key]) for key, (name, told) in now.items()),
            *(_single(key, "counter", told, found[key]) for key, told in counted.items()),
        ]

    # --- queues and topics -------------------------------------------------------------

    async def _queues(self) -> list[Family]:
        labels = ("vhost", "queue")
        families = [
            self._family("millrace_queue_messages_ready", "Messages that wait in a queue.", *labels),
            self._family("millrace_queue_messages_unacknowledged", "Messages that consumers hold.", *labels),
            self._family("millrace_queue_messages_delayed", "Messages that are not due yet.", *labels),
            self._family("millrace_queue_consumers", "Consumers of a queue.", *labels),
        ]
        ages = self._family("millrace_queue_oldest_seconds", "The age of the oldest message that waits.", *labels)
        duplicates = self._duplicates("queue", *labels)
        count, totals = 0, [0, 0, 0, 0]
        self._heads.next_round()
        until = trio.current_time() + _HEADS_S
        async for queue in bites(self._broker.topology.all_queues()):
            if queue.elsewhere or queue.deleted:
                continue
            count += 1
            where = (plain(queue.vhost), plain(queue.name))
            for index, figure in enumerate(figures_here(queue)):
                totals[index] += figure
                families[index].add(figure, where)
            if queue.seen is not None:
                duplicates.add(queue.duplicates, where)
            if (age_s := 0.0 if ages.is_full else await self._age_s(queue, where, until)) is not None:
                ages.add(age_s, where)
        told = [
            ("queues", "Queues that are led here.", count),
            ("messages_ready", "Messages that wait in all of them.", totals[0]),
            ("messages_unacknowledged", "Messages that consumers of all of them hold.", totals[1]),
            ("messages_delayed", "Messages of all of them that are not due yet.", totals[2]),
            ("consumers", "Consumers of all of them.", totals[3]),
        ]
        return [*families, ages, duplicates, *(_single(name, "gauge", help, value) for name, help, value in told)]

    async def _age_s(self, queue: Queue, where: tuple[str, ...], until: float) -> float | None:
        """For how long the oldest message has waited, in seconds; None for views, and where it is not known by then."""
        if queue.settings.view_of is not None:
            return None
        offset, now_ms = queue_lag.first_waiting(queue), self._broker.clock.now_ms()
        if offset is None:
            return 0.0
        first_ms = await self._heads.time_ms(where, offset, partial(_published_ms, queue, offset, until))
        return None if first_ms is None else max(now_ms - first_ms, 0) / 1000

    async def _topics(self) -> list[Family]:
        labels = ("topic", "partition")
        starts, ends, sizes = families = (
            self._family("millrace_topic_start_offset", "The first offset of a partition.", *labels),
            self._family("millrace_topic_end_offset", "The offset behind what can be read of a partition.", *labels),
            self._family("millrace_topic_size_bytes", "What a partition has on the disk.", *labels),
        )
        duplicates = self._duplicates("topic", *labels)
        left_out = "Records that readers were not given, as their time was up; counted for each that passes over them."
        expired = Family("millrace_topic_expired", "counter", left_out, labels, self._series_max)
        partitions = [partition for topic in self._broker.topics.values() for partition in topic.partitions]
        async for partition in bites(partitions):
            if partition.leadership is not None and partition.leadership.refusal() is not None:
                continue
            where, log = (plain(partition.topic_name), str(partition.index)), partition.log
            starts.add(log.log_start_offset, where)
            ends.add(log.high_watermark, where)
            sizes.add(log.size_bytes, where)
            if partition.known is not None:
                duplicates.add(partition.known.duplicates, where)
            if log.config.expires:
                expired.add(log.expired_left_out, where)
        return [*families, duplicates, expired]

    # --- groups ------------------------------------------------------------------------

    async def _groups(self) -> list[Family]:
        place = ("group", "topic", "partition")
        members, moved, offsets, lags, ages = families = (
            self._family("millrace_group_members", "Members of a group.", "group"),
            self._family("millrace_group_commit_timestamp_seconds", "When a group last came further.", "group"),
            self._family("millrace_group_committed_offset", "How far a group has come.", *place),
            self._family("millrace_group_lag_records", "How many records a group is behind.", *place),
            self._family("millrace_group_lag_seconds", "The age of the first record not read by a group.", *place),
        )
        broker, names, places = self._broker, self._broker.groups.names(), []
        async for name in bites(names):
            group, store = broker.groups.groups.get(name), broker.offsets.store_of(name)
            members.add(0 if group is None else len(group.members), (plain(name),))
            if store is not None and (at_ms := store.last_ms(name)) is not None:
                moved.add(at_ms / 1000, (plain(name),))
            places += [(name, *where, at.offset) for where, at in sorted(broker.offsets.known(name).items())]
        self._records.next_round()
        waiting = trio.current_time() + PATIENCE_S
        async for name, topic, index, offset in bites(places):
            found = broker.topics.get(topic)
            if found is None or index >= len(found.partitions):
                continue
            where = (plain(name), plain(topic), str(index))
            offsets.add(offset, where)
            if lags.is_full:
                lags.add(0, where)
                ages.add(0, where)
                continue
            partition = found.partitions[index]
            ends = await ends_of(partition, waiting)
            if ends is None:
                continue
            begin = max(offset, ends[0])
            lags.add(max(ends[1] - begin, 0), where)
            first_ms: int | None = broker.clock.wall_ms()
            if begin < ends[1]:
                first_ms = await self._records.time_ms(where, begin, partial(_time_at, partition, begin, waiting))
            if first_ms is not None:
                ages.add(max(broker.clock.wall_ms() - first_ms, 0) / 1000, where)
        return list(families)

    async def _queue_groups(self) -> list[Family]:
        place = ("group", "vhost", "queue", "mode")
        lags, ages = families = (
            self._family(
                "millrace_group_queue_lag_messages", "How many messages a group is behind in a queue.", *place
            ),
            self._family("millrace_group_queue_lag_seconds", "The age of the oldest message not read by it.", *place),
        )
        broker = self._broker
        self._messages.next_round()
        async for queue in bites(broker.topology.all_queues()):
            for one in list(queue_lag.standings(broker, queue)):
                where = (plain(one.group), plain(queue.vhost), plain(queue.name), one.mode)
                now_ms, full = broker.clock.now_ms(), lags.is_full
                lags.add(one.lag, where)
                first_ms: int | None = now_ms
                if one.oldest is not None and not full:
                    first_ms = await self._messages.time_ms(where, one.oldest, partial(queue_lag.oldest_ms, one))
                if first_ms is not None:
                    ages.add(max(now_ms - first_ms, 0) / 1000, where)
        return list(families)


async def _published_ms(queue: Queue, offset: int, deadline_s: float) -> int | None:
    """When a message was published; None if it is not known by then."""
    with trio.move_on_at(deadline_s):
        if trio.current_time() < deadline_s:  # else there would be a read to give up for each of ten thousand queues
            return await queue_lag.published_ms(queue, offset)
    return None


async def _time_at(partition: TopicPartition, offset: int, deadline_s: float) -> int | None:
    """The time in ms of the batch that holds an offset; None where it cannot be read, by then if another has it."""
    log: PartitionLog = partition.log
    batches = None
    with trio.move_on_at(math.inf if partition.is_here else deadline_s):
        try:
            batches = log.read(offset, 1) if partition.is_here else None
            if batches is None:
                batches = await log.read_cold(offset, 1)
        except (LogError, OSError):
            return None
    if not batches:
        return None
    header = parse_header(batches[0])
    return header.max_timestamp_ms if header.attributes & TIMESTAMP_TYPE_BIT else header.base_timestamp_ms
