"""What an MQTT client is sent: slabs become packets. For packet ids and acknowledgements see `adapter_inflight`.

A fan-out is encoded once, see `adapter_deliveries`. At QoS 1 and 2 only the packet ids differ between subscribers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakMethod

from protocols.convert import routing_key_to_topic
from protocols.mqtt.adapter_aliases import Aliases
from protocols.mqtt.adapter_deliveries import (
    WIRES_QOS_0,
    heads_of,
    known_at_qos_0,
    qos_0_packets,
    stretches,
    varied_at_qos_0,
    whole_at_qos_0,
)
from protocols.mqtt.adapter_properties import blocks_of
from protocols.mqtt.adapter_retained import EXCHANGE, GIVEN_FROM, given
from protocols.mqtt.adapter_sessions import queue_name
from protocols.mqtt.adapter_terms import (
    NO_TOPIC,
    Route,
    Stretch,
    expiries_left,
    packets_in,
    topics_and_blocks,
    ways_of,
)
from protocols.mqtt.packets import check_topic_name
from protocols.mqtt.properties import encode_text
from protocols.mqtt.raw import QOS_MASK, mark_of
from protocols.mqtt.reasons import MqttProtocolError
from protocols.mqtt.wire import (
    DUP,
    RETAIN,
    Blocks,
    PublishHeads,
    encode_publishes,
    encode_publishes_with_ids,
    encode_varied,
    remaining_length,
)
from routing.message import Properties, Slab
from routing.session import Consumer, Outcome, Session

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter
    from protocols.mqtt.adapter_inflight import Inflight
    from protocols.mqtt.adapter_subscriptions import Subscriptions

ROUTES_REMEMBERED_MAX = 4096

_ADDED_BYTES_MAX = 1024
"""Most of a publish that is neither payload, nor properties of its publisher's, nor subscription identifiers."""
_ID_BYTES_MAX = 5
"""Of a subscription identifier."""

_RETAINED_SHIFT = 2
"""RETAIN stands above the QoS in what tells stretches apart."""

log = logging.getLogger(__name__)


def qos_of(properties: Properties, raw: bytes) -> int:
    """The QoS that a message was published with; of one that came by another protocol at most 1."""
    if not properties.persistent:
        return 0
    return raw[0] & QOS_MASK if properties.protocol == "mqtt" and raw else 1


_AddRoute = Callable[[str], tuple[bytes | None, int]]


class _Topics(dict[str, bytes]):
    """The topics of routing keys, as they are written; of one that is none, nothing."""

    __slots__ = ("_add",)

    def __init__(self, add: WeakMethod[_AddRoute]) -> None:
        super().__init__()
        self._add = add

    def __missing__(self, routing_key: str) -> bytes:
        add = self._add()
        assert add is not None
        return add(routing_key)[0] or b""


class _Routes(dict[str, tuple[bytes | None, int]]):
    """What `_add_route` says, by routing key."""

    __slots__ = ("_add", "granted", "topics")

    def __init__(self, add: _AddRoute) -> None:
        super().__init__()
        self._add = WeakMethod(add)  # of who has this
        self.topics = _Topics(self._add)
        self.granted: frozenset[int | None] = frozenset()
        """At which QoS any of them is sent at most, None for one that is no topic; of those forgotten as well."""

    def __missing__(self, routing_key: str) -> tuple[bytes | None, int]:
        add = self._add()
        assert add is not None
        return add(routing_key)


