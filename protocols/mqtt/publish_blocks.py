"""The property block of a PUBLISH from a client: checked, and divided into what the broker obeys and what it passes on.

Nearly all blocks are in order and in ASCII, and are read in one pass; what any other is, `properties.read_block` says.
"""

from __future__ import annotations

from typing import NamedTuple

from protocols.mqtt.properties import IN_PUBLISH, Property, check_response_topic, read_block, without
from protocols.mqtt.reasons import MqttProtocolError, ReasonCode

_USER, _CONTENT_TYPE, _RESPONSE_TOPIC, _CORRELATION = 0x26, 0x03, 0x08, 0x09
_ALIAS, _EXPIRY, _FORMAT = 0x23, 0x02, 0x01
_KEPT_APART = (Property.TOPIC_ALIAS, Property.MESSAGE_EXPIRY)


class PublishBlock(NamedTuple):
    """What the block of a PUBLISH from a client says."""

    alias: int
    """0 is none."""
    expiry_s: int | None
    raw: bytes
    """The block without these two, as the client wrote it."""


def read_publish_block(block: bytes) -> PublishBlock:
    """Check the block of a PUBLISH from a client. Raises MqttProtocolError."""
    try:
        quick = _read_plain(block)
    except IndexError:
        quick = None
    if quick is not None:
        return quick
    found = read_block(block, IN_PUBLISH, "PUBLISH")
    alias, expiry_s = found.get(Property.TOPIC_ALIAS), found.get(Property.MESSAGE_EXPIRY)
    check_response_topic(found.get(Property.RESPONSE_TOPIC))
    if alias == 0:
        raise MqttProtocolError("topic alias is 0", "MQTT-3.3.2-8", ReasonCode.TOPIC_ALIAS_INVALID)
    if alias is None and expiry_s is None:
        return PublishBlock(0, None, block)
    return PublishBlock(alias or 0, expiry_s, without(block, _KEPT_APART))


def _read_plain(block: bytes) -> PublishBlock | None:
    """The same for a block that is in order and in ASCII; None or IndexError for any other."""
    position, end, seen = 0, len(block), 0
    alias, expiry_s = 0, None
    kept, rest = 0, b""
    while position < end:
        identifier = block[position]
        if identifier == _USER:
            middle = position + 3 + (block[position + 1] << 8 | block[position + 2])
            stop = middle + 2 + (block[middle] << 8 | block[middle + 1])
            text = block[position + 3 : middle] + block[middle + 2 : stop]
            if not text.isascii() or b"\0" in text or stop > end:
                return None
            position = stop
            continue
        if seen >> identifier & 1:
            return None
        seen |= 1 << identifier
        if identifier == _ALIAS:
            stop = position + 3
            alias = block[position + 1] << 8 | block[position + 2]
            if not alias:
                return None
            rest += block[kept:position]
            kept = stop
        elif identifier == _EXPIRY:
            stop = position + 5
            expiry_s = int.from_bytes(block[position + 1 : stop], "big")
            rest += block[kept:position]
            kept = stop
        elif identifier == _FORMAT:
            stop = position + 2
            if block[position + 1] > 1:
                return None
        elif identifier == _CORRELATION:
            stop = position + 3 + (block[position + 1] << 8 | block[position + 2])
        elif identifier in (_CONTENT_TYPE, _RESPONSE_TOPIC):
            stop = position + 3 + (block[position + 1] << 8 | block[position + 2])
            text = block[position + 3 : stop]
            if not text.isascii() or b"\0" in text:
                return None
            if identifier == _RESPONSE_TOPIC and (not text or b"+" in text or b"#" in text):
                return None
        else:
            return None
        if stop > end:
            return None
        position = stop
    return PublishBlock(alias, expiry_s, rest + block[kept:] if kept else block)
