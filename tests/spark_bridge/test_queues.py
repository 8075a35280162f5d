"""Queues and MQTT filters as sources, without Spark, at a real broker. `test_spark.py` has real queries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import paho.mqtt.publish
import pika
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from millrace import BlockingClient
from spark_bridge.data_source import MillraceDataSource
from spark_bridge.offsets import DataLoss
from spark_bridge.options import OptionError, parse_options, parse_sink_options
from spark_bridge.sink import write_rows
from spark_bridge.stream import MillraceStreamReader
from tests.gateway.test_commands import Commands
from tests.support import BrokerProcess, metrics
from tests.support.broker_process import broker_process

ALL = ReadAllAvailable()
Offset = dict[str, dict[str, int]]


def source(broker: BrokerProcess, **options: str) -> MillraceDataSource:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return MillraceDataSource({"millrace.servers": f"127.0.0.1:{broker.native_port}", **named})


def stream(broker: BrokerProcess, **options: str) -> MillraceStreamReader:
    found = source(broker, **options)
    return found.streamReader(schema=found.schema())


def column(reader: Any, parts: Sequence[Any], name: str) -> list[Any]:
    return [one for part in parts for rows in reader.read(part) for one in rows.column(name).to_pylist()]


def table(broker: BrokerProcess, *names: str, **options: str) -> list[tuple[Any, ...]]:
    found = source(broker, **options)
    reader = found.reader(schema=found.schema())
    parts = reader.partitions()
    return list(zip(*(column(reader, parts, name) for name in names), strict=True))


def bodies(reader: MillraceStreamReader, start: Offset, end: Offset) -> list[int]:
    return [int(one) for one in column(reader, reader.partitions(start, end), "value")]


@pytest.fixture
def channel(shared_broker: BrokerProcess) -> Iterator[Any]:
    with channel_of(shared_broker) as found:
        yield found


def channel_of(broker: BrokerProcess, vhost: str = "/") -> Any:
    class Channel:
        def __enter__(self) -> Any:
            self.connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost))
            found = self.connection.channel()
            found.confirm_delivery()
            return found

        def __exit__(self, *_: object) -> None:
            self.connection.close()

    return Channel()


def publish(channel: Any, queue: str, numbers: Sequence[int], **properties: Any) -> None:
    for number in numbers:
        given = pika.BasicProperties(delivery_mode=2, message_id=f"m{number}", **properties)
        channel.basic_publish("", queue, b"%d" % number, given)


def test_what_waits_in_a_queue_is_a_table(shared_broker: BrokerProcess, channel: Any) -> None:
    channel.queue_declare("browsed", durable=True)
    channel.queue_bind("browsed", "amq.topic", "plant.#")
    publish(channel, "browsed", range(50), priority=3)
    channel.basic_publish("amq.topic", "plant.7", b"50", pika.BasicProperties(headers={"h": 1}))
    rows = table(
        shared_broker, "value", "messageId", "exchange", "routingKey", "mqttTopic", "properties", "topic",
        queue="browsed", includeProperties="true",
    )  # fmt: skip
    assert [int(row[0]) for row in rows] == list(range(51))
    assert rows[7][1:] == (
        "m7", "", "browsed", None, [("priority", "3"), ("message-id", "m7")], "browsed",
    )  # fmt: skip
    assert rows[50][1:5] == (None, "amq.topic", "plant.7", "plant/7")
    channel.basic_get("browsed", auto_ack=True)
    found = table(shared_broker, "value", "offset", queue="browsed", minPartitions="7")
    assert [int(body) for body, _ in found] == list(range(1, 51))
    later = table(shared_broker, "value", queue="browsed", startingOffsets=f'{{"browsed": {{"0": {found[9][1]}}}}}')
    assert [int(body) for (body,) in later] == list(range(10, 51))
    assert channel.queue_declare("browsed", passive=True).method.message_count == 50


def test_a_stream_of_what_comes_to_a_queue(shared_broker: BrokerProcess, channel: Any) -> None:
    channel.queue_declare("watched", durable=True)
    publish(channel, "watched", range(10))
    reader = stream(shared_broker, queue="watched", startingOffsets="earliest")
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ALL)
    assert bodies(reader, start, middle) == list(range(10))
    assert reader.latestOffset(middle, ALL) == middle
    publish(channel, "watched", range(10, 15))
    end = reader.latestOffset(middle, ALL)
    assert bodies(reader, middle, end) == list(range(10, 15))
    assert stream(shared_broker, queue="watched").initialOffset() == end, "at the latest, unless told otherwise"
    reader.stop()


def test_a_queue_that_was_deleted_and_made_again_is_another_one(shared_broker: BrokerProcess, channel: Any) -> None:
    """It may be in another log, whose offsets say nothing of the former one's."""
    for strict in (True, False):
        options = {} if strict else {"failOnDataLoss": "false"}
        channel.queue_declare("remade", durable=True)
        publish(channel, "remade", range(3))
        reader = stream(shared_broker, queue="remade", startingOffsets="earliest", **options)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        planned = reader.partitions(start, end)
        planned = [part for part in planned if part.value is not None]
        channel.queue_delete("remade")
        channel.queue_declare("remade", durable=True)
        publish(channel, "remade", range(10, 15))
        batch = source(shared_broker, queue="remade", **options)
        if strict:
            for part in planned:
                with pytest.raises(DataLoss, match="deleted and made again"):
                    list(batch.streamReader(schema=batch.schema()).read(part))
            with pytest.raises(DataLoss, match="deleted and made again"):
                bodies(reader, start, end)
            with pytest.raises(DataLoss, match="is another one now"):
                reader.latestOffset(end, ALL)
        else:
            assert bodies(reader, start, end) == []
            again = reader.latestOffset(end, ALL)
            assert bodies(reader, end, again) == list(range(10, 15))
            assert reader.latestOffset(again, ALL) == again
        channel.queue_delete("remade")
        channel.queue_declare("remade", durable=True, arguments={"x-queue-type": "stream"})
        with pytest.raises(OptionError, match="as a stream"):
            reader.latestOffset(end, ALL)
        channel.queue_delete("remade")
        reader.stop()


