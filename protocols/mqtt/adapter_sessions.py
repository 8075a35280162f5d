"""Sessions of MQTT clients: who is connected under which identifier, and sessions that outlive their connections.

1. A session that lasts is a durable queue `mqtt.<client id>`: it is there from CONNECT on, is consumed while the client
   is connected, and goes when it has not been for the session's expiry (the queue's `x-expires`). So a session is
   present when its queue is, also after a restart.
2. Its subscriptions are the bindings of that queue, with their options as arguments.
3. What is neither queue nor binding: which publishes at QoS 2 were taken and not released. Home partitions know that
   (`routing/queues/publish_numbers.py`); as long as the broker lives it is remembered here as well, for what goes to
   queues and topics without such a memory, and told the broker where the client connects next.
4. In a cluster each connection of a session that lasts has an epoch (`routing/cluster/clients/clients_elsewhere.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from protocols.mqtt.adapter_publish import EXCHANGE
from protocols.mqtt.adapter_subscriptions import SubscriptionOptions, from_arguments
from protocols.mqtt.events import NEVER_S, Connect
from protocols.mqtt.takeovers import Takeovers
from protocols.mqtt.topics import compiled
from routing.cluster.clients.clients_elsewhere import FIRST
from routing.declaring.one_by_one import OneByOne
from routing.errors import BrokerError, NotFound
from routing.queues.publish_numbers import decode_numbers, encode_numbers
from routing.queues.queue import Queue
from routing.queues.settings import EXPIRY_MS_MAX

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from protocols.mqtt.adapter import MqttAdapter
    from protocols.mqtt.config import MqttConfig
    from routing.broker import Broker
    from routing.topology.binding import Binding

Position = list[tuple["PartitionLog", int]]

EXPIRY_S_MAX = EXPIRY_MS_MAX // 1000
"""The longest expiry but for "never", ten years; who asks for more is told so."""
_AT_ONCE_MS = 1
_LEFT_MAX = 1000
_TAKEN_MIN = 1000
"""So many sessions with packet ids that were taken are looked after by nobody."""


class TakenIds(set[int]):
    """Packet ids of publishes at QoS 2 that were taken, up to the connection of an `epoch`."""

    epoch = 0


class Sessions:
    """The clients of one broker; see the module."""

    def __init__(self, broker: Broker) -> None:
        self.clients: dict[str, MqttAdapter] = {}
        """The connection of each client identifier (MQTT-3.1.4-2)."""
        self.taken: dict[str, TakenIds] = {}
        """Of sessions that last."""
        self._taken_max = _TAKEN_MIN
        """With so many it is looked which sessions are over."""
        self.takeovers = Takeovers()
        self.opening = OneByOne()
        """Who opens the session of a client identifier, or changes its subscriptions."""
        self.willing = OneByOne()
        """Whose will is about to be kept."""
        self.giving: dict[tuple[str, str], object] = {}
        """Who gives out what is retained, by queue and pattern. It goes on when its connection is over, but not when
        the client has subscribed again meanwhile, which brings it all of it, or does not want it any more."""
        self._broker = ref(broker)
        self._left: dict[str, Position] = {}
        """How far other brokers have to get with what was said for clients that are gone."""
        if broker.elsewhere is not None:
            broker.elsewhere.give_ups["mqtt"] = self._give_up

    # ---- of a cluster

    async def take_over(self, adapter: MqttAdapter) -> bool:
        """Have no other broker have a client that connects; False: another has it now."""
        elsewhere = adapter.broker.elsewhere
        vhost, client_id = adapter.config.virtual_host, adapter.connect.client_id
        if elsewhere is None:
            return True
        told = await elsewhere.take_over("mqtt", vhost, client_id)
        for epoch, ids in chain.from_iterable(map(decode_numbers, told or ())):
            known = self.taken.get(client_id)
            if known is None or known.epoch < epoch:
                known = self.taken[client_id] = TakenIds(ids)
                known.epoch = epoch
        return told is not None

    async def _give_up(self, vhost: str, client_id: str, beaten: bool) -> bytes | None:
        """A client connects to another broker, which is told what was taken. What is here of it ends, unless it has
        just begun and wins.
        """
        there, broker = self.clients.get(client_id), self._broker()
        if broker is None or broker.elsewhere is None:
            return b""
        if there is not None and there.config.virtual_host == vhost:
            if not there.has_begun and not beaten:
                return None
            there.taken_over("another broker")
            with suppress(BrokerError):
                await there.until_left()
        if not await broker.elsewhere.settled(partial(self._until_settled, client_id)):
            return None
        position = self._left.get(client_id)
        if position:
            await broker.elsewhere.reached(position)
            if self._left.get(client_id) is position:  # who asked before may have lost its link, and asks again
                del self._left[client_id]
        if client_id in self.clients:
            return b""
        # What is remembered here may be out of date when the client is back.
        taken = self.taken.pop(client_id, None)
        return encode_numbers([(taken.epoch, sorted(taken))]) if taken else b""

    async def _until_settled(self, client_id: str) -> None:
        """Wait for what connections here have under way that would come over what is said elsewhere later."""
        async with self.opening.alone(client_id), self.willing.alone(client_id):
            pass

    def taken_before(self, client_id: str, epoch: int) -> TakenIds:
        """What is known to a connection of what was taken over earlier ones: nothing if there was one elsewhere."""
        found = self.taken.get(client_id)
        if found is None or (epoch and found.epoch + 1 != epoch):
            if len(self.taken) >= self._taken_max:
                self._forget_ended()
            found = self.taken[client_id] = TakenIds()
        found.epoch = epoch
        return found

    def _forget_ended(self) -> None:
        """Sessions end without a word here: their queues expire, or are deleted."""
        broker = self._broker()
        vhosts = [] if broker is None else broker.topology.vhosts.values()
        for client_id in [one for one in self.taken if one not in self.clients]:
            if not any(queue_name(client_id) in vhost.queues for vhost in vhosts):
                del self.taken[client_id]
        self._taken_max = max(2 * len(self.taken), _TAKEN_MIN)

    def left(self, client_id: str) -> None:
        """A client is gone, and nothing more is said for it."""
        broker = self._broker()
        position = broker.elsewhere.position() if broker is not None and broker.elsewhere is not None else []
        if len(self._left) >= _LEFT_MAX:
            self._left = {
                one: there for one, there in self._left.items() if any(log.committed_offset < end for log, end in there)
            }
        if position:
            self._left[client_id] = position


_sessions: WeakKeyDictionary[Broker, Sessions] = WeakKeyDictionary()


def sessions_of(broker: Broker) -> Sessions:
    """Those of a broker."""
    found = _sessions.get(broker)
    if found is None:
        found = _sessions[broker] = Sessions(broker)
    return found


def queue_name(client_id: str) -> str:
    """The queue of a client."""
    return f"mqtt.{client_id}"


def limits_of(config: MqttConfig) -> dict[str, Any]:
    """The arguments of a client's queue that say how much may wait in it."""
    return {name: limit for name, limit in _limits(config).items() if limit}


