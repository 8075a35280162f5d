"""What members of Kafka's consumer protocol want, and have: the only look into these bytes."""

from __future__ import annotations

import struct

from routing.topics.offset_store import Partition

_PARTITIONS_MAX = 100_000


def assigned(assignment: bytes) -> list[Partition]:
    """The partitions of an assignment: version int16, then topics (name, partitions int32 each), then whatever follows.
    None where it is something else.
    """
    found: list[Partition] = []
    try:
        (topics,) = struct.unpack_from(">i", assignment, 2)
        at = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", assignment, at)
            at += 2
            name = assignment[at : at + length].decode()
            at += length
            (count,) = struct.unpack_from(">i", assignment, at)
            at += 4
            if not 0 <= count <= _PARTITIONS_MAX - len(found):
                return []
            found += [(name, index) for index in struct.unpack_from(f">{count}i", assignment, at)]
            at += 4 * count
    except (struct.error, UnicodeDecodeError):
        return []
    return found


def subscribed(metadata: bytes) -> set[str] | None:
    """The topics that a member wants: version int16, then names, then whatever follows. None where it is something
    else.
    """
    found: set[str] = set()
    try:
        (topics,) = struct.unpack_from(">i", metadata, 2)
        at = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">H", metadata, at)
            at += 2 + length
            if at > len(metadata):
                return None
            found.add(metadata[at - length : at].decode())
    except (struct.error, UnicodeDecodeError):
        return None
    return found
