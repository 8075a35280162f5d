"""Where new durable queues go."""

from __future__ import annotations

from collections import Counter

import pytest

from routing.cluster.metadata.queue_placement import home_for_queue

LEADERS: dict[int, int | None] = {0: 1, 1: 2, 2: 3, 3: 1, 4: 2, 5: 3}


@pytest.mark.parametrize(
    ("leaders", "counts", "broker", "balanced", "home"),
    [
        ({}, {}, 2, False, 1),
        ({}, {1: 1}, 2, False, 0),  # one of two would be more than half as much again
        ({}, {1: 9, 4: 8}, 2, False, 0),  # too large a share
        ({}, {1: 9, 4: 8, 0: 8, 3: 8, 2: 9}, 2, False, 4),
        ({}, {1: 1}, 2, True, 0),
        ({}, {0: 1, 1: 1, 3: 1}, 1, True, 2),
        ({}, {0: 1, 1: 1, 2: 1}, 7, False, 3),  # who leads nothing
        ({1: None, 4: None}, {}, 2, False, 0),
        (dict.fromkeys(LEADERS), {0: 2, 1: 1, 2: 1}, 2, False, 3),
    ],
)
def test_choice(leaders: dict[int, int | None], counts: dict[int, int], broker: int, balanced: bool, home: int) -> None:
    assert home_for_queue(LEADERS | leaders, counts, broker, balanced=balanced) == home


def test_all_queues_declared_at_one_broker_spread_in_the_end() -> None:
    counts: Counter[int] = Counter()
    for _ in range(600):
        counts[home_for_queue(LEADERS, counts, 1)] += 1
    shares = {broker: sum(counts[home] for home, leader in LEADERS.items() if leader == broker) for broker in (1, 2, 3)}
    assert 295 <= shares[1] <= 300, "half of them: 1.5 times the mean"
    assert abs(shares[2] - shares[3]) <= 1
    assert all(abs(counts[home] - counts[home + 3]) <= 1 for home in (0, 1, 2))
