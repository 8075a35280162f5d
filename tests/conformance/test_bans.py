"""Clients of all doors are closed when they are banned, and told so when they come back, also after a restart."""

from __future__ import annotations

import queue
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ConnectionClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError

from millrace import BlockingClient, MillraceError
from tests.support import BrokerProcess, broker_process
from tests.support.web import Api, ApiError

confluent_kafka = pytest.importorskip("confluent_kafka")

HOST = "127.0.0.1"
DOORS = ("amqp", "mqtt", "native", "kafka")
CONNECTION_FORCED = 320
ADMINISTRATIVE_ACTION, BANNED = 0x98, 0x8A
NOT_AUTHORIZED = 0x87
"""What paho makes of the 5 that MQTT 3.1.1 has for it."""
PATIENCE_S = 10.0


def operator(broker: BrokerProcess) -> BlockingClient:
    return BlockingClient(f"{HOST}:{broker.native_port}", credentials=("guest", "guest"))


def amqp(broker: BrokerProcess, name: str, user: str = "ada") -> BlockingConnection:
    terms = pika.ConnectionParameters(
        HOST, broker.amqp_port, "/", pika.PlainCredentials(user, "x"), client_properties={"connection_name": name}
    )
    return BlockingConnection(terms)


class Device:
    """A client of MQTT, and the codes that it was told."""

    def __init__(self, broker: BrokerProcess, name: str, version: int = paho.MQTTv5) -> None:
        self.connected: queue.Queue[int] = queue.Queue()
        self.over: queue.Queue[int] = queue.Queue()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=version)  # type: ignore[arg-type]
        self._client.on_connect = lambda *given: self.connected.put(given[3].value)
        self._client.on_disconnect = lambda *given: self.over.put(given[3].value)
        self._client.username_pw_set("ada", "x")
        self._client.reconnect_delay_set(60)
        self._client.connect(HOST, broker.mqtt_port)
        self._client.loop_start()
        self.answer = self.connected.get(timeout=PATIENCE_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def kafka_error(broker: BrokerProcess, name: str) -> Any:
    """What a client of Kafka that logs in is told; None if nothing is wrong."""
    errors: queue.Queue[Any] = queue.Queue()
    terms: dict[str, Any] = {
        "bootstrap.servers": f"{HOST}:{broker.ports['kafka']}", "client.id": name,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": "x", "error_cb": errors.put,
        "log_level": 0,
    }  # fmt: skip
    client = confluent_kafka.Producer(terms)
    for _ in range(100):
        client.poll(0.05)
        if not errors.empty():
            return errors.get()
        with suppress(confluent_kafka.KafkaException):  # in time is not what this is about
            if client.list_topics(timeout=0.5).brokers:
                return None
    raise AssertionError("neither answer nor error")


def test_bans_are_kept_at_all_doors(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=DOORS) as broker:
        with operator(broker) as client:
            client.administer("users.add", name="ada", password="x")
            client.administer("permissions.set", vhost="/", name="ada", configure=".*", write=".*", read=".*")
            device, other = Device(broker, "device"), Device(broker, "other")
            worker = amqp(broker, "worker")
            assert kafka_error(broker, "reader") is None
            for name in ("device", "worker", "reader"):
                client.administer("bans.add", kind="client_id", value=name, reason="enough")
            assert device.over.get(timeout=PATIENCE_S) == ADMINISTRATIVE_ACTION
            device.close()
            with pytest.raises(ConnectionClosedByBroker) as forced:
                worker.process_data_events(PATIENCE_S)
            assert forced.value.reply_code == CONNECTION_FORCED
            assert other.over.empty()
            other.close()
        broker.restart()
        check_refused(broker)
        with operator(broker) as client:
            for name in ("device", "worker", "reader"):
                client.administer("bans.delete", kind="client_id", value=name)
            device = Device(broker, "device")
            assert device.answer == 0
            device.close()
            amqp(broker, "worker").close()
            client.administer("bans.add", kind="user", value="ada")
            with (
                pytest.raises(MillraceError, match="user ada is banned"),
                BlockingClient(f"{HOST}:{broker.native_port}", credentials=("ada", "x")) as banned,
            ):
                banned.administer("queues.ends", name="q")


def check_refused(broker: BrokerProcess) -> None:
    """They are told so, each in the words of its protocol."""
    for version, code in ((paho.MQTTv5, BANNED), (paho.MQTTv311, NOT_AUTHORIZED)):
        device = Device(broker, "device", version)
        assert device.answer == code
        device.close()
    with pytest.raises(
        ProbableAccessDeniedError, match=r"\(403\) 'ACCESS_REFUSED - client_id worker is banned: enough"
    ):
        amqp(broker, "worker")
    assert kafka_error(broker, "reader").code() == confluent_kafka.KafkaError._AUTHENTICATION


def test_from_a_banned_address_no_password_is_looked_at(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=(*DOORS, "http")) as broker:
        with operator(broker) as client, suppress(MillraceError):  # it is closed itself
            client.administer("bans.add", kind="address", value="127.0.0.0/8", reason="enough", force=True)
        for version, code in ((paho.MQTTv5, BANNED), (paho.MQTTv311, NOT_AUTHORIZED)):
            device = Device(broker, "device", version)
            assert device.answer == code
            device.close()
        said = "address 127.0.0.0/8 is banned: enough"
        with pytest.raises(ProbableAuthenticationError, match=said):
            amqp(broker, "worker", "nobody")
        with pytest.raises(MillraceError, match=said), operator(broker) as client:
            client.administer("queues.list")
        refused = kafka_error(broker, "reader")
        assert refused.code() == confluent_kafka.KafkaError._AUTHENTICATION
        assert said in refused.str()
        with pytest.raises(ApiError, match=f"403 ACCESS_REFUSED: {said}"):
            Api(broker.ports["http"], "nobody", "wrong")("whoami")
        figures = urllib.request.Request(f"http://{HOST}:{broker.ports['http']}/metrics")
        figures.add_header("Authorization", "Basic bm9ib2R5Ondyb25n")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(figures, timeout=PATIENCE_S)
