"""What one client is subscribed to, and how a subscription stands in a binding.

The subscriptions of a session that lasts are durable bindings, whose arguments hold the options (`to_arguments`); read
back with `from_arguments` they are the same. Retain handling is no part of them: it says what to do at SUBSCRIBE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from protocols.mqtt.properties import Property, encode_properties
from routing.topology.topic_trie import TopicTrie

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


QOS_MAX = 2

_PLAIN = SubscriptionOptions()[1:]


class Terms(NamedTuple):
    """On which terms a client gets the messages of a topic, by all of its subscriptions that match."""

    qos: int
    """The highest granted (MQTT-3.3.5-1, MQTT-3.3.4-2)."""
    retain_as_published: bool = False
    """Whether any of them asks for it."""
    subscription_ids: bytes = b""
    """Of all that have one (MQTT-3.3.4-4), as they stand in a property block."""


class _Held:
    """A filter in the trie."""

    __slots__ = ("options", "pattern")
    syntax = "mqtt"

    def __init__(self, pattern: str, options: SubscriptionOptions) -> None:
        self.pattern = pattern
        self.options = options

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.pattern == other.pattern

    def __hash__(self) -> int:
        return hash(self.pattern)


class Subscriptions:
    """The topic filters of a client, as the patterns of their bindings, with the options of each. They are only looked
    for in a trie where the options are not all the same.
    """

    __slots__ = ("_kinds", "_trie", "granted")

    def __init__(self) -> None:
        self.granted: dict[str, SubscriptionOptions] = {}
        """By pattern."""
        self._kinds: dict[SubscriptionOptions, tuple[SubscriptionOptions, int]] = {}
        """Each options that occur, and how often."""
        self._trie: TopicTrie[_Held] | None = None

    def grant(self, pattern: str, options: SubscriptionOptions) -> None:
        """Add a filter, or replace the one there is (MQTT-3.8.4-3)."""
        self.remove(pattern)
        options, count = self._kinds.get(options, (options, 0))
        self._kinds[options] = (options, count + 1)
        self.granted[pattern] = options
        if self._trie is not None:
            self._trie.add(_Held(pattern, options))

    def remove(self, pattern: str) -> None:
        """Take a filter away if it is there."""
        options = self.granted.pop(pattern, None)
        if options is None:
            return
        _, count = self._kinds.pop(options)
        if count > 1:
            self._kinds[options] = (options, count - 1)
        if self._trie is not None:
            self._trie.remove(_Held(pattern, options))

    @property
    def qos_max(self) -> int:
        """The highest QoS granted to any filter."""
        return max((options.qos for options in self._kinds), default=0)

    @property
    def are_plain(self) -> bool:
        """Whether there is nothing to a filter but its QoS."""
        return all(options[1:] == _PLAIN for options in self._kinds)

    @property
    def are_for_others(self) -> bool:
        """Whether any filter is for messages of others only."""
        return any(options.no_local for options in self._kinds)

    def terms_for(self, routing_key: str) -> Terms:
        """The terms for messages of a topic, also where the last filter that matched was just removed."""
        if len(self._kinds) == 1:
            (options,) = self._kinds
            if not options.subscription_id:
                return Terms(options.qos, options.retain_as_published)
        return terms_of(self._matching(routing_key))

    def terms_for_own(self, routing_key: str) -> Terms | None:
        """The terms for what the client publishes itself; None: it gets none of it (MQTT-3.8.3-3)."""
        found = self._matching(routing_key)
        others = [options for options in found if not options.no_local]
        return terms_of(others) if others or not found else None

    def match(self, routing_key: str) -> bool:
        """Whether any filter matches a topic."""
        return bool(self._matching(routing_key))

    def _matching(self, routing_key: str) -> list[SubscriptionOptions]:
        if self._trie is None:
            self._trie = TopicTrie()
            for pattern, options in self.granted.items():
                self._trie.add(_Held(pattern, options))
        return [held.options for held in self._trie.match(routing_key)]


def terms_of(found: list[SubscriptionOptions]) -> Terms:
    """The terms that subscriptions make together. Of those that are gone what has been sent at some QoS is still to be
    completed (MQTT-3.10.4-3): at its own. Identifiers rise, as the tests of Paho C want it; no clause does.
    """
    identifiers = [(Property.SUBSCRIPTION_ID, one.subscription_id) for one in found if one.subscription_id]
    return Terms(
        max((options.qos for options in found), default=QOS_MAX),
        any(options.retain_as_published for options in found),
        encode_properties(sorted(identifiers)) if identifiers else b"",
    )
