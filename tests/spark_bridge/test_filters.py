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
        ([ds.LessThan(("timestamp",), AT), ds.In(("offset",), (1, 2))], Wanted()),
        ([ds.Not(ds.EqualTo(("partition",), 1)), ds.IsNotNull(("key",)), ds.EqualTo(("key",), b"k")], Wanted()),
    ],
)
def test_what_filters_say(filters: list[Any], expected: Wanted) -> None:
    assert wanted_by(filters) == expected


def read(server: LogServer, *filters: Any) -> list[tuple[int, int]]:
    found = source(server, filterPushdown="true")
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
