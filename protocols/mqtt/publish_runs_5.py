"""Runs of publishes in a piece of input, for MQTT 5: with property blocks and topic aliases.

1. At QoS 0 the *head* of a packet, topic and property block, is one piece of its bytes; above that a packet id stands
   in between. What a head says was checked when it was first seen, so that a run with equal blocks is found as quickly
   as one without any, and a message with a block of its own costs little more than one with a topic of its own.
2. Heads are remembered by connection, and only those whose block has come before; checked blocks are remembered for all
   connections together. So blocks that never come again (a time in each of them) fill neither.
3. A topic alias is resolved here: an event names topics (3.3.2.3.4). `wire` is for messages that have none, and no
   expiry, which a broker has to count down; what differs without the alias, the head, is remembered with it.
"""

from __future__ import annotations

from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import PublishRun
from protocols.mqtt.properties import encode_text, read_variable, with_length
from protocols.mqtt.publish_blocks import PublishBlock, read_publish_block
from protocols.mqtt.publish_runs import (
    DUP,
    SHAPE_BYTES,
    STRETCH,
    TOPICS_REMEMBERED_MAX,
    Found,
    PublishRuns,
    shape_of,
    shapes_of,
)
from protocols.mqtt.reasons import MqttProtocolError, ReasonCode

_BLOCKS_REMEMBERED_MAX = 4096
_BLOCK_REMEMBERED_BYTES_MAX = 512
_blocks: dict[bytes, PublishBlock] = {}
_raws: dict[bytes, bytes] = {}

Head = tuple[str, bytes, int, bytes, int, int | None]
"""Topic, properties, what is special about it, the head without an alias (b"" where the topic is not known), alias (0
if there is none), expiry in seconds."""

_ALIASED, _RESOLVE, _TIMED = 1, 2, 4
"""It has an alias; the alias is still to be given a topic, or to be asked for it; there is an expiry."""
_CHANGES_MAX = 64
"""An alias that gets another topic makes what is known of heads void; who does that so often does it all the time."""


