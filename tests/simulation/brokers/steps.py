"""Writers that publish to an exchange in steps that take effect once, through any broker (`--harsh`).

Each step is tried until somebody says that it is done, also by two at a time, and now and then once more; attempts of a
step have its rows in another order. Rows go to a queue or to both, and to a topic, by their keys. In the end each is
there once wherever it belongs.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import trio

from core_log.record_batch import BatchBuilder
from routing.access.grants import EVERYTHING, Grants
from routing.errors import BrokerError
from routing.publishing.published_once import publish_once
from tests.simulation.brokers.users import User

if TYPE_CHECKING:
    from tests.simulation.brokers.process import Process
    from tests.simulation.brokers.world import World

EXCHANGE, TOPIC, LEFT, RIGHT = "steps", "rows", "left", "right"
BOUND = {LEFT: (LEFT, "all"), RIGHT: (RIGHT, "all")}
"""Rows of which keys a queue gets."""
PARTITIONS = 2
_WRITERS = 2
_PATIENCE_S = 4.0
_LOOK_S = 0.25
_LOOKS_MAX = 20
_FILLINGS = (0, 0, 0, 0, 1500)


class Steps:
    """See the module; of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: dict[bytes, str] = {}
        """The keys of all there are."""
        self.writers = [_Writer(self, f"w{number}") for number in range(_WRITERS)]
        self.grants = Grants("writer", "/", lambda vhost, name: "topic", None)
        self.grants.set_rules(EVERYTHING, {})

    async def declare(self, process: Process) -> None:
        """What the writers publish to."""
        broker = process.broker
        await broker.declare_exchange(EXCHANGE, "topic", durable=True)
        for queue, keys in BOUND.items():
            await broker.declare_queue(queue, durable=True, arguments={"x-queue-leader-locator": "balanced"})
            for key in keys:
                await broker.bind("queue", queue, EXCHANGE, key)
        await broker.create_topic(TOPIC, partitions=PARTITIONS)
        await broker.bind("topic", TOPIC, EXCHANGE, "#")

    def begin(self) -> None:
        """Publish as long as there are faults, and bring the last steps to an end."""
        for writer in self.writers:
            writer.next_step()

    def missing(self) -> str | None:
        """Which steps are under way."""
        waiting = [f"step {writer.number} of {writer.name}" for writer in self.writers if writer.rows]
        return f"{', '.join(waiting)}: not done" if waiting else None

    async def check(self) -> None:
        """Take all there is out of the queues; each row once."""
        process, finished = self.world.any_process(), trio.Event()
        assert process is not None
        process.spawn(self._check, process, finished)
        await finished.wait()

    async def _check(self, process: Process, finished: trio.Event) -> None:
        for queue, keys in BOUND.items():
            found = await self._contents(process, queue)
            self._compare(queue, found, {row for row, key in self.rows.items() if key in keys})
        topic = Counter[bytes]()
        for partition in process.broker.topics[TOPIC].partitions:
            offsets_of = self.world.truths[partition.log.directory].offsets_of
            topic.update({row: len(offsets) for row, offsets in offsets_of.items()})
        self._compare(TOPIC, topic, set(self.rows))
        finished.set()

    async def _contents(self, process: Process, queue: str) -> Counter[bytes]:
        """What is in a queue, all of it from one leader."""
        for _ in range(_LOOKS_MAX):
            user, found, leaders = User(process, "rows"), Counter[bytes](), self._leaders()
            try:
                while (got := await user.session.get(queue, no_ack=False)) is not None:
                    found[bytes(got.slab.bodies[got.index])] += 1
                    process.broker.end_turn()
                if leaders == self._leaders():
                    return found
            except BrokerError as error:
                process.note(f"{user.name}: {error}")
            finally:
                user.close()
            await trio.sleep(_LOOK_S)
        self.world.fail(f"8: nobody leads {queue} for long")
        return Counter()

    def _leaders(self) -> dict[str, int]:
        assert self.world.harsh is not None
        return {name: state.leader_epoch for name, state in self.world.harsh.states().items()}

    def _compare(self, where: str, found: Counter[bytes], wanted: set[bytes]) -> None:
        for row in sorted(wanted | found.keys()):
            if found[row] != (row in wanted):
                self.world.fail(f"11: row {row.rstrip()!r} is {found[row]} times in {where}")


class _Writer:
    """Its steps follow each other."""

    def __init__(self, steps: Steps, name: str) -> None:
        self.steps, self.world, self.name = steps, steps.world, name
        self.number = -1
        self.rows: dict[bytes, str] = {}
        """Of the step that is under way."""

    def next_step(self) -> None:
        """A step, with an attempt or two."""
        self.rows = {}
        if self.world.quiet:
            return
        dice = self.world.agenda.dice
        self.number += 1
        for row in range(dice.choice([1, 2, 5, 30])):
            body = b"%s.%d-%d%s" % (self.name.encode(), self.number, row, b" " * dice.choice(_FILLINGS))
            self.rows[body] = dice.choice([LEFT, RIGHT, "all"])
        self.steps.rows |= self.rows
        for _ in range(dice.choice([1, 1, 2])):
            self._try(self.number)

    def _try(self, number: int) -> None:
        """An attempt at any broker, and another one when that is gone, or takes long."""
        if number != self.number or not self.rows:
            return
        world, process = self.world, self.world.any_process()
        if process is None:
            world.agenda.after(_LOOK_S, partial(self._try, number))
            return
        process.spawn(self._attempt, process, number, self._batch())
        self._watch(process, number, world.agenda.now_s + _PATIENCE_S)

    def _watch(self, process: Process, number: int, until_s: float) -> None:
        agenda = self.world.agenda
        if process.ended or agenda.now_s >= until_s:
            self._try(number)
        elif number == self.number:
            agenda.after(_LOOK_S, partial(self._watch, process, number, until_s))

    def _batch(self) -> bytes:
        order = list(self.rows.items())
        self.world.agenda.dice.shuffle(order)
        builder = BatchBuilder(0, -1, 1000)
        for offset, (body, key) in enumerate(order):
            builder.add(offset, key.encode(), body, [])
        return builder.build()

    async def _attempt(self, process: Process, number: int, batch: bytes) -> None:
        dice, broker = self.world.agenda.dice, process.broker
        while number == self.number and self.rows:
            process.note(f"{self.name} publishes step {number}, {len(self.rows)} rows")
            try:
                done = await publish_once(broker, self.steps.grants, EXCHANGE, self.name, number, [batch])
            except BrokerError as error:
                process.note(f"{self.name}, step {number}: {error}")
                await trio.sleep(dice.expovariate(1 / 0.2))
                continue
            process.note(f"{self.name}, step {number}: {done}")
            if number == self.number and self.rows and dice.random() < 0.9:
                self.rows = {}
                self.world.agenda.after(dice.expovariate(1 / 0.3), self.next_step)
