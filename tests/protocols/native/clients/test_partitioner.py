"""Keys go where Kafka's clients put them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core_log.murmur2 import partition_of_key
from protocols.native.clients.partitioner import KeyPartitions


@given(st.lists(st.binary(max_size=3), max_size=50), st.integers(1, 7))
def test_memory_changes_nothing(keys: list[bytes], count: int) -> None:
    memory = KeyPartitions(count, keys_max=5)
    assert [memory.partition(key) for key in keys] == [partition_of_key(key, count) for key in keys]
