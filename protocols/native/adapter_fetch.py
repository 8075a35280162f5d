"""What fetches of the native protocol ask the engine for, and how they are answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core_log.committed import committed
from core_log.containing import Groups
from core_log.errors import OffsetOutOfRange
from core_log.expiry import unexpired
from core_log.files import BytesLike
from core_log.partition_log import PartitionLog
from protocols.fetching import Entry, Found
from protocols.log_waits import Waits
from protocols.native.adapter_errors import Refused, engine_error
from protocols.native.errors import ErrorCode, WireError, wire_error
from protocols.native.wire import Fetch, FetchEntry, encode_fetch_reply
from protocols.native.wire_base import CONTAINING_BYTES_MAX, CONTAINING_MAX
from protocols.sansio import Outbox
from routing.errors import BrokerError
from routing.topics.topic_partition import TopicPartition


def check_containing(request: Fetch) -> None:
    """Raises Refused for more than a fetch may look for."""
    groups = request.containing
    count = sum(map(len, groups))
    if count > CONTAINING_MAX or sum(len(string) for group in groups for string in group) > CONTAINING_BYTES_MAX:
        raise Refused(
            ErrorCode.LIMIT_EXCEEDED,
            f"a fetch looks for at most {CONTAINING_MAX} byte strings of {CONTAINING_BYTES_MAX} bytes in all",
        )


class FetchDoor:
    """See `protocols.fetching.Door`; `led` gives a partition that is led here, in the epoch that a client knows. It
    raises Refused, BrokerError.
    """

    def __init__(
        self,
        led: Callable[[str, int, int], TopicPartition],
        id_of: Callable[[str, int, PartitionLog], bytes],
        outbox: Outbox,
        looked: Callable[[int, int], None],
    ) -> None:
        """`id_of` tells the id of the topic that a log is of, or nothing; `looked` counts what fetches looked at and
        what of that was sent, in bytes.
        """
        self._led = led
        self._id_of = id_of
        self._outbox = outbox
        self.looked = looked

    def log_of(self, entry: Entry) -> PartitionLog | WireError:
        """See `protocols.fetching.Door`."""
        assert isinstance(entry, FetchEntry)
        try:
            return self._led(entry.topic, entry.partition, entry.leader_epoch).log
        except Refused as refusal:
            return refusal.error
        except BrokerError as error:
            return engine_error(error)

    def limit(self, request: Fetch, log: PartitionLog) -> int | None:
        """See `protocols.fetching.Door`: of transactions what is committed is seen."""
        return log.stable_offset if log.transactions is not None or log.config.held else None

    def seen(self, log: PartitionLog, batches: Sequence[BytesLike]) -> Sequence[BytesLike]:
        """See `protocols.fetching.Door`."""
        return unexpired(log, committed(log, batches))

    def out_of_range(self, problem: OffsetOutOfRange) -> WireError:
        """See `protocols.fetching.Door`."""
        return wire_error(ErrorCode.OFFSET_OUT_OF_RANGE, str(problem))

    def unreadable(self, log: PartitionLog, problem: Exception) -> WireError:
        """See `protocols.fetching.Door`. What is damaged for good is told as such: else clients would try again for
        ever, and say nothing.
        """
        code = ErrorCode.CORRUPT_BATCH if log.is_lost(problem) else ErrorCode.STORAGE_UNAVAILABLE
        return wire_error(code, f"the log cannot be read: {problem}")

    def looks_for(self, request: Fetch) -> Groups:
        """See `protocols.fetching.Door`."""
        return request.containing

    def waits(self, request: Fetch) -> Waits | None:
        """See `protocols.fetching.Door`."""
        return None

    def answer(self, request: Fetch, found: Sequence[Found[WireError]]) -> None:
        """See `protocols.fetching.Door`."""
        entries = [
            (one.error, -1, -1, one.batches, b"")
            if one.log is None
            else (
                one.error,
                one.log.log_start_offset,
                one.log.stable_offset,
                one.batches,
                self._id_of(one.entry.topic, one.entry.partition, one.log),
            )
            for one in found
        ]
        for piece in encode_fetch_reply(request.correlation_id, entries):
            self._outbox.write(piece)
