"""What brokers answer each other when it is large, as a message that is retained may be."""

from __future__ import annotations

import pytest
import trio

from protocols.peer import adapter_transactions
from routing.broker import Broker
from tests.support.engine_node import town_of

MESSAGE = b"x" * (9 << 20)


async def test_it_is_as_long_as_a_message_may_be_and_the_link_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(broker: Broker, body: bytes) -> bytes:
        return MESSAGE

    monkeypatch.setattr(adapter_transactions, "answer", answer)
    async with town_of(1, 2, leader=1) as town:
        engine = town.nodes[2].engine
        link = engine.forwarding.links[1]
        with trio.fail_after(20):
            assert await engine.coordinator_links[1].ask(b"") == MESSAGE
        assert engine.forwarding.links[1] is link
