"""What a message is besides key and value, from records as streams and queues write them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from core_log.record_batch import BatchBuilder
from spark_bridge.data_source import MillraceDataSource
from spark_bridge.options import OptionError
from spark_bridge.schema import RECORD_COLUMNS, names_of, spark_schema
from tests.spark_bridge.log_server import LogServer, Partition, log_server

RECORDS: list[tuple[bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"a.b", [("millrace.exchange", b"amq.topic"), ("millrace.mqtt", b"\1"), ("millrace.content-type", b"text/plain")]),
    (b"q", [("millrace.amqp", b"\2"), ("x", b"1"), ("millrace.message-id", b"m1"), ("millrace.priority", b"7")]),
    (None, []),
    (b"\xff", [("millrace.amqp", b""), ("x", None), ("millrace.mqtt", b"not where a protocol stands")]),
    (b"v1.2/x", [("millrace.exchange", b"amq.topic")]),
    (b"k", [("own", b"1"), ("millrace.correlation-id", b"\xff\xfe"), ("millrace.app-id", None)]),
]
EXPECTED: dict[str, list[Any]] = {
    "messageId": [None, "m1", None, None, None, None],
    "protocol": ["mqtt", "amqp", None, "amqp", None, None],
    "exchange": ["amq.topic", "", None, "", "amq.topic", None],
    "routingKey": ["a.b", "q", None, "\ufffd", "v1.2/x", None],
    "mqttTopic": ["a/b", None, None, None, "v1/2.x", None],
    "properties": [
        [("content-type", "text/plain")],
        [("message-id", "m1"), ("priority", "7")],
        [],
        [],
        [],
        [("correlation-id", "\ufffd\ufffd")],
    ],
}


def message_batch() -> bytes:
    """`RECORDS` from offset 0 on."""
    builder = BatchBuilder(0, 0, 1000)
    for offset, (key, headers) in enumerate(RECORDS):
        builder.add(offset, key, b"v%d" % offset, headers)
    return builder.build()


@pytest.fixture
def server() -> Any:
    with log_server({"t": [Partition([message_batch()])]}) as found:
        yield found


def read(server: LogServer, names: list[str] | None, **options: str) -> Any:
    source = MillraceDataSource({"bootstrap.servers": server.address, "subscribe": "t", **options})
    schema = source.schema() if names is None else spark_schema(names)
    reader = source.reader(schema=schema)
    (rows,) = (rows for part in reader.partitions() for rows in reader.read(part))
    assert rows.schema == to_arrow_schema(schema, timezone="UTC")
    rows.validate(full=True)
    return rows


def test_all_columns(server: LogServer) -> None:
    rows = read(server, None, includeProperties="true", includeHeaders="true")
    assert rows.schema.names == [*RECORD_COLUMNS, "headers", *EXPECTED]
    assert {name: rows.column(name).to_pylist() for name in EXPECTED} == EXPECTED


def test_what_a_part_of_a_batch_says(server: LogServer) -> None:
    where = {"startingOffsets": '{"t": {"0": 1}}', "endingOffsets": '{"t": {"0": 5}}'}
    rows = read(server, list(EXPECTED), **where)
    assert {name: rows.column(name).to_pylist() for name in EXPECTED} == {n: c[1:5] for n, c in EXPECTED.items()}


@pytest.mark.parametrize("names", [["offset"], ["messageId", "key"], ["mqttTopic"], ["value", "properties"]])
def test_a_schema_names_the_columns(server: LogServer, names: list[str]) -> None:
    whole, rows = read(server, None, includeProperties="true"), read(server, names)
    assert [rows.column(name).to_pylist() for name in names] == [whole.column(name).to_pylist() for name in names]


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        (StructField("key", StringType()), "not key string"),
        (StructField("color", LongType()), "not color bigint"),
        (StructField("offset", LongType()), "a schema has a column once"),
    ],
)
def test_a_schema_of_other_columns_is_refused(field: StructField, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        names_of(StructType([*spark_schema(["offset", "value"]).fields, field]))


def test_one_question_for_all_partitions() -> None:
    with log_server({name: [Partition(), Partition()] for name in "tuv"}) as server:
        source = MillraceDataSource(
            {"bootstrap.servers": server.address, "subscribe": "t,u,v", "startingTimestamp": "0"}
            | {"startingOffsetsByTimestampStrategy": "latest"}
        )
        assert source.reader(schema=source.schema()).partitions() == []
        assert server.questions == 1
        stream = source.streamReader(schema=source.schema())
        start = stream.initialOffset()
        stream.latestOffset(start)
        stream.reportLatestOffset()
        assert server.questions == 3, "one for each micro-batch"
