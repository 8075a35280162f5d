"""What is done to topics' logs aside from their clients: compaction, and the index of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from core_log.flusher import Flusher
from routing.config import BrokerConfig
from routing.topics.compaction import Compaction
from routing.topics.key_indexing import KeyIndexing
from routing.topics.topic import Topic


async def look_after_logs(flusher: Flusher, config: BrokerConfig, topics: Callable[[], Iterable[Topic]]) -> None:
    """For ever."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Compaction(flusher, config, topics).run)
        nursery.start_soon(KeyIndexing(config, topics).run)
