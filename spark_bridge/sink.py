"""Writing to topics, in batch and as streams, each row once.

1. A task writes its rows in one transaction, which also says, as the offset of a group that belongs to the query and
   the partition of Spark's task, that this micro-batch has been written. A task that runs again, because it failed,
   because another was faster, or because the driver died before it noted the micro-batch, finds that and writes
   nothing.
2. Two attempts of one task share a transactional id: whoever begins later ends what the other has open, and the other
   fails. So a row is there once or not at all when the micro-batch is done, whatever was killed meanwhile. What a job
   wrote before it failed for good stays: each task's rows take effect on their own.
3. Rows become records column by column: key, value and headers as they are, the partition by `partition`, else by the
   hash of the key as all Kafka clients reckon it, else in turn.

The columns are those of Spark's Kafka sink: `value`, and if they are there `key`, `headers`, `topic` and `partition`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from core_log.wall_clock import wall_clock_ms
from protocols.native.clients.blocking_transactional import BlockingTransactionalProducer
from protocols.native.errors import ProducerFenced
from spark_bridge.exchange_sink import check_exchange_columns, publish_rows
from spark_bridge.options import SINK_PREFIX, OptionError, SinkOptions
from spark_bridge.placing import hashed_partitions
from spark_bridge.reader import PATIENCE_S, connect, terms_of
from spark_bridge.records import ColumnDraft, header_blocks
from spark_bridge.worker import settle

BATCH_BYTES_MAX = 768 << 10
"""Of a record batch as it is sent; brokers take 1 MiB by default."""
REQUEST_BYTES_MAX = 4 << 20
"""So much is gathered before it is sent."""
RECORD_OVERHEAD_BYTES = 32

_BYTES = (BinaryType(), StringType())


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """What a task has done."""

    rows: int
    again: bool = False
    """Another attempt had written them before."""


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises `OptionError` for columns that cannot be written."""
    if options.exchange is not None:
        check_exchange_columns(schema, options, _is_headers)
        return
    kinds: dict[str, tuple[DataType, ...]] = {
        "key": _BYTES,
        "value": _BYTES,
        "topic": (StringType(),),
        "partition": (IntegerType(),),
    }
    for column in schema.fields:
        wanted = kinds.get(column.name)
        if column.name == "headers":
            good = _is_headers(column)
        elif wanted is None:
            names = "value, key, headers, topic and partition"
            raise OptionError(f"there is no place for the column {column.name!r}: a record has {names}")
        else:
            good = column.dataType in wanted
        if not good:
            raise OptionError(f"the column {column.name!r} cannot be {column.dataType.simpleString()}")
    names_there = set(schema.names)
    if "value" not in names_there:
        raise OptionError("a column 'value' is needed, of type string or binary")
    if options.topic is None and "topic" not in names_there:
        raise OptionError("the option 'topic' or a column of that name is needed")


def _is_headers(column: StructField) -> bool:
    kind = column.dataType
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    parts = [(one.name, one.dataType) for one in kind.elementType.fields]
    return parts == [("key", StringType()), ("value", BinaryType())]


class MillraceWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write: one micro-batch of a query of its own, or of the job that `txnAppId` names."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.query = str(uuid4()) if options.job is None else options.job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """The rows of one task. Raises `MillraceError`."""
        return write_rows(iterator, self.options, self.query, self.options.version, _context().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done: so is the write."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task failed for good. What the others wrote stays (rule 2)."""


class MillraceStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The micro-batches of a query."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """The rows of one task of one micro-batch. Raises `MillraceError`."""
        context = _context()
        query, number = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if query is None or number is None:
            raise RuntimeError("Spark does not say which query and which micro-batch this is")
        return write_rows(iterator, self.options, query, int(number), context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of the micro-batch are done."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch will come again; tasks that had been done are not done anew."""


def _context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("rows are written by Spark's tasks alone")
    return context


def write_rows(batches: Iterator[pa.RecordBatch], options: SinkOptions, query: str, number: int, part: int) -> Written:
    """Write the rows of micro-batch `number`, task `part`, unless that was done before. Raises MillraceError."""
    settle()
    name = f"{SINK_PREFIX}-{query}-{part}"
    if options.exchange is not None:
        with connect(options) as client:
            return Written(*publish_rows(client, batches, options, name, number))
    terms = terms_of(options.access)
    try:
        with BlockingTransactionalProducer(
            options.servers,
            name,
            transaction_timeout_ms=options.transaction_timeout_ms,
            compression=options.compression,
            batch_bytes=BATCH_BYTES_MAX,
            patience_s=PATIENCE_S,
            **terms,
        ) as producer:
            producer.begin()  # nobody else writes for this task from here on
            # A job may write to several topics under one name and number; if a column names them one note is for all.
            done = producer.client.committed_offsets(name, None if options.topic is None else [(options.topic, 0)])
            if any(offset > number for offset in done.values()):
                rows = sum(batch.num_rows for batch in batches)
                producer.abort()
                return Written(rows, again=True)
            writing = _Writing(producer, options.topic)
            for batch in batches:
                writing.add(batch)
            if writing.first_topic is None:
                producer.abort()
                return Written(0)
            writing.flush()
            producer.send_offsets({(writing.first_topic, 0): number + 1}, name)
            producer.commit()
            return Written(writing.rows)
    except ProducerFenced as error:
        raise ProducerFenced(
            f"{error}: another attempt of the task writes now, or it took longer than transactionTimeoutMs "
            f"({options.transaction_timeout_ms})"
        ) from None


