"""What one client is subscribed to."""

from __future__ import annotations

from protocols.convert import topic_to_routing_key
from routing.topology.topic_trie import TopicTrie, parse_pattern


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
        self._at_qos_1 += qos
        self._trie.add(parse_pattern(topic_to_routing_key(topic_filter), "mqtt"), qos)

    def remove(self, topic_filter: str) -> None:
        """Take a filter away if it is there."""
        qos = self.granted.pop(topic_filter, None)
        if qos is not None:
            self._at_qos_1 -= qos
            self._trie.remove(parse_pattern(topic_to_routing_key(topic_filter), "mqtt"), qos)

    @property
    def qos_max(self) -> int:
        """The highest QoS granted to any filter."""
        return 1 if self._at_qos_1 else 0

    def qos_for(self, routing_key: str) -> int:
        """The highest QoS of the filters that match (MQTT-3.3.5-1); 0 if the last of them was just removed."""
        if self._at_qos_1 in (0, len(self.granted)):
            return self.qos_max
        return max(self._trie.match(routing_key), default=0)
