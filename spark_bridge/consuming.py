"""A queue as a stream whose messages leave the queue when Spark is done with them.

1. A micro-batch is a range of positions. When it is planned the broker sets messages aside for the query, durably
   (`routing/queues/reservations.py`), so whatever is killed, the range has the same messages when it is read again, and
   nobody else gets them.
2. Where a micro-batch begins, all before it is done: Spark asks for the next one only when it has noted that. Then the
   messages before are settled, which is the acknowledgement. Of the last micro-batch of a query that is stopped in
   between this is said when the query goes on.
3. A query that is not heard of for `leaseMs` loses what it has not acknowledged: that stands in the queue again.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from protocols.native.errors import MillraceError
from spark_bridge.offsets import OffsetRange
from spark_bridge.stream import MillraceStreamReader, Offsets, logger

RESERVED_MAX = 1_000_000
"""So much is set aside for a micro-batch that has no other limit."""


class ConsumingStreamReader(MillraceStreamReader):
    """See the module."""

    _stop_at: int | None = None
    _available_now = False
    _known_end = 0

    def initialOffset(self) -> Offsets:
        """Positions begin at 0, whatever the queue has been through. Raises `OptionError` (a stream)."""
        self._connected_source()
        return self._offset_at(0)

    def latestOffset(self, start: Offsets | None = None, limit: ReadLimit | None = None) -> Offsets:
        """Acknowledge all before `start`, and have the next messages set aside. Raises `MillraceError`."""
        position = self._position(start or {})
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else RESERVED_MAX
        if self._available_now and self._stop_at is None:
            found = self._reserve(position, 0)
            self._stop_at = found["reserved"] + found["ready"]
        if self._stop_at is not None:
            most = max(min(most, self._stop_at - position), 0)
        found = self._reserve(position, most)
        self._known_end = found["reserved"] + found["ready"]
        return self._offset_at(found["end"])

    def reportLatestOffset(self) -> Offsets:
        """Where the queue ended when that was last asked."""
        return self._offset_at(self._known_end)

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes after the first micro-batch is planned is not for this run of the query."""
        self._available_now = True

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """An input partition for each range of positions."""
        first, last = self._position(start), self._position(end)
        if first >= last:
            return []
        one = OffsetRange(str(self.options.queue), 0, first, last, self.options.group)
        return self._planned([one], end)

    def commit(self, end: Offsets) -> None:
        """A micro-batch is done: what it had is acknowledged."""
        try:
            self._reserve(self._position(end), 0)
        except MillraceError as error:
            logger.warning("messages that are done with are acknowledged later: %s", error)

    def _reserve(self, position: int, count: int) -> Any:
        options = self.options
        said = {
            "name": options.queue, "vhost": options.vhost, "reader": options.group, "lease_ms": options.lease_ms,
        }  # fmt: skip
        return self._connected().look("queues.reserve", position=position, count=count, **said)

    def _position(self, offset: Offsets) -> int:
        found: int = offset.get(str(self.options.queue), {}).get("0", 0)
        return found

    def _offset_at(self, position: int) -> Offsets:
        return self._offset({(str(self.options.queue), 0): position})
