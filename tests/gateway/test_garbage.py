"""What a connection leaves behind: nothing that somebody has to look for. Thousands that come again and again would
keep gigabytes until the collector looks at what has lived for long, and whoever is served waits for it then.
"""

from __future__ import annotations

import gc
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kafka
import paho.mqtt.client as paho
import pika
import trio
import trustme
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from gateway.config import Config, Limits, Listen, Tls
from gateway.connection import Connection
from gateway.outbox import SocketOutbox
from gateway.server import serve
from millrace import BlockingConsumer, BlockingProducer
from protocols.amqp.adapter import AmqpAdapter
from protocols.kafka.adapter import KafkaAdapter
from protocols.mqtt.adapter import MqttAdapter
from protocols.native.adapter import NativeAdapter
from routing.config import BrokerConfig
from routing.queues.queue import Queue
from routing.session import Session
from tests.conformance.kafka.checks import until

HOST, ANY = "127.0.0.1", "127.0.0.1:0"
OURS = (Connection, SocketOutbox, AmqpAdapter, KafkaAdapter, MqttAdapter, NativeAdapter, Session, Queue)


def amqp(port: int, transacted: bool = False) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(HOST, port)) as connection:
        channel = connection.channel()
        if transacted:
            channel.tx_select()
        else:
            channel.confirm_delivery()
        queue = channel.queue_declare("", exclusive=True, arguments={"x-max-priority": 3}).method.queue
        channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2, expiration="60000"))
        channel.basic_publish("", queue, b"x")
        if transacted:
            channel.tx_commit()
        assert channel.basic_get(queue)[2] == b"x"
        channel.basic_consume(queue, lambda *arguments: None)
        connection.process_data_events(0.1)


def mqtt(port: int, transport: Any = "tcp", context: ssl.SSLContext | None = None, expiry_s: int = 0) -> None:
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2, client_id=f"{transport}{expiry_s}", transport=transport, protocol=paho.MQTTv5
    )
    if context is not None:
        client.tls_set_context(context)
    client.will_set("will", b"x", qos=1, retain=True)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = expiry_s
    subscribed, come = list[object](), list[object]()
    client.on_subscribe = lambda *arguments: subscribed.append(arguments)
    client.on_message = lambda *arguments: come.append(arguments)
    client.connect(HOST, port, properties=properties, clean_start=not expiry_s)
    client.loop_start()
    client.subscribe([("a/#", 2), ("$share/g/b", 1)])
    until(lambda: bool(subscribed))
    for qos in (0, 1, 2):
        client.publish("a/b", b"x", qos=qos, retain=True).wait_for_publish(10)
    until(lambda: len(come) >= 3)
    client.disconnect()
    client.loop_stop()


def kafkas(port: int) -> None:
    servers = f"{HOST}:{port}"
    producer = kafka.KafkaProducer(bootstrap_servers=servers)
    producer.send("t", b"x").get(10)
    producer.close()
    consumer = kafka.KafkaConsumer("t", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest")
    until(lambda: bool(consumer.poll(500)))
    consumer.close()


def native(port: int) -> None:
    server = f"{HOST}:{port}"
    with BlockingProducer(server) as producer:
        producer.send("t", b"x")
        producer.flush()
    with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign("t")
        assert next(iter(consumer)).value == b"x"


@contextmanager
def garbage(found: list[object]) -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [one for one in gc.garbage if issubclass(type(one), OURS)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_connections_leave_no_garbage(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "cert.pem"))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    doors = {"amqp": ANY, "mqtt": ANY, "native": ANY, "kafka": ANY, "websocket": ANY, "mqtts": ANY}
    settings = Config(
        data_dir=str(tmp_path / "data"),
        listen=Listen(**doors),
        tls=Tls(cert=str(tmp_path / "cert.pem")),
        limits=Limits(close_linger_ms=200),
        engine=BrokerConfig(group_initial_delay_ms=0),
    )
    async with serve(settings) as server:
        ports = server.ports
        works: list[Callable[[], None]] = [
            lambda: amqp(ports["amqp"]),
            lambda: amqp(ports["amqp"], transacted=True),
            lambda: mqtt(ports["mqtt"]),
            lambda: mqtt(ports["mqtt"], expiry_s=1000),
            lambda: mqtt(ports["websocket"], "websockets"),
            lambda: mqtt(ports["mqtts"], context=context),
            lambda: kafkas(ports["kafka"]),
            lambda: native(ports["native"]),
        ]
        for work in works:
            await trio.to_thread.run_sync(work)  # what is made once
            left: list[object] = []
            with garbage(left):
                await trio.to_thread.run_sync(work)
                with trio.fail_after(10):
                    while server.broker.clients:
                        await trio.sleep(0.01)
                await trio.sleep(0.5)  # `close_linger_ms`, and the tasks end
            assert not left, f"{work}: {left}"
