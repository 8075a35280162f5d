"""What `format("millrace")` is in a PySpark that has data sources in Python, but lacks what ours needs of them."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from spark_bridge.versions import complaint


class TooOld(DataSource):  # type: ignore[misc]
    """Says so to whoever uses it: a package that cannot be imported would keep Spark from all sources in Python."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises ImportError."""
        raise ImportError(complaint())

    @classmethod
    def name(cls) -> str:
        """The name to give to `format`."""
        return "millrace"
