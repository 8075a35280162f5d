"""One data set for both families: pika's workers share a topic's records, Kafka's groups read the same ones."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import paho.mqtt.client as mqtt
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from millrace import BlockingClient
from tests.conformance.test_amqp_pika import connect
from tests.support import BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
DOORS = ("amqp", "mqtt", "native", "kafka")
TIMEOUT_S = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("views") / "data", doors=DOORS) as process:
        yield process


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[BlockingConnection]:
    connection = connect(broker)
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A topic of three partitions."""
    name = f"orders.{uuid.uuid4().hex}"
    client = admin.AdminClient({"bootstrap.servers": server(broker)})
    client.create_topics([admin.NewTopic(name, 3, 1)])[name].result(TIMEOUT_S)
    return name


def server(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


def declare(channel: BlockingChannel, topic: str, name: str = "", **arguments: Any) -> str:
    """A view of a topic."""
    name = name or f"{topic}.q"
    asked = {"x-queue-type": "view", "x-view-topic": topic} | arguments
    channel.queue_declare(name, durable=True, arguments=asked)
    return name


def produce(broker: BrokerProcess, topic: str, values: Iterator[bytes] | range, **options: Any) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": server(broker)})
    for value in values:
        producer.produce(topic, str(value).encode(), **options)
    assert not producer.flush(TIMEOUT_S)


def group(broker: BrokerProcess, topic: str, count: int) -> list[bytes]:
    """What a consumer group gets."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server(broker), "group.id": f"g.{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    try:
        while len(found) < count:
            got = consumer.consume(count, 10)
            assert got, f"{len(found)} of {count}"
            found += [one.value() for one in got]
        return found
    finally:
        consumer.close()


def test_twenty_workers_share_three_partitions_and_a_group_gets_all_of_them(broker: BrokerProcess, topic: str) -> None:
    count = 3000
    with connect(broker) as declaring:
        queue = declare(declaring.channel(), topic)
    produce(broker, topic, range(count))
    found: list[Counter[bytes]] = [Counter() for _ in range(20)]
    taken: list[bytes] = []
    ends_s = time.monotonic() + TIMEOUT_S

    def work(mine: Counter[bytes]) -> None:
        with connect(broker) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            for method, _, body in channel.consume(queue, inactivity_timeout=0.2):
                if method is None:
                    if len(taken) >= count or time.monotonic() > ends_s:
                        break
                    continue
                if mine[body] or (not method.redelivered and body.endswith(b"77") and not len(mine) % 3):
                    channel.basic_nack(method.delivery_tag)
                    continue
                mine[body] += 1
                taken.append(body)
                channel.basic_ack(method.delivery_tag)

    workers = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for one in workers:
        one.start()
    assert Counter(group(broker, topic, count)) == Counter(str(number).encode() for number in range(count))
    for one in workers:
        one.join(TIMEOUT_S)
    assert sum(found, Counter()) == Counter(str(number).encode() for number in range(count))
    assert sum(map(bool, found)) > 3, "more than there are partitions had work"
    with connect(broker) as looking:
        assert looking.channel().queue_declare(queue, passive=True).method.message_count == 0


def test_what_amqp_publishes_keeps_its_properties_and_kafka_reads_the_same_record(
    broker: BrokerProcess, connection: BlockingConnection, topic: str
) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    queue = declare(channel, topic)
    properties = pika.BasicProperties(
        content_type="application/json", headers={"retries": 0, "task": "t", "eta": None}, correlation_id="c",
        delivery_mode=2, priority=3, message_id="m", timestamp=1_700_000_000,
    )  # fmt: skip
    channel.basic_publish("", queue, b"{}", properties)
    method, got, body = next(channel.consume(queue, inactivity_timeout=TIMEOUT_S))
    assert (body, method.redelivered, method.routing_key) == (b"{}", False, queue)
    for name in ("content_type", "headers", "correlation_id", "delivery_mode", "priority", "message_id", "timestamp"):
        assert getattr(got, name) == getattr(properties, name), name
    channel.basic_ack(method.delivery_tag)
    assert group(broker, topic, 1) == [b"{}"]


def test_a_records_dead_letter_tells_its_history(
    broker: BrokerProcess, connection: BlockingConnection, topic: str
) -> None:
    channel = connection.channel()
    dead = f"{topic}.dead"
    channel.queue_declare(dead)
    queue = declare(
        channel, topic, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-delivery-limit": 1}
    )
    produce(broker, topic, range(2), key=b"k", headers=[("h", b"v")])
    for _ in range(3):
        method, _, body = next(channel.consume(queue, inactivity_timeout=TIMEOUT_S))
        if body == b"0":
            channel.basic_nack(method.delivery_tag)
        else:
            channel.basic_reject(method.delivery_tag, requeue=False)
    found = {}
    for method, got, body in channel.connection.channel().consume(dead, auto_ack=True, inactivity_timeout=TIMEOUT_S):
        assert method is not None
        (death,) = got.headers["x-death"]
        found[body] = (got.headers["h"], death["reason"], death["queue"], death["count"])
        if len(found) == 2:
            break
    assert found == {b"0": ("v", "delivery_limit", queue, 1), b"1": ("v", "rejected", queue, 1)}


def test_a_view_may_begin_at_a_time_be_purged_and_deleted(
    broker: BrokerProcess, connection: BlockingConnection, topic: str
) -> None:
    channel = connection.channel()
    produce(broker, topic, range(5), partition=0)
    time.sleep(1.1)
    began = datetime.now(UTC)
    time.sleep(0.1)
    produce(broker, topic, range(5, 8), partition=0)
    whole = (began - timedelta(microseconds=began.microsecond)).replace(tzinfo=None)
    queue = declare(channel, topic, **{"x-stream-offset": whole})
    assert declare(channel, topic, **{"x-stream-offset": whole}) == queue
    assert channel.queue_declare(queue, passive=True).method.message_count == 3
    method, _, body = channel.basic_get(queue)
    assert (method.message_count, body) == (2, b"5")
    assert channel.queue_purge(queue).method.message_count == 2
    channel.basic_nack(method.delivery_tag)
    assert channel.queue_delete(queue).method.message_count == 1
    assert group(broker, topic, 8)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ({"x-max-length": 10}, 406, "invalid arg 'x-max-length' for queue"),
        ({"x-view-topic": "no such topic"}, 404, "no topic 'no such topic' in vhost '/'"),
        ({"x-stream-offset": "soon"}, 406, "invalid arg 'x-stream-offset' for queue"),
    ],
)
def test_what_makes_no_sense_closes_the_channel(
    connection: BlockingConnection, topic: str, arguments: dict[str, Any], code: int, text: str
) -> None:
    with pytest.raises(ChannelClosedByBroker) as closed:
        declare(connection.channel(), topic, **arguments)
    assert closed.value.reply_code == code
    assert text in closed.value.reply_text


def test_of_devices_in_one_topic_a_worker_gets_those_that_it_wants(broker: BrokerProcess, topic: str) -> None:
    with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
        client.bind_topic(topic, "amq.topic", f"{topic}.#")
    with connect(broker) as connection:
        channel = connection.channel()
        queue = declare(channel, topic, **{"x-view-filter": f"{topic}.*.temp"})
        device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        device.connect("127.0.0.1", broker.ports["mqtt"])
        device.loop_start()
        for number in range(300):
            kind = "temp" if number % 3 else "hum"
            device.publish(f"{topic.replace('.', '/')}/{number}/{kind}", str(number), qos=1).wait_for_publish(TIMEOUT_S)
        device.disconnect()
        device.loop_stop()
        found = []
        for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=TIMEOUT_S):
            assert method is not None, f"{len(found)} of 200"
            assert method.routing_key == f"{topic}.{int(body)}.temp"
            found.append(int(body))
            if len(found) == 200:
                break
        assert sorted(found) == [number for number in range(300) if number % 3]
    assert len(group(broker, topic, 300)) == 300
