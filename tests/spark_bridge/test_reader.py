"""Planning and reading without Spark, over a real socket: rows, their cut, gaps, control batches, losses, retries."""

from __future__ import annotations

import datetime
import pickle
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from core_log.record_batch import BatchBuilder, Compression, CorruptBatch, encode_headers
from protocols.native.clients import blocking_link
from protocols.native.errors import ConnectionLost
from spark_bridge import reader as reader_module
from spark_bridge.data_source import MillraceDataSource
from spark_bridge.offsets import DataLoss
from spark_bridge.options import OptionError
from tests.spark_bridge.log_server import LogServer, Partition, log_server


def batch(first_offset: int, values: list[bytes | None], *, control: bool = False, **options: Any) -> bytes:
    """One batch with the key `k<offset>` for each value, at time 1000 + offset."""
    builder = BatchBuilder(first_offset, 0, 1000 + first_offset, control=control, **options)
    for offset, value in enumerate(values, first_offset):
        builder.add(offset, b"k%d" % offset, value, timestamp_ms=1000 + offset)
    return builder.build()


def source(server: LogServer | str, **options: str) -> MillraceDataSource:
    address = server if isinstance(server, str) else server.address
    return MillraceDataSource({"bootstrap.servers": address, "subscribe": "t", **options})


def read(server: LogServer | str, **options: str) -> list[pa.RecordBatch]:
    """All batches of a read, through pickling, as Spark does it."""
    data_source = source(server, **options)
    planned = pickle.loads(pickle.dumps(data_source)).reader(schema=data_source.schema())
    worker = pickle.loads(pickle.dumps(planned))
    parts = [pickle.loads(pickle.dumps(part)) for part in planned.partitions()]
    return [rows for part in parts for rows in worker.read(part)]


def offsets(server: LogServer, **options: str) -> list[int]:
    return [offset for rows in read(server, **options) for offset in rows.column("offset").to_pylist()]


@pytest.fixture
def three() -> Any:
    """One partition: offsets 5 to 9, a control batch 10, a gap, 20 to 22 compressed."""
    log = Partition(
        [
            batch(5, [b"a", b"b", None, b"", b"e"]),
            batch(10, [b"secret"], control=True),
            batch(20, [b"x", b"y", b"z"], compression=Compression.GZIP),
        ],
        start_offset=5,
    )
    with log_server({"t": [log]}) as server:
        yield server


def test_every_column(three: LogServer) -> None:
    (rows,) = read(three)
    first = {name: rows.column(name)[0].as_py() for name in rows.schema.names}
    assert first == {
        "key": b"k5",
        "value": b"a",
        "topic": "t",
        "partition": 0,
        "offset": 5,
        "timestamp": datetime.datetime(1970, 1, 1, 0, 0, 1, 5000, tzinfo=datetime.UTC),
        "timestampType": 0,
    }
    assert rows.column("value").to_pylist() == [b"a", b"b", None, b"", b"e", b"x", b"y", b"z"]
    assert rows.column("offset").to_pylist() == [5, 6, 7, 8, 9, 20, 21, 22]


@pytest.mark.parametrize("with_headers", ["false", "true"])
def test_the_schema_is_what_spark_makes_of_ours(three: LogServer, with_headers: str) -> None:
    schema: StructType = source(three, includeHeaders=with_headers).schema()
    (rows,) = read(three, includeHeaders=with_headers)
    assert rows.schema == to_arrow_schema(schema, timezone="UTC")
    rows.validate(full=True)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (5, 23, [5, 6, 7, 8, 9, 20, 21, 22]),
        (7, 9, [7, 8]),
        (9, 21, [9, 20]),
        (10, 20, []),
        (10, 21, [20]),
        (15, 16, []),
        (15, 23, [20, 21, 22]),
        (22, 23, [22]),
    ],
)
def test_rows_outside_the_range_are_cut_off(three: LogServer, start: int, end: int, expected: list[int]) -> None:
    where = {"startingOffsets": f'{{"t": {{"0": {start}}}}}', "endingOffsets": f'{{"t": {{"0": {end}}}}}'}
    assert offsets(three, **where) == expected


@pytest.mark.parametrize("count", range(1, 12))
def test_any_number_of_input_partitions_reads_the_same(three: LogServer, count: int) -> None:
    assert offsets(three, minPartitions=str(count)) == [5, 6, 7, 8, 9, 20, 21, 22]


def test_nothing_to_read(three: LogServer) -> None:
    planned = source(three, startingTimestamp="2000", startingOffsetsByTimestampStrategy="latest").reader(
        schema=source(three).schema()
    )
    assert planned.partitions() == []
    assert list(planned.read(reader_module.InputPartition(None))) == []


