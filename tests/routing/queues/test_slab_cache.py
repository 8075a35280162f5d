"""The cache of slabs: found by offset, gone when nobody wants them, never larger than what is live needs."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from routing.message import Properties, Slab
from routing.queues.slab_cache import CachedSlab, SlabCache

PLAIN = Properties("test", b"", persistent=False)


def slab(count: int, size: int = 10) -> Slab:
    return Slab("", "key", PLAIN, [b"x" * size] * count)


def filled(*counts: int, gap: int = 0, copies: int = 1) -> tuple[SlabCache, list[CachedSlab]]:
    cache, first, entries = SlabCache(), 0, []
    for count in counts:
        entries.append(cache.add(first, slab(count), copies))
        first += count + gap
    return cache, entries


@pytest.mark.parametrize("gap", [0, 3])
def test_find(gap: int) -> None:
    cache, entries = filled(4, 1, 7, gap=gap)
    for entry in entries:
        for offset in range(entry.first, entry.end):
            assert cache.find(offset) is entry
        if gap:
            assert cache.find(entry.end) is None
    assert cache.find(entries[-1].end) is None
    assert SlabCache().find(0) is None


def test_a_slab_leaves_when_all_its_copies_are_settled() -> None:
    cache, (first, second) = filled(4, 4, copies=2)
    cache.release(0, 4)
    assert cache.find(0) is first
    cache.release(0, 2)
    cache.release(2, 4)
    assert cache.find(0) is None
    assert cache.find(4) is second
    assert cache.bytes == second.bytes


def test_release_over_several_slabs_and_gaps() -> None:
    cache, entries = filled(4, 4, 4, gap=10)
    cache.release(2, 28)
    assert cache.entries() == [entries[0], entries[2]]
    assert (entries[0].live, entries[2].live) == (2, 2)
    cache.release(0, 2)
    cache.release(30, 100)
    assert (cache.entries(), cache.bytes, cache.unspilled_bytes) == ([], 0, 0)


def test_what_was_dropped_can_still_be_released() -> None:
    cache, entries = filled(3, 3, 3)
    cache.drop_oldest()
    assert cache.oldest() is entries[1]
    cache.release(0, 4)
    assert entries[1].live == 2
    cache.release(4, 5)
    assert (cache.oldest(), cache.bytes) == (None, 0)
    cache.drop_oldest()
    cache.release(0, 9)


def test_spilled_bytes_are_counted_apart() -> None:
    cache, (first, second) = filled(2, 2)
    cache.mark_spilled(first)
    assert (cache.bytes, cache.unspilled_bytes) == (first.bytes + second.bytes, second.bytes)
    cache.drop_oldest()
    assert (cache.bytes, cache.unspilled_bytes) == (second.bytes, second.bytes)
    cache.release(2, 2)
    assert (cache.bytes, cache.unspilled_bytes) == (0, 0)


def test_against_a_plain_list() -> None:
    dice = random.Random(7)
    cache, held, first = SlabCache(), {}, 0
    for _ in range(4000):
        if dice.random() < 0.5:
            count, copies = dice.randint(1, 6), dice.randint(1, 3)
            held[first] = cache.add(first, slab(count), copies)
            first += count + dice.choice([0, 0, 5])
        elif held and dice.random() < 0.1:
            assert cache.oldest() is held.pop(min(held))
            cache.drop_oldest()
        elif held:
            entry = held[dice.choice(list(held))]
            taken = min(dice.randint(1, 3), entry.end - entry.first, entry.live)
            cache.release(entry.first, taken)
            if entry.live <= 0:
                del held[entry.first]
        assert cache.bytes == sum(entry.bytes for entry in held.values())
        probe = dice.randrange(first + 5)
        wanted = next((entry for entry in held.values() if entry.first <= probe < entry.end), None)
        assert cache.find(probe) is wanted
    assert cache.entries() == [held[key] for key in sorted(held)]


def test_a_long_release_reaches_every_slab() -> None:
    cache, _ = filled(*[1] * 5000)
    cache.release(0, 4999)
    assert [entry.first for entry in cache.entries()] == [4999]
    cache.release(4999, 1)
    assert cache.bytes == 0


def test_one_message_that_stays_does_not_keep_places_for_all_that_went() -> None:
    cache = SlabCache()
    stuck = cache.add(0, slab(1), 1)
    for offset in range(1, 20_000):
        cache.add(offset, slab(1), 1)
        if offset > 10:
            cache.release(offset - 10, 1)
    assert cache.find(0) is stuck
    assert len(cache._entries) == len(cache._firsts) < 1000
    assert [entry.first for entry in cache.entries()] == [0, *range(19_990, 20_000)]


@pytest.mark.parametrize("in_a_slab", [1, 4, 100])
def test_memory_is_counted_whether_slabs_hold_one_message_or_many(in_a_slab: int) -> None:
    """The limit of a home's memory goes by it."""
    cache = SlabCache()
    tracemalloc.start()
    try:
        for first in range(0, 20_000, in_a_slab):
            bodies = [b"%d" % number for number in range(first, first + in_a_slab)]
            cache.add(first, Slab("", f"q{first}", PLAIN, bodies), 1)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.5 * cache.bytes < taken < 1.25 * cache.bytes
