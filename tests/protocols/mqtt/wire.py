"""The client's side of the codec, written plainly from the standard: what tests send, and how they read answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from protocols.mqtt.events import Acknowledgements, Event, PublishRun

PINGREQ, DISCONNECT = b"\xc0\0", b"\xe0\0"


def text(value: str | bytes) -> bytes:
    """Two bytes of length, then UTF-8 (or the bytes given)."""
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def packet(first: int, body: bytes) -> bytes:
    """A control packet from its first byte and all after the fixed header."""
    size, digits = len(body), bytearray()
    while True:
        size, digit = size >> 7, size & 127
        digits.append(digit | 128 if size else digit)
        if not size:
            return bytes((first, *digits)) + body


def connect(
    client_id: str | bytes = "c1",
    *,
    clean: bool = True,
    keep_alive_s: int = 0,
    will: tuple[str, bytes, int, bool] | None = None,
    user: str | None = None,
    password: bytes | None = None,
    name: str = "MQTT",
    level: int = 4,
    extra_flags: int = 0,
) -> bytes:
    """CONNECT; `extra_flags` are set on top of those the fields need."""
    flags, payload = (2 if clean else 0) | extra_flags, text(client_id)
    if will is not None:
        flags |= 4 | will[2] << 3 | (0x20 if will[3] else 0)
        payload += text(will[0]) + text(will[1])
    if user is not None:
        flags |= 0x80
        payload += text(user)
    if password is not None:
        flags |= 0x40
        payload += text(password)
    return packet(0x10, text(name) + bytes((level, flags)) + keep_alive_s.to_bytes(2, "big") + payload)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 1,
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    """PUBLISH."""
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    return packet(0x30 | dup << 3 | qos << 1 | retain, text(topic) + identifier + payload)


def puback(*packet_ids: int) -> bytes:
    """PUBACK packets."""
    return acknowledge(0x40, *packet_ids)


def acknowledge(first: int, *packet_ids: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP packets."""
    return b"".join(bytes((first, 2)) + packet_id.to_bytes(2, "big") for packet_id in packet_ids)


def subscribe(packet_id: int, *requests: tuple[str, int]) -> bytes:
    """SUBSCRIBE."""
    return packet(0x82, packet_id.to_bytes(2, "big") + b"".join(text(name) + bytes((qos,)) for name, qos in requests))


def unsubscribe(packet_id: int, *filters: str) -> bytes:
    """UNSUBSCRIBE."""
    return packet(0xA2, packet_id.to_bytes(2, "big") + b"".join(map(text, filters)))


def packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(first byte, body) of each packet in `data`, which must hold whole packets."""
    position = 0
    while position < len(data):
        first, position, size, shift = data[position], position + 1, 0, 0
        while True:
            digit, position = data[position], position + 1
            size |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                break
        assert position + size <= len(data)
        yield first, data[position : position + size]
        position += size


def deliveries(data: bytes) -> list[tuple[str, int, int | None, bytes]]:
    """(topic, QoS, packet id, payload) of the PUBLISH packets in `data`, which must hold nothing else."""
    found = []
    for first, body in packets(data):
        assert first in (0x30, 0x32), f"not a fresh delivery: {first:#x}"
        stop = 2 + int.from_bytes(body[:2], "big")
        qos = first >> 1 & 3
        packet_id = int.from_bytes(body[stop : stop + 2], "big") if qos else None
        found.append((body[2:stop].decode(), qos, packet_id, body[stop + 2 if qos else stop :]))
    return found


def one_by_one(events: Iterable[Event]) -> list[object]:
    """Events without runs, so that the same bytes cut differently compare equal."""
    flat: list[object] = []
    for event in events:
        if isinstance(event, PublishRun):
            ids = [event.packet_ids[i : i + 2] for i in range(0, len(event.packet_ids), 2)] or [b""] * len(
                event.payloads
            )
            assert len(ids) == len(event.payloads)
            count = len(ids)
            topics = [event.topic] * count if event.topics is None else event.topics
            raws = [event.raw] * count if event.raws is None else event.raws
            expiries_s = [None] * count if event.expiries_s is None else event.expiries_s
            flat += [
                (topic, event.qos, event.retain, packet_id, payload, raw, expiry_s)
                for topic, packet_id, payload, raw, expiry_s in zip(
                    topics, ids, event.payloads, raws, expiries_s, strict=True
                )
            ]
        elif isinstance(event, Acknowledgements):
            failed = list(event.failed)
            for packet_id in (one for first, last in event.ranges for one in range(first, last + 1)):
                reason = failed.pop(0)[1] if failed and failed[0][0] == packet_id else 0
                flat.append(("ack", event.kind, packet_id, reason))
            assert not failed
        else:
            flat.append(event)
    return flat
