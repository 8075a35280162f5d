"""The name by which Spark finds `format("millrace")`, and what a Spark user of Millrace imports.

Spark looks into every top-level package whose name begins with `pyspark_` for a `DefaultSource`; with this one
installed, `spark.read.format("millrace")` needs no registration. See docs/spark.md.
"""

from importlib.util import find_spec

from spark_bridge.versions import complaint

if complaint() is None:
    from spark_bridge.data_source import MillraceDataSource as DefaultSource
elif find_spec("pyspark.sql.datasource") is not None:
    from spark_bridge.too_old import TooOld as DefaultSource
else:
    raise ImportError(complaint())
from spark_bridge.java import JavaNotFound, ensure_java

__all__ = ["DefaultSource", "JavaNotFound", "ensure_java"]
