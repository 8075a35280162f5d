"""What becomes of a message that comes back: tables of settings, counts and causes."""

from __future__ import annotations

from typing import Any

import pytest

from routing.queues.retries import FIRST, Cause, Tries, after, counts
from routing.queues.settings import QueueSettings

REQUEUED, REJECTED, LOST = Cause.REQUEUED, Cause.REJECTED, Cause.LOST
LADDER = {"retry_ms": (1000, 5000)}
DELAYED = {"delayed_retry_type": "all", "delayed_retry_min_ms": 100, "delayed_retry_max_ms": 250}


@pytest.mark.parametrize(
    ("settings", "tries", "cause", "after_it", "dead"),
    [
        ({"delivery_limit": 2}, FIRST, REQUEUED, Tries(1, 1), None),
        ({"delivery_limit": 2}, Tries(1, 0), LOST, Tries(2, 0), None),
        ({"delivery_limit": 2}, Tries(2, 2), REQUEUED, Tries(3, 3), "delivery_limit"),
        ({"delivery_limit": 2}, Tries(2, 0), LOST, Tries(3, 0), "delivery_limit"),
        ({"delivery_limit": 0}, FIRST, REQUEUED, Tries(1, 1), "delivery_limit"),
        (LADDER, FIRST, REQUEUED, Tries(1, 1, 1_001_000), None),
        (LADDER, FIRST, REJECTED, Tries(1, 1, 1_001_000), None),
        (LADDER, Tries(1, 1, 5), REQUEUED, Tries(2, 2, 1_005_000), None),
        (LADDER, Tries(2, 2), REQUEUED, Tries(3, 3), "delivery_limit"),
        (LADDER, Tries(2, 2), REJECTED, Tries(3, 3), "rejected"),
        (LADDER, Tries(7, 1), LOST, Tries(8, 1), None),
        (LADDER | {"delivery_limit": 1}, Tries(1, 1), REQUEUED, Tries(2, 2), "delivery_limit"),
        (DELAYED, FIRST, REQUEUED, Tries(1, 1, 1_000_100), None),
        (DELAYED, Tries(2, 2), REQUEUED, Tries(3, 3, 1_000_250), None),
        (DELAYED, FIRST, LOST, Tries(1, 0), None),
        (DELAYED | {"delayed_retry_type": "disabled"}, FIRST, REQUEUED, Tries(1, 1), None),
        (DELAYED | {"delayed_retry_max_ms": 0}, Tries(9, 9), REQUEUED, Tries(10, 10, 1_001_000), None),
    ],
)
def test_what_comes_next(
    settings: dict[str, Any], tries: Tries, cause: Cause, after_it: Tries, dead: str | None
) -> None:
    assert after(QueueSettings(**settings), tries, cause, 1_000_000) == (after_it, dead)


@pytest.mark.parametrize(
    ("settings", "gaps"),
    [
        ({"retry_ms": (1, 2, 3)}, [1, 2, 3]),
        ({"delivery_limit": 3}, [0, 0, 0]),
        (DELAYED | {"delivery_limit": 4}, [100, 200, 250, 250]),
        ({"delivery_limit": 0}, []),
        ({}, [0] * 10),
    ],
)
def test_a_message_that_always_fails(settings: dict[str, Any], gaps: list[int]) -> None:
    tries, found = FIRST, list[int]()
    while len(found) < 10:
        tries, dead = after(QueueSettings(**settings), tries, Cause.REQUEUED, 0)
        if dead is not None:
            break
        found.append(tries.due_ms)
    assert found == gaps


def test_only_queues_with_such_rules_count() -> None:
    assert not counts(QueueSettings())
    assert not counts(QueueSettings(delayed_retry_type="all"))
    assert all(counts(QueueSettings(**settings)) for settings in (LADDER, DELAYED, {"delivery_limit": 0}))


@pytest.mark.parametrize("tries", [FIRST, Tries(1, 0, 5), Tries(65535, 65535, 1 << 60)])
def test_counts_fit_into_a_record(tries: Tries) -> None:
    assert Tries.of(tries.packed, tries.due_ms) == tries
    assert Tries.of(Tries(70_000, 70_000).packed, 0) == Tries(65535, 65535)