class PublishRuns5(PublishRuns):
    """Finds runs for one connection; remembers its heads and topic aliases."""

    def __init__(self, config: MqttConfig) -> None:
        super().__init__(config)
        self._heads: dict[bytes, Head] = {}
        self._aliases: dict[int, str] = {}
        self._changes = 0

    def take(self, data: bytes, position: int, body: int, stop: int) -> tuple[PublishRun, int]:
        """See `PublishRuns`."""
        first, end = data[position], len(data)
        qos = first >> 1 & 3
        id_bytes = 2 if qos else 0
        topic_stop = body + 2 + (data[body] << 8 | data[body + 1]) if stop > body + 1 else end
        if stop < topic_stop + id_bytes + 1 or stop < body + 3:
            raise MqttProtocolError("truncated PUBLISH", "MQTT-3.3.2-1")
        block = topic_stop + id_bytes
        size, block_stop = read_variable(data[block : min(stop, block + 4)], 0, "property length")
        block_stop += block + size
        if block_stop > stop:
            raise MqttProtocolError("truncated properties of PUBLISH", "MQTT-2.2.2-1")
        raw_block = data[block:block_stop]
        raw_head = data[body:topic_stop] + raw_block
        head = self._heads.get(raw_head) or self._new_head(raw_head)
        topic, raw, special, plain, _, expiry_s = head
        if special & _RESOLVE:
            topic, plain = self._resolve(raw_head, head)
        found = Found(data[block_stop:stop], data[topic_stop:block])
        start = position
        if qos:
            position = self.take_same(data, start, stop, topic_stop, raw_block, found)
        else:
            position = self.take_same(data, start, stop, block_stop, b"", found)
        count = len(found.payloads)
        found.aliased = special & _ALIASED > 0
        if expiry_s is not None:
            found.expiries_s = [expiry_s] * count
        if position + 5 < end and count < STRETCH and not (data[position] ^ first) & ~DUP:
            found.topics, found.raws = [topic] * count, [raw] * count
            if special & _ALIASED and not qos:
                found.heads = [plain] * count
            position = self._take_varied_5(data, position, first, head, found)
        if qos:
            position = self.cut_at_id_0(data, start, position, found)
        return _event(first, topic, raw, found, data[start:position]), position

    def _take_varied_5(self, data: bytes, position: int, first: int, previous: Head, found: Found) -> int:
        """As `_take_varied`, for packets with blocks; `previous` is the last head."""
        id_bytes, again = (2, first ^ DUP) if first & 6 else (0, first)
        end, packet_bytes_max, known = len(data), self._config.packet_bytes_max, self._heads.get
        topics, raws, expiries_s, payloads = found.topics, found.raws, found.expiries_s, found.payloads
        assert topics is not None
        assert raws is not None
        add_topic, add_raw, add_payload = topics.append, raws.append, payloads.append
        packet_ids, heads = found.packet_ids, found.heads
        shapes, equal, all_special = shapes_of(first, packet_bytes_max, version_5=True), 0, 0
        while position + 5 < end:
            start = data[position : position + SHAPE_BYTES]
            try:
                body, topic_stop, stop = shapes[start]
            except KeyError:
                if start[0] != first and start[0] != again:
                    break
                shape = shape_of(shapes, data, position, packet_bytes_max, id_bytes + 1)
                if shape is None:
                    break
                body, topic_stop, stop = shape
            stop += position
            if stop > end:
                break
            body += position
            topic_stop += position
            at = topic_stop + id_bytes
            # Most blocks are short.
            size = data[at]
            if size < 128:
                block_stop = at + 1 + size
            elif at + 1 < stop and 0 < data[at + 1] < 128:
                block_stop = at + 2 + (size & 127 | data[at + 1] << 7)
            else:
                break
            if block_stop > stop:
                break
            raw_head = data[body:topic_stop] + data[at:block_stop] if id_bytes else data[body:block_stop]
            head = known(raw_head)
            if head is None:
                try:
                    head = self._new_head(raw_head)
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
            topic, raw, special, plain, _, expiry_s = head
            if special > _ALIASED:
                if special & _RESOLVE:
                    try:
                        topic, plain = self._resolve(raw_head, head)
                    except MqttProtocolError:
                        break
                if special & _TIMED and expiries_s is None:
                    expiries_s = found.expiries_s = [None] * len(payloads)
            all_special |= special
            if heads is not None:
                heads.append(plain)
            if expiries_s is not None:
                expiries_s.append(expiry_s)
            add_topic(topic)
            add_raw(raw)
            if id_bytes:
                packet_ids += data[topic_stop:at]
            add_payload(data[block_stop:stop])
            position = stop
        found.aliased |= all_special & _ALIASED > 0
        return position

    def _resolve(self, raw: bytes, head: Head) -> tuple[str, bytes]:
        """The topic of a head with an alias, and the head without that. Raises MqttProtocolError for an alias that
        stands for none.

        What an alias stands for seldom changes: then the head is as good as one with that topic.
        """
        topic, properties, special, plain, alias, expiry_s = head
        if topic:
            before = self._aliases.get(alias)
            if before == topic:
                return topic, plain
            self._aliases[alias] = topic
            if before is not None:
                self._changes += 1
                if self._changes <= _CHANGES_MAX:
                    self._heads.clear()
            return topic, plain
        if alias not in self._aliases:
            raise MqttProtocolError(f"topic alias {alias} stands for nothing", "", ReasonCode.PROTOCOL_ERROR)
        topic = self._aliases[alias]
        plain = encode_text(topic) + with_length(properties)
        if raw in self._heads and self._changes < _CHANGES_MAX:
            self._heads[raw] = topic, properties, special & ~_RESOLVE, plain, alias, expiry_s
        return topic, plain

    def _new_head(self, raw: bytes) -> Head:
        """Check topic and block, whose lengths were found to be right."""
        topic_stop = 2 + (raw[0] << 8 | raw[1])
        raw_topic, raw_block = raw[:topic_stop], raw[topic_stop:]
        block = _blocks.get(raw_block)
        comes_again = block is not None
        if block is None:
            block = _new_block(raw_block)
        topic = ""
        if topic_stop > 2:
            topic = self._topics.get(raw_topic) or self._new_topic(raw_topic)
        elif not block.alias:
            raise MqttProtocolError("neither topic name nor topic alias", "", ReasonCode.PROTOCOL_ERROR)
        most = self._config.topic_alias_max
        if block.alias > most:
            text = f"topic alias {block.alias}, at most {most} is allowed"
            raise MqttProtocolError(text, "MQTT-3.3.2-9", ReasonCode.TOPIC_ALIAS_INVALID)
        special = (_ALIASED | _RESOLVE if block.alias else 0) | (0 if block.expiry_s is None else _TIMED)
        plain = raw
        if block.alias or block.expiry_s is not None:
            plain = raw_topic + with_length(block.raw) if topic else b""
        if not comes_again:
            return topic, block.raw, special, plain, block.alias, block.expiry_s
        # Properties that are the same are one object, whatever alias stood beside them: comparing those is quick.
        if len(_raws) >= _BLOCKS_REMEMBERED_MAX:
            _raws.clear()
        head = topic, _raws.setdefault(block.raw, block.raw), special, plain, block.alias, block.expiry_s
        if len(self._heads) >= TOPICS_REMEMBERED_MAX:
            self._heads.clear()
        self._heads[raw] = head
        return head

    @staticmethod
    def _packet_id_0() -> MqttProtocolError:
        return MqttProtocolError("PUBLISH with packet identifier 0", "MQTT-2.2.1-3", ReasonCode.PROTOCOL_ERROR)


def _new_block(raw: bytes) -> PublishBlock:
    """Check a block with its length in front, and remember it."""
    start = 1
    while raw[start - 1] > 127:
        start += 1
    block = read_publish_block(raw[start:])
    if len(raw) <= _BLOCK_REMEMBERED_BYTES_MAX:
        if len(_blocks) >= _BLOCKS_REMEMBERED_MAX:
            _blocks.clear()
        _blocks[raw] = block
    return block


def _event(first: int, topic: str, raw: bytes, found: Found, wire: bytes) -> PublishRun:
    """The event for a run that begins with this topic and these properties."""
    qos, retain, count = first >> 1 & 3, bool(first & 1), len(found.payloads)
    topics, raws, expiries_s = found.topics, found.raws, found.expiries_s
    if topics is not None and topics.count(topic) == count:
        topics = None
    if raws is not None and raws.count(raw) == count:
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
