"""Reading ranges of offsets into Arrow batches, in Spark's Python workers.

1. The driver resolves offsets once (`partitions`); a task reads its range and nothing else (`read`), so that a task
   that runs again gives the same rows. Both connect for themselves: no state of the driver is used. Few rows of a
   stream are read where they are planned (`read_small`).
2. Whole record batches are fetched and decoded many at once, column by column (`columns.py`); rows before and after the
   range are cut off. Offsets may have gaps. Control batches are no rows.
3. `ROWS_AT_ONCE` rows or `BYTES_AT_ONCE` bytes, decompressed, are decoded together, whichever comes first, and given
   out as Arrow batches of `ROWS_PER_BATCH`: that is what a task needs memory for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from core_log.containing import LOOKED_BYTES_MAX, Groups
from core_log.record_batch import parse_header
from protocols.native.clients.blocking import BlockingClient
from protocols.native.clients.client_tls import tls_context
from protocols.native.errors import OffsetOutOfRange, UnknownPartition, UnknownTopic
from spark_bridge.columns import Opened, decode, opened
from spark_bridge.filters import EVERYTHING, Wanted, looked_for, matching, narrowed, wanted_by
from spark_bridge.message_columns import having
from spark_bridge.offsets import DataLoss, OffsetRange, divide, existing_topics, resolve
from spark_bridge.options import Access, OptionError, ReadOptions, SinkOptions
from spark_bridge.schema import MADE_OF_HEADERS, MADE_OF_KEYS, arrow_rows
from spark_bridge.segments import directory_of, read_directly
from spark_bridge.sources import FETCH_BYTES_MAX, queue_batches, source_of
from spark_bridge.worker import settle

ROWS_AT_ONCE = 30_000
BYTES_AT_ONCE = 8 << 20
ROWS_PER_BATCH = 10_000
FETCH_BYTES_MIN = 16 << 10
RECORD_BYTES_GUESS = 1_000
PATIENCE_S = 60.0
"""While no broker is reached: a restart ends no query, and no task, which Spark runs again at once if at all."""


class MillraceReader(DataSourceReader):  # type: ignore[misc]
    """Plans and reads; pickled between the two, so it holds the options alone."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.wanted = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        """An input partition for each task. Raises `OptionError`, `DataLoss`, `MillraceError`."""
        with connect(self.options, patience_s=0) as client:
            source = source_of(client, self.options)
            ranges = resolve(source.log, source.options)
            if source.reader is not None:
                ranges = [replace(one, reader=source.reader) for one in ranges]
            ranges = narrowed(source.log, ranges, self.wanted, self.options.disorder_ms)
        return [InputPartition(each) for each in divide(ranges, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's ranges. Spark makes a partition of None when there is nothing to read.

        Raises `DataLoss` when records of the range are gone (and `failOnDataLoss`), `MillraceError`.
        """
        if partition.value is not None:
            yield from read_ranges(self.options, partition.value, self.wanted)


class FilteringReader(MillraceReader):
    """A reader that looks at a query's filters, to read less. Spark takes one only where
    `spark.sql.python.filterPushdown.enabled` is set, and fails the query otherwise.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """All of them are Spark's to apply, too."""
        self.wanted = wanted_by(filters)
        return filters


