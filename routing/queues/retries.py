"""What becomes of a message that a consumer did not take: back at once, back later, or dead; pure.

1. What is counted: `returns`, every time the message came back, and `failures`, those of them in which a consumer said
   so. A consumer that is gone gives no verdict on what it held: that is a return, not a failure.
2. A delivery limit bounds the returns, as RabbitMQ's quorum queues do: a message may come back so often, the next time
   it dies ("delivery_limit").
3. A retry ladder catches refusals of both kinds, with and without requeue: after each failure the message waits for the
   next gap, and dies when there is none left.
4. RabbitMQ's delayed retry makes a message that is requeued wait for `min * count`, at most `max`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from routing.queues.death_history import DELIVERY_LIMIT, REJECTED
from routing.queues.settings import QueueSettings

_COUNT_MAX = 0xFFFF


class Cause(Enum):
    """Why a message came back."""

    REQUEUED = "requeued"
    REJECTED = "rejected"
    LOST = "its consumer is gone"


class Tries(NamedTuple):
    """What is remembered of a message: how often it came back and was refused, and when it may be delivered again."""

    returns: int = 0
    failures: int = 0
    due_ms: int = 0

    @property
    def packed(self) -> int:
        """Both counts in 32 bits."""
        return min(self.failures, _COUNT_MAX) << 16 | min(self.returns, _COUNT_MAX)

    @classmethod
    def of(cls, packed: int, due_ms: int) -> Tries:
        """The inverse of `packed`."""
        return cls(packed & _COUNT_MAX, packed >> 16, due_ms)


FIRST = Tries()


def counts(settings: QueueSettings) -> bool:
    """Whether a queue has to remember what came back."""
    return settings.delivery_limit is not None or bool(settings.retry_ms) or _is_delayed(settings)


def catches(settings: QueueSettings) -> bool:
    """Whether a message that is rejected comes back all the same."""
    return bool(settings.retry_ms)


def _is_delayed(settings: QueueSettings) -> bool:
    return settings.delayed_retry_type != "disabled" and settings.delayed_retry_min_ms > 0


def after(settings: QueueSettings, tries: Tries, cause: Cause, now_ms: int) -> tuple[Tries, str | None]:
    """What to remember of a message that came back, `due_ms` 0 for at once; or why it dies."""
    returns, failures = tries.returns + 1, tries.failures + (cause is not Cause.LOST)
    limit = settings.delivery_limit
    if limit is not None and returns > limit:
        return Tries(returns, failures), DELIVERY_LIMIT
    due_ms = 0
    if cause is not Cause.LOST:
        gaps = settings.retry_ms
        if gaps:
            if failures > len(gaps):
                return Tries(returns, failures), REJECTED if cause is Cause.REJECTED else DELIVERY_LIMIT
            due_ms = now_ms + gaps[failures - 1]
        elif _is_delayed(settings):
            due_ms = now_ms + settings.delayed_retry_min_ms * returns
            if settings.delayed_retry_max_ms:
                due_ms = min(due_ms, now_ms + settings.delayed_retry_max_ms)
    return Tries(returns, failures, due_ms), None
