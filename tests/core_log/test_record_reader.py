"""Single records, found by stepping over others, against a whole decoding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core_log.batch_header import parse_header
from core_log.errors import CorruptBatch
from core_log.record_batch import BatchBuilder, decode_runs
from core_log.record_finder import find_records

values = st.lists(
    st.tuples(st.integers(0, 3), st.binary(max_size=300), st.binary(max_size=200)), min_size=1, max_size=40
)


@given(values, st.integers(0, 1 << 40))
def test_each_record_is_found_where_it_is(records: list[tuple[int, bytes, bytes]], base: int) -> None:
    builder = BatchBuilder(base, 0, 1000)
    offset = base
    for gap, key, value in records:
        offset += gap if offset > base else 0
        builder.add(offset, key, value, [("h", key)], 1000 + gap * 100)
        offset += 1
    batch = builder.build()
    header = parse_header(batch)
    known = {run.first_offset + i: (run.key, run.header_block, value) for run in decode_runs(batch)
             for i, value in enumerate(run.values)}  # fmt: skip
    everywhere = range(base, offset + 2)
    asked = [[wanted] for wanted in everywhere] + [[*everywhere], [*everywhere][::3], [*known]]
    for offsets in asked:
        found = find_records(batch, header, offsets)
        assert [run.first_offset for run in found] == [wanted for wanted in offsets if wanted in known]
        for run in found:
            assert run.count == 1
            assert (run.key, run.header_block, run.values[0]) == known[run.first_offset]


def test_records_of_every_size_of_varint() -> None:
    builder = BatchBuilder(0, 0, 0)
    sizes = [0, 1, 62, 63, 64, 8100, 8190, 8192, 70_000, 1_100_000]
    for at, size in enumerate(sizes * 20):
        builder.add(at * 60, None, bytes(size))
    batch = builder.build()
    header = parse_header(batch)
    for at, size in enumerate(sizes * 20):
        (found,) = find_records(batch, header, [at * 60])
        assert found.values == [bytes(size)]
        assert found.key is None


def test_a_batch_that_is_cut_is_damaged() -> None:
    builder = BatchBuilder(0, 0, 0)
    builder.add(0, b"key", b"value", [("a", b"b")])
    builder.add(1, b"key", b"value", [("a", b"b")])
    batch = builder.build()
    for end in range(62, len(batch)):
        assert not reads(batch[:end])
    assert reads(batch)


def reads(batch: bytes) -> bool:
    try:
        return len(find_records(batch, parse_header(batch), [1])) == 1
    except CorruptBatch:
        return False
