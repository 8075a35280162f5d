"""What a client of MQTT 5 is told with CONNACK: what the broker has, and the limits that it keeps."""

from __future__ import annotations

from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import Connect
from protocols.mqtt.wire import ConnackProperties


def connack_properties(config: MqttConfig, connect: Connect, assigned: bool) -> ConnackProperties:
    """The properties of a CONNACK that accepts; `assigned`: the broker chose the client identifier."""
    return ConnackProperties(
        session_expiry_s=0 if connect.session_expiry_s else None,
        qos_max=1,
        packet_bytes_max=config.packet_bytes_max,
        assigned_client_id=connect.client_id if assigned else None,
        topic_alias_max=config.topic_alias_max,
        subscription_ids_available=False,
        shared_available=False,
        authentication_method=connect.authentication_method,
        authentication_data=connect.authentication_data or None,
    )
