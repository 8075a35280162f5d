"""A topic: partition logs read by cursors that do not consume.

Slabs that an exchange routes to it become records of its partitions (`topic_partition.py`). A record's key is the
slab's routing key; keys choose the partition by murmur2, as Kafka's clients do, so one device or one order stays in one
partition whichever door it came through. The header `x-partition-key` goes before the routing key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core_log.murmur2 import partition_of_key
from core_log.partition_log import LogConfig, PartitionLog
from routing.errors import LimitExceeded, StorageUnavailable
from routing.message import NAME_ENCODING_ERRORS, Slab
from routing.runs import BATCH_HEADER_BYTES, RECORD_BYTES
from routing.topics.columns import Column, RecordHeaders, longest
from routing.topics.topic_partition import TopicPartition

_KEYS_MAX = 65536
PARTITION_KEY_HEADER = "x-partition-key"
_HEADER_BYTES = PARTITION_KEY_HEADER.encode()
"""Every protocol's property bytes have the names of headers as they are."""


class Topic:
    """A named set of partitions; `config` is as given when it was created, or altered."""

    __slots__ = (
        "_headers", "_partition_of_key", "config", "id", "is_stream", "is_viewed", "name", "partitions", "uid",
    )  # fmt: skip

    def __init__(
        self, name: str, config: dict[str, str], partitions: list[TopicPartition], topic_id: bytes, uid: str = ""
    ) -> None:
        self.name = name
        self.id = topic_id
        """16 bytes that no other topic ever has, also one that is made again (`topic_ids.py`)."""
        self.uid = uid
        """Of one that brokers share, in the names of its logs; no other topic ever has it."""
        self.config = config
        self.partitions = partitions
        self.is_stream = False
        """Its records say where they came from, for those who consume them like a queue (`stream.py`)."""
        self.is_viewed = False
        self._headers = RecordHeaders()
        self._partition_of_key: dict[str, tuple[bytes, TopicPartition]] = {}

    def record(self, partitions: int) -> dict[str, Any]:
        """What the catalog says of it if it has that many partitions, but for a stream's declaration."""
        said = {"partitions": partitions, "config": self.config, "id": self.id}
        return said | {"uid": self.uid} if self.uid else said

    def add_partitions(self, partitions: list[TopicPartition]) -> None:
        """It has these as well, behind those that it has. What follows goes by the new number, as with Kafka."""
        self.partitions += partitions
        self._partition_of_key.clear()

    def keep_partitions(self, count: int) -> list[TopicPartition]:
        """It has so many and no more, in another list than before; those that are gone."""
        gone, self.partitions = self.partitions[count:], self.partitions[:count]
        self._partition_of_key.clear()
        return gone

    def configure(self, settings: LogConfig, config: dict[str, str]) -> None:
        """It is configured so from now on, and its logs go by these settings; what need not be kept any more goes."""
        self.config = config
        for partition in self.partitions:
            partition.configure(settings.of_partition(partition.index))

    def say_source(self, say: bool) -> None:
        """Begin or end to be a stream."""
        self.is_stream = say
        self._headers.say_source(say or self.is_viewed)

    def view(self, viewed: bool) -> None:
        """Begin or end to be what queues are views of: as with streams, these give out what was published."""
        self.is_viewed = viewed
        self._headers.say_source(viewed or self.is_stream)

    def error(self) -> StorageUnavailable | None:
        """Why a partition cannot take messages now."""
        for partition in self.partitions:
            if partition.log.error is not None or partition.leadership is not None:
                failed = (partition.forward or partition).error()
                if failed is not None:
                    return failed
            if partition.known is not None and partition.is_held_up:
                return StorageUnavailable(f"the ids of the records of topic '{self.name}' are being read")
        return None

    def wait(self) -> bool:
        """Have messages wait for partitions that cannot take them now, as that may pass; whether they may."""
        return all(partition.wait() for partition in self.partitions)

    def require_room(self, slab: Slab) -> None:
        """Raises LimitExceeded if a message of a slab is too large for a batch of this topic."""
        limit = self.partitions[0].log.config.message_bytes_max - BATCH_HEADER_BYTES
        for column in self.columns(slab):
            around = RECORD_BYTES + longest(column.keys) + longest(column.header_blocks)
            if max(map(len, column.bodies), default=0) + around <= limit:
                continue
            largest = max(map(column.record_bytes, range(len(column.bodies))))
            if largest > limit:
                raise LimitExceeded(
                    f"a message of {largest} bytes with its key and headers is larger than topic '{self.name}' takes "
                    f"({limit})"
                )

    def append_slab(self, slab: Slab) -> list[tuple[PartitionLog, int]]:
        """Append a routed slab, each message to the partition of its key; the logs, and the offsets behind the last."""
        return [
            partition.route_records(keys, blocks, bodies, body_bytes)
            for partition, keys, blocks, bodies, body_bytes in self.columns(slab)
        ]

    def columns(self, slab: Slab) -> list[Column]:
        """The records of a slab for each partition, worked out once."""
        memo = slab.wire = {} if slab.wire is None else slab.wire
        columns: list[Column] | None = memo.get(self)
        if columns is None:
            columns = memo[self] = self._work_out(slab)
        return columns

    def _work_out(self, slab: Slab) -> list[Column]:
        blocks = self._headers.blocks(slab)
        if slab.keys is None and (slab.raws is None or not self._names_keys(slab.raws)):
            key, partition = self.place(self.key_of(slab, 0))
            return [Column(partition, key, blocks, slab.bodies, slab.size)]
        names = self.key_of if self._names_keys(slab.raws or [slab.properties.raw]) else Slab.key_of
        places = [self.place(names(slab, index)) for index in range(len(slab.bodies))]
        if len(self.partitions) == 1:
            return [Column(self.partitions[0], [key for key, _ in places], blocks, slab.bodies, slab.size)]
        found: dict[TopicPartition, tuple[list[bytes], list[bytes], list[bytes]]] = {}
        for index, (key, partition) in enumerate(places):
            column = found.setdefault(partition, ([], [], []))
            column[0].append(key)
            column[1].append(blocks if isinstance(blocks, bytes) else blocks[index])
            column[2].append(slab.bodies[index])
        return [Column(partition, *column, sum(map(len, column[2]))) for partition, column in found.items()]

    # --- keys --------------------------------------------------------------------------

    def _names_keys(self, raws: list[bytes]) -> bool:
        """Whether a message may name a key of its own."""
        return not self.is_stream and any(_HEADER_BYTES in raw for raw in raws)

    def key_of(self, slab: Slab, index: int) -> str:
        """The key of one record; that of a stream is always the routing key."""
        raw = slab.properties.raw if slab.raws is None else slab.raws[index]
        if not self.is_stream and _HEADER_BYTES in raw:
            chosen = slab.properties_of(index).neutral.headers.get(PARTITION_KEY_HEADER)
            if isinstance(chosen, str):
                return chosen
        return slab.key_of(index)

    def place(self, key: str) -> tuple[bytes, TopicPartition]:
        """A key as it stands in records, and the partition that it is in."""
        found = self._partition_of_key.get(key)
        if found is None:
            if len(self._partition_of_key) >= _KEYS_MAX:
                self._partition_of_key.clear()
            encoded = key.encode("utf-8", NAME_ENCODING_ERRORS)
            partition = self.partitions[partition_of_key(encoded, len(self.partitions))]
            found = self._partition_of_key[key] = (encoded, partition)
        return found


def logs_here(topics: Iterable[Topic]) -> list[PartitionLog]:
    """Those of topics' logs that this broker has a replica of."""
    return [partition.log for topic in topics for partition in topic.partitions if partition.is_here]
