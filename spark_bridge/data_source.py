"""`format("millrace")` for PySpark: topics as tables, read in batch.

Schema and options are those of Spark's Kafka source (docs/spark.md lists them). Reading a topic as a stream is not part
of this version: `readStream` says so.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_bridge.offsets import OptionError, parse_options
from spark_bridge.reader import MillraceReader

FORMAT_NAME = "millrace"

_COLUMNS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]
_HEADERS = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)


class StreamingNotSupported(NotImplementedError):
    """`readStream` was used; this version reads in batch."""


class MillraceDataSource(DataSource):  # type: ignore[misc]
    """What Spark builds from `format` and `option`; it travels between processes, so it holds the options alone."""

    @classmethod
    def name(cls) -> str:
        """The name to give to `format`."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """The columns; `headers` only when `includeHeaders` is true. Raises `OptionError` for wrong options."""
        include_headers = parse_options(self.options).include_headers
        return StructType([*_COLUMNS, _HEADERS] if include_headers else _COLUMNS)

    def reader(self, schema: StructType) -> MillraceReader:
        """The batch reader. Raises `OptionError` for wrong options or a schema that is not ours."""
        if schema != self.schema():
            raise OptionError(f"the schema is fixed: leave out schema(...), or give {self.schema().simpleString()}")
        return MillraceReader(parse_options(self.options))

    def streamReader(self, schema: StructType) -> NoReturn:
        """Refused with `StreamingNotSupported`."""
        raise StreamingNotSupported(
            f'readStream.format("{FORMAT_NAME}") is not supported in this version: '
            f'read.format("{FORMAT_NAME}") reads a topic in batch'
        )
