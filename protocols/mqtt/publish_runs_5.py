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

from operator import add
from struct import error as StructError

from protocols.mqtt.alike_blocks import note_alike, read_alike
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import PublishRun
from protocols.mqtt.properties import encode_text, read_variable, with_length
from protocols.mqtt.publish_blocks import PublishBlock, read_publish_block
from protocols.mqtt.publish_runs import ID_0, STRETCH, TOPICS_REMEMBERED_MAX, Found, PublishRuns
from protocols.mqtt.reasons import MqttProtocolError, ReasonCode
from protocols.mqtt.shapes import DUP, shapes_of
from protocols.mqtt.wire import starts_at_qos_0

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

_ALIASED, _TIMED = 1, 2
"""It has an alias; there is an expiry."""
_CHANGES_MAX = 64
"""An alias that gets another topic makes what is known of heads void; who does that so often does it all the time."""


class PublishRuns5(PublishRuns):
    """Finds runs for one connection; remembers its heads and topic aliases."""

    def __init__(self, config: MqttConfig) -> None:
        super().__init__(config)
        self._heads: dict[bytes, Head] = {}
        self._ready: dict[bytes, Head] = {}
        """Those whose alias, if any, stands for their topic."""
        self._nameless: dict[bytes, Head] = {}
        """Those whose alias stands in for a topic, which is known, by their blocks."""
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
        padded = not data[body - 1]
        if (stop == end or padded) and packet_id != ID_0:  # nothing follows
            retain = first & 1 == 1
            expiries_s: list[int | None] | None = None if expiry_s is None else [expiry_s]
            wire = None if qos or retain or special or padded else data[position:stop]
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
            heads = [head] * count
            position = self._take_varied_5(data, position, first, heads, found)
            if len(heads) > count:
                _fill(found, heads, qos)
        if qos:
            position = self.cut_at_id_0(data, start, position, found)
        return _event(first, topic, raw, found, data[start:position]), position

    def _take_varied_5(self, data: bytes, position: int, first: int, heads: list[Head], found: Found) -> int:
        """As `_take_varied`, for packets with blocks; `heads` are those of the packets before."""
        end, ready, nameless = len(data), self._ready.get, self._nameless.get
        shapes, previous, equal = shapes_of(first, self._config.packet_bytes_max, blocks=True), heads[-1], 0
        packet_ids: list[bytes] = []
        add_head, add_packet_id, add_payload = heads.append, packet_ids.append, found.payloads.append
        shape_at, begin = shapes.known, data[position : position + shapes.bytes]
        while True:
            try:
                take, size, exact = shape_at[begin]
            except KeyError:
                shape = shapes.learn(data, position)
                if shape is None:
                    break
                take, size, exact = shape
            try:
                topic, packet_id, block, payload, begin = take(data, position)
            except StructError:
                if position + size > end:
                    break
                topic, packet_id, block, payload, begin = take(data[position:] + bytes(shapes.bytes), 0)
            if not exact:
                block_bytes = payload[0] + 1
                if block_bytes > 128:
                    if len(payload) == 1 or not 0 < payload[1] < 128:
                        break
                    block_bytes += (payload[1] << 7) - 127
                if block_bytes > len(payload):
                    break
                block, payload = payload[:block_bytes], payload[block_bytes:]
            head = ready(topic + block) if topic else nameless(block)
            if head is None:
                if exact and len(block) != block[0] + 1:
                    shapes.learn(data, position, exact=False)
                    begin = data[position : position + shapes.bytes]
                    if begin in shape_at and not shape_at[begin][2]:
                        continue
                    break
                try:
                    head = self._head_of((topic or _NO_TOPIC) + block)
                except MqttProtocolError:
                    break
            if head is previous:
                equal += 1
                if equal == STRETCH:
                    break
            else:
                previous = head
                equal = 0
            add_head(head)
            add_packet_id(packet_id)
            add_payload(payload)
            position += size
        found.packet_ids += b"".join(packet_ids)
        return position

    def _head_of(self, raw: bytes) -> Head:
        """What a head says that is not ready, whose lengths were found to be right. Raises MqttProtocolError."""
        head = self._heads.get(raw) or self._new_head(raw)
        return self._resolve(raw, head) if head[4] else head

    def _resolve(self, raw: bytes, head: Head) -> Head:
        """A head with an alias, with the topic of that. Raises MqttProtocolError for an alias that stands for none.

        What an alias stands for seldom changes: then the head is as good as one with that topic.
        """
        topic, _, _, terms, alias = head
        if topic:
            before = self._aliases.get(alias)
            if before is None or before[0] != topic:
                self._aliases[alias] = topic, encode_text(topic)
                if before is not None:
                    self._changes += 1
                    if self._changes <= _CHANGES_MAX:
                        self._forget()
            if raw in self._heads and self._changes < _CHANGES_MAX:
                self._ready[raw] = head
            return head
        if alias not in self._aliases:
            raise MqttProtocolError(f"topic alias {alias} stands for nothing", "", ReasonCode.PROTOCOL_ERROR)
        topic, written = self._aliases[alias]
        plain = written + with_length(terms[0])
        resolved = topic, plain, len(plain), terms, alias
        if raw in self._heads and self._changes < _CHANGES_MAX:
            self._nameless[raw[2:]] = resolved
        return resolved

    def _forget(self) -> None:
        """What is known of heads does not hold any more, or is too much."""
        self._heads.clear()
        self._ready.clear()
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
        special = (_ALIASED if alias else 0) | (0 if expiry_s is None else _TIMED)
        plain = raw
        if special:
            plain = raw_topic + with_length(rest) if topic else b""
        if not comes_again:
            return topic, plain, len(plain), (rest, special, expiry_s), alias
        head = topic, plain, len(plain), _interned(rest, special, expiry_s), alias
        if len(self._heads) >= TOPICS_REMEMBERED_MAX:
            self._forget()
        self._heads[raw] = head
        if not alias:
            self._ready[raw] = head
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


def _fill(found: Found, heads: list[Head], qos: int) -> None:
    """What the heads of a run's messages say of each."""
    topics, plains, plain_bytes, terms, _ = zip(*heads, strict=True)
    found.topics = list(topics)
    if terms.count(terms[0]) == len(terms):
        special = terms[0][1]
    else:
        raws, specials, _ = zip(*terms, strict=True)
        found.raws, special = list(raws), max(specials)
    if special:
        found.aliased = True  # or timed, which is no less a reason
        if not qos:
            found.heads = starts_at_qos_0(list(map(add, plain_bytes, map(len, found.payloads)))), list(plains)
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
