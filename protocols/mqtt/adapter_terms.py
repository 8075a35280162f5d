"""How messages are sent that are not sent to everybody alike: what subscriptions say besides QoS, and what is left of
expiries.

A slab is cut into stretches of messages that are sent in one way (`Way`); each is encoded as a whole. Nothing of this
is looked at for a client whose subscriptions are plain, and for messages that do not ask for it.

1. A client's own publishes, which have its mark (`raw.py`), come on the terms of those subscriptions alone that are not
   for others' messages only (no-local, MQTT-3.8.3-3).
2. RETAIN is 1 for messages that are given out because they are retained, else as it was published if a subscription
   asks for that (MQTT-3.3.1-12, MQTT-3.3.1-13).
3. What is left of a message expiry is counted in seconds that have begun (MQTT-3.3.2-6), from the time that the queue
   has of the message (`routing.lives_left`); what was handed on without a queue has all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add
from typing import Any, NamedTuple

from protocols.mqtt.adapter_properties import PROTOCOL, blocks_of, with_more
from protocols.mqtt.adapter_subscriptions import Terms
from protocols.mqtt.raw import GIVEN, MARKED, QOS_MASK, RETAIN, mark_in
from protocols.mqtt.wire import RETAIN as RETAIN_FLAG
from protocols.mqtt.wire import Blocks, PublishHeads, publish_heads, varied_heads
from routing.facts import TIMED_FROM
from routing.lives_left import comes_of_home, life_left_ms, lives_left_ms
from routing.message import Slab
from routing.session import Consumer

Route = tuple[bytes | None, Terms, Terms | None]
"""The topic of a routing key as it is written (None: it is no topic), the terms, and those for own publishes."""


class Way(NamedTuple):
    """How a message is sent; `NO_TOPIC` and `NOT_WANTED` are not."""

    qos: int
    retain: bool = False
    subscription_ids: bytes = b""


NO_TOPIC, NOT_WANTED = Way(-1), Way(-2)


class Stretch(NamedTuple):
    """Messages [start, stop) of a slab that are sent in one way."""

    start: int
    stop: int
    way: Way


def ways_of(
    slab: Slab, start: int, stop: int, route_of: Callable[[str], Route], own_mark: bytes, *, no_ack: bool
) -> list[Stretch]:
    """In which ways messages of a slab are sent, in stretches."""
    of_mqtt = slab.properties.protocol == PROTOCOL
    persistent = slab.properties.persistent and not no_ack
    found: list[Stretch] = []
    if slab.raws is None and slab.keys is None:
        way = _way(slab.properties.raw, route_of(slab.routing_key), own_mark, of_mqtt, persistent)
        return [Stretch(start, stop, way)]
    known: dict[tuple[str, bytes], Way] = {}
    common = slab.properties.raw
    for at in range(start, stop):
        key = slab.routing_key if slab.keys is None else slab.keys[at]
        raw = common if slab.raws is None else slab.raws[at]
        # The head of a raw is all that counts of it.
        head = raw[:9] if raw and raw[0] & MARKED else raw[:1]
        if (key, head) in known:
            way = known[key, head]
        else:
            way = known[key, head] = _way(head, route_of(key), own_mark, of_mqtt, persistent)
        if found and found[-1].way == way:
            found[-1] = found[-1]._replace(stop=at + 1)
        else:
            found.append(Stretch(at, at + 1, way))
    return found


def _way(raw: bytes, route: Route, own_mark: bytes, of_mqtt: bool, persistent: bool) -> Way:
    topic, terms, own_terms = route
    flags = raw[0] if of_mqtt and raw else 0
    if topic is None:
        return NO_TOPIC
    if own_mark and flags & MARKED and mark_in(raw) == own_mark:
        if own_terms is None:
            return NOT_WANTED
        terms = own_terms
    qos = 0 if not persistent else flags & QOS_MASK if of_mqtt and raw else 1
    retain = bool(flags & GIVEN) or (terms.retain_as_published and bool(flags & RETAIN))
    return Way(min(qos, terms.qos), retain, terms.subscription_ids)


def expiries_left(consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int) -> list[int | None] | None:
    """What is left of the expiries of messages, in seconds, one for each; None: none of them has one."""
    if comes_of_home(consumer):
        left_ms = lives_left_ms(consumer, first_id, stop - start)
    elif slab.highest_facts < TIMED_FROM:
        left_ms = None
    else:  # what was handed on without a queue has all of it, what another broker leads is said to have so much
        facts = [slab.properties.facts] * (stop - start) if slab.facts is None else slab.facts[start:stop]
        left_ms = [life_left_ms(one, 0) for one in facts]
    return None if left_ms is None else list(map(_in_seconds, left_ms))


def _in_seconds(left_ms: int | None) -> int | None:
    return None if left_ms is None else max(-(-left_ms // 1000), 0)


def packets_in(
    slab: Slab,
    start: int,
    stop: int,
    way: Way,
    route_of: Callable[[str], Route],
    left: list[int | None] | None,
    flags: int,
    *,
    version_5: bool,
) -> tuple[PublishHeads, Blocks]:
    """The heads, with these flags at least, and property blocks of a stretch; at QoS 0 blocks are part of the heads.

    Those of a whole slab are made once for all who are sent it in the same way, if there is nothing of theirs alone.
    """
    flags |= RETAIN_FLAG if way.retain else 0
    key = version_5, way.qos, flags
    memo: dict[Any, tuple[PublishHeads, Blocks]] = {}
    if stop - start == len(slab.bodies) and left is None and not way.subscription_ids:
        memo = slab.memo()
    if key not in memo:
        topics, blocks = topics_and_blocks(slab, start, stop, way, route_of, left, version_5=version_5)
        heads = heads_for(topics, slab.bodies[start:stop], way.qos, flags, blocks)
        memo[key] = heads, blocks if way.qos else b""
    return memo[key]


def topics_and_blocks(
    slab: Slab,
    start: int,
    stop: int,
    way: Way,
    route_of: Callable[[str], Route],
    left: list[int | None] | None,
    *,
    version_5: bool,
) -> tuple[bytes | list[bytes], Blocks]:
    """What is written as topics and as property blocks of a stretch: one, or one for each message."""
    blocks: Blocks = b""
    if version_5:
        blocks = with_more(blocks_of(slab, start, stop), stop - start, way.subscription_ids, left)
    if slab.keys is None:
        return route_of(slab.routing_key)[0] or b"", blocks
    return [route_of(key)[0] or b"" for key in slab.keys[start:stop]], blocks


def heads_for(
    topics: bytes | list[bytes], bodies: Sequence[bytes], qos: int, flags: int, blocks: Blocks
) -> PublishHeads:
    """The heads of publishes; at QoS 0 blocks are part of them."""
    if isinstance(topics, bytes):
        if isinstance(blocks, bytes):
            if qos:
                return publish_heads(topics, bodies, qos, flags=flags, block=blocks)
            return publish_heads(topics + blocks, bodies, 0, flags=flags)
        topics = [topics] * len(bodies)
    if qos:
        return varied_heads(topics, bodies, qos, flags=flags, blocks=blocks)
    if blocks:
        each = [blocks] * len(topics) if isinstance(blocks, bytes) else blocks
        topics = list(map(add, topics, each))
    return varied_heads(topics, bodies, 0, flags=flags)
