"""What a client of MQTT 5 is told with CONNACK: what the broker has, and the limits that it keeps."""

from __future__ import annotations

from protocols.mqtt.adapter_sessions import granted_expiry_s
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import Connect
from protocols.mqtt.wire import NO_PROPERTIES, ConnackProperties

_TOLD_BYTES_MAX = (256 << 20) - 1
"""The largest length that a packet can state; a client may take no larger number for its limit, as paho does not."""


_HEAD_BYTES = 4096
"""What a PUBLISH may have besides its payload and still be told to be welcome: more than topic and properties need."""


def connack_properties(
    config: MqttConfig, connect: Connect, assigned: bool, message_bytes_max: int
) -> ConnackProperties:
    """The properties of a CONNACK that accepts; `assigned`: the broker chose the client identifier. Packets with a
    larger payload than the engine takes of a message would only be refused: they are said to be too large.
    """
    if connect.protocol_level < 5:
        return NO_PROPERTIES
    expiry_s, most_s = granted_expiry_s(connect.session_expiry_s), config.keep_alive_max_s
    another = connect.session_expiry_given or expiry_s != connect.session_expiry_s
    return ConnackProperties(
        session_expiry_s=expiry_s if another else None,
        receive_maximum=config.receive_maximum if config.receive_maximum < 65_535 else None,
        packet_bytes_max=min(config.packet_bytes_max, message_bytes_max + _HEAD_BYTES, _TOLD_BYTES_MAX),
        assigned_client_id=connect.client_id if assigned else None,
        topic_alias_max=config.topic_alias_max,
        server_keep_alive_s=most_s if most_s and not 0 < connect.keep_alive_s <= most_s else None,
        authentication_method=connect.authentication_method,
        authentication_data=connect.authentication_data or None,
    )
