"""The devices: one MQTT client for each carrier at each airport, publishing its flights with QoS 1.

1. A device sends its flights in order and keeps at most `WINDOW` of them unacknowledged. A flight counts as published
   when its PUBACK is there.
2. All devices share one thread: each is a real paho client whose socket we poll, instead of one thread a client, which
   costs two thirds of the pace in switching between them.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable

import msgspec
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from gateway.demo.crew import Report
from gateway.demo.flights import Flight, by_device, load

WINDOW = 100
POLL_MS = 1_000
CONNECT_TIMEOUT_S = 30
REPORT_INTERVAL_S = 0.2


class Device:
    """One MQTT client with its flights still to send."""

    def __init__(self, name: str, flights: list[Flight], port: int) -> None:
        self.unacknowledged = 0
        self.acknowledged = 0
        self._flights = iter(flights)
        self._left = len(flights)
        self._encode: Callable[[Flight], bytes] = msgspec.json.encode
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name)
        self._client.max_inflight_messages_set(WINDOW)
        self._client.on_publish = self._on_publish
        self._client.connect("127.0.0.1", port)
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while not self._client.is_connected():
            self._client.loop(0.05)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no CONNACK for device {name} within {CONNECT_TIMEOUT_S} s")
        self.socket_number: int = self._client.socket().fileno()

    @property
    def done(self) -> bool:
        """Whether every flight is sent and acknowledged."""
        return not self._left and not self.unacknowledged

    @property
    def wants_to_write(self) -> bool:
        """Whether bytes wait for the socket."""
        return bool(self._client.want_write())

    def send(self) -> None:
        """Publish as many flights as the window has room for."""
        for _ in range(min(self._left, WINDOW - self.unacknowledged)):
            flight = next(self._flights)
            self._client.publish(flight.mqtt_topic, self._encode(flight), qos=1)
            self.unacknowledged += 1
            self._left -= 1

    def turn(self, events: int) -> None:
        """Do what `poll` found possible. Raises ConnectionError when the broker went away."""
        if events & select.POLLOUT:
            self._client.loop_write()
        if events & ~select.POLLOUT:
            self._client.loop_read()
        if not self._client.is_connected():
            raise ConnectionError("the broker closed the connection of a device")

    def keep_alive(self) -> None:
        """Ping when it is time."""
        self._client.loop_misc()

    def close(self) -> None:
        """Say goodbye."""
        self._client.disconnect()

    def _on_publish(self, *_: object) -> None:
        self.unacknowledged -= 1
        self.acknowledged += 1


def publish(report: Report, port: int, rows: int | None) -> None:
    """The part of the job: all devices publish all their flights. Reports how many are acknowledged so far."""
    own = by_device(load(rows))
    devices = {device.socket_number: device for device in (Device(name, own[name], port) for name in own)}
    all_devices = list(devices.values())
    poll = select.poll()
    reported_at = 0.0
    while devices:
        for number, device in devices.items():
            device.send()
            poll.register(number, select.POLLIN | (select.POLLOUT if device.wants_to_write else 0))
        for number, events in poll.poll(POLL_MS):
            devices[number].turn(events)
            if devices[number].done:
                poll.unregister(number)
                devices.pop(number).close()
        if not devices or time.monotonic() - reported_at > REPORT_INTERVAL_S:
            reported_at = time.monotonic()
            report(sum(device.acknowledged for device in all_devices))
            for device in devices.values():
                device.keep_alive()