def test_a_stream_queue_is_read_as_its_topic(shared_broker: BrokerProcess, channel: Any) -> None:
    channel.queue_declare("kept", durable=True, arguments={"x-queue-type": "stream"})
    publish(channel, "kept", range(5))
    rows = table(shared_broker, "value", "offset", "messageId", queue="kept", includeProperties="true")
    assert rows == [(b"%d" % number, number, f"m{number}") for number in range(5)]
    with pytest.raises(OptionError, match="'kept' is a stream, nothing is taken from it"):
        stream(shared_broker, queue="kept", queue_mode="consume").initialOffset()


def test_messages_leave_the_queue_when_spark_is_done_with_them(shared_broker: BrokerProcess, channel: Any) -> None:
    channel.queue_declare("taken", durable=True)
    publish(channel, "taken", range(20))

    def counts() -> tuple[int, int]:
        with BlockingClient(f"127.0.0.1:{shared_broker.native_port}") as client:
            found = client.administer("queues.list")
            (row,) = (row for row in found["rows"] if row[1] == "taken")
            return row[found["columns"].index("ready")], row[found["columns"].index("unacknowledged")]

    reader = stream(shared_broker, queue="taken", queue_mode="consume", maxOffsetsPerTrigger="8")
    start = reader.initialOffset()
    assert start == {"taken": {"0": 0}}
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert (first, counts()) == ({"taken": {"0": 8}}, (12, 8))
    assert bodies(reader, start, first) == list(range(8))
    assert column(reader, reader.partitions(start, first), "offset") == list(range(8))

    # Another process that goes on from the checkpoint, before the micro-batch was done and after.
    again = stream(shared_broker, queue="taken", queue_mode="consume", minPartitions="3")
    assert bodies(again, again.initialOffset(), first) == list(range(8))
    second = again.latestOffset(first, ReadMaxRows(5))
    assert (second, counts()) == ({"": {"minPartitions": 3}, "taken": {"0": 13}}, (7, 5))
    assert again.reportLatestOffset() == {"": {"minPartitions": 3}, "taken": {"0": 20}}
    with pytest.raises(DataLoss, match="asks for positions 0 to"):
        bodies(again, start, first)
    lenient = stream(shared_broker, queue="taken", queue_mode="consume", failOnDataLoss="false")
    assert bodies(lenient, start, first) == []
    again.commit(second)
    assert counts() == (7, 0)
    assert bodies(again, second, again.latestOffset(second, ALL)) == list(range(13, 20))
    publish(channel, "taken", [20])
    last = stream(shared_broker, queue="taken", queue_mode="consume")
    last.prepareForTriggerAvailableNow()
    stop = last.latestOffset({"taken": {"0": 20}}, ALL)
    publish(channel, "taken", [21])
    assert (stop, last.latestOffset(stop, ALL)) == ({"taken": {"0": 21}}, stop), "what came later waits"
    assert counts() == (1, 0)


