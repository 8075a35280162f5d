"""What a stream's reader gives Spark with the plan of a micro-batch: its rows, when they are few.

Spark would start a task in another Python process for them, which takes longer than reading them does. It knows how to
take rows from where a micro-batch is planned, and has that for sources without partitions (its wrapper of a
`SimpleDataSourceStreamReader`); they are kept as a block of Spark's, and a task that does not find the block reads its
range as ever. So a reader that has rows to hand over is taken for such a wrapper, until they are handed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader

try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as Wrapper
except ImportError:  # Spark's own affair: where it has none, tasks read everything
    Wrapper = None

HANDED_OVER_BYTES_MAX = 2 << 20
"""Of rows, as they were fetched and as they are decoded."""


class HandingOver(DataSourceStreamReader):  # type: ignore[misc]
    """A reader whose `partitions` may leave rows to hand over, when it plans one task."""

    _rows: list[pa.RecordBatch] | None = None
    may_hand_over = Wrapper is not None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """What `isinstance` asks: see the module."""
        return type(self) if self._rows is None else Wrapper

    def getCache(self, start: Any, end: Any) -> Iterator[pa.RecordBatch] | None:
        """The rows of the micro-batch that was just planned; Spark asks for them right after `partitions`."""
        rows, self._rows = self._rows, None
        return None if rows is None else iter(rows)
