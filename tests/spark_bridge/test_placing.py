"""Keys by the column belong where each alone does."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_log.murmur2 import partition_of_key
from spark_bridge.placing import hashed_partitions


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 1000))
def test_a_column_of_keys(keys: list[bytes], partitions: int) -> None:
    column = pa.array(keys, pa.binary())
    assert hashed_partitions(column, partitions).tolist() == [partition_of_key(key, partitions) for key in keys]


@pytest.mark.parametrize(("start", "size"), [(0, 5), (2, 3), (4, 1), (5, 0)])
def test_a_part_of_a_column_and_nulls(start: int, size: int) -> None:
    keys = [b"a", None, b"", b"four", b"longer than four"]
    column = pa.array(keys, pa.binary()).slice(start, size)
    found = hashed_partitions(column, 7).tolist()
    for key, partition in zip(keys[start : start + size], found, strict=True):
        assert key is None or partition == partition_of_key(key, 7)
