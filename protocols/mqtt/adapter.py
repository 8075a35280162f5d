"""MQTT 3.1.1 on the engine: one adapter is one client connection. The README of this folder has the mapping.

1. A read is a batch: a run of publishes becomes one slab, a run of acknowledgements one settled range, a confirm one
   write of PUBACKs. Only CONNECT, SUBSCRIBE and UNSUBSCRIBE may suspend.
2. Here is the life of a connection. What it publishes is in `adapter_publish`, what it is sent in `adapter_deliver`,
   SUBSCRIBE and UNSUBSCRIBE in `adapter_subscribe`; these exist from CONNECT on.
3. `end` marks the connection as over, `_leave` gives everything back to the engine and publishes the will. The sink's
   methods only mark: the engine may be in the middle of something.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from protocols.mqtt import adapter_made as adapter_made
from protocols.mqtt import adapter_shown as adapter_shown
from protocols.mqtt.adapter_authentication import Authentication
from protocols.mqtt.adapter_connack import connack_properties
from protocols.mqtt.adapter_deliver import Delivering
from protocols.mqtt.adapter_dollar import NotReady
from protocols.mqtt.adapter_errors import reason_of
from protocols.mqtt.adapter_inflight import Inflight
from protocols.mqtt.adapter_login import Login
from protocols.mqtt.adapter_publish import Publishing
from protocols.mqtt.adapter_retained import Retaining
from protocols.mqtt.adapter_sessions import LastingSession, lengthen, open_session, sessions_of
from protocols.mqtt.adapter_subscribe import Subscribing
from protocols.mqtt.adapter_subscriptions import Subscriptions
from protocols.mqtt.adapter_sys import system_of
from protocols.mqtt.adapter_will import WillOfClient, prepare_will
from protocols.mqtt.config import MqttConfig
from protocols.mqtt.connection import ServerConnection
from protocols.mqtt.events import (
    PUBREL,
    Acknowledgements,
    Authenticate,
    Connect,
    Disconnect,
    Event,
    PingRequest,
    PublishRun,
    Subscribe,
    Unsubscribe,
)
from protocols.mqtt.reasons import CONNACK_REASONS, SERVER_DISCONNECT_REASONS, MqttProtocolError, ReasonCode
from protocols.mqtt.topics import Rewriting
from protocols.mqtt.wire import PINGRESP, ConnackProperties, Wire
from protocols.peers import Authenticate as Check
from protocols.sansio import Outbox, Rest
from routing.access.grants import Grants
from routing.clients import Client
from routing.errors import BrokerError, NoPermission, NotAllowed
from routing.message import Slab
from routing.session import Consumer, Session

if TYPE_CHECKING:
    from routing.broker import Broker

KEEP_ALIVE_FACTOR = 1.5
VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}
"""What the levels of the protocol are called."""
_SMALL_BYTES = 1000
"""While more of a packet is on its way its bytes count, as with Mosquitto: on a slow link a large one may take longer
than the keep-alive."""
_SHOWN_MAX = 200
"""Most characters of a name that a client may have made up."""

_PARTS = (
    "_authentication", "_will", "confirm", "deliver", "delivering", "inflight", "publishing", "retaining",
    "subscribing",
)  # fmt: skip
"""What has the adapter: at the end it has them no more, so that memory is free at once. Thousands that come again would
leave gigabytes until somebody looks for what nobody has."""

Deliver = Callable[[Consumer, int, Slab, int, int, bool], None]

log = logging.getLogger(__name__)


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
        authenticate: Check | None = None,
        peer_certificate_name: str | None = None,
    ) -> None:
        """`peer` is the address for logs and for the loopback rule; for the rest see `Login`."""
        self.closed = self.published = self.held = False
        self.left: Rest | None = None
        self.broker = broker
        self.outbox = outbox
        self.peer = peer
        self._clock = clock
        self.config = config or MqttConfig()
        self._login = Login(self.config, authenticate, peer, peer_certificate_name)
        self._authentication = Authentication(self, authenticate)
        self._connection = ServerConnection(self.config)
        self._deadline_s = clock() + self.config.connect_timeout_s
        self._keep_alive_s = 0.0
        self._heard = False
        """Something came since the deadline was set; it is worked out when the turn is over."""
        self.connect = Connect(4, "")
        self._shown_name = ""
        """What the client calls itself, in the log: those who are refused as well."""
        self.traffic = system_of(self).traffic
        self.traffic.sockets += 1
        self.session: Session | None = None
        self.grants: Grants
        """What the user may do, from CONNECT on."""
        self._lasting: LastingSession | None = None
        self.inflight: Inflight
        self.publishing: Publishing
        self.delivering: Delivering
        self.deliver: Deliver
        """Appends PUBLISH packets to the outbox; see `routing.session.DeliverySink`."""
        self.confirm: Callable[[int], None]
        """Answers publishes; see the same."""
        self.subscribing: Subscribing
        self.retaining: Retaining
        self._will: WillOfClient

    @property
    def wire(self) -> Wire:
        """How the client is told anything, from CONNECT on."""
        return self._connection.wire

    # The shell's side.

    async def handle(self, data: bytes) -> None:
        """Take bytes read from the peer; b"" means that it closed its side."""
        if not data:
            self.end("the client closed the transport", logging.DEBUG)
            return
        violation = None
        try:
            events = self._connection.receive_data(data)
        except MqttProtocolError as error:
            events, violation = error.events, error
        self.traffic.bytes_received += len(data)
        await self._take(iter(events), violation)
        if events or (self.session is not None and self._connection.missing_bytes > _SMALL_BYTES):
            self._heard = True

    async def _take(self, events: Iterator[Event], violation: MqttProtocolError | None) -> None:
        """What was read, and what is wrong with what follows."""
        try:
            for event in events:
                if self.closed:
                    return
                if type(event) is PublishRun:
                    self.published = True
                    if self.broker.blocked is not None and not self.publishing.refuses(event):
                        self.left = partial(self._take, chain((event,), events), violation)
                        return
                    try:
                        self.publishing.publish(event)
                    except NotReady:
                        await self.retaining.make_ready()
                        self.publishing.go_on()
                elif type(event) is Acknowledgements:
                    self.traffic.acknowledged(event)
                    if event.kind is PUBREL:
                        self.publishing.release(event)
                    else:
                        self.inflight.acknowledge(event)
                else:
                    self.traffic.controls += 1
                    await self._control(event)
        except BrokerError as error:
            self.end(str(error), code=reason_of(error, SERVER_DISCONNECT_REASONS))
        if violation is not None and not self.closed:
            self._say_goodbye(violation.answer)
            self.end(str(violation))

    def next_timer_at(self) -> float:
        """When CONNECT or the next packet is overdue."""
        if self._heard:
            self._heard = False
            if self._keep_alive_s:
                self._deadline_s = self._clock() + self._keep_alive_s
        return self._deadline_s

    def handle_timer(self, now: float) -> None:
        """Close a connection that is silent for 1.5 times its keep-alive (MQTT-3.1.2-24) or not connected in time."""
        if self.held and self.session is not None:
            self._deadline_s = now + self._keep_alive_s if self._keep_alive_s else math.inf
        elif now >= self._deadline_s:
            if self.session is None:
                self.end("not connected in time")
            else:
                self.end("keep-alive timeout", code=ReasonCode.KEEP_ALIVE_TIMEOUT)

    def connection_lost(self) -> None:
        """The transport is gone."""
        self.end("the transport was lost", logging.DEBUG)
        self._leave()
        for part in _PARTS:
            vars(self).pop(part, None)

    def shut_down(self, reason: str) -> None:
        """The broker stops. Before MQTT 5 there is no packet for it: the transport is closed."""
        self.end(reason, logging.DEBUG, code=ReasonCode.SERVER_SHUTTING_DOWN)

    def _ended_by_operator(self, reason: str) -> None:
        self.end(reason, code=ReasonCode.ADMINISTRATIVE_ACTION)

    def _deliveries_failed(self, error: BrokerError) -> None:
        self.end(str(error), code=ReasonCode.UNSPECIFIED_ERROR)

    # Control packets.

    async def _control(self, event: Event) -> None:
        if isinstance(event, Connect):
            await self._open(event)
        elif isinstance(event, Authenticate):
            await self._authenticate(event)
        elif isinstance(event, Subscribe):
            await self.subscribing.subscribe(event)
        elif isinstance(event, Unsubscribe):
            await self.subscribing.unsubscribe(event)
        elif isinstance(event, PingRequest):
            self.outbox.write(PINGRESP)
        elif isinstance(event, Disconnect):
            await self._disconnected(event)

    async def _open(self, connect: Connect) -> None:
        """Answer a CONNECT: refuse it, or make a session and take the client identifier over."""
        self._shown_name = connect.client_id
        try:
            self.broker.bans.require_welcome("", "", self.peer)
        except BrokerError as error:
            log.warning("MQTT %s: %s", self.peer, error)
            self._refuse(reason_of(error, CONNACK_REASONS), connect)
            return
        if connect.authentication_method is not None and self._login.shown is None:
            code = await self._authentication.begin(connect)
            if code != ReasonCode.SUCCESS:
                self._refuse(code, connect)
            return
        code = await self._login.refusal(connect)
        if self.closed:
            return
        assigned = not connect.client_id
        lengthen(connect, self.config)
        connect.client_id = self._shown_name = connect.client_id or f"auto-{secrets.token_hex(12)}"
        config = self.config
        rewriting = Rewriting(config.topic_rewrites, connect.client_id, connect.user_name or "", config.over_limit)
        told = connack_properties(config, connect, assigned, self.broker.message_bytes_max)
        sessions = sessions_of(self.broker)
        if code == ReasonCode.SUCCESS and not self._takes_connack(connect, told):
            return
        if code == ReasonCode.SUCCESS:
            try:
                prepare_will(connect.will, rewriting, self)
            except BrokerError as error:
                self._refuse_will(error)
                return
            code = self._join(connect, sessions.clients.get(connect.client_id))
        if code != ReasonCode.SUCCESS:
            self._refuse(code, connect)
            return
        previous = sessions.clients.get(connect.client_id)
        begun = previous if previous is not None and previous.has_begun else None
        if previous is not None:
            previous.taken_over(self.peer)
        sessions.clients[connect.client_id] = self
        self.connect = connect
        lasting = None
        try:
            if not assigned and self.broker.elsewhere is not None and not await sessions.take_over(self):
                self.end("the client connected elsewhere", logging.DEBUG)
            lasting = None if self.closed else await open_session(self, connect, begun)
        except BrokerError as error:
            self._refuse_session(error)
        self._lasting = lasting
        if self.closed:
            self._forget()
            return
        await self._begin(connect, lasting, rewriting, told)

    async def _begin(
        self, connect: Connect, lasting: LastingSession | None, rewriting: Rewriting, told: ConnackProperties
    ) -> None:
        """Accept the client: there is a session from now on."""
        config = self.config
        self._keep_alive_s = (told.server_keep_alive_s or connect.keep_alive_s) * KEEP_ALIVE_FACTOR
        self._deadline_s = self._clock() + self._keep_alive_s if self._keep_alive_s else math.inf
        session = self.session = self.broker.session(self, protocol="mqtt", owner=self, vhost=config.virtual_host)
        session.on_failed = self._deliveries_failed
        subscriptions = Subscriptions()
        inflight_max = config.bridge_inflight_messages_max if connect.is_bridge else connect.receive_maximum
        self.inflight = Inflight(self, session, lasting, min(config.inflight_messages_max, inflight_max))
        self.publishing = Publishing(self, session, lasting, rewriting)
        self.confirm = self.publishing.confirm
        self.delivering = Delivering(self, session, subscriptions, self.inflight)
        self.deliver = (
            self.delivering.deliver if connect.packet_bytes_max is None else self.delivering.deliver_what_fits
        )
        self.subscribing = Subscribing(self, session, subscriptions, self.delivering, lasting, rewriting)
        self.retaining = Retaining(self, session)
        self._will = WillOfClient(self)
        self.traffic.connections += 1
        try:
            async with sessions_of(self.broker).willing.alone(connect.client_id):
                if not self.closed:  # else it has left, and it would be kept for nobody
                    await self._will.keep()
        except BrokerError as error:
            self._refuse_session(error)
        if self.closed:
            return
        self.outbox.on_writable = session.resume
        present = lasting is not None and lasting.present
        self.outbox.write(self.wire.connack(ReasonCode.SUCCESS, session_present=present, properties=told))
        log.debug("MQTT %s: client %r connected", self.peer, connect.client_id)
        self.inflight.resume()
        await self.subscribing.resume()
        await self.subscribing.subscribe_unasked()

    async def _disconnected(self, event: Disconnect) -> None:
        """The client leaves, and may say for how long its session is to be kept (MQTT 5, 3.14.2.2.2)."""
        self.traffic.goodbyes -= 1
        if event.reason == ReasonCode.NORMAL_DISCONNECTION:
            self.connect.will = None  # MQTT-3.14.4-3
        expiry_s = event.session_expiry_s
        if expiry_s is not None and expiry_s != self.connect.session_expiry_s:
            self.connect.session_expiry_s = expiry_s
            if self._lasting is not None:
                await self._lasting.leave(expiry_s)
        self.end("the client disconnected", logging.DEBUG)

    async def until_left(self) -> None:
        """Wait until all brokers know what the client has said with its DISCONNECT. Raises BrokerError."""
        if self._lasting is not None:
            await self._lasting.until_left()

    def _takes_connack(self, connect: Connect, told: ConnackProperties) -> bool:
        """Whether a client takes packets as large as its CONNACK. If not it is told only that, if it takes as much
        (MQTT-3.1.2-24): who knows nothing of the broker's limits would be closed for them.
        """
        size = len(self.wire.connack(ReasonCode.SUCCESS, properties=told))
        if connect.takes(size):
            return True
        refusal = self.wire.connack(ReasonCode.PACKET_TOO_LARGE)
        if connect.takes(len(refusal)):
            self.outbox.write(refusal)
        self.end(f"it takes packets of {connect.packet_bytes_max} bytes, and CONNACK has {size}")
        return False

    def _refuse(self, code: ReasonCode, connect: Connect | None) -> None:
        self.outbox.write(self.wire.connack(code))
        user = self._authentication.asked_for or (connect and self._login.user_of(connect)) or ""
        self.end(f"CONNECT of user {user[:_SHOWN_MAX]!r} refused: {code.name}")

    def _refuse_session(self, error: BrokerError) -> None:
        """Nothing follows this CONNACK (MQTT-3.2.2-7)."""
        self.outbox.write(self.wire.connack(reason_of(error, CONNACK_REASONS)))
        self.end(f"no session: {error}")

    def _refuse_will(self, error: BrokerError) -> None:
        reason = reason_of(error, CONNACK_REASONS)
        if self.wire.has_properties or reason is ReasonCode.NOT_AUTHORIZED:  # else there is no word for it
            self.outbox.write(self.wire.connack(reason))
        self.end(f"will: {error}")

    async def _authenticate(self, event: Authenticate) -> None:
        """AUTH: a step of a login that CONNECT began, or of a later one."""
        code, connect = await self._authentication.go_on(event)
        if code != ReasonCode.SUCCESS:
            if self.session is None:
                self._refuse(code, connect)
            else:
                self._say_goodbye(self.wire.disconnect(code))
                self.end(f"not authenticated: {code.name}")
        elif connect is not None and not self.closed:
            self._login.shown = self._authentication.user
            self._connection.authenticated()
            await self._open(connect)

    def _join(self, connect: Connect, previous: MqttAdapter | None) -> ReasonCode:
        """Become a client of the broker, with the rights of its user, in place of its `previous` connection; the reason
        code.
        """
        user = self._login.user_of(connect)
        client = Client(
            "mqtt", user, self.config.virtual_host, self.peer, self._ended_by_operator, connect.client_id,
            VERSIONS.get(connect.protocol_level, ""),
        )  # fmt: skip
        try:
            self.grants = self.broker.connect(self, client, client_id=connect.client_id, instead_of=previous)
        except BrokerError as error:
            log.warning("MQTT %s: %s", self.peer, error)
            if isinstance(error, NotAllowed) and not isinstance(error, NoPermission):
                return ReasonCode.SERVER_UNAVAILABLE  # no such virtual host, or no room in it
            return reason_of(error, CONNACK_REASONS)
        return ReasonCode.SUCCESS

    # The engine's side.

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        """Publishes could not be stored."""
        self.publishing.refuse(first, last, error)

    def returned(self, slab: Slab, reason: str) -> None:
        """Nobody is subscribed to a publish."""
        self.publishing.returned(slab)

    def cancelled(self, consumer: Consumer) -> None:
        """Somebody deleted the queue, or it is another connection's: end this one rather than go silent."""
        if self._lasting is not None and consumer.queue_name == self._lasting.name:
            if consumer.refused is not None:
                self.end("another connection has the queue of the client", code=ReasonCode.SESSION_TAKEN_OVER)
                return
            self.connect.session_expiry_s = 0  # the session has ended: the will does not wait any more
        self.end("the queue of the client was deleted", code=ReasonCode.ADMINISTRATIVE_ACTION)

    def writable(self) -> bool:
        """Whether deliveries may come."""
        return self.outbox.writable and not self.closed

    # Ending.

    def end(self, reason: str, level: int = logging.WARNING, *, code: ReasonCode | None = None) -> None:
        """The connection is over; the shell closes the transport and calls `connection_lost`. The client is told the
        `code`, if its version can be.
        """
        if self.closed:
            return
        if code is not None and self.session is not None:
            self._say_goodbye(self.wire.disconnect(code, reason, packet_bytes_max=self.connect.packet_bytes_max))
        self.closed = True
        self._deadline_s = math.inf
        name = self._shown_name[:_SHOWN_MAX]
        log.log(level, "MQTT %s: closing the connection of client %r: %s", self.peer, name, reason)
        self.outbox.write(b"")  # makes the shell look at `closed` when it was not our own read that ended it

    def _say_goodbye(self, packet: bytes) -> None:
        """Send a packet that nothing follows, if there is one for it."""
        self.traffic.goodbyes += bool(packet)
        self.outbox.write(packet)

    def taken_over(self, by: str) -> None:
        """The client has connected again, here or elsewhere (MQTT-3.1.4-3); `by` says from where."""
        if not self.closed:
            sessions_of(self.broker).takeovers.happened(self.connect.client_id, self.peer, by, self._clock())
        self.fenced()
        self._leave()

    def fenced(self) -> None:
        """The same, told by the engine in the middle of something."""
        self.end("the client connected again", logging.DEBUG, code=ReasonCode.SESSION_TAKEN_OVER)

    @property
    def has_begun(self) -> bool:
        """The client has been accepted."""
        return self.session is not None

    def _leave(self) -> None:
        """Publish the will (MQTT-3.1.2-8) and give everything back, once."""
        session, self.session = self.session, None
        if session is None:
            self._forget()
            return
        if self.broker.elsewhere is not None:  # of a single broker it is lost with the log, whose error says so
            self.publishing.forget_unanswered()
        self._will.leave()
        self.traffic.bytes_sent += self.outbox.written_bytes
        session.close()
        self._forget()

    def _forget(self) -> None:
        """The connection is nobody's any more."""
        self.broker.release(self)
        sessions = sessions_of(self.broker)
        if self._lasting is not None:
            self._lasting.ended()
        if self.broker.elsewhere is not None:
            sessions.left(self.connect.client_id)
        if sessions.clients.get(self.connect.client_id) is self:
            del sessions.clients[self.connect.client_id]
            if not sessions.taken.get(self.connect.client_id, True):
                del sessions.taken[self.connect.client_id]
