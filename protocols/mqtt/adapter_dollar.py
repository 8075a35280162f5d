"""Publishes to topics that mean something: `$delayed/SECONDS/TOPIC`, and `$SYS`, which is the broker's own.

`$delayed` is EMQX's: SECONDS from now, or from 42,949,670 on seconds since 1970, TOPIC is published to
(`routing/republishing/later.py`). What comes then is a message of the same QoS, retained if it was to be. A topic that
does not say when or where is refused (MQTT 5), or the message dropped, and logged; so are publishes to `$SYS`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from enum import Enum

from protocols.convert import topic_to_routing_key
from routing.errors import AccessRefused, InvalidName
from routing.facts import pack
from routing.key_patterns import is_system
from routing.message import Numbered, Slab
from routing.republishing.later import NAME

_DELAYED = "$delayed."
OWN_TOPICS = "topics below $SYS are the broker's own"
SECONDS_MAX = 42_949_669
_DIGITS_MAX = 12


class Kind(Enum):
    """What a topic means."""

    ORDINARY = 0
    DELAYED = 1
    SYSTEM = 2


class NotReady(Exception):
    """What a message needs is not there yet: `Later.make_ready`, and publish it again."""


class Mixed(Exception):
    """Messages of several kinds are to be published one by one."""


def divided(slab: Slab) -> list[tuple[Kind, Slab]]:
    """Stretches of a slab by what their topics mean."""
    if slab.keys is None:
        return [(_kind_of(slab.routing_key), slab)]
    kinds = list(map(_kind_of, slab.keys))
    found, start = [], 0
    for at in range(1, len(kinds) + 1):
        if at == len(kinds) or kinds[at] is not kinds[start]:
            found.append((kinds[start], slab.part(start, at)))
            start = at
    return found


def _kind_of(key: str) -> Kind:
    if not key.startswith("$"):
        return Kind.ORDINARY
    if key.startswith(_DELAYED):
        return Kind.DELAYED
    return Kind.SYSTEM if is_system(key) else Kind.ORDINARY


def keys_asked_about(keys: Iterable[str]) -> Iterator[str]:
    """What the right to publish is asked for: of `$delayed` that is the topic behind it, as with EMQX. What names none
    is refused for that (`to_later`).
    """
    for key in keys:
        if not key.startswith(_DELAYED):
            yield key
        elif key.count(".") > 1:
            yield key.split(".", 2)[2]


def check_will(topic: str) -> None:
    """Raises AccessRefused, InvalidName for the topic of a will to which none can be published."""
    kind = _kind_of(topic_to_routing_key(topic))
    if kind is Kind.SYSTEM:
        raise AccessRefused(OWN_TOPICS)
    if kind is Kind.DELAYED:
        raise InvalidName(f"'{topic}' is no topic of a will, which has a delay of its own (Will Delay Interval)")


def to_later(slab: Slab, now_ms: int) -> tuple[Slab | None, InvalidName | None]:
    """Messages for `$delayed` as they are published to wait; those that cannot be are left out, and why the last is."""
    keys: list[str] = []
    facts: list[int] = []
    good: list[int] = []
    refused = None
    for index, key in enumerate([slab.routing_key] * len(slab.bodies) if slab.keys is None else slab.keys):
        try:
            delay_ms, left = _parsed(key, now_ms)
        except InvalidName as error:
            refused = error
            continue
        good.append(index)
        keys.append(left)
        facts.append(pack(slab.properties.persistent, delay_ms=delay_ms))
    if not good:
        return None, refused
    raws = None if slab.raws is None else [slab.raws[index] for index in good]
    bodies = [slab.bodies[index] for index in good]
    found = Slab(NAME, keys[0], slab.properties, bodies, keys=keys, raws=raws, facts=facts)
    if slab.once is not None:
        publisher, numbers, epoch = slab.once
        found.once = Numbered(publisher, array("H", [numbers[index] for index in good]), epoch)
    return found, refused


def _parsed(key: str, now_ms: int) -> tuple[int, str]:
    _, seconds, *rest = key.split(".", 2)
    if not rest or not rest[0] or not seconds.isascii() or not seconds.isdecimal() or len(seconds) > _DIGITS_MAX:
        raise InvalidName(f"'{key}' does not say when and where to publish")
    if _kind_of(rest[0]) is not Kind.ORDINARY:
        raise InvalidName(f"'{key}' cannot be published later")
    delay_ms = int(seconds) * 1000
    if delay_ms > SECONDS_MAX * 1000:
        delay_ms -= now_ms
        if delay_ms > SECONDS_MAX * 1000:
            raise InvalidName(f"'{key}' is more than {SECONDS_MAX} s from now")
    return delay_ms, rest[0]
