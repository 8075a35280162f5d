"""Messages that an operator has published as if a client had."""

from __future__ import annotations

from protocols.convert import topic_to_routing_key
from protocols.mqtt.adapter_properties import PROTOCOL, from_neutral
from protocols.mqtt.adapter_publish import EXCHANGE
from protocols.mqtt.packets import check_topic_name
from protocols.mqtt.raw import GIVEN, RETAIN, head_of, with_flags
from protocols.mqtt.reasons import MqttProtocolError
from routing.errors import InvalidArgument
from routing.facts import pack
from routing.message import NeutralProperties, Properties
from routing.message_makers import Made, register_maker

_TOPIC_BYTES_MAX = 255
"""As of clients: see `MqttConfig.topic_bytes_max`."""


def made(topic: str, neutral: NeutralProperties, retain: bool) -> Made:
    """A message of MQTT 5 for a topic, at QoS 1 if it is persistent, else 0. Raises InvalidArgument."""
    try:
        check_topic_name(topic)
    except MqttProtocolError as error:
        raise InvalidArgument(f"{topic!r}: {error.reason}") from None
    if topic.startswith("$"):
        raise InvalidArgument(f"{topic!r}: topics that begin with $ are no plain topics")
    if len(topic.encode("utf-8", "replace")) > _TOPIC_BYTES_MAX:
        raise InvalidArgument(f"a topic has at most {_TOPIC_BYTES_MAX:,} bytes")
    raw = head_of(int(neutral.persistent), retain=retain) + from_neutral(neutral)
    facts = pack(neutral.persistent, ttl_ms=neutral.expiration_ms)

    def properties(raw: bytes) -> Properties:
        return Properties(PROTOCOL, raw, persistent=neutral.persistent, facts=facts)

    kept = properties(with_flags(raw, RETAIN | GIVEN)) if retain else None
    return Made(EXCHANGE, topic_to_routing_key(topic), properties(raw), kept)


register_maker(PROTOCOL, made)
