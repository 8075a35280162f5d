"""A topic: partition logs read by cursors that do not consume.

Batches come in two ways: whole, from partitioned producers (`TopicPartition.append`, the same bytes are stored), and
as slabs routed by an exchange (`append_slab`), which become records of the batch that is sealed when the turn ends. A
record's key is the slab's routing key; keys choose the partition by murmur2, as Kafka's clients do, so one device or
one order stays in one partition whichever door it came through. The header `x-partition-key` goes before the routing
key.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from core_log.murmur2 import partition_of_key
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, encode_headers
from routing.commits import storage_error
from routing.errors import LimitExceeded, StorageUnavailable
from routing.message import NAME_ENCODING_ERRORS, Properties, Slab
from routing.runs import BATCH_HEADER_BYTES, Run, in_batches, record_bytes
from routing.topics.stream_records import source_headers

_HEADER_BLOCKS_MAX = 1024
_KEYS_MAX = 65536
_BATCH_BYTES = 900 << 10
PARTITION_KEY_HEADER = "x-partition-key"


class TopicPartition:
    """One partition: its log, and the slabs waiting to be sealed into it."""

    __slots__ = ("_mark_dirty", "_open", "index", "log", "next_offset", "topic_name")

    def __init__(
        self, topic_name: str, index: int, log: PartitionLog, mark_dirty: Callable[[TopicPartition], None]
    ) -> None:
        self.topic_name = topic_name
        self.index = index
        self.log = log
        self.next_offset = log.log_end_offset
        self._mark_dirty = mark_dirty
        self._open: list[Run] = []
        log.listeners.append(self._log_advanced)

    def append(self, batch: bytes | bytearray | memoryview) -> int:
        """Append a validated record batch as it is; its base offset. Raises LogUnavailable, BatchTooLarge."""
        if self._open:
            self.seal()
        base_offset = self.log.append(batch)
        self.next_offset = self.log.log_end_offset
        return base_offset

    def append_records(
        self, keys: bytes | list[bytes], header_blocks: bytes | list[bytes], bodies: list[bytes], body_bytes: int
    ) -> int:
        """Add records to the open batch; the offset behind the last."""
        self._open.append(Run(self.next_offset, keys, header_blocks, bodies, body_bytes))
        self.next_offset += len(bodies)
        self._mark_dirty(self)
        return self.next_offset

    def seal(self) -> None:
        """Make batches of the open slabs and hand them to the log; while it refuses they stay."""
        log = self.log
        if not self._open or log.error is not None:
            return
        for batch in in_batches(self._open, min(_BATCH_BYTES, log.config.message_bytes_max)):
            base_offset = batch[0].first_offset
            builder = BatchBuilder(base_offset, log.leader_epoch, time.time_ns() // 1_000_000)
            for run in batch:
                run.add_to(builder)
            log.append(builder.build(), base_offset=base_offset)
        self._open.clear()

    def _log_advanced(self, log: PartitionLog) -> None:
        if self._open and log.error is None:
            self._mark_dirty(self)


class Topic:
    """A named set of partitions; `config` is as given when it was created."""

    __slots__ = (
        "_header_blocks", "_partition_of_key", "_record_bytes_max", "config", "is_stream", "name", "partitions",
    )  # fmt: skip

    def __init__(self, name: str, config: dict[str, str], partitions: list[TopicPartition]) -> None:
        self.name = name
        self.config = config
        self.partitions = partitions
        self.is_stream = False
        """Its records say where they came from, for those who consume them like a queue (`stream.py`)."""
        self._record_bytes_max = partitions[0].log.config.message_bytes_max - BATCH_HEADER_BYTES
        self._header_blocks: dict[tuple[str, Properties], bytes] = {}
        self._partition_of_key: dict[str, tuple[bytes, TopicPartition]] = {}

    def say_source(self, say: bool) -> None:
        """Begin or end to be a stream."""
        self.is_stream = say
        self._header_blocks.clear()

    def error(self) -> StorageUnavailable | None:
        """Why a partition cannot take messages now."""
        for partition in self.partitions:
            if partition.log.error is not None:
                return storage_error(partition.log)
        return None

    def require_room(self, slab: Slab) -> None:
        """Raises LimitExceeded if a message of a slab is too large for a batch of this topic."""
        if slab.keys is None and slab.raws is None:
            key, _ = self._place(slab.routing_key, slab.properties)
            largest = max(map(len, slab.bodies), default=0) + record_bytes(
                key, self._header_block(slab.exchange, slab.properties)
            )
        else:
            largest = max(
                len(body) + record_bytes(key, block)
                for (key, _, block), body in zip(self._records(slab), slab.bodies, strict=True)
            )
        if largest > self._record_bytes_max:
            raise LimitExceeded(
                f"a message of {largest} bytes with its key and headers is larger than topic '{self.name}' takes "
                f"({self._record_bytes_max})"
            )

    def append_slab(self, slab: Slab) -> list[tuple[PartitionLog, int]]:
        """Append a routed slab, each message to the partition of its key; the logs, and the offsets behind the last."""
        if slab.keys is None and slab.raws is None:
            key, partition = self._place(slab.routing_key, slab.properties)
            block = self._header_block(slab.exchange, slab.properties)
            return [(partition.log, partition.append_records(key, block, slab.bodies, slab.size))]
        columns: dict[TopicPartition, tuple[list[bytes], list[bytes], list[bytes]]] = {}
        for (key, partition, block), body in zip(self._records(slab), slab.bodies, strict=True):
            keys, blocks, bodies = columns.setdefault(partition, ([], [], []))
            keys.append(key)
            blocks.append(block)
            bodies.append(body)
        return [
            (partition.log, partition.append_records(keys, blocks, bodies, sum(map(len, bodies))))
            for partition, (keys, blocks, bodies) in columns.items()
        ]

    def _records(self, slab: Slab) -> list[tuple[bytes, TopicPartition, bytes]]:
        """Key, partition and header block of each message, worked out once."""
        memo = slab.wire = {} if slab.wire is None else slab.wire
        records: list[tuple[bytes, TopicPartition, bytes]] | None = memo.get(self)
        if records is None:
            records = []
            for index in range(len(slab.bodies)):
                properties = slab.properties_of(index)
                key, partition = self._place(slab.key_of(index), properties)
                block = (
                    self._encoded(slab.exchange, properties)
                    if slab.raws
                    else self._header_block(slab.exchange, properties)
                )
                records.append((key, partition, block))
            memo[self] = records
        return records

    def _place(self, key: str, properties: Properties) -> tuple[bytes, TopicPartition]:
        if properties.raw and not self.is_stream:
            chosen = properties.neutral.headers.get(PARTITION_KEY_HEADER)
            if isinstance(chosen, str):
                key = chosen
        found = self._partition_of_key.get(key)
        if found is None:
            if len(self._partition_of_key) >= _KEYS_MAX:
                self._partition_of_key.clear()
            encoded = key.encode("utf-8", NAME_ENCODING_ERRORS)
            partition = self.partitions[partition_of_key(encoded, len(self.partitions))]
            found = self._partition_of_key[key] = (encoded, partition)
        return found

    def _header_block(self, exchange: str, properties: Properties) -> bytes:
        block = self._header_blocks.get((exchange, properties))
        if block is None:
            if len(self._header_blocks) >= _HEADER_BLOCKS_MAX:
                self._header_blocks.clear()
            block = self._header_blocks[exchange, properties] = self._encoded(exchange, properties)
        return block

    def _encoded(self, exchange: str, properties: Properties) -> bytes:
        headers = properties.record_headers
        return encode_headers([*source_headers(exchange, properties), *headers] if self.is_stream else headers)
