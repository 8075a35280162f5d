"""Long work in bites: what else there is to do has its turn in between."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")
BITE_S = 0.005


async def bites(items: Iterable[T]) -> AsyncIterator[T]:
    """The items that there are now. Whoever works on them gives way each time that it has taken `BITE_S`."""
    until_s = time.perf_counter() + BITE_S
    for item in list(items):
        yield item
        if time.perf_counter() > until_s:
            await give_way()
            until_s = time.perf_counter() + BITE_S


async def give_way() -> None:
    """What else there is to do has its turn."""
    await trio.lowlevel.checkpoint()
