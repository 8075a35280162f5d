"""The server's side of an MQTT 3.1.1 connection as a sans-IO machine: bytes in, events out.

1. Nothing is parsed twice or copied twice; bytes of an incomplete packet wait in one buffer, whose size is bounded
   because the remaining length is checked before anything is kept.
2. Type, flags and order of packets are checked on the first byte, the rest when the packet is complete.
3. Publishes and acknowledgements come as runs. A run of equally long packets is found in C: the bytes up to the topic's
   end (the *prefix*) repeat at a fixed stride, so splitting on the prefix yields the payloads, and all pieces having
   the payload's length proves it. Windows grow by four, so that a run that ends early wastes little.
   Where the topic changes soon, packets are read one by one and topics found by their raw bytes; such a run ends
   where a stretch of one topic begins.
4. After DISCONNECT or a violation nothing more is read (MQTT-3.14.4, MQTT-4.8.0-1).

What MQTT 5 changes is in here and in `packets` (properties, reason codes); QoS 2 adds PUBREC, PUBREL and PUBCOMP to
`_violation` and an event for each.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import Acknowledgements, Connect, Disconnect, Event, PingRequest, PublishRun
from protocols.mqtt.packets import (
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBLISH,
    SUBSCRIBE,
    UNSUBSCRIBE,
    check_topic_name,
    decode_text,
    packet_id_ranges,
    parse_connect,
    parse_subscribe,
    parse_unsubscribe,
)
from protocols.mqtt.reasons import MqttProtocolError
from protocols.mqtt.wire import WIRE_3, WIRES, Wire

TOPICS_REMEMBERED_MAX = 4096
"""Topic names of one connection whose check is remembered; the memory is emptied when full."""

_RUN_WINDOW = 16
"""Packets looked at first when two equal heads were seen; see rule 3."""

_STRETCH = 16
"""Messages of one topic in a row that are worth a run of their own."""

_DUP = 0x08

_QOS_2_TYPES = {5: "PUBREC", 6: "PUBREL", 7: "PUBCOMP"}
_SERVER_TYPES = {2: "CONNACK", 9: "SUBACK", 11: "UNSUBACK", 13: "PINGRESP"}
_PARSERS: dict[int, Callable[[bytes], Event]] = {
    CONNECT: parse_connect,
    SUBSCRIBE: parse_subscribe,
    UNSUBSCRIBE: parse_unsubscribe,
}


def _violation(first: int) -> tuple[str, str] | None:
    """What is wrong with a packet after CONNECT that begins with the byte `first`: (reason, clause)."""
    kind, qos = first >> 4, first >> 1 & 3
    if kind == PUBLISH >> 4:
        if qos == 3:
            return "PUBLISH with QoS 3", "MQTT-3.3.1-4"
        if qos == 2:
            return "PUBLISH with QoS 2 is not supported", ""
        if first & 8 and not qos:
            return "PUBLISH with DUP and QoS 0", "MQTT-3.3.1-2"
        return None
    if first == CONNECT:
        return "a second CONNECT", "MQTT-3.1.0-2"
    if first in (PUBACK, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT):
        return None
    if kind in _QOS_2_TYPES:
        return f"{_QOS_2_TYPES[kind]}, but QoS 2 is not supported", ""
    if kind in _SERVER_TYPES:
        return f"{_SERVER_TYPES[kind]} from a client", "MQTT-2.2.1"
    if kind in (0, 15):
        return f"reserved packet type {kind}", "MQTT-2.2.1"
    clause = {SUBSCRIBE >> 4: "MQTT-3.8.1-1", UNSUBSCRIBE >> 4: "MQTT-3.10.1-1", DISCONNECT >> 4: "MQTT-3.14.1-1"}
    return f"reserved flags of packet type {kind} are {first & 15:04b}", clause.get(kind, "MQTT-2.2.2-2")


_VIOLATIONS = [_violation(first) for first in range(256)]
_VIOLATIONS_BEFORE_CONNECT = [
    None if first == CONNECT else ("the first packet is not CONNECT", "MQTT-3.1.0-1") for first in range(256)
]


class ServerConnection:
    """Parses what one client sends. After it raised or returned a Disconnect, `closed` is true and input is ignored."""

    def __init__(self, config: MqttConfig) -> None:
        self.closed = False
        self.wire: Wire = WIRE_3
        """How to answer: that of the version in CONNECT, from there on."""
        self._config = config
        self._violations = _VIOLATIONS_BEFORE_CONNECT
        self._buffer = bytearray()
        self._wanted = 0
        self._topics: dict[bytes, str] = {}

    def receive_data(self, data: bytes) -> list[Event]:
        """The events of all packets completed by `data`.

        Raises MqttProtocolError at the first violation; the events before it are in its `events`.
        """
        if self.closed:
            return []
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return []
            data = bytes(self._buffer)
        events: list[Event] = []
        try:
            position = self._parse(data, events)
        except MqttProtocolError as error:
            self.closed = True
            self._buffer = bytearray()
            error.events = events
            raise
        self._buffer = bytearray(data[position:])
        return events

    def _parse(self, data: bytes, events: list[Event]) -> int:
        """Append the events of the complete packets in `data`; returns where the first incomplete one begins."""
        position, end = 0, len(data)
        while position < end:
            first = data[position]
            body, stop = self._frame(data, position, end)
            if stop > end:
                self._wanted = stop - position
                break
            if first & 0xF0 == PUBLISH:
                run, position = self._publish_run(data, position, body, stop)
                events.append(run)
            elif first == PUBACK:
                acknowledgements, position = self._acknowledgements(data, position, stop)
                events.append(acknowledgements)
            else:
                events.append(self._other(first, data[body:stop]))
                position = stop
                if self.closed:
                    break
        return position

    def _frame(self, data: bytes, position: int, end: int) -> tuple[int, int]:
        """Where the packet's body begins and where it stops; a stop beyond `end` means that bytes are missing."""
        violation = self._violations[data[position]]
        if violation is not None:
            raise MqttProtocolError(*violation)
        if end - position > 2:
            low, high = data[position + 1], data[position + 2]
            if low < 128:
                return position + 2, position + 2 + low
            size = 3 + (low & 127 | high << 7)
            if high < 128 and size <= self._config.packet_bytes_max:
                return position + 3, position + size
        body, size, shift = position + 1, 0, 0
        while True:
            if body == end:
                return body, end + 1
            digit = data[body]
            body += 1
            size |= (digit & 127) << shift
            if digit < 128:
                break
            shift += 7
            if shift > 21:
                raise MqttProtocolError("remaining length of more than four bytes", "MQTT-2.2.3")
        stop = body + size
        if stop - position > self._config.packet_bytes_max:
            raise MqttProtocolError(
                f"packet of {stop - position} bytes, at most {self._config.packet_bytes_max} are allowed"
            )
        return body, stop

    def _other(self, first: int, body: bytes) -> Event:
        parse = _PARSERS.get(first)
        if parse is not None:
            event = parse(body)
            if isinstance(event, Connect):
                self._violations = _VIOLATIONS
                self.wire = WIRES[event.protocol_level]
            return event
        if body:
            raise MqttProtocolError("remaining length is not 0", "MQTT-3.12.1" if first == PINGREQ else "MQTT-3.14.1")
        if first == PINGREQ:
            return PingRequest()
        self.closed = True
        return Disconnect()

    # Publishes.

    def _publish_run(self, data: bytes, position: int, body: int, stop: int) -> tuple[PublishRun, int]:
        """The run that begins with the complete packet at `position`, and where it stops."""
        first, end = data[position], len(data)
        id_bytes = 2 if first & 6 else 0
        topic_stop = body + 2 + (data[body] << 8 | data[body + 1]) if stop > body + 1 else end
        if stop < topic_stop + id_bytes or stop < body + 2:
            raise MqttProtocolError("truncated PUBLISH", "MQTT-3.3.2-1")
        raw_topic = data[body:topic_stop]
        topic = self._topics.get(raw_topic) or self._new_topic(raw_topic)
        pieces = [data[topic_stop:stop]]
        start, size, position = position, stop - position, stop
        # A cheap look at whether a packet with this topic may follow; with many topics it seldom does.
        if data.find(raw_topic, stop + 2, stop + 5 + len(raw_topic)) >= 0:
            prefix = data[start:topic_stop]
            if data.startswith(prefix, position):
                position = _take_equal(data, position, size, prefix, pieces)
            position = self._take_unequal(data, position, first, raw_topic, pieces)
        topics = None
        if position + 4 < end and len(pieces) < _STRETCH and not (data[position] ^ first) & ~_DUP:
            topics = [topic] * len(pieces)
            position = self._take_varied(data, position, first, topics, pieces)
            if topics.count(topic) == len(topics):
                topics = None
        retain = bool(first & 1)
        if id_bytes:
            payloads, packet_ids, position = self._take_packet_ids(data, start, position, pieces)
            if topics is not None and len(payloads) < len(topics):
                del topics[len(payloads) :]
            return PublishRun(topic, 1, retain, payloads, packet_ids, None, topics), position
        return PublishRun(topic, 0, retain, pieces, b"", None if retain else data[start:position], topics), position

    def _take_varied(self, data: bytes, position: int, first: int, topics: list[str], pieces: list[bytes]) -> int:
        """Append topics, and what follows them, of complete packets from `position` on; returns where they end.

        Packets that differ from `first` in DUP alone belong to the run: nobody after us sees that flag
        (MQTT-3.3.1-3). Whatever is not in order is left to be found as the first packet of what follows.
        """
        id_bytes, again = (2, first ^ _DUP) if first & 6 else (0, first)
        end, packet_bytes_max, known = len(data), self._config.packet_bytes_max, self._topics.get
        add_topic, add_piece = topics.append, pieces.append
        previous, equal = topics[-1], 0
        while position + 4 < end:  # the smallest packet has five bytes
            kind = data[position]
            if kind != first and kind != again:
                break
            body = position + 2
            size = data[position + 1]
            if size < 128:
                stop = body + size
            elif data[body] < 128:
                size += (data[body] << 7) - 128
                body += 1
                stop = body + size
                if stop - position > packet_bytes_max:
                    break
            else:
                try:
                    body, stop = self._frame(data, position, end)
                except MqttProtocolError:
                    break
            if stop > end or stop < body + 2:
                break
            # The upper byte of the topic's length is 0 in all topics that are known.
            topic_stop = body + 2 + data[body + 1]
            if topic_stop + id_bytes > stop:
                break
            raw_topic = data[body:topic_stop]
            topic = known(raw_topic)
            if topic is None:
                try:
                    if raw_topic[0]:
                        break
                    topic = self._new_topic(raw_topic)
                except MqttProtocolError:
                    break
            if topic is previous:
                equal += 1
                if equal == _STRETCH:
                    break
            else:
                previous, equal = topic, 0
            add_topic(topic)
            add_piece(data[topic_stop:stop])
            position = stop
        return position

    def _take_unequal(self, data: bytes, position: int, first: int, raw_topic: bytes, pieces: list[bytes]) -> int:
        """Append what follows the topic in complete packets from `position` on with this first byte and topic."""
        end, id_bytes = len(data), 2 if first & 6 else 0
        while end - position > 1 and data[position] == first:
            size = data[position + 1]
            if size < 128:
                body = position + 2
                stop = body + size
            else:
                try:
                    body, stop = self._frame(data, position, end)
                except MqttProtocolError:
                    break  # raised again as the first packet of what follows: this run counts
            topic_stop = body + len(raw_topic)
            if stop > end or stop < topic_stop + id_bytes or not data.startswith(raw_topic, body):
                break
            pieces.append(data[topic_stop:stop])
            prefix, size, position = data[position:topic_stop], stop - position, stop
            if data.startswith(prefix, position):
                position = _take_equal(data, position, size, prefix, pieces)
        return position

    def _take_packet_ids(
        self, data: bytes, start: int, stop: int, pieces: list[bytes]
    ) -> tuple[list[bytes], bytes, int]:
        """Payloads and packet ids of a run, and where it stops: before the first packet whose id is 0."""
        if len(pieces) == 1 and pieces[0][:2] != b"\0\0":
            return [pieces[0][2:]], pieces[0][:2], stop
        ids = [piece[:2] for piece in pieces]
        packet_ids = b"".join(ids)
        if b"\0\0" in packet_ids and b"\0\0" in ids:
            good, stop = ids.index(b"\0\0"), start
            if not good:
                raise MqttProtocolError("PUBLISH with packet identifier 0", "MQTT-2.3.1-1")
            for _ in range(good):
                stop = self._frame(data, stop, len(data))[1]
            pieces, packet_ids = pieces[:good], packet_ids[: 2 * good]
        return [piece[2:] for piece in pieces], packet_ids, stop

    def _new_topic(self, raw: bytes) -> str:
        """Check a topic name (with its length in front) and remember it."""
        topic = decode_text(raw[2:], "topic name")
        check_topic_name(topic)
        excess = self._config.over_limit(topic)
        if excess:
            raise MqttProtocolError(excess)
        if len(self._topics) >= TOPICS_REMEMBERED_MAX:
            self._topics.clear()
        self._topics[raw] = topic
        return topic

    # Acknowledgements.

    def _acknowledgements(self, data: bytes, position: int, stop: int) -> tuple[Acknowledgements, int]:
        if stop - position != 4:
            raise MqttProtocolError("PUBACK of another length than 2", "MQTT-3.4.1")
        total, count, window = (len(data) - position) // 4, 1, _RUN_WINDOW
        while count < total and data.startswith(b"\x40\x02", position + 4 * count):
            size = min(window, total - count)
            start = position + 4 * count
            kinds, lengths = data[start : start + 4 * size : 4], data[start + 1 : start + 4 * size : 4]
            equal = size - max(len(kinds.lstrip(b"\x40")), len(lengths.lstrip(b"\x02")))
            count += equal
            if equal < size:
                break
            window *= 4
        stop = position + 4 * count
        packet_ids = _interleave(data[position + 2 : stop : 4], data[position + 3 : stop : 4])
        return Acknowledgements(packet_id_ranges(packet_ids)), stop


def _take_equal(data: bytes, position: int, size: int, prefix: bytes, pieces: list[bytes]) -> int:
    """Append what follows `prefix` in each of the packets of `size` bytes from `position` on; return where they end."""
    piece_size = size - len(prefix)
    available, window = (len(data) - position) // size, _RUN_WINDOW
    while available:
        count = min(window, available)
        stop = position + count * size
        found = data[position:stop].split(prefix)
        # The pieces and the prefixes between them add up to the window, so none longer than expected means all equal.
        if found[0] or len(found) != count + 1 or max(map(len, found)) != piece_size:
            equal = 0
            if not found[0]:
                equal = next((i for i, piece in enumerate(found[1:]) if len(piece) != piece_size), len(found) - 1)
            pieces += found[1 : equal + 1]
            return position + equal * size
        pieces += found[1:]
        position, available, window = stop, available - count, window * 4
    return position


def _interleave(high: bytes, low: bytes) -> bytes:
    packet_ids = bytearray(2 * len(high))
    packet_ids[::2] = high
    packet_ids[1::2] = low
    return bytes(packet_ids)
