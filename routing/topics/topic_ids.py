"""Topics by name and by id.

A topic's id is 16 bytes that no other topic ever has, one that is made again under its name included. It is made with
the topic and kept in its catalog record. Records of before there were ids have one that is worked out from what no
other record says: the `uid` of a topic that brokers share, else the name; so it is the same after every start, at every
broker, and what is made again gets another.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from routing.topics.topic import Topic

_CHANGES_MAX = 4096
_OLDER = uuid.UUID("7a7c4a41-07b4-4d6b-9e39-54d0a2f1c6e8")


def new_id() -> bytes:
    """The id of a new topic."""
    return uuid.uuid4().bytes


def id_of(name: str, record: Mapping[str, Any]) -> bytes:
    """The id of the topic that a catalog record is of."""
    found: bytes | None = record.get("id")
    if found is not None:
        return found
    said = record.get("uid") or name
    return uuid.uuid5(_OLDER, said.encode("utf-8", "surrogateescape").hex()).bytes


class Topics(dict[str, "Topic"]):
    """All topics by name, to be changed by `add` and `remove` alone."""

    __slots__ = ("_changes", "by_id", "version")

    def __init__(self) -> None:
        super().__init__()
        self.by_id: dict[bytes, Topic] = {}
        """The same by id."""
        self.version = 0
        """Another one whenever a topic came, went, got partitions or was configured."""
        self._changes = deque[str](maxlen=_CHANGES_MAX)

    def add(self, topic: Topic) -> None:
        """It is there."""
        self[topic.name] = topic
        self.by_id[topic.id] = topic
        self._changed(topic.name)

    def remove(self, name: str) -> Topic | None:
        """It is there no more; None: it was not."""
        topic = self.pop(name, None)
        if topic is not None:
            del self.by_id[topic.id]
            self._changed(name)
        return topic

    def _changed(self, name: str) -> None:
        self.version += 1
        self._changes.append(name)

    def changed_since(self, version: int) -> frozenset[str] | None:
        """The names to which anything has happened since there was that version; None if that is too long ago."""
        count, known = self.version - version, len(self._changes)
        return frozenset(islice(self._changes, known - count, None)) if count <= known else None
