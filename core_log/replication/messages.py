"""What a follower and a leader tell each other about one log. Links carry many of them in one frame."""

from __future__ import annotations

from typing import Literal, NamedTuple

from core_log.files import BytesLike


class Position(NamedTuple):
    """A follower's standing order: send from `fetch_offset` on. The latest counts."""

    log: str
    leader_epoch: int
    fetch_offset: int
    last_epoch: int
    """The epoch of its last batch; -1 without any."""
    reported: int
    log_start: int
    refusing: bool
    tag: int
    """The last of the leader's messages about this log that it has seen; 0 on a new link."""
    missed: bool = False
    """That message, or one before it, could not be taken: send again."""


class Batches(NamedTuple):
    """What the log has from `after`, the end of what was sent before, to `end`; maybe no batch.

    Offsets may have gaps, so without `after` nobody could tell one from a message that the follower had to drop, and
    without `end` a follower would never get over a gap at the end of the log.
    """

    log: str
    leader_epoch: int
    tag: int
    high_watermark: int
    log_start: int
    sync_before: int
    after: int
    end: int
    batches: tuple[BytesLike, ...]


class Diverging(NamedTuple):
    """The follower has records that the leader does not have: `epoch` is the largest one that both may know, and ends
    at `end_offset` (KIP-320). `answers` is the fetch offset and last epoch of the position that this is about: a
    follower that has got further since must not cut.
    """

    log: str
    leader_epoch: int
    epoch: int
    end_offset: int
    answers: tuple[int, int]


class Refused(NamedTuple):
    """No batches. `epoch` and `leader` are what the one who refuses knows; with `out_of_range` the log starts at
    `log_start`, and nothing that the follower has can be gone on with, if it is still where it `answers` to.
    """

    log: str
    reason: Literal["not_leader", "fenced_epoch", "unknown_epoch", "out_of_range"]
    leader: int | None
    leader_epoch: int
    log_start: int = 0
    answers: tuple[int, int] = (-1, -1)


Reply = Batches | Diverging | Refused