class Delivering:
    """The outbound publishes of one connection, from CONNECT on; see the module."""

    __slots__ = (
        "__weakref__", "_adapter", "_aliases", "_drops", "_own_mark", "_packet_bytes_max", "_plain", "_routes",
        "_routes_on_terms", "_session", "_subscriptions", "_traffic", "_version_5", "_wire_qos_0", "asks_for_rights",
        "inflight", "too_large",
    )  # fmt: skip

    def __init__(
        self, adapter: MqttAdapter, session: Session, subscriptions: Subscriptions, inflight: Inflight
    ) -> None:
        self._adapter = adapter
        self._session = session
        self._subscriptions = subscriptions
        self.inflight = inflight
        self._routes = _Routes(self._add_route)
        self._drops = False
        self._version_5 = adapter.wire.has_properties
        self._wire_qos_0 = WIRES_QOS_0[self._version_5]
        self._packet_bytes_max = adapter.connect.packet_bytes_max
        self._traffic = adapter.traffic
        self._aliases: Aliases | None = None
        if self._version_5:
            aliases_max = min(adapter.connect.topic_alias_max, adapter.config.client_topic_alias_max)
            self._aliases = Aliases(aliases_max, self._packet_bytes_max) if aliases_max else None
        self._plain = self._aliases is None
        """There is nothing to a subscription but its QoS, and nothing to the client but those."""
        self._own_mark = b""
        """That of the client, where it does not want all that it publishes."""
        self._routes_on_terms: dict[str, Route] = {}
        self.asks_for_rights = False
        """What waits for the client was not all put there by subscriptions that its user may have."""
        self.too_large = 0
        """Messages that were not sent because the client takes no packets as large (MQTT-3.1.2-25)."""

    def forget_routes(self) -> None:
        """Subscriptions have changed."""
        self._routes = _Routes(self._add_route)
        self._routes_on_terms.clear()
        subscriptions = self._subscriptions
        self._plain = subscriptions.are_plain and self._aliases is None
        self._own_mark = mark_of(self._adapter.connect.client_id) if subscriptions.are_for_others else b""

    def deliver_what_fits(
        self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool
    ) -> None:
        """As `deliver`, to a client that takes no packets above a size."""
        assert self._packet_bytes_max is not None
        first = start
        for index in (*self._too_large(consumer, first_id, slab, start, stop, self._packet_bytes_max), stop):
            if index > first:
                self.deliver(consumer, first_id + first - start, slab, first, index, redelivered)
                if self.inflight.collided:
                    if index < stop:
                        self.inflight.give_back(first_id + index - start, first_id + stop - start - 1, redelivered)
                    return
            if index < stop and not consumer.no_ack:
                self._session.settle(first_id + index - start, first_id + index - start, Outcome.DISCARD)
            first = index + 1

    def _too_large(
        self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, packet_bytes_max: int
    ) -> list[int]:
        """Which of the messages would be larger packets than the client takes, with all that its subscriptions add."""
        if not slab.properties.raw[1:] and slab.raws is None:
            added_max = _ADDED_BYTES_MAX + _ID_BYTES_MAX * len(self._subscriptions.granted)
            if slab.size + added_max < packet_bytes_max:
                return []
        share = consumer.context
        mark, route_of = (b"", share.route_of) if share is not None else (self._own_mark, self._route_on_terms)
        left = expiries_left(consumer, first_id, slab, start, stop)
        found = []
        for first, last, way in ways_of(slab, start, stop, route_of, mark, no_ack=consumer.no_ack):
            if way.qos < 0:
                continue
            some = None if left is None else left[first - start : last - start]
            topics, blocks = topics_and_blocks(slab, first, last, way, route_of, some, version_5=True)
            for index in range(first, last):
                topic = topics if isinstance(topics, bytes) else topics[index - first]
                block = blocks if isinstance(blocks, bytes) else blocks[index - first]
                size = len(topic) + (2 if way.qos else 0) + len(block) + len(slab.bodies[index])
                if 1 + len(remaining_length(size)) + size > packet_bytes_max:
                    found.append(index)
        if found:
            if not self.too_large:
                most = f"of more than {packet_bytes_max} bytes"
                log.warning("MQTT %s: messages %s are not sent to the client", self._adapter.peer, most)
            self.too_large += len(found)
            self._traffic.publishes_too_large += len(found)
        return found

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Append PUBLISH packets for slab.bodies[start:stop] to the outbox."""
        traffic, whole = self._traffic, stop - start == len(slab.bodies)
        traffic.publishes_sent += stop - start
        traffic.publish_bytes_sent += slab.size if whole else sum(map(len, slab.bodies[start:stop]))
        left = None
        if self._version_5:
            left = expiries_left(consumer, first_id, slab, start, stop)
        if not self._plain or consumer.context is not None or left is not None:
            if not self._adapter.closed:
                self._deliver_on_terms(consumer, first_id, slab, start, stop, left, redelivered)
            return
        if consumer.no_ack and whole and slab.wire is not None:
            packets = slab.wire.get(self._wire_qos_0) or known_at_qos_0(slab, version_5=self._version_5)
            if packets is not None:
                self._adapter.outbox.write(packets)
                return
        session = self._session
        if self._adapter.closed:
            return
        raw = slab.properties.raw
        if slab.keys is not None or slab.raws is not None or raw >= GIVEN_FROM:
            retained = given(slab, start, stop)
            differ = slab.raws is not None and self._subscriptions.qos_max > 1
            if slab.keys is not None or retained is not None or differ:
                self._deliver_mixed(consumer, first_id, slab, start, stop, retained, redelivered)
                return
            if slab.raws is not None:
                raw = slab.raws[start]
        topic, granted = self._routes.get(slab.routing_key) or self._routes[slab.routing_key]
        if topic is None:
            if not consumer.no_ack:
                session.settle(first_id, first_id + stop - start - 1, Outcome.DISCARD)
            return
        qos = 0 if consumer.no_ack else min(granted, qos_of(slab.properties, raw))
        if qos:
            heads = heads_of(slab, topic, qos, DUP if redelivered else 0, version_5=self._version_5)
            blocks = blocks_of(slab, 0, len(slab.bodies)) if self._version_5 else b""
            self._send(consumer, first_id, qos, redelivered, heads, slab.bodies, blocks, start, stop)
        else:
            self._adapter.outbox.write(qos_0_packets(slab, start, stop, topic, version_5=self._version_5))
            if not consumer.no_ack:
                session.settle(first_id, first_id + stop - start - 1, Outcome.ACK)

    def _send(
        self,
        consumer: Consumer,
        first_id: int,
        qos: int,
        redelivered: bool,
        heads: PublishHeads,
        bodies: Sequence[bytes],
        blocks: Blocks,
        start: int,
        stop: int,
    ) -> None:
        """Publishes [start, stop) with packet ids, as many as there are ids for."""
        for packet_id, at, count in self.inflight.take(consumer, first_id, stop - start, redelivered, qos):
            first, end = start + at, start + at + count
            some = heads if type(heads) is bytes else heads[first:end]
            props = blocks if type(blocks) is bytes else blocks[first:end]
            packets = encode_publishes_with_ids(some, bodies[first:end], packet_id, props)
            self.inflight.write(consumer, packets, qos, first_id + at + count - 1)

    def _deliver_mixed(
        self,
        consumer: Consumer,
        first_id: int,
        slab: Slab,
        start: int,
        stop: int,
        retained: list[int] | None,
        redelivered: bool,
    ) -> None:
        """Deliver messages of different topics: stretches of one QoS and RETAIN flag, leaving out what is no topic."""
        session, count = self._session, stop - start
        keys = [slab.routing_key] * count if slab.keys is None else slab.keys[start:stop]
        topics = list(map(self._routes.topics.__getitem__, keys))
        kind_of, kinds = self._kinds(consumer, slab, start, stop, keys)
        if retained is not None:
            kinds = [
                None if kind is None else kind | flag << _RETAINED_SHIFT
                for kind, flag in zip(kinds or [kind_of] * count, retained, strict=True)
            ]
        elif kinds is None and kind_of == 0 and count == len(slab.bodies):
            self._adapter.outbox.write(whole_at_qos_0(slab, topics, version_5=self._version_5))
            if not consumer.no_ack:
                session.settle(first_id, first_id + stop - 1, Outcome.ACK)
            return
        for kind, first, last in [(kind_of, 0, count)] if kinds is None else stretches(kinds):
            bodies = slab.bodies[start + first : start + last]
            flags, kind = (0, None) if kind is None else (kind >> _RETAINED_SHIFT, kind & QOS_MASK)
            if kind is not None:
                blocks = blocks_of(slab, start + first, start + last) if self._version_5 else b""
                if not kind:
                    self._adapter.outbox.write(varied_at_qos_0(topics[first:last], bodies, blocks, flags=flags))
                else:
                    flags |= DUP if redelivered else 0
                    way = kind, flags
                    self._send_varied(consumer, first_id + first, way, redelivered, topics[first:last], bodies, blocks)
                    if self.inflight.collided:
                        if last < count:
                            self.inflight.give_back(first_id + last, first_id + count - 1, redelivered)
                        return
            if not kind and not consumer.no_ack:
                outcome = Outcome.DISCARD if kind is None else Outcome.ACK
                session.settle(first_id + first, first_id + last - 1, outcome)

    def _send_varied(
        self,
        consumer: Consumer,
        first_id: int,
        way: tuple[int, int],
        redelivered: bool,
        topics: Sequence[bytes],
        bodies: Sequence[bytes],
        blocks: Blocks,
    ) -> None:
        """Publishes with a topic each at the QoS and with the flags of `way`, as many as there are ids for."""
        qos, flags = way
        for packet_id, start, count in self.inflight.take(consumer, first_id, len(bodies), redelivered, qos):
            end = start + count
            props = blocks if isinstance(blocks, bytes) else blocks[start:end]
            packets = encode_varied(
                topics[start:end], bodies[start:end], qos, flags=flags, blocks=props, first_packet_id=packet_id
            )
            self.inflight.write(consumer, packets, qos, first_id + end - 1)

    def _kinds(
        self, consumer: Consumer, slab: Slab, start: int, stop: int, keys: Sequence[str]
    ) -> tuple[int | None, list[int | None] | None]:
        """At which QoS each message is sent, None if it is not: that of all, or a list where they differ."""
        routes, at_most = self._routes, 0
        if not consumer.no_ack and slab.properties.persistent:
            if slab.raws is not None:
                granted = [routes[key] for key in keys]
                return None, [
                    None if topic is None else min(qos, qos_of(slab.properties, raw))
                    for (topic, qos), raw in zip(granted, slab.raws[start:stop], strict=True)
                ]
            at_most = qos_of(slab.properties, slab.properties.raw)
        found = {None if qos is None else min(qos, at_most) for qos in routes.granted}
        if len(found) == 1:
            return found.pop(), None
        kinds = [None if topic is None else min(qos, at_most) for topic, qos in map(routes.__getitem__, keys)]
        found = set(kinds)
        return (found.pop(), None) if len(found) == 1 else (None, kinds)

    def _deliver_on_terms(
        self,
        consumer: Consumer,
        first_id: int,
        slab: Slab,
        start: int,
        stop: int,
        left: list[int | None] | None,
        redelivered: bool,
    ) -> None:
        """Deliver messages to which there is more than topic and QoS; see `adapter_terms`."""
        session, share = self._session, consumer.context
        mark, route_of = (b"", share.route_of) if share is not None else (self._own_mark, self._route_on_terms)
        # What another member of a group had before is new to this one (MQTT-3.3.1-1).
        flags = DUP if redelivered and share is None else 0
        for first, last, way in ways_of(slab, start, stop, route_of, mark, no_ack=consumer.no_ack):
            first_of_them, last_of_all = first_id + first - start, first_id + stop - start - 1
            if way.qos >= 0:
                some = None if left is None else left[first - start : last - start]
                some_flags = flags if way.qos else 0  # MQTT-3.3.1-2
                if self._aliases is None:
                    heads, blocks = packets_in(
                        slab, first, last, way, route_of, some, some_flags, version_5=self._version_5
                    )
                    bodies = slab.bodies[first:last]
                    if way.qos:
                        self._send(consumer, first_of_them, way.qos, redelivered, heads, bodies, blocks, 0, len(bodies))
                    else:
                        self._adapter.outbox.write(encode_publishes(heads, bodies))
                else:
                    stretch = Stretch(first, last, way)
                    self._send_aliased(consumer, first_of_them, redelivered, slab, stretch, route_of, some, some_flags)
                if way.qos:
                    if self.inflight.collided:
                        if last < stop:
                            self.inflight.give_back(first_id + last - start, last_of_all, redelivered)
                        return
                    continue
            if not consumer.no_ack:
                outcome = Outcome.DISCARD if way is NO_TOPIC else Outcome.ACK
                session.settle(first_of_them, first_of_them + last - first - 1, outcome)

    def _send_aliased(
        self,
        consumer: Consumer,
        first_id: int,
        redelivered: bool,
        slab: Slab,
        stretch: Stretch,
        route_of: Callable[[str], Route],
        left: list[int | None] | None,
        flags: int,
    ) -> None:
        """Publishes to a client that takes aliases; at QoS 1 and 2 as many as there are ids for."""
        first, last, way = stretch
        flags |= RETAIN if way.retain else 0
        some, blocks = topics_and_blocks(slab, first, last, way, route_of, left, version_5=True)
        topics, bodies = [some] * (last - first) if isinstance(some, bytes) else some, slab.bodies[first:last]
        assert self._aliases is not None
        encode = self._aliases.encode
        if not way.qos:
            self._adapter.outbox.write(encode(topics, bodies, 0, flags, blocks))
            return
        at_once = not self.inflight.may_wait(consumer, way.qos)
        for packet_id, start, count in self.inflight.take(consumer, first_id, last - first, redelivered, way.qos):
            end = start + count
            props = blocks if isinstance(blocks, bytes) else blocks[start:end]
            packets = encode(
                topics[start:end], bodies[start:end], way.qos, flags, props, first_packet_id=packet_id, at_once=at_once
            )
            self.inflight.write(consumer, packets, way.qos, first_id + end - 1)

    def _route_on_terms(self, routing_key: str) -> Route:
        route = self._routes_on_terms.get(routing_key)
        if route is None:
            if len(self._routes_on_terms) >= ROUTES_REMEMBERED_MAX:
                self._routes_on_terms.clear()
            terms, own = self._subscriptions.terms_for(routing_key), None
            if self._own_mark:
                own = self._subscriptions.terms_for_own(routing_key)
            route = self._routes_on_terms[routing_key] = (self._own_topic_of(routing_key), terms, own)
        return route

    def _add_route(self, routing_key: str) -> tuple[bytes | None, int]:
        """The topic of a routing key and the QoS granted for it; no topic when MQTT cannot express the key."""
        routes = self._routes
        if len(routes) >= ROUTES_REMEMBERED_MAX:
            routes.clear()
            routes.topics.clear()
        topic, qos = self._own_topic_of(routing_key), self._subscriptions.terms_for(routing_key).qos
        routes.topics[routing_key] = topic or b""
        routes.granted |= {None if topic is None else qos}
        route = routes[routing_key] = topic, qos
        return route

    def _own_topic_of(self, routing_key: str) -> bytes | None:
        """The topic by which the client's own queue delivers; None as well where that is not for the client.

        That may wait for it all the same, if it was another user's session or rights have changed: the user may not
        read the topic, and has no subscription to it.
        """
        if self.asks_for_rights and not self._subscriptions.match(routing_key):
            grants, own_name = self._adapter.grants, queue_name(self._adapter.connect.client_id)
            may_read = grants.allows("read", EXCHANGE) and grants.allows_key("read", EXCHANGE, routing_key)
            if not may_read and routing_key != own_name:
                return None
        return self.topic_of(routing_key)

    def topic_of(self, routing_key: str) -> bytes | None:
        """The topic of a routing key, as it is written; None when MQTT cannot express the key."""
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
        return topic
