"""`format("millrace")` for PySpark: topics as tables and as streams.

Schema and options are those of Spark's Kafka source (docs/spark.md lists them).
"""

from __future__ import annotations

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

from spark_bridge.offsets import OptionError, includes_headers, parse_options, parse_sink_options
from spark_bridge.reader import FilteringReader, MillraceReader
from spark_bridge.sink import MillraceStreamWriter, MillraceWriter, check_columns
from spark_bridge.stream import MillraceStreamReader

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


class MillraceDataSource(DataSource):  # type: ignore[misc]
    """What Spark builds from `format` and `option`; it travels between processes, so it holds the options alone."""

    @classmethod
    def name(cls) -> str:
        """The name to give to `format`."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """The columns; `headers` only when `includeHeaders` is true. Raises `OptionError` for wrong options."""
        return StructType([*_COLUMNS, _HEADERS] if includes_headers(self.options) else _COLUMNS)

    def reader(self, schema: StructType) -> MillraceReader:
        """The batch reader. Raises `OptionError` for wrong options or a schema that is not ours."""
        self._require(schema)
        options = parse_options(self.options)
        return FilteringReader(options) if options.push_down else MillraceReader(options)

    def streamReader(self, schema: StructType) -> MillraceStreamReader:
        """The reader of a stream. Raises `OptionError` as `reader` does."""
        self._require(schema)
        return MillraceStreamReader(parse_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> MillraceWriter:
        """The writer of a batch. Raises `OptionError` for wrong options or columns."""
        if overwrite:
            raise OptionError('a topic cannot be overwritten: say mode("append")')
        options = parse_sink_options(self.options)
        check_columns(schema, options)
        return MillraceWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MillraceStreamWriter:
        """The writer of a stream. Raises `OptionError` as `writer` does."""
        if overwrite:
            raise OptionError('a topic cannot be overwritten: say outputMode("append") or outputMode("update")')
        options = parse_sink_options(self.options)
        check_columns(schema, options)
        return MillraceStreamWriter(options)

    def _require(self, schema: StructType) -> None:
        if schema != self.schema():
            raise OptionError(f"the schema is fixed: leave out schema(...), or give {self.schema().simpleString()}")
