"""Streams that keep what MQTT filters match, for readers that are no subscribers.

1. Each filter of a virtual host has one stream, which is made when somebody first asks for it and begins with what is
   retained. It is a stream like any other; whoever asks again gets the same.
2. Nobody declares such a stream by hand, so it goes by itself: messages when they are as old as
   `filter_stream_expires_ms` says (as a topic's retention, which can be altered), and the stream when nobody read it or
   asked where it ends for so long. That is judged where it is led, and begins anew with each start and each leader.
   Brokers with consumers of it, who may have a replica to read, ask its leader where it ends, so that it knows of them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from routing.errors import BrokerError, StorageUnavailable
from routing.topology.route import Route

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.message import Slab
    from routing.topics.stream import Stream

MQTT_EXCHANGE = "amq.topic"
_PREFIX = "millrace.mqtt."

logger = logging.getLogger(__name__)


async def topic_of_filter(broker: Broker, vhost: str, pattern: str) -> str:
    """The topic of a filter (with `.` for `/`). Raises what declaring and binding do."""
    name = _PREFIX + sha256(pattern.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    streams = broker.topology.vhost(vhost).streams
    if name in streams:  # how long it keeps messages is what was said then
        await broker.bind("queue", name, MQTT_EXCHANGE, pattern, {}, syntax="mqtt", vhost=vhost)
        streams[name].topic.partitions[0].leases.used = True
        return streams[name].topic.name
    arguments = {"x-queue-type": "stream"}
    expires_ms = broker.config.filter_stream_expires_ms
    if expires_ms:
        arguments["x-max-age"] = f"{max(expires_ms // 1000, 1)}s"
    await broker.declare_queue(name, durable=True, arguments=arguments, vhost=vhost)
    await broker.bind("queue", name, MQTT_EXCHANGE, pattern, {}, syntax="mqtt", vhost=vhost)
    topic = streams[name].topic
    route = Route([], [topic])
    try:
        async with aclosing(_retained(broker, vhost, pattern)) as pieces:
            async for piece in pieces:
                for slab in piece:
                    route.deliver(slab)
                broker.end_turn()
                await broker.wait_for_room()
    except BrokerError:  # whoever asks again is to have one that begins with it
        with suppress(BrokerError):
            await broker.delete_queue(name, vhost=vhost)
        raise
    return topic.name


async def _retained(broker: Broker, vhost: str, pattern: str) -> AsyncGenerator[list[Slab], None]:
    """What is retained now of a filter, in the order of the keys; brokers of a cluster ask who has it. Raises
    StorageUnavailable.
    """
    if broker.keeping is None:
        for piece in broker.retained.pieces(
            vhost, sorted(broker.retained.matching(vhost, pattern, "mqtt")), MQTT_EXCHANGE
        ):
            yield piece
        return
    await broker.keeping.all_told()
    async with aclosing(broker.keeping.pages(vhost, pattern, MQTT_EXCHANGE)) as pages:
        async for piece in pages:
            yield piece


async def expire(broker: Broker) -> None:
    """Delete those that nobody has used for too long."""
    expires_ms = broker.config.filter_stream_expires_ms
    now_ms = broker.clock.now_ms()
    for vhost in list(broker.topology.vhosts.values()):
        for stream in [one for name, one in vhost.streams.items() if name.startswith(_PREFIX)]:
            if stream.deleted:
                continue
            if stream.consumers and not _is_led(stream):
                broker.spawn(_say_it_is_used, stream)
            idle_ms = _idle_ms(stream, now_ms)
            if expires_ms and idle_ms >= expires_ms:
                logger.warning("%s is deleted: nobody has read it for %d s", stream.what, idle_ms // 1000)
                try:
                    await broker.delete_queue(stream.name, vhost=vhost.name)
                except BrokerError as error:
                    logger.warning("%s is deleted later: %s", stream.what, error)


async def _say_it_is_used(stream: Stream) -> None:
    try:
        await stream.refresh()
    except StorageUnavailable as error:
        logger.warning("%s: its leader does not hear of its consumers now: %s", stream.what, error)


def _is_led(stream: Stream) -> bool:
    leadership = stream.topic.partitions[0].leadership
    return leadership is None or leadership.refusal() is None


def _idle_ms(stream: Stream, now_ms: int) -> int:
    """For how long nobody has used it, for all that is known here; 0 where another broker leads it."""
    leases = stream.topic.partitions[0].leases
    if leases.used or leases.held or stream.consumers or not _is_led(stream) or not leases.idle_since_ms:
        leases.used, leases.idle_since_ms = False, now_ms
    return now_ms - leases.idle_since_ms
