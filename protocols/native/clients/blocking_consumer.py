"""A consumer over `BlockingClient`, for scripts: everything happens in the caller's thread.

It asks for more only when it has handed out what it had.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ssl import SSLContext
from typing import Literal

from protocols.native import wire
from protocols.native.clients.blocking import Which
from protocols.native.clients.blocking_user import ClientUser
from protocols.native.clients.hooks import ConsumerInterceptor, Deserializer, on_records_of, tell_committed
from protocols.native.clients.records import ConsumerRecord, batch_records, checked_offset, offset_after, split_batches
from protocols.native.clients.topic_ids import TopicIds
from protocols.native.clients.truncation import LastBatch, cut_at, last_of
from protocols.native.errors import (
    GONE,
    ConnectionLost,
    DeserializationFailed,
    ErrorCode,
    LogTruncated,
    MillraceError,
    OffsetOutOfRange,
    error_from_wire,
)

logger = logging.getLogger(__name__)

_RETRY_BACKOFF_S = 0.1
_LOOK_FOR_MISSING_S = 2.0


class BlockingConsumer(ClientUser):
    """`with BlockingConsumer("host:port", group="g") as consumer`; the parameters are those of `Consumer`."""

    def __init__(
        self,
        server: str | Sequence[str],
        group: str | None = None,
        *,
        auto_offset_reset: Literal["earliest", "latest", "error"] = "latest",
        fetch_max_bytes: int = 16 << 20,
        partition_max_bytes: int = 1 << 20,
        metadata_max_age_ms: int = 10_000,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        timeout_s: float = 30,
        credentials: tuple[str, str] | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        super().__init__(server, timeout_s, metadata_max_age_ms, credentials, tls)
        self._on_records = on_records_of(key_deserializer, value_deserializer, interceptors)
        self._interceptors = list(interceptors)
        self._group = group
        self._reset: Literal["earliest", "latest", "error"] = auto_offset_reset
        self._fetch_max_bytes = fetch_max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._whole: set[str] = set()
        self._ids = TopicIds()
        self._missing: set[tuple[str, int]] = set()
        self._told_gone: set[str] = set()
        """Partitions that are not there, and topics; see `Fetcher`."""
        self._epochs: dict[tuple[str, int], int] = {}
        """The leader epochs in which what was read is known to be in the logs."""
        self._last: dict[tuple[str, int], LastBatch] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._fetch_offsets: dict[tuple[str, int], int] = {}
        self._records: list[ConsumerRecord] = []
        self._taken = 0
        """How many of them were handed out."""

    def assign(self, topics: str | Iterable[str | tuple[str, int]]) -> None:
        """Read these topics or (topic, partition)s, from where the group committed or as `auto_offset_reset` says."""
        items = [topics] if isinstance(topics, str) else list(topics)
        whole = {item for item in items if isinstance(item, str)}
        known = self.client.topics(list(whole)) if whole else {}
        known |= self.client.topics_found(list({item[0] for item in items if not isinstance(item, str)} - whole))
        partitions: list[tuple[str, int]] = []
        for item in items:
            partitions += [(item, number) for number in known[item].partitions] if isinstance(item, str) else [item]
        self._whole = whole
        for topic, one in known.items():
            self._ids.note(topic, one.id)
        committed = self._committed(partitions)
        self._positions = {key: committed[key] if key in committed else self._start(key) for key in partitions}
        self._fetch_offsets = dict(self._positions)
        self._last.clear()
        self._missing.clear()
        self._records, self._taken = [], 0

    def _committed(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return self.client.committed_offsets(self._group, partitions) if self._group is not None else {}

    def _take_up(self) -> None:
        """Read the partitions that topics got, and from their beginning topics that were made again. Raises
        LogTruncated, with reset "error".
        """
        topics = self._whole | {topic for topic, _ in self._positions}
        told = self._looked_up(topics, _LOOK_FOR_MISSING_S if self._missing else math.inf)
        found = {topic: one for topic, one in told.items() if not self._ids.is_former(topic, one.id)}
        known = {(topic, number): None for topic, one in found.items() for number in one.partitions}
        self._missing -= known.keys()
        self._told_gone -= found.keys()
        another = [topic for topic, one in found.items() if self._ids.note(topic, one.id)]
        for key in [key for key in self._positions if key[0] in another and key[0] in self._whole and key not in known]:
            self._forget(key)
        cut = {key: 0 for key in self._positions if key[0] in another}
        new = [key for key in known if key not in self._positions and key[0] in self._whole]
        committed = self._committed(new) if new else {}
        for key in new:
            start = committed[key] if key in committed else self.client.list_offsets(*key, "earliest") or 0
            self._positions[key] = self._fetch_offsets[key] = start
        self._cut(cut, made_again=True)

    def _forget(self, key: tuple[str, int]) -> None:
        """A topic that is read as a whole has it no more."""
        self._move(key, 0)
        del self._positions[key], self._fetch_offsets[key]
        self._missing.discard(key)

    def _cut(self, offsets: Mapping[tuple[str, int], int], *, made_again: bool = False) -> None:
        """Logs have other records, or none, from these offsets on. Raises LogTruncated, with reset "error"."""
        failure: LogTruncated | None = None
        for key, offset in offsets.items():
            read_to = self._positions[key]
            self._move(key, min(offset, read_to))
            if read_to > offset:
                failure = LogTruncated(*key, offset, read_to, made_again=made_again)
                if self._reset != "error":
                    logger.warning("%s; going on at %d", failure, offset)
        if failure is not None and self._reset == "error":
            raise failure

    def _miss(self, key: tuple[str, int], error: MillraceError) -> MillraceError | None:
        """It is not there: what is to be said of that, if anything."""
        self._missing.add(key)
        self._looked_s = -math.inf
        if error.code != ErrorCode.UNKNOWN_TOPIC:
            logger.warning("%s; it is read when it has one", error)
        elif key[0] not in self._told_gone:
            self._told_gone.add(key[0])
            return error
        return None

    def _start(self, partition: tuple[str, int]) -> int:
        if self._reset == "error":
            raise OffsetOutOfRange(f"no offset to begin at in {partition}")
        return self.client.list_offsets(*partition, self._reset) or 0

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`. Raises KeyError when the partition is not assigned, ValueError for what is no offset."""
        self._require_assigned([(topic, partition)])
        self._move((topic, partition), checked_offset(offset))

    def seek_to_beginning(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Go on at the first record there is, in these or all assigned partitions. Raises as `seek`."""
        self._seek_to("earliest", partitions)

    def seek_to_end(self, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Go on at what will be written next, in these or all assigned partitions. Raises as `seek`."""
        self._seek_to("latest", partitions)

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[tuple[str, int]] | None = None) -> None:
        """Go on at the first record not before a time, ms since 1970; at the end where there is none that young. Raises
        as `seek`, and ValueError for a time before 1970.
        """
        self._seek_to(timestamp_ms, partitions)

    def _seek_to(self, which: Which, partitions: Iterable[tuple[str, int]] | None) -> None:
        keys = list(self._positions if partitions is None else partitions)
        self._require_assigned(keys)
        ask = self.client.list_many_offsets
        offsets = dict(zip(keys, ask([(*key, which) for key in keys])))
        none = [key for key in keys if offsets[key] is None]
        # Asked again when the ends are known: what came meanwhile may be that young.
        ends = ask([(*key, "latest") for key in none])
        again = ask([(*key, which) for key in none])
        offsets |= {key: end if offset is None else offset for key, end, offset in zip(none, ends, again)}
        for key, offset in offsets.items():
            self._move(key, offset or 0)

    def _require_assigned(self, keys: Iterable[tuple[str, int]]) -> None:
        for key in keys:
            if key not in self._positions:
                raise KeyError(key)

    def _move(self, key: tuple[str, int], offset: int) -> None:
        self._positions[key] = self._fetch_offsets[key] = offset
        self._last.pop(key, None)
        left = [one for one in self._records[self._taken :] if (one.topic, one.partition) != key]
        self._records, self._taken = left, 0

    def fetch(self, max_records: int = 500, *, timeout_ms: int = 500) -> list[ConsumerRecord]:
        """Up to `max_records` records; none when there are none within `timeout_ms`. Raises ValueError where nothing is
        assigned, as nothing would ever come.
        """
        if not (self._positions or self._whole):
            raise ValueError("nothing is assigned to this consumer: `assign` says what it reads")
        if self._taken == len(self._records):
            self._records, self._taken = [], 0
            self._fill(timeout_ms)
        taken = self._records[self._taken : self._taken + max(max_records, 0)]
        places = {(record.topic, record.partition): record.offset + 1 for record in taken}
        end = self._taken + len(taken)
        self._positions |= places
        self._taken = end  # last, and with nothing behind it: what is taken is handed out
        return taken

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """All records, for ever."""
        while True:
            yield from self.fetch(1, timeout_ms=5000)

    def commit(self) -> None:
        """Store, durably, how far the records handed out go. Raises ValueError without a group."""
        if self._group is None:
            raise ValueError("a consumer without a group cannot commit")
        self.client.commit_offsets(self._group, self._positions)
        tell_committed(self._interceptors, self._positions)

    def _fill(self, timeout_ms: int) -> None:
        try:
            self._take_up()
            keys = [key for key in self._validated() if key not in self._missing]
            entries = [
                wire.FetchEntry(*key, self._fetch_offsets[key], self._partition_max_bytes, self._epochs[key])
                for key in keys
            ]
            if not entries:
                time.sleep(min(_RETRY_BACKOFF_S, timeout_ms / 1000))
                return
            results = self.client.fetch_many(entries, self._fetch_max_bytes, timeout_ms, 1)
        except ConnectionLost:
            time.sleep(min(_RETRY_BACKOFF_S, timeout_ms / 1000))
            return
        failure: MillraceError | None = None
        found: list[ConsumerRecord] = []
        offsets: dict[tuple[str, int], int] = {}
        last: dict[tuple[str, int], LastBatch] = {}
        passed = self._of_others(keys, results)
        for key, fetched in zip(keys, results):
            if key in passed:
                continue
            if fetched.error is not None:
                error = error_from_wire(fetched.error)
                if error.retriable:
                    continue  # the next fetch may find another leader
                if error.code in GONE:
                    failure = failure or self._miss(key, error)
                    continue
                if isinstance(error, OffsetOutOfRange) and self._is_another(key[0]):
                    return
                if not isinstance(error, OffsetOutOfRange) or self._reset == "error":
                    failure = error
                    break
                self._move(key, self._start(key))
                continue
            batches = split_batches(fetched.records)
            try:
                for records, offset in self._decoded(key, batches):
                    found += records
                    offsets[key] = offset
            except DeserializationFailed as unreadable:
                if key not in offsets:  # else what comes before it is handed out first
                    failure = failure or unreadable
            if batches:
                last[key] = last_of(batches)
        # Those that had something come last in the next fetch: see `Fetcher`.
        behind = {key: offset for key, offset in self._fetch_offsets.items() if key not in offsets} | offsets
        # All at once, so that whoever is interrupted finds all of it or nothing.
        self._records, self._taken, self._fetch_offsets, self._last = found, 0, behind, self._last | last
        if failure is not None:
            raise failure

    def _of_others(
        self, keys: list[tuple[str, int]], results: list[wire.FetchedPartition]
    ) -> frozenset[tuple[str, int]]:
        """What was read of other topics than are known, which counts for nothing: see `Leaders`. Raises LogTruncated,
        with reset "error".
        """
        topic_ids = list(zip(keys, (fetched.topic_id for fetched in results)))
        another = {key[0] for key, topic_id in topic_ids if self._ids.note(key[0], topic_id)}
        passed = frozenset(
            key for key, topic_id in topic_ids if key[0] in another or self._ids.is_former(key[0], topic_id)
        )
        if passed:
            self._looked_s = -math.inf
        self._cut({key: 0 for key in self._positions if key[0] in another}, made_again=True)
        return passed

    def _is_another(self, topic: str) -> bool:
        """Whether a topic was made again, and is to be read from its beginning. Raises as `_take_up`."""
        before, self._looked_s = self._ids.get(topic), -math.inf
        self._take_up()
        return self._ids.get(topic) != before

    def _decoded(
        self, key: tuple[str, int], batches: Iterable[memoryview]
    ) -> Iterator[tuple[list[ConsumerRecord], int]]:
        """The records of each batch to hand out, and where reading goes on then. Raises DeserializationFailed."""
        offset = self._fetch_offsets[key]
        for batch in batches:
            records, left = batch_records(*key, batch, offset), None
            if self._on_records is not None and records:
                records, left = self._on_records(records)
            offset = offset_after(batch) if left is None else left
            yield records, offset
            if left is not None:
                return

    def _validated(self) -> list[tuple[str, int]]:
        """The partitions that may be read on; see `Consumer`. Raises LogTruncated, with reset "error"."""
        keys = list(self._fetch_offsets)
        known = dict(zip(keys, self.client.leader_epochs(keys)))
        doubtful = [
            key for key in keys if key in self._last and known[key] not in (self._epochs.get(key), wire.NO_EPOCH)
        ]
        self._epochs |= {key: epoch for key, epoch in known.items() if key not in doubtful}
        if not doubtful:
            return keys
        asked = [(*key, known[key], self._last[key].epoch) for key in doubtful]
        for key, (error, epoch, end_offset) in zip(doubtful, self.client.offsets_for_epochs(asked)):
            if error is not None:
                keys.remove(key)
                problem = None if error[1] else error_from_wire(error)
                if problem is not None and problem.code in GONE:
                    problem = self._miss(key, problem)
                if problem is not None:
                    raise problem
                continue
            offset = cut_at(self._last[key], epoch, end_offset)
            self._epochs[key] = known[key]
            if offset is not None:
                self._cut({key: offset})
        return keys
