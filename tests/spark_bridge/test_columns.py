"""Record batches to Arrow columns: what the other decoder says of the same bytes, and nothing but CorruptBatch."""

from __future__ import annotations

import random
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core_log.record_batch import BatchBuilder, Compression, CorruptBatch, decode_columns
from spark_bridge import columns
from spark_bridge.columns import Columns, decode, opened
from spark_bridge.offsets import OffsetRange
from spark_bridge.schema import arrow_rows

pieces = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=120, max_size=140))
records = st.tuples(
    st.integers(1, 300),
    st.integers(-(1 << 40), 1 << 40),
    pieces,
    pieces,
    st.lists(st.tuples(st.text(max_size=14), pieces), max_size=4),
)


def built(found: list[Any], **options: Any) -> bytes:
    """A batch of (gap before it, time, key, value, headers)."""
    offset = 7
    builder = BatchBuilder(offset, 0, 1_000, **options)
    for gap, time_ms, key, value, headers in found:
        offset += gap
        builder.add(offset, key, value, headers, timestamp_ms=time_ms)
    return builder.build()


def sealed(batch: bytes) -> bytes:
    """The same with the CRC that it should have."""
    changed = bytearray(batch)
    changed[17:21] = crc32c(memoryview(changed)[21:]).to_bytes(4, "big")
    return bytes(changed)


def as_lists(columns: Columns) -> tuple[list[Any], ...]:
    assert columns.headers is not None
    for one in (columns.keys, columns.values, columns.headers):
        one.validate(full=True)
    headers = [[(one["key"], one["value"]) for one in each or ()] for each in columns.headers.to_pylist()]
    times, offsets = columns.timestamps_ms.tolist(), columns.offsets.tolist()
    return offsets, times, columns.keys.to_pylist(), columns.values.to_pylist(), headers


def expected(batches: list[bytes]) -> tuple[list[Any], ...]:
    found: tuple[list[Any], ...] = ([], [], [], [], [])
    for batch in batches:
        one = decode_columns(batch)
        for whole, part in zip(found, (one.offsets, one.timestamps_ms, one.keys, one.values, one.headers), strict=True):
            whole += part
    # What is no UTF-8 in a name is escaped there, and replaced in what Spark gets.
    headers = [
        [(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), v) for name, v in e] for e in found[4]
    ]
    return *found[:4], headers


def following(batches: list[list[Any]], **options: Any) -> list[bytes]:
    """Batches with rising offsets."""
    made, base = [], 0
    for each in batches:
        batch = built(each, **options)
        made.append(base.to_bytes(8, "big") + batch[8:])
        base = decode_columns(made[-1]).offsets[-1] + 1
    return made


@pytest.fixture(params=[0, 1 << 40], ids=["in step", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to find where records begin."""
    monkeypatch.setattr(columns, "_STEPS_WORTH", request.param)


both_ways = pytest.mark.usefixtures("way")


@both_ways
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(records, min_size=1, max_size=12), min_size=1, max_size=4), st.sampled_from(Compression))
def test_columns_are_what_the_other_decoder_says(batches: list[list[Any]], compression: Compression) -> None:
    made = following(batches, compression=compression)
    assert as_lists(decode(opened(made), with_headers=True)) == expected(made)


def test_nothing_is_nothing() -> None:
    columns = decode([], with_headers=True)
    assert as_lists(columns) == ([], [], [], [], [])


@both_ways
@pytest.mark.parametrize("size", [0, 1, 11, 12, 13, 63, 64, 8191, 8192, 1 << 20, 3 << 20])
def test_every_size_of_a_length(size: int) -> None:
    large, small = (1, 0, bytes(size), b"v" * size, [("n" * min(size, 9000), bytes(size))]), (1, 0, b"k", b"v", [])
    for records in ([[large]], [[small], [large], [small] * 3], [[small, large, large], [small]]):
        made = following(records)
        assert as_lists(decode(opened(made), with_headers=True)) == expected(made)


def test_without_headers_there_is_no_column_of_them() -> None:
    columns = decode(opened([built([(1, 5, b"k", b"v", [("a", b"b")])])]), with_headers=False)
    assert columns.headers is None
    assert columns.values.to_pylist() == [b"v"]


def test_control_batches_and_empty_ones_are_left_out() -> None:
    control = built([(1, 0, b"k", b"v", [])], control=True)
    assert as_lists(decode(opened([control, built([(1, 3, None, None, [])])]), with_headers=True))[0] == [8]


def test_a_part() -> None:
    made = [built([(1, n, b"k%d" % n, b"v", [("h", b"%d" % n)]) for n in range(9)])]
    columns = decode(opened(made), with_headers=True)
    whole = as_lists(columns)
    assert as_lists(columns.part(2, 5)) == tuple(column[2:5] for column in whole)


def test_times_that_are_too_far_off_for_spark_are_its_first_and_last() -> None:
    last, most = (1 << 63) - 1, ((1 << 63) - 1) // 1000
    times = [0, most, most + 1, last, -most, -most - 1, -last]
    batches = []
    for at, time_ms in enumerate(times):
        builder = BatchBuilder(at, 0, time_ms)
        builder.add(at, None, b"v")
        batches.append(builder.build())
    columns = decode(opened(batches), with_headers=False)
    (found,) = arrow_rows(columns, OffsetRange("t", 0, 0, len(times)), ("timestamp",)).columns
    expected = [0, *[most] * 3, *[-most] * 3]
    assert found.cast("int64").to_pylist() == [time_ms * 1000 for time_ms in expected]


@both_ways
def test_whatever_the_bytes_are_only_corrupt_batch_comes_of_it() -> None:
    rng = random.Random(3)
    whole = built([(1, 5, b"key", b"value" * 30, [("name", b"x"), ("other", None)]) for _ in range(5)])
    more = built([(1, 5, b"k", b"v", [])])
    for number in range(2000):
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(61, len(whole))] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
        batch = sealed(bytes(changed))
        made = [batch] if number % 2 else [batch, more, batch]
        try:
            found = as_lists(decode(opened(made), with_headers=True))
        except CorruptBatch:
            continue
        assert found == expected(made), "both decoders take it, so both say the same"


@both_ways
def test_a_batch_that_ends_early() -> None:
    whole = built([(1, 5, b"key", b"value" * 30, [("name", b"x")])] * 3)
    for end in range(62, len(whole)):
        cut = bytearray(whole[:end])
        cut[8:12] = (end - 12).to_bytes(4, "big")
        with pytest.raises(CorruptBatch):
            decode(opened([sealed(bytes(cut))]), with_headers=True)
