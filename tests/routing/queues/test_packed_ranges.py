"""Packed ranges against sets of numbers."""

from __future__ import annotations

import random

import pytest

from routing.queues.packed_ranges import from_bytes, merged, pack, to_bytes, unpack, without


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
