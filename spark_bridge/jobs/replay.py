"""Replay: Parquet files, or a range of topics, into a topic, each record once.

1. What is to be replayed is planned before the first record is written: a list of steps, each of files or of ranges of
   offsets, in order. The plan is kept in the checkpoint, if there is one; a run that was killed goes on with it.
2. A step is one batch write under the plan's name and the step's number (`txnAppId`, `txnVersion`), and has the same
   rows in the same tasks whenever it is done: a task that had been done writes nothing.
3. Records of one partition keep their order within a step, and steps come in order: hour by hour of an export.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import uuid4

from pyspark.sql.types import StructType

from spark_bridge.jobs.places import Places, only_one
from spark_bridge.jobs.session import JobError, sentence_of
from spark_bridge.offsets import resolve
from spark_bridge.options import parse_options
from spark_bridge.reader import connect, ids_of
from spark_bridge.schema import spark_schema
from spark_bridge.sources import source_of

OFFSETS_PER_STEP = 2_000_000
TASKS = 8
"""Of a step of files: always as many, so that a row is in the same one again, however many cores there are by then."""
ROWS_TOGETHER = 500_000
"""So many rows of a file that does not say which records they were are in one task, in their order."""
_PLAN = "plan.json"
_HOUR = re.compile(r"/date=(\d{4}-\d\d-\d\d)/hour=(\d{1,2})$")
_Plan = Callable[[], list[Any]]
"""The steps of a replay, as JSON can hold them."""
_Rows = Callable[[Any], Any]
"""The rows of a step."""
_WRITTEN = ("key", "value", "headers")


@dataclass
class Replayed:
    """What a replay has done so far, or in all."""

    records: int = 0
    """Written by this run."""
    steps: int = 0
    steps_done: int = 0
    steps_before: int = 0
    """Done by runs before this one."""
    seconds: float = 0


def replay_files(
    spark: Any,
    directory: str,
    sink: Mapping[str, str],
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    checkpoint: str | None = None,
    keep_partitions: bool = False,
    with_headers: bool = True,
    progress: Callable[[Replayed], None] = lambda _: None,
) -> Replayed:
    """Write what the Parquet files of a directory hold to a topic; `sink` are options of `write`.

    Records are those with since_ms <= timestamp < until_ms. Raises `JobError`.
    """
    places = Places(spark, directory)

    def plan() -> list[Any]:
        files = [one.path for one in places.data_files(places.root) if one.name.endswith(".parquet")]
        if not files:
            raise JobError(f"there are no Parquet files in {directory}")
        by_directory = groupby(files, key=lambda path: path.rpartition("/")[0])
        hours = [(name.removeprefix(places.root), list(paths)) for name, paths in by_directory]
        return [{"files": paths} for name, paths in hours if _may_hold(name, since_ms, until_ms)]

    def rows(step: Any) -> Any:
        by_place = isinstance(step, dict)  # plans of earlier versions are lists; what they have begun has Spark's tasks
        paths = step["files"] if by_place else step
        read = spark.read.option("basePath", places.root)
        found = read.parquet(*paths)
        if with_headers and "headers" not in found.columns:  # it has the columns of one file; others may have headers
            columns = [*found.schema.fields, *spark_schema(["headers"]).fields]
            found = read.schema(StructType(columns)).parquet(*paths)
        found = _within(found if with_headers else found.drop("headers"), since_ms, until_ms)
        return _ordered(found, by_place=by_place)

    return _Replay(spark, sink, checkpoint, keep_partitions, progress).run(plan, rows, f"from {places.root}")


def replay_topics(
    spark: Any,
    source: Mapping[str, str],
    sink: Mapping[str, str],
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    checkpoint: str | None = None,
    keep_partitions: bool = False,
    offsets_per_step: int = OFFSETS_PER_STEP,
    progress: Callable[[Replayed], None] = lambda _: None,
) -> Replayed:
    """Write what topics hold now (`source` are options of `read`) to a topic; see `replay_files` for the rest.

    They are read to their end, as records may lie behind younger ones; `timestampDisorderMs` says how much younger.
    """
    disorder = next((value for name, value in source.items() if name.lower() == "timestampdisorderms"), "")
    times = {
        "startingTimestamp": since_ms,
        "endingTimestamp": until_ms + int(disorder) if until_ms is not None and disorder.isdecimal() else None,
        "startingOffsetsByTimestampStrategy": None if since_ms is None else "latest",
    }

    if any(name.lower() == "queue" for name in source):
        raise JobError("a queue has no range to replay: export it, or bind a topic beside it")

    def plan() -> list[Any]:
        options = parse_options({**source, **{name: str(value) for name, value in times.items() if value is not None}})
        with connect(options) as client:
            source_here = source_of(client, options)
            ranges = resolve(source_here.log, source_here.options)
        total = sum(one.end_offset - one.start_offset for one in ranges)
        count = -(-total // offsets_per_step)
        steps = []
        for step in range(count):
            starts: dict[str, dict[str, int]] = {}
            ends: dict[str, dict[str, int]] = {}
            for one in ranges:
                size = one.end_offset - one.start_offset
                low, high = (one.start_offset + size * at // count for at in (step, step + 1))
                if low < high:
                    starts.setdefault(one.topic, {})[str(one.partition)] = low
                    ends.setdefault(one.topic, {})[str(one.partition)] = high
            steps.append([starts, ends, {one.topic: one.topic_id for one in ranges if one.topic_id}])
        return steps

    kept = {
        name: value
        for name, value in source.items()
        if not name.lower().startswith(("starting", "ending", "subscribe", "assign", "mqtt.", "millrace.vhost"))
    }

    def rows(step: Sequence[Any]) -> Any:
        starts, ends, *known = step  # plans of earlier versions have no ids
        _require_same(source, known[0] if known else {})
        ranges = {
            "assign": json.dumps({topic: [int(one) for one in each] for topic, each in starts.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }
        return _within(spark.read.format("millrace").options(**kept, **ranges).load(), since_ms, until_ms)

    return _Replay(spark, sink, checkpoint, keep_partitions, progress).run(plan, rows, "from topics")


def _require_same(source: Mapping[str, str], planned: Mapping[str, str]) -> None:
    """Raises `JobError` when a topic is not the one that was planned to be read."""
    if not planned:
        return
    with connect(parse_options(source)) as client:
        now = ids_of(client, list(planned))
    for topic, topic_id in planned.items():
        if now.get(topic, topic_id) != topic_id:
            raise JobError(
                f"{topic} was deleted and made again since the replay was planned: what is left of the plan is gone"
            )


def _within(rows: Any, since_ms: int | None, until_ms: int | None) -> Any:
    if since_ms is not None:
        rows = rows.where(f"unix_millis(timestamp) >= {since_ms}")
    return rows if until_ms is None else rows.where(f"unix_millis(timestamp) < {until_ms}")


def _ordered(rows: Any, *, by_place: bool) -> Any:
    """Records of one partition in one task and in their order, where the files say what that is; else by their places
    in the files, as Spark shares out files among its cores.
    """
    by = [name for name in ("topic", "partition") if name in rows.columns]
    if by and "offset" in rows.columns:
        return rows.repartition(TASKS, *by).sortWithinPartitions(*by, "offset")
    if not by_place:
        return rows
    file, row = (rows.metadataColumn("_metadata")[name] for name in ("file_path", "row_index"))
    return rows.repartition(TASKS, file, (row / ROWS_TOGETHER).cast("bigint")).sortWithinPartitions(file, row)


def _may_hold(name: str, since_ms: int | None, until_ms: int | None) -> bool:
    """Whether a directory's name leaves it open that records of that time are in it."""
    found = _HOUR.search(name)
    if found is None:
        return True
    begin = int(datetime.fromisoformat(f"{found[1]}T{int(found[2]):02}:00:00+00:00").timestamp() * 1000)
    return (until_ms is None or begin < until_ms) and (since_ms is None or begin + 3_600_000 > since_ms)


