"""Export: what a stream of the data source reads, as Parquet files by date and hour, each record once.

1. An export is a streaming query that ends when it has read what was there when it began. How far it is stands in
   its checkpoint: the next run takes what came since, and a run that was killed is gone on with.
2. A micro-batch is written to a directory of its own, which readers of Parquet pass over; then its files are moved to
   their places, under names that tell query and micro-batch. A micro-batch that comes again has the same records,
   therefore the same places, and first removes what it left there. So what an export leaves is plain Parquet that any
   tool reads; no list of valid files is needed.
3. Date and hour are those of the record's timestamp, in UTC whatever the session's time zone is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from spark_bridge.jobs.places import Places, only_one
from spark_bridge.jobs.session import JobError, sentence_of
from spark_bridge.offsets import partitions_of
from spark_bridge.options import parse_options
from spark_bridge.reader import connect
from spark_bridge.sources import source_of

CHECKPOINT = "_checkpoint"
STAGING = "_export"
OFFSETS_PER_BATCH = 2_000_000
POLL_S = 0.2

_SECONDS = "floor(unix_seconds(timestamp))"
_DATE = f"date_from_unix_date(int(floor({_SECONDS} / 86400)))"
_HOUR = f"lpad(string(pmod(floor({_SECONDS} / 3600), 24)), 2, '0')"


@dataclass
class Exported:
    """What an export has done so far, or in all."""

    records: int = 0
    waiting: int = 0
    """Offsets that are still to be read."""
    batches: int = 0
    files: int = 0
    size_bytes: int = 0
    hours: set[str] = field(default_factory=set)
    """Directories that got files, such as `date=2026-01-31/hour=09`."""
    seconds: float = 0


def export(
    spark: Any,
    source: Mapping[str, str],
    directory: str,
    *,
    checkpoint: str | None = None,
    as_text: bool = False,
    compression: str = "zstd",
    progress: Callable[[Exported], None] = lambda _: None,
) -> Exported:
    """Bring a directory up to date with what `source` (options of `readStream`) has.

    The checkpoint lies in the directory unless another place is named. `as_text` makes key and value strings.
    Raises `JobError`.
    """
    try:
        return _exported(spark, source, directory, checkpoint, as_text, compression, progress)
    except JobError:
        raise
    except Exception as error:
        raise JobError(sentence_of(error)) from error


def _exported(
    spark: Any,
    source: Mapping[str, str],
    directory: str,
    checkpoint: str | None,
    as_text: bool,
    compression: str,
    progress: Callable[[Exported], None],
) -> Exported:
    places = Places(spark, directory)
    noted = f"{places.root}/{CHECKPOINT}" if checkpoint is None else checkpoint
    given = {name.lower() for name in source}
    options = {
        name: value
        for name, value in (("startingOffsets", "earliest"), ("maxOffsetsPerTrigger", str(OFFSETS_PER_BATCH)))
        if not any(one == name.lower() or (name.startswith("starting") and one.startswith("starting")) for one in given)
    } | dict(source)
    done, began = Exported(), time.monotonic()
    _require_source(options)
    with only_one("export", places.root):
        places.delete(f"{places.root}/{STAGING}")  # of runs that were killed
        _forget_half_a_note(Places(spark, noted))
        table = spark.readStream.format("millrace").options(**options).load()
        table = table.selectExpr("*", f"{_DATE} as date", f"{_HOUR} as hour")
        if as_text:
            table = table.withColumns({"key": table.key.cast("string"), "value": table.value.cast("string")})
        query = (
            table.writeStream.foreachBatch(_writer(places, compression, done))
            .option("checkpointLocation", noted)
            .trigger(availableNow=True)
            .queryName(f"export to {places.root}")
            .start()
        )
        try:
            for one in _progress(query):
                done.records += one["numInputRows"]
                done.batches += one["numInputRows"] > 0
                done.waiting = _waiting(one)
                done.seconds = time.monotonic() - began
                progress(done)
        finally:
            query.stop()
        places.delete(f"{places.root}/{STAGING}")
    done.seconds = time.monotonic() - began
    return done


def _require_source(options: Mapping[str, str]) -> None:
    """Raises `OptionError`, `MillraceError` for what a query would end with, after Spark has told of it at length."""
    parsed = parse_options(options, streaming=True)
    with connect(parsed) as client:
        source = source_of(client, parsed)
        partitions_of(source.log, source.options, as_far=not parsed.fail_on_data_loss)


def _forget_half_a_note(checkpoint: Places) -> None:
    """Remove what a run leaves that is killed while its first micro-batch is noted: Spark would not begin there."""
    offsets = f"{checkpoint.root}/offsets"
    if all(one.name.startswith(".") for one in checkpoint.listed(offsets)):
        checkpoint.delete(offsets)


def _progress(query: Any) -> Iterator[Any]:
    """What Spark says of each micro-batch, until the query ends. Raises StreamingQueryException."""
    seen = -1
    over = False
    while not over:
        over = query.awaitTermination(POLL_S)
        for one in query.recentProgress:
            if one["batchId"] > seen and "addBatch" in one["durationMs"]:
                seen = one["batchId"]
                yield one


def _waiting(progress: Any) -> int:
    """How many offsets lie between where a micro-batch ended and where the topics do."""
    source = progress["sources"][0]
    try:
        end, latest = (json.loads(source[name]) for name in ("endOffset", "latestOffset"))
        return sum(
            max(0, int(offset) - int(end.get(topic, {}).get(partition, 0)))
            for topic, each in latest.items()
            for partition, offset in each.items()
        )
    except (TypeError, ValueError, AttributeError, KeyError):
        return 0


def _writer(places: Places, compression: str, done: Exported) -> Callable[[Any, int], None]:
    def write(rows: Any, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise JobError("Spark does not say which query this is")
        staged = f"{places.root}/{STAGING}/{uuid4()}"
        order = [name for name in ("date", "hour", "topic", "partition", "offset") if name in rows.columns]
        rows.sortWithinPartitions(*order).write.partitionBy("date", "hour").option("compression", compression).parquet(
            staged
        )
        for hour in sorted({one.path.rpartition("/")[0] for one in places.data_files(staged)}):
            _publish(places, hour, hour.removeprefix(f"{staged}/"), f"{query[:8]}-{batch:09d}-", done)
        places.delete(staged)

    return write


def _publish(places: Places, staged: str, name: str, prefix: str, done: Exported) -> None:
    """Move the files of one hour to their place, instead of those of an earlier attempt."""
    target = f"{places.root}/{name}"
    places.make_directory(target)
    for old in places.listed(target):
        if old.name.startswith(prefix):
            places.delete(old.path)
    for number, one in enumerate(places.data_files(staged)):
        places.move(one.path, f"{target}/{prefix}{number:04d}.parquet")
        done.files += 1
        done.size_bytes += one.size_bytes
    done.hours.add(name)
