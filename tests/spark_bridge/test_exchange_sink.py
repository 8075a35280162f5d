"""Rows published to exchanges, without Spark, at a real broker. `test_spark.py` has a real query."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ByteType, IntegerType, LongType, MapType, StringType, StructField, StructType

from millrace import MillraceError
from spark_bridge.columns import HEADERS_TYPE
from spark_bridge.message_columns import PROPERTIES_TYPE
from spark_bridge.options import OptionError, SinkOptions, parse_sink_options
from spark_bridge.sink import check_columns, write_rows
from tests.spark_bridge.test_queues import channel_of
from tests.support import BrokerProcess

PROPERTIES = MapType(StringType(), StringType())


def options(broker: BrokerProcess, exchange: str, **others: str) -> SinkOptions:
    return parse_sink_options({"millrace.servers": f"127.0.0.1:{broker.native_port}", "exchange": exchange, **others})


def rows(first: int, end: int) -> Any:
    numbers = range(first, end)
    yield pa.record_batch(
        {
            "value": pa.array([b"%d" % number for number in numbers]),
            "routingKey": pa.array([f"key.{number % 3}" for number in numbers]),
        }
    )


def taken(channel: Any, queue: str) -> list[tuple[Any, Any, bytes]]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got)
    return found


def test_rows_are_messages_and_a_task_that_runs_again_publishes_nothing(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        channel.queue_declare("rows", durable=True)
        channel.queue_bind("rows", "amq.topic", "key.#")
        where = options(shared_broker, "amq.topic", compression="zstd")
        first = write_rows(rows(0, 5000), where, "exchanges", 0, 0)
        again = write_rows(rows(0, 5000), where, "exchanges", 0, 0)
        assert (first.rows, first.again, again.rows, again.again) == (5000, False, 5000, True)
        write_rows(rows(5000, 5010), where, "exchanges", 0, 1)  # another task
        write_rows(rows(5010, 5020), where, "exchanges", 1, 0)  # the next micro-batch
        assert write_rows(iter([]), where, "exchanges", 2, 0).rows == 0
        found = taken(channel, "rows")
        assert [int(body) for _, _, body in found] == list(range(5020))
        assert {(got.exchange, got.routing_key) for got, _, _ in found} == {("amq.topic", f"key.{n}") for n in range(3)}
        assert {properties.delivery_mode for _, properties, _ in found} == {2}


def test_rows_that_a_full_queue_refuses_are_not_said_to_be_written(
    shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_bridge.exchange_sink._PATIENCE_S", 0.0)
    with channel_of(shared_broker) as channel:
        channel.queue_declare("small", durable=True, arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
        channel.queue_bind("small", "amq.fanout")
        where = options(shared_broker, "amq.fanout")
        assert write_rows(rows(0, 3), where, "small", 0, 0).rows == 3
        with pytest.raises(MillraceError, match="queue 'small' in vhost '/' is full") as refused:
            write_rows(rows(3, 6), where, "small", 1, 0)
        assert refused.value.retriable
        assert [body for _, _, body in taken(channel, "small")] == [b"0", b"1", b"2"]
        assert not write_rows(rows(3, 6), where, "small", 1, 0).again
        assert [body for _, _, body in taken(channel, "small")] == [b"3", b"4", b"5"]


def test_columns_say_what_messages_are(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        channel.queue_declare("columns", durable=True, arguments={"x-max-priority": 9})
        batch = pa.record_batch(
            {
                "value": pa.array(["one", "two", None]),
                "headers": pa.array([[{"key": "a", "value": b"1"}], None, []], HEADERS_TYPE),
                "properties": pa.array([[("content-type", "text/plain"), ("type", None)], None, []], PROPERTIES_TYPE),
                "messageId": pa.array(["m1", None, "m3"]),
                "priority": pa.array([None, 7, 0], pa.int32()),
                "delayMs": pa.array([None, 0, None], pa.int64()),
            }
        )
        write_rows(iter([batch]), options(shared_broker, "", routingKey="columns"), "columns", 0, 0)
        found = {body: (properties, got) for got, properties, body in taken(channel, "columns")}
        assert next(iter(found)) == b"two", "of the highest priority"
        one, two, three = (found[body][0] for body in (b"one", b"two", b""))
        assert (one.content_type, one.message_id, one.headers, one.priority) == ("text/plain", "m1", {"a": "1"}, None)
        assert (two.priority, three.message_id) == (7, "m3")


def test_what_is_delayed_waits(shared_broker: BrokerProcess) -> None:
    with channel_of(shared_broker) as channel:
        channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
        channel.queue_declare("delayed", durable=True)
        channel.queue_bind("delayed", "later")
        batch = pa.record_batch({"value": pa.array(["soon", "late"]), "delayMs": pa.array([0, 60_000], pa.int64())})
        write_rows(iter([batch]), options(shared_broker, "later"), "delayed", 0, 0)
        assert [body for _, _, body in taken(channel, "delayed")] == [b"soon"]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"properties": pa.array([[("color", "red")]], PROPERTIES_TYPE)}, "no property 'color'"),
        ({"priority": pa.array([256], pa.int32())}, "a message's priority is a number from 0 to 255, not 256"),
        ({"properties": pa.array([[("priority", "high")]], PROPERTIES_TYPE)}, "priority is a number .*, not high"),
        (
            {"properties": pa.array([[("expiration-ms", "1.5")]], PROPERTIES_TYPE)},
            "expiration-ms is a number .*, not 1",
        ),
        ({"properties": pa.array([[("timestamp-s", "now")]], PROPERTIES_TYPE)}, "timestamp-s is a number .*, not now"),
        ({"headers": pa.array([[{"key": None, "value": b"1"}]], HEADERS_TYPE)}, "a header is null, or its key is"),
        ({"delayMs": pa.array([-1], pa.int64())}, "a delay is not negative"),
    ],
)
def test_rows_that_cannot_be_messages(shared_broker: BrokerProcess, columns: dict[str, Any], sentence: str) -> None:
    batch = pa.record_batch({"value": pa.array(["v"]), **columns})
    with pytest.raises(OptionError, match=sentence):
        write_rows(iter([batch]), options(shared_broker, "amq.topic"), "bad", 0, 0)


def test_what_the_broker_refuses(shared_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MillraceError, match="no exchange 'nowhere'"):
        write_rows(rows(0, 1), options(shared_broker, "nowhere"), "refused", 0, 0)
    large = pa.record_batch({"value": pa.array([bytes(1 << 20)] * 40)})
    with pytest.raises(OptionError, match="repartition the rows"):
        write_rows(iter([large]), options(shared_broker, "amq.topic"), "refused", 1, 0)


@pytest.mark.parametrize(
    ("fields", "given", "sentence"),
    [
        ([("value", IntegerType())], {}, "'value' cannot be int"),
        ([("key", StringType())], {}, "no place for the column 'key'"),
        ([("routingKey", StringType())], {}, "a column 'value' is needed"),
        ([("value", StringType()), ("routingKey", StringType())], {"routingKey": "k"}, "contradict each other"),
        (
            [("value", StringType()), ("delayMs", LongType()), ("properties", MapType(StringType(), StringType()))],
            {},
            "",
        ),
        # What `map('type', 'x')` and `cast(5 as tinyint)` are to Spark.
        ([("value", StringType()), ("properties", MapType(StringType(), StringType(), False))], {}, ""),
        ([("value", StringType()), ("priority", ByteType())], {}, ""),
        ([("value", StringType()), ("properties", MapType(StringType(), LongType()))], {}, "cannot be map<string,big"),
    ],
)
def test_columns(fields: list[Any], given: dict[str, str], sentence: str) -> None:
    schema = StructType([StructField(*one) for one in fields])
    chosen = parse_sink_options({"bootstrap.servers": "h:1", "exchange": "e", **given})
    if not sentence:
        check_columns(schema, chosen)
        return
    with pytest.raises(OptionError, match=sentence):
        check_columns(schema, chosen)


def test_options_that_spark_adds_are_no_error() -> None:
    """It tells a sink the query's name and where the checkpoint is as if they were options of it."""
    given = {"bootstrap.servers": "h:1", "exchange": "e", "queryname": "alerts", "checkpointlocation": "/c"}
    assert parse_sink_options(given) == parse_sink_options({"bootstrap.servers": "h:1", "exchange": "e"})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"exchange": "e", "topic": "t"}, "topic and exchange contradict"),
        ({"topic": "t", "txnAppId": "a", "txnVersion": str(2**63 - 1)}, "txnVersion must be a number from 0 to 92"),
        ({"topic": "t", "routingKey": "k"}, "routingKey needs the option exchange"),
    ],
)
def test_options(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        parse_sink_options({"bootstrap.servers": "h:1", **given})
