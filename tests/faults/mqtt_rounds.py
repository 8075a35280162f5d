"""Sessions of MQTT and SIGKILL: devices publish and subscribe at QoS 1 and 2, brokers and connections end at random.

    python -m tests.faults.mqtt_rounds --rounds 100
    python -m tests.faults.mqtt_rounds --rounds 20 --seed 1234
    python -m tests.faults.mqtt_rounds --rounds 20 --brokers 3      # `mqtt_cluster_rounds.py`

1. A publisher and a subscriber of each version (paho-mqtt, 3.1.1 and 5) have sessions that last. What a client knows of
   its session survives, as on a device that writes it down; its connection is cut in the middle of anything.
2. In a round the broker is killed, or connections are cut, or both; everybody comes back.
3. In the end each subscriber has each message at QoS 2 exactly once and in the order of publishing, and of those at
   QoS 1 none is missing, the first of each in that order. None was refused: there is room for all.
"""

from __future__ import annotations

import argparse
import random
import socket
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion, MessageState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.support import HOST, broker_process

DOORS = ("amqp", "mqtt", "native")
VERSIONS = {"311": MQTTv311, "5": MQTTv5}
PATIENCE_S = 60.0
_QUEUED_MAX = 300
_NOT_FOUND = 0x92
"""PUBCOMP for what was released before, as is right after a reconnect (MQTT 5, 3.7.2.1)."""
_SETTLED_S = 0.05


class SoundClient(Client):  # type: ignore[misc]
    """A client that may look for another broker when it comes back (`elsewhere`).

    paho forgets with its second attempt to reconnect in a row that a PUBREL is to be sent again, and publishes the
    message once more instead, under the id that it had released: no broker can know that.
    """

    elsewhere: Callable[[], tuple[str, int]] | None = None

    def reconnect(self) -> Any:
        """See `Client`."""
        if self.elsewhere is not None:
            self._host, self._port = self.elsewhere()
        return super().reconnect()

    def _messages_reconnect_reset_out(self) -> None:
        for message in self._out_messages.values():
            if message.state == MessageState.MQTT_MS_RESEND_PUBREL:
                message.state = MessageState.MQTT_MS_WAIT_FOR_PUBCOMP
        super()._messages_reconnect_reset_out()


