"""A client's bytes, and a connection in memory to feed them to."""

from __future__ import annotations

from typing import Any

from protocols.amqp import methods
from protocols.amqp.config import AmqpConfig
from protocols.amqp.connection import PROTOCOL_HEADER, AmqpConnection, Event
from protocols.amqp.deliveries import content, method_frame
from protocols.amqp.methods import Method, decode_method
from protocols.amqp.properties import BasicProperties, decode_properties, encode_properties

PERSISTENT = encode_properties(BasicProperties(delivery_mode=2))
CAPABILITIES = {"authentication_failure_close": True, "consumer_cancel_notify": True}
START_OK = methods.ConnectionStartOk({"capabilities": CAPABILITIES}, "PLAIN", b"\0guest\0guest", "en_US")
TUNE_OK = methods.ConnectionTuneOk(2047, 131072, 60)
OPEN = methods.ConnectionOpen("/")


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    """Any frame, right or wrong."""
    return bytes((kind,)) + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + end


def call(channel: int, *calls: Method) -> bytes:
    """Method frames."""
    return b"".join(method_frame(channel, method.encode()) for method in calls)


def publish(
    key: str,
    body: bytes,
    *,
    channel: int = 1,
    exchange: str = "",
    raw: bytes = PERSISTENT,
    mandatory: bool = False,
    frame_bytes_max: int = 131072,
) -> bytes:
    """A publish with its content."""
    method = methods.BasicPublish(0, exchange, key, mandatory)
    return content(channel, method.encode(), raw, body, frame_bytes_max)


HANDSHAKE = PROTOCOL_HEADER + call(0, START_OK, TUNE_OK, OPEN)


def check(raw: bytes) -> bytes:
    """Property bytes stand for themselves once they are found well-formed."""
    decode_properties(raw)
    return raw


class Wire:
    """A connection and what it sent."""

    def __init__(self, config: AmqpConfig | None = None) -> None:
        self.sent = bytearray()
        self.connection = AmqpConnection(
            config or AmqpConfig(), self.sent.extend, check, server_properties={}, mechanisms=b"PLAIN"
        )

    @classmethod
    def opened(cls, config: AmqpConfig | None = None, channels: int = 1) -> Wire:
        """Past the handshake, with some channels open."""
        wire = cls(config)
        wire.receive(HANDSHAKE)
        for channel in range(1, channels + 1):
            wire.receive(call(channel, methods.ChannelOpen()))
        wire.sent.clear()
        return wire

    def receive(self, data: bytes) -> list[Event]:
        """What one read leads to."""
        return self.connection.receive_data(data)

    def receive_in(self, data: bytes, size: int) -> list[Event]:
        """The same in reads of `size` bytes."""
        return [event for at in range(0, len(data), size) for event in self.receive(data[at : at + size])]

    def answers(self) -> list[tuple[int, Method]]:
        """The methods sent so far."""
        return [(channel, method) for channel, method in sent_methods(bytes(self.sent)) if method is not None]


def frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """Cut into (type, channel, payload); everything must be whole."""
    found = []
    pos = 0
    while pos < len(data):
        size = int.from_bytes(data[pos + 3 : pos + 7], "big")
        assert data[pos + 7 + size] == 0xCE
        found.append((data[pos], int.from_bytes(data[pos + 1 : pos + 3], "big"), data[pos + 7 : pos + 7 + size]))
        pos += 8 + size
    return found


def sent_methods(data: bytes) -> list[tuple[int, Method | None]]:
    """The methods among the frames of `data`."""
    return [(channel, decode_method(payload)) for kind, channel, payload in frames(data) if kind == 1]


def contents(data: bytes) -> list[tuple[int, Any, bytes, bytes]]:
    """(channel, method, property bytes, body) of every content, and (channel, method, b"", b"") of other methods."""
    found: list[tuple[int, Any, bytes, bytes]] = []
    missing = 0
    for kind, channel, payload in frames(data):
        if kind == 1:
            assert not missing
            found.append((channel, decode_method(payload), b"", b""))
        elif kind == 2:
            assert payload[:4] == b"\0\x3c\0\0"
            assert found[-1][0] == channel
            missing = int.from_bytes(payload[4:12], "big")
            found[-1] = (*found[-1][:2], payload[12:], b"")
        elif kind == 3:
            assert 0 < len(payload) <= missing
            assert found[-1][0] == channel
            missing -= len(payload)
            found[-1] = (*found[-1][:3], found[-1][3] + payload)
    assert not missing
    return found
