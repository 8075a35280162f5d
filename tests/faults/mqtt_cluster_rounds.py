"""`mqtt_rounds` with several brokers: devices come back to any of them while brokers are killed.

1. Publishers and subscribers have sessions that last, and look for another broker each time they come back, after a
   kill or a cut: mostly before the broker that they were connected to knows that they are gone.
2. In each round devices with a will are connected to the broker that is killed; some come back to another broker before
   their delay is over. Each will of the others comes once, and none of those who came back.
3. What was retained and acknowledged is known to whoever asks any broker, the last of each topic.
4. In the end QoS 1 and 2 are as with one broker.
5. With `pauses` brokers, one or all of them, stand still for up to six seconds as well, longer than their leases; then
   there are no wills.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.faults.mqtt_rounds import (
    PATIENCE_S,
    VERSIONS,
    Publisher,
    Subscriber,
    check,
    report,
    until_complete,
)
from tests.support.cluster import ClusterProcesses, cluster_processes

_WILLS = 3
_DELAY_S = 2
_SETTLED_S = 0.3
_SETTINGS = "[engine]\nwill_grace_ms = 100\n"


class Mortal:
    """A device with a will, at one broker."""

    def __init__(self, cluster: ClusterProcesses, number: int, name: str, *, delay_s: int, will: bool = True) -> None:
        self._connected: queue.Queue[bool] = queue.Queue()
        self.client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTv5)
        if will:
            told = Properties(PacketTypes.WILLMESSAGE)
            told.WillDelayInterval = delay_s
            self.client.will_set(f"wills/{name}", name.encode(), 2, properties=told)
        self.client.on_connect = lambda *given: self._connected.put(not given[3].is_failure)
        self.client.reconnect_delay_set(600)
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = 3600
        broker = cluster.brokers[number]
        self.client.connect(broker.host, broker.mqtt_port, clean_start=False, properties=lasting)
        self.client.loop_start()
        assert self._connected.get(timeout=PATIENCE_S), f"{name} is refused"

    def forget(self) -> None:
        """Nothing more of the device: its broker is gone."""
        self.client.loop_stop()

    def stop(self) -> None:
        """It leaves."""
        self.client.disconnect()
        self.client.loop_stop()


class Watcher(Subscriber):
    """Counts wills."""

    def __init__(self, *given: Any) -> None:
        self.wills: Counter[str] = Counter()
        super().__init__(*given)

    def joined(self) -> None:
        """It subscribes once."""
        if not self._asked:
            self._asked = True
            self.client.subscribe("wills/#", 2)

    def _got(self, client: Client, data: Any, message: MQTTMessage) -> None:
        self.wills[message.payload.decode()] += 1


def _publish_retained(cluster: ClusterProcesses, number: int, topic: str, body: bytes) -> None:
    one = Mortal(cluster, number, "retainer", delay_s=0, will=False)
    one.client.publish(topic, body, 1, retain=True).wait_for_publish(PATIENCE_S)
    one.stop()


def _retained_at(cluster: ClusterProcesses, number: int, count: int) -> dict[str, bytes]:
    """What a broker gives out, at once, to who subscribes: so many messages, and what comes a moment later."""
    found: queue.Queue[MQTTMessage] = queue.Queue()
    one = Mortal(cluster, number, f"asker-{number}", delay_s=0, will=False)
    one.client.on_message = lambda *given: found.put(given[2])
    one.client.subscribe("retained/#", 1)
    there: dict[str, bytes] = {}
    try:
        while True:
            message = found.get(timeout=_SETTLED_S if len(there) >= count else PATIENCE_S)
            there[message.topic] = message.payload
    except queue.Empty:
        pass
    one.client.unsubscribe("retained/#")
    one.stop()
    return there


class _Round:
    """What each round needs."""

    def __init__(self, cluster: ClusterProcesses, dice: random.Random, watcher: Watcher) -> None:
        self.cluster = cluster
        self.dice = dice
        self.watcher = watcher
        self.wanted: set[str] = set()
        self.unwanted: set[str] = set()
        self.retained: dict[str, bytes] = {}

    def kill(self, number: int, victim: int) -> None:
        """Kill a broker that has devices with wills, and start it again."""
        others = [one for one in self.cluster.brokers if one != victim]
        mortals = [
            Mortal(self.cluster, victim, f"mortal-{number}-{at}", delay_s=_DELAY_S * (at % 2)) for at in range(_WILLS)
        ]
        name = f"mortal-{number}-back"
        back = Mortal(self.cluster, victim, name, delay_s=60)
        topic = f"retained/{self.dice.randrange(3)}"
        _publish_retained(self.cluster, self.dice.choice(others), topic, b"%d" % number)
        self.retained[topic] = b"%d" % number
        self.cluster.kill9(victim)
        returned = Mortal(self.cluster, self.dice.choice(others), name, delay_s=0, will=False)
        self.wanted.update(f"mortal-{number}-{at}" for at in range(_WILLS))
        self.unwanted.add(name)
        for one in (*mortals, back):
            one.forget()
        if self.dice.random() < 0.5:
            time.sleep(self.dice.uniform(0, 4))
        self.cluster.brokers[victim].start_again()
        self.cluster.until_whole(timeout_s=PATIENCE_S)
        returned.stop()

    def check(self, *, final: bool) -> None:
        """Raises AssertionError."""
        wills = dict(self.watcher.wills)
        twice = {name for name, count in wills.items() if count > 1}
        assert not twice, f"wills came twice: {twice}"
        assert not wills.keys() & self.unwanted, f"wills of who came back: {wills.keys() & self.unwanted}"
        if final:
            assert wills.keys() == self.wanted, f"wills are missing: {self.wanted - wills.keys()}"
        number = self.dice.choice(list(self.cluster.brokers))
        there = _retained_at(self.cluster, number, len(self.retained))
        assert there == self.retained, f"retained messages at broker {number} are {there}, not {self.retained}"


def _pause(cluster: ClusterProcesses, dice: random.Random) -> str:
    """Have some brokers, or all, stand still."""
    numbers = list(cluster.brokers)
    if dice.random() < 0.4:
        numbers = dice.sample(numbers, dice.randint(1, len(numbers)))
    for number in numbers:
        os.kill(cluster.brokers[number].pid, signal.SIGSTOP)
    time.sleep(dice.uniform(1, 6))
    for number in dice.sample(numbers, len(numbers)):
        os.kill(cluster.brokers[number].pid, signal.SIGCONT)
        time.sleep(dice.uniform(0, 0.5))
    return f"{len(numbers)} brokers stood still"


def run(rounds: int, seed: int, brokers: int = 3, *, pauses: bool = False) -> None:
    """Kill and cut `rounds` times. Raises AssertionError."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        settings = Path(name) / "millrace.toml"
        settings.write_text(_SETTINGS)
        arguments = ("--config", str(settings))
        with cluster_processes(Path(name) / "cluster", brokers, relayed=False, arguments=arguments) as cluster:
            cluster.until_whole()
            _run(cluster, dice, rounds, pauses=pauses)