def test_a_micro_batch_is_the_same_after_the_broker_was_killed(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=("amqp", "native", "mqtt")) as broker:
        with channel_of(broker) as channel:
            channel.queue_declare("q", durable=True)
            publish(channel, "q", range(100))
        paho.mqtt.publish.single("other", b"x", qos=1, hostname="127.0.0.1", port=broker.mqtt_port)
        reader = stream(broker, queue="q", queue_mode="consume")
        start = reader.initialOffset()
        first = reader.latestOffset(start, ReadMaxRows(30))
        second = reader.latestOffset(first, ReadMaxRows(30))
        broker.kill9()
        broker.start(same_ports=True)
        with channel_of(broker) as channel:  # somebody else is faster
            got = [channel.basic_get("q", auto_ack=True)[2] for _ in range(5)]
            assert got == [b"%d" % number for number in range(60, 65)]
        assert bodies(reader, first, second) == list(range(30, 60))
        third = reader.latestOffset(second, ALL)
        assert bodies(reader, second, third) == list(range(65, 100))
        reader.commit(third)
        broker.kill9()
        broker.start(same_ports=True)
        assert reader.latestOffset(third, ALL) == third
        with channel_of(broker) as channel:
            assert channel.queue_declare("q", passive=True).method.message_count == 0


def test_queries_of_a_queue_show_up_with_their_lag(shared_broker: BrokerProcess, channel: Any) -> None:
    channel.queue_declare("lagging", durable=True)
    publish(channel, "lagging", range(20))
    asked = {"queue": "lagging", "kafka_group_id": "spark-of-a-queue"}
    taker = stream(shared_broker, **asked, queue_mode="consume", maxOffsetsPerTrigger="8")
    taken = taker.latestOffset(taker.initialOffset(), taker.getDefaultReadLimit())
    watcher = stream(shared_broker, **asked, startingOffsets="earliest")
    start = watcher.initialOffset()
    end = watcher.latestOffset(start, ALL)  # the 12 that the other has not been given
    millrace = Commands(shared_broker)

    def lags() -> dict[str, int]:
        """By mode."""
        with BlockingClient(millrace.server) as client:
            found = client.queue_lag("spark-of-a-queue")
            assert all(
                one.lag_ms is not None and (one.lag_ms < 120_000 if one.lag else not one.lag_ms) for one in found
            )
            assert {(one.vhost, one.queue) for one in found} == {("/", "lagging")}
            assert client.lag("spark-of-a-queue") == []
        if metrics.DOORS:
            figures = metrics.scraped(shared_broker.ports["http"]).items()
            shown = {key: value for key, value in figures if "lagging" in key and "spark-of-a-queue" in key}
            assert {key[2]: lag for key, lag in shown.items() if key[0] == "millrace_group_queue_lag_messages"} == {
                one.mode: one.lag for one in found
            }
            assert len(shown) == 2 * len(found)
        return {one.mode: one.lag for one in found}

    assert lags() == {"browse": 12, "consume": 20}
    watcher.commit(end)
    assert lags() == {"browse": 0, "consume": 20}
    publish(channel, "lagging", range(20, 25))
    taker.commit(taken)
    assert lags() == {"browse": 5, "consume": 17}
    row = {"group": "spark-of-a-queue", "state": "Empty", "members": 0, "type": "consumer"}
    assert row in millrace.rows("groups", "list")
    found = json.loads(millrace("groups", "describe", "spark-of-a-queue", "--json"))
    assert (found["lag"], 0 < found["lag_s"] < 120, found["partitions"]) == (22, True, [])
    assert [(one["queue"], one["mode"], one["lag"]) for one in found["queues"]] == [
        ("lagging", "browse", 5), ("lagging", "consume", 17),
    ]  # fmt: skip
    assert found["queues"][1]["offset"] == 8
    assert "lagging  browse" in millrace("groups", "describe", "spark-of-a-queue")
    stream(shared_broker, **asked, startingOffsets="earliest", leaseMs="0").commit(start)
    assert lags()["browse"] == 5, "a query that wants no lease says nothing"
    for reader in (taker, watcher):
        reader.stop()


