"""What the tests of the log share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core_log.files import BytesLike, Files
from core_log.flush_job import execute
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig, PartitionLog
from core_log.record_batch import BatchBuilder, iterate_records

DIRECTORY = "topics/t-0"
TIME_MS = 1_700_000_000_000


def make_batch(values: Sequence[bytes], *, base_offset: int = 0, epoch: int = 0, time_ms: int = TIME_MS) -> bytes:
    """A batch of values without keys."""
    builder = BatchBuilder(base_offset, epoch, time_ms)
    builder.add_run(base_offset, None, values)
    return builder.build()


def open_log(
    files: Files,
    config: LogConfig | None = None,
    *,
    flusher: LogFlusher | None = None,
    directory: str = DIRECTORY,
    clock: Callable[[], int] = lambda: TIME_MS,
) -> PartitionLog:
    """A log; without a running flusher `flush` moves it."""
    return PartitionLog.open(files, directory, config or LogConfig(), flusher or LogFlusher(), wall_clock_ms=clock)


def flush(log: PartitionLog) -> None:
    """Write and sync what there is, as the flusher's threads would."""
    log.request_sync()
    write(log)


def write(log: PartitionLog) -> None:
    """Do one job as the flusher's threads would, if there is one to do."""
    job = log.take_job()
    if job is not None:
        execute(job)
        log.complete(job)


def records_of(batches: Sequence[BytesLike] | None) -> list[tuple[int, bytes | None]]:
    """(offset, value) of all records."""
    assert batches is not None
    return [(record.offset, record.value) for batch in batches for record in iterate_records(batch)]


def read_all(log: PartitionLog, start: int | None = None, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    """All visible records, read from the disk."""
    offset = log.log_start_offset if start is None else start
    found: list[tuple[int, bytes | None]] = []
    while batches := log.read_blocking(offset, max_bytes):
        rows = records_of(batches)
        found += [row for row in rows if row[0] >= offset]
        offset = rows[-1][0] + 1
    return found
