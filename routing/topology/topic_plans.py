"""What changes of topics consist of, but for the making of one: see `entries.py`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing.errors import InvalidPartitions, PreconditionFailed
from routing.topics.topic import Topic
from routing.topology.entries import Entry, Plan, topic_key
from routing.topology.removal import Removal

if TYPE_CHECKING:
    from routing.topology.topology import Topology


def removal(topology: Topology, name: str) -> Plan:
    """A topic goes, and the bindings to it in every virtual host. Raises NotFound."""
    topology.topic(name)
    removals = [Removal(vhost).topic(name).plan().entries for vhost in topology.vhosts.values()]
    return Plan(list({entry.key: entry for entries in removals for entry in entries}.values()))


def more_partitions(topic: Topic, count: int, live: Any = None, config: dict[str, str] | None = None) -> Plan:
    """A topic gets partitions until there are `count`, and with them another configuration; nothing to do where there
    are. `live`: they are open already.

    Raises InvalidPartitions (it has more), PreconditionFailed (it is a stream).
    """
    there = len(topic.partitions)
    if count < there:
        raise InvalidPartitions(f"topic '{topic.name}' has {there} partitions, and there are never fewer than before")
    if count == there:
        return Plan(guards=[topic_key(topic.name)])
    if topic.is_stream:
        raise PreconditionFailed(f"topic '{topic.name}' is a stream, which has one partition")
    value = topic.record(count) | ({} if config is None else {"config": config})
    return Plan([Entry(topic_key(topic.name), value, True, live)])


def altered(topology: Topology, topic: Topic, config: dict[str, str]) -> Plan:
    """A topic is configured otherwise; nothing to do where it is so already."""
    if config == topic.config:
        return Plan(guards=[topic_key(topic.name)])
    value = topic.record(len(topic.partitions)) | {"config": config}
    for vhost in topology.vhosts.values():
        for stream in vhost.streams.values():
            if stream.topic is topic:
                value["stream"] = {"vhost": vhost.name, "name": stream.name, "arguments": stream.arguments}
    return Plan([Entry(topic_key(topic.name), value, True)])