def _run(cluster: ClusterProcesses, dice: random.Random, rounds: int, *, pauses: bool) -> None:
    def anywhere() -> tuple[str, int]:
        broker = random.choice([one for one in cluster.brokers.values() if one.running] or [cluster.brokers[1]])
        return broker.host, broker.mqtt_port

    port = cluster.brokers[1].mqtt_port
    subscribers = [Subscriber(port, f"subscriber-{version}", version, anywhere) for version in VERSIONS]
    watcher = Watcher(port, "watcher", "5", anywhere)
    publishers: list[Publisher] = []
    try:
        for subscriber in (*subscribers, watcher):
            assert subscriber.ready.wait(PATIENCE_S), f"{subscriber.name} is not subscribed"
        time.sleep(0.5)
        publishers += [Publisher(port, f"publisher-{version}", version, anywhere) for version in VERSIONS]
        devices = [*subscribers, *publishers, watcher]
        world = _Round(cluster, dice, watcher)
        for number in range(rounds):
            time.sleep(dice.uniform(0.05, 1.0))
            happened = []
            for device in devices:
                if dice.random() < 0.3:
                    device.cut()
                    happened.append(device.name)
            if pauses and dice.random() < 0.7:
                happened.append(_pause(cluster, dice))
            if dice.random() < (0.3 if pauses else 0.6) or not happened:
                victim = dice.choice(list(cluster.brokers))
                if pauses:
                    cluster.kill9(victim)
                    cluster.brokers[victim].start_again()
                else:
                    world.kill(number, victim)
                happened.append(f"broker {victim}")
            for subscriber in subscribers:
                check(subscriber, publishers, final=False)
            if not pauses:
                world.check(final=False)
            print(f"round {number}: {', '.join(happened)}; {[one.sent for one in publishers]} sent", flush=True)
        for publisher in publishers:
            publisher.finish()
        until_complete(subscribers, publishers)
        for subscriber in subscribers:
            check(subscriber, publishers, final=True)
        deadline = time.monotonic() + PATIENCE_S / 2
        while watcher.wills.keys() != world.wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        world.check(final=True)
        lost = [one.name for one in devices if one.sessions_lost]
        assert not lost, f"sessions were lost: {lost}"
        print(f"{sum(2 * one.sent for one in publishers)} messages are with everybody as they should be, ", end="")
        print(f"{len(world.wanted)} wills came once", flush=True)
    except BaseException:
        report(subscribers)
        for number, broker in cluster.brokers.items():
            print(f"--- broker {number}\n{broker.log()[-3000:]}", flush=True)
        raise
    finally:
        for device in (*subscribers, *publishers, watcher):
            device.stop()
