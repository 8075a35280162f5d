"""A broker in the process of a test, and the clients that tests use."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import kafka
import paho.mqtt.client as paho
import pika
import pytest

from gateway.config import ClusterConfig, Config, Listen
from gateway.errors import StartError
from millrace import BlockingConsumer
from millrace.testing import Broker


def amqp(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.url("amqp")))


def test_every_door_has_an_address_and_all_are_one_broker() -> None:
    with Broker(memory=True) as broker:
        assert sorted(broker.ports) == ["amqp", "kafka", "mqtt", "native"]
        assert broker.url("mqtt") == f"mqtt://{broker.address('mqtt')}" == f"mqtt://127.0.0.1:{broker.ports['mqtt']}"
        with amqp(broker) as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            channel.queue_bind("q", "amq.topic", "plant.#")
            device = paho.Client(paho.CallbackAPIVersion.VERSION2)
            device.connect("127.0.0.1", broker.ports["mqtt"])
            device.loop_start()
            device.publish("plant/7", b"21.5", qos=1).wait_for_publish(30)
            device.disconnect()
            device.loop_stop()
            assert channel.basic_get("q", auto_ack=True)[2] == b"21.5"
        producer = kafka.KafkaProducer(bootstrap_servers=broker.address("kafka"))
        producer.send("prices", b"5").get(30)
        producer.close()
        with BlockingConsumer(broker.address("native"), auto_offset_reset="earliest") as consumer:
            consumer.assign(["prices"])
            assert [record.value for record in consumer.fetch(timeout_ms=30_000)] == [b"5"]


@pytest.mark.parametrize("memory", [True, False])
def test_who_starts_it_again_finds_what_was_there(memory: bool, tmp_path: Path) -> None:
    broker = Broker("" if memory else str(tmp_path), memory=memory)
    for wanted in (None, b"kept"):
        with broker, amqp(broker) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            assert channel.basic_get("q", auto_ack=True)[2] == wanted
            channel.confirm_delivery()
            channel.basic_publish("", "q", b"kept", pika.BasicProperties(delivery_mode=2))
    broker.stop()  # it has


def test_they_are_as_many_as_wanted_and_leave_nothing_behind() -> None:
    threads = threading.active_count()
    with Broker(memory=True) as one, Broker(memory=True) as other:
        assert not {*one.ports.values()} & {*other.ports.values()}
        with pytest.raises(StartError, match="runs already"):
            one.start()
    assert threading.active_count() <= threads + 5, "those of trio for work that blocks"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", one.ports["native"]), 10)


def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    with Broker(memory=True) as one:
        taken = Config(listen=Listen(amqp=one.address("amqp"), mqtt="off", native="off"))
        second = Broker(str(tmp_path), config=taken)
        with pytest.raises(StartError, match="in use"):
            second.start()
    with second:
        assert list(second.ports) == ["amqp"]
        with pytest.raises(KeyError):
            second.url("kafka")
    with pytest.raises(ValueError, match="either data_dir or memory"):
        Broker()
    with pytest.raises(ValueError, match="either data_dir or memory"):
        Broker("there", memory=True)
    with pytest.raises(ValueError, match="needs a data_dir"):
        Broker(memory=True, config=Config(cluster=ClusterConfig(name="c", broker_id=1, etcd="127.0.0.1:1")))
