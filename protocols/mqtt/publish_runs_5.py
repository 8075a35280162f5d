"""Runs of publishes in a piece of input, for MQTT 5: with property blocks and topic aliases.

1. At QoS 0 the *head* of a packet, topic and property block, is one piece of its bytes; above that a packet id stands
   in between. What a head says was checked when it was first seen, so that a run with equal blocks is found as quickly
   as one without any, and a message with a block of its own costs little more than one with a topic of its own.
2. Heads are remembered by connection, and only those whose block has come before; checked blocks are remembered for all
   connections together. So blocks that never come again (a time in each of them) fill neither; once there are many,
   what is built like one before is passed on without being read (`alike_blocks`).
3. A topic alias is resolved here: an event names topics (3.3.2.3.4). `wire` is for messages that have none, and no
   expiry, which a broker has to count down; what differs without the alias, the head, is remembered with it.
"""

from __future__ import annotations

from protocols.mqtt.alike_blocks import note_alike, read_alike
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import PublishRun
from protocols.mqtt.packets import frame
from protocols.mqtt.properties import encode_text, read_variable, with_length
from protocols.mqtt.publish_blocks import PublishBlock, read_publish_block
from protocols.mqtt.publish_runs import (
    DUP,
    ID_0,
    SHAPE_BYTES,
    SHAPES_MAX,
    STRETCH,
    TOPICS_REMEMBERED_MAX,
    Found,
    PublishRuns,
)
from protocols.mqtt.reasons import MqttProtocolError, ReasonCode
from protocols.mqtt.wire import STARTS_QOS_0, remaining_length, start_at_qos_0

_BLOCKS_REMEMBERED_MAX = 4096
_BLOCK_REMEMBERED_BYTES_MAX = 512
_STRANGERS_MAX = 16 * _BLOCKS_REMEMBERED_MAX


class _Blocks(dict[bytes, PublishBlock]):
    """Those that were checked. When it is full it stays as it is for a while: what comes then may never come again."""

    __slots__ = ("_strangers",)

    def __init__(self) -> None:
        super().__init__()
        self._strangers = 0

    def are_many(self) -> bool:
        """Whether it is full; asked of each block that is not there."""
        if len(self) < _BLOCKS_REMEMBERED_MAX:
            return False
        self._strangers += 1
        if self._strangers < _STRANGERS_MAX:
            return True
        self._strangers = 0
        self.clear()
        return False


_blocks = _Blocks()

Terms = tuple[bytes, int, int | None]
"""Properties, what is special about it, expiry in seconds."""
_terms: dict[Terms, Terms] = {}
"""Those that are the same are one object, whatever alias stood beside them: comparing those is quick."""

Head = tuple[str, bytes, int, Terms, int]
"""Topic, the head without an alias (b"" where the topic is not known) and its length, terms, alias (0 if there is
none)."""

_NO_TOPIC = encode_text("")

Shape5 = tuple[int, int, int, int]
"""Where, from a packet's first byte on, its topic begins with its length (0: it has none), its block, where that stops
(0: `Shape5` does not say), and the packet."""
_shapes: dict[tuple[int, int], dict[bytes, Shape5]] = {}
"""See `publish_runs`."""

_ALIASED, _RESOLVE, _TIMED = 1, 2, 4
"""It has an alias; the alias is still to be given a topic, or to be asked for it; there is an expiry."""
_CHANGES_MAX = 64
"""An alias that gets another topic makes what is known of heads void; who does that so often does it all the time."""


