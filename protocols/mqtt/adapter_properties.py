"""Properties of MQTT 5 and the engine's: raw bytes (`raw.py`) to and from `NeutralProperties`, runs and blocks.

    user properties         headers; one that comes again is a list of its values
    content type            content type
    correlation data        correlation id
    response topic          reply-to, as the routing key that the topic stands for (`protocols/convert.py`)
    payload format 1        the header `x-mqtt-payload-format`
    the publisher's mark    the header `x-mqtt-publisher`, one way
    QoS 1 and 2             persistent
    message expiry          expiration; the engine counts it (`routing.facts`), raw bytes do not have it

What MQTT has no property for (message id, type, ...) becomes a user property `millrace.<name>`, as in a topic's
records, and comes back from there, but for a user id (`routing.message.TYPED_BY_HEADER`). A header that is no text
becomes its JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core_log.record_batch import encode_entries
from protocols.adapter_record_headers import Rewriter
from protocols.convert import routing_key_to_topic, topic_to_routing_key
from protocols.mqtt.events import PublishRun
from protocols.mqtt.packets import check_topic_name
from protocols.mqtt.properties import IN_PUBLISH, Property, encode_property, read_block, with_length
from protocols.mqtt.raw import block_of, head_of, mark_in
from protocols.mqtt.reasons import MqttProtocolError
from protocols.mqtt.wire import Blocks, remaining_length
from routing.facts import TTL_MS_MAX, pack
from routing.message import (
    NAME_ENCODING_ERRORS,
    RESERVED_HEADER_PREFIX,
    TYPED_BY_HEADER,
    TYPED_NAMES,
    NeutralProperties,
    Properties,
    Slab,
    application_headers,
    register_decoder,
    register_record_encoder,
)
from routing.topics.stream_records import RECORD_PROTOCOL

PROTOCOL = "mqtt"
PAYLOAD_FORMAT_HEADER = "x-mqtt-payload-format"
PUBLISHER_HEADER = "x-mqtt-publisher"
"""The mark of the publisher, of messages that have one (`raw.py`), in hexadecimal digits."""

QOS_0 = Properties(PROTOCOL, b"", persistent=False)
QOS_1 = Properties(PROTOCOL, b"\1", persistent=True)
QOS_2 = Properties(PROTOCOL, b"\2", persistent=True)
"""What publishes without properties have."""

_BY_QOS = (QOS_0, QOS_1, QOS_2)
_REMEMBERED_MAX = 4096
_REMEMBERED_BYTES_MAX = 1024
_TEXT_BYTES_MAX = 65_535
_interned: dict[tuple[bytes, int | None], Properties] = {}
_BLOCK = "mqtt 5 block"
_BLOCKS = "mqtt 5 blocks"

_BY_PROPERTY = {Property.CONTENT_TYPE: "content_type", Property.CORRELATION_DATA: "correlation_id"}
_WITH_PROPERTY = {"content_type", "correlation_id", "reply_to", "expiration_ms"}


# From a block to the neutral form, and to the headers of records.


def to_neutral(raw: bytes) -> NeutralProperties:
    """The neutral form of raw bytes that were checked when they were published."""
    neutral = NeutralProperties(persistent=bool(raw) and raw[0] & 3 > 0)
    block, mark = block_of(raw), mark_in(raw)
    if mark:
        neutral.headers[PUBLISHER_HEADER] = mark.hex()
    if not block:
        return neutral
    found = read_block(block, IN_PUBLISH, "PUBLISH")
    neutral.content_type = found.get(Property.CONTENT_TYPE)
    neutral.correlation_id = found.get(Property.CORRELATION_DATA)
    topic = found.get(Property.RESPONSE_TOPIC)
    neutral.reply_to = None if topic is None else topic_to_routing_key(topic)
    headers = neutral.headers
    for name, value in found.get(Property.USER_PROPERTY, ()):
        typed = TYPED_BY_HEADER.get(name)
        if typed is not None and _set_typed(neutral, typed, value):
            continue
        if name not in headers:
            headers[name] = value
        elif isinstance(headers[name], list):
            headers[name].append(value)
        else:
            headers[name] = [headers[name], value]
    if found.get(Property.PAYLOAD_FORMAT):
        headers[PAYLOAD_FORMAT_HEADER] = 1
    return neutral


def _set_typed(neutral: NeutralProperties, name: str, value: str) -> bool:
    """Take a user property that stands for a property MQTT does not have; whether its value is one."""
    if name in ("priority", "timestamp_s", "expiration_ms"):
        if not value.isdecimal() or len(value) > 18:
            return False
        setattr(neutral, name, int(value))
    elif name == "correlation_id":
        return False
    else:
        setattr(neutral, name, value)
    return True


def record_entries(raw: bytes) -> tuple[int, bytes]:
    """How many headers of a topic's record a block makes, and their bytes: user properties keep order and repeats."""
    found = _entries.get(raw)
    if found is None:
        headers: list[tuple[str, bytes | None]] = []
        block = block_of(raw)
        read = read_block(block, IN_PUBLISH, "PUBLISH") if block else {}
        for name, text in read.get(Property.USER_PROPERTY, ()):
            headers.append((name, text.encode()))
        if read.get(Property.PAYLOAD_FORMAT):
            headers.append((PAYLOAD_FORMAT_HEADER, b"1"))
        for identifier, name in _BY_PROPERTY.items():
            if identifier in read:
                value = read[identifier]
                value = value if isinstance(value, bytes) else value.encode()
                headers.append((RESERVED_HEADER_PREFIX + name.replace("_", "-"), value))
        if Property.RESPONSE_TOPIC in read:
            value = topic_to_routing_key(read[Property.RESPONSE_TOPIC]).encode()
            headers.append((RESERVED_HEADER_PREFIX + "reply-to", value))
        found = len(headers), encode_entries(headers)
        if len(raw) <= _REMEMBERED_BYTES_MAX:
            if len(_entries) >= _REMEMBERED_MAX:
                _entries.clear()
            _entries[raw] = found
    return found


