"""Packed ranges against sets of numbers."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.queues.packed_ranges import (
    Range,
    by_blocks,
    count_of,
    from_bytes,
    low_bits,
    merged,
    offsets_of,
    pack,
    pack_all,
    rising,
    singly,
    to_bytes,
    unpack,
    without,
)


def numbers(ranges: object) -> list[int]:
    return [offset for first, count in ranges for offset in range(first, first + count)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(100))
def test_what_is_taken_away_is_gone_and_nothing_else(seed: int) -> None:
    dice = random.Random(seed)
    size = dice.choice([20, 200, 2000])
    share = dice.choice([0.1, 0.5, 0.95])
    have = {offset for offset in range(size) if dice.random() < share}
    longest = dice.choice([1, 5, 50])
    gone = [(dice.randrange(size), dice.randint(1, longest)) for _ in range(dice.choice([0, 1, 5, 50]))]
    ranges = merged((offset, 1) for offset in dice.sample(sorted(have), len(have)))
    assert numbers(ranges) == sorted(have)
    packed = pack(ranges)
    assert from_bytes(to_bytes(packed)) == packed
    assert numbers(unpack(without(packed, gone))) == sorted(have - set(numbers(gone)))


def test_long_ranges_are_several() -> None:
    packed = pack([(5, 70_000), (70_005, 130_000), (300_000, 65_536)])
    assert len(packed) == 5
    assert merged(unpack(packed)) == [(5, 200_000), (300_000, 65_536)]
    left = without(packed, [(100, 199_000)])
    assert merged(unpack(left)) == [(5, 95), (199_100, 905), (300_000, 65_536)]
    assert not pack([])
    assert not without(pack([(1, 5)]), [(0, 10)])


_SMALL = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=12)


@given(_SMALL, _SMALL)
def test_without_is_set_difference(have: list[Range], gone: list[Range]) -> None:
    present = sorted(set(numbers(have)))
    left = list(unpack(without(pack(merged((offset, 1) for offset in present)), gone)))
    removed = set(numbers(gone))
    assert numbers(left) == [offset for offset in present if offset not in removed]
    assert all(count > 0 for _, count in left)


@pytest.mark.parametrize(
    ("have", "gone", "left"),
    [
        ([], [], []),
        ([(0, 10)], [], [(0, 10)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 10)], [(3, 4)], [(0, 3), (7, 3)]),
        ([(0, 10)], [(8, 10), (0, 1)], [(1, 7)]),
        ([(0, 3), (5, 3)], [(2, 4)], [(0, 2), (6, 2)]),
        ([(0, 3), (5, 3), (10, 3)], [(0, 100)], []),
        ([(0, 10)], [(2, 1), (2, 5), (3, 1)], [(0, 2), (7, 3)]),
        ([(0, 10), (20, 10)], [(0, 2), (1, 25)], [(26, 4)]),
    ],
)
def test_without(have: list[Range], gone: list[Range], left: list[Range]) -> None:
    assert list(unpack(without(pack(have), gone))) == left


@pytest.mark.parametrize("longest", [1, 2, 70_000])
def test_ranges_are_counted_listed_and_cut_as_offsets_are(longest: int) -> None:
    dice = random.Random(longest)
    ranges, at = [], 0
    for _ in range(30):
        count = dice.randint(1, longest)
        ranges.append((at, count))
        at += count + dice.choice([0, 1, 5000])
    offsets = [offset for first, count in ranges for offset in range(first, first + count)]
    one_by_one = [one for first, count in ranges for one in pack([(first, count)])]
    for packed in (pack(ranges), pack_all(one_by_one), array("Q", one_by_one)):
        assert count_of(packed) == len(offsets)
        assert offsets_of(packed) == offsets
        if longest < 3:
            singles = singly(packed)
            assert list(unpack(singles)) == [(offset, 1) for offset in offsets]
            assert low_bits(singles, 14) == [offset & 16383 for offset in offsets]
        pieces = list(by_blocks(packed, 14))
        assert [number for number, _ in pieces] == sorted({offset >> 14 for offset in offsets})
        assert [one for number, piece in pieces for one in offsets_of(piece)] == offsets
        assert all(number == one >> 14 for number, piece in pieces for one in offsets_of(piece))


def test_neighbours_are_joined_where_there_are_many() -> None:
    assert list(unpack(pack_all([one << 16 for one in range(5, 105)]))) == [(5, 100)]
    apart = [one << 16 for one in range(0, 400, 3)]
    assert list(pack_all([*apart, apart[-1] + (1 << 16)])) == [*apart, apart[-1] + (1 << 16)]


@given(st.lists(st.tuples(st.integers(0, 5000), st.sampled_from([1, 1, 1, 2, 3, 70])), max_size=60))
def test_rising_is_merged(ranges: list[Range]) -> None:
    packed = array("Q")
    for one in ranges:
        packed += pack([one])
    assert list(rising(packed)) == merged(ranges)


def test_rising_of_many_that_touch_or_overlap() -> None:
    singles = pack((at, 1) for at in range(0, 400, 2)) + pack((at, 1) for at in range(1, 400, 2))
    assert list(rising(singles)) == [(0, 400)]
    assert list(rising(singles + pack([(100, 70_000)]))) == [(0, 70_100)]
    assert list(rising(singles + pack([(401, 3)]))) == [(0, 400), (401, 3)]
