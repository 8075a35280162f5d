"""How often others have their turn while something long is done."""

from __future__ import annotations

import trio


class Turns:
    """`nursery.start_soon(turns.take)`, then `turns.count`."""

    def __init__(self) -> None:
        self.count = 0

    async def take(self) -> None:
        """One after the other, for ever."""
        while True:
            await trio.lowlevel.checkpoint()
            self.count += 1
