"""Facts that are picked by columns are those that are known one by one."""

from __future__ import annotations

import random
from array import array
from functools import cache

import pytest

from routing.facts import DELAYED_FROM, TTL_EXACT_MS_MAX, priority_of, ttl_ms_of
from routing.facts import pack as fact
from routing.queues.arrivals import deadline_ms_of
from routing.queues.fact_columns import BLOCK_BITS, FactColumns, to_columns
from routing.queues.packed_ranges import COUNT_BITS, by_blocks, offsets_of, pack
from routing.queues.picked_facts import PickedFacts, deadlines
from routing.queues.runs_of import runs_of

END = 5 << BLOCK_BITS


def filled(dice: random.Random, run_max: int) -> FactColumns:
    """Some messages have facts, in runs of 1 to `run_max`."""
    columns, offset = FactColumns(), 100
    delays = [0, 7, 1 << 40 if run_max == 60 else 9]
    while offset < END:
        facts = [
            fact(True, dice.randrange(256), dice.choice([None, 0, 5000]), dice.choice(delays))
            for _ in range(dice.randint(1, run_max))
        ]
        columns.add(offset, to_columns(facts), 1_000_000 + offset)
        offset += len(facts) + dice.choice([0, 0, 3])
    return columns


@cache
def once_filled(run_max: int) -> FactColumns:
    """For who only reads them."""
    return filled(random.Random(run_max), run_max)


@pytest.mark.parametrize("run_max", [1, 3, 60])
@pytest.mark.parametrize("spread", [1, 1.02, 1.5, 5, 2000])
def test_whatever_the_runs_and_ranges_are(run_max: int, spread: float) -> None:
    dice = random.Random(run_max)
    columns = once_filled(run_max)
    picked = PickedFacts(columns)
    asked = sorted(dice.sample(range(END + 500), int((END + 500) / spread)))
    seen = []
    for _, piece in by_blocks(pack(runs_of(asked)), BLOCK_BITS):
        singles, levels = picked.levels(piece)
        offsets = offsets_of(singles)
        seen += offsets
        known = [columns.of(offset) or (0, 0) for offset in offsets]
        assert list(levels) == [priority_of(facts) for facts, _ in known]
        assert offsets == offsets_of(piece)
        if picked.outline(piece[0] >> COUNT_BITS + BLOCK_BITS) is None:
            assert not any(facts for facts, _ in known)
            continue
        assert list(zip(*picked.known(piece), strict=True)) == [
            (offset, *found) for offset, found in zip(offsets, known, strict=True)
        ]
    assert seen == asked


@pytest.mark.parametrize("run_max", [1, 60])
def test_an_outline_is_that_of_all_in_the_block(run_max: int) -> None:
    columns = filled(random.Random(run_max), run_max)
    columns.add(END + 500, to_columns([fact(True, 9)] * 4), 77)
    columns.add(END + 504, to_columns([fact(True, 9, TTL_EXACT_MS_MAX + 5000)] * 4), 78)
    picked = PickedFacts(columns)
    for number in range((END >> BLOCK_BITS) + 1):
        block = range(number << BLOCK_BITS, number + 1 << BLOCK_BITS)
        known = [found for offset in block if (found := columns.of(offset))]
        lives = [ttl_ms_of(facts) for facts, _ in known if facts < DELAYED_FROM]
        outline = picked.outline(number)
        assert outline is not None
        assert outline.life_ms == min((life for life in lives if life is not None), default=None)
        assert outline.since_ms == min(time_ms for _, time_ms in known)
        assert outline.delayed == any(facts >= DELAYED_FROM for facts, _ in known)
    assert picked.outline((END >> BLOCK_BITS) + 1) is None


def test_blocks_come_back_whole_or_not_at_all() -> None:
    columns = filled(random.Random(7), 3)
    columns.add(END + 500, to_columns([DELAYED_FROM << 30]), 5)
    saved = list(columns.columns())
    again = FactColumns()
    again.load(saved)
    assert list(again.columns()) == saved
    assert [again.of(at) for at in range(END + 600)] == [columns.of(at) for at in range(END + 600)]
    again.add(END + 501, to_columns([3]), 6)
    assert again.of(END + 501) == (3, 6)
    runs, times, low, high = saved[0]
    for damaged in (
        (runs, times, low[:-1], high),
        (runs, times[:-1], low, high),
        (runs[:-1], times, low, high),
        (runs, times, low, array("Q", [1])),
        (array("Q", [*runs[:-1], runs[-1] + (1 << BLOCK_BITS + 16)]), times, low, high),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            FactColumns().load([damaged])


@pytest.mark.parametrize("queue_ttl_ms", [None, 0, 3000])
@pytest.mark.parametrize("longest", [5000, TTL_EXACT_MS_MAX + 5])
def test_deadlines_are_those_of_each(queue_ttl_ms: int | None, longest: int) -> None:
    dice = random.Random(3)
    offsets = list(range(0, 3000, 3))
    facts = [fact(False, 3, dice.choice([None, 0, 7, longest])) for _ in offsets]
    times = [dice.randrange(1, 1 << 40) for _ in offsets]
    facts[5] = times[5] = 0  # without facts
    expected = {
        offset: due_ms
        for offset, fact, time_ms in zip(offsets, facts, times, strict=True)
        if time_ms and (due_ms := deadline_ms_of(fact, time_ms, queue_ttl_ms)) is not None
    }
    due, mortal = deadlines(offsets, facts, times, queue_ttl_ms)
    assert dict(zip(mortal, due, strict=True)) == expected
    assert len(mortal) == len(expected)
