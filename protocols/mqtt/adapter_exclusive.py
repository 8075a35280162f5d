"""Exclusive subscriptions, `$exclusive/<filter>` (EMQX's): of all clients one at a time has it.

It is a subscription to the filter, and a claim besides: a binding of the client's own queue to `amq.direct` with the
whole of what was asked for as key, to which nobody publishes. So a claim comes and goes with the queue: with the
connection, or with a session that lasts, connected or not. Who comes second is refused (0x97, 0x80 before MQTT 5), and
so are both of two that come at the same moment. Other subscriptions to the filter are as free as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.convert import topic_to_routing_key
from routing.message import NeutralProperties

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter

PREFIX = "$exclusive/"
_CLAIMS = "amq.direct"


def inner(topic_filter: str) -> str:
    """The filter that a client gets messages by."""
    return topic_filter.removeprefix(PREFIX)


def pattern(topic_filter: str) -> str:
    """That of the binding by which a client gets messages."""
    return topic_to_routing_key(inner(topic_filter))


def _key(topic_filter: str) -> str:
    return PREFIX + inner(topic_filter)


def _claimants(adapter: MqttAdapter, topic_filter: str) -> set[tuple[str, str]]:
    matcher = adapter.broker.topology.vhost(adapter.config.virtual_host).exchanges[_CLAIMS].matcher
    return set(matcher.match(_key(topic_filter), NeutralProperties))


def has(adapter: MqttAdapter, topic_filter: str, queue_name: str) -> bool:
    """Whether it is this client's."""
    return topic_filter.startswith(PREFIX) and ("queue", queue_name) in _claimants(adapter, topic_filter)


async def claim(adapter: MqttAdapter, topic_filter: str, queue_name: str) -> bool:
    """Whether it is this client's from now on. Raises BrokerError."""
    own = {("queue", queue_name)}
    if _claimants(adapter, topic_filter) - own:
        return False
    vhost, key = adapter.config.virtual_host, _key(topic_filter)
    await adapter.broker.bind("queue", queue_name, _CLAIMS, key, {}, syntax="mqtt", owner=adapter, vhost=vhost)
    if _claimants(adapter, topic_filter) == own:
        return True
    await release(adapter, topic_filter, queue_name)
    return False


async def release(adapter: MqttAdapter, topic_filter: str, queue_name: str) -> None:
    """It is nobody's any more, if it was this client's. Raises BrokerError."""
    if ("queue", queue_name) in _claimants(adapter, topic_filter):
        vhost, key = adapter.config.virtual_host, _key(topic_filter)
        await adapter.broker.unbind("queue", queue_name, _CLAIMS, key, {}, syntax="mqtt", owner=adapter, vhost=vhost)
