"""Shared subscriptions, `$share/<group>/<filter>` (MQTT 5, 4.8.2), for clients of every version.

1. A group is a durable queue named as the subscription is, bound to the exchange with the filter. Its members' sessions
   consume it, so that what one leaves unacknowledged goes to the others at once, in order, and what comes while all are
   away waits for whoever comes: under any client identifier.
2. The queue goes when nobody has consumed it for `share_expiry_s`, or for as long as the longest session that has been
   a member lasts. With `share_remove_unsubscribed` it goes when its last member unsubscribes.
3. Who gets what is the queue's to decide (`_STRATEGIES`): so it is by policy, too, for queues of names that match.
4. That a session which lasts is a member is a binding of the session's own queue to `amq.direct`, with the subscription
   as key, to which nobody publishes: it comes and goes with the session, and holds the options.
5. At most QoS 1 is granted: a message at QoS 2 would have to wait for the member it was begun with (MQTT-4.8.2-5),
   whatever becomes of that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from protocols.convert import topic_to_routing_key
from protocols.mqtt.adapter_deliver import ROUTES_REMEMBERED_MAX
from protocols.mqtt.adapter_errors import reason_of
from protocols.mqtt.adapter_exclusive import PREFIX as EXCLUSIVE
from protocols.mqtt.adapter_properties import PUBLISHER_HEADER
from protocols.mqtt.adapter_publish import EXCHANGE
from protocols.mqtt.adapter_subscriptions import SubscriptionOptions, from_arguments, terms_of, to_arguments
from protocols.mqtt.adapter_terms import Route
from protocols.mqtt.events import NEVER_S
from protocols.mqtt.reasons import SUBACK_REASONS, ReasonCode
from routing.declaring.at_once import at_once
from routing.errors import BrokerError, NoRoomForQueue, PreconditionFailed, StorageUnavailable
from routing.message import NeutralProperties
from routing.queues.settings import EXPIRY_MS_MAX
from routing.session import Consumer, Session

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter
    from protocols.mqtt.config import MqttConfig
    from routing.topology.virtual_host import VirtualHost

PREFIX = "$share/"
"""What the names of the groups' queues begin with."""
MEMBERS = "amq.direct"
"""See the module's rule 4."""
QOS_MAX = 1
_NOT_SHARED = (PREFIX, EXCLUSIVE, "$replay/", "$queue/")
"""What filters begin with that are subscriptions of a kind of their own."""

_STRATEGIES: dict[str, dict[str, Any]] = {
    "round-robin": {},
    "least-inflight": {"x-consumer-turns": "least-unsettled"},
    "sticky": {"x-single-active-consumer": True},
    "hash-topic": {"x-group-by": "routing-key"},
    "hash-client": {"x-group-by": PUBLISHER_HEADER},
}
"""What a group's queue is told; policies use the same words without `x-`."""

log = logging.getLogger(__name__)


def parse(topic_filter: str) -> tuple[str, str] | None:
    """Group and filter; None if it is malformed (MQTT-4.8.2-1, MQTT-4.8.2-2), or what is inside can be nobody's with
    others.
    """
    group, _, inner = topic_filter[len(PREFIX) :].partition("/")
    if not group or not inner or "+" in group or "#" in group or inner.startswith(_NOT_SHARED):
        return None
    return group, inner


class Share:
    """A client's part in a group: the context of the consumer."""

    __slots__ = ("_routes", "_terms", "_topic_of", "consumer", "options")

    def __init__(self, options: SubscriptionOptions, topic_of: Callable[[str], bytes | None]) -> None:
        self.consumer: Consumer | None = None
        self.options = options
        self._terms = terms_of([options])
        self._topic_of = topic_of
        self._routes: dict[str, Route] = {}

    def route_of(self, routing_key: str) -> Route:
        """The topic of a routing key, and the terms of this subscription, which alone counts."""
        route = self._routes.get(routing_key)
        if route is None:
            if len(self._routes) >= ROUTES_REMEMBERED_MAX:
                self._routes.clear()
            route = self._routes[routing_key] = self._route(routing_key)
        return route

    def _route(self, routing_key: str) -> Route:
        return self._topic_of(routing_key), self._terms, None


