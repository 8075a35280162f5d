"""What is counted as live, against a list of what is, and what a log gives back of large messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_log.files import MemoryFiles
from routing.queues.fact_columns import BLOCK_BITS, FactColumns
from routing.queues.homes.live_counts import LiveCounts
from routing.queues.homes.moves import Moves
from routing.queues.slab_cache import SlabCache
from tests.routing.harness import engine, killed

STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "segment", "release", "release some"]), st.integers(1, 9000), st.randoms())
)


@given(st.integers(0, 40_000), STEPS)
@settings(max_examples=60, deadline=None)
def test_the_first_that_is_live_is_known_to_a_block_or_a_segment(start: int, steps: list[Any]) -> None:
    def segment(offset: int) -> Any:
        return SimpleNamespace(base_offset=offset)

    counts = LiveCounts(SlabCache(), Moves(), FactColumns(), [segment(0), segment(start // 2)])
    live: list[int] = []
    ends = [0, start // 2]
    end = start
    for what, number, dice in steps:
        if what == "add":
            counts.add(end, number, 1)
            live += range(end, end + number)
            end += number
        elif what == "segment":
            counts.follow(segment(end), end)
            ends.append(end)
        elif live:
            first = dice.randrange(len(live))
            gone = live[first : first + number]
            if what == "release some":
                gone = sorted(dice.sample(live, min(number, 50, len(live))))
            if gone[-1] - gone[0] == len(gone) - 1:
                counts.release(gone[0], len(gone))
            else:
                counts.release_offsets(gone)
            live = sorted(set(live).difference(gone))
        assert sum(counts.blocks.values()) == len(live)
        if not live:
            assert counts.first(end) == end
            continue
        cut = max(offset for offset in ends if offset <= live[0])
        assert max(cut, live[0] >> BLOCK_BITS << BLOCK_BITS) <= counts.first(end) <= live[0]
        middle = dice.randrange(live[0], end)
        assert counts.between(middle, end) >= sum(offset >= middle for offset in live)
        assert counts.between(live[0], middle + 1) >= sum(offset <= middle for offset in live)


@pytest.mark.parametrize("restarted", [False, True])
async def test_large_messages_that_are_done_with_are_deleted_segment_by_segment(restarted: bool) -> None:
    limits = {"stripes": 1, "queue_segment_bytes": 100_000}
    files = MemoryFiles()
    async with engine(files, **limits) as running:
        await running.queue("q")
        client = running.client()
        for number in range(60):
            client.publish("q", f"{number:10000}")
            running.turn()
        await running.synced()
        files = killed(files) if restarted else files
        if not restarted:
            await drain_and_measure(running)
    if restarted:
        async with engine(files, **limits) as running:
            await drain_and_measure(running)


async def drain_and_measure(running: Any) -> None:
    """Every ten messages of sixty a tenth of a megabyte more is given back."""
    client, log, home = running.client(), running.home("q").log, running.home("q")
    sizes = []
    for _ in range(5):
        for _ in range(10):
            got = await client.session.get("q", no_ack=True)
            assert got is not None
        await running.synced()
        home.delete_dead_prefix()  # carries definitions first
        await running.synced()
        home.delete_dead_prefix()
        await running.synced()
        sizes.append(log.size_bytes)
    assert all(size <= 700_000 - 100_000 * number for number, size in enumerate(sizes, 1)), sizes
