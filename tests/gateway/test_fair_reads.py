"""Reads that fit into a turn."""

from __future__ import annotations

import pytest

from gateway.fair_reads import (
    LITTLE_SENT_BYTES,
    LONG_TURN_S,
    READ_BYTES_MIN,
    SHARED_TURN_S,
    TURN_S,
    FairReads,
    Neighbours,
)

MAX = 256 << 10


class Clocked(FairReads):
    """With a clock of its own: turns follow each other without a pause."""

    def __init__(self, bytes_max: int, neighbours: Neighbours | None = None) -> None:
        self.now_s = 1000.0
        super().__init__(bytes_max, neighbours or Neighbours())

    def lasted(self, count: int, seconds: float, sent_bytes: int = 0) -> None:
        self.took(count, self.now_s, self.now_s + seconds, sent_bytes)
        self.now_s += seconds


def sizes(byte_s: float, *, count: int = 12, available: int = MAX) -> list[int]:
    """The sizes of reads that are filled as far as they can be and cost `byte_s` a byte."""
    reads = Clocked(MAX)
    found = []
    for _ in range(count):
        size = min(reads.size, available)
        found.append(size)
        reads.lasted(size, size * byte_s)
    return found


def test_cheap_reads_grow_to_the_limit() -> None:
    assert sizes(1e-9)[:4] == [READ_BYTES_MIN, 64 << 10, MAX, MAX]


def test_dear_reads_stay_within_a_turn() -> None:
    for byte_s in (2e-8, 5e-8, 1e-7):
        assert max(sizes(byte_s)) * byte_s <= TURN_S
        assert sizes(byte_s)[-1] * byte_s > TURN_S / 4
    assert set(sizes(1e-6)) == {READ_BYTES_MIN}


def test_a_read_that_became_dear_is_halved_until_it_fits() -> None:
    reads = Clocked(MAX)
    for _ in range(3):
        reads.lasted(reads.size, 0)
    found = []
    for _ in range(5):
        found.append(reads.size)
        reads.lasted(reads.size, reads.size * 2e-8)
    assert found == [MAX, MAX, 128 << 10, 64 << 10, 64 << 10]


def test_one_slow_turn_means_nothing() -> None:
    reads = Clocked(MAX)
    for seconds in (0, 0, 0, 0.1, 0):
        reads.lasted(reads.size, seconds)
    assert reads.size == MAX


def test_reads_shrink_when_little_comes() -> None:
    reads = Clocked(MAX)
    for _ in range(3):
        reads.lasted(reads.size, 0)
    for _ in range(9):
        reads.lasted(100, 0)
    assert (reads.size, reads.full) == (READ_BYTES_MIN, False)


def test_who_needs_little_is_known_after_a_while_and_who_needs_much_at_once() -> None:
    reads = Clocked(MAX)
    assert not reads.needs_little
    for _ in range(3):
        reads.now_s += 0.06
        reads.lasted(100, LONG_TURN_S / 2)
    assert reads.needs_little
    turns = 0
    while reads.needs_little:
        reads.lasted(100, LONG_TURN_S * 2)
        turns += 1
    assert turns * LONG_TURN_S * 2 == pytest.approx(0.005, rel=0.2)


def test_who_needs_little_on_the_whole_and_much_at_a_time_does_not_go_first() -> None:
    reads = Clocked(MAX)
    for _ in range(3):
        reads.now_s += 0.06
        reads.lasted(100, LONG_TURN_S * 2)
    assert not reads.needs_little


@pytest.mark.parametrize(("sent_bytes", "little"), [(LITTLE_SENT_BYTES // 2, True), (LITTLE_SENT_BYTES * 2, False)])
def test_who_is_sent_much_needs_much_however_little_he_says(sent_bytes: int, little: bool) -> None:
    reads, total = Clocked(MAX), 50 * LITTLE_SENT_BYTES
    for _ in range(8):
        reads.now_s += 0.05
        total += sent_bytes // 2
        reads.lasted(100, LONG_TURN_S / 2, total)
    assert reads.needs_little is little


def test_turns_are_shorter_while_somebody_reads_who_needs_little() -> None:
    neighbours = Neighbours()
    busy, small = Clocked(MAX, neighbours), Clocked(MAX, neighbours)

    def longest(count: int) -> float:
        found = []
        for _ in range(count):
            found.append(busy.size * 2e-8)
            busy.lasted(busy.size, busy.size * 2e-8)
        return max(found[-10:])

    assert SHARED_TURN_S < longest(100) <= TURN_S
    for _ in range(150):
        small.now_s = busy.now_s
        small.lasted(100, 50e-6)
        if small.needs_little:
            neighbours.little(small.now_s)
        shared = longest(2)
    assert shared <= SHARED_TURN_S
    assert longest(1000) > SHARED_TURN_S


def test_a_limit_below_the_least_read_counts() -> None:
    reads = Clocked(4096)
    reads.lasted(4096, 0)
    assert (reads.size, reads.full) == (4096, True)
