"""What came out against what had to come out: every count, every identity, every mean."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from gateway.demo.flights import Expected, Means

TOLERANCE_MIN = 1e-9
"""Two means agree within so many minutes: sums are whole numbers, so only the last division may round differently."""
DIFFERENCES_SHOWN = 5


@dataclass
class Outcome:
    """What the parts of the job reported."""

    published: int = 0
    """Acknowledged by the broker."""
    handled: list[int] = field(default_factory=list)
    """Identities the workers acknowledged, repetitions included."""
    left_in_queue: int = 0
    airport: dict[str, list[int]] = field(default_factory=dict)
    """Identities by record key, in the order of reading."""
    means: dict[tuple[str, int], Means] | None = None
    """None when Spark did not run."""


@dataclass(frozen=True)
class Check:
    """One comparison; `differences` is empty when it holds."""

    claim: str
    differences: Sequence[str]


def compare(expected: Expected, outcome: Outcome) -> list[Check]:
    """All checks, the failed ones with what differs."""
    checks = [
        Check(
            f"{expected.flights:,} flights published by {expected.devices} devices and acknowledged",
            _equal("acknowledged", expected.flights, outcome.published),
        ),
        Check(
            f"{len(expected.delayed):,} delayed flights handled exactly once",
            [*_identities(expected.delayed, outcome.handled), *_equal("left in queue", 0, outcome.left_in_queue)],
        ),
        Check(
            f"{sum(map(len, expected.airport.values())):,} flights of one airport read, in order for each key",
            _sequences(expected.airport, outcome.airport),
        ),
    ]
    if outcome.means is not None:
        checks.append(
            Check(
                f"{len(expected.means)} groups of carrier and month: flights and both mean delays",
                compare_means(expected.means, outcome.means),
            )
        )
    return checks


def compare_means(expected: Mapping[tuple[str, int], Means], got: Mapping[tuple[str, int], Means]) -> list[str]:
    """What differs between two tables of means, one line for each group."""
    lines = []
    for carrier, month in sorted(expected.keys() | got.keys()):
        ours, theirs = expected.get((carrier, month)), got.get((carrier, month))
        if ours is None or theirs is None or not _same(ours, theirs):
            lines.append(f"{carrier} in month {month}: expected {ours}, Spark computed {theirs}")
    return lines


def _same(ours: Means, theirs: Means) -> bool:
    pairs = ((ours.dep_delay, theirs.dep_delay), (ours.arr_delay, theirs.arr_delay))
    return ours.flights == theirs.flights and all(
        left == right if left is None or right is None else math.isclose(left, right, rel_tol=0, abs_tol=TOLERANCE_MIN)
        for left, right in pairs
    )


def _equal(what: str, expected: int, got: int) -> list[str]:
    return [] if expected == got else [f"{what}: expected {expected:,}, got {got:,}"]


def _identities(expected: frozenset[int], got: list[int]) -> list[str]:
    counted = Counter(got)
    found = {
        "never handled": expected - counted.keys(),
        "not delayed": counted.keys() - expected,
        "handled more than once": {one for one, times in counted.items() if times > 1},
    }
    return [f"{what}: {len(ones):,} ({_some(ones)})" for what, ones in found.items() if ones]


def _sequences(expected: Mapping[str, list[int]], got: Mapping[str, list[int]]) -> list[str]:
    lines = []
    for key in sorted(expected.keys() | got.keys()):
        ours, theirs = expected.get(key, []), got.get(key, [])
        if ours != theirs:
            how = "in another order" if sorted(ours) == sorted(theirs) else f"{len(theirs):,} instead of {len(ours):,}"
            lines.append(f"{key}: {how}")
    return lines


def _some(identities: Set[int]) -> str:
    shown = ", ".join(map(str, sorted(identities)[:DIFFERENCES_SHOWN]))
    return f"flights {shown}{', ...' if len(identities) > DIFFERENCES_SHOWN else ''}"