def read_ranges(
    options: ReadOptions, ranges: tuple[OffsetRange, ...], wanted: Wanted = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """The rows of ranges of offsets that are wanted, as Spark has them. Raises `DataLoss`, `MillraceError`,
    CorruptBatch.
    """
    settle()
    with connect(options) as client:
        for one in _still_there(client, options, ranges):
            reading = _Reading(one)
            yield from _rows(_fetched(client, reading, options, wanted), reading, options, wanted)


def read_small(
    client: BlockingClient, options: ReadOptions, ranges: tuple[OffsetRange, ...], bytes_max: int
) -> list[pa.RecordBatch] | None:
    """The rows of ranges; None when they have more bytes, fetched or decoded, than that. Raises as `read_ranges`."""
    settle()
    found: list[pa.RecordBatch] = []
    size = decoded = 0
    for one in _still_there(client, options, ranges):
        batches, reading = [], _Reading(one)
        for batch in _fetched(client, reading, options, EVERYTHING):
            size += len(batch)
            if size > bytes_max:
                return None
            batches.append(batch)
        for rows in _rows(iter(batches), reading, options, EVERYTHING):
            found.append(rows)
            decoded += rows.nbytes
            if decoded > bytes_max:
                return None
    return found


def _still_there(client: BlockingClient, options: ReadOptions, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """The ranges but for those of topics that were deleted and made again since the read was planned: what is there at
    their offsets now is something else (of queues that is seen as they are read). Raises `DataLoss`.
    """
    names = sorted({one.topic for one in ranges if one.topic_id and one.reader is None})
    now = ids_of(client, names) if names else {}
    found = []
    for one in ranges:
        if not one.topic_id or now.get(one.topic, one.topic_id) == one.topic_id:
            found.append(one)
        elif options.fail_on_data_loss:
            raise _made_again(one)
    return found


def ids_of(client: BlockingClient, names: list[str]) -> dict[str, str]:
    """The ids of topics as far as they are there and the broker says them."""
    return {name: known.id.hex() for name, known in existing_topics(client, names, as_far=True).items() if known.id}


class _Reading:
    """A range that is read, and where in it the records begin that may still be read."""

    def __init__(self, one: OffsetRange) -> None:
        self.range = one
        self.start_offset = one.start_offset
        """Behind the beginning of the range when what was there went; the batch in which it lies may be there still."""


def _fetched(client: BlockingClient, reading: _Reading, options: ReadOptions, wanted: Wanted) -> Iterator[memoryview]:
    """The record batches of a topic that hold what is wanted of the range, or those of a queue."""
    if reading.range.reader is not None:
        return queue_batches(client, reading.range, options)
    return _batches(client, reading, options, looked_for(wanted, options.headers_where))


def _rows(
    found: Iterator[memoryview], reading: _Reading, options: ReadOptions, wanted: Wanted
) -> Iterator[pa.RecordBatch]:
    one = reading.range
    names = set(options.columns)
    parts = {
        "with_keys": not names.isdisjoint(MADE_OF_KEYS),
        "with_values": "value" in names,
        "with_headers": bool(options.headers_where) or not names.isdisjoint(MADE_OF_HEADERS),
    }
    groups = looked_for(wanted, options.headers_where)
    for batches in _grouped(opened(found, groups)):
        columns = decode(batches, **parts)
        if columns.headers is not None and options.headers_where:
            columns = columns.chosen(having(columns.headers, options.headers_where))
        first, last = np.searchsorted(columns.offsets, [reading.start_offset, one.end_offset]).tolist()
        for start in range(first, last, ROWS_PER_BATCH):
            rows = arrow_rows(columns.part(start, min(start + ROWS_PER_BATCH, last)), one, options.columns)
            rows = matching(rows, wanted)
            if rows.num_rows:
                yield rows


def connect(options: ReadOptions | SinkOptions, *, patience_s: float = PATIENCE_S) -> BlockingClient:
    """A client of the first server that answers; of one that stands still the next is tried. Nothing is asked yet."""
    return BlockingClient(options.servers, **terms_of(options.access), patience_s=patience_s)


def terms_of(access: Access) -> dict[str, Any]:
    """How clients log in and speak TLS, as all of them are told. Raises `OptionError` for files that cannot be used."""
    files = {"millrace.tls.ca": access.ca, "millrace.tls.cert": access.cert, "millrace.tls.key": access.key}
    try:
        tls = tls_context(access.ca, access.cert, access.key) if access.tls else None
    except OSError as error:
        options = ", ".join(option for option, path in files.items() if path is not None and path in str(error))
        raise OptionError(f"{options}: {error}") from None
    return {"credentials": access.credentials, "tls": tls}


def _batches(client: BlockingClient, reading: _Reading, options: ReadOptions, groups: Groups) -> Iterator[memoryview]:
    """The record batches that hold the range, without those that the broker says cannot have what is looked for.
    Raises `DataLoss`.
    """
    one = reading.range
    directory = None if options.data_dir is None else directory_of(options.data_dir, one.topic, one.partition)
    if directory is not None:
        groups = ()  # what is fetched is compared with the files, and is little

    def fetched(offset: int, size: int) -> list[memoryview]:
        waited = False
        while True:
            try:
                result = client.fetch(one.topic, one.partition, offset, size, containing=groups)
                if one.topic_id and result.topic_id and result.topic_id.hex() != one.topic_id:
                    if options.fail_on_data_loss:
                        raise _made_again(one)
                    return []
                found = result.batches
                if not found and not waited:  # who leads now may hear only later how far it was committed
                    waited = client.list_offsets(one.topic, one.partition, "latest") is not None
                    continue
            except (UnknownTopic, UnknownPartition):
                if options.fail_on_data_loss:
                    raise _gone(one) from None
                return []
            except OffsetOutOfRange:
                found = []
                if not options.fail_on_data_loss:
                    earliest = client.list_offsets(one.topic, one.partition, "earliest") or 0
                    if earliest > offset:  # else it is a shorter log: the topic was made anew
                        offset = reading.start_offset = earliest
                        continue
            if not found and options.fail_on_data_loss:
                raise _lost(one, offset)
            return found

    if directory is not None:
        yield from read_directly(directory, one.start_offset, one.end_offset, fetched, FETCH_BYTES_MAX)
        return
    offset, size, count = one.start_offset, 0, 0
    most = LOOKED_BYTES_MAX if groups else FETCH_BYTES_MAX
    while offset < one.end_offset:
        # What lies behind the range is not asked for, as far as the records so far tell how long they are.
        each = size / count if count else RECORD_BYTES_GUESS
        room = int((one.end_offset - offset) * each * 1.1)
        batches = fetched(offset, min(max(room, FETCH_BYTES_MIN), most))
        if not batches:
            return
        for batch in batches:
            yield batch
            header = parse_header(batch)
            if not groups:
                size, count = size + len(batch), header.next_offset - one.start_offset
            elif not header.is_control:
                size, count = size + len(batch), count + header.last_offset_delta + 1
            offset = header.next_offset


def _made_again(one: OffsetRange) -> DataLoss:
    return DataLoss(
        f"{one.topic} was deleted and made again since the read of {one.start_offset} to {one.end_offset} of "
        f"partition {one.partition} was planned; failOnDataLoss=false leaves out what is gone"
    )


def _gone(one: OffsetRange) -> DataLoss:
    return DataLoss(
        f"{one.topic}-{one.partition} was deleted since the read of {one.start_offset} to {one.end_offset} was "
        "planned; failOnDataLoss=false leaves out what is gone"
    )


def _lost(one: OffsetRange, offset: int) -> DataLoss:
    return DataLoss(
        f"{one.topic}-{one.partition}: the log no longer has offset {offset}, which was there when the read was "
        f"planned ({one.start_offset} to {one.end_offset}); failOnDataLoss=false reads what there is"
    )


def _grouped(batches: Iterator[Opened]) -> Iterator[list[Opened]]:
    """As many batches together as are decoded at once; see the module's rule 3."""
    group: list[Opened] = []
    count = size = 0
    for batch in batches:
        group.append(batch)
        count += batch.header.record_count
        size += len(batch.records)
        if count >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield group
            group, count, size = [], 0, 0
    if group:
        yield group
