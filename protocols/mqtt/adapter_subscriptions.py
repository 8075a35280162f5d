"""What one client is subscribed to, and how a subscription stands in a binding.

The subscriptions of a session that lasts are durable bindings, whose arguments hold the options (`to_arguments`); read
back with `from_arguments` they are the same. Retain handling is no part of them: it says what to do at SUBSCRIBE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from protocols.convert import topic_to_routing_key
from routing.topology.topic_trie import TopicTrie, parse_pattern

_QOS = "mqtt-qos"
_NO_LOCAL = "mqtt-no-local"
_RETAIN_AS_PUBLISHED = "mqtt-retain-as-published"
_SUBSCRIPTION_ID = "mqtt-subscription-id"


class SubscriptionOptions(NamedTuple):
    """What a client said of a filter (MQTT 5, 3.8.3.1), with the QoS that was granted; id 0 is none."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    subscription_id: int = 0


def to_arguments(options: SubscriptionOptions) -> dict[str, Any]:
    """The options as arguments of a binding; what is as usual is left out, but for the QoS."""
    arguments: dict[str, Any] = {_QOS: options.qos}
    if options.no_local:
        arguments[_NO_LOCAL] = True
    if options.retain_as_published:
        arguments[_RETAIN_AS_PUBLISHED] = True
    if options.subscription_id:
        arguments[_SUBSCRIPTION_ID] = options.subscription_id
    return arguments


def from_arguments(arguments: Mapping[str, Any]) -> SubscriptionOptions:
    """The options that a binding holds; of a binding that was made by others, at QoS 0 and nothing else."""
    qos, identifier = arguments.get(_QOS, 0), arguments.get(_SUBSCRIPTION_ID, 0)
    return SubscriptionOptions(
        qos if qos in (0, 1, 2) else 0,
        bool(arguments.get(_NO_LOCAL)),
        bool(arguments.get(_RETAIN_AS_PUBLISHED)),
        identifier if isinstance(identifier, int) else 0,
    )


class Subscriptions:
    """The topic filters of a client with the QoS granted to each."""

    def __init__(self) -> None:
        self.granted: dict[str, int] = {}
        self._at_qos_1 = 0
        self._trie = TopicTrie()

    def grant(self, topic_filter: str, qos: int) -> None:
        """Add a filter, or replace the one there is (MQTT-3.8.4-3)."""
        self.remove(topic_filter)
        self.granted[topic_filter] = qos
        self._at_qos_1 += bool(qos)
        self._trie.add(parse_pattern(topic_to_routing_key(topic_filter), "mqtt"), qos)

    def remove(self, topic_filter: str) -> None:
        """Take a filter away if it is there."""
        qos = self.granted.pop(topic_filter, None)
        if qos is not None:
            self._at_qos_1 -= bool(qos)
            self._trie.remove(parse_pattern(topic_to_routing_key(topic_filter), "mqtt"), qos)

    @property
    def qos_max(self) -> int:
        """The highest QoS granted to any filter."""
        return max(self.granted.values(), default=0)

    def qos_for(self, routing_key: str) -> int:
        """The highest QoS of the filters that match (MQTT-3.3.5-1); 0 if the last of them was just removed."""
        if len(set(self.granted.values())) == 1:
            return self.qos_max
        return max(self._trie.match(routing_key), default=0)
