"""Declaring a queue that is a view of a topic: what it may be, and where in the topic it begins.

Where it begins is worked out once, when it is made, and is part of its entry: a view that was to begin at the end
begins where that was then, whenever it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import trio

from core_log.errors import LogUnavailable
from core_log.wall_clock import wall_clock_ms
from routing.commits import storage_errors
from routing.errors import NotFound, PreconditionFailed
from routing.queues.settings import VIEW_START, VIEW_TOPIC, check_arguments
from routing.topics.stream_settings import Origin, Start, start_of, topic_name
from routing.topics.topic import Topic
from routing.topics.topic_partition import TopicPartition
from routing.topology.topology import Topology
from routing.topology.virtual_host import VirtualHost

_KNOWN_WITHIN_S = 2.0


class Begun(NamedTuple):
    """The topic of a view, and where the view begins in each partition that it has."""

    topic: Topic
    offsets: list[int]


def arguments_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a view as they are kept: a time as seconds since 1970."""
    value = arguments.get(VIEW_START)
    return {**arguments, VIEW_START: int(value.timestamp())} if isinstance(value, datetime) else dict(arguments)


async def start_of_view(
    topology: Topology, vhost: VirtualHost, name: str, arguments: Mapping[str, Any], *, durable: bool, exclusive: bool
) -> Begun:
    """Where a new view begins in each partition of its topic. Raises PreconditionFailed, InvalidArgument, NotFound,
    StorageUnavailable.
    """
    what = f"queue '{name}' in vhost '{vhost.name}'"
    if not name:
        raise PreconditionFailed("Cannot declare a server-named queue for type rabbit_view_queue")
    for wrong, said in ((exclusive, "exclusive-owner"), (not durable, "non-durable")):
        if wrong:
            raise PreconditionFailed(f"invalid property '{said}' for {what}")
    check_arguments(name, vhost.name, arguments)
    start = start_of(what, arguments.get(VIEW_START, Origin.FIRST.value), wall_clock_ms())
    try:
        topic = topic_of_view(vhost, arguments)
    except NotFound:
        if not topology.catalog.shared:
            raise
        with storage_errors():
            await topology.catalog.catch_up()
        topic = topic_of_view(vhost, arguments)
    return Begun(topic, [await _begin(partition, start) for partition in topic.partitions])


def require_same(vhost: VirtualHost, name: str, arguments: Mapping[str, Any], begun: Begun) -> None:
    """Raises PreconditionFailed if the topic was made anew since it was worked out where its view begins, NotFound."""
    if topic_of_view(vhost, arguments) is not begun.topic:
        raise PreconditionFailed(f"queue '{name}' in vhost '{vhost.name}': its topic is being changed by others")


def topic_of_view(vhost: VirtualHost, arguments: Mapping[str, Any]) -> Topic:
    """The topic that a view is of: in the default virtual host any, elsewhere a stream. Raises NotFound."""
    name = arguments[VIEW_TOPIC]
    found = vhost.topics.get(topic_name(name, vhost.name))
    if found is None:
        raise NotFound(f"no topic '{name}' in vhost '{vhost.name}'")
    return found


async def _begin(partition: TopicPartition, start: Start) -> int:
    first, end = await partition.ends()
    if start.origin is Origin.TIME:
        return max(first, await _begin_at(partition, start.value, end))
    if start.origin is Origin.OFFSET:
        return max(first, start.value)
    if start.origin is Origin.FIRST:
        return first
    return max(first, end - {Origin.NEXT: 0, Origin.LAST: 1}.get(start.origin, start.value))


async def _begin_at(partition: TopicPartition, timestamp_ms: int, end: int) -> int:
    """Behind what is older, of all below `end`, though it may not be known here yet, and nobody may have waited for it.
    What is not known in time may be any age.
    """
    log = partition.log
    if partition.is_here and log.high_watermark < end:
        with suppress(LogUnavailable), trio.move_on_after(_KNOWN_WITHIN_S):
            await log.wait_committed(end)
    known = min(log.high_watermark, end)
    found = await log.offset_for_timestamp_cold(timestamp_ms)
    return known if found is None else found[0]
