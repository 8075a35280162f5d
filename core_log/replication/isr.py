"""Who is in sync, and what is committed: the rules, with the numbers they are about.

*Reported* is what a replica has durably by the log's `fsync` rule (`ReplicaLog.local_committed`).

1. Committed is what all of the *maximal* ISR reported: those that the metadata names, and those whom a change under way
   may add. Nothing becomes committed while the ISR of the metadata is below the minimum.
2. A replica joins when it has reported the high watermark and the first offset of the leader's epoch: then it has all
   that any leader committed.
3. It leaves when for `replica_lag_time_max_s` it has not reported what the log's end was then, or at once when it says
   that its disk refuses or its link has been down for `link_down_max_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class ReplicationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the roles: times in seconds, and bytes."""

    replica_lag_time_max_s: float = 5.0
    link_down_max_s: float = 1.0
    grant_s: float = 1.5
    """How long a follower that reports promises not to lead itself."""
    grant_share: float = 0.9
    """What part of that the leader counts on: clocks run apart."""
    transfer_max_s: float = 1.0
    """How long a leader takes nothing while the one that it hands over to has not got all."""
    round_max_s: float = 0.1
    round_bytes_max: int = 256 << 10
    """How long, and how much, of what comes waits until all in sync have reported what came before; 0: nothing does."""


def high_watermark(
    reported: Mapping[int, int], isr_size: int, maximal: Iterable[int], min_insync: int, current: int
) -> int:
    """What is committed, given what each broker reported; never less than `current`."""
    if isr_size < min_insync:
        return current
    return max(current, min((reported.get(broker, -1) for broker in maximal), default=-1))


def may_join(reported: int, watermark: int, epoch_start: int) -> bool:
    """Rule 2."""
    return reported >= watermark and reported >= epoch_start