_entries: dict[bytes, tuple[int, bytes]] = {}

register_decoder(PROTOCOL, to_neutral)
register_record_encoder(PROTOCOL, record_entries)


# From the neutral form to a block.


def from_neutral(neutral: NeutralProperties) -> bytes:
    """The block of a message that came in by another protocol; what a block cannot hold is left out."""
    headers = dict(neutral.headers)
    parts = []
    if headers.get(PAYLOAD_FORMAT_HEADER) in (1, "1"):
        parts.append(encode_property(Property.PAYLOAD_FORMAT, 1))
        del headers[PAYLOAD_FORMAT_HEADER]
    content_type = _clean(neutral.content_type)
    if content_type is not None:
        parts.append(encode_property(Property.CONTENT_TYPE, content_type))
    rest: list[tuple[str, Any]] = []
    if neutral.reply_to is not None:
        topic = _topic(neutral.reply_to)
        if topic is not None:
            parts.append(encode_property(Property.RESPONSE_TOPIC, topic))
        else:
            rest.append(("reply_to", neutral.reply_to))
    if neutral.correlation_id is not None and len(neutral.correlation_id) <= _TEXT_BYTES_MAX:
        parts.append(encode_property(Property.CORRELATION_DATA, neutral.correlation_id))
    pairs = [pair for name, value in headers.items() for pair in _pairs(name, value)]
    rest += [(name, getattr(neutral, name)) for name in TYPED_NAMES if name not in _WITH_PROPERTY]
    for name, value in rest:
        if value is not None:
            pairs += _pairs(RESERVED_HEADER_PREFIX + name.replace("_", "-"), value)
    parts += [encode_property(Property.USER_PROPERTY, pair) for pair in pairs]
    return b"".join(parts)


def _pairs(name: str, value: Any) -> list[tuple[str, str]]:
    """A header as user properties: a list of texts is one for each."""
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return [pair for one in value for pair in _pairs(name, one)]
    ((_, written),) = application_headers({name: value})
    clean_name, clean_value = _clean(name), _clean((written or b"").decode("utf-8", "replace"))
    return [] if clean_name is None or clean_value is None else [(clean_name, clean_value)]


def _clean(text: str | None) -> str | None:
    """A text as MQTT can write it; None if it cannot."""
    if text is None or "\0" in text:
        return None
    encoded = text.encode("utf-8", NAME_ENCODING_ERRORS)
    return encoded.decode("utf-8", "replace") if len(encoded) <= _TEXT_BYTES_MAX // 3 else None


def _topic(routing_key: str) -> str | None:
    topic = routing_key_to_topic(routing_key)
    try:
        check_topic_name(topic)
    except MqttProtocolError:
        return None
    return topic if _clean(topic) == topic else None


# What comes in.


def slab_of(run: PublishRun, exchange: str, key: str, keys: list[str] | None, mark: bytes = b"") -> Slab:
    """A run as the engine takes it. `mark` is that of the publisher where anybody asks for it (`raw.py`)."""
    qos, raws = run.qos, run.raws
    if raws is None and not run.raw and run.expiries_s is None and not mark and not run.retain:
        return Slab(exchange, key, _BY_QOS[qos], run.payloads, keys=keys)
    head = head_of(qos, retain=run.retain, mark=mark)
    facts: list[int] | None = None
    common: int | None = None
    expiries_s = run.expiries_s
    if expiries_s is not None:
        if expiries_s.count(expiries_s[0]) == len(expiries_s):
            common = facts_for(qos, expiries_s[0])
        else:
            facts = [facts_for(qos, expiry_s) for expiry_s in expiries_s]
            raws = raws or [run.raw] * len(facts)
    properties = _intern(head + run.raw, qos > 0, common)
    if raws is not None:
        raws = [head + raw for raw in raws]
    return Slab(exchange, key, properties, run.payloads, keys=keys, raws=raws, facts=facts)


