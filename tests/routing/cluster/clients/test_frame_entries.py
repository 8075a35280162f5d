"""What a turn has for another broker goes in several frames where it is more than one may have."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from protocols.peer import adapter_forwarding, adapter_serving
from protocols.peer.adapter_engine import FRAME_ENTRIES
from protocols.peer.wire import ENTRIES_MAX
from protocols.peer.wire_engine import Deliver, Publish, Settle
from routing.cluster.clients.forwarding import Forwarding
from routing.message import Slab
from routing.unsettled import Outcome
from tests.routing.cluster.clients.test_served_consumers import Client
from tests.routing.harness import PERSISTENT
from tests.support.engine_node import town_of

FEW = 8


def counted(link: Any, frames: list[tuple[type, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note of the frames of a link how many entries they have."""
    write = link._write

    def note(frame: Any) -> None:
        if isinstance(frame, Publish):
            frames.append((Publish, len(frame.slabs) + len(frame.records)))
        elif isinstance(frame, Settle | Deliver):
            frames.append((type(frame), len(frame.entries)))
        write(frame)

    monkeypatch.setattr(link, "_write", note)


async def test_small_messages_that_have_waited_for_a_link_are_more_than_one_frame_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert FRAME_ENTRIES <= ENTRIES_MAX
    for adapter in (adapter_forwarding, adapter_serving):
        monkeypatch.setattr(adapter, "FRAME_ENTRIES", FEW)
    async with town_of(1, 2, stripes=1) as town:
        leader, other = town.nodes[1], town.nodes[2]
        await leader.broker.declare_queue("q", durable=True)
        frames: list[tuple[type, int]] = []
        client = Client(other)
        queue, links = leader.broker.topology.queues["q"], other.engine.forwarding.links
        with trio.fail_after(10):
            other.cut(1)
            while 1 in links:
                await trio.sleep(0.001)
            for _ in range(3 * FEW):
                client.session.publish(Slab("", "q", PERSISTENT, [b"x"]))
            linked = Forwarding.linked
            monkeypatch.setattr(
                Forwarding, "linked", lambda self, link: (counted(link, frames, monkeypatch), linked(self, link))
            )
            while queue.message_count < 3 * FEW:
                await trio.sleep(0.001)
            counted(leader.engine.serving.links[2].link, frames, monkeypatch)
            await client.session.consume("q", tag="c", no_ack=False)
            while client.got < 3 * FEW:
                await trio.sleep(0.001)
            for at in range(1, 3 * FEW + 1):
                client.session.settle(at, at, Outcome.ACK if at % 2 else Outcome.DISCARD)
            other.broker.end_turn()
            while queue.outstanding:
                await trio.sleep(0.001)
        assert {kind for kind, _ in frames} == {Publish, Settle, Deliver}
        assert max(count for _, count in frames) <= FEW
        assert sum(count for _, count in frames) == 3 * 3 * FEW