class PublishRuns5(PublishRuns):
    """Finds runs for one connection; remembers its heads and topic aliases."""

    def __init__(self, config: MqttConfig) -> None:
        super().__init__(config)
        self._heads: dict[bytes, Head] = {}
        self._nameless: dict[bytes, Head] = {}
        """Those with an alias in place of a topic, which is known, by their blocks."""
        self._aliases: dict[int, tuple[str, bytes]] = {}
        """Topics, and as they are written."""
        self._changes = 0

    def take(self, data: bytes, position: int, body: int, stop: int) -> tuple[PublishRun, int]:
        """See `PublishRuns`."""
        first, end = data[position], len(data)
        qos = first >> 1 & 3
        id_bytes = 2 if qos else 0
        topic_stop = body + 2 + (data[body] << 8 | data[body + 1]) if stop > body + 1 else stop
        block = topic_stop + id_bytes
        if stop <= block:
            raise MqttProtocolError("truncated PUBLISH", "MQTT-3.3.2-1")
        block_stop = block + 1 + data[block]
        if data[block] > 127:
            size, block_stop = read_variable(data[block : min(stop, block + 4)], 0, "property length")
            block_stop += block + size
        if block_stop > stop:
            raise MqttProtocolError("truncated properties of PUBLISH", "MQTT-2.2.2-1")
        raw_block = data[block:block_stop]
        head = self._head_of(data[body:topic_stop] + raw_block)
        topic, _, _, (raw, special, expiry_s), _ = head
        payload, packet_id = data[block_stop:stop], data[topic_stop:block]
        if stop == end and packet_id != ID_0:  # nothing follows
            retain = first & 1 == 1
            expiries_s: list[int | None] | None = None if expiry_s is None else [expiry_s]
            wire = None if qos or retain or special else data[position:]
            return PublishRun(topic, qos, retain, [payload], packet_id, wire, None, raw, None, expiries_s), stop
        found = Found(payload, packet_id)
        start = position
        if qos:
            position = self.take_same(data, start, body, stop, topic_stop, raw_block, found)
        else:
            position = self.take_same(data, start, body, stop, block_stop, b"", found)
        count = len(found.payloads)
        found.aliased = special & _ALIASED > 0
        if expiry_s is not None:
            found.expiries_s = [expiry_s] * count
        if position + 5 < end and count < STRETCH and not (data[position] ^ first) & ~DUP:
            varied = Varied(head, count)
            position = self._take_varied_5(data, position, first, head, found, varied)
            if len(found.payloads) > count:
                _fill(found, varied, qos)
        if qos:
            position = self.cut_at_id_0(data, start, position, found)
        return _event(first, topic, raw, found, data[start:position]), position

    def _take_varied_5(
        self, data: bytes, position: int, first: int, previous: Head, found: Found, varied: Varied
    ) -> int:
        """As `_take_varied`, for packets with blocks, the last of which had the head `previous`."""
        id_bytes, again = (2, first ^ DUP) if first & 6 else (0, first)
        end, packet_bytes_max = len(data), self._config.packet_bytes_max
        known, nameless = self._heads.get, self._nameless.get
        payloads, packet_ids = found.payloads, found.packet_ids
        topics, each_terms, plains, starts = varied.topics, varied.terms, varied.plains, varied.starts
        aliased = not id_bytes and previous[3][1] > 0
        if aliased:
            starts += [start_at_qos_0(previous[2] + len(payload)) for payload in payloads]
        shapes, equal = _shapes.setdefault((first & ~DUP, packet_bytes_max), {}), 0
        shape_bytes = _shape_bytes(first)
        while position + 5 < end:
            try:
                body, at, block_stop, stop = shapes[data[position : position + shape_bytes]]
            except KeyError:
                if data[position] != first and data[position] != again:
                    break
                shape = _shape_of(shapes, data, position, packet_bytes_max)
                if shape is None:
                    break
                body, at, block_stop, stop = shape
            stop += position
            if stop > end:
                break
            at += position
            if block_stop:
                block_stop += position
            else:  # most blocks are short
                size = data[at]
                if size < 128:
                    block_stop = at + 1 + size
                elif at + 1 < stop and 0 < data[at + 1] < 128:
                    block_stop = at + 2 + (size & 127 | data[at + 1] << 7)
                else:
                    break
                if block_stop > stop:
                    break
            if not body:
                raw = data[at:block_stop]
                head = nameless(raw)
            else:
                if id_bytes:
                    raw = data[position + body : at - 2] + data[at:block_stop]
                else:
                    raw = data[position + body : block_stop]
                head = known(raw)
                if head is not None and head[3][1] & _RESOLVE:
                    head = None
            if head is None:
                try:
                    head = self._head_of(raw if body else _NO_TOPIC + raw)
                except MqttProtocolError:
                    break
            if head is previous:
                equal += 1
                if equal == STRETCH:
                    break
            else:
                previous = head
                if equal:
                    equal = 0
            topic, plain, plain_bytes, terms, _ = head
            topics.append(topic)
            each_terms.append(terms)
            if not id_bytes:
                plains.append(plain)
                if aliased:
                    try:
                        starts.append(STARTS_QOS_0[plain_bytes + stop - block_stop])
                    except IndexError:
                        starts.append(start_at_qos_0(plain_bytes + stop - block_stop))
            else:
                packet_ids += data[at - 2 : at]
            payloads.append(data[block_stop:stop])
            position = stop
        return position

    def _head_of(self, raw: bytes) -> Head:
        """What a head says, whose lengths were found to be right. Raises MqttProtocolError."""
        head = self._heads.get(raw) or self._new_head(raw)
        return self._resolve(raw, head) if head[3][1] & _RESOLVE else head

    def _resolve(self, raw: bytes, head: Head) -> Head:
        """A head with an alias, with the topic of that. Raises MqttProtocolError for an alias that stands for none.

        What an alias stands for seldom changes: then the head is as good as one with that topic.
        """
        topic, _, _, (properties, special, expiry_s), alias = head
        if topic:
            before = self._aliases.get(alias)
            if before is None or before[0] != topic:
                self._aliases[alias] = topic, encode_text(topic)
                if before is not None:
                    self._changes += 1
                    if self._changes <= _CHANGES_MAX:
                        self._forget()
            return head
        if alias not in self._aliases:
            raise MqttProtocolError(f"topic alias {alias} stands for nothing", "", ReasonCode.PROTOCOL_ERROR)
        topic, written = self._aliases[alias]
        plain = written + remaining_length(len(properties)) + properties
        resolved = topic, plain, len(plain), _interned(properties, special & ~_RESOLVE, expiry_s), alias
        if raw in self._heads and self._changes < _CHANGES_MAX:
            self._heads[raw] = self._nameless[raw[2:]] = resolved
        return resolved

    def _forget(self) -> None:
        """What is known of heads does not hold any more, or is too much."""
        self._heads.clear()
        self._nameless.clear()

    def _new_head(self, raw: bytes) -> Head:
        """Check topic and block, whose lengths were found to be right."""
        topic_stop = 2 + (raw[0] << 8 | raw[1])
        raw_topic, raw_block = raw[:topic_stop], raw[topic_stop:]
        found: tuple[int, int | None, bytes] | None = _blocks.get(raw_block)
        comes_again = found is not None
        if found is None:
            found = (read_alike(raw_block) if _blocks.are_many() else None) or _new_block(raw_block)
        alias, expiry_s, rest = found
        topic = ""
        if topic_stop > 2:
            topic = self._topics.get(raw_topic) or self._new_topic(raw_topic)
        elif not alias:
            raise MqttProtocolError("neither topic name nor topic alias", "", ReasonCode.PROTOCOL_ERROR)
        most = self._config.topic_alias_max
        if alias > most:
            text = f"topic alias {alias}, at most {most} is allowed"
            raise MqttProtocolError(text, "MQTT-3.3.2-9", ReasonCode.TOPIC_ALIAS_INVALID)
        special = (_ALIASED | _RESOLVE if alias else 0) | (0 if expiry_s is None else _TIMED)
        plain = raw
        if special:
            plain = raw_topic + with_length(rest) if topic else b""
        if not comes_again:
            return topic, plain, len(plain), (rest, special, expiry_s), alias
        head = topic, plain, len(plain), _interned(rest, special, expiry_s), alias
        if len(self._heads) >= TOPICS_REMEMBERED_MAX:
            self._forget()
        self._heads[raw] = head
        return head

    @staticmethod
    def _packet_id_0() -> MqttProtocolError:
        return MqttProtocolError("PUBLISH with packet identifier 0", "MQTT-2.2.1-3", ReasonCode.PROTOCOL_ERROR)


