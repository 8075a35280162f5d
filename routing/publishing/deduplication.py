"""Publishes that a queue has seen before: confirmed like others, but not put into it again.

1. A message is known by its message id or, without one, by the first of the headers `ID_HEADERS` that it has, by a
   user property in MQTT 5; one without is always new. Each queue decides for itself: where others on the route want a
   duplicate, they get it.
2. Ids are written to the log of the queue's home together with the messages of the turn (SEEN), and are kept by its
   checkpoints. A crash that cuts the log off between the two may let a duplicate of an unconfirmed message in.
3. A policy may ask it of an exchange: then every queue on the way from there remembers, whatever its own settings say.
   Topics and streams go by their own (`topics/known_ids.py`).
4. A duplicate is confirmed when the original is safe.

Publishes whose publisher numbers them (`Slab.once`) are known for sure: see `queues/publish_numbers.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from core_log.errors import LogUnavailable
from routing.message import NAME_ENCODING_ERRORS, Numbered, Properties, Slab
from routing.property_editors import PropertyEditor, editor_of
from routing.publishing.named import NamedSlab
from routing.queues.homes.receipts import begin
from routing.queues.homes.replicated_partition import ReplicatedPartition
from routing.seen_ids import ID_HEADERS, hashes_of

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.queues.homes.home import Home
    from routing.topology.route import Route

_NAMES = tuple(name.encode() for name in ID_HEADERS)
"""Every protocol's property bytes have the names of headers as they are."""


def put(route: Route, slab: Slab, now_ms: Callable[[], int]) -> list[tuple[PartitionLog, int]]:
    """Put a slab where the route leads, once; the durable logs it went to, with the offsets it ends at."""
    if slab.once is not None:
        return _put_numbered(route, slab, slab.once, now_ms)
    return deliver_new(route, slab, now_ms()) if route.remembering else route.deliver(slab)


def _put_numbered(
    route: Route, slab: Slab, once: Numbered, now_ms: Callable[[], int]
) -> list[tuple[PartitionLog, int]]:
    """Put messages where they are missing: what a home has taken under the same number it does not get again, nor do
    queues without a log what has a name.
    """
    publisher, numbers, epoch = once
    count = len(numbers)
    missing: list[frozenset[Home]] = [frozenset()] * count
    for home in route.durable_homes:
        if epoch and home.numbers is not None:
            begin(home, publisher, epoch)
        taken = home.numbers.known(publisher, numbers) if home.numbers else ()
        if taken:
            missing = [homes | {home} if n in taken else homes for homes, n in zip(missing, numbers, strict=True)]
    had = slab.had_by(route.queues) if isinstance(slab, NamedSlab) else frozenset()
    targets: list[tuple[PartitionLog, int]] = []
    start = 0
    for at in range(1, count + 1):
        if at == count or missing[at] != missing[start]:
            part = slab.part(start, at)
            there = had.union(queue for queue in route.queues if queue.partition in missing[start])
            way = route.avoiding(there) if there else route
            targets += deliver_new(way, part, now_ms()) if way.remembering else way.deliver(part)
            for home, destinations in route.homes if missing[start] else ():
                if home in missing[start] and isinstance(home, ReplicatedPartition):
                    home.repeated(part, destinations)
            start = at
    if any(missing):
        targets += [(home.log, home.next_offset) for home in route.durable_homes]
    return targets


def deliver_new(route: Route, slab: Slab, now_ms: int) -> list[tuple[PartitionLog, int]]:
    """Put a slab into everything the route leads to, except what its queues have seen; the durable logs that have to
    be waited for, with offsets. Raises LogUnavailable as `Route.deliver`.
    """
    hashes = _hashes(slab)
    count = len(slab.bodies)
    avoided: list[int] = [0] * count
    admitted = []
    for bit, queue in enumerate(route.remembering):
        seen = queue.seen
        if hashes is None or seen is None:
            continue
        fresh = seen.admit(hashes, now_ms)
        if False in fresh:
            avoided = [mask | (not new) << bit for mask, new in zip(avoided, fresh, strict=True)]
            queue.duplicates += fresh.count(False)
        admitted.append((queue, array("Q", [one for one, new in zip(hashes, fresh, strict=True) if new and one])))
    try:
        if not any(avoided):
            targets = route.deliver(slab)
        else:
            targets = _deliver_parts(route, slab, avoided)
    except LogUnavailable:
        for queue, noted in admitted:
            if queue.seen is not None:
                queue.seen.forget(noted)
        raise
    for queue, noted in admitted:
        if noted:
            queue.partition.note_seen(queue.id, now_ms, noted.tobytes())
    return targets


def _deliver_parts(route: Route, slab: Slab, avoided: list[int]) -> list[tuple[PartitionLog, int]]:
    """Deliver runs of messages that are new to the same queues."""
    targets: list[tuple[PartitionLog, int]] = []
    start = 0
    for at in range(1, len(avoided) + 1):
        if at == len(avoided) or avoided[at] != avoided[start]:
            mask = avoided[start]
            part = slab.part(start, at)
            queues = frozenset(queue for bit, queue in enumerate(route.remembering) if mask >> bit & 1)
            targets += (route.avoiding(queues) if queues else route).deliver(part)
            start = at
    # Originals may be on their way to the disk still.
    return targets + [(home.log, home.next_offset) for home in route.durable_homes]


def _hashes(slab: Slab) -> array[int] | None:
    """A number for the id of each message; None if none has one."""
    properties = slab.properties
    id_of = _id_reader(properties.protocol)
    if slab.raws is None:
        name = id_of(properties.raw)
        return hashes_of([name]) * len(slab.bodies) if name else None
    hashes = hashes_of([id_of(raw) or None for raw in slab.raws])
    return hashes if any(hashes) else None


def _id_reader(protocol: str) -> Callable[[bytes], bytes | None]:
    """What finds the id of a message in raw properties; an empty one is none."""
    editor = editor_of(protocol)
    return partial(_id, editor) if editor is not None else partial(_neutral_id, protocol)


def _id(editor: PropertyEditor, raw: bytes) -> bytes | None:
    found = editor.message_id(raw)
    return found or _first(map(editor.headers(raw, ID_HEADERS).get, ID_HEADERS))


def _neutral_id(protocol: str, raw: bytes) -> bytes | None:
    """Of a protocol whose properties nobody edits: they are decoded if a name is among them."""
    if not any(name in raw for name in _NAMES):
        return None
    neutral = Properties(protocol, raw, persistent=True).neutral
    return _first((neutral.message_id, *map(neutral.headers.get, ID_HEADERS)))


def _first(values: Iterable[Any]) -> bytes | None:
    """The first of these that says anything."""
    for value in values:
        if value is not None and value != "" and value != b"":
            return value if isinstance(value, bytes) else str(value).encode("utf-8", NAME_ENCODING_ERRORS)
    return None
