"""Keys go where Kafka's clients put them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_murmur2

from protocols.native.partitioner import KeyPartitions, murmur2, partition_of_key

# org.apache.kafka.common.utils.UtilsTest#testMurmur2
KAFKA_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "signed"), KAFKA_VECTORS)
def test_vectors_of_kafka(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFF_FFFF


@given(st.binary(max_size=40))
def test_like_kafka_python(key: bytes) -> None:
    assert murmur2(key) == kafka_murmur2(key) & 0xFFFF_FFFF


@given(st.lists(st.binary(max_size=3), max_size=50), st.integers(1, 7))
def test_memory_changes_nothing(keys: list[bytes], count: int) -> None:
    memory = KeyPartitions(count, keys_max=5)
    assert [memory.partition(key) for key in keys] == [partition_of_key(key, count) for key in keys]
