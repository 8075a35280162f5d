"""What members of a group say to each other: Kafka's consumer protocol, versions 0 to 3. Pure.

Members of both protocols may share a group, so these bytes are Kafka's whoever writes them:
https://kafka.apache.org/documentation/ and `ConsumerProtocolSubscription.json`, `ConsumerProtocolAssignment.json`.
Fields of later versions are left alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from msgspec import Struct

Partition = tuple[str, int]
"""Topic and partition number."""

_VERSION = 3
_OWNED_SINCE, _GENERATION_SINCE, _RACK_SINCE = 1, 2, 3


class Subscription(Struct, frozen=True):
    """What a member wants, and what it had in which generation (-1: it does not say)."""

    topics: list[str]
    owned: list[Partition] = []
    generation: int = -1
    rack: str | None = None
    user_data: bytes | None = None


class GroupMetadata(Struct, frozen=True):
    """Who a consumer is in its group; by default of no member."""

    group: str
    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1


class GroupBytesError(ValueError):
    """Bytes that are not what another member should have said."""


def encode_subscription(subscription: Subscription) -> bytes:
    """For `JoinGroup`."""
    pieces = [struct.pack(">hi", _VERSION, len(subscription.topics)), *map(_string, subscription.topics)]
    pieces += (_nullable_bytes(subscription.user_data), _partitions(subscription.owned))
    pieces += (struct.pack(">i", subscription.generation), _nullable_string(subscription.rack))
    return b"".join(pieces)


def decode_subscription(data: bytes) -> Subscription:
    """The inverse. Raises GroupBytesError."""
    reader = _Reader(data)
    version = reader.number(">h")
    topics = [reader.string() for _ in range(reader.count())]
    user_data = reader.nullable_bytes()
    owned: list[Partition] = []
    generation, rack = -1, None
    if version >= _OWNED_SINCE:
        owned = reader.partitions()
    if version >= _GENERATION_SINCE:
        generation = reader.number(">i")
    if version >= _RACK_SINCE:
        rack = reader.nullable_string()
    return Subscription(topics, owned, generation, rack, user_data)


def encode_assignment(partitions: Iterable[Partition]) -> bytes:
    """For `SyncGroup`."""
    return struct.pack(">h", _VERSION) + _partitions(partitions) + _nullable_bytes(None)


def decode_assignment(data: bytes) -> list[Partition]:
    """The inverse; no bytes at all are no partitions. Raises GroupBytesError."""
    if not data:
        return []
    reader = _Reader(data)
    reader.number(">h")
    return reader.partitions()


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _string(text)


def _nullable_bytes(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else struct.pack(">i", len(data)) + data


def _partitions(partitions: Iterable[Partition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    pieces = [struct.pack(">i", len(by_topic))]
    for topic, numbers in by_topic.items():
        pieces += (_string(topic), _numbers(numbers))
    return b"".join(pieces)


def _numbers(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise GroupBytesError(f"{size} bytes at {self._at} of {len(self._data)}")
        taken, self._at = self._data[self._at : end], end
        return taken

    def count(self) -> int:
        """Of what follows; each has a byte at least."""
        count = self.number(">i")
        if not 0 <= count <= len(self._data) - self._at:
            raise GroupBytesError(f"{count} of something in {len(self._data)} bytes")
        return count

    def string(self) -> str:
        try:
            return self._take(self.number(">h")).decode()
        except UnicodeDecodeError as error:
            raise GroupBytesError(str(error)) from None

    def nullable_string(self) -> str | None:
        if self._data[self._at : self._at + 2] == b"\xff\xff":
            self._at += 2
            return None
        return self.string()

    def nullable_bytes(self) -> bytes | None:
        size = self.number(">i")
        return self._take(size) if size >= 0 else None

    def partitions(self) -> list[Partition]:
        found = []
        for _ in range(self.count()):
            topic = self.string()
            found += [(topic, self.number(">i")) for _ in range(self.count())]
        return found
