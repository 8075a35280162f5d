"""Telling partitions and groups that a transaction has ended, whoever leads them.

1. In a partition the end is a marker, appended by its leader and committed before it counts as told. It is written as
   often as it takes: the second one of a transaction ends nothing, and one of a coordinator that another has followed
   is refused. So is one that was asked for in an earlier leader epoch: another leader may have been told since, and the
   producer's next transaction be there.
2. For a group the end means that the offsets of the transaction are its offsets from now on, or are forgotten.
3. What is deleted need not be told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from core_log.errors import CoordinatorFenced, LogError, ProducerFenced
from core_log.transaction_marker import marker
from core_log.wall_clock import wall_clock_ms
from routing.errors import NotLeader, StorageUnavailable
from routing.log_transactions.links import Ending
from routing.log_transactions.questions import EndOffsets, Mark, Question, encode

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.topics.topic_partition import TopicPartition

_COMMIT_PATIENCE_S = 5.0


class Endings:
    """See the module; of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def tell_partition(self, topic: str, index: int, ending: Ending) -> None:
        """Tell a partition, wherever it is led. Raises StorageUnavailable, and what `mark` and `ask` do."""
        partition = self._partition(topic, index)
        if partition is None:
            return
        leadership = partition.leadership
        if leadership is None or leadership.refusal() is None:
            await self.mark(partition, ending)
        else:
            await self.ask(leadership.standing.leader, Mark(topic, index, ending))

    async def tell_group(self, group: str, ending: Ending) -> None:
        """Tell whoever looks after a group. Raises StorageUnavailable."""
        broker, cluster = self._broker.groups.broker_of(group), self._broker.cluster
        if cluster is None or broker == cluster.broker_id:
            await self._broker.offsets.end_pending(group, ending.producer_id, committed=ending.committed)
        else:
            await self.ask(broker, EndOffsets(group, ending))

    async def ask(self, broker: int | None, question: Question) -> bytes:
        """Ask another broker. Raises LogTransactionError, StorageUnavailable."""
        links = self._broker.engine.coordinator_links if self._broker.engine is not None else {}
        link = links.get(broker) if broker is not None else None
        if link is None:
            raise StorageUnavailable("who leads it cannot be reached now")
        return await link.ask(encode(question))

    def _partition(self, topic: str, index: int) -> TopicPartition | None:
        found = self._broker.topics.get(topic)
        return found.partitions[index] if found is not None and index < len(found.partitions) else None

    async def mark_here(self, topic: str, index: int, ending: Ending) -> None:
        """`mark` by name, for another broker."""
        partition = self._partition(topic, index)
        if partition is not None:
            await self.mark(partition, ending)

    async def mark(self, partition: TopicPartition, ending: Ending) -> None:
        """Append the marker to a partition that is led here; returns when that is committed. Raises
        StorageUnavailable, ProducerFenced, CoordinatorFenced.
        """

        leadership = partition.leadership
        epoch = leadership.epoch if leadership is not None else 0

        def check() -> None:
            refused = (leadership.refusal() or leadership.shortage()) if leadership is not None else None
            if refused is not None:
                raise refused
            if leadership is not None and leadership.epoch != epoch:
                raise NotLeader(f"{partition.log.directory} was led elsewhere, and may be in the next one")

        check()
        batch = marker(
            ending.producer_id,
            ending.producer_epoch,
            wall_clock_ms(),
            ending.coordinator_epoch,
            committed=ending.committed,
        )
        try:
            end = await partition.append_marker(batch, ending.coordinator_epoch, check)
        except (ProducerFenced, CoordinatorFenced):
            raise
        except LogError as error:
            raise StorageUnavailable(str(error)) from error
        log = partition.log
        self._broker.want_turn()
        with trio.move_on_after(_COMMIT_PATIENCE_S):
            await self._broker.commits.committed([(log, end)])
            return
        raise NotLeader(f"{log.directory} is not committed yet")