def test_headers() -> None:
    builder = BatchBuilder(0, 0, 0)
    builder.add(0, None, b"v", [("trace", b"\x00\xff"), ("empty", b""), ("none", None)])
    builder.add(1, None, b"v")
    builder.add_run(2, None, [b"v", b"v"], encode_headers([("ü", b"1")]))
    builder.add(4, None, b"v", [("bad\udcff", b"2")])
    with log_server({"t": [Partition([builder.build()])]}) as server:
        (rows,) = read(server, includeHeaders="true")
    assert rows.column("headers").to_pylist() == [
        [{"key": "trace", "value": b"\x00\xff"}, {"key": "empty", "value": b""}, {"key": "none", "value": None}],
        None,
        [{"key": "ü", "value": b"1"}],
        [{"key": "ü", "value": b"1"}],
        [{"key": "bad\ufffd", "value": b"2"}],
    ]
    assert rows.column("key").to_pylist() == [None] * 5


def test_log_append_time_is_told() -> None:
    stamped = bytearray(batch(0, [b"a", b"b"]))
    stamped[22] |= 0x08
    stamped[17:21] = crc32c(memoryview(stamped)[21:]).to_bytes(4, "big")
    with log_server({"t": [Partition([bytes(stamped)])]}) as server:
        (rows,) = read(server)
    assert rows.column("timestampType").to_pylist() == [1, 1]
    assert [time.timestamp() for time in rows.column("timestamp").to_pylist()] == [1.001, 1.001]


def test_a_damaged_batch_is_not_read() -> None:
    damaged = bytearray(batch(0, [b"a", b"b"]))
    damaged[-2] ^= 1
    with log_server({"t": [Partition([bytes(damaged)])]}) as server, pytest.raises(CorruptBatch, match="CRC"):
        read(server)


def test_large_logs_come_in_batches_of_about_ten_thousand_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = [batch(first, [b"v" * 20] * 700) for first in range(0, 35_000, 700)]
    with log_server({"t": [Partition(builder)]}) as server:
        monkeypatch.setattr(reader_module, "FETCH_BYTES_MAX", 100_000)
        counts = [rows.num_rows for rows in read(server)]
        assert counts == [10_000, 10_000, 10_000, 100, 4_900]
        monkeypatch.setattr(reader_module, "BYTES_AT_ONCE", 1)
        assert {rows.num_rows for rows in read(server)} == {700}


def test_several_topics_and_partitions() -> None:
    topics = {
        "t": [Partition([batch(0, [b"0"])]), Partition(), Partition([batch(3, [b"2"])], 3)],
        "u": [Partition([batch(0, [b"u"])])],
    }
    with log_server(topics) as server:
        found = [
            (row["topic"], row["partition"], row["offset"], row["value"])
            for rows in read(server, subscribe="u,t")
            for row in rows.to_pylist()
        ]
    assert found == [("t", 0, 0, b"0"), ("t", 2, 3, b"2"), ("u", 0, 0, b"u")]


def planned_then(server: LogServer, **options: str) -> Any:
    """A reader and its only input partition; the server may be changed before reading."""
    planned = source(server, **options).reader(schema=source(server).schema())
    (part,) = planned.partitions()
    return lambda: [offset for rows in planned.read(part) for offset in rows.column("offset").to_pylist()]


def test_retention_that_overtakes_the_read(three: LogServer) -> None:
    strict, lenient = planned_then(three), planned_then(three, failOnDataLoss="false")
    log = three.topics["t"][0]
    log.batches, log.start_offset = log.batches[2:], 20
    with pytest.raises(DataLoss, match=r"t-0: the log no longer has offset 5, .*\(5 to 23\); failOnDataLoss=false"):
        strict()
    assert lenient() == [20, 21, 22]


def test_records_that_were_deleted_are_not_read_from_a_batch_that_is_there_still(three: LogServer) -> None:
    strict, lenient = planned_then(three), planned_then(three, failOnDataLoss="false")
    three.topics["t"][0].start_offset = 8
    with pytest.raises(DataLoss, match="the log no longer has offset 5"):
        strict()
    assert lenient() == [8, 9, 20, 21, 22]


def test_a_topic_that_was_made_anew_and_is_shorter(three: LogServer) -> None:
    strict, lenient = planned_then(three), planned_then(three, failOnDataLoss="false")
    three.topics["t"][0] = Partition([batch(0, [b"new"])])
    with pytest.raises(DataLoss):
        strict()
    assert lenient() == []


def test_a_topic_that_was_made_anew_and_is_longer(three: LogServer) -> None:
    three.ids["t"] = b"1" * 16
    strict, lenient = planned_then(three), planned_then(three, failOnDataLoss="false")
    whole = strict()
    three.ids["t"], log = b"2" * 16, three.topics["t"][0]
    three.topics["t"][0] = Partition([batch(0, [b"new"] * 50)])
    with pytest.raises(DataLoss, match="t was deleted and made again since the read of 5 to 23 of partition 0 was"):
        strict()
    assert lenient() == []
    three.ids, three.topics["t"][0] = {}, log
    assert strict() == whole, "a broker that says no ids"


