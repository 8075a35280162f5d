"""What topics need now and then, and before a stop."""

from __future__ import annotations

from collections.abc import Iterable

from routing.topics.producers import save_all
from routing.topics.topic import Topic
from routing.topics.topic_partition import TopicPartition


async def apply_retention(topics: Iterable[Topic]) -> None:
    """Drop what logs need not keep, and producers that are silent; write down what is known of the others, where a
    segment is full.
    """
    for partition in [one for topic in topics for one in topic.partitions]:
        partition.apply_retention()
        partition.producers.forget_silent()
        if partition.producers.is_due:
            await partition.producers.save()


def sync(topics: Iterable[Topic]) -> None:
    """Have what nobody waits for synced where it is led: figures, counts and lags go by what readers may see."""
    for partition in [one for topic in topics for one in topic.partitions]:
        log, leadership = partition.log, partition.leadership
        if log.high_watermark < log.log_end_offset and (leadership is None or leadership.refusal() is None):
            log.request_sync()


def look_after_readers(leased: set[TopicPartition], now_ms: int) -> None:
    """Say of readers' leases that they end, or have ended; partitions without any go, and those led elsewhere now."""
    for one in list(leased):
        led = one.leadership is None or one.leadership.refusal() is None
        if led:
            one.leases.look(now_ms, one.log.directory, one.log.log_start_offset, one.log.high_watermark)
        if not led or not one.leases.held:
            leased.discard(one)


async def save_producers(topics: Iterable[Topic]) -> None:
    """The broker stops: a start need not read the logs for them."""
    await save_all([one.producers for topic in topics for one in topic.partitions])
