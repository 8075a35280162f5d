"""Group offsets: one who commits, at one broker after the other, and looks at what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from routing.errors import BrokerError
from routing.topics.offset_store import Committed

if TYPE_CHECKING:
    from tests.simulation.brokers.process import Process
    from tests.simulation.brokers.world import World

GROUP, PLACE = "g", ("t", 0)


class Group:
    """What is known of a group."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.next = 1
        self.sure = 0
        """The last commit that was answered."""
        self.perhaps: set[int] = set()
        """Commits of which nobody knows."""
        self.commits = 0

    def begin(self) -> None:
        """At any broker, as long as there are faults."""
        world = self.world
        if world.quiet:
            return
        process = world.any_process()
        if process is None:
            world.agenda.after(0.2, self.begin)
            return
        state = {"ended": False}

        def again() -> None:
            if not state["ended"]:
                state["ended"] = True
                self.begin()

        process.spawn(self._work, process, again)
        world.agenda.after(8.0, again)  # its process may be gone

    async def _work(self, process: Process, again: object) -> None:
        dice = self.world.agenda.dice
        for _ in range(dice.randrange(1, 4)):
            await trio.sleep(dice.expovariate(1 / 0.3))
            value, self.next = self.next, self.next + 1
            self.perhaps.add(value)
            try:
                await process.broker.offsets.commit(GROUP, {PLACE: Committed(value)})
            except BrokerError as error:
                process.note(f"group offsets: {error}")
                continue
            if value > self.sure:  # else two were under way, and this one may be the later
                self.perhaps.discard(value)
                self.sure = value
            self.commits += 1
            await self.check(process)
        assert callable(again)
        again()

    async def check(self, process: Process) -> bool:
        """Ask; whether there was an answer."""
        sure = self.sure
        try:
            found = await process.broker.offsets.fetch(GROUP, [PLACE])
        except BrokerError as error:
            process.note(f"group offsets: {error}")
            return False
        value = found[PLACE][0] if PLACE in found else 0
        if value < sure and value not in self.perhaps:
            self.world.fail(f"9: {process.name}: the group is at {value}, {sure} was committed")
        return True