def facts_for(qos: int, expiry_s: int | None) -> int:
    """The facts of a message. One that lives longer than the engine can count (ten years) lives for ever."""
    ttl_ms = None if expiry_s is None or expiry_s * 1000 > TTL_MS_MAX else expiry_s * 1000
    return pack(qos > 0, ttl_ms=ttl_ms)


def _intern(raw: bytes, persistent: bool, facts: int | None) -> Properties:
    properties = _interned.get((raw, facts))
    if properties is None:
        properties = Properties(PROTOCOL, raw, persistent=persistent, facts=facts)
        if len(raw) <= _REMEMBERED_BYTES_MAX:
            if len(_interned) >= _REMEMBERED_MAX:
                _interned.clear()
            _interned[raw, facts] = properties
    return properties


# What goes out.


class _Blocks(dict[bytes, bytes]):
    """Blocks as they stand in a packet, by raw bytes of MQTT; those that come again are made once."""

    def __missing__(self, raw: bytes) -> bytes:
        block = block_of(raw)
        block = remaining_length(len(block)) + block
        if len(raw) <= _REMEMBERED_BYTES_MAX:
            if len(self) >= _REMEMBERED_MAX:
                self.clear()
            self[raw] = block
        return block


_blocks = _Blocks()


def blocks_of(slab: Slab, start: int, stop: int) -> Blocks:
    """The property blocks of slab.bodies[start:stop] for a client of MQTT 5, with their lengths: one, or one for each.

    They are made once for a slab, and say nothing of expiry and subscription identifiers (`with_more`).
    """
    if slab.raws is None:
        return block_for(slab.properties)
    memo = slab.memo()
    blocks: list[bytes] | None = memo.get(_BLOCKS)
    if blocks is None:
        protocol, persistent = slab.properties.protocol, slab.properties.persistent
        if protocol == PROTOCOL:
            blocks = list(map(_blocks.__getitem__, slab.raws))
        elif protocol == RECORD_PROTOCOL:
            blocks = list(map(_block_of_record, _rewriter.rewrite(slab.raws), slab.raws))
        else:
            blocks = [block_for(Properties(protocol, raw, persistent=persistent)) for raw in slab.raws]
        memo[_BLOCKS] = blocks
    return blocks if stop - start == len(blocks) else blocks[start:stop]


def _block_of_record(written: bytes | None, block: bytes) -> bytes:
    """The block for headers of a record, which are `written` as user properties if they could be: no text may have a
    NUL.
    """
    if written is None or block.find(0, 1) >= 0:
        return block_for(Properties(RECORD_PROTOCOL, block, persistent=True))
    size = len(written)
    return _LENGTHS[size] + written if size < 128 else with_length(written)


_LENGTHS = [bytes((size,)) for size in range(128)]


def _head(name: str, size: int) -> bytes:
    if name == PAYLOAD_FORMAT_HEADER:
        raise ValueError(name)
    return encode_property(Property.USER_PROPERTY, (name, ""))[:-2] + max(size, 0).to_bytes(2, "big")


def _binary(name: str, value: bytes) -> bytes:
    return encode_property(Property.USER_PROPERTY, (name, value.decode("utf-8", "replace")))


_rewriter = Rewriter(_head, _binary)


def block_for(properties: Properties) -> bytes:
    """The block, with its length, for properties of any protocol, made once."""
    block: bytes | None = properties.wire.get(_BLOCK)
    if block is None:
        if properties.protocol == PROTOCOL:
            block = with_length(block_of(properties.raw))
        else:
            block = with_length(from_neutral(properties.neutral))
        properties.wire[_BLOCK] = block
    return block


def with_more(blocks: Blocks, count: int, more: bytes = b"", expiries_s: Sequence[int | None] | None = None) -> Blocks:
    """Blocks with further properties behind: `more` (subscription identifiers) in all, and what is left of expiries."""
    if not more and expiries_s is None:
        return blocks
    each = [blocks] * count if isinstance(blocks, bytes) else blocks
    if expiries_s is None:
        if isinstance(blocks, bytes):
            return _longer(blocks, more)
        return [_longer(block, more) for block in each]
    return [
        _longer(block, more if left is None else more + encode_property(Property.MESSAGE_EXPIRY, left))
        for block, left in zip(each, expiries_s, strict=True)
    ]


def _longer(block: bytes, more: bytes) -> bytes:
    """A block with its length, and `more` behind."""
    at = 1
    while block[at - 1] > 127:
        at += 1
    return with_length(block[at:] + more)
