"""Which partition a record goes to when the application did not say: by its key, or where a batch is being filled.

1. The hash is Kafka's murmur2 with Kafka's seed, masked to 31 bits, modulo the number of partitions: records of one key
   meet in the same partition whichever client wrote them (kafka-clients `Utils.murmur2`, `Utils.toPositive`).
2. Records without a key stick to one partition until its batch is full, then the next takes over (KIP-480): large
   batches, even spread. The batches are the producer's, so that part is there.
"""

from __future__ import annotations

from core_log.murmur2 import partition_of_key


class KeyPartitions:
    """`partition_of_key` with a memory of the keys seen last, as keys repeat and hashing in Python is slow."""

    def __init__(self, partitions: int, *, keys_max: int = 10_000) -> None:
        self.partitions = partitions
        self._keys_max = keys_max
        self._known: dict[bytes, int] = {}

    def partition(self, key: bytes) -> int:
        """The partition of `key`."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._keys_max:
                self._known.clear()
            known = self._known[key] = partition_of_key(key, self.partitions)
        return known
