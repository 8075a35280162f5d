"""What topics need now and then, and before a stop."""

from __future__ import annotations

from collections.abc import Iterable

from routing.topics.topic import Topic


async def apply_retention(topics: Iterable[Topic]) -> None:
    """Drop what logs need not keep; write down what is known of producers, where a segment is full."""
    for partition in [one for topic in topics for one in topic.partitions]:
        partition.apply_retention()
        if partition.producers.is_due:
            await partition.producers.save()


async def save_producers(topics: Iterable[Topic]) -> None:
    """The broker stops: a start need not read the logs for them."""
    for partition in [one for topic in topics for one in topic.partitions]:
        await partition.producers.save()
