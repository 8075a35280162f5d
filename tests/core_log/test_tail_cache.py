"""The tail cache against a plain list."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from core_log.tail_cache import TailBudget, TailCache

_batches = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=40)


@settings(max_examples=300, deadline=None)
@given(_batches, st.integers(0, 300), st.data())
def test_reads_like_a_list(batches: list[tuple[int, int, int, bool]], bytes_max: int, data: st.DataObject) -> None:
    cache = TailCache(bytes_max, 0, budget := TailBudget(1 << 20))
    rows: list[tuple[int, int, bytes]] = []
    end = 0
    for number, (size, gap, count, in_pieces) in enumerate(batches):
        content = bytes([number]) * size
        base, end = end + gap, end + gap + count
        rows.append((base, end, content))
        cache.add((content[:1], memoryview(content)[1:]) if in_pieces else content, size, end)
    if data.draw(st.booleans()):
        cache.drop_before(data.draw(st.integers(0, end)))
    kept = [row for row in rows if row[1] > cache.start_offset]
    assert budget.bytes_held == sum(len(row[2]) for row in kept) <= bytes_max
    offset = data.draw(st.integers(0, end))
    before = data.draw(st.integers(0, end))
    read_bytes = data.draw(st.integers(0, 200))
    found = cache.read(offset, read_bytes, before)
    if offset < cache.start_offset:
        assert found is None
        return
    expected: list[bytes] = []
    for _, next_offset, content in rows:
        if offset < next_offset <= before:
            if expected and sum(map(len, expected)) + len(content) > read_bytes:
                break
            expected.append(content)
    assert found == expected


def test_all_caches_together_keep_a_limit() -> None:
    budget = TailBudget(100)
    caches = [TailCache(60, 0, budget) for _ in range(4)]
    for number in range(1, 6):
        for cache in caches:
            cache.add(b"x" * 10, 10, number)
            assert budget.bytes_held <= 100
    held = [cache.start_offset for cache in caches]
    assert held == [3, 0, 3, 4], "who began first was emptied first, but for who grows, and begins again"
    assert all(cache.read(4, 100, 5) == [b"x" * 10] for cache in caches), "what came last is there"
    assert caches[0].read(2, 100, 5) is None, "it is for the disk to say"
    budget.limit(45)
    assert budget.bytes_held == 30, "from then on, whole caches"
    assert [cache.read(4, 100, 5) is None for cache in caches] == [True, True, False, False]
    for cache in caches:
        cache.clear()
    assert budget.bytes_held == 0


def test_a_cache_alone_is_bounded_by_its_own_limit() -> None:
    cache = TailCache(60, 0, budget := TailBudget(20))
    for number in range(1, 6):
        cache.add(b"x" * 10, 10, number)
    assert (budget.bytes_held, cache.start_offset) == (50, 0)


def test_making_room_costs_the_same_among_many_caches() -> None:
    def lap(count: int) -> float:
        budget = TailBudget(count // 2)
        caches = [TailCache(10, 0, budget) for _ in range(count)]
        for offset in (1, 2):
            began = time.process_time()
            for cache in caches:
                cache.add(b"x", 1, offset)
            cost = time.process_time() - began
        return cost / count

    assert lap(100_000) < 8 * lap(5_000)
