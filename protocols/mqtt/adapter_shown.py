"""What an operator is shown of the session of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from protocols.convert import routing_key_to_topic
from protocols.mqtt.adapter_publish import EXCHANGE
from protocols.mqtt.adapter_sessions import queue_name
from protocols.mqtt.adapter_shares import MEMBERS
from protocols.mqtt.adapter_shares import PREFIX as SHARE
from protocols.mqtt.adapter_subscriptions import SubscriptionOptions, from_arguments
from routing.client_sessions import SessionKind, Subscription, register_sessions

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter
    from routing.topology.binding import Binding
    from routing.topology.virtual_host import VirtualHost


def subscriptions(vhost: VirtualHost, queue: str, owner: object) -> list[Subscription]:
    """The topic filters of a client: those of its connection, or those that last (see `SessionKind`)."""
    adapter = cast("MqttAdapter | None", owner)
    if adapter is not None and adapter.has_begun:
        return [_shown(topic_filter, options) for topic_filter, options in adapter.subscribing.granted.items()]
    return [
        _shown(topic_filter, from_arguments(binding.arguments))
        for binding in vhost.bindings_to.get(("queue", queue), ())
        if binding.syntax == "mqtt" and (topic_filter := _filter_of(binding)) is not None
    ]


def _filter_of(binding: Binding) -> str | None:
    """None: it says something else."""
    if binding.exchange == EXCHANGE:
        return routing_key_to_topic(binding.pattern)
    return binding.pattern if binding.exchange == MEMBERS and binding.pattern.startswith(SHARE) else None


def _shown(topic_filter: str, options: SubscriptionOptions) -> Subscription:
    return {"filter": topic_filter, **options._asdict()}


register_sessions("mqtt", SessionKind(queue_name(""), subscriptions))
