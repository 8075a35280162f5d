"""Known ids against a dictionary, through time, bounds and restarts."""

from __future__ import annotations

import random

from routing.seen_ids import SeenIds, hashes_of

WINDOW_MS = 1000


def test_against_a_dictionary() -> None:
    chance = random.Random(7)
    seen, model = SeenIds(WINDOW_MS, 1_000_000), dict[int, int]()
    now_ms = 0
    for _ in range(400):
        now_ms += chance.choice([0, 1, 10, 100])
        hashes = [hashes_of([b"%d" % chance.randrange(3000)])[0] for _ in range(chance.randrange(30))]
        for value, fresh in zip(hashes, seen.admit(hashes, now_ms), strict=True):
            age = now_ms - model.get(value, -10_000)
            if fresh:
                assert age >= WINDOW_MS
                model[value] = now_ms
            else:
                # At most a quarter longer than the window.
                assert age < WINDOW_MS * 1.25 + 1
        if chance.random() < 0.05:
            again = SeenIds(WINDOW_MS, 1_000_000)
            again.restore(seen.dump(now_ms), now_ms)
            assert len(again) == len(seen)
            seen = again
    assert len(model) > 2000


def test_an_id_may_repeat_within_a_row_and_none_is_always_new() -> None:
    seen = SeenIds(WINDOW_MS, 1000)
    row = hashes_of([b"a", None, b"a", None, b"", b""])
    assert seen.admit(row, 5) == [True, True, False, True, True, False]
    assert seen.admit(hashes_of([b"a"]), 5) == [False]


def test_memory_is_bounded_and_about_16_bytes_an_id() -> None:
    seen = SeenIds(WINDOW_MS, 50_000)
    for number in range(100):
        seen.admit(hashes_of(b"%d" % value for value in range(number * 1000, number * 1000 + 1000)), number)
        assert len(seen) <= 2 * 50_000
    assert seen.admit(hashes_of([b"0"]), 100) == [True]  # forgotten before its time
    assert seen.admit(hashes_of([b"99999"]), 100) == [False]
    seen = SeenIds(WINDOW_MS, 1_000_000)
    seen.admit(hashes_of(b"%d" % value for value in range(60_000)), 0)
    assert sum(8 * len(table.places) for table in seen._tables) <= 60_000 * 40
    assert len(seen._tables) == 2  # each costs time for every message
    seen.expire(WINDOW_MS)
    assert len(seen) == 0


def test_what_was_not_taken_is_new_again() -> None:
    seen = SeenIds(WINDOW_MS, 1000)
    row = hashes_of(b"%d" % number for number in range(100))
    seen.admit(row, 0)
    seen.forget(row[50:])
    assert seen.admit(row, 0) == [False] * 50 + [True] * 50


def test_hashes_are_the_same_everywhere() -> None:
    assert list(hashes_of([b"id-1", None])) == [15142881318242397786, 0]
