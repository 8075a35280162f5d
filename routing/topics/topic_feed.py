"""A topic for a queue that is a view of it: the readers of its partitions, however many it has by now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from routing.topics.partition_reader import PartitionReader, StreamHost
from routing.topics.topic import Topic
from routing.topics.topic_partition import TopicPartition


class TopicFeed:
    """See the module; `advanced` is told when there may be more."""

    def __init__(self, name: str, topics: Mapping[str, Topic], host: StreamHost, advanced: Callable[[], None]) -> None:
        self._name = name
        self._topics = topics
        self._host = host
        self._advanced = advanced
        self._partitions: list[TopicPartition] = []
        self._readers: list[PartitionReader] = []
        self._waiting = 0

    def sources(self) -> Sequence[PartitionReader]:
        """The readers of its partitions, as many as there are now; none where there is no such topic."""
        topic = self._topics.get(self._name)
        partitions = topic.partitions if topic is not None else []
        if partitions is not self._partitions:  # another topic, or fewer of them
            self._leave()
            self._partitions = partitions
        if len(self._readers) < len(partitions):
            for partition in partitions[len(self._readers) :]:
                reader = self._host.reader(partition, self._advanced)
                self._readers.append(reader)
                if self._waiting:
                    reader.waits(self._waiting)
        return self._readers

    def waits(self, count: int) -> None:
        """So many more (or less) wait for what comes."""
        self._waiting += count
        for reader in self._readers:
            reader.waits(count)

    def close(self) -> None:
        """It is not wanted any more."""
        self._leave()
        self._waiting = 0

    def _leave(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            if self._waiting:
                reader.waits(-self._waiting)
            reader.leave(self._advanced)