@dataclass
class _Replay:
    """One replay under way; see the module."""

    spark: Any
    sink: Mapping[str, str]
    checkpoint: str | None
    keep_partitions: bool
    progress: Callable[[Replayed], None]

    def run(self, plan: _Plan, rows: _Rows, what: str) -> Replayed:
        """Do what is left of the plan. Raises `JobError`."""
        notes = None if self.checkpoint is None else Places(self.spark, self.checkpoint)
        with nullcontext() if notes is None else only_one("replay", notes.root):
            try:
                return self._run(plan, rows, what, notes)
            except JobError:
                raise
            except Exception as error:
                raise JobError(sentence_of(error)) from error

    def _run(
        self, plan: Callable[[], list[Any]], rows: Callable[[Any], Any], what: str, notes: Places | None
    ) -> Replayed:
        known = None if notes is None else notes.read_json(f"{notes.root}/{_PLAN}")
        target = self.sink.get("topic")
        if known is None:
            known = {"name": str(uuid4()), "what": what, "to": target, "steps": plan()}
            if notes is not None:
                notes.make_directory(notes.root)
                notes.write_json(f"{notes.root}/{_PLAN}", known)
        elif known["what"] != what:
            raise JobError(f"the checkpoint is of another replay, {known['what']}")
        elif known.get("to", target) != target:  # plans of earlier versions do not say it
            raise JobError(f"the checkpoint is of another replay, to {known['to']}")
        past = set() if notes is None else {one.name for one in notes.listed(notes.root)}
        done, began = Replayed(steps=len(known["steps"])), time.monotonic()
        for number, step in enumerate(known["steps"]):
            if f"done-{number}" in past:
                done.steps_before += 1
            else:
                done.records += self._write(rows(step), known["name"], number)
                if notes is not None:
                    notes.write_json(f"{notes.root}/done-{number}", {})
            done.steps_done += 1
            done.seconds = time.monotonic() - began
            self.progress(done)
        return done

    def _write(self, rows: Any, name: str, number: int) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        columns = [*_WRITTEN, *(["partition"] if self.keep_partitions else [])]
        seen = Observation()
        chosen = rows.select(*(one for one in columns if one in rows.columns)).observe(
            seen, f.count(f.lit(1)).alias("rows")
        )
        options = {**self.sink, "txnAppId": name, "txnVersion": str(number)}
        chosen.write.format("millrace").options(**options).mode("append").save()
        return int(seen.get["rows"])