def _interned(properties: bytes, special: int, expiry_s: int | None) -> Terms:
    """Terms as one object."""
    if len(_terms) >= _BLOCKS_REMEMBERED_MAX:
        _terms.clear()
    terms = properties, special, expiry_s
    return _terms.setdefault(terms, terms)


def _new_block(raw: bytes) -> PublishBlock:
    """Check a block with its length in front, and remember it."""
    start = 1
    while raw[start - 1] > 127:
        start += 1
    block = read_publish_block(raw[start:])
    if len(_blocks) >= _BLOCKS_REMEMBERED_MAX:
        note_alike(raw)
    elif len(raw) <= _BLOCK_REMEMBERED_BYTES_MAX:
        _blocks[raw] = block
    return block


def _shape_bytes(first: int) -> int:
    """What says how long a packet is. At QoS 0 a short block with an alias in place of the topic is in it as well."""
    return SHAPE_BYTES if first & 6 else SHAPE_BYTES + 1


def _shape_of(shapes: dict[bytes, Shape5], data: bytes, position: int, packet_bytes_max: int) -> Shape5 | None:
    """The shape of the packet at `position`; None where that is not in order, or its topic none of ours."""
    end, id_bytes, shape_bytes = len(data), 2 if data[position] & 6 else 0, _shape_bytes(data[position])
    try:
        body, stop = frame(data, position, end, packet_bytes_max)
    except MqttProtocolError:
        return None
    # The upper byte of the topic's length is 0 in all topics that are allowed.
    if body + 2 > end or data[body]:
        return None
    at, block_stop = body + 2 + data[body + 1] + id_bytes, 0
    if at + 1 > stop:
        return None
    nameless = not data[body + 1]
    if nameless and not id_bytes and at < position + shape_bytes and at < end and data[at] < 128:
        block_stop = at + 1 + data[at]
        if block_stop > stop:
            return None
        block_stop -= position
    shape = 0 if nameless else body - position, at - position, block_stop, stop - position
    if body + 2 <= position + SHAPE_BYTES and position + shape_bytes <= end:
        if len(shapes) >= SHAPES_MAX:
            shapes.clear()
        shapes[data[position : position + shape_bytes]] = shape
    return shape


