"""Rows published to an exchange, each row once.

1. All rows of a task are one step of a writer that is named after the query and the task, with the number of the
   micro-batch (`routing/publishing/published_once.py`): a step is published once, as a whole, in one transaction with
   the note that it was, whichever broker of a cluster is asked, and how often.
2. So the rows of a task have to fit into one request. Who has more writes with more partitions.
3. The columns are `value`, and if they are there `routingKey`, `headers`, `properties` (as the source has them), and
   `messageId`, `priority`, `delayMs` as a short way to single ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from core_log.compression import Compression
from core_log.record_batch import NO_HEADERS, encode_headers
from core_log.wall_clock import wall_clock_ms
from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import ConnectionLost, MillraceError, RequestTimedOut
from spark_bridge.message_columns import PREFIX, PROPERTIES
from spark_bridge.options import OptionError, SinkOptions
from spark_bridge.records import ColumnDraft, header_pairs

BATCH_BYTES = 768 << 10
REQUEST_OVERHEAD_BYTES = 64 << 10
RECORD_OVERHEAD_BYTES = 32
DELAY_HEADER = "x-delay"
_PATIENCE_S = 60.0
"""While brokers are gone, or too few are in sync."""
_RETRY_S = 0.2
_BLOCKS_MAX = 1024

_NUMBERS_MAX = {"priority": 255, "expiration-ms": 2**63 - 1, "timestamp-s": 2**63 - 1}
_NUMBERS = (ByteType(), ShortType(), IntegerType(), LongType())
_KINDS: dict[str, tuple[DataType, ...]] = {
    "value": (BinaryType(), StringType()),
    "routingKey": (StringType(),),
    "properties": (MapType(StringType(), StringType()), MapType(StringType(), StringType(), valueContainsNull=False)),
    "messageId": (StringType(),),
    "priority": _NUMBERS,
    "delayMs": _NUMBERS,
}


def check_exchange_columns(schema: StructType, options: SinkOptions, is_headers: Any) -> None:
    """Raises `OptionError` for columns that cannot be published."""
    for column in schema.fields:
        wanted = _KINDS.get(column.name)
        good = is_headers(column) if column.name == "headers" else wanted is not None and column.dataType in wanted
        if wanted is None and column.name != "headers":
            raise OptionError(
                f"there is no place for the column {column.name!r}: a message has {', '.join(_KINDS)} and headers"
            )
        if not good:
            raise OptionError(f"the column {column.name!r} cannot be {column.dataType.simpleString()}")
    if "value" not in schema.names:
        raise OptionError("a column 'value' is needed, of type string or binary")
    if options.routing_key is not None and "routingKey" in schema.names:
        raise OptionError("the option routingKey and a column of that name contradict each other")


def publish_rows(
    client: BlockingClient, batches: Iterator[pa.RecordBatch], options: SinkOptions, writer: str, number: int
) -> tuple[int, bool]:
    """Publish the rows of a task; how many there are, and whether that had been done before. Raises `OptionError`
    (too many, bad properties), `MillraceError`.
    """
    maker = _Batches(options)
    for batch in batches:
        if batch.num_rows:
            maker.add(dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows)
    made = maker.built()
    client.metadata([])
    room = client.limits["request_bytes_max"] - REQUEST_OVERHEAD_BYTES
    size = sum(map(len, made))
    if size > room:
        raise OptionError(
            f"the rows of one task take {size} bytes, and a task publishes at most {room}: repartition the rows, or "
            "read less for each micro-batch"
        )
    if not made:
        return 0, False
    said = {"name": options.exchange, "vhost": options.vhost, "writer": writer, "number": number, "batches": made}
    return maker.rows, _publish(client, said) < 0


def _publish(client: BlockingClient, said: Mapping[str, Any]) -> int:
    """Have it published by whichever broker answers: it takes effect once. Raises `MillraceError`."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return int(client.look("exchanges.publish_once", **said))
        except MillraceError as error:
            passes = error.retriable or isinstance(error, ConnectionLost | RequestTimedOut)
            if not passes or time.monotonic() >= until:
                raise
        time.sleep(_RETRY_S)


class _Batches:
    """Record batches of rows, in their order."""

    def __init__(self, options: SinkOptions) -> None:
        self.rows = 0
        self._compression = Compression[(options.compression or "none").upper()]
        self._key = None if options.routing_key is None else options.routing_key.encode()
        self._drafts: list[ColumnDraft] = []
        self._blocks: dict[Any, bytes] = {}

    def add(self, columns: Mapping[str, pa.Array], count: int) -> None:
        """Put rows in."""
        self.rows += count
        values = columns["value"].cast(pa.binary()).to_pylist()
        keys: list[bytes | None] = [self._key or b""] * count
        if "routingKey" in columns:
            keys = pc.fill_null(columns["routingKey"], "").cast(pa.binary()).to_pylist()
        blocks = self._header_blocks(columns, count)
        start = size = 0
        for index in range(count):
            size += len(values[index] or b"") + len(keys[index] or b"") + len(blocks[index]) + RECORD_OVERHEAD_BYTES
            if size >= BATCH_BYTES or index == count - 1:
                stop = index + 1
                draft = self._drafts[-1] if self._drafts else None
                if draft is None or draft.size + size > BATCH_BYTES:
                    draft = ColumnDraft(wall_clock_ms())
                    self._drafts.append(draft)
                bodies = [value or b"" for value in values[start:stop]]
                draft.add(bodies, keys[start:stop], blocks[start:stop], size)
                start, size = stop, 0

    def _header_blocks(self, columns: Mapping[str, pa.Array], count: int) -> list[bytes]:
        names = [name for name in ("headers", "properties", "messageId", "priority", "delayMs") if name in columns]
        if not names:
            return [NO_HEADERS] * count
        found = []
        for row in zip(*(columns[name].to_pylist() for name in names), strict=True):
            said = dict(zip(names, row, strict=True))
            pairs = tuple(_pairs(said))
            block = self._blocks.get(pairs)
            if block is None:
                if len(self._blocks) >= _BLOCKS_MAX:
                    self._blocks.clear()
                block = self._blocks[pairs] = encode_headers(pairs)
            found.append(block)
        return found

    def built(self) -> list[bytes]:
        """All of them."""
        return [draft.build(self._compression) for draft in self._drafts]


def _pairs(said: Mapping[str, Any]) -> Iterator[tuple[str, bytes | None]]:
    """The headers of a record that say what a row does."""
    yield from header_pairs(said.get("headers"))
    properties = dict(said.get("properties") or ())
    for column, name in (("messageId", "message-id"), ("priority", "priority")):
        if said.get(column) is not None:
            properties[name] = str(said[column])
    for name, value in properties.items():
        if PREFIX + name not in PROPERTIES:
            raise OptionError(f"a message has no property {name!r}")
        if value is None:
            continue
        most = _NUMBERS_MAX.get(name)
        if most is not None and not (value.isascii() and value.isdigit() and int(value) <= most):
            raise OptionError(f"a message's {name} is a number from 0 to {most}, not {value}")
        yield PREFIX + name, value.encode()
    delay_ms = said.get("delayMs")
    if delay_ms is not None:
        if delay_ms < 0:
            raise OptionError(f"a delay is not negative: {delay_ms}")
        yield DELAY_HEADER, b"%d" % delay_ms
