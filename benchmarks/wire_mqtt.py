"""The client side of MQTT 3.1.1 and 5 that the load generator needs, and no more.

Messages of version 5 have a content type, a user property and a topic alias: each topic is said once, in the tape's
prelude, and left out from then on.
"""

from __future__ import annotations

import argparse
import os
import struct
from array import array
from collections.abc import Callable, Generator, Sequence

from benchmarks.wire_proto import TAPE_SIZE, VARIED_MESSAGES, VARIETY, BrokerError, Conn, Plan, Step, Tape, serial


def packet(kind: int, payload: bytes) -> bytes:
    """An MQTT control packet, with its variable-length size field."""
    size, field = len(payload), b""
    while size > 127:
        field += bytes([size & 127 | 128])
        size >>= 7
    return bytes([kind]) + field + bytes([size]) + payload


def utf8(text: str) -> bytes:
    """MQTT string."""
    return struct.pack(">H", len(text)) + text.encode()


PROPERTIES = b"\x03" + utf8("application/json") + b"\x26" + utf8("site") + utf8("plant-7")
"""Content type and user property of each message of version 5."""

PUBREC, PUBREL, PUBCOMP = 0x50, 0x62, 0x70


class Mqtt(Conn):
    """MQTT 3.1.1, or 5 where the options say so."""

    trailer = 0
    head = 2

    def handshake(self) -> Generator[Step, bytes, None]:
        version = getattr(self.options, "version", 4)
        self.client_id = f"bench{os.getpid()}-{next(serial)}"
        reply = yield self.hello(version, clean=not self.options.persistent_session), 0x20
        if reply[1]:
            raise BrokerError(f"CONNACK refused with code {reply[1]}")
        self.alias_max = 0
        if version == 5:
            size = reply[2] if reply[2] < 128 else (reply[2] & 127) + (reply[3] << 7)
            self.alias_max = alias_max_of(reply[-size:] if size else b"")
        yield None

    def hello(self, version: int, *, clean: bool) -> bytes:
        """CONNECT; a session that is not clean lasts an hour in version 5."""
        properties = b""
        if version == 5:
            properties = b"\0" if clean else b"\x05\x11" + struct.pack(">I", 3600)
        flags = bytes([version, 2 if clean else 0])
        return packet(0x10, utf8("MQTT") + flags + b"\0\0" + properties + utf8(self.client_id))

    def forget(self) -> None:
        """End the connection, and the session with it."""
        version = getattr(self.options, "version", 4)
        self.sock.close()
        super().__init__(self.options)
        self.call(self.hello(version, clean=True), 0x20)
        self.sock.sendall(b"\xe0\0")

    def read_reply(self) -> tuple[int, bytes]:
        kind, size, shift = self.read(1)[0], 0, 0
        while True:
            byte = self.read(1)[0]
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return kind, self.read(size)

    def publisher(self, plan: Plan, name: str) -> Tape:
        """What to publish; a tape with packet ids has all of them."""
        self.confirmed, self.rest = 0, b""
        topics = VARIETY if plan.varied else 1
        if plan.version == 5 and self.alias_max < topics:
            raise BrokerError(f"the broker takes {self.alias_max} topic aliases, {topics} are needed")
        prelude = [message(plan, name, index, first=True) for index in range(topics)] if plan.version == 5 else []
        if plan.reliable or plan.varied:
            return Tape([message(plan, name, index) for index in range(VARIED_MESSAGES)], prelude)
        one = message(plan, name, 0)
        return Tape([one] * max(2, TAPE_SIZE // len(one)), prelude)

    def acknowledged(self, data: bytes) -> int:
        """Feed bytes the broker sent to a publisher; how many messages it has acknowledged."""
        data = self.rest + data
        count = len(data) // 4
        self.rest = data[count * 4 :]
        kinds = data[: count * 4 : 4]
        done = kinds.count(0x40) + kinds.count(PUBCOMP)
        if done < count:  # QoS 2: the second half
            received = [unit for unit in array("I", data[: count * 4]) if unit & 0xFF == PUBREC]
            if done + len(received) != count:
                raise BrokerError(f"publisher was sent {data[:200]!r}")
            self.sock.sendall(array("I", [unit ^ PUBREC ^ PUBREL for unit in received]).tobytes())
        self.confirmed += done
        return self.confirmed

    def subscriber(self, plan: Plan, name: str, index: int) -> None:
        """Subscribe."""
        qos = qos_of(plan)
        topic = name + "/#" if plan.varied else name
        properties = b"\0" if plan.version == 5 else b""
        codes = self.call(packet(0x82, b"\0\1" + properties + utf8(topic) + bytes([qos])), 0x90)
        if codes[2 + len(properties) :] != bytes([qos]):
            raise BrokerError(f"SUBACK {codes!r}")
        self.id_at = 2 + len(name) + (4 if plan.varied else 0)  # after the remaining length

    @staticmethod
    def measure(buf: bytearray, start: int, end: int) -> int | None:
        """Wire size of the packet that starts at `start` of `buf`, None while it is incomplete."""
        size = 0
        for i in range(1, min(end - start, 5)):
            size |= (buf[start + i] & 127) << 7 * (i - 1)
            if buf[start + i] < 128:
                if buf[start] & 0xF0 != 0x30:
                    raise BrokerError(f"subscriber was sent {bytes(buf[start : min(end, start + 200)])!r}")
                return size + i + 1 if start + size + i + 1 <= end else None
        return None

    def packets(self, buf: bytearray, end: int, qos: int) -> tuple[int, int, bytes]:
        """What the first `end` bytes hold: where the last whole packet ends, how many publishes, and the answers."""
        at = count = 0
        received: list[int] = []
        released: list[int] = []
        id_at = self.id_at
        while end - at >= 4:
            size, body = buf[at + 1], at + 2
            if size > 127:
                size, body = (size & 127) + (buf[body] << 7), at + 3
            stop = body + size
            if stop > end:
                break
            if buf[at] == PUBREL:
                released.append(buf[body] << 8 | buf[body + 1])
            else:
                count += 1
                if qos:
                    received.append(buf[body + id_at] << 8 | buf[body + id_at + 1])
            at = stop
        return at, count, self.four(PUBREC if qos == 2 else 0x40, received) + self.four(PUBCOMP, released)

    @staticmethod
    def four(kind: int, packet_ids: list[int]) -> bytes:
        """Acknowledgements of four bytes each."""
        return struct.pack(f">{len(packet_ids)}I", *[kind << 24 | 2 << 16 | packet_id for packet_id in packet_ids])

    def acks(
        self, plan: Plan, buf: bytearray, starts: Sequence[int], size: int, total: int, last: bool = False
    ) -> bytes | bytearray:
        """PUBACKs for the deliveries that begin at `starts`; `size` is that of each, 0 when they differ."""
        if not starts:
            return b""
        replies = bytearray(b"\x40\x02\0\0" * len(starts))
        if size:
            end = starts[-1] + size
            properties = len(PROPERTIES) + 1 if plan.version == 5 else 0
            id_at = starts[0] + size - plan.body - properties - 2
            replies[2::4] = buf[id_at:end:size]
            replies[3::4] = buf[id_at + 1 : end : size]
        else:
            at = [start + self.id_at + (2 if buf[start + 1] < 128 else 3) for start in starts]
            replies[2::4] = bytes([buf[i] for i in at])
            replies[3::4] = bytes([buf[i + 1] for i in at])
        return replies

    @classmethod
    def prepare(cls, options: argparse.Namespace, plan: Plan, name: str) -> Callable[[], None]:
        """Nothing to declare, nothing to remove."""
        return lambda: None


def qos_of(plan: Plan) -> int:
    """The quality of service that a plan asks for."""
    return plan.qos if plan.qos >= 0 else int(plan.reliable)


def message(plan: Plan, name: str, index: int, *, first: bool = False) -> bytes:
    """One PUBLISH packet; `first` says its topic beside the alias."""
    topic = f"{name}/{index % VARIETY:03}" if plan.varied else name
    properties = b""
    if plan.version == 5:
        block = PROPERTIES + b"\x23" + struct.pack(">H", 1 + (index % VARIETY if plan.varied else 0))
        properties = bytes([len(block)]) + block
        topic = topic if first else ""
    qos = qos_of(plan)
    packet_id = struct.pack(">H", index + 1) if qos else b""
    return packet(0x30 | qos << 1, utf8(topic) + packet_id + properties + plan.body_of(index))


def alias_max_of(block: bytes) -> int:
    """The topic alias maximum in a CONNACK's properties; 0 without one."""
    sizes = {0x11: 4, 0x13: 2, 0x21: 2, 0x22: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1}
    at = 0
    while at < len(block):
        kind, at = block[at], at + 1
        if kind == 0x22:
            return int.from_bytes(block[at : at + 2], "big")
        for _ in range(0 if kind in sizes else 2 if kind == 0x26 else 1):  # strings
            at += 2 + int.from_bytes(block[at : at + 2], "big")
        at += sizes.get(kind, 0)
    return 0
