"""The ids of topics, as a client knows them: one that is made again under its name has another.

Who tells of a former id from then on is behind. It is so for as long as the client lives: a broker that is cut off
from etcd tells what it knew for as long as that lasts, so that no time is long enough to believe it.
"""

from __future__ import annotations

_FORMER_MAX = 100
"""Ids that a topic had: nobody is as far behind as the oldest."""


class TopicIds:
    """See the module. Brokers of earlier versions tell of none: an empty one says nothing."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}
        self._former: dict[str, dict[bytes, None]] = {}

    def get(self, topic: str) -> bytes:
        """The id that a topic has; empty while none is known."""
        return self._known.get(topic, b"")

    def is_former(self, topic: str, topic_id: bytes) -> bool:
        """Whether who tells of it is behind."""
        return bool(topic_id) and topic_id in self._former.get(topic, ())

    def is_another(self, topic: str, topic_id: bytes) -> bool:
        """Whether it is that of a topic which was made again."""
        return bool(topic_id) and topic_id != self._known.get(topic, topic_id) and not self.is_former(topic, topic_id)

    def note(self, topic: str, topic_id: bytes) -> bool:
        """A broker has told it, who may be behind; whether it is another one."""
        if not topic_id or self.is_former(topic, topic_id):
            return False
        is_another = self.is_another(topic, topic_id)
        if is_another:
            former = self._former.setdefault(topic, {})
            former[self._known[topic]] = None
            if len(former) > _FORMER_MAX:
                del former[next(iter(former))]
        self._known[topic] = topic_id
        return is_another