def test_a_topic_that_is_made_anew_while_it_is_read(three: LogServer) -> None:
    """Its records stood for those of the former one."""
    three.ids["t"] = b"1" * 16
    strict, lenient = planned_then(three), planned_then(three, failOnDataLoss="false")
    three.fetched_ids["t"] = b"2" * 16  # behind the look whether it is there still
    with pytest.raises(DataLoss, match="t was deleted and made again since the read of 5 to 23 of partition 0 was"):
        strict()
    assert lenient() == []


@pytest.mark.parametrize("left", [None, []])
def test_a_topic_or_partition_that_is_gone_since_the_read_was_planned(three: LogServer, left: list[Any] | None) -> None:
    strict, lenient = planned_then(three), planned_then(three, failOnDataLoss="false")
    if left is None:
        del three.topics["t"]
    else:
        three.topics["t"] = left
    with pytest.raises(DataLoss, match="t-0 was deleted since the read of 5 to 23 was planned; failOnDataLoss=false"):
        strict()
    assert lenient() == []


def test_a_log_that_lost_its_end(three: LogServer) -> None:
    strict, lenient = planned_then(three), planned_then(three, failOnDataLoss="false")
    log = three.topics["t"][0]
    log.batches, log.extra_end = log.batches[:1], 13
    with pytest.raises(DataLoss):
        strict()
    assert lenient() == [5, 6, 7, 8, 9]


def test_records_that_were_compressed_well_are_decoded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "BYTES_AT_ONCE", 4 << 20)
    made = [batch(number, [bytes(1 << 20)], compression=Compression.ZSTD) for number in range(10)]
    with log_server({"t": [Partition(made)]}) as server:
        assert [rows.num_rows for rows in read(server)] == [4, 4, 2]
        decoded = []
        decode = reader_module.decode
        monkeypatch.setattr(
            reader_module, "decode", lambda found, **parts: decoded.append(found) or decode(found, **parts)
        )
        planned = source(server).reader(source(server).schema())
        (task,) = planned.partitions()
        with reader_module.connect(planned.options) as client:
            assert reader_module.read_small(client, planned.options, task.value, 2 << 20) is None
        assert len(decoded) == 1


def test_a_new_leader_that_knows_not_yet_what_was_committed_is_asked_again(three: LogServer) -> None:
    strict, lenient = planned_then(three), planned_then(three, failOnDataLoss="false")
    three.early_fetches = {1, 3}
    assert strict() == lenient() == [5, 6, 7, 8, 9, 20, 21, 22]


def test_records_after_planning_are_not_read_and_a_second_run_is_equal(three: LogServer) -> None:
    one = planned_then(three)
    first = one()
    three.topics["t"][0].batches.append(batch(23, [b"later"]))
    assert one() == first == [5, 6, 7, 8, 9, 20, 21, 22]


def test_a_connection_lost_on_the_way_is_made_again(three: LogServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "FETCH_BYTES_MAX", 1)
    three.broken_fetches = {2}
    assert offsets(three) == [5, 6, 7, 8, 9, 20, 21, 22]
    assert three.fetches == 4


def test_the_next_server_is_tried() -> None:
    with log_server({"t": [Partition([batch(0, [b"a"])])]}) as server:
        gone = LogServer({})
        gone.close()
        assert [rows.num_rows for rows in read(f"{gone.address},{server.address}")] == [1]
        with pytest.raises(ConnectionLost):
            read(gone)


def test_the_next_server_is_asked_when_the_first_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_link, "_LOOK_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as still, log_server({"t": [Partition([batch(0, [b"a"])])]}) as server:
        standing = f"127.0.0.1:{still.getsockname()[1]}"
        assert [rows.num_rows for rows in read(f"{standing},{server.address}")] == [1]


def test_the_connection_closes_when_the_rows_are_not_all_wanted(three: LogServer) -> None:
    planned = source(three).reader(schema=source(three).schema())
    rows = planned.read(planned.partitions()[0])
    next(rows)
    rows.close()


def test_wrong_options_are_told_before_anything_is_asked(three: LogServer) -> None:
    with pytest.raises(OptionError, match="unknown option 'subscribed'"):
        source(three, subscribed="t").schema()


def test_a_schema_that_allows_no_null_is_refused(three: LogServer) -> None:
    schema = StructType().add("value", "binary", nullable=False)
    for make in (source(three).reader, source(three).streamReader):
        with pytest.raises(OptionError, match="not value binary not null"):
            make(schema=schema)


def test_files_for_tls_that_are_none_are_told_by_the_option(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for option in ("millrace.tls.ca", "millrace.tls.cert"):
        for file in ("empty", "missing"):
            with pytest.raises(OptionError, match=f"^{option}: .*{file}"):
                read("localhost:1", **{option: str(tmp_path / file)})
