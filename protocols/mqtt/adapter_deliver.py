"""What an MQTT client is sent: slabs become packets under packet ids, acknowledgements settle what the ids stood for.

A fan-out is encoded once, see `adapter_deliveries`. At QoS 1 only the packet ids differ between subscribers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from protocols.convert import routing_key_to_topic
from protocols.mqtt.adapter_deliveries import (
    WIRES_QOS_0,
    heads_at_qos_1,
    qos_0_packets,
    stretches,
    varied_at_qos_0,
    whole_at_qos_0,
)
from protocols.mqtt.adapter_properties import blocks_of
from protocols.mqtt.adapter_retained import given
from protocols.mqtt.events import Acknowledgements
from protocols.mqtt.inflight import PacketIds
from protocols.mqtt.packets import check_topic_name
from protocols.mqtt.properties import encode_text
from protocols.mqtt.raw import QOS_MASK
from protocols.mqtt.reasons import MqttProtocolError
from protocols.mqtt.wire import encode_publishes_with_ids, remaining_length, varied_heads
from routing.message import Slab
from routing.session import Consumer, Outcome, Session

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter
    from protocols.mqtt.adapter_subscriptions import Subscriptions

ROUTES_REMEMBERED_MAX = 4096

_RETAINED_SHIFT = 2
"""RETAIN stands above the QoS in what tells stretches apart."""

log = logging.getLogger(__name__)


class Delivering:
    """The outbound publishes of one connection, from CONNECT on; see the module."""

    def __init__(self, adapter: MqttAdapter, session: Session, subscriptions: Subscriptions) -> None:
        self._adapter = adapter
        self._session = session
        self._subscriptions = subscriptions
        self.packet_ids = PacketIds()
        self._routes: dict[str, tuple[bytes | None, int]] = {}
        self._drops = False
        self._version_5 = adapter.wire.has_properties
        self._wire_key = WIRES_QOS_0[self._version_5]
        self._packet_bytes_max = adapter.connect.packet_bytes_max
        self.too_large = 0
        """Messages that were not sent because the client takes no packets as large (MQTT-3.1.2-25)."""

    def forget_routes(self) -> None:
        """Subscriptions have changed."""
        self._routes.clear()

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Append PUBLISH packets for slab.bodies[start:stop] to the outbox."""
        if self._packet_bytes_max is None:
            self._deliver(consumer, first_id, slab, start, stop)
            return
        first = start
        for index in (*self._too_large(slab, start, stop, self._packet_bytes_max), stop):
            if index > first:
                self._deliver(consumer, first_id + first - start, slab, first, index)
            if index < stop and not consumer.no_ack:
                self._session.settle(first_id + index - start, first_id + index - start, Outcome.DISCARD)
            first = index + 1

    def _too_large(self, slab: Slab, start: int, stop: int, packet_bytes_max: int) -> list[int]:
        """Which of the messages would be larger packets than the client takes."""
        if slab.size + 1024 < packet_bytes_max and slab.raws is None and not slab.properties.raw[1:]:
            return []
        blocks = blocks_of(slab, start, stop)
        found = []
        for index in range(start, stop):
            block = blocks if isinstance(blocks, bytes) else blocks[index - start]
            size = 4 + len(slab.key_of(index).encode("utf-8", "replace")) + len(block) + len(slab.bodies[index])
            if 1 + len(remaining_length(size)) + size > packet_bytes_max:
                found.append(index)
        if found:
            if not self.too_large:
                most = f"of more than {packet_bytes_max} bytes"
                log.warning("MQTT %s: messages %s are not sent to the client", self._adapter.peer, most)
            self.too_large += len(found)
        return found

    def _deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int) -> None:
        if consumer.no_ack and slab.wire is not None and stop - start == len(slab.bodies):
            packets = slab.wire.get(self._wire_key)
            if packets is not None:
                self._adapter.outbox.write(packets)
                return
        session = self._session
        if self._adapter.closed:
            return
        retained = given(slab, start, stop)
        if slab.keys is not None or retained is not None:
            self._deliver_mixed(consumer, first_id, slab, start, stop, retained)
            return
        topic, granted = self._routes.get(slab.routing_key) or self._add_route(slab.routing_key)
        if topic is None:
            if not consumer.no_ack:
                session.settle(first_id, first_id + stop - start - 1, Outcome.DISCARD)
        elif granted and slab.properties.persistent and not consumer.no_ack:
            heads = heads_at_qos_1(slab, topic, version_5=self._version_5)
            blocks = blocks_of(slab, 0, len(slab.bodies)) if self._version_5 else b""
            for packet_id, count in self.packet_ids.take(first_id, stop - start):
                end = start + count
                some = heads if isinstance(heads, bytes) else heads[start:end]
                props = blocks if isinstance(blocks, bytes) else blocks[start:end]
                self._adapter.outbox.write(encode_publishes_with_ids(some, slab.bodies[start:end], packet_id, props))
                start = end
        else:
            self._adapter.outbox.write(qos_0_packets(slab, start, stop, topic, version_5=self._version_5))
            if not consumer.no_ack:
                session.settle(first_id, first_id + stop - start - 1, Outcome.ACK)

    def _deliver_mixed(
        self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, retained: list[int] | None
    ) -> None:
        """Deliver messages of different topics: stretches of one QoS and RETAIN flag, leaving out what is no topic."""
        session = self._session
        keys = [slab.routing_key] * (stop - start) if slab.keys is None else slab.keys[start:stop]
        routes = [self._routes.get(key) or self._add_route(key) for key in keys]
        topics = [topic or b"" for topic, _ in routes]
        at_qos_1 = slab.properties.persistent and not consumer.no_ack
        kinds = [None if topic is None else granted if at_qos_1 else 0 for topic, granted in routes]
        if retained is not None:
            kinds = [
                None if kind is None else kind | flag << _RETAINED_SHIFT
                for kind, flag in zip(kinds, retained, strict=True)
            ]
        elif start == 0 and stop == len(slab.bodies) and kinds.count(0) == stop:
            self._adapter.outbox.write(whole_at_qos_0(slab, topics, version_5=self._version_5))
            if not consumer.no_ack:
                session.settle(first_id, first_id + stop - 1, Outcome.ACK)
            return
        for kind, first, last in stretches(kinds):
            bodies = slab.bodies[start + first : start + last]
            flags, kind = (0, None) if kind is None else (kind >> _RETAINED_SHIFT, kind & QOS_MASK)
            if kind is not None:
                blocks = blocks_of(slab, start + first, start + last) if self._version_5 else b""
                if not kind:
                    self._adapter.outbox.write(varied_at_qos_0(topics[first:last], bodies, blocks, flags=flags))
                else:
                    heads = varied_heads(topics[first:last], bodies, kind, flags=flags, blocks=blocks)
                    at = 0
                    for packet_id, count in self.packet_ids.take(first_id + first, last - first):
                        some, end = heads[at : at + count], at + count
                        props = blocks if isinstance(blocks, bytes) else blocks[at:end]
                        self._adapter.outbox.write(encode_publishes_with_ids(some, bodies[at:end], packet_id, props))
                        at = end
            if not kind and not consumer.no_ack:
                outcome = Outcome.DISCARD if kind is None else Outcome.ACK
                session.settle(first_id + first, first_id + last - 1, outcome)

    def _add_route(self, routing_key: str) -> tuple[bytes | None, int]:
        """The topic of a routing key and the QoS granted for it; no topic when MQTT cannot express the key."""
        topic: bytes | None = None
        try:
            name = routing_key_to_topic(routing_key)
            check_topic_name(name)
            topic = encode_text(name)
        except (UnicodeEncodeError, MqttProtocolError) as error:
            if not self._drops:
                self._drops = True
                log.warning(
                    "MQTT %s: routing key %r is no topic, its like are dropped: %s",
                    self._adapter.peer,
                    routing_key,
                    error,
                )
        if len(self._routes) >= ROUTES_REMEMBERED_MAX:
            self._routes.clear()
        route = self._routes[routing_key] = (topic, self._subscriptions.qos_for(routing_key))
        return route

    def acknowledge(self, event: Acknowledgements) -> None:
        """Settle what was acknowledged."""
        for first, last in event.ranges:
            for first_delivery, last_delivery in self.packet_ids.release(first, last):
                self._session.settle(first_delivery, last_delivery, Outcome.ACK)