def _limits(config: MqttConfig) -> dict[str, int | None]:
    return {"x-max-length": config.queued_messages_max or None, "x-max-length-bytes": config.queued_bytes_max or None}


def _keeping(config: MqttConfig) -> dict[str, Any]:
    """The arguments of a session's queue that say what is kept: what a client has been sent does not expire
    (MQTT-4.3.3-7).
    """
    return {"x-keep-delivered": True, "x-keep-transient": config.offline_qos_0}


def granted_expiry_s(expiry_s: int) -> int:
    """For how long a session is kept whose client asks for `expiry_s`."""
    return expiry_s if expiry_s == NEVER_S else min(expiry_s, EXPIRY_S_MAX)


def lengthen(connect: Connect, config: MqttConfig) -> None:
    """Give the session of a client that `lasting_client_ids` names an expiry, if it has asked for none."""
    expression = config.lasting_client_ids
    if not expression or connect.protocol_level < 5 or connect.clean_start or connect.session_expiry_s:
        return
    if compiled(expression).fullmatch(connect.client_id):
        connect.session_expiry_s, connect.session_expiry_given = config.lasting_expiry_s, True


def _expires_ms(expiry_s: int) -> int | None:
    """The argument `x-expires` for a session's expiry; a queue that is there and is to go with its connection expires
    as soon as nobody consumes it."""
    return None if expiry_s == NEVER_S else max(granted_expiry_s(expiry_s) * 1000, _AT_ONCE_MS)


