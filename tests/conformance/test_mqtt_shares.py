"""Shared subscriptions and options of MQTT 5 with the clients that devices use, against a real broker."""

from __future__ import annotations

import queue
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.conformance.test_mqtt_paho import HOST, WAIT_S, Device, connected
from tests.support import BrokerProcess


@contextmanager
def mosquitto_sub(broker: BrokerProcess, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running mosquitto_sub at QoS 1, which prints payloads."""
    command = ["mosquitto_sub", "-h", HOST, "-p", str(broker.mqtt_port), "-q", "1", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(("protocol", "count", "qos"), [(paho.MQTTv311, 10_000, 0), (paho.MQTTv5, 2_000, 1)])
def test_messages_wait_for_a_member_of_another_name(
    shared_broker: BrokerProcess, protocol: paho.MQTTProtocolVersion, count: int, qos: int
) -> None:
    topic = f"shares/waiting/{int(protocol)}"
    share = f"$share/workers/{topic}"
    for name in ("first", "second"):
        with connected(shared_broker, Device(name, protocol=protocol)) as member:
            assert member.subscribe((share, 1)) == [1]
    with connected(shared_broker) as publisher:
        for number in range(count):
            last = publisher.client.publish(topic, b"%d" % number, qos)
        last.wait_for_publish(WAIT_S)
        publisher.publish(topic, b"last")
    with connected(shared_broker, Device("", protocol=protocol)) as newcomer:
        newcomer.subscribe((share, 1))
        assert [newcomer.next()[1] for _ in range(count)] == [b"%d" % number for number in range(count)]
        assert newcomer.next()[1] == b"last"


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto's clients are not installed")
def test_two_kinds_of_clients_share_and_one_that_is_killed_leaves_its_part(shared_broker: BrokerProcess) -> None:
    topic, share = "shares/killed", "$share/mixed/shares/killed"
    with connected(shared_broker, Device("paho", manual_ack=True)) as holding, connected(shared_broker) as publisher:
        holding.subscribe((share, 1))
        for number in range(20):
            publisher.publish(topic, b"%d" % number)
        assert {holding.next()[1] for _ in range(20)} == {b"%d" % number for number in range(20)}
        with mosquitto_sub(shared_broker, "-t", share, "-C", "20") as other:
            socket = holding.client.socket()
            assert socket is not None
            socket.close()  # it goes without a word, and without a PUBACK
            assert other.stdout is not None
            assert [int(line) for line in other.stdout] == list(range(20))


def test_options_of_version_5(shared_broker: BrokerProcess) -> None:
    with connected(shared_broker, Device("options", protocol=paho.MQTTv5)) as device, connected(shared_broker) as other:
        for name, options, number in (
            ("options/#", SubscribeOptions(qos=1, noLocal=True), 11),
            ("options/a", SubscribeOptions(qos=0, noLocal=True, retainAsPublished=True), 268_435_455),
        ):
            properties = Properties(PacketTypes.SUBSCRIBE)
            properties.SubscriptionIdentifier = number
            device.client.subscribe(name, options=options, properties=properties)
            assert [code.value for code in device.grants.get(timeout=WAIT_S)] == [options.QoS]
        device.publish("options/a", b"own")
        properties = Properties(PacketTypes.PUBLISH)
        properties.MessageExpiryInterval = 100
        other.publish("options/a", b"1", retain=True)
        device.client.publish("options/b", b"own", 1, properties=properties).wait_for_publish(WAIT_S)
        other.publish("options/b", b"2")
        first, second = (device.messages.get(timeout=WAIT_S) for _ in range(2))
        assert (first.payload, first.qos, first.retain) == (b"1", 1, True)
        assert sorted(first.properties.SubscriptionIdentifier) == [11, 268_435_455]
        assert (second.payload, second.retain, second.properties.SubscriptionIdentifier) == (b"2", False, [11])
        with pytest.raises(queue.Empty):
            device.messages.get(timeout=0.05)
        other.publish("options/a", b"", retain=True)