class Varied:
    """What the heads of a run say of each message, as far as it is needed."""

    __slots__ = ("plains", "starts", "terms", "topics")

    def __init__(self, head: Head, count: int) -> None:
        """For a run that begins with `count` messages of one head."""
        self.topics = [head[0]] * count
        self.terms = [head[3]] * count
        self.plains = [head[1]] * count
        """The rest is for QoS 0, fixed headers for runs that begin with an alias."""
        self.starts: list[bytes] = []


def _fill(found: Found, varied: Varied, qos: int) -> None:
    """What the heads of a run's messages say of each."""
    found.topics = varied.topics
    terms = varied.terms
    common = terms[0] if terms.count(terms[0]) == len(terms) else None
    if common is None:
        found.raws = [one[0] for one in terms]
    special = max(one[1] for one in terms) if common is None else common[1]
    if special:
        found.aliased = True  # or timed, which is no less a reason
        if not qos:
            plains, payloads = varied.plains, found.payloads
            starts = varied.starts or [start_at_qos_0(len(one) + len(body)) for one, body in zip(plains, payloads)]
            found.heads = starts, plains
        if special >= _TIMED:
            found.expiries_s = [one[2] for one in terms]


def _event(first: int, topic: str, raw: bytes, found: Found, wire: bytes) -> PublishRun:
    """The event for a run that begins with this topic and these properties."""
    qos, retain, count = first >> 1 & 3, bool(first & 1), len(found.payloads)
    topics, raws, expiries_s = found.topics, found.raws, found.expiries_s
    if topics is not None and topics[-1] == topic and topics.count(topic) == count:
        topics = None
    if raws is not None and raws[-1] == raw and raws.count(raw) == count:
        raws = None
    passes_on = not (qos or retain or expiries_s)
    return PublishRun(
        topic,
        qos,
        retain,
        found.payloads,
        bytes(found.packet_ids),
        wire if passes_on and not found.aliased else None,
        topics,
        raw,
        raws,
        expiries_s,
        found.heads if passes_on else None,
    )
