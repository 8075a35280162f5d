"""What an MQTT client publishes: runs of publishes become slabs, and confirms become acknowledgements.

A PUBACK is sent when the engine confirmed the message, never before. MQTT 3.1.1 has no way to refuse a publish, so a
message that could not be stored ends the connection, and the client sends it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.convert import topic_to_routing_key
from protocols.mqtt.adapter_deliveries import WIRES_QOS_0
from protocols.mqtt.adapter_properties import slab_of
from protocols.mqtt.events import AcknowledgementKind, PublishRun

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter
    from routing.session import Session

EXCHANGE = "amq.topic"
KEYS_REMEMBERED_MAX = 4096


class Publishing:
    """The inbound publishes of one connection, from CONNECT on; see the module."""

    def __init__(self, adapter: MqttAdapter, session: Session) -> None:
        self._adapter = adapter
        self._session = session
        self._keys: dict[str, str] = {}
        self._confirmed = 0
        self._unconfirmed = bytearray()
        """Packet ids (two bytes each) of the publishes after the first `_confirmed`."""

    def publish(self, run: PublishRun) -> None:
        """Hand a run to the engine. Raises BrokerError when the user may not, or a message at QoS 0 finds no room."""
        grants = self._adapter.grants
        keys = None if run.topics is None else list(map(self._key_of, run.topics))
        first = self._key_of(run.topic)
        if EXCHANGE not in grants.publishable:
            grants.require_publish(EXCHANGE, keys or (first,))
        slab = slab_of(run, EXCHANGE, first, keys)
        if run.retain:
            self._adapter.retaining.publish(slab, confirm=run.qos > 0)
            self._unconfirmed += run.packet_ids
            return
        if run.qos:
            self._unconfirmed += run.packet_ids
            self._session.publish(slab, confirm=True)
            return
        if run.wire is not None:
            slab.wire = {WIRES_QOS_0[self._adapter.wire.has_properties]: run.wire}
        self._session.publish(slab)

    def _key_of(self, topic: str) -> str:
        key = self._keys.get(topic)
        if key is None:
            if len(self._keys) >= KEYS_REMEMBERED_MAX:
                self._keys.clear()
            key = self._keys[topic] = topic_to_routing_key(topic)
        return key

    def confirm(self, up_to: int) -> None:
        """Send the PUBACKs of all publishes up to this sequence number (MQTT-4.3.2-2)."""
        size = 2 * (up_to - self._confirmed)
        if size <= 0 or self._adapter.closed:
            return
        self._confirmed = up_to
        packet_ids = bytes(self._unconfirmed[:size])
        del self._unconfirmed[:size]
        self._adapter.outbox.write(self._adapter.wire.acknowledgements(AcknowledgementKind.PUBACK, packet_ids))

    def refuse(self, first: int, last: int) -> None:
        """Publishes could not be stored; see the module."""
        self._adapter.end(f"{last - first + 1} messages could not be stored")