def test_a_filter_keeps_what_it_matches(shared_broker: BrokerProcess) -> None:
    def send(topic: str, payload: bytes, *, retain: bool = False) -> None:
        port = shared_broker.mqtt_port
        paho.mqtt.publish.single(topic, payload, qos=1, retain=retain, hostname="127.0.0.1", port=port)

    send("plant/1/temp", b"20", retain=True)
    send("plant/1/rain", b"1", retain=True)
    asked = {"mqtt_filter": "plant/+/temp", "includeProperties": "true"}
    assert table(shared_broker, "mqttTopic", "value", **asked) == [("plant/1/temp", b"20")]
    send("plant/2/temp", b"21")
    send("plant/2/v1.5/temp", b"no")
    reader = stream(shared_broker, **asked, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    parts = reader.partitions(start, end)
    assert column(reader, parts, "value") == [b"20", b"21"]
    assert column(reader, parts, "protocol") == ["mqtt", "mqtt"]
    send("plant/3/temp", b"22")
    assert column(reader, reader.partitions(end, reader.latestOffset(end, ALL)), "mqttTopic") == ["plant/3/temp"]
    reader.stop()


def test_queues_filters_and_exchanges_of_another_virtual_host(shared_broker: BrokerProcess) -> None:
    server, vhost = f"127.0.0.1:{shared_broker.native_port}", "spark/2"
    with BlockingClient(server) as client:
        client.administer("vhosts.add", name=vhost)
    with channel_of(shared_broker, vhost) as channel:
        for name, kind in (("host-q", "classic"), ("host-s", "stream")):
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
            channel.queue_bind(name, "amq.topic", "host.#")
        there = {"millrace_vhost": vhost}
        assert table(shared_broker, "value", mqtt_filter="host/+/v", **there) == []
        sink = parse_sink_options(
            {"millrace.servers": server, "exchange": "amq.topic", "routingKey": "host.1.v", "millrace.vhost": vhost}
        )
        batch = pa.record_batch({"value": pa.array([b"%d" % number for number in range(5)])})
        assert [write_rows(iter([batch]), sink, "host", 0, 0).again for _ in range(2)] == [False, True]
        for asked in ({"queue": "host-q"}, {"queue": "host-s"}, {"mqtt_filter": "host/+/v"}):
            assert [int(body) for (body,) in table(shared_broker, "value", **asked, **there)] == list(range(5)), asked
        reader = stream(shared_broker, queue="host-q", queue_mode="consume", **there)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        assert bodies(reader, start, end) == list(range(5))
        reader.commit(end)
        assert channel.queue_declare("host-q", passive=True).method.message_count == 0
    with pytest.raises(OptionError, match="there is no queue 'host-q'"):
        table(shared_broker, "value", queue="host-q")


@pytest.mark.parametrize(
    ("given", "streaming", "sentence"),
    [
        ({"subscribe": "t", "millrace.vhost": "v"}, False, "millrace.vhost needs the option queue or mqtt.filter"),
        ({"queue": "q", "subscribe": "t"}, False, "subscribe and queue contradict"),
        ({"queue.mode": "consume", "subscribe": "t"}, True, "queue.mode needs the option queue"),
        ({"queue": "q", "queue.mode": "take"}, True, "queue.mode must be browse or consume, not 'take'"),
        ({"queue": "q", "queue.mode": "consume"}, False, "queue.mode=consume is for streams"),
        ({"queue": "q", "queue.mode": "consume", "startingOffsets": "latest"}, True, "leave startingOffsets out"),
        ({"queue": "q", "startingTimestamp": "1"}, True, "a queue is not read by time"),
        ({"queue": "q", "endingTimestamp": "1"}, False, "a queue is not read by time"),
        ({"queue": "q", "queue.mode": "consume", "leaseMs": "0"}, True, "leaseMs must be a number from 1"),
        ({"mqtt.filter": "a/#/b"}, False, r"no filter: \+ is a whole level"),
        ({"mqtt.filter": "$SYS/#"}, False, "cannot be kept"),
    ],
)
def test_options_of_queues_and_filters(given: dict[str, str], streaming: bool, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        parse_options({"bootstrap.servers": "h:1", **given}, streaming=streaming)


def test_whose_messages_they_are_does_not_depend_on_tuning() -> None:
    given = {"bootstrap.servers": "h:1", "queue": "q", "queue.mode": "consume"}
    names = {
        parse_options(given | more, streaming=True).group
        for more in ({}, {"maxOffsetsPerTrigger": "5"}, {"minPartitions": "2"}, {"bootstrap.servers": "h:2"})
    }
    assert len(names) == 1
    assert parse_options(given | {"kafka.group.id": "mine"}, streaming=True).group == "mine"


def test_a_queue_that_is_not_there(shared_broker: BrokerProcess) -> None:
    with pytest.raises(OptionError, match="there is no queue 'nowhere'"):
        table(shared_broker, "value", queue="nowhere")
