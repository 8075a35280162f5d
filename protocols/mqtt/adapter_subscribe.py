"""SUBSCRIBE and UNSUBSCRIBE: a client's queue, the bindings that its topic filters are, and its consumer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from protocols.convert import routing_key_to_topic
from protocols.mqtt import adapter_exclusive as exclusive
from protocols.mqtt.adapter_errors import reason_of
from protocols.mqtt.adapter_publish import EXCHANGE
from protocols.mqtt.adapter_replay import PREFIX as REPLAY
from protocols.mqtt.adapter_replay import Replays
from protocols.mqtt.adapter_retained import wanted
from protocols.mqtt.adapter_sessions import limits_of
from protocols.mqtt.adapter_shares import PREFIX, Shares
from protocols.mqtt.adapter_subscriptions import SubscriptionOptions, Subscriptions, to_arguments
from protocols.mqtt.adapter_sys import system_of
from protocols.mqtt.events import Subscribe, SubscriptionRequest, Unsubscribe
from protocols.mqtt.reasons import SUBACK_REASONS, ReasonCode
from protocols.mqtt.topics import Rewriting
from routing.errors import AccessRefused, BrokerError
from routing.kept.retained import give_out
from routing.session import Consumer, Session

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter
    from protocols.mqtt.adapter_deliver import Delivering
    from protocols.mqtt.adapter_sessions import LastingSession

log = logging.getLogger(__name__)


class Subscribing:
    """The subscriptions of one connection, from CONNECT on; see the module."""

    __slots__ = (
        "_adapter", "_consumer", "_delivering", "_lasting", "_queue", "_replays", "_rewriting", "_session",
        "_subscriptions", "shares",
    )  # fmt: skip

    def __init__(
        self,
        adapter: MqttAdapter,
        session: Session,
        subscriptions: Subscriptions,
        delivering: Delivering,
        lasting: LastingSession | None,
        rewriting: Rewriting,
    ) -> None:
        self._adapter = adapter
        self._session = session
        self._subscriptions = subscriptions
        self._delivering = delivering
        self._consumer: Consumer | None = None
        self._lasting = lasting
        self._queue = ""
        self._rewriting = rewriting
        self.shares = Shares(adapter, session)
        self._replays = Replays(adapter, session)

    @property
    def patterns(self) -> Collection[str]:
        """What the client is subscribed to, but for shared subscriptions."""
        return self._subscriptions.granted

    @property
    def granted(self) -> dict[str, SubscriptionOptions]:
        """All topic filters that the client is subscribed to now."""
        found = {routing_key_to_topic(pattern): one for pattern, one in self._subscriptions.granted.items()}
        found |= {topic_filter: share.options for topic_filter, share in self.shares.granted.items()}
        return found | {topic_filter: part.options for topic_filter, part in self._replays.granted.items()}

    @property
    def queue_name(self) -> str:
        """The client's own queue; "" before its first subscription."""
        return self._queue

    async def resume(self) -> None:
        """Go on with what lasts of the session. Raises BrokerError."""
        if self._lasting is not None:
            self._queue = self._lasting.name
            may_read_all = self._adapter.grants.allows_every_key("read", EXCHANGE)
            self._delivering.asks_for_rights = self._lasting.present and not may_read_all
            for pattern, options in self._lasting.subscriptions():
                if self._may_have(pattern):
                    self._subscriptions.grant(pattern, options)
            self._changed()
            elsewhere = self._adapter.broker.elsewhere
            try:
                if elsewhere is None:
                    self._consumer = await self._session.consume(self._queue, tag="", no_ack=False, exclusive=True)
                else:
                    self._consumer = await elsewhere.consume(self._session, self._queue)
            except AccessRefused as error:  # it has another consumer, as it may have by AMQP
                self._adapter.end(str(error), code=ReasonCode.SERVER_BUSY)
                return
            await self._lasting.consumed()
            await self.shares.resume(self._queue, self._adapter.connect.session_expiry_s)

    def _may_have(self, pattern: str) -> bool:
        """Whether a subscription of the session, which may have been another user's, is this user's to have. If not it
        stays with the session, for who may have it, and nothing is delivered for it until then (`Delivering`).
        """
        try:
            self._require_read(pattern)
        except AccessRefused as error:
            log.warning("MQTT %s: a subscription of the session is withheld: %s", self._adapter.peer, error)
            return False
        return True

    def _require_read(self, pattern: str) -> None:
        self._adapter.grants.require("read", "exchange", EXCHANGE)
        self._adapter.grants.require_keys("read", EXCHANGE, (pattern,))

    async def subscribe(self, event: Subscribe) -> None:
        """Bind a queue for each filter, consume, and say what was granted."""
        requests = event.requests[: self._adapter.config.subscriptions_max]
        if self._adapter.config.topic_rewrites:
            requests = [replace(one, topic_filter=self._rewriting.filter(one.topic_filter)) for one in requests]
        if self._adapter.connect.is_bridge:
            requests = [replace(one, no_local=True, retain_as_published=True) for one in requests]
        too_many: list[int] = [ReasonCode.QUOTA_EXCEEDED] * (len(event.requests) - len(requests))
        await self._add(requests, event.subscription_id, answer=(event.packet_id, too_many))

    async def subscribe_unasked(self) -> None:
        """Add what every client is subscribed to (`auto_subscriptions`)."""
        requests = []
        for one in self._adapter.config.auto_subscriptions:
            topic_filter = self._rewriting.filled(one.topic)
            if topic_filter is None:
                log.warning("MQTT %s: not subscribed to %r: a name has a wildcard", self._adapter.peer, one.topic)
                continue
            terms = one.qos, one.no_local, one.retain_as_published, one.retain_handling
            requests.append(SubscriptionRequest(topic_filter, *terms))
        if requests:
            await self._add(requests, 0)

    async def _add(
        self,
        requests: list[SubscriptionRequest],
        subscription_id: int,
        answer: tuple[int, list[int]] | None = None,
    ) -> None:
        """Make filters effective; SUBACK has the packet id and, besides theirs, the codes of `answer`."""
        granted = self._subscriptions.granted
        known = {one.topic_filter for one in requests if exclusive.pattern(one.topic_filter) in granted}
        codes = [await self._grant(request, subscription_id) for request in requests]
        if not self._adapter.closed:
            self._changed()
            await self._consume()
            if answer is not None:
                packet_id, others = answer
                self._adapter.outbox.write(self._adapter.wire.suback(packet_id, codes + others))
            patterns = [exclusive.pattern(one) for one in wanted(requests, codes, known)]
            asked = [(one, granted[one]) for one in patterns if one in granted]
            await self._adapter.retaining.give_out(self._queue, asked)
            await give_out(self._session, self._queue, system_of(self._adapter).subscribed(self._adapter, patterns))

    def _changed(self) -> None:
        self._delivering.forget_routes()
        self._adapter.publishing.name_publisher(always=self._subscriptions.are_for_others)

    async def _grant(self, request: SubscriptionRequest, subscription_id: int) -> int:
        """Make one filter effective; returns its reason code in SUBACK."""
        topic_filter, granted = request.topic_filter, self._subscriptions.granted
        shares, replays = self.shares.granted, self._replays.granted
        if self._adapter.closed or self._adapter.config.over_limit(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        there = exclusive.pattern(topic_filter) in granted or topic_filter in shares or topic_filter in replays
        if not there and len(granted) + len(shares) + len(replays) >= self._adapter.config.subscriptions_max:
            return ReasonCode.QUOTA_EXCEEDED
        options = SubscriptionOptions(request.qos, request.no_local, request.retain_as_published, subscription_id)
        if topic_filter.startswith(PREFIX):
            return await self.shares.join(topic_filter, options)
        if topic_filter.startswith(REPLAY):
            return await self._replays.begin(topic_filter, options)
        try:
            if topic_filter.startswith(exclusive.PREFIX):
                return await self._bind_alone(topic_filter, options)
            return await self._bind(exclusive.pattern(topic_filter), options)
        except BrokerError as error:
            log.warning("MQTT %s: no subscription to %r: %s", self._adapter.peer, topic_filter, error)
            return reason_of(error, SUBACK_REASONS, not_authorized_told=self._adapter.config.not_authorized_told)

    async def _bind_alone(self, topic_filter: str, options: SubscriptionOptions) -> int:
        inner = exclusive.inner(topic_filter)
        if not inner or inner.startswith("$"):
            return ReasonCode.TOPIC_FILTER_INVALID
        self._queue = self._queue or await self._declare_queue()
        if not await exclusive.claim(self._adapter, topic_filter, self._queue):
            return ReasonCode.QUOTA_EXCEEDED
        return await self._bind(exclusive.pattern(inner), options)

    async def _bind(self, pattern: str, options: SubscriptionOptions) -> int:
        if pattern not in self._subscriptions.granted or self._lasting is not None:
            await self._make_binding(pattern, options)
        self._subscriptions.grant(pattern, options)
        return options.qos

    async def _make_binding(self, pattern: str, options: SubscriptionOptions) -> None:
        adapter = self._adapter
        if not self._queue:
            self._queue = await self._declare_queue()
        self._require_read(pattern)
        vhost = adapter.config.virtual_host
        if self._lasting is None:
            await adapter.broker.bind(
                "queue", self._queue, EXCHANGE, pattern, {}, syntax="mqtt", owner=adapter, vhost=vhost
            )
            return
        before = self._lasting.bindings(pattern)
        arguments = to_arguments(options)
        if not any(one.arguments == arguments for one in before):
            await adapter.broker.bind(
                "queue", self._queue, EXCHANGE, pattern, arguments, syntax="mqtt", owner=adapter, vhost=vhost
            )
        for one in before:
            if one.arguments != arguments:
                await self._unbind(pattern, one.arguments)

    async def _unbind(self, pattern: str, arguments: Mapping[str, Any]) -> None:
        adapter = self._adapter
        await adapter.broker.unbind(
            "queue",
            self._queue,
            EXCHANGE,
            pattern,
            arguments,
            syntax="mqtt",
            owner=adapter,
            vhost=adapter.config.virtual_host,
        )

    async def _remove(self, pattern: str) -> None:
        """Have no binding of a pattern any more. Raises BrokerError."""
        if self._lasting is None:
            await self._unbind(pattern, {})
            return
        for one in self._lasting.bindings(pattern):
            await self._unbind(pattern, one.arguments)

    async def _declare_queue(self) -> str:
        info = await self._adapter.broker.declare_queue(
            f"mqtt.{self._adapter.connect.client_id}",
            durable=False,
            exclusive=True,
            auto_delete=True,
            arguments=limits_of(self._adapter.config),
            owner=self._adapter,
            vhost=self._adapter.config.virtual_host,
        )
        return info.name

    async def unsubscribe(self, event: Unsubscribe) -> None:
        """Unbind; filters that are not there are answered all the same (MQTT-3.10.4-5)."""
        reasons = [ReasonCode.NO_SUBSCRIPTION_EXISTED] * len(event.filters)
        for index, topic_filter in enumerate(map(self._rewriting.filter, event.filters)):
            if self._queue:
                await exclusive.release(self._adapter, topic_filter, self._queue)
            pattern = exclusive.pattern(topic_filter)
            if topic_filter.startswith(PREFIX):
                reasons[index] = await self.shares.leave(topic_filter)
            elif topic_filter.startswith(REPLAY):
                reasons[index] = self._replays.end(topic_filter)
            elif pattern in self._subscriptions.granted or (self._lasting and self._lasting.bindings(pattern)):
                reasons[index] = ReasonCode.SUCCESS
                self._subscriptions.remove(pattern)
                await self._remove(pattern)
        if not self._adapter.closed:
            self._changed()
            self._adapter.outbox.write(self._adapter.wire.unsuback(event.packet_id, reasons))

    async def _consume(self) -> None:
        """Consume without acknowledgement as long as nothing was granted QoS 1."""
        no_ack, old = not self._subscriptions.qos_max, self._consumer
        if self._adapter.closed or not self._queue or (old is not None and (no_ack or not old.no_ack)):
            return
        # The new one first: the queue goes with its last consumer.
        # What ends with its connection has nobody to give anything back to.
        lasts = self._lasting is not None
        self._consumer = await self._session.consume(self._queue, tag="", no_ack=no_ack, gives_back=lasts)
        if old is not None:
            self._session.cancel(old)