class Shares:
    """The shared subscriptions of one connection, from CONNECT on; see the module."""

    def __init__(self, adapter: MqttAdapter, session: Session) -> None:
        self._adapter = adapter
        self._session = session
        self._config: MqttConfig = adapter.config
        self.granted: dict[str, Share] = {}
        self._lasting = ""
        self._expiry_s = 0

    @property
    def _vhost(self) -> VirtualHost:
        return self._adapter.broker.topology.vhost(self._config.virtual_host)

    async def resume(self, queue_name: str, expiry_s: int) -> None:
        """The session lasts for so long, in a queue of this name: be a member of all groups it is a member of, but for
        those that are refused. Raises StorageUnavailable.
        """
        self._lasting, self._expiry_s = queue_name, expiry_s
        for binding in list(self._vhost.bindings_to.get(("queue", queue_name), ())):
            if binding.exchange == MEMBERS and binding.syntax == "mqtt" and binding.pattern.startswith(PREFIX):
                try:
                    await self._join(binding.pattern, from_arguments(binding.arguments))
                except StorageUnavailable:
                    raise
                except BrokerError as error:
                    self._refusal(binding.pattern, error)

    async def join_all(self, asked: Mapping[str, SubscriptionOptions]) -> dict[str, int]:
        """`join` many, at once: each is written for itself. The reason codes of those that cannot be."""
        refused: dict[str, int] = {}

        async def join(topic_filter: str, options: SubscriptionOptions) -> None:
            code = await self.join(topic_filter, options)
            if code > QOS_MAX:
                refused[topic_filter] = code

        await at_once([partial(join, *one) for one in asked.items()])
        return refused

    async def join(self, topic_filter: str, options: SubscriptionOptions) -> int:
        """Become a member, or one on other terms; the reason code in SUBACK."""
        try:
            return await self._join(topic_filter, options)
        except BrokerError as error:
            return self._refusal(topic_filter, error)

    def _refusal(self, topic_filter: str, error: BrokerError) -> ReasonCode:
        log.warning("MQTT %s: no shared subscription to %r: %s", self._adapter.peer, topic_filter, error)
        return reason_of(error, SUBACK_REASONS, not_authorized_told=self._config.not_authorized_told)

    async def _join(self, topic_filter: str, options: SubscriptionOptions) -> int:
        """`join`. Raises BrokerError."""
        parsed = parse(topic_filter)
        if parsed is None:
            return ReasonCode.TOPIC_FILTER_INVALID
        options = options._replace(qos=min(options.qos, QOS_MAX), no_local=False)
        before = self.granted.get(topic_filter)
        if before is not None and before.options == options:
            return options.qos
        adapter, pattern = self._adapter, topic_to_routing_key(parsed[1])
        adapter.grants.require("read", "exchange", EXCHANGE)
        adapter.grants.require_keys("read", EXCHANGE, (pattern,))
        await self._make(topic_filter, pattern)
        share = Share(options, adapter.delivering.topic_of)
        share.consumer = await self._session.consume(
            topic_filter, tag=topic_filter, no_ack=not options.qos, context=share
        )
        try:
            await self._remember(topic_filter, options)
        except BrokerError:
            self._session.cancel(share.consumer)
            raise
        if before is not None and before.consumer is not None:
            self._session.cancel(before.consumer)
        self.granted[topic_filter] = share
        return options.qos

    async def _make(self, name: str, pattern: str) -> None:
        """The group's queue and its binding, if they are not there. One that is there is as it was made."""
        broker, vhost = self._adapter.broker, self._config.virtual_host
        expires_ms = self._expires_ms()
        there = self._vhost.queues.get(name)
        if there is None:
            arguments = self._strategy(name)
            if expires_ms is not None:
                arguments["x-expires"] = expires_ms
            if self._config.share_messages_max:
                arguments["x-max-length"] = self._config.share_messages_max
            try:
                await broker.declare_queue(name, durable=True, arguments=arguments, vhost=vhost)
            except NoRoomForQueue:
                raise
            except PreconditionFailed:
                log.debug("MQTT: the group %r was made otherwise by another at the same moment", name)
        await broker.bind("queue", name, EXCHANGE, pattern, {}, syntax="mqtt", vhost=vhost)
        there = self._vhost.queues.get(name)
        if there is not None and self._lasting:
            has_ms = there.arguments.get("x-expires")
            if has_ms is not None and (expires_ms is None or expires_ms > has_ms):
                await broker.alter_queue(name, {"x-expires": expires_ms}, vhost=vhost)

    def _strategy(self, name: str) -> dict[str, Any]:
        """The configured strategy, unless a policy has one for this group."""
        definition: Mapping[str, Any] = self._vhost.policies.definition_of(("queues", "classic_queues"), name)
        told = {key.removeprefix("x-") for strategy in _STRATEGIES.values() for key in strategy}
        return {} if told & set(definition) else dict(_STRATEGIES[self._config.share_strategy])

    def _expires_ms(self) -> int | None:
        """For how long the queue is to be there without members; None: for ever."""
        if self._expiry_s == NEVER_S or not self._config.share_expiry_s:
            return None
        return min(max(self._expiry_s, self._config.share_expiry_s) * 1000, EXPIRY_MS_MAX)

    async def _remember(self, topic_filter: str, options: SubscriptionOptions | None) -> None:
        """That a session which lasts is a member, or that it is not any more."""
        if not self._lasting:
            return
        adapter, vhost, name = self._adapter, self._config.virtual_host, self._lasting
        arguments = to_arguments(options) if options is not None else None
        bindings = [
            binding
            for binding in self._vhost.bindings_to.get(("queue", name), ())
            if (binding.exchange, binding.pattern, binding.syntax) == (MEMBERS, topic_filter, "mqtt")
        ]
        if arguments is not None and all(binding.arguments != arguments for binding in bindings):
            await adapter.broker.bind(
                "queue", name, MEMBERS, topic_filter, arguments, syntax="mqtt", owner=adapter, vhost=vhost
            )
        for binding in bindings:
            if binding.arguments != arguments:
                await adapter.broker.unbind(
                    "queue", name, MEMBERS, topic_filter, binding.arguments, syntax="mqtt", owner=adapter, vhost=vhost
                )

    async def leave_all(self, topic_filters: Iterable[str]) -> dict[str, ReasonCode]:
        """`leave` many, at once: each is written for itself. Raises BrokerError."""
        codes: dict[str, ReasonCode] = {}
        failed: list[BrokerError] = []

        async def leave(topic_filter: str) -> None:
            try:
                codes[topic_filter] = await self.leave(topic_filter)
            except BrokerError as error:
                failed.append(error)

        await at_once([partial(leave, one) for one in topic_filters])
        if failed:
            raise failed[0]
        return codes

    async def leave(self, topic_filter: str) -> ReasonCode:
        """Be no member any more; the reason code in UNSUBACK. Raises BrokerError."""
        share = self.granted.pop(topic_filter, None)
        if share is None or share.consumer is None:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        self._session.cancel(share.consumer)
        await self._remember(topic_filter, None)
        if self._config.share_remove_unsubscribed and not self._has_members(topic_filter):
            vhost = self._config.virtual_host
            try:
                await self._adapter.broker.delete_queue(topic_filter, if_unused=True, vhost=vhost)
            except PreconditionFailed:
                log.debug("MQTT: the group %r has a member again", topic_filter)
        return ReasonCode.SUCCESS

    def _has_members(self, topic_filter: str) -> bool:
        """Whether a session that lasts, connected or not, is one."""
        matcher = self._vhost.exchanges[MEMBERS].matcher
        return any(kind == "queue" for kind, _ in matcher.match(topic_filter, NeutralProperties))
