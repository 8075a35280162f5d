"""MQTT 3.1.1 on the engine: one adapter is one client connection. The README of this folder has the mapping.

1. A read is a batch: a run of publishes becomes one slab, a run of acknowledgements one settled range, a confirm one
   write of PUBACKs. Only CONNECT, SUBSCRIBE and UNSUBSCRIBE may suspend.
2. A PUBACK is sent when the engine confirmed the message, never before. MQTT 3.1.1 has no way to refuse a publish, so a
   message that could not be stored ends the connection, and the client sends it again.
3. A fan-out is encoded once: the bytes of a slab at QoS 0 are kept in `Slab.wire`, where a publish that came in as the
   very bytes a subscriber needs has put them already. At QoS 1 only the packet ids differ between subscribers.
4. `_end` marks the connection as over, `_leave` gives everything back to the engine and publishes the will. The sink's
   methods only mark: the engine may be in the middle of something.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from protocols.convert import routing_key_to_topic, topic_to_routing_key
from protocols.mqtt.adapter_deliveries import (
    WIRE_QOS_0,
    heads_at_qos_1,
    qos_0_packets,
    stretches,
    whole_at_qos_0,
)
from protocols.mqtt.adapter_login import Login
from protocols.mqtt.adapter_subscriptions import Subscriptions
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.connection import ServerConnection
from protocols.mqtt.events import (
    Acknowledgements,
    Connect,
    Disconnect,
    Event,
    PingRequest,
    PublishRun,
    Subscribe,
    Unsubscribe,
)
from protocols.mqtt.inflight import PacketIds
from protocols.mqtt.packets import (
    ACCEPTED,
    NOT_AUTHORIZED,
    PINGRESP,
    SERVER_UNAVAILABLE,
    SUBSCRIBE_FAILURE,
    MqttProtocolError,
    check_topic_name,
    encode_connack,
    encode_pubacks,
    encode_publishes,
    encode_publishes_with_ids,
    encode_suback,
    encode_text,
    encode_unsuback,
    varied_heads,
)
from protocols.peers import Authenticate
from protocols.sansio import Outbox
from routing.clients import Client
from routing.errors import BrokerError, NoPermission
from routing.grants import Grants
from routing.message import NeutralProperties, Properties, Slab, register_decoder
from routing.session import Consumer, Outcome, Session

if TYPE_CHECKING:
    from routing.broker import Broker

EXCHANGE = "amq.topic"
KEEP_ALIVE_FACTOR = 1.5
ROUTES_REMEMBERED_MAX = 4096

log = logging.getLogger(__name__)

# MQTT 3.1.1 has no properties; the one raw byte is there so that the neutral form knows QoS 1 from QoS 0.
_QOS_0 = Properties("mqtt", b"", persistent=False)
_QOS_1 = Properties("mqtt", b"\1", persistent=True)
register_decoder("mqtt", lambda raw: NeutralProperties(persistent=bool(raw)))

_clients: WeakKeyDictionary[Broker, dict[str, MqttAdapter]] = WeakKeyDictionary()
"""The connection of each client identifier (MQTT-3.1.4-2)."""


class MqttAdapter:
    """One MQTT connection; see the module. Implements `protocols.sansio.Adapter` and `routing.session.DeliverySink`."""

    def __init__(
        self,
        broker: Broker,
        outbox: Outbox,
        *,
        peer: str,
        clock: Callable[[], float],
        config: MqttConfig | None = None,
        authenticate: Authenticate | None = None,
        peer_certificate_name: str | None = None,
    ) -> None:
        """`peer` is the address for logs and for the loopback rule; for the rest see `Login`."""
        self.closed = self.published = self.held = False
        self._broker = broker
        self._outbox = outbox
        self._peer = peer
        self._clock = clock
        self._config = config or MqttConfig()
        self._login = Login(self._config, authenticate, peer, peer_certificate_name)
        self._connection = ServerConnection(self._config)
        self._deadline_s = clock() + self._config.connect_timeout_s
        self._keep_alive_s = 0.0
        self._connect = Connect(4, "")
        self._session: Session | None = None
        self._grants: Grants
        """What the user may do, from CONNECT on."""
        self._consumer: Consumer | None = None
        self._queue = ""
        self._subscriptions = Subscriptions()
        self._routes: dict[str, tuple[bytes | None, int]] = {}
        self._keys: dict[str, str] = {}
        self._packet_ids = PacketIds()
        self._drops = False
        self._confirmed = 0
        self._unconfirmed = bytearray()
        """Packet ids (two bytes each) of the publishes after the first `_confirmed`."""

    # The shell's side.

    async def handle(self, data: bytes) -> None:
        """Take bytes read from the peer; b"" means that it closed its side."""
        if not data:
            self._end("the client closed the transport", logging.DEBUG)
            return
        violation = None
        try:
            events = self._connection.receive_data(data)
        except MqttProtocolError as error:
            events, violation = error.events, error
        try:
            for event in events:
                if self.closed:
                    return
                if type(event) is PublishRun:
                    self.published = True
                    self._publish(event)
                elif type(event) is Acknowledgements:
                    self._acknowledge(event)
                else:
                    await self._control(event)
        except BrokerError as error:
            self._end(str(error))
        if events and self._keep_alive_s and not self.closed:
            self._deadline_s = self._clock() + self._keep_alive_s
        if violation is not None and not self.closed:
            self._outbox.write(violation.answer)
            self._end(str(violation))

    def next_timer_at(self) -> float:
        """When CONNECT or the next packet is overdue."""
        return self._deadline_s

    def handle_timer(self, now: float) -> None:
        """Close a connection that is silent for 1.5 times its keep-alive (MQTT-3.1.2-24), or sent no CONNECT."""
        if self.held and self._session is not None:
            self._deadline_s = now + self._keep_alive_s if self._keep_alive_s else math.inf
        elif now >= self._deadline_s:
            self._end("no CONNECT in time" if self._session is None else "keep-alive timeout")

    def connection_lost(self) -> None:
        """The transport is gone."""
        self._end("the transport was lost", logging.DEBUG)
        self._leave()

    def shut_down(self, reason: str) -> None:
        """MQTT 3.1.1 has no packet for it: the transport is closed."""
        self._end(reason, logging.DEBUG)

    # Control packets.

    async def _control(self, event: Event) -> None:
        if isinstance(event, Connect):
            await self._open(event)
        elif isinstance(event, Subscribe):
            await self._subscribe(event)
        elif isinstance(event, Unsubscribe):
            await self._unsubscribe(event)
        elif isinstance(event, PingRequest):
            self._outbox.write(PINGRESP)
        elif isinstance(event, Disconnect):
            self._connect.will = None  # MQTT-3.14.4-3
            self._end("the client disconnected", logging.DEBUG)

    async def _open(self, connect: Connect) -> None:
        """Answer a CONNECT: refuse it, or make a session and take the client identifier over."""
        code = await self._login.refusal(connect)
        if self.closed:
            return
        connect.client_id = connect.client_id or f"auto-{secrets.token_hex(12)}"
        excess = connect.will and self._config.over_limit(connect.will.topic)
        if code == ACCEPTED and not excess:
            code = self._join(connect)
        if code != ACCEPTED:
            self._outbox.write(encode_connack(code))
            self._end(f"CONNECT refused with return code {code}")
            return
        if excess:
            self._end(f"will {excess}")
            return
        clients = _clients.setdefault(self._broker, {})
        previous = clients.get(connect.client_id)
        if previous is not None:
            previous._end("the client connected again", logging.DEBUG)
            previous._leave()
        clients[connect.client_id] = self
        self._connect = connect
        self._keep_alive_s = connect.keep_alive_s * KEEP_ALIVE_FACTOR
        self._deadline_s = self._clock() + self._keep_alive_s if self._keep_alive_s else math.inf
        self._session = self._broker.session(self, protocol="mqtt", owner=self, vhost=self._config.virtual_host)
        self._session.set_prefetch(self._config.inflight_messages_max, per_session=True)
        self._outbox.on_writable = self._session.resume
        self._outbox.write(encode_connack(ACCEPTED))
        log.debug("MQTT %s: client %r connected", self._peer, connect.client_id)

    def _join(self, connect: Connect) -> int:
        """Become a client of the broker, with the rights of its user; the return code."""
        user = self._login.user_of(connect)
        client = Client("mqtt", user, self._config.virtual_host, self._peer, self._end, connect.client_id)
        try:
            self._grants = self._broker.connect(self, client, client_id=connect.client_id)
        except BrokerError as error:
            log.warning("MQTT %s: %s", self._peer, error)
            return NOT_AUTHORIZED if isinstance(error, NoPermission) else SERVER_UNAVAILABLE
        return ACCEPTED

    async def _subscribe(self, event: Subscribe) -> None:
        """Bind a queue for each filter, consume, and say what was granted: at most QoS 1."""
        requests = event.requests[: self._config.subscriptions_max]
        codes = [await self._bind(request.topic_filter, min(request.qos, 1)) for request in requests]
        codes += [SUBSCRIBE_FAILURE] * (len(event.requests) - len(requests))
        if not self.closed:
            self._routes.clear()
            await self._consume()
            self._outbox.write(encode_suback(event.packet_id, codes))

    async def _bind(self, topic_filter: str, qos: int) -> int:
        """Make one filter effective; returns its return code in SUBACK."""
        granted = self._subscriptions.granted
        if self.closed or self._config.over_limit(topic_filter):
            return SUBSCRIBE_FAILURE
        if topic_filter not in granted:
            if len(granted) >= self._config.subscriptions_max:
                return SUBSCRIBE_FAILURE
            try:
                if not self._queue:
                    self._queue = await self._declare_queue()
                pattern = topic_to_routing_key(topic_filter)
                self._grants.require("read", "exchange", EXCHANGE)
                self._grants.require_keys("read", EXCHANGE, (pattern,))
                await self._broker.bind(
                    "queue",
                    self._queue,
                    EXCHANGE,
                    pattern,
                    {},
                    syntax="mqtt",
                    owner=self,
                    vhost=self._config.virtual_host,
                )
            except BrokerError as error:
                log.warning("MQTT %s: no subscription to %r: %s", self._peer, topic_filter, error)
                return SUBSCRIBE_FAILURE
        self._subscriptions.grant(topic_filter, qos)
        return qos

    async def _declare_queue(self) -> str:
        info = await self._broker.declare_queue(
            f"mqtt.{self._connect.client_id}",
            durable=False,
            exclusive=True,
            auto_delete=True,
            arguments={},
            owner=self,
            vhost=self._config.virtual_host,
        )
        return info.name

    async def _unsubscribe(self, event: Unsubscribe) -> None:
        """Unbind; filters that are not there are answered all the same (MQTT-3.10.4-5)."""
        for topic_filter in event.filters:
            if topic_filter in self._subscriptions.granted:
                self._subscriptions.remove(topic_filter)
                pattern = topic_to_routing_key(topic_filter)
                await self._broker.unbind(
                    "queue",
                    self._queue,
                    EXCHANGE,
                    pattern,
                    {},
                    syntax="mqtt",
                    owner=self,
                    vhost=self._config.virtual_host,
                )
        if not self.closed:
            self._routes.clear()
            self._outbox.write(encode_unsuback(event.packet_id))

    async def _consume(self) -> None:
        """Consume without acknowledgement as long as nothing was granted QoS 1."""
        no_ack, old = not self._subscriptions.qos_max, self._consumer
        if self._session is None or not self._queue or (old is not None and (no_ack or not old.no_ack)):
            return
        # The new one first: the queue goes with its last consumer.
        self._consumer = await self._session.consume(self._queue, tag="", no_ack=no_ack)
        if old is not None:
            self._session.cancel(old)

    # Publishing.

    def _publish(self, run: PublishRun) -> None:
        assert self._session is not None
        keys = None if run.topics is None else list(map(self._key_of, run.topics))
        first = self._key_of(run.topic)
        if EXCHANGE not in self._grants.publishable:
            self._grants.require_publish(EXCHANGE, keys or (first,))
        if run.qos:
            self._unconfirmed += run.packet_ids
            self._session.publish(Slab(EXCHANGE, first, _QOS_1, run.payloads, keys=keys), confirm=True)
            return
        slab = Slab(EXCHANGE, first, _QOS_0, run.payloads, keys=keys)
        if run.wire is not None:
            slab.wire = {WIRE_QOS_0: run.wire}
        self._session.publish(slab)

    def _key_of(self, topic: str) -> str:
        key = self._keys.get(topic)
        if key is None:
            if len(self._keys) >= ROUTES_REMEMBERED_MAX:
                self._keys.clear()
            key = self._keys[topic] = topic_to_routing_key(topic)
        return key

    def confirm(self, up_to: int) -> None:
        """Send the PUBACKs of all publishes up to this sequence number (MQTT-4.3.2-2)."""
        size = 2 * (up_to - self._confirmed)
        if size <= 0 or self.closed:
            return
        self._confirmed = up_to
        packet_ids = bytes(self._unconfirmed[:size])
        del self._unconfirmed[:size]
        self._outbox.write(encode_pubacks(packet_ids))

    def refuse(self, first: int, last: int) -> None:
        """Publishes could not be stored; see the module's rule 2."""
        self._end(f"{last - first + 1} messages could not be stored")

    def returned(self, slab: Slab, reason: str) -> None:
        """Never happens: nothing is published as mandatory."""

    # Delivering.

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Append PUBLISH packets for slab.bodies[start:stop] to the outbox."""
        if consumer.no_ack and slab.wire is not None and stop - start == len(slab.bodies):
            packets = slab.wire.get(WIRE_QOS_0)
            if packets is not None:
                self._outbox.write(packets)
                return
        session = self._session
        if session is None or self.closed:
            return
        if slab.keys is not None:
            self._deliver_mixed(consumer, first_id, slab, slab.keys, start, stop)
            return
        topic, granted = self._routes.get(slab.routing_key) or self._add_route(slab.routing_key)
        if topic is None:
            if not consumer.no_ack:
                session.settle(first_id, first_id + stop - start - 1, Outcome.DISCARD)
        elif granted and slab.properties.persistent and not consumer.no_ack:
            heads = heads_at_qos_1(slab, topic)
            for packet_id, count in self._packet_ids.take(first_id, stop - start):
                end = start + count
                some = heads if isinstance(heads, bytes) else heads[start:end]
                self._outbox.write(encode_publishes_with_ids(some, slab.bodies[start:end], packet_id))
                start = end
        else:
            self._outbox.write(qos_0_packets(slab, start, stop, topic))
            if not consumer.no_ack:
                session.settle(first_id, first_id + stop - start - 1, Outcome.ACK)

    def _deliver_mixed(
        self, consumer: Consumer, first_id: int, slab: Slab, keys: list[str], start: int, stop: int
    ) -> None:
        """Deliver messages of different topics: stretches of one QoS, leaving out what is no topic."""
        session = self._session
        assert session is not None
        routes = [self._routes.get(key) or self._add_route(key) for key in keys[start:stop]]
        topics = [topic or b"" for topic, _ in routes]
        at_qos_1 = slab.properties.persistent and not consumer.no_ack
        kinds = [None if topic is None else granted if at_qos_1 else 0 for topic, granted in routes]
        if start == 0 and stop == len(keys) and kinds.count(0) == stop:
            self._outbox.write(whole_at_qos_0(slab, topics))
            if not consumer.no_ack:
                session.settle(first_id, first_id + stop - 1, Outcome.ACK)
            return
        for kind, first, last in stretches(kinds):
            bodies = slab.bodies[start + first : start + last]
            if kind is not None:
                heads = varied_heads(topics[first:last], bodies, kind)
                if not kind:
                    self._outbox.write(encode_publishes(heads, bodies))
                else:
                    at = 0
                    for packet_id, count in self._packet_ids.take(first_id + first, last - first):
                        some, end = heads[at : at + count], at + count
                        self._outbox.write(encode_publishes_with_ids(some, bodies[at:end], packet_id))
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
                    "MQTT %s: routing key %r is no topic, its like are dropped: %s", self._peer, routing_key, error
                )
        if len(self._routes) >= ROUTES_REMEMBERED_MAX:
            self._routes.clear()
        route = self._routes[routing_key] = (topic, self._subscriptions.qos_for(routing_key))
        return route

    def _acknowledge(self, event: Acknowledgements) -> None:
        assert self._session is not None
        for first, last in event.ranges:
            for first_delivery, last_delivery in self._packet_ids.release(first, last):
                self._session.settle(first_delivery, last_delivery, Outcome.ACK)

    def cancelled(self, consumer: Consumer) -> None:
        """Somebody deleted the queue: end the connection rather than go silent."""
        self._end("the queue of the client was deleted")

    def writable(self) -> bool:
        """Whether deliveries may come."""
        return self._outbox.writable and not self.closed

    # Ending.

    def _end(self, reason: str, level: int = logging.WARNING) -> None:
        """The connection is over; the shell closes the transport and calls `connection_lost`."""
        if self.closed:
            return
        self.closed = True
        self._deadline_s = math.inf
        log.log(level, "MQTT %s: closing the connection of client %r: %s", self._peer, self._connect.client_id, reason)
        self._outbox.write(b"")  # makes the shell look at `closed` when it was not our own read that ended it

    def _leave(self) -> None:
        """Publish the will (MQTT-3.1.2-8) and give everything back, once."""
        session, self._session = self._session, None
        if session is None:
            return
        will = self._connect.will
        if will is not None:
            # A subscriber gets QoS 1 at most, so that a will of QoS 2 is the same as one of QoS 1.
            slab = Slab(EXCHANGE, topic_to_routing_key(will.topic), _QOS_1 if will.qos else _QOS_0, [will.payload])
            try:
                self._grants.require_publish(EXCHANGE, (slab.routing_key,))
                session.publish(slab)
            except BrokerError as error:
                log.warning("MQTT %s: the will was not published: %s", self._peer, error)
        session.close()
        self._broker.release(self)
        clients = _clients.get(self._broker, {})
        if clients.get(self._connect.client_id) is self:
            del clients[self._connect.client_id]
