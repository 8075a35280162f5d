"""The tail cache against a plain list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from core_log.tail_cache import TailCache

_batches = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=40)


@settings(max_examples=300, deadline=None)
@given(_batches, st.integers(0, 300), st.data())
def test_reads_like_a_list(batches: list[tuple[int, int, int, bool]], bytes_max: int, data: st.DataObject) -> None:
    cache = TailCache(bytes_max, 0)
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
    assert sum(len(row[2]) for row in kept) <= bytes_max
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