@dataclass
class _Writing:
    """Rows on their way into record batches, by topic and partition."""

    producer: BlockingTransactionalProducer
    topic: str | None
    rows: int = 0
    first_topic: str | None = None
    _partitions: dict[str, int] = field(default_factory=dict)
    _turn: int = 0
    _drafts: dict[tuple[str, int], ColumnDraft] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Put the rows in; what has become enough is sent."""
        if not batch.num_rows:
            return
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self.rows += batch.num_rows
        if self.topic is not None:
            self._add(self.topic, columns, batch.num_rows)
            return
        topics = columns["topic"]
        if topics.null_count:
            raise OptionError("a row has no topic")
        for topic in topics.unique().to_pylist():
            chosen = np.flatnonzero(np.asarray(pc.equal(topics, topic)))
            self._add(topic, {name: one.take(pa.array(chosen)) for name, one in columns.items()}, len(chosen))

    def _add(self, topic: str, columns: Mapping[str, pa.Array], count: int) -> None:
        self.first_topic = self.first_topic or topic
        values = columns["value"].cast(pa.binary())
        keys = columns["key"].cast(pa.binary()) if "key" in columns else None
        blocks = header_blocks(columns["headers"]) if "headers" in columns else None
        places = self._places(topic, columns, keys, count)
        order = np.argsort(places, kind="stable")
        sizes = np.full(count, RECORD_OVERHEAD_BYTES, np.int64)
        for column in (values, keys):
            if column is not None:
                sizes += np.asarray(pc.fill_null(pc.binary_length(column), 0))
        if blocks is not None:
            sizes += np.fromiter(map(len, blocks), np.int64, count)
        value_list = values.take(pa.array(order)).to_pylist()
        key_list = None if keys is None else keys.take(pa.array(order)).to_pylist()
        block_list = None if blocks is None else [blocks[index] for index in order.tolist()]
        ends = np.flatnonzero(np.diff(places[order], append=-1)) + 1
        start = 0
        for end in ends.tolist():
            self._put(
                (topic, int(places[order[start]])),
                value_list[start:end],
                None if key_list is None else key_list[start:end],
                None if block_list is None else block_list[start:end],
                sizes[order[start:end]],
            )
            start = end

    def _put(
        self,
        place: tuple[str, int],
        values: list[bytes | None],
        keys: list[bytes | None] | None,
        blocks: list[bytes] | None,
        sizes: np.ndarray[Any, np.dtype[np.int64]],
    ) -> None:
        """Add rows to the batch of a partition, in parts that fit."""
        total = np.cumsum(sizes)
        start, count = 0, len(values)
        while start < count:
            draft = self._drafts.get(place)
            if draft is None:
                draft = self._drafts[place] = ColumnDraft(wall_clock_ms())
            before = int(total[start - 1]) if start else 0
            room = BATCH_BYTES_MAX - draft.size
            end = int(np.searchsorted(total, before + room, side="right"))
            if end <= start:
                if draft.count:
                    self.flush()
                    continue
                end = start + 1  # larger than a batch should be: the broker says whether it takes it
            size = int(total[end - 1]) - before
            draft.add(
                values[start:end],
                None if keys is None else keys[start:end],
                None if blocks is None else blocks[start:end],
                size,
            )
            self._bytes += size
            start = end
        if self._bytes >= REQUEST_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Send all that was gathered, and wait until it is stored. Raises MillraceError."""
        if self._drafts:
            drafts, self._drafts, self._bytes = self._drafts, {}, 0
            self.producer.send_drafts(drafts)

    def _places(
        self, topic: str, columns: Mapping[str, pa.Array], keys: pa.Array | None, count: int
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The partition of each row."""
        known = self._partitions.get(topic)
        if known is None:
            known = len(self.producer.client.metadata([topic], create_missing=True)[topic])
            self._partitions[topic] = known
        self._turn += 1
        places = np.full(count, self._turn % known, np.int64)
        if keys is not None:
            there = np.asarray(pc.is_valid(keys))
            places = np.where(there, hashed_partitions(keys, known), places)
        if "partition" in columns:
            chosen = columns["partition"]
            there = np.asarray(pc.is_valid(chosen))
            numbers = np.asarray(pc.fill_null(chosen, 0)).astype(np.int64)
            if np.any(there & ((numbers < 0) | (numbers >= known))):
                raise OptionError(f"topic {topic!r} has {known} partitions, a row names another")
            places = np.where(there, numbers, places)
        return places
