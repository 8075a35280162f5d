"""What can be set for a partition log."""

from __future__ import annotations

from typing import Literal

import msgspec

from core_log.compression import Compression

_EVER = (1 << 63) - 1
_CODECS = {
    "producer": None,
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a log; -1 for a retention means unlimited.

    `fsync` says what `committed_offset` promises: "commit" an fdatasync before every promise, "interval" a write now
    and an fdatasync each `fsync_interval_ms`, "never" a write (segments are still synced when full, and at close, but
    what a failed fdatasync lost is not written again).
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    index_interval_bytes: int = 4096
    index_bytes_max: int = 10 << 20
    retention_ms: int = 7 * 86_400_000
    retention_bytes: int = -1
    message_bytes_max: int = (1 << 20) + 12
    """The largest batch."""
    fsync: Literal["commit", "interval", "never"] = "commit"
    fsync_interval_ms: int = 1000
    tail_cache_bytes: int = 4 << 20
    unsynced_bytes_max: int = 8 << 20
    """Written bytes kept in memory while nobody asks for a sync; beyond it the log syncs by itself (but "never")."""
    recovery_bytes: int = 64 << 20
    """After this many synced bytes the recovery point moves: besides the unsynced a start scans no more."""
    room_syncs_min: int = 32
    """After so many syncs in a row of little a file is given room ahead (`core_log/room_ahead.py`), -1: never."""
    room_bytes_min: int = 64 << 10
    """So much, or as much as it has."""
    cleanup_policy: Literal["delete", "compact", "compact,delete", "delete,compact"] = "delete"
    """What goes: what is too old or too much, what a later record of the same key stands for, or both."""
    delete_retention_ms: int = 86_400_000
    """Tombstones (records of a key without a value) stay so long after what was before them has been compacted."""
    compaction_lag_min_ms: int = 0
    """A record stays as it is for so long."""
    compaction_lag_max_ms: int = _EVER
    """What is older is compacted however little that frees."""
    dirty_ratio_min: float = 0.5
    """The share of a log's bytes that was never compacted, from which on it is worth it."""
    timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    timestamp_before_max_ms: int = _EVER
    """So far before the broker's time the producer's may be."""
    timestamp_after_max_ms: int = _EVER
    """So far behind it."""
    compression: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = "producer"
    """How batches are compressed, whoever they are from; "producer": as they come."""
    delays: bool = False
    """Records may ask to be delivered later. That is not the log's matter: whoever appends asks."""
    expires: bool = False
    """Records may have a time to live (`core_log/expiry.py`). That is the matter of whoever reads."""
    key_index: bool = False
    """Who looks for records of a key finds them by an index (`core_log/key_index.py`)."""
    dead_letter_fetches: int = 0
    """So often a group may begin with the same record, 0: for ever. Nor is that."""
    retry_delays_ms: tuple[int, ...] = ()
    """After these times such a record comes again, before it is a dead letter. Nor is that."""
    priority_group: str = ""
    """Records wait, and come into the log by their priority as this group goes on; "": they do not. Nor is that."""
    priority_ahead: int = 1000
    """So many records are in the log before that group has got so far."""
    max_lag: int = 0
    """A group that is more records behind in a partition is too far behind, 0: none ever is. Nor is that."""
    max_lag_action: Literal["alert", "skip", "dead-letter"] = "alert"
    """What is done about it then."""
    max_lag_groups: tuple[str, ...] = ()
    """For these groups; (): for all."""
    deduplication_window_ms: int = 0
    """A record with an id that was appended within this time is left out, 0: none is. Nor is that."""
    deduplication_ids_max: int = 4_000_000
    """So many are remembered at most."""
    split_groups: tuple[str, ...] = ()
    """Partitions that are added are read when these groups have read what was before; (): at once. Nor is that."""
    split_settle_ms: int = 600_000
    """After so long all producers know of them, and have delivered what they divided as before."""
    split_wait_ms_max: int = 86_400_000
    """So long groups are waited for after that."""
    split_from: int = 0
    """The first partition that was added, while that goes on; 0: it does not."""
    split_since_ms: int = 0
    """When it was."""
    held: bool = False
    """This is a log of one of these: readers see nothing of it."""

    def of_partition(self, index: int) -> LogConfig:
        """What counts for one of a topic's partitions."""
        held = 0 < self.split_from <= index
        return self if held == self.held else msgspec.structs.replace(self, held=held)

    def __post_init__(self) -> None:
        for name in ("segment_bytes", "segment_ms", "index_bytes_max", "message_bytes_max", "fsync_interval_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive")
        if self.compaction_lag_min_ms > self.compaction_lag_max_ms:
            raise ValueError("compaction_lag_min_ms must not exceed compaction_lag_max_ms")
        if self.segment_bytes > 1 << 31:
            raise ValueError("segment_bytes must not exceed 2 GiB: positions in an index are 32 bits")

    @property
    def codec(self) -> Compression | None:
        """What batches are compressed with; None: what they come with."""
        return _CODECS[self.compression]

    @property
    def compacts(self) -> bool:
        """Whether only the last record of a key is kept."""
        return self.cleanup_policy != "delete"

    @property
    def empties(self) -> bool:
        """Whether readers meet batches of which all records were taken."""
        return self.delays or self.expires or bool(self.priority_group or self.deduplication_window_ms)

    @property
    def deletes(self) -> bool:
        """Whether the oldest records go."""
        return self.cleanup_policy != "compact"
