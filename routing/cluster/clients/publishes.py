"""What clients of this broker publish to a home that it leads, while nobody may append to it, and when others lead it.

1. While it stands still, publishes go to its `Stream`, as if it were led elsewhere: in their order, for as long as
   publishers have patience. What was appended before and is not committed is noted there first (`keep`).
2. When it is led here no more (`hand_on`), whoever waits for its log waits for the stream. What is committed, then or
   later, by the next leader and whatever the disk here does, is confirmed; what is cut off the log, because the next
   leader has not got it, is sent to that one. So nothing is lost, nothing is there twice, and all is in the order in
   which it was published.
3. Who published for others (a transaction, another broker, dead letters) does what it does when publishing has failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from routing.cluster.clients.orders import for_queues
from routing.errors import StorageUnavailable

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from core_log.replica_log import ReplicaLog
    from routing.broker import Broker
    from routing.queues.homes.replicated_partition import ReplicatedPartition


class Waiting:
    """See the module; of one home of which this broker has a replica."""

    def __init__(self, broker: Broker, log: ReplicaLog, name: str) -> None:
        assert broker.engine is not None
        self._broker = broker
        self._log = log
        self._stream = broker.engine.forwarding.stream(name)
        log.waits_out_errors = True
        log.on_cut = self._stream.own_cut
        log.on_known = self._known
        log.listeners.append(self._advanced)

    def close(self) -> None:
        """This broker has no replica any more: nobody will say here what becomes of what is open."""
        self._log.listeners.remove(self._advanced)
        self._log.on_cut = self._log.on_known = None
        self._stream.own_cut(-1)

    def _advanced(self, log: PartitionLog) -> None:
        self._known(log.high_watermark)

    def _known(self, offset: int) -> None:
        if self._stream.own:
            self._stream.own_committed(offset)

    @property
    def is_over(self) -> bool:
        """All that has waited was taken."""
        return self._stream.all_taken

    def retry(self) -> None:
        """It may be taken now."""
        self._stream.retry()

    def keep(self, partition: ReplicatedPartition) -> None:
        """Note what has been published and is not committed."""
        for first, end, queue_ids, once_in_ms, slab in partition.publishes():
            self._stream.reserve(len(slab.bodies), slab.size, for_queues(queue_ids, once_in_ms, slab), first, end)

    def hand_on(self, error: StorageUnavailable) -> None:
        """Others lead it, or may: see rule 2. The `error` is for whoever cannot wait for that."""
        stream, log = self._stream, self._log
        places = {own.end: own.kept.end for own in stream.own}
        stream.own_cut(log.log_end_offset)  # what was not appended yet
        there = cast("PartitionLog", stream)
        for session in self._broker.confirming:
            session.confirms.moved(log, there, places, error)
        self._broker.commits.move(log, there, places, error)
