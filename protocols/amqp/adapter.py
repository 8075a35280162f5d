"""AMQP 0-9-1 on the engine: one adapter is one client connection. The README of this folder has the mapping.

1. Publishes and acknowledgements go straight through to the engine; only control methods may wait, each in its turn.
2. An engine error closes the channel it happened on, or the connection (`adapter_errors`); what was read from that
   channel after it is dropped, as the peer will be told.
3. After a close was sent the connection gives everything back at once and waits a few seconds for the peer's answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from protocols.amqp import adapter_topology, methods
from protocols.amqp.adapter_blocking import BlockedNotice
from protocols.amqp.adapter_channel import Channel
from protocols.amqp.adapter_errors import to_amqp_error
from protocols.amqp.adapter_login import Login, server_properties
from protocols.amqp.adapter_properties import facts_of, intern, ruled_facts
from protocols.amqp.adapter_rights import require_rights
from protocols.amqp.config import AmqpConfig
from protocols.amqp.connection import HEARTBEAT_FRAME, AmqpConnection, Event, MethodReceived, State
from protocols.amqp.errors import AmqpError
from protocols.amqp.method_codec import Method
from protocols.amqp.publish_run import AckRange, AckUpTo, PublishRun
from protocols.amqp.timers import ConnectionTimers, Due
from protocols.peers import Authenticate
from protocols.sansio import Outbox, Rest
from routing.access.grants import Grants
from routing.broker import Broker
from routing.clients import Client, library_of
from routing.errors import BrokerError
from routing.session import Outcome

log = logging.getLogger(__name__)

_TOPOLOGY: dict[type[Method], Callable[[Channel, Any], Awaitable[None]]] = {
    methods.ExchangeDeclare: adapter_topology.declare_exchange,
    methods.ExchangeDelete: adapter_topology.delete_exchange,
    methods.ExchangeBind: adapter_topology.bind_exchange,
    methods.ExchangeUnbind: adapter_topology.unbind_exchange,
    methods.QueueDeclare: adapter_topology.declare_queue,
    methods.QueueBind: adapter_topology.bind_queue,
    methods.QueueUnbind: adapter_topology.unbind_queue,
    methods.QueuePurge: adapter_topology.purge_queue,
    methods.QueueDelete: adapter_topology.delete_queue,
    methods.BasicGet: Channel.get,
    methods.BasicConsume: Channel.consume,
    methods.BasicCancel: Channel.cancel,
    methods.TxCommit: Channel.commit,
}

_DIRECT: dict[type[Method], Callable[[Channel, Any], None]] = {
    methods.BasicNack: Channel.negative,
    methods.BasicReject: Channel.reject,
    methods.BasicQos: Channel.limit_prefetch,
    methods.BasicRecover: Channel.recover,
    methods.BasicRecoverAsync: Channel.recover,
    methods.ChannelFlow: Channel.flow,
    methods.ConfirmSelect: Channel.select_confirms,
    methods.TxSelect: Channel.select_transactions,
    methods.TxRollback: Channel.roll_back,
    methods.ChannelFlowOk: lambda channel, method: None,
    methods.BasicCancelOk: lambda channel, method: None,
    methods.AccessRequest: lambda channel, method: channel.reply(methods.AccessRequestOk()),
}


class AmqpAdapter:
    """See the module; implements `protocols.sansio.Adapter`."""

    def __init__(
        self,
        broker: Broker,
        outbox: Outbox,
        *,
        peer: str,
        clock: Callable[[], float],
        config: AmqpConfig | None = None,
        authenticate: Authenticate | None = None,
        peer_certificate_name: str | None = None,
    ) -> None:
        """`peer` is the address, for `authenticate` and for logs; without `authenticate` nobody may log in.

        `peer_certificate_name` is what a verified client certificate calls the peer.
        """
        self.closed = self.published = self.held = False
        self.left: Rest | None = None
        self.broker = broker
        self.config = (config or AmqpConfig()).within(broker.message_bytes_max)
        self.notifies_cancel = False
        self.vhost = ""
        self.grants: Grants
        """What the user may do, from `connection.open` on."""
        self._outbox = outbox
        self._peer = peer
        self._clock = clock
        self._login = Login(self.config, authenticate, peer, peer_certificate_name)
        self._timers = ConnectionTimers(clock(), self.config.handshake_timeout_s, self.config.busy_grace_s)
        self._channels: dict[int, Channel] = {}
        self._released = self._parted = self._asked = False
        self._connection = AmqpConnection(
            self.config,
            self.write,
            lambda raw: intern(raw, self._login.user, self._impersonates),
            server_properties=server_properties(self.config),
            mechanisms=self._login.mechanisms,
            facts_of=lambda raw: facts_of(raw, self._login.user),
            ruled_facts=ruled_facts,
        )
        self._notice = BlockedNotice(broker.alarms, lambda method: self._connection.send(0, method))
        outbox.on_writable = self._resume

    # ---------------------------------------------------------------- for the channels

    @property
    def frame_bytes_max(self) -> int:
        """The negotiated frame size."""
        return self._connection.frame_bytes_max

    def write(self, data: bytes | memoryview) -> None:
        """Append to the outbox."""
        self._timers.wrote = True
        self._outbox.write(data)

    def writable(self) -> bool:
        """Whether the outbox takes deliveries."""
        return self._outbox.writable

    def end_channel(self, number: int, error: BrokerError) -> None:
        """Close a channel in the middle of nothing."""
        self._fail(to_amqp_error(error, number, 0))

    def _impersonates(self) -> bool:
        """Whether the user may publish in the name of others."""
        self._asked = True
        return self.broker.rights.is_impersonator(self._login.user)

    def _resume(self) -> None:
        for channel in self._channels.values():
            channel.session.resume()

    # ---------------------------------------------------------------- for the shell

    async def handle(self, data: bytes) -> None:
        """Take bytes read from the peer; b"" means that it closed its side."""
        if not data:
            self._leave()
            self.closed = True
            return
        self._timers.received(self._clock())
        if self._asked:  # the user may have another tag by now
            self._asked = False
            self._connection.forget_properties()
        await self._take(iter(self._connection.receive_data(data)))

    async def _take(self, events: Iterator[Event]) -> None:
        connection = self._connection
        channels = self._channels
        for event in events:
            if self.closed:
                return  # while an earlier one was waited for
            try:
                if isinstance(event, MethodReceived):
                    await self._take_method(event)
                elif isinstance(event, AmqpError):
                    self._fail(event)
                else:
                    channel = channels.get(event.channel)
                    if channel is not None and not self._take_data(channel, event):
                        self.left = partial(self._take, chain((event,), events))
                        return
            except BrokerError as error:
                method_id = event.method.IDENT if isinstance(event, MethodReceived) else _METHOD_OF[type(event)]
                self._fail(to_amqp_error(error, event.channel, method_id))
            except AmqpError as error:
                self._fail(error)
        if connection.closed and not self._parted:
            self._leave()
            self.closed = True

    def next_timer_at(self) -> float:
        """When a heartbeat is to be sent, or the peer has been silent for too long."""
        return self._timers.next_at()

    def handle_timer(self, now: float) -> None:
        """Send a heartbeat, or give the connection up."""
        if self.held:
            self._timers.received(now)
        due = self._timers.due(now, self._holds_deliveries)
        if due is Due.SEND_HEARTBEAT:
            self._outbox.write(HEARTBEAT_FRAME)
        elif due is Due.GIVE_UP:
            if self._connection.state not in (State.CLOSING, State.CLOSED):
                log.warning("AMQP %s: nothing heard in time (state %s)", self._peer, self._connection.state.value)
            self._leave()
            self.closed = True

    def _holds_deliveries(self) -> bool:
        return any(channel.session.unsettled for channel in self._channels.values())

    def connection_lost(self) -> None:
        """The transport is gone. What has the adapter goes, so that memory is free at once; and a queue that was made
        for it after all, by a request that waited when the connection was closed.
        """
        self._leave()
        self.broker.release(self)
        self.closed = True
        del self._connection, self._notice

    def shut_down(self, reason: str) -> None:
        """Tell the peer that the broker is stopping."""
        explanation = f"broker forced connection closure with reason '{reason}'"
        self._fail(AmqpError("CONNECTION_FORCED", explanation))
        self.closed = True

    # ---------------------------------------------------------------- events

    def _take_data(self, channel: Channel, event: Event) -> bool:
        """False: it has to wait, as publishers have to."""
        if isinstance(event, PublishRun):
            if not self.published:
                self.published = True
                self._notice.publishes(self._login.capabilities.get("connection.blocked") is True)
            if self.broker.blocked is not None:
                return False
            channel.publish(event)
        elif isinstance(event, AckRange):
            channel.session.settle(event.first, event.last, Outcome.ACK)
        elif isinstance(event, AckUpTo):
            channel.session.settle_up_to(event.last, Outcome.ACK)
        return True

    async def _take_method(self, event: MethodReceived) -> None:
        if event.channel == 0:
            await self._take_connection_method(event.method)
            return
        method = event.method
        if isinstance(method, methods.ChannelOpen):
            if self._connection.state is State.OPEN:
                self._channels[event.channel] = channel = Channel(self, event.channel)
                channel.reply(methods.ChannelOpenOk())
            return
        found = self._channels.get(event.channel)
        kind = type(method)
        if found is None:
            if kind is methods.ChannelClose:  # read with what made the channel fail
                self._connection.send(event.channel, methods.ChannelCloseOk())
            return
        require_rights(self.grants, found, method)
        if kind in _DIRECT:
            _DIRECT[kind](found, method)
        elif kind in _TOPOLOGY:
            await _TOPOLOGY[kind](found, method)
        elif kind is methods.ChannelClose:
            del self._channels[event.channel]
            consumed = found.consumed()
            found.close()
            await self.broker.until_gone(consumed)
            if self._connection.state is State.OPEN:
                self._connection.send(event.channel, methods.ChannelCloseOk())
        else:
            raise AmqpError(
                "NOT_IMPLEMENTED", f"{method.NAME} is not supported", channel=event.channel, method_id=method.IDENT
            )

    async def _take_connection_method(self, method: Method) -> None:
        if isinstance(method, methods.ConnectionClose):
            consumed = [queue for channel in self._channels.values() for queue in channel.consumed()]
            self._leave()
            await self.broker.until_gone(consumed)
            self._connection.send(0, methods.ConnectionCloseOk())
            # The peer closes the transport, as with RabbitMQ: one that reads its end right behind the answer may take
            # that for a lost connection (amqp091-go then reports one, or hangs in its close).
            self._parted = True
            self._timers.closing(self._clock(), self.config.close_timeout_s)
        elif self._connection.state in (State.CLOSING, State.CLOSED):
            # Sent ahead by a peer whose login was refused, or that has closed since.
            return
        elif isinstance(method, methods.ConnectionStartOk):
            await self._log_in(method)
        elif isinstance(method, methods.ConnectionOpen):
            self._open(method.virtual_host)
        elif isinstance(method, methods.ConnectionUpdateSecret):
            # Who has logged in is asked for nothing any more: it is for the next connection, as in RabbitMQ.
            self._connection.send(0, methods.ConnectionUpdateSecretOk())

    def _open(self, vhost: str) -> None:
        """The peer has logged in and chosen a virtual host. Raises NotAllowed."""
        if self._released:  # given up while its login was looked at
            return
        said = self._login.client_properties
        name, library = said.get("connection_name"), library_of(said.get("product"), said.get("version"))
        name = name if isinstance(name, str) else ""
        client = Client("amqp", self._login.user, vhost, self._peer, self._closed_by_operator, name, library=library)
        self.grants = self.broker.connect(self, client)
        self.vhost = vhost
        self._timers.opened(self._clock(), self._connection.heartbeat_s)
        self._connection.send(0, methods.ConnectionOpenOk())

    async def _log_in(self, method: methods.ConnectionStartOk) -> None:
        """Raises AmqpError, Banned."""
        self.broker.bans.require_welcome("", "", self._peer)
        refused = await self._login.log_in(method)
        self.notifies_cancel = self._login.capabilities.get("consumer_cancel_notify") is True
        if refused is None:
            self._connection.tune()
            return
        log.warning("AMQP %s: login of user %r was refused", self._peer, refused)
        if self._login.tells_refusals:
            explanation = (
                f"Login was refused using authentication mechanism {method.mechanism}. "
                "For details see the broker logfile."
            )
            raise AmqpError("ACCESS_REFUSED", explanation)
        self._connection.abandon()

    # ---------------------------------------------------------------- ends

    def _fail(self, error: AmqpError) -> None:
        """Close the channel or the connection with `error`."""
        if not error.closes_connection:
            channel = self._channels.pop(error.channel, None)
            if channel is not None:
                channel.close()
                self._connection.close_channel(error)
        elif self._connection.state not in (State.CLOSING, State.CLOSED):
            log.warning("AMQP %s: closing the connection: %s", self._peer, error.reply_text)
            self._leave()
            self._connection.close_connection(error)
            self._timers.closing(self._clock(), self.config.close_timeout_s)
            # Where the frames are out of step an answer could not be read.
            self.closed = self.closed or not error.in_step

    def _closed_by_operator(self, reason: str) -> None:
        """The connection has to end; the reader is told by what is written."""
        self._fail(AmqpError("CONNECTION_FORCED", reason))
        self.closed = True

    def _leave(self) -> None:
        """Give everything back to the engine; the second time there is nothing left to give."""
        if self._released:
            return
        self._released = True
        self._notice.leave()
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            channel.close()
        self.broker.release(self)


_METHOD_OF: dict[type[Any], int] = {
    PublishRun: methods.BasicPublish.IDENT,
    AckRange: methods.BasicAck.IDENT,
    AckUpTo: methods.BasicAck.IDENT,
}
