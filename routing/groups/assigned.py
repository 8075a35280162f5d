"""What members of Kafka's consumer protocol want, and have: the only look into these bytes.

A subscription is a version (int16), names of topics, user data and, from version 1 on, what the member has; an
assignment is a version, partitions by topic (name, int32 each) and user data. More may follow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from routing.topics.offset_store import Partition

PROTOCOL_TYPE = "consumer"
"""What members say that mean these bytes."""
_PARTITIONS_MAX = 100_000
_OWNED_SINCE, _VERSION_MAX = 1, 3
_NO_USER_DATA = b"\xff\xff\xff\xff"


class NotConsumers(ValueError):
    """Bytes of another kind."""


class Subscription(NamedTuple):
    """What a member wants, and has."""

    topics: frozenset[str]
    owned: list[Partition]


def assigned(assignment: bytes) -> list[Partition]:
    """The partitions of an assignment. None where it is something else."""
    try:
        return _partitions(assignment, 2)[0]
    except NotConsumers:
        return []


def assigned_alone(assignment: bytes) -> list[Partition]:
    """The same of one that says nothing else. Raises NotConsumers."""
    if not assignment:
        return []
    found, at = _partitions(assignment, 2)
    if assignment[at:] not in (b"", _NO_USER_DATA, bytes(4)):
        raise NotConsumers("there is user data")
    return found


def packed(places: Iterable[Partition], metadata: bytes) -> bytes:
    """The assignment of these partitions, for who has said what it wants in these bytes."""
    by_topic: dict[str, list[int]] = {}
    for name, number in sorted(places):
        by_topic.setdefault(name, []).append(number)
    pieces = [struct.pack(">hi", min(_version(metadata), _VERSION_MAX), len(by_topic))]
    for name, numbers in by_topic.items():
        encoded = name.encode()
        pieces.append(struct.pack(f">h{len(encoded)}si{len(numbers)}i", len(encoded), encoded, len(numbers), *numbers))
    return b"".join([*pieces, _NO_USER_DATA])


def subscribed(metadata: bytes) -> frozenset[str] | None:
    """The topics that a member wants. None where it is something else."""
    try:
        return _topics(metadata)[0]
    except NotConsumers:
        return None


def subscription(metadata: bytes) -> Subscription:
    """All that a member says. Raises NotConsumers."""
    topics, at = _topics(metadata)
    try:
        if _version(metadata) < _OWNED_SINCE:
            return Subscription(topics, [])
        (length,) = struct.unpack_from(">i", metadata, at)
        return Subscription(topics, _partitions(metadata, at + 4 + max(length, 0))[0])
    except struct.error as error:
        raise NotConsumers(str(error)) from None


def _version(metadata: bytes) -> int:
    return int.from_bytes(metadata[:2], signed=True)


def _topics(metadata: bytes) -> tuple[frozenset[str], int]:
    """Names, and where they end."""
    found: set[str] = set()
    try:
        (topics,) = struct.unpack_from(">i", metadata, 2)
        at = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">H", metadata, at)
            at += 2 + length
            if at > len(metadata):
                raise NotConsumers("a name does not end")
            found.add(metadata[at - length : at].decode())
    except (struct.error, UnicodeDecodeError) as error:
        raise NotConsumers(str(error)) from None
    return frozenset(found), at


def _partitions(data: bytes, at: int) -> tuple[list[Partition], int]:
    """Partitions by topic, and where they end."""
    found: list[Partition] = []
    try:
        (topics,) = struct.unpack_from(">i", data, at)
        at += 4
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, at)
            at += 2
            name = data[at : at + length].decode()
            at += length
            (count,) = struct.unpack_from(">i", data, at)
            at += 4
            if not 0 <= count <= _PARTITIONS_MAX - len(found):
                raise NotConsumers(f"{count} partitions")
            found += [(name, index) for index in struct.unpack_from(f">{count}i", data, at)]
            at += 4 * count
    except (struct.error, UnicodeDecodeError) as error:
        raise NotConsumers(str(error)) from None
    return found, at
