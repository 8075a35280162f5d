"""What was published before, `$replay/<time>/<filter>`: from then on, and then what comes, for clients of any version.

It is read from the streams that are bound to `amq.topic`: each is consumed from the time on, and what the filter does
not match is passed by. `<time>` is an age (`-1h`, `-30m`; `s`, `m`, `h`, `D`, `M`, `Y`) or seconds since 1970. At most
QoS 1 is granted. It is the connection's, not the session's: who comes back asks again, for whatever time is right then.
Reading takes the rights of the filter and those for a stream that is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from core_log.wall_clock import wall_clock_ms
from protocols.convert import topic_to_routing_key
from protocols.mqtt.adapter_errors import reason_of
from protocols.mqtt.adapter_publish import EXCHANGE
from protocols.mqtt.adapter_shares import Share
from protocols.mqtt.adapter_subscriptions import SubscriptionOptions, Terms
from protocols.mqtt.adapter_terms import Route
from protocols.mqtt.packets import check_topic_filter
from protocols.mqtt.reasons import SUBACK_REASONS, MqttProtocolError, ReasonCode
from routing.errors import BrokerError
from routing.key_patterns import matches, parse_pattern
from routing.session import Consumer, Session
from routing.topics.stream_settings import OFFSET_ARGUMENT, interval_ms

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter

PREFIX = "$replay/"
QOS_MAX = 1
_DIGITS_MAX = 11
_NOT_ASKED_FOR = Terms(-1)

log = logging.getLogger(__name__)


def parse(topic_filter: str, now_ms: int) -> tuple[int, str] | None:
    """Since when, in ms since the epoch, and the filter; None if it is malformed."""
    since, _, inner = topic_filter[len(PREFIX) :].partition("/")
    try:
        check_topic_filter(inner)
    except MqttProtocolError:
        return None
    if inner.startswith("$"):
        return None
    if since.startswith("-"):
        age_ms = interval_ms(since[1:])
        return None if age_ms is None else (max(now_ms - age_ms, 0), inner)
    if not since.isascii() or not since.isdecimal() or len(since) > _DIGITS_MAX:
        return None
    return int(since) * 1000, inner


class _Replay(Share):
    """The context of the consumers of one replay."""

    __slots__ = ("_tokens", "consumers")

    def __init__(self, options: SubscriptionOptions, topic_of: Callable[[str], bytes | None], pattern: str) -> None:
        super().__init__(options, topic_of)
        self.consumers: list[Consumer] = []
        self._tokens = parse_pattern(pattern, "mqtt")

    def _route(self, routing_key: str) -> Route:
        if not matches(self._tokens, routing_key):
            return b"", _NOT_ASKED_FOR, None
        return super()._route(routing_key)


class Replays:
    """Those of one connection, from CONNECT on; see the module."""

    __slots__ = ("_adapter", "_session", "granted")

    def __init__(self, adapter: MqttAdapter, session: Session) -> None:
        self._adapter = adapter
        self._session = session
        self.granted: dict[str, _Replay] = {}

    async def begin(self, topic_filter: str, options: SubscriptionOptions) -> int:
        """Have what was published since then delivered, again if it was before; the reason code in SUBACK."""
        adapter, now_ms = self._adapter, wall_clock_ms()
        parsed = parse(topic_filter, now_ms)
        if parsed is None:
            return ReasonCode.TOPIC_FILTER_INVALID
        since_ms, inner = parsed
        pattern = topic_to_routing_key(inner)
        options = options._replace(qos=min(options.qos, QOS_MAX), no_local=False)
        part = _Replay(options, adapter.delivering.topic_of, pattern)
        try:
            adapter.grants.require("read", "exchange", EXCHANGE)
            adapter.grants.require_keys("read", EXCHANGE, (pattern,))
            for name in self._streams():
                adapter.grants.require("read", "queue", name)
                part.consumers.append(await self._consume(name, since_ms, part))
        except BrokerError as error:
            log.warning("MQTT %s: nothing is replayed for %r: %s", adapter.peer, topic_filter, error)
            self._end(part)
            return reason_of(error, SUBACK_REASONS, not_authorized_told=self._adapter.config.not_authorized_told)
        if not part.consumers:
            log.warning("MQTT %s: no stream is bound to %s that could be replayed", adapter.peer, EXCHANGE)
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        self.end(topic_filter)
        self.granted[topic_filter] = part
        return options.qos

    async def _consume(self, stream: str, since_ms: int, part: _Replay) -> Consumer:
        session = self._session
        arguments = {OFFSET_ARGUMENT: datetime.fromtimestamp(since_ms / 1000, UTC)}
        # Consumers of a stream need a window of their own; the session's counts besides.
        return await session.consume(
            stream, tag="", no_ack=False, arguments=arguments, prefetch=session.prefetch, context=part
        )

    def _streams(self) -> list[str]:
        """The streams that have what was published."""
        vhost = self._adapter.broker.topology.vhost(self._adapter.config.virtual_host)
        return [
            name
            for name, stream in vhost.streams.items()
            if any(
                binding.exchange == EXCHANGE
                for kind in (("queue", name), ("topic", stream.topic.name))
                for binding in vhost.bindings_to.get(kind, ())
            )
        ]

    def end(self, topic_filter: str) -> ReasonCode:
        """The reason code in UNSUBACK."""
        part = self.granted.pop(topic_filter, None)
        if part is None:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        self._end(part)
        return ReasonCode.SUCCESS

    def _end(self, part: _Replay) -> None:
        for consumer in part.consumers:
            self._session.cancel(consumer)
