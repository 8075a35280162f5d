"""Work that blocks, in trio's threads.

The system may have no thread left, for want of memory or by a limit on how many there are. What is asked of a thread
then waits until there is one, which is said now and then: an error would end tasks that the broker cannot do without.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, TypeVar

import trio

logger = logging.getLogger(__name__)

_PAUSE_S = 0.1
_SAID_AGAIN_S = 30.0

T = TypeVar("T")

_said_s: trio.lowlevel.RunVar[float] = trio.lowlevel.RunVar("thread_wanting_said_s", -math.inf)


async def in_thread(
    work: Callable[..., T],
    *arguments: Any,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """`trio.to_thread.run_sync`, once there is a thread."""
    begun = False

    def begin() -> T:
        nonlocal begun
        begun = True
        return work(*arguments)

    while True:
        try:
            return await trio.to_thread.run_sync(begin, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
        except RuntimeError as error:
            if begun:
                raise
            if trio.current_time() >= _said_s.get() + _SAID_AGAIN_S:
                _said_s.set(trio.current_time())
                logger.error("there is no thread to be had, what needs one waits: %s", error)
        await trio.sleep(_PAUSE_S)
