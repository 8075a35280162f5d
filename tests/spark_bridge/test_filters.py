"""Filters of a query narrow what is read, and never what comes out."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from pyspark.sql import datasource as ds

from spark_bridge.filters import Wanted, wanted_by
from tests.spark_bridge.log_server import LogServer, Partition, log_server
from tests.spark_bridge.test_reader import batch, source

AT = datetime.datetime(1970, 1, 1, 0, 0, 1, 5_000, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], Wanted()),
        ([ds.EqualTo(("offset",), 5)], Wanted(first_offset=5, end_offset=6)),
        ([ds.GreaterThan(("offset",), 5), ds.LessThanOrEqual(("offset",), 9)], Wanted(first_offset=6, end_offset=10)),
        ([ds.GreaterThanOrEqual(("offset",), 5), ds.LessThan(("offset",), 9)], Wanted(first_offset=5, end_offset=9)),
        ([ds.EqualTo(("partition",), 1)], Wanted(partitions=frozenset([1]))),
        ([ds.In(("partition",), (1, 2)), ds.EqualTo(("partition",), 2)], Wanted(partitions=frozenset([2]))),
        ([ds.In(("topic",), ("t", "u"))], Wanted(topics=frozenset("tu"))),
        ([ds.GreaterThanOrEqual(("timestamp",), AT)], Wanted(since_ms=1005)),
        ([ds.LessThan(("timestamp",), AT), ds.In(("offset",), (1, 2))], Wanted(before_ms=1005)),
        ([ds.LessThan(("timestamp",), AT + datetime.timedelta(microseconds=1))], Wanted(before_ms=1006)),
        ([ds.LessThanOrEqual(("timestamp",), AT), ds.LessThan(("timestamp",), AT)], Wanted(before_ms=1005)),
        ([ds.EqualTo(("timestamp",), AT)], Wanted(since_ms=1005, before_ms=1006)),
        ([ds.Not(ds.EqualTo(("partition",), 1)), ds.IsNotNull(("key",))], Wanted()),
        ([ds.EqualTo(("key",), b"k")], Wanted(values=(("key", frozenset([b"k"])),))),
        ([ds.In(("key",), (b"k", None))], Wanted(values=(("key", frozenset([b"k"])),))),
        (
            [ds.StringStartsWith(("routingKey",), "k"), ds.StringStartsWith(("value",), "k")],
            Wanted(like=(("routingKey", "StringStartsWith", "k"),)),
        ),
    ],
)
def test_what_filters_say(filters: list[Any], expected: Wanted) -> None:
    assert wanted_by(filters) == expected


def read(server: LogServer, *filters: Any, **options: str) -> list[tuple[int, int]]:
    found = source(server, filterPushdown="true", **options)
    reader = found.reader(schema=found.schema())
    assert reader.pushFilters(list(filters)) == list(filters), "Spark applies all of them"
    rows = [rows for part in reader.partitions() for rows in reader.read(part)]
    return [(row["partition"], row["offset"]) for each in rows for row in each.to_pylist()]


def test_less_is_read() -> None:
    logs = [Partition([batch(first, [b"v"] * 10) for first in range(0, 100, 10)]) for _ in range(2)]
    with log_server({"t": logs}) as server:
        assert read(server, ds.EqualTo(("partition",), 1), ds.GreaterThanOrEqual(("offset",), 97)) == [
            (1, 97),
            (1, 98),
            (1, 99),
        ]
        assert read(server, ds.EqualTo(("partition",), 0), ds.GreaterThan(("timestamp",), AT))[0] == (0, 5)
        assert read(server, ds.GreaterThan(("timestamp",), AT + datetime.timedelta(days=1))) == []
        assert read(server, ds.EqualTo(("offset",), 42)) == [(0, 42), (1, 42)]


def test_a_hundredth_of_the_rows_takes_at_most_three_of_the_bytes() -> None:
    logs = [Partition([batch(first, [b"v" * 900] * 20) for first in range(0, 10_000, 20)]) for _ in range(2)]
    whole = sum(len(one) for log in logs for one in log.batches)
    at = [AT + datetime.timedelta(milliseconds=ms) for ms in (4000, 4100)]
    by_time = ds.GreaterThanOrEqual(("timestamp",), at[0]), ds.LessThan(("timestamp",), at[1])
    by_offset = ds.GreaterThan(("offset",), 4999), ds.LessThan(("offset",), 5100)
    for filters, options, kept in (
        (by_offset, {}, range(5000, 5100)),
        (by_time, {"timestampDisorderMs": "0"}, range(4005, 4105)),
        (by_time, {"timestampDisorderMs": "20"}, range(4005, 4125)),
        ((*by_time, ds.EqualTo(("partition",), 1)), {"timestampDisorderMs": "0"}, range(4005, 4105)),
    ):
        with log_server({"t": logs}) as server:
            found = read(server, *filters, **options)
            assert {offset for _, offset in found} == set(kept), filters
            assert server.fetched_bytes < 0.03 * whole, (filters, server.fetched_bytes / whole)
    with log_server({"t": logs}) as server:
        assert len(read(server, *by_time)) == 2 * (10_000 - 4005), "later records may be older"


def test_rows_of_other_keys_do_not_reach_spark() -> None:
    """A filter on a key gives on only what it is about of the batches that are read."""
    with log_server({"t": [Partition([batch(0, [b"v"] * 20)])]}) as server:
        assert read(server, ds.EqualTo(("key",), b"k13")) == [(0, 13)]
        assert read(server, ds.In(("key",), (b"k3", b"k7", b"no")), ds.LessThan(("offset",), 5)) == [(0, 3)]
        assert read(server, ds.EqualTo(("key",), b"nobody")) == []
