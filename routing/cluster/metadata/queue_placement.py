"""Where a new durable queue goes: which home, so that the work is spread and clients are near their queues; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

SHARE_MAX = 1.5
"""A broker takes the queues that are declared at it while it leads no more than so many times the mean."""


def home_for_queue(
    leaders: Mapping[int, int | None], counts: Mapping[int, int], broker: int, *, balanced: bool = False
) -> int:
    """The home of a queue that is declared at `broker`; `leaders` has all homes, `counts` their queues.

    It is one that this broker leads, while its share is not too large, else one of the leader with the fewest queues:
    with `balanced` always the latter. Of the homes in question that with the fewest queues is taken, the first if some
    are equal.
    """
    led: dict[int, list[int]] = {}
    for home in sorted(leaders):
        leader = leaders[home]
        if leader is not None:
            led.setdefault(leader, []).append(home)
    if not led:
        return min(sorted(leaders), key=lambda home: counts.get(home, 0))
    shares = Counter({leader: sum(counts.get(home, 0) for home in homes) for leader, homes in led.items()})
    chosen = min(led, key=lambda leader: (shares[leader], leader))
    if not balanced and broker in led:
        mean = (sum(shares.values()) + 1) / len(led)
        if shares[broker] + 1 <= max(SHARE_MAX * mean, 1):
            chosen = broker
    return min(led[chosen], key=lambda home: counts.get(home, 0))
