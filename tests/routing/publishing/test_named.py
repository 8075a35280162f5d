"""Names of messages that queues without a log have had."""

from __future__ import annotations

import time

from routing.publishing.named import NAMES_MAX, Names


def test_a_name_is_new_once_and_the_oldest_are_forgotten() -> None:
    names = Names()
    numbers = range(NAMES_MAX + 1)
    assert all(names.is_new(b"%d" % number) for number in numbers)
    assert not names.is_new(b"%d" % NAMES_MAX)
    assert not names.is_new(b"1")
    assert names.is_new(b"0")
    assert names.is_new(b"1", "queue")


def test_a_name_costs_the_same_when_others_were_forgotten_for_it() -> None:
    names = Names()
    costs = []
    for lap in range(4):
        began = time.process_time()
        for number in range(NAMES_MAX):
            names.is_new(b"%d %d" % (lap, number))
        costs.append(time.process_time() - began)
    assert min(costs[1:]) < 8 * costs[0]
