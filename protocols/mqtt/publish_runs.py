"""Runs of publishes in a piece of input, for 3.1 and 3.1.1; `publish_runs_5` is the same for MQTT 5.

1. A run of equally long packets is found in C: the bytes up to the topic's end (the *prefix*) repeat at a fixed
   stride. So payloads are cut out at that stride, and the packets that they would make under this prefix are compared
   with what came. Packet ids stand between prefix and payload; they are taken out as two columns, and count as zero in
   what is compared. The first window is small, so that a run that ends early wastes little.
2. Where the topic changes soon, packets are read one by one (`shapes.py`), topics found by their raw bytes; such a run
   ends where a stretch of one topic begins.
3. Packets that differ in DUP alone belong to one run: nobody after us sees that flag (MQTT-3.3.1-3). Whatever is not in
   order is left to be found as the first packet of what follows, so that what came before it counts. So is what states
   its length in more bytes than it needs: it is an event by itself, and not passed on as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError

from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import PublishRun
from protocols.mqtt.packets import check_topic_name, frame
from protocols.mqtt.properties import decode_text
from protocols.mqtt.reasons import MqttProtocolError, ReasonCode
from protocols.mqtt.shapes import DUP, shapes_of

TOPICS_REMEMBERED_MAX = 4096
"""Topic names of one connection whose check is remembered; the memory is emptied when full."""

STRETCH = 16
"""Messages of one topic in a row that are worth a run of their own."""

ID_0 = b"\0\0"
"""A packet id that there is not."""
_FIRST_WINDOW, _WINDOW = 8, 128
"""Packets looked at first when two equal heads were seen, and then; see rule 1."""


class PublishRuns:
    """Finds runs for one connection, and remembers its topics."""

    def __init__(self, config: MqttConfig) -> None:
        self._config = config
        self._topics: dict[bytes, str] = {}

    def take(self, data: bytes, position: int, body: int, stop: int) -> tuple[PublishRun, int]:
        """The run that begins with the complete packet [position, stop), and where it ends.

        Raises MqttProtocolError.
        """
        first, end = data[position], len(data)
        qos = first >> 1 & 3
        id_bytes = 2 if qos else 0
        topic_stop = body + 2 + (data[body] << 8 | data[body + 1]) if stop > body + 1 else stop + 1
        payload_start = topic_stop + id_bytes
        if stop < payload_start:
            raise MqttProtocolError("truncated PUBLISH", "MQTT-3.3.2-1")
        raw_topic = data[body:topic_stop]
        topic = self._topics.get(raw_topic) or self._new_topic(raw_topic)
        payload, packet_id, retain = data[payload_start:stop], data[topic_stop:payload_start], first & 1 == 1
        padded = not data[body - 1]
        if (stop == end or padded) and packet_id != ID_0:  # nothing follows
            wire = None if retain or qos or padded else data[position:stop]
            return PublishRun(topic, qos, retain, [payload], packet_id, wire), stop
        found = Found(payload, packet_id)
        start = position
        position = self.take_same(data, start, body, stop, topic_stop, b"", found)
        topics = None
        if position + 4 < end and len(found.payloads) < STRETCH and not (data[position] ^ first) & ~DUP:
            topics = found.topics = [topic] * len(found.payloads)
            position = self._take_varied(data, position, first, topics, found)
        if qos:
            position = self.cut_at_id_0(data, start, position, found)
        if topics is not None and topics[-1] == topic and topics.count(topic) == len(topics):
            topics = None
        wire = None if retain or qos else data[start:position]
        return PublishRun(topic, qos, retain, found.payloads, bytes(found.packet_ids), wire, topics), position

    def take_same(
        self, data: bytes, start: int, body: int, stop: int, head_stop: int, block: bytes, found: Found
    ) -> int:
        """Add the packets that follow the first, [start, stop), with its topic and block; returns where they end.

        `body` is where the first packet's topic begins, `head_stop` where that ends, and its block, if nothing stands
        between them. `block` is what stands between packet id and payload.
        """
        id_bytes = 2 if data[start] & 6 else 0
        head = data[body:head_stop]
        # A cheap look at whether a packet with this topic may follow; with many topics it seldom does.
        if data.find(head, stop + 2, stop + 5 + len(head)) < 0:
            return stop
        prefix, position = data[start:head_stop], stop
        if data.startswith(prefix, position):
            position = _take_equal(data, position, stop - start, prefix, id_bytes, block, found)
        return self._take_unequal(data, position, data[start], head, block, found)

    def _take_unequal(self, data: bytes, position: int, first: int, head: bytes, block: bytes, found: Found) -> int:
        """Add complete packets from `position` on with this topic, whose length is in front, and block."""
        end, id_bytes, before = len(data), 2 if first & 6 else 0, 0
        topic_stop = 2 + (head[0] << 8 | head[1])
        topic, properties = head[:topic_stop], head[topic_stop:] + block
        shapes, skipped = shapes_of(first, self._config.packet_bytes_max), len(properties)
        payloads, packet_ids = found.payloads, found.packet_ids
        shape_at, begin = shapes.known, data[position : position + shapes.bytes]
        while True:
            try:
                take, size, _ = shape_at[begin]
            except KeyError:
                shape = shapes.learn(data, position)
                if shape is None:
                    break
                take, size, _ = shape
            if size == before:  # two of a length, so there may be more
                prefix = data[position : position + size - len(payloads[-1]) - len(block) - id_bytes]
                if not prefix.endswith(head):
                    break
                position = _take_equal(data, position, size, prefix, id_bytes, block, found)
                begin, before = data[position : position + shapes.bytes], 0
                continue
            try:
                raw_topic, packet_id, payload, begin = take(data, position)
            except StructError:
                if position + size > end:
                    break
                raw_topic, packet_id, payload, begin = take(data[position:] + bytes(shapes.bytes), 0)
            if raw_topic != topic:
                break
            if skipped:
                if not payload.startswith(properties):
                    break
                payload = payload[skipped:]
            packet_ids += packet_id
            payloads.append(payload)
            position += size
            before = size
        return position

    def _take_varied(self, data: bytes, position: int, first: int, topics: list[str], found: Found) -> int:
        """Add complete packets from `position` on, whatever their topics; returns where they end."""
        end, known = len(data), self._topics
        shapes, previous, equal = shapes_of(first, self._config.packet_bytes_max), topics[-1], 0
        packet_ids: list[bytes] = []
        add_topic, add_packet_id, add_payload = topics.append, packet_ids.append, found.payloads.append
        shape_at, begin = shapes.known, data[position : position + shapes.bytes]
        while True:
            try:
                take, size, _ = shape_at[begin]
            except KeyError:
                shape = shapes.learn(data, position)
                if shape is None:
                    break
                take, size, _ = shape
            try:
                raw_topic, packet_id, payload, begin = take(data, position)
            except StructError:
                if position + size > end:
                    break
                raw_topic, packet_id, payload, begin = take(data[position:] + bytes(shapes.bytes), 0)
            try:
                topic = known[raw_topic]
            except KeyError:
                try:
                    topic = self._new_topic(raw_topic)
                except MqttProtocolError:
                    break
            if topic is previous:
                equal += 1
                if equal == STRETCH:
                    break
            else:
                previous = topic
                equal = 0
            add_topic(topic)
            add_packet_id(packet_id)
            add_payload(payload)
            position += size
        found.packet_ids += b"".join(packet_ids)
        return position

    def cut_at_id_0(self, data: bytes, start: int, stop: int, found: Found) -> int:
        """Take back the packets of a run from the first whose id is 0 on; returns where it ends then."""
        packet_ids = found.packet_ids
        if ID_0 not in packet_ids:
            return stop
        at = packet_ids.find(ID_0)
        while at >= 0 and at & 1:
            at = packet_ids.find(ID_0, at + 1)
        if at < 0:
            return stop
        if not at:
            raise self._packet_id_0()
        stop = start
        for _ in range(at // 2):
            stop = frame(data, stop, len(data), len(data))[1]
        del packet_ids[at:]
        for column in (found.payloads, found.topics, found.raws, found.expiries_s):
            if column is not None:
                del column[at // 2 :]
        return stop

    @staticmethod
    def _packet_id_0() -> MqttProtocolError:
        return MqttProtocolError("PUBLISH with packet identifier 0", "MQTT-2.3.1-1", ReasonCode.PROTOCOL_ERROR)

    def _new_topic(self, raw: bytes) -> str:
        """Check a topic name (with its length in front) and remember it."""
        topic = self.check_topic(raw[2:])
        if len(self._topics) >= TOPICS_REMEMBERED_MAX:
            self._topics.clear()
        self._topics[raw] = topic
        return topic

    def check_topic(self, raw: bytes) -> str:
        """A topic name from its bytes. Raises MqttProtocolError."""
        topic = decode_text(raw, "topic name")
        check_topic_name(topic)
        excess = self._config.over_limit(topic)
        if excess:
            raise MqttProtocolError(excess, "", ReasonCode.TOPIC_NAME_INVALID)
        return topic


class Found:
    """What a run has so far: payloads, and packet ids of two bytes each."""

    __slots__ = ("aliased", "expiries_s", "heads", "packet_ids", "payloads", "raws", "topics")

    def __init__(self, payload: bytes, packet_id: bytes) -> None:
        self.payloads = [payload]
        self.packet_ids = bytearray(packet_id)
        self.topics: list[str] | None = None
        """Of each message, where they may differ; the rest is for MQTT 5."""
        self.raws: list[bytes] | None = None
        self.expiries_s: list[int | None] | None = None
        self.aliased = False
        self.heads: tuple[list[bytes], list[bytes]] | None = None


def _take_equal(data: bytes, position: int, size: int, prefix: bytes, id_bytes: int, block: bytes, found: Found) -> int:
    """Add the packets of `size` bytes from `position` on, which begin with `prefix`; returns where they end."""
    at = len(prefix)
    head = prefix + bytes(id_bytes) + block
    skipped, available, window = len(head), (len(data) - position) // size, _FIRST_WINDOW
    while available:
        count = min(window, available)
        stop = position + count * size
        payloads: Sequence[bytes]
        if count == _WINDOW:
            payloads = _columns(skipped, size - skipped).unpack_from(data, position)
        else:
            payloads = [data[end - size + skipped : end] for end in range(position + size, stop + 1, size)]
        expected: bytes | bytearray = data[position:stop]
        if id_bytes:
            packet_ids = bytearray(2 * count)
            packet_ids[::2], packet_ids[1::2] = expected[at::size], expected[at + 1 :: size]
            expected = bytearray(expected)
            expected[at::size] = expected[at + 1 :: size] = bytes(count)
        if head.join([b"", *payloads]) != expected:
            equal = 0
            while expected.startswith(head, equal * size):
                equal += 1
            found.payloads += payloads[:equal]
            if id_bytes:
                found.packet_ids += packet_ids[: 2 * equal]
            return position + equal * size
        found.payloads += payloads
        if id_bytes:
            found.packet_ids += packet_ids
        position, available, window = stop, available - count, _WINDOW
    return position


@lru_cache(maxsize=256)
def _columns(skipped: int, size: int) -> Struct:
    """Takes the payloads out of a window of equally long packets."""
    return Struct(f"{skipped}x{size}s" * _WINDOW)
