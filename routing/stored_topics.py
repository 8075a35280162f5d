"""The records of topics in a data directory of which no broker runs, as readers of committed records would get them.

Logs are opened as a start opens them, so over `ReadOnlyFiles` nothing is changed. What a cluster's member has is what
its own disk has: the other brokers may not have committed all of its last records, and it has not all partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from core_log.batch_header import parse_header
from core_log.committed import committed
from core_log.expiry import unexpired
from core_log.files import BytesLike, Files
from core_log.keyed_store import KeyedStore
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig, PartitionLog
from routing.config import BrokerConfig
from routing.directories import CATALOG, TOPICS, topic_directory
from routing.topics.topic_config import log_config
from routing.topology.catalog import unpack_entry

_READ_BYTES = 1 << 20


class StoredTopic(NamedTuple):
    """A topic that the catalog names."""

    name: str
    directories: dict[int, str]
    """Of those of its partitions that are here, by number."""
    settings: LogConfig


def open_stored(
    files: Files, directory: str, *, expires: bool = False, wall_clock_ms: Callable[[], int] = lambda: 0
) -> PartitionLog:
    """A log, as a start would open it, from which nothing goes. Raises OSError."""
    settings = LogConfig(retention_ms=-1, retention_bytes=-1, tail_cache_bytes=0, expires=expires)
    flusher = LogFlusher(retry_interval_s=1, unflushed_bytes_max=1)
    return PartitionLog.open(files, directory, settings, flusher, wall_clock_ms=wall_clock_ms)


def stored_catalog(files: Files) -> KeyedStore:
    """What the catalog has; `unpack_entry` reads it. Raises CorruptBatch, OSError."""
    return KeyedStore(open_stored(files, CATALOG))


def stored_topics(files: Files) -> dict[str, StoredTopic]:
    """By name. Raises CorruptBatch, ValueError, OSError."""
    found = {}
    here = set(files.list(TOPICS))
    for packed, data in stored_catalog(files).items():
        key, value = unpack_entry(packed, data)
        if key[0] == "topic":
            found[key[1]] = _topic(key[1], value, here)
    return dict(sorted(found.items()))


def _topic(name: str, value: dict[str, Any], here: set[str]) -> StoredTopic:
    places = {index: topic_directory(name, index, value.get("uid", "")) for index in range(value["partitions"])}
    places = {index: place for index, place in places.items() if place.removeprefix(f"{TOPICS}/") in here}
    return StoredTopic(name, places, log_config(value["config"], BrokerConfig()))


class StoredPartition:
    """One that is read."""

    def __init__(self, files: Files, topic: StoredTopic, index: int, *, wall_clock_ms: Callable[[], int]) -> None:
        """Raises OSError."""
        self._log = open_stored(
            files, topic.directories[index], expires=topic.settings.expires, wall_clock_ms=wall_clock_ms
        )
        self.log_start_offset = self._log.log_start_offset
        self.end_offset = self._log.stable_offset
        self.hidden = self._log.log_end_offset - self.end_offset
        """So many offsets are behind the beginning of a transaction that has not ended."""

    def batches(self, offset: int) -> Iterator[Sequence[BytesLike]]:
        """From the one that holds an offset on, some at a time. Raises CorruptBatch with file and position, OSError."""
        offset = max(offset, self.log_start_offset)
        while offset < self.end_offset:
            batches = self._log.read_blocking(offset, _READ_BYTES, before=self.end_offset)
            if not batches:
                return
            yield unexpired(self._log, committed(self._log, batches))
            offset = parse_header(batches[-1]).next_offset

    def close(self) -> None:
        """Give the files back."""
        for segment in self._log.segments:
            segment.close_file()
