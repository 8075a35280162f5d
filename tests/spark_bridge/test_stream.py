"""A stream's offsets without Spark, over a real socket. `test_spark.py` has real queries."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millrace import BlockingClient, BlockingProducer, BlockingTransactionalProducer
from protocols.native.errors import UnknownTopic
from protocols.native.wire_base import READERS_SINCE
from spark_bridge.data_source import MillraceDataSource
from spark_bridge.offsets import DataLoss, resolve
from spark_bridge.options import OptionError, parse_options
from spark_bridge.stream import MillraceStreamReader, shared_out
from tests.spark_bridge.log_server import LogServer, Partition, log_server
from tests.spark_bridge.test_reader import batch, source
from tests.support import BrokerProcess

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


def places(offset: dict[str, Any]) -> dict[str, Any]:
    """All but the notes."""
    return {topic: said for topic, said in offset.items() if topic}


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
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger .5. is above"),
        ({"maxTriggerDelay": "1s"}, "maxTriggerDelay needs the option minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "must be a time such as 500ms, 1s, 15m or 1h"),
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
        assert places(end) == {"t": {"0": 10, "1": 34}} == reader.reportLatestOffset()
        assert reader.latestOffset(end, ALL) == end, "nothing new is no micro-batch"
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
        assert handed_over(reader, start, {"": {"minPartitions": 2}, **end}) is None, "that is for tasks to share"


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


@pytest.mark.parametrize("version", [READERS_SINCE - 1, READERS_SINCE])
def test_a_broker_that_knows_no_holders_keeps_it_all_the_same(version: int) -> None:
    with log_server(two(), version) as server:
        stream(server, startingOffsets="earliest").latestOffset({"t": {"0": 1, "1": 9}}, ALL)
        (said,) = server.leases
        assert said.keys() - {"holder"} == {"name", "reader", "offsets", "lease_ms"}
        assert ("holder" in said) == (version >= READERS_SINCE)


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
        assert reader.latestOffset({"t": {"0": 1, "1": 4}}, ALL) == place, "no limit when Spark says so"


def test_few_offsets_wait_for_more_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with log_server(two()) as server:
        reader = stream(server, minOffsetsPerTrigger="20", maxTriggerDelay="2m", startingOffsets="earliest")
        start = reader.initialOffset()
        first = reader.latestOffset(start, ALL)
        assert places(first) == {"t": {"0": 10, "1": 34}}
        server.topics["t"][0].batches.append(batch(10, [b"few"] * 19))
        assert reader.latestOffset(first, ALL) == first
        now_s += 119
        assert reader.latestOffset(first, ALL) == first
        now_s += 1
        second = reader.latestOffset(first, ALL)
        assert second == {"t": {"0": 29, "1": 34}}
        server.topics["t"][0].batches.append(batch(29, [b"enough"] * 20))
        assert reader.latestOffset(second, ALL) == {"t": {"0": 49, "1": 34}}
        reader.prepareForTriggerAvailableNow()
        server.topics["t"][1].batches.append(batch(34, [b"later"]))
        assert reader.latestOffset(second, ALL) == {"t": {"0": 49, "1": 34}}, "what is there is read"


def test_what_new_topics_have_is_enough_too() -> None:
    with log_server(two()) as server:
        given = {"millrace.servers": server.address, "subscribePattern": ".", "startingOffsets": "earliest"}
        known = MillraceDataSource(given | {"minOffsetsPerTrigger": "20"})
        reader = known.streamReader(schema=known.schema())
        first = reader.latestOffset(reader.initialOffset(), ALL)
        server.topics["n"] = [Partition([batch(0, [b"x"] * 19)])]
        assert reader.latestOffset(first, ALL) == first
        server.topics["v"] = [Partition([batch(0, [b"x"])])]
        assert reader.latestOffset(first, ALL) == first | {
            "": {"begins": {"n": {"0": 0}, "v": {"0": 0}}}, "n": {"0": 19}, "v": {"0": 1},
        }  # fmt: skip


@pytest.mark.parametrize("most", [1, 2, 3, 7, 99, 100, 101])
def test_shares(most: int) -> None:
    begin = {("t", number): 10 * number for number in range(5)}
    end = {("t", number): 10 * number + count for number, count in enumerate((0, 1, 9, 40, 50))}
    found = shared_out(begin, end, most)
    taken = {one: found[one] - begin[one] for one in begin}
    assert sum(taken.values()) == min(most, 100)
    assert all(0 <= count <= end[one] - begin[one] for one, count in taken.items())


def test_by_time_an_open_transaction_is_not_there_yet(shared_broker: BrokerProcess) -> None:
    server = f"127.0.0.1:{shared_broker.native_port}"
    given = {"millrace.servers": server, "subscribe": "by-time", "startingOffsetsByTimestampStrategy": "latest"}
    with BlockingClient(server) as client, BlockingProducer(server) as producer:
        client.create_topic("by-time")
        producer.send("by-time", b"before", timestamp_ms=1_700_000_000_000)
        producer.flush()
        with BlockingTransactionalProducer(server, "by-time") as transaction:
            transaction.begin()
            transaction.send("by-time", b"open", timestamp_ms=1_700_000_001_000)
            transaction.flush()
            options = parse_options({**given, "startingTimestamp": "0", "endingTimestamp": "1700000001000"})
            assert [(one.start_offset, one.end_offset) for one in resolve(client, options)] == [(0, 1)]
            later = MillraceDataSource({**given, "startingTimestamp": "1700000001000"})
            assert later.streamReader(schema=later.schema()).initialOffset()["by-time"] == {"0": 1}
            transaction.abort()


def test_a_query_outlives_a_restart_of_the_broker(broker: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
    server = f"127.0.0.1:{broker.native_port}"
    with BlockingProducer(server) as producer:
        producer.send("t", b"before")
        producer.flush()
        found = MillraceDataSource({"millrace.servers": server, "subscribe": "t", "startingOffsets": "earliest"})
        reader = found.streamReader(schema=found.schema())
        start = reader.initialOffset()
        broker.kill9()
        with ThreadPoolExecutor() as threads:
            planning = threads.submit(reader.latestOffset, start, ALL)
            try:
                deadline_s = time.monotonic() + 30
                while "it is tried again for" not in caplog.text and time.monotonic() < deadline_s:
                    time.sleep(0.01)
            finally:
                broker.restart(same_ports=True)
            assert rows(reader, start, planning.result()) == [("t", 0, 0)]
        reader.stop()


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
        options |= {"subscribePattern": "t.*"}
        strict, lenient = (
            type(found)({**options, "failOnDataLoss": one}).streamReader(schema=found.schema())
            for one in ("true", "false")
        )
        start = strict.initialOffset()
        server.topics["t"].append(Partition([batch(0, [b"a"] * 2)]))
        server.topics["tt"] = [Partition([batch(0, [b"b"])])]
        end = strict.latestOffset(start, ALL)
        assert rows(strict, start, end) == [("t", 2, 0), ("t", 2, 1), ("tt", 0, 0)]
        server.topics["tt"] = [Partition([batch(7, [b"c"])], 7)]
        end = strict.latestOffset(start, ALL)
        with pytest.raises(DataLoss, match="tt-0 is new and begins at 7, not at 0"):
            strict.partitions(start, end)
        assert rows(lenient, start, end) == [("t", 2, 0), ("t", 2, 1), ("tt", 0, 7)]


def test_a_micro_batch_comes_again_in_the_same_tasks_whatever_the_options_are_by_then() -> None:
    """A sink that is told that a task of a micro-batch was done leaves its rows out."""
    with log_server(two()) as server:
        kinds = ({}, {"minPartitions": "7"}, {"maxRecordsPerPartition": "11"})
        readers = [stream(server, startingOffsets="earliest", **options) for options in kinds]
        start = readers[0].initialOffset()
        for reader, count in zip(readers, (1, 7, 4), strict=True):
            end = reader.latestOffset(start, ALL)
            tasks = [[part.value for part in one.partitions(start, end)] for one in readers]
            assert tasks == [tasks[0]] * 3
            assert len(tasks[0]) == count


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


def test_a_topic_that_was_made_again_is_another_one_however_long_it_is() -> None:
    with log_server(two()) as server:
        server.ids = {"t": b"1" * 16, "u": b"u" * 16}
        given = {"subscribe": "t,u", "startingOffsets": "earliest"}
        strict, lenient = stream(server, **given), stream(server, failOnDataLoss="false", **given)
        ids = {"topicIds": {"t": "31" * 16, "u": "75" * 16}}
        start = strict.initialOffset()
        assert start == {"": ids, "t": {"0": 0, "1": 4}, "u": {"0": 0}}
        read = strict.latestOffset(start, ALL)
        assert read == {"": ids | {"begins": places(start)}, "t": {"0": 10, "1": 34}, "u": {"0": 0}}
        server.topics["t"] = [Partition([batch(0, [b"n"] * 20)]), Partition([batch(0, [b"m"] * 40)])]
        server.ids["t"] = b"2" * 16
        with pytest.raises(DataLoss, match="t was deleted and made again since the read of 0 to 10 of partition 0 was"):
            rows(strict, start, read)
        assert rows(lenient, start, read) == [], "what is there at these offsets was not in that micro-batch"
        with pytest.raises(
            DataLoss, match=r"t-0 was read up to 10 and is another one now: .*was deleted and made again"
        ):
            strict.latestOffset(read, ALL)
        end = lenient.latestOffset(read, ReadMaxRows(30))
        ids = {"topicIds": {"t": "32" * 16, "u": "75" * 16}}
        assert end == {"": ids | {"begins": {"t": {"0": 0, "1": 0}}}, "t": {"0": 10, "1": 20}, "u": {"0": 0}}
        every = [("t", 0, number) for number in range(10)] + [("t", 1, number) for number in range(20)]
        assert rows(lenient, read, end) == every
        assert rows(lenient, end, lenient.latestOffset(end, ReadMaxRows(1))) == [("t", 1, 20)]


def test_offsets_without_ids_are_those_of_whatever_topic_is_there() -> None:
    with log_server(two()) as server:
        server.ids = {"t": b"1" * 16}
        reader, start = stream(server), {"t": {"0": 4, "1": 34}}
        end = reader.latestOffset(start, ALL)
        assert end[""] == {"topicIds": {"t": "31" * 16}}
        assert rows(reader, start, end) == [("t", 0, number) for number in range(4, 10)]
        server.ids = {}
        assert reader.latestOffset(end, ALL) == end, "a broker that says no ids does not make them forgotten"


def test_a_partition_that_is_gone_is_lost_data() -> None:
    with log_server(two()) as server:
        strict, lenient = stream(server), stream(server, failOnDataLoss="false")
        start = strict.initialOffset()
        del server.topics["t"][1]
        with pytest.raises(DataLoss, match="t-1 was read up to 34 and is gone"):
            strict.latestOffset(start, ALL)
        assert lenient.latestOffset(start, ALL) == {"t": {"0": 10}}
        given = {"millrace.servers": server.address, "assign": '{"t": [0], "u": [0]}', "failOnDataLoss": "false"}
        assigned = MillraceDataSource(given).streamReader(schema=MillraceDataSource(given).schema())
        del server.topics["t"]
        assert lenient.latestOffset(start, ALL) == {}
        assert assigned.latestOffset({"t": {"0": 10}, "u": {"0": 0}}, ALL) == {"u": {"0": 0}}
        with pytest.raises(OptionError, match="there is no topic 't'; failOnDataLoss=false reads what there is"):
            strict.latestOffset(start, ALL)
        with pytest.raises(OptionError, match=r"there is no topic 't'$"):
            lenient.initialOffset()


def test_a_micro_batch_that_runs_again_does_without_a_topic_that_is_gone() -> None:
    """Else a query that passes over what is lost would never get past this micro-batch. Its tasks are as they were."""
    logs = {name: [Partition([batch(0, [b"x"] * 10)])] for name in "stu"}
    given = {"subscribe": "s,t,u", "startingOffsets": "earliest", "minPartitions": "3"}
    with log_server(logs) as server:
        server.ids = {name: name.encode() * 16 for name in logs}
        strict, lenient = stream(server, **given), stream(server, failOnDataLoss="false", **given)
        start = strict.initialOffset()
        end = strict.latestOffset(start, ALL)
        tasks = [part.value for part in strict.partitions(start, end)]
        del server.topics["s"]
        server.ids["t"], server.topics["t"] = b"2" * 16, [Partition([batch(0, [b"new"] * 20)])]
        there = [("u", 0, number) for number in range(10)]
        assert rows(lenient, start, end) == there, "nor is what has the name of a lost topic now taken for it"
        with pytest.raises(DataLoss, match="s-0 was deleted since the read of 0 to 3 was planned"):
            rows(strict, {"": start[""], "s": start["s"]}, {"": end[""], "s": end["s"]})
        new = {"": start[""], "u": start["u"]}
        server.topics["t"], server.ids["t"] = logs["u"], b"t" * 16
        assert [part.value for part in lenient.partitions(new, end)] == tasks, "topics that were new to the query, too"
        assert rows(lenient, new, end) == [*(("t", 0, number) for number in range(10)), *there]
        del end[""]["begins"]  # as earlier versions have it
        assert [part.value for part in lenient.partitions(new, end)] == tasks
        with pytest.raises(UnknownTopic):
            strict.partitions(new, end)


def test_a_first_micro_batch_that_comes_again_begins_where_it_began() -> None:
    """Spark asks once more where the query begins, and the answer of earliest or latest is another by then."""
    for chosen, rest in (("earliest", list(range(20, 34))), ("latest", [])):
        with log_server(two()) as server:
            first, again, lenient = (
                stream(server, startingOffsets=chosen, minPartitions="4", failOnDataLoss=one)
                for one in ("true", "true", "false")
            )
            start = first.initialOffset()
            server.topics["t"][0].batches.append(batch(10, [b"new"] * 10))
            assert first.initialOffset() == start, "Spark asks twice, for where to end and for where to begin"
            end = first.latestOffset(start, ALL)
            tasks = [part.value for part in first.partitions(start, end)]
            assert sum(one.end_offset - one.start_offset for task in tasks for one in task) == (50 if rest else 10)
            server.topics["t"][0].batches.append(batch(20, [b"later"] * 10))
            server.topics["t"][1].batches, server.topics["t"][1].start_offset = [batch(20, [b"y"] * 14)], 20
            for reader in (again, lenient):
                assert [part.value for part in reader.partitions(reader.initialOffset(), end)] == tasks
            wanted = [("t", 0, number) for number in (range(20) if rest else range(10, 20))]
            assert rows(lenient, lenient.initialOffset(), end) == wanted + [("t", 1, number) for number in rest]
            if rest:
                with pytest.raises(DataLoss, match="t-1: the log no longer has offset 4"):
                    rows(again, again.initialOffset(), end)


def test_a_new_partition_that_comes_again_begins_where_it_began() -> None:
    with log_server(two()) as server:
        reader = stream(server, failOnDataLoss="false", minPartitions="4")
        start = reader.initialOffset()
        server.topics["t"].append(Partition([batch(3, [b"z"] * 30)], 3))
        end = reader.latestOffset(start, ALL)
        tasks = [part.value for part in reader.partitions(start, end)]
        server.topics["t"][2].start_offset = 20
        assert [part.value for part in reader.partitions(start, end)] == tasks
        with pytest.raises(DataLoss, match="t-2 is new and begins at 3, not at 0"):
            stream(server).partitions(start, end)


def test_available_now_begins_behind_what_came_while_it_was_prepared() -> None:
    """Spark has it asked first where topics end, and then where the query begins, which is later with latest."""
    with log_server(two()) as server:
        given = {"millrace.servers": server.address, "subscribePattern": "."}
        reader = MillraceDataSource(given).streamReader(schema=MillraceDataSource(given).schema())
        reader.prepareForTriggerAvailableNow()
        server.topics["t"][0].batches.append(batch(10, [b"between"]))
        server.topics["n"] = [Partition([batch(0, [b"x"])])]
        start = reader.initialOffset()
        assert start == {"n": {"0": 1}, "t": {"0": 11, "1": 34}, "u": {"0": 0}}
        server.topics["t"][0].batches.append(batch(11, [b"later"]))
        assert reader.latestOffset(start, ALL) == start
