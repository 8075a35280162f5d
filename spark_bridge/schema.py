"""The columns of a table: their types for Spark and for Arrow, and how they are made of what was decoded.

1. The first are those of Spark's Kafka source. `headers` is there with `includeHeaders`, and what a message is besides
   (`message_columns.py`) with `includeProperties`.
2. Who gives a schema (`schema(...)`) names the columns that there are to be, of all these, in any order. What is not
   named is not made: what is left of a record may be its offset.
3. Arrow batches have exactly the schema that Spark expects, types and order; it checks only the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_bridge.columns import HEADERS_TYPE, Columns
from spark_bridge.message_columns import MESSAGE_COLUMNS, PROPERTIES_TYPE, message_columns
from spark_bridge.offsets import OffsetRange
from spark_bridge.options import OptionError

_TIMESTAMP_MS_MAX = ((1 << 63) - 1) // 1000
_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TYPES: dict[str, tuple[DataType, pa.DataType]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestampType": (IntegerType(), pa.int32()),
    "headers": (_HEADERS, HEADERS_TYPE),
    **dict.fromkeys(MESSAGE_COLUMNS, (StringType(), pa.string())),
    "properties": (MapType(StringType(), StringType()), PROPERTIES_TYPE),
}
RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""Those of Spark's Kafka source without headers."""
MADE_OF_KEYS = frozenset({"key", "routingKey", "mqttTopic"})
MADE_OF_HEADERS = frozenset({"headers", *MESSAGE_COLUMNS})


def default_columns(*, headers: bool, properties: bool) -> tuple[str, ...]:
    """The names of the columns where no schema is given."""
    return (*RECORD_COLUMNS, *(("headers",) if headers else ()), *(MESSAGE_COLUMNS if properties else ()))


def spark_schema(names: Iterable[str]) -> StructType:
    """These columns as Spark has them."""
    return StructType([StructField(name, _TYPES[name][0]) for name in names])


@cache
def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """These columns as Arrow has them."""
    return pa.schema([pa.field(name, _TYPES[name][1]) for name in names])


def names_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that was given. Raises `OptionError`."""
    names = tuple(schema.names)
    for field in schema.fields:
        known = _TYPES.get(field.name)
        if known is None or known[0] != field.dataType or not field.nullable:
            kinds = ", ".join(f"{name} {kind.simpleString()}" for name, (kind, _) in _TYPES.items())
            kind = field.dataType.simpleString() + ("" if field.nullable else " not null")
            raise OptionError(f"a schema may have these columns: {kinds}; not {field.name} {kind}")
    if not names or len(set(names)) < len(names):
        raise OptionError("a schema has a column once, and at least one")
    return names


def arrow_rows(columns: Columns, one: OffsetRange, names: tuple[str, ...]) -> pa.RecordBatch:
    """What was decoded of a range, as these columns."""
    found = message_columns(columns, set(names))
    arrays = [found[name] if name in found else _MAKERS[name](columns, one) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


def _timestamps(columns: Columns) -> pa.Array:
    """In microseconds, of which 64 bits hold less: what a producer dates beyond that has the first or the last time."""
    times = np.clip(columns.timestamps_ms, -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX)
    return pa.array(times * 1000).view(pa.timestamp("us", tz="UTC"))


_MAKERS: dict[str, Callable[[Columns, OffsetRange], pa.Array]] = {
    "key": lambda columns, one: columns.keys,
    "value": lambda columns, one: columns.values,
    "topic": lambda columns, one: pa.repeat(pa.scalar(one.topic, pa.string()), len(columns.offsets)),
    "partition": lambda columns, one: pa.repeat(pa.scalar(one.partition, pa.int32()), len(columns.offsets)),
    "offset": lambda columns, one: pa.array(columns.offsets),
    "timestamp": lambda columns, one: _timestamps(columns),
    "timestampType": lambda columns, one: pa.array(columns.timestamp_types),
    "headers": lambda columns, one: columns.headers,
}
