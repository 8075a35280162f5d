"""Clients of all kinds say what they are made with, and operators see it."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pika
import pytest
from kafka import KafkaAdminClient
from paho.mqtt.client import Client as MqttClient
from paho.mqtt.enums import CallbackAPIVersion
from pika.adapters.blocking_connection import BlockingConnection

from protocols.native.clients.blocking import BlockingClient
from tests.support import broker_process

DOORS = ("amqp", "mqtt", "native", "kafka")
NAMES = {"pika", "odd", "long", "confluent", "logged in", "kafka-python", "device"}


def test_operators_see_what_clients_are_made_with(tmp_path: Path) -> None:
    admin = pytest.importorskip("confluent_kafka.admin")
    with (
        broker_process(tmp_path / "data", doors=DOORS) as broker,
        BlockingClient(f"127.0.0.1:{broker.native_port}") as operator,
    ):

        def amqp(name: str, **said: Any) -> BlockingConnection:
            properties = {"connection_name": name, **said}
            return BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", broker.amqp_port, client_properties=properties)
            )

        server = f"127.0.0.1:{broker.ports['kafka']}"
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        login |= {"sasl.username": "guest", "sasl.password": "guest"}
        confluent = admin.AdminClient({"bootstrap.servers": server, "client.id": "confluent"})
        logged_in = admin.AdminClient({"bootstrap.servers": server, "client.id": "logged in", **login})
        kafka_python = KafkaAdminClient(bootstrap_servers=server, client_id="kafka-python")
        device = MqttClient(CallbackAPIVersion.VERSION2, "device")
        device.connect("127.0.0.1", broker.mqtt_port)
        device.loop_start()
        with amqp("pika"), amqp("odd", product=7, version=["x"]), amqp("long", product="x" * 5000, version="2"):
            found: dict[str, str] = {}
            deadline = time.monotonic() + 10
            while not found.keys() >= NAMES and time.monotonic() < deadline:  # Kafka's clients connect as they like
                for one in confluent, logged_in:
                    one.list_topics(timeout=10)
                kafka_python.list_topics()
                answer = operator.administer("connections.list")
                rows = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
                found |= {row["name"]: row["library"] for row in rows}
        device.loop_stop()
        kafka_python.close()
    assert found["pika"] == f"Pika Python Client Library {version('pika')}"
    assert found["odd"] == found["device"] == ""
    assert found["long"] == "x" * 100
    assert found["confluent"].split()[0] == found["logged in"].split()[0] == "confluent-kafka-python"
    assert found["kafka-python"] == f"kafka-python {version('kafka-python')}"
