"""Reading ranges of offsets into Arrow batches, in Spark's Python workers.

1. The driver resolves offsets once (`partitions`); a task reads its range and nothing else (`read`), so that a task
   that runs again gives the same rows. Both connect for themselves: no state of the driver is used.
2. Whole record batches are fetched and decoded column by column; rows before and after the range are cut off. Offsets
   may have gaps. Control batches are no rows.
3. An Arrow batch is given out at `ROWS_PER_BATCH` rows or `BYTES_PER_BATCH` bytes as fetched, whichever comes first.
4. Arrow batches have exactly the schema Spark expects, types and order; it checks only the first one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, chain

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from core_log.record_batch import decode_columns, parse_header, validate
from protocols.native.blocking import BlockingClient
from protocols.native.client_tls import tls_context
from protocols.native.errors import ConnectionLost, OffsetOutOfRange
from spark_bridge.offsets import DataLoss, OffsetRange, ReadOptions, resolve

ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 8 << 20
FETCH_BYTES_MAX = 1 << 20
LOG_APPEND_TIME_BIT = 0x08

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
]
SCHEMA = pa.schema(_FIELDS)
SCHEMA_WITH_HEADERS = pa.schema([*_FIELDS, pa.field("headers", pa.list_(pa.field("element", _HEADER)))])


class MillraceReader(DataSourceReader):  # type: ignore[misc]
    """Plans and reads; pickled between the two, so it holds the options alone."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """An input partition for each range. Raises `OptionError`, `DataLoss`, `MillraceError`."""
        with _connect(self.options) as client:
            return [InputPartition(one) for one in resolve(client, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Spark makes a partition of None when there is nothing to read.

        Raises `DataLoss` when records of the range are gone (and `failOnDataLoss`), `MillraceError`.
        """
        if partition.value is None:
            return
        one: OffsetRange = partition.value
        rows = _Rows(one.topic, one.partition, include_headers=self.options.include_headers)
        with _connect(self.options) as client:
            for batch in _batches(client, one, fail_on_data_loss=self.options.fail_on_data_loss):
                rows.add(batch, one.start_offset, one.end_offset)
                if rows.full:
                    yield rows.take()
        if rows.count:
            yield rows.take()


def _connect(options: ReadOptions) -> BlockingClient:
    """A client of the first server that answers. Raises ConnectionLost when none does."""
    access = options.access
    tls = tls_context(access.ca, access.cert, access.key) if access.tls else None
    *others, last = options.servers
    for server in others:
        client = BlockingClient(server, credentials=access.credentials, tls=tls)
        try:
            client.metadata([])
            return client
        except ConnectionLost:
            client.close()
    return BlockingClient(last, credentials=access.credentials, tls=tls)


def _batches(client: BlockingClient, one: OffsetRange, *, fail_on_data_loss: bool) -> Iterator[memoryview]:
    """The record batches that hold the range. Raises `DataLoss`."""
    offset = one.start_offset
    while offset < one.end_offset:
        try:
            fetched = client.fetch(one.topic, one.partition, offset, FETCH_BYTES_MAX)
        except OffsetOutOfRange:
            if fail_on_data_loss:
                raise _lost(one, offset) from None
            earliest = client.list_offsets(one.topic, one.partition, "earliest") or 0
            if earliest <= offset:  # a shorter log: the topic was made anew
                return
            offset = earliest
            continue
        if not fetched.batches:
            if fail_on_data_loss:
                raise _lost(one, offset)
            return
        for batch in fetched.batches:
            yield batch
            offset = parse_header(batch).next_offset


def _lost(one: OffsetRange, offset: int) -> DataLoss:
    return DataLoss(
        f"{one.topic}-{one.partition}: the log no longer has offset {offset}, which was there when the read was "
        f"planned ({one.start_offset} to {one.end_offset}); failOnDataLoss=false reads what there is"
    )


class _Rows:
    """Columns being collected for the next Arrow batch."""

    def __init__(self, topic: str, partition: int, *, include_headers: bool) -> None:
        self._topic = topic
        self._partition = partition
        self._include_headers = include_headers
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._bytes = 0
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets: list[int] = []
        self._timestamps_ms: list[int] = []
        self._timestamp_types: list[int] = []
        self._headers: list[list[tuple[str, bytes | None]]] = []

    @property
    def full(self) -> bool:
        """Whether the batch should be taken; see the module's rule 3."""
        return self.count >= ROWS_PER_BATCH or self._bytes >= BYTES_PER_BATCH

    def add(self, batch: memoryview, start_offset: int, end_offset: int) -> None:
        """Append the records of one record batch that lie in the range. Raises CorruptBatch."""
        header = validate(batch, may_be_empty=True)
        if header.is_control:
            return
        columns = decode_columns(batch)
        first, last = bisect_left(columns.offsets, start_offset), bisect_left(columns.offsets, end_offset)
        self.count += last - first
        self._bytes += len(batch)
        self._offsets += columns.offsets[first:last]
        self._keys += columns.keys[first:last]
        self._values += columns.values[first:last]
        self._timestamps_ms += columns.timestamps_ms[first:last]
        self._timestamp_types += [int(bool(header.attributes & LOG_APPEND_TIME_BIT))] * (last - first)
        if self._include_headers:
            self._headers += columns.headers[first:last]

    def take(self) -> pa.RecordBatch:
        """The Arrow batch of what was collected; collecting starts anew."""
        timestamps_us = pc.multiply(pa.array(self._timestamps_ms, pa.int64()), 1000)
        arrays = [
            pa.array(self._keys, pa.binary()),
            pa.array(self._values, pa.binary()),
            pa.repeat(pa.scalar(self._topic, pa.string()), self.count),
            pa.repeat(pa.scalar(self._partition, pa.int32()), self.count),
            pa.array(self._offsets, pa.int64()),
            timestamps_us.view(pa.timestamp("us", tz="UTC")),
            pa.array(self._timestamp_types, pa.int32()),
        ]
        schema = SCHEMA
        if self._include_headers:
            arrays.append(_headers_array(self._headers))
            schema = SCHEMA_WITH_HEADERS
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _headers_array(headers: list[list[tuple[str, bytes | None]]]) -> pa.Array:
    """The headers column. A record without headers has null there, as in Spark's Kafka source."""
    flat = list(chain.from_iterable(headers))
    names = pa.array([_text(name) for name, _ in flat], pa.string())
    values = pa.array([value for _, value in flat], pa.binary())
    return pa.ListArray.from_arrays(
        pa.array([0, *accumulate(map(len, headers))], pa.int32()),
        pa.StructArray.from_arrays([names, values], fields=list(_HEADER)),
        type=SCHEMA_WITH_HEADERS.field("headers").type,
        mask=pa.array([not one for one in headers], pa.bool_()),
    )


def _text(name: str) -> str:
    """A name Spark can hold: bytes that are not UTF-8 (lone surrogates here) become replacement characters."""
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
