"""Topics as groups see them: names, ids and numbers of partitions."""

from __future__ import annotations

from typing import Any, cast

from routing.topics.topic import Topic
from routing.topics.topic_ids import Topics


class Shape:
    """As much of a topic as groups look at."""

    def __init__(self, name: str, count: int, topic_id: bytes) -> None:
        self.name = name
        self.id = topic_id
        self.partitions: list[Any] = [None] * count


class FakeTopics(Topics):
    """Topics without logs."""

    _made = 0

    def set(self, name: str, count: int) -> None:
        """A topic has so many partitions from now on; none: it is not there."""
        before = self.remove(name)
        if count:
            self._made += 1
            topic_id = before.id if before is not None else self._made.to_bytes(16, "big")
            self.add(cast(Topic, Shape(name, count, topic_id)))
