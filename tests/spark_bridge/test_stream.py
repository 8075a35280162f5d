"""A stream's offsets without Spark, over a real socket. `test_spark.py` has real queries."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_bridge.offsets import DataLoss
from spark_bridge.options import OptionError
from spark_bridge.stream import MillraceStreamReader, shared_out
from tests.spark_bridge.log_server import LogServer, Partition, log_server
from tests.spark_bridge.test_reader import batch, source

ALL = ReadAllAvailable()


def stream(server: LogServer, **options: str) -> MillraceStreamReader:
    found = source(server, **options)
    return found.streamReader(schema=found.schema())


def rows(reader: MillraceStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    found = []
    for part in reader.partitions(start, end):
        for each in reader.read(part):
            found += zip(*(each.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    return found


def two() -> dict[str, list[Partition]]:
    return {"t": [Partition([batch(0, [b"x"] * 10)]), Partition([batch(4, [b"y"] * 30)], 4)], "u": [Partition()]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"t": {"0": 10, "1": 34}}),
        ({"startingOffsets": "earliest"}, {"t": {"0": 0, "1": 4}}),
        ({"startingOffsets": "latest", "subscribe": "t,u"}, {"t": {"0": 10, "1": 34}, "u": {"0": 0}}),
        ({"startingOffsets": '{"t": {"0": 3, "1": -1}}'}, {"t": {"0": 3, "1": 34}}),
        ({"startingOffsets": '{"t": {"0": -2, "1": 20}}'}, {"t": {"0": 0, "1": 20}}),
        ({"startingTimestamp": "1008"}, {"t": {"0": 8, "1": 8}}),
        (
            {"startingTimestamp": "1020", "startingOffsetsByTimestampStrategy": "latest"},
            {"t": {"0": 10, "1": 20}},
        ),
    ],
)
def test_where_a_new_query_begins(options: dict[str, str], expected: dict[str, Any]) -> None:
    with log_server(two()) as server:
        assert stream(server, **options).initialOffset() == expected


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingTimestamp": "1020"}, "no record of t-0 is that late"),
        ({"startingOffsets": '{"t": {"0": 3}}'}, "startingOffsets does not name t-1"),
        ({"startingOffsets": '{"t": {"0": 11, "1": 5}}'}, "t-0 ends at 10, before 11"),
        ({"endingOffsets": "latest"}, "unknown option 'endingOffsets'; the options of readStream are"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger must be a number"),
        ({"isolation.level": "read_uncommitted"}, "only read_committed"),
    ],
)
def test_what_a_stream_cannot_begin_with(options: dict[str, str], sentence: str) -> None:
    with log_server(two()) as server, pytest.raises(OptionError, match=sentence):
        stream(server, **options).initialOffset()


def test_micro_batches_read_what_lies_between_two_offsets() -> None:
    with log_server(two()) as server:
        reader = stream(server, startingOffsets="earliest")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        assert end == {"t": {"0": 10, "1": 34}} == reader.reportLatestOffset()
        assert rows(reader, start, end) == [("t", 0, n) for n in range(10)] + [("t", 1, n) for n in range(4, 34)]
        assert reader.partitions(end, end) == []
        server.topics["t"][0].batches.append(batch(10, [b"new"]))
        assert rows(reader, end, reader.latestOffset(end, ALL)) == [("t", 0, 10)]


def handed_over(reader: MillraceStreamReader, start: Any, end: Any) -> list[tuple[str, int, int]] | None:
    """The rows that come with the plan, as Spark asks for them; None: tasks read them."""
    reader.partitions(start, end)
    if not isinstance(reader, _SimpleStreamReaderWrapper):
        return None
    found = []
    for each in reader.getCache(start, end) or ():
        found += zip(*(each[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    assert not isinstance(reader, _SimpleStreamReaderWrapper), "they are handed over once"
    return found


def test_few_rows_come_with_the_plan() -> None:
    start, end = {"t": {"0": 8, "1": 30}}, {"t": {"0": 10, "1": 34}}
    with log_server(two()) as server:
        reader = stream(server)
        found = handed_over(reader, start, end)
        assert found == [("t", 0, 8), ("t", 0, 9), *(("t", 1, number) for number in range(30, 34))]
        assert server.connections == 1
        assert rows(reader, start, end) == found, "a task that does not find them reads the same"
        assert handed_over(reader, end, end) is None
        assert handed_over(stream(server, minPartitions="2"), start, end) is None, "that is for tasks to share"


def test_what_is_much_or_cannot_be_read_is_left_to_tasks(caplog: pytest.LogCaptureFixture) -> None:
    large = Partition([batch(first, [b"x" * 1000] * 500) for first in range(0, 6000, 500)])
    with log_server({"t": [large]}) as server:
        reader = stream(server)
        assert len(handed_over(reader, {"t": {"0": 0}}, {"t": {"0": 1000}}) or ()) == 1000
        assert handed_over(reader, {"t": {"0": 0}}, {"t": {"0": 3000}}) is None, "too many bytes"
        fetched = server.fetched_bytes
        assert handed_over(reader, {"t": {"0": 0}}, {"t": {"0": 5001}}) is None, "too many rows"
        assert server.fetched_bytes == fetched, "which is known beforehand"
        large.start_offset = 10
        assert handed_over(reader, {"t": {"0": 0}}, {"t": {"0": 20}}) is None
        assert "a micro-batch is read by a task: t-0: the log no longer has offset 0" in caplog.text
        with pytest.raises(DataLoss):
            rows(reader, {"t": {"0": 0}}, {"t": {"0": 20}})


def test_what_was_not_read_is_kept() -> None:
    with log_server(two()) as server:
        stream(server, leaseMs="0", startingOffsets="earliest").latestOffset({"t": {"0": 1, "1": 9}}, ALL)
        assert not server.leases
        reader = stream(server, startingOffsets="earliest", leaseMs="5000")
        reader.latestOffset({"t": {"0": 1, "1": 9}}, ALL)
        reader.latestOffset({"t": {"0": 2, "1": 9}}, ALL)
        (said,) = server.leases  # so soon it need not be said again
        assert (said["name"], said["offsets"], said["lease_ms"]) == ("t", {"0": 1, "1": 9}, 5000)


def test_a_limit_is_shared_out_by_what_waits() -> None:
    with log_server(two()) as server:
        reader = stream(server, startingOffsets="earliest", maxOffsetsPerTrigger="8")
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(8)
        place, batches = reader.initialOffset(), 0
        while (end := reader.latestOffset(place, limit)) != place:
            count = len(rows(reader, place, end))
            assert count == 8
            place, batches = end, batches + 1
        assert batches == 5
        (told,) = server.offsets.values()
        assert told == {("t", 0): 10, ("t", 1): 34}, "the broker knows how far the query has come"
        assert reader.latestOffset({"t": {"0": 0, "1": 4}}, ALL) == place, "no limit when Spark says so"


@pytest.mark.parametrize("most", [1, 2, 3, 7, 99, 100, 101])
def test_shares(most: int) -> None:
    begin = {("t", number): 10 * number for number in range(5)}
    end = {("t", number): 10 * number + count for number, count in enumerate((0, 1, 9, 40, 50))}
    found = shared_out(begin, end, most)
    taken = {one: found[one] - begin[one] for one in begin}
    assert sum(taken.values()) == min(most, 100)
    assert all(0 <= count <= end[one] - begin[one] for one, count in taken.items())


def test_available_now_stops_where_the_topics_ended_when_it_began() -> None:
    with log_server(two()) as server:
        reader = stream(server, startingOffsets="earliest", maxOffsetsPerTrigger="25")
        reader.prepareForTriggerAvailableNow()
        server.topics["t"][0].batches.append(batch(10, [b"later"]))
        start = reader.initialOffset()
        first = reader.latestOffset(start, reader.getDefaultReadLimit())
        second = reader.latestOffset(first, reader.getDefaultReadLimit())
        assert second == {"t": {"0": 10, "1": 34}} == reader.latestOffset(second, reader.getDefaultReadLimit())


def test_new_topics_and_partitions_are_read_from_their_beginning() -> None:
    with log_server(two()) as server:
        found = source(server)
        options = {name: value for name, value in found.options.items() if name != "subscribe"}
        reader = type(found)({**options, "subscribePattern": "t.*"}).streamReader(schema=found.schema())
        start = reader.initialOffset()
        server.topics["t"].append(Partition([batch(7, [b"a"] * 2)], 7))
        server.topics["tt"] = [Partition([batch(0, [b"b"])])]
        end = reader.latestOffset(start, ALL)
        assert rows(reader, start, end) == [("t", 2, 7), ("t", 2, 8), ("tt", 0, 0)]


def test_a_log_that_is_shorter_than_it_was_is_lost_data() -> None:
    with log_server(two()) as server:
        strict, lenient = stream(server), stream(server, failOnDataLoss="false")
        start = strict.initialOffset()
        server.topics["t"] = [Partition([batch(0, [b"n"] * 3)]), server.topics["t"][1]]
        with pytest.raises(DataLoss, match="t-0 was read up to 10 and ends at 3 now"):
            strict.latestOffset(start, ALL)
        end = lenient.latestOffset(start, ALL)
        assert end == {"t": {"0": 3, "1": 34}}
        assert rows(lenient, start, end) == []
        server.topics["t"][0].batches.append(batch(3, [b"o"]))
        assert rows(lenient, end, lenient.latestOffset(end, ALL)) == [("t", 0, 3)]


def test_a_partition_that_is_gone_is_lost_data() -> None:
    with log_server(two()) as server:
        strict, lenient = stream(server), stream(server, failOnDataLoss="false")
        start = strict.initialOffset()
        del server.topics["t"][1]
        with pytest.raises(DataLoss, match="t-1 was read up to 34 and is gone"):
            strict.latestOffset(start, ALL)
        assert lenient.latestOffset(start, ALL) == {"t": {"0": 10}}
