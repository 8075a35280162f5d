"""How far a log was compacted, and when: a small file beside it.

    version, passes [(end, epoch, time_ms)], tombstones, tombstones_dropped_before, producers

1. A pass has compacted all below `end`; `epoch` is that of the last offset before it. What was cut off since, and
   written anew, is in another epoch: a pass that speaks of it is not believed.
2. A tombstone may go when a pass that covered it is older than `delete_retention_ms`. Passes closer together than a
   part of that count as the later one, so that they stay few.
3. The file may be old or missing: then more is looked at than need be, and tombstones stay longer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from core_log import checkpoint
from core_log.files import Files
from core_log.replication.epochs import LeaderEpochs

if TYPE_CHECKING:
    from core_log.readable_log import ReadableLog

FILE_NAME = "compacted"
_VERSION = 1
_PASSES_MAX = 64

logger = logging.getLogger(__name__)


class Pass(NamedTuple):
    """See the module."""

    end: int
    epoch: int
    time_ms: int


class CompactionState(msgspec.Struct):
    """What is known of a log."""

    version: int = _VERSION
    passes: list[Pass] = []
    tombstones: bool = False
    """There may be some that are to go one day."""
    tombstones_dropped_before: int = 0
    producers: bool = False
    """There may be batches of producers that have an id."""

    @property
    def clean_before(self) -> int:
        """All below was compacted."""
        return self.passes[-1].end if self.passes else 0

    def tombstones_before(self, now_ms: int, retention_ms: int) -> int:
        """Tombstones below may go."""
        return max((one.end for one in self.passes if now_ms - one.time_ms >= retention_ms), default=0)

    def believe(self, epochs: LeaderEpochs, log_end_offset: int) -> None:
        """Forget the passes that speak of what is not in the log any more."""
        while self.passes:
            end, epoch, _ = self.passes[-1]
            found = epochs.end_of(epoch, log_end_offset)
            if found is not None and found[0] == epoch and end <= found[1]:
                return
            self.passes.pop()

    def passed(self, end: int, epochs: LeaderEpochs, now_ms: int, retention_ms: int) -> None:
        """A pass is over that has compacted all below `end`."""
        epoch = max((one for one, first in epochs.entries if first < end), default=epochs.latest)
        # The clock may have been ahead.
        before = [one._replace(time_ms=min(one.time_ms, now_ms)) for one in self.passes]
        old = [one for one in before if now_ms - one.time_ms >= retention_ms][-1:]
        rest = [one for one in before if now_ms - one.time_ms < retention_ms]
        apart_ms = retention_ms // _PASSES_MAX
        if len(rest) > 1 and now_ms - rest[-2].time_ms < apart_ms:
            rest.pop()
        self.passes = [*old, *rest, Pass(end, epoch, now_ms)]


def load(files: Files, directory: str) -> CompactionState:
    """What was saved last. Raises OSError."""
    content = checkpoint.load(files, f"{directory}/{FILE_NAME}")
    try:
        if content is not None:
            return decode(content)
    except ValueError as error:
        logger.warning("%s/%s is ignored: %s", directory, FILE_NAME, error)
    return CompactionState()


def decode(content: bytes) -> CompactionState:
    """Raises ValueError."""
    state = msgspec.msgpack.decode(content, type=CompactionState)
    if state.version != _VERSION:
        raise ValueError(f"version {state.version}")
    return state


def save(log: ReadableLog, state: CompactionState) -> None:
    """Blocks. Raises OSError."""
    checkpoint.save(log.files, f"{log.directory}/{FILE_NAME}", msgspec.msgpack.encode(state))
