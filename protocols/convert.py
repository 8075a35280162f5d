"""Names from one protocol's form to another's, in this one place.

MQTT separates the levels of a topic by `/`, AMQP the words of a routing key by `.`. The two characters are **swapped**,
not merged, so that every name comes back unchanged: `plant/7/temp` is the key `plant.7.temp`, and the topic
`plant/v1.2/temp` is the key `plant.v1/2.temp`.

The ambiguity that remains, by design: a `.` inside an MQTT level arrives in AMQP as a `/` inside a word, so that an
AMQP pattern sees `v1/2` as one word, as MQTT sees `v1.2` as one level. Levels and words always correspond; only the
spelling of the other side's separator differs. (Replacing without swapping would make `a/b` and `a.b` the same key,
and a reply sent to a converted name would go astray.)
"""

from __future__ import annotations

_SWAP = str.maketrans("/.", "./")


def topic_to_routing_key(topic: str) -> str:
    """The routing key of an MQTT topic name, or the `syntax="mqtt"` pattern of a topic filter."""
    return topic.translate(_SWAP) if "." in topic else topic.replace("/", ".")


def routing_key_to_topic(routing_key: str) -> str:
    """The MQTT topic name of a routing key: the inverse of `topic_to_routing_key`."""
    return routing_key.translate(_SWAP) if "/" in routing_key else routing_key.replace(".", "/")