class LastingSession:
    """The session of one client as the engine keeps it; see the module. Made by `open_session`."""

    def __init__(self, adapter: MqttAdapter, client_id: str, present: bool) -> None:
        self._of = ref(adapter)
        self.name = queue_name(client_id)
        self.present = present
        """It was there before."""
        self.epoch = 0
        """That of this connection in a cluster."""
        self.held: Sequence[tuple[int, int]] | None = None
        """What the queue held when the connection began, in a cluster (`routing/queues/homes/receipts.py`)."""
        self.taken: set[int] = set()
        self._id = 0
        self._shortened = False
        """It is to last for less than before, from when its queue is consumed."""
        self._leaving: dict[str, Any] = {}
        """What the client has said with its DISCONNECT."""

    @property
    def _adapter(self) -> MqttAdapter:
        """It has this, and is to be gone when nobody else has it."""
        adapter = self._of()
        assert adapter is not None, "this is a connection's that is gone"
        return adapter

    async def begin(self, client_id: str) -> None:
        """The client's connection begins. Raises BrokerError."""
        queue, elsewhere = self.queue, self._adapter.broker.elsewhere
        if elsewhere is not None and queue is not None:
            self._id, self.held, self.epoch = queue.id, (), FIRST
            if self.present:
                self.epoch, self.held = await elsewhere.begin(queue, self._adapter.fenced)
            else:
                elsewhere.begun(queue.id, FIRST, self._adapter.fenced)
        self.taken = sessions_of(self._adapter.broker).taken_before(client_id, self.epoch)

    def ended(self) -> None:
        """The client's connection is over."""
        if self.epoch and self._adapter.broker.elsewhere is not None:
            self._adapter.broker.elsewhere.ended(self._id, self.epoch)

    @property
    def queue(self) -> Queue | None:
        """The queue, while it is there."""
        return self._adapter.broker.topology.vhost(self._adapter.config.virtual_host).queues.get(self.name)

    def bindings(self) -> list[Binding]:
        """Those of the session's queue that are subscriptions."""
        vhost = self._adapter.broker.topology.vhost(self._adapter.config.virtual_host)
        return [
            binding
            for binding in vhost.bindings_to.get(("queue", self.name), ())
            if binding.exchange == EXCHANGE and binding.syntax == "mqtt"
        ]

    def arguments_of(self, patterns: Collection[str]) -> dict[str, list[Mapping[str, Any]]]:
        """The arguments of the bindings that have these patterns; of none that has no binding."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for one in self.bindings():
            if one.pattern in patterns:
                found.setdefault(one.pattern, []).append(one.arguments)
        return found

    def subscriptions(self) -> list[tuple[str, SubscriptionOptions]]:
        """The patterns that the session is subscribed to, with their options."""
        return [(one.pattern, from_arguments(one.arguments)) for one in self.bindings()]

    async def leave(self, expiry_s: int) -> None:
        """The client disconnects, and has its session last for another time. Raises BrokerError."""
        self._leaving = {"x-expires": _expires_ms(expiry_s)}
        await self.until_left()

    async def until_left(self) -> None:
        """Wait until all brokers know that: who connects elsewhere would find the session as it was, which changes
        then under the new connection. Raises BrokerError.
        """
        if self._leaving:
            await self._change(self._leaving)

    async def resume(self, config: MqttConfig, expiry_s: int, previous: MqttAdapter | None) -> None:
        """It was there before: have its queue the arguments that it would be made with now. Raises BrokerError.

        A shorter expiry waits for `consumed`: until then it would run, and with it the client's messages. What the
        `previous` connection has said with its DISCONNECT may be under way, and is undone as well.
        """
        queue = self.queue
        if queue is None:
            return
        expires_ms, before_ms = _expires_ms(expiry_s), queue.arguments.get("x-expires")
        wanted = _limits(config) | _keeping(config) | {"x-expires": expires_ms}
        changes = {key: value for key, value in wanted.items() if queue.arguments.get(key) != value}
        self._shortened = expires_ms is not None and (before_ms is None or expires_ms < before_ms)
        if previous is not None and _expires_ms(previous.connect.session_expiry_s) != expires_ms:
            changes["x-expires"] = expires_ms
        if self._shortened:
            changes.pop("x-expires", None)
        if changes:
            await self._change(changes)

    async def consumed(self) -> None:
        """The client is there, and its queue is consumed. Raises BrokerError."""
        if self._shortened:
            self._shortened = False
            await self._change({"x-expires": _expires_ms(self._adapter.connect.session_expiry_s)})

    async def _change(self, changes: dict[str, Any]) -> None:
        """Have the queue other arguments. Raises BrokerError."""
        adapter = self._adapter
        await adapter.broker.alter_queue(self.name, changes, owner=adapter, vhost=adapter.config.virtual_host)


async def open_session(adapter: MqttAdapter, connect: Connect, previous: MqttAdapter | None) -> LastingSession | None:
    """What of a client's session lasts, from CONNECT on, which ends its `previous` connection; None if nothing does.
    A clean start ends the one there is (MQTT-3.1.2-4). Raises BrokerError.

    A connection that was taken over while it did this goes no further, and is waited for: what it makes or ends would
    be the session of who came after it.
    """
    async with sessions_of(adapter.broker).opening.alone(connect.client_id):
        return None if adapter.closed else await _open_session(adapter, connect, previous)


async def _open_session(adapter: MqttAdapter, connect: Connect, previous: MqttAdapter | None) -> LastingSession | None:
    broker, vhost = adapter.broker, adapter.config.virtual_host
    name, client_id = queue_name(connect.client_id), connect.client_id
    there = broker.topology.vhost(vhost).queues.get(name)
    if (outdated := broker.outdated()) is not None and (there is not None or connect.session_expiry_s):
        raise outdated  # what is known here of the session and its subscriptions may not be true any more
    present = there is not None and there.partition.durable and not there.exclusive
    # One that was to end with its connection has ended (MQTT-4.1.0-2), though its queue is about to go only, or what a
    # DISCONNECT said of it about to be durable.
    ended = there is not None and there.arguments.get("x-expires") == _AT_ONCE_MS
    ended = ended or (previous is not None and previous.connect.session_expiry_s == 0)
    if present and (connect.clean_start or ended):
        await broker.delete_queue(name, owner=adapter, vhost=vhost)
        present = False
    if present and broker.elsewhere is not None:
        try:
            await broker.check_queue(name, adapter, vhost=vhost)  # its leader is asked; there it lives on from now
        except NotFound:
            present = False  # it has expired, which is not known here yet
    if adapter.closed:
        return None
    if not present:
        sessions_of(broker).taken.pop(client_id, None)
        if not connect.session_expiry_s:
            return None
        expires_ms = _expires_ms(connect.session_expiry_s)
        arguments = limits_of(adapter.config) | _keeping(adapter.config)
        if expires_ms is not None:
            arguments["x-expires"] = expires_ms
        await broker.declare_queue(name, durable=True, arguments=arguments, owner=adapter, vhost=vhost)
    session = LastingSession(adapter, client_id, present)
    if present:
        await session.resume(adapter.config, connect.session_expiry_s, previous)
    await session.begin(client_id)
    return session
