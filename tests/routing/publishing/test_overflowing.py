"""Publishing to queues that may refuse some of it."""

from __future__ import annotations

import pytest

from core_log.memory_files import MemoryFiles
from routing.message import Slab
from routing.publishing.overflowing import publish_pieces
from routing.queues.queue import Queue
from routing.topology.route import Route
from tests.routing.harness import PERSISTENT, engine


async def test_queues_that_others_lead_are_asked_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether these are full is known where they are led."""
    async with engine(MemoryFiles()) as running:
        await running.queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        route = Route([running.broker.topology.queues["q"]], [])
        monkeypatch.setattr(Queue, "elsewhere", True)
        publish_pieces(running.client().session, route, Slab("", "q", PERSISTENT, [b"1", b"2"]))
        monkeypatch.undo()
        assert running.count("q") == 2
