"""The name by which Spark finds `format("millrace")`, and what a Spark user of Millrace imports.

Spark looks into every top-level package whose name begins with `pyspark_` for a `DefaultSource`; with this one
installed, `spark.read.format("millrace")` needs no registration. See docs/spark.md.
"""

from spark_bridge.data_source import MillraceDataSource as DefaultSource
from spark_bridge.java import JavaNotFound, ensure_java

__all__ = ["DefaultSource", "JavaNotFound", "ensure_java"]
