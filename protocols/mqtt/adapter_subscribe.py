"""SUBSCRIBE and UNSUBSCRIBE: a client's queue, the bindings that its topic filters are, and its consumer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from protocols.convert import routing_key_to_topic
from protocols.mqtt import adapter_exclusive as exclusive
from protocols.mqtt.adapter_errors import reason_of
from protocols.mqtt.adapter_publish import EXCHANGE
from protocols.mqtt.adapter_replay import PREFIX as REPLAY
from protocols.mqtt.adapter_replay import Replays
from protocols.mqtt.adapter_retained import wanted
from protocols.mqtt.adapter_sessions import limits_of, queue_name, sessions_of
from protocols.mqtt.adapter_shares import PREFIX, QOS_MAX, Shares
from protocols.mqtt.adapter_subscriptions import SubscriptionOptions, Subscriptions, to_arguments
from protocols.mqtt.adapter_sys import system_of
from protocols.mqtt.events import Subscribe, SubscriptionRequest, Unsubscribe
from protocols.mqtt.reasons import SUBACK_REASONS, ReasonCode
from protocols.mqtt.topics import Rewriting, as_shared
from routing.declaring.control import Bound
from routing.errors import AccessRefused, BrokerError, LimitExceeded
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
            system_of(self._adapter).watch(self._adapter, self.patterns)
            elsewhere = self._adapter.broker.elsewhere
            try:
                if elsewhere is None:
                    self._consumer = await self._session.consume(self._queue, tag="", no_ack=False, exclusive=True)
                else:
                    self._consumer = await elsewhere.consume(self._session, self._queue)
            except AccessRefused as error:  # it has another consumer, as it may have by AMQP
                self._adapter.end(str(error), code=ReasonCode.SERVER_BUSY)
                return
            if self._adapter.closed:
                return  # what was said of the expiry is over: who has taken over has a say in it
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
        meant = [self._rewriting.filter(one.topic_filter) for one in requests]
        requests = [
            one if topic_filter == one.topic_filter else replace(one, topic_filter=topic_filter)
            for one, topic_filter in zip(requests, meant, strict=True)
        ]
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
            requests.append(SubscriptionRequest(as_shared(topic_filter), *terms))
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
        asked: dict[str, SubscriptionOptions] = {}
        async with self._alone():
            codes = await self._make_effective(requests, subscription_id, asked)
        if not self._adapter.closed:
            self._changed()
            system = system_of(self._adapter)
            system.watch(self._adapter, asked)
            await self._consume()
            if answer is not None:
                packet_id, others = answer
                self._answer(self._adapter.wire.suback(packet_id, codes + others))
            patterns = [exclusive.pattern(one) for one in wanted(requests, codes, known)]
            given = [(one, granted[one]) for one in patterns if one in granted]
            await self._adapter.retaining.give_out(self._queue, given)
            system.give_retained(self._adapter, patterns)

    def _alone(self) -> AbstractAsyncContextManager[None]:
        """What lasts is changed within this. Who comes after this connection waits for it (`open_session`): what is
        still under way would be done after what the client says then, and its answer is not true any more.
        """
        adapter = self._adapter
        if self._lasting is None:
            return nullcontext()
        return sessions_of(adapter.broker).opening.alone(adapter.connect.client_id)

    async def _make_effective(
        self, requests: list[SubscriptionRequest], subscription_id: int, asked: dict[str, SubscriptionOptions]
    ) -> list[int]:
        """The reason codes of filters; those that are bound are put into `asked`."""
        claimed = {one.topic_filter for one in requests if exclusive.has(self._adapter, one.topic_filter, self._queue)}
        shared: dict[str, SubscriptionOptions] = {}
        codes = [await self._grant(request, subscription_id, asked, shared) for request in requests]
        not_shared = await self.shares.join_all(shared) if not self._adapter.closed else {}
        codes = [not_shared.get(one.topic_filter, code) for one, code in zip(requests, codes, strict=True)]
        refused = await self._bind(asked) if not self._adapter.closed else {}
        if refused:
            asked_of = [exclusive.pattern(one.topic_filter) for one in requests]
            codes = [refused.get(pattern, code) for pattern, code in zip(asked_of, codes, strict=True)]
            await self._give_up({one.topic_filter for one in requests} - claimed, refused)
        return codes

    def _answer(self, packet: bytes) -> None:
        """Send SUBACK or UNSUBACK, if the client takes packets as large (MQTT-3.1.2-24). It would wait for ever for one
        that it is not sent: then the connection ends.
        """
        connect = self._adapter.connect
        if connect.takes(len(packet)):
            self._adapter.outbox.write(packet)
        else:
            reason = f"it takes packets of {connect.packet_bytes_max} bytes, and the answer has {len(packet)}"
            self._adapter.end(reason, code=ReasonCode.PACKET_TOO_LARGE)

    def _changed(self) -> None:
        self._delivering.forget_routes()
        self._adapter.publishing.name_publisher(always=self._subscriptions.are_for_others)

    async def _grant(
        self,
        request: SubscriptionRequest,
        subscription_id: int,
        asked: dict[str, SubscriptionOptions],
        shared: dict[str, SubscriptionOptions],
    ) -> int:
        """Make one filter effective, or put it with what is to be bound or joined together; its reason code in SUBACK,
        if it can be.
        """
        topic_filter, granted = request.topic_filter, self._subscriptions.granted
        shares, replays = self.shares.granted, self._replays.granted
        if self._adapter.closed or self._adapter.config.over_limit(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        pattern = exclusive.pattern(topic_filter)
        there = pattern in granted or pattern in asked
        there = there or topic_filter in shares or topic_filter in shared or topic_filter in replays
        room = self._adapter.config.subscriptions_max - len(granted) - len(shares) - len(replays)
        if not there and room <= len(asked) + len(shared):  # else there is room though all of them are new
            room -= len(asked.keys() - granted.keys()) + len(shared.keys() - shares.keys())
            if room <= 0:
                return ReasonCode.QUOTA_EXCEEDED
        options = SubscriptionOptions(request.qos, request.no_local, request.retain_as_published, subscription_id)
        if topic_filter.startswith(PREFIX):
            shared[topic_filter] = options
            return min(options.qos, QOS_MAX)
        if topic_filter.startswith(REPLAY):
            return await self._replays.begin(topic_filter, options)
        try:
            self._require_read(pattern)
            if topic_filter.startswith(exclusive.PREFIX) and (code := await self._claim(topic_filter)):
                return code
        except BrokerError as error:
            return self._refusal(topic_filter, error)
        asked[pattern] = options
        return options.qos

    def _refusal(self, topic_filter: str, error: BrokerError) -> ReasonCode:
        log.warning("MQTT %s: no subscription to %r: %s", self._adapter.peer, topic_filter, error)
        return reason_of(error, SUBACK_REASONS, not_authorized_told=self._adapter.config.not_authorized_told)

    async def _claim(self, topic_filter: str) -> int:
        """Have a filter for this client alone; the reason code if it cannot be. Raises BrokerError."""
        inner = exclusive.inner(topic_filter)
        if not inner or inner.startswith("$"):
            return ReasonCode.TOPIC_FILTER_INVALID
        self._queue = self._queue or await self._declare_queue()
        if not self._queue or not await exclusive.claim(self._adapter, topic_filter, self._queue):
            return ReasonCode.QUOTA_EXCEEDED
        return ReasonCode.SUCCESS

    async def _give_up(self, filters: Collection[str], refused: Collection[str]) -> None:
        """What was claimed for bindings that cannot be is for others."""
        for one in filters:
            if one.startswith(exclusive.PREFIX) and exclusive.pattern(one) in refused:
                try:
                    await exclusive.release(self._adapter, one, self._queue)
                except BrokerError as error:
                    log.warning("MQTT %s: the claim of %r stays: %s", self._adapter.peer, one, error)

    async def _bind(self, asked: dict[str, SubscriptionOptions]) -> dict[str, ReasonCode]:
        """Have bindings for patterns, by one change: to write each for itself would take a thousand times as long. The
        reason codes of those that cannot be.
        """
        if not asked:
            return {}
        try:
            await self._make_bindings(asked)
        except LimitExceeded as error:
            if len(asked) == 1:
                return {pattern: self._refusal(routing_key_to_topic(pattern), error) for pattern in asked}
            pairs, half = list(asked.items()), len(asked) // 2
            return await self._bind(dict(pairs[:half])) | await self._bind(dict(pairs[half:]))
        except BrokerError as error:
            return {pattern: self._refusal(routing_key_to_topic(pattern), error) for pattern in asked}
        for pattern, options in asked.items():
            self._subscriptions.grant(pattern, options)
        return {}

    async def _make_bindings(self, asked: dict[str, SubscriptionOptions]) -> None:
        self._queue = self._queue or await self._declare_queue()
        if not self._queue:
            return
        if self._lasting is None:
            granted = self._subscriptions.granted
            await self._change_bindings([(pattern, {}) for pattern in asked if pattern not in granted], [])
            return
        before = self._lasting.arguments_of(asked)
        wanted = {pattern: to_arguments(options) for pattern, options in asked.items()}
        await self._change_bindings(
            [(pattern, one) for pattern, one in wanted.items() if one not in before.get(pattern, ())],
            [(pattern, one) for pattern, some in before.items() for one in some if one != wanted[pattern]],
        )

    async def _change_bindings(self, new: list[Bound], gone: list[Bound]) -> None:
        if new or gone:
            adapter = self._adapter
            queue, vhost = ("queue", self._queue), adapter.config.virtual_host
            await adapter.broker.change_bindings(
                queue, EXCHANGE, new=new, gone=gone, syntax="mqtt", owner=adapter, vhost=vhost
            )

    async def _declare_queue(self) -> str:
        """The queue of a client that has no session; "" if its connection is over. One that is taken over while it does
        this is waited for by who comes after it, whose queue it would be (`open_session`).
        """
        adapter = self._adapter
        async with sessions_of(adapter.broker).opening.alone(adapter.connect.client_id):
            if adapter.closed:
                return ""
            info = await adapter.broker.declare_queue(
                queue_name(adapter.connect.client_id),
                durable=False,
                exclusive=True,
                auto_delete=True,
                arguments=limits_of(adapter.config),
                owner=adapter,
                vhost=adapter.config.virtual_host,
            )
            if adapter.closed:
                adapter.broker.release(adapter)  # it was before there was this queue
                return ""
        return info.name

    async def unsubscribe(self, event: Unsubscribe) -> None:
        """Unbind; filters that are not there are answered all the same (MQTT-3.10.4-5)."""
        async with self._alone():
            reasons = await self._remove([self._rewriting.filter(topic_filter) for topic_filter in event.filters])
        if not self._adapter.closed:
            self._changed()
            self._answer(self._adapter.wire.unsuback(event.packet_id, reasons))

    async def _remove(self, filters: list[str]) -> list[ReasonCode]:
        """The reason codes of filters that the client does not want any more."""
        reasons = [ReasonCode.NO_SUBSCRIPTION_EXISTED] * len(filters)
        if self._adapter.closed:
            return reasons
        bound = self._bound({exclusive.pattern(topic_filter) for topic_filter in filters})
        gone: list[Bound] = []
        giving = sessions_of(self._adapter.broker).giving
        left = await self.shares.leave_all({one for one in filters if one.startswith(PREFIX)})
        for index, topic_filter in enumerate(filters):
            if self._queue:
                await exclusive.release(self._adapter, topic_filter, self._queue)
            pattern = exclusive.pattern(topic_filter)
            if topic_filter.startswith(PREFIX):
                reasons[index] = left.pop(topic_filter, reasons[index])  # who has left is no member any more
            elif topic_filter.startswith(REPLAY):
                reasons[index] = self._replays.end(topic_filter)
            elif pattern in bound:
                reasons[index] = ReasonCode.SUCCESS
                self._subscriptions.remove(pattern)
                giving.pop((self._queue, pattern), None)
                gone += [(pattern, arguments) for arguments in bound.pop(pattern)]
        await self._change_bindings([], gone)
        return reasons

    def _bound(self, patterns: Collection[str]) -> dict[str, list[Mapping[str, Any]]]:
        """The arguments of the client's bindings with these patterns."""
        if self._lasting is None:
            return {pattern: [{}] for pattern in patterns if pattern in self._subscriptions.granted}
        return self._lasting.arguments_of(patterns)

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