class Device:
    """A client with a session that lasts, in a thread of its own."""

    def __init__(
        self, port: int, name: str, version: str, elsewhere: Callable[[], tuple[str, int]] | None = None
    ) -> None:
        self.name = name
        self.version = version
        self.sessions_lost = 0
        self.joined_s = 0.0
        self._joined = False
        options: dict[str, Any] = {"clean_session": False} if version == "311" else {}
        self.client = SoundClient(CallbackAPIVersion.VERSION2, name, protocol=VERSIONS[version], **options)
        self.client.reconnect_delay_set(0.02, 0.2)
        self.client.max_queued_messages_set(0)
        self.client.on_connect = self._connected
        self.ready = threading.Event()
        self.listen()
        self.client.connect_timeout = 2.0
        self.client.elsewhere = elsewhere
        if version == "311":
            self.client.connect(HOST, port, keepalive=30)
        else:
            lasting = Properties(PacketTypes.CONNECT)
            lasting.SessionExpiryInterval = 0xFFFFFFFF
            self.client.connect(HOST, port, keepalive=30, clean_start=False, properties=lasting)
        self.client.loop_start()

    def listen(self) -> None:
        """What it wants to be told of is said before it connects."""

    def _connected(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            return
        if self._joined and not flags.session_present:
            self.sessions_lost += 1
        self._joined = True
        self.joined()

    def joined(self) -> None:
        """It is connected."""
        self.joined_s = time.monotonic()
        self.ready.set()

    def cut(self) -> None:
        """End the transport, whatever is under way."""
        there = self.client.socket()
        if there is not None:
            with suppress(OSError):
                there.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """No more."""
        self.client.disconnect()
        self.client.loop_stop()


class Subscriber(Device):
    """Writes down what it gets, by topic."""

    def __init__(
        self, port: int, name: str, version: str, elsewhere: Callable[[], tuple[str, int]] | None = None
    ) -> None:
        self.found: dict[str, list[int]] = defaultdict(list)
        self._asked = False
        super().__init__(port, name, version, elsewhere)

    def listen(self) -> None:
        """See `Device`."""
        self.client.on_message = self._got
        self.client.on_subscribe = lambda *_: self.ready.set()

    def joined(self) -> None:
        """It subscribes once: a session that lasts knows."""
        if self._asked:
            return
        self._asked = True
        if self.version == "5":
            self.client.subscribe([("rounds/#", SubscribeOptions(qos=2))])
        else:
            self.client.subscribe("rounds/#", 2)

    def _got(self, client: Client, data: Any, message: MQTTMessage) -> None:
        self.found[message.topic].append(int(message.payload))


class Publisher(Device):
    """Publishes numbers, two topics in turn, until it is stopped."""

    def __init__(
        self, port: int, name: str, version: str, elsewhere: Callable[[], tuple[str, int]] | None = None
    ) -> None:
        super().__init__(port, name, version, elsewhere)
        self.sent = 0
        self._acknowledged = 0
        self.refused: list[str] = []
        self._ended = threading.Event()
        self.client.on_publish = self._published
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _published(self, client: Client, data: Any, packet_id: int, reason: Any, properties: Any) -> None:
        if reason.is_failure and reason.value != _NOT_FOUND:
            self.refused.append(f"{packet_id}: {reason}")
        self._acknowledged += 1

    def _publish(self) -> None:
        while not self._ended.wait(0.01):
            # paho sends what it is given before CONNACK at once, ahead of what it has to send again.
            if time.monotonic() - self.joined_s < _SETTLED_S or not self.client.is_connected():
                continue
            if 2 * self.sent - self._acknowledged < _QUEUED_MAX:
                for _ in range(10):
                    for qos in (1, 2):
                        self.client.publish(f"rounds/{qos}/{self.version}", b"%d" % self.sent, qos)
                    self.sent += 1

    def finish(self) -> None:
        """Have everything acknowledged. Raises AssertionError."""
        self._ended.set()
        self._thread.join()
        deadline = time.monotonic() + PATIENCE_S
        while self._acknowledged < 2 * self.sent:
            assert time.monotonic() < deadline, f"{2 * self.sent - self._acknowledged} publishes are not acknowledged"
            time.sleep(0.05)

    def stop(self) -> None:
        """No more."""
        self._ended.set()
        self._thread.join()
        super().stop()


def check(subscriber: Subscriber, publishers: list[Publisher], *, final: bool) -> None:
    """What one has so far, or all of it. Raises AssertionError."""
    for publisher in publishers:
        who = f"{subscriber.name}, from {publisher.name}"
        assert not publisher.refused, f"{publisher.name} was refused {publisher.refused}"
        for qos in (1, 2):
            numbers = list(subscriber.found[f"rounds/{qos}/{publisher.version}"])
            found = numbers if qos == 2 else list(dict.fromkeys(numbers))
            wrong = [(number, there) for number, there in enumerate(found) if number != there]
            assert not wrong, f"{who}: at QoS {qos} {len(wrong)} are out of place, the first {wrong[:5]}"
            assert not final or len(found) == publisher.sent, f"{who}: {len(found)} of {publisher.sent} at QoS {qos}"


def report(subscribers: list[Subscriber]) -> None:
    """Print what went wrong."""
    for one in subscribers:
        for topic, numbers in one.found.items():
            late = [(at, n) for at, n in enumerate(numbers) if at and n <= numbers[at - 1]]
            print(one.name, topic, len(numbers), "going back:", late[:5], flush=True)


def run(rounds: int, seed: int) -> None:
    """Kill `rounds` times. Raises AssertionError."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, broker_process(Path(name) / "data", doors=DOORS) as broker:
        port = broker.mqtt_port
        subscribers = [Subscriber(port, f"subscriber-{version}", version) for version in VERSIONS]
        publishers: list[Publisher] = []
        try:
            for subscriber in subscribers:
                assert subscriber.ready.wait(PATIENCE_S), f"{subscriber.name} is not subscribed"
            publishers += [Publisher(port, f"publisher-{version}", version) for version in VERSIONS]
            for number in range(rounds):
                time.sleep(dice.uniform(0.05, 1.0))
                killed = []
                for device in (*subscribers, *publishers):
                    if dice.random() < 0.3:
                        device.cut()
                        killed.append(device.name)
                if dice.random() < 0.6 or not killed:
                    broker.kill9()
                    killed.append("the broker")
                    broker.start_again()
                for subscriber in subscribers:
                    check(subscriber, publishers, final=False)
                print(f"round {number}: {', '.join(killed)}; {[one.sent for one in publishers]} sent", flush=True)
            for publisher in publishers:
                publisher.finish()
            until_complete(subscribers, publishers)
            for subscriber in subscribers:
                check(subscriber, publishers, final=True)
            lost = [one.name for one in (*subscribers, *publishers) if one.sessions_lost]
            assert not lost, f"sessions were lost: {lost}"
            print(
                f"{sum(2 * one.sent for one in publishers)} messages are with everybody as they should be", flush=True
            )
        except BaseException:
            report(subscribers)
            print(broker.log()[-5000:], flush=True)
            raise
        finally:
            for device in (*subscribers, *publishers):
                device.stop()


def until_complete(subscribers: list[Subscriber], publishers: list[Publisher]) -> None:
    """Wait as long as more comes."""
    before, deadline = -1, 0.0
    wanted = 2 * sum(one.sent for one in publishers) * len(subscribers)
    while True:
        there = sum(len(set(numbers)) for one in subscribers for numbers in list(one.found.values()))
        if there >= wanted:
            time.sleep(0.3)  # anything that is there twice would come now
            return
        if there > before:
            before, deadline = there, time.monotonic() + PATIENCE_S / 4
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--pauses", action="store_true", help="with several brokers: they stand still for seconds, too")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    if options.brokers == 1:
        run(options.rounds, options.seed)
    else:
        from tests.faults import mqtt_cluster_rounds

        mqtt_cluster_rounds.run(options.rounds, options.seed, options.brokers, pauses=options.pauses)


if __name__ == "__main__":
    main()
