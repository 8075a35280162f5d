"""The errors of the log engine; anything else that escapes it, apart from `OSError` at opening, is a bug."""

from __future__ import annotations

from collections.abc import Sequence


class LogError(Exception):
    """Base of the errors of the log engine."""


class CorruptBatch(LogError):
    """Bytes that are not a whole, valid record batch. The only error malformed input raises."""


class Damaged(CorruptBatch):
    """What a log has from an offset on cannot be read by anybody; what is `behind` it can, or that is its end."""

    def __init__(self, reason: str, behind: int) -> None:
        super().__init__(reason)
        self.behind = behind


class OffsetOutOfRange(LogError):
    """A read below `log_start_offset` or above `log_end_offset`."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(f"offset {offset} is not in [{log_start_offset}, {log_end_offset}]")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class LogUnavailable(LogError):
    """The disk refuses writes now, or the log is closed; nothing of this append was kept."""


class BatchTooLarge(LogError):
    """A batch above `message_bytes_max`."""


class LogDamaged(LogError):
    """Bytes that had been synced are not what was written; nothing was cut."""


class BelowHighWatermark(LogError):
    """A truncation that would take away what readers have seen."""


class MetadataUnavailable(LogError):
    """The metadata store refuses a change, or does not answer; then the change may have been made all the same."""


class MetadataLost(LogError):
    """The metadata store does not know any more what it was opened for; nothing of that was applied."""


class Conflict(LogError):
    """A change of metadata relied on what is no longer so; nothing was changed, and what is so now was applied."""


class OutOfOrderSequence(LogError):
    """A batch of an idempotent producer that does not go on from the last one."""


class ProducerFenced(LogError):
    """A batch of a producer that has a later epoch already."""


class CoordinatorFenced(LogError):
    """The end of a transaction, as told by a coordinator after which another has told of one."""


class InvalidRecord(LogError):
    """A record that the topic does not take; `records`: which of the batch, by their numbers, if it is known."""

    def __init__(self, reason: str, records: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.records = records


class InvalidTimestamp(LogError):
    """Records of a time that the topic does not take."""
