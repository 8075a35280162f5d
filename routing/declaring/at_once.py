"""Several changes that wait for the disk, or for other brokers, at the same time: they share its writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio


async def at_once(works: Sequence[Callable[[], Awaitable[object]]]) -> None:
    """Do all of it, in any order, and wait for that."""
    if len(works) == 1:
        await works[0]()
    elif works:
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(work)
