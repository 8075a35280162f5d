"""`format("millrace")` for PySpark: topics as tables and as streams.

Schema and options are those of Spark's Kafka source (docs/spark.md lists them).
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_bridge.consuming import ConsumingStreamReader
from spark_bridge.options import OptionError, included, parse_options, parse_sink_options
from spark_bridge.reader import FilteringReader, MillraceReader
from spark_bridge.schema import default_columns, names_of, spark_schema
from spark_bridge.sink import MillraceStreamWriter, MillraceWriter, check_columns
from spark_bridge.stream import MillraceStreamReader

FORMAT_NAME = "millrace"


class MillraceDataSource(DataSource):  # type: ignore[misc]
    """What Spark builds from `format` and `option`; it travels between processes, so it holds the options alone."""

    @classmethod
    def name(cls) -> str:
        """The name to give to `format`."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """The columns where the user gives none; which there are options say. Raises `OptionError` for wrong ones."""
        headers, properties = included(self.options)
        return spark_schema(default_columns(headers=headers, properties=properties))

    def reader(self, schema: StructType) -> MillraceReader:
        """The batch reader. Raises `OptionError` for wrong options or a schema that is not ours."""
        options = parse_options(self.options, columns=names_of(schema))
        return FilteringReader(options) if options.push_down else MillraceReader(options)

    def streamReader(self, schema: StructType) -> MillraceStreamReader:
        """The reader of a stream. Raises `OptionError` as `reader` does."""
        options = parse_options(self.options, columns=names_of(schema), streaming=True)
        return ConsumingStreamReader(options) if options.consumes else MillraceStreamReader(options)

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
            raise OptionError('a topic cannot be overwritten: say outputMode("append")')
        options = parse_sink_options(self.options)
        if options.job is not None:
            raise OptionError("txnAppId and txnVersion are for batch writes: a stream has its own name and numbers")
        check_columns(schema, options)
        return MillraceStreamWriter(options)
