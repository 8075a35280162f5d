"""Random lives of a queue with priorities, times to live and delays, against a model that is a list.

Deadlines end in 5 ms and time goes by in steps of 10, so that nothing is due at the very moment somebody looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import MemoryFiles
from routing.facts import pack
from routing.message import Slab
from routing.queues import queue_rules
from routing.unsettled import Outcome
from tests.routing.harness import PERSISTENT, Client, Engine, body_of, engine, killed

HIGHEST = 2
_FAR = 1 << 60

publishes = st.tuples(
    st.just("publish"),
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([None, 25, 95]), st.just(0))
        | st.tuples(st.integers(0, 4), st.sampled_from([None, 20, 90]), st.sampled_from([15, 45])),
        min_size=1,
        max_size=6,
    ),
)
operations = st.lists(
    publishes
    | st.tuples(st.just("get"), st.integers(1, 4))
    | st.tuples(st.sampled_from(["ack", "requeue"]), st.integers(0, 9))
    | st.tuples(st.just("wait"), st.sampled_from([10, 30, 100]))
    | st.tuples(st.sampled_from(["stop", "kill"]), st.just(0)),
    min_size=15,
    max_size=40,
)


@dataclass
class Message:
    """What the model knows of one."""

    number: int
    priority: int
    due_ms: int
    deadline_ms: int
    position: tuple[float, int]
    place: str = "delayed"


clients: dict[Engine, Client] = {}
held: dict[Engine, list[tuple[int, Message]]] = {}
"""What a client holds: delivery ids with the messages."""


class Model:
    """A list of messages; see the module."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.now_ms = 0
        self.published = 0
        self.came_due = 0

    def publish(self, priority: int, ttl_ms: int | None, delay_ms: int) -> int:
        """A message; its number."""
        number = self.published
        self.published += 1
        due_ms = self.now_ms + delay_ms
        deadline_ms = _FAR if ttl_ms is None else due_ms + ttl_ms
        place = "delayed" if delay_ms else "ready"
        self.messages.append(Message(number, min(priority, HIGHEST), due_ms, deadline_ms, (number, 0), place))
        return number

    def look(self) -> None:
        """What is due is ready, what is over is gone."""
        due = [one for one in self.messages if one.place == "delayed" and one.due_ms <= self.now_ms]
        for one in sorted(due, key=lambda one: (one.due_ms, one.number)):
            self.came_due += 1
            one.place, one.position = "ready", (self.published - 0.5, self.came_due)
        self.messages = [one for one in self.messages if one.place != "ready" or one.deadline_ms > self.now_ms]

    def restart(self, *, clean: bool) -> None:
        """What was out comes back; what was due is due again, but for what is known to have been given out."""
        for one in self.messages:
            given = clean and (one.place == "out" or (one.place == "ready" and not one.position[1]))
            if one.due_ms > self.now_ms or (one.due_ms % 10 and not given):
                one.place = "delayed"
            elif one.place == "out":
                one.place, one.position = "ready", (one.number, 0)
        self.look()

    def ready(self) -> list[Message]:
        """In the order in which they are given out."""
        found = [one for one in self.messages if one.place == "ready"]
        return sorted(found, key=lambda one: (-one.priority, one.position))

    def first(self) -> Message | None:
        """What comes next."""
        return next(iter(self.ready()), None)


async def live(clock: MockClock, steps: list[tuple[str, object]]) -> None:
    """Do it all to an engine and to the model."""
    files, model = MemoryFiles(), Model()
    at = 0
    while at <= len(steps):
        async with engine(files, stripes=1) as running:
            await run(running, clock, model, 0, [("wait", 10)])
            if not at:
                await running.queue("q", arguments={"x-max-priority": HIGHEST, "x-delayed": True})
            while at < len(steps) and steps[at][0] not in ("stop", "kill"):
                await run(running, clock, model, at, steps)
                at += 1
                assert running.count("q") == len(model.ready()), steps[:at]
            await running.synced()
            if at < len(steps) and steps[at][0] == "kill":
                files = killed(files)
            if at == len(steps):
                await finish(running, model)
        clean = at == len(steps) or steps[at][0] == "stop"
        at += 1
        clients.clear()
        held.clear()
        model.restart(clean=clean)


async def run(running: Engine, clock: MockClock, model: Model, at: int, steps: list[tuple[str, object]]) -> None:
    """One operation."""
    what, how = steps[at]
    client = clients.setdefault(running, running.client())
    if what == "publish":
        assert isinstance(how, list)
        numbers = [model.publish(*facts) for facts in how]
        facts = [pack(True, priority, ttl_ms, delay_ms) for priority, ttl_ms, delay_ms in how]
        bodies = [str(number).encode() for number in numbers]
        client.session.publish(Slab("", "q", PERSISTENT, bodies, facts=facts))
        running.turn()
    elif what == "get":
        assert isinstance(how, int)
        for _ in range(how):
            wanted = model.first()
            got = await client.session.get("q", no_ack=False)
            assert (None if got is None else int(body_of(got))) == (None if wanted is None else wanted.number)
            if got is not None and wanted is not None:
                wanted.place = "out"
                held.setdefault(running, []).append((got.delivery_id, wanted))
    elif what == "wait":
        assert isinstance(how, int)
        clock.jump(how / 1000)
        model.now_ms += how
        await wait_all_tasks_blocked()
        model.look()
    elif held.get(running):
        assert isinstance(how, int)
        outstanding = held[running]
        delivery_id, message = outstanding.pop(how % len(outstanding))
        client.session.settle(delivery_id, delivery_id, Outcome.ACK if what == "ack" else Outcome.REQUEUE)
        running.turn()
        if what == "ack":
            model.messages.remove(message)
        else:
            message.place, message.position = "ready", (message.number, 0)
            model.look()


async def finish(running: Engine, model: Model) -> None:
    """Take what is left."""
    left = [int(body) for body, _ in await running.drain("q")]
    assert left == [one.number for one in model.ready()]


@pytest.mark.parametrize("slab_min", [1, 8])
@settings(max_examples=20, deadline=None)
@given(operations)
@example(
    [
        *[("wait", 10)] * 7,
        ("publish", [(2, None, 45)]),
        *[("wait", 10)] * 2,
        ("stop", 0),
        ("publish", [(2, None, 15)]),
        ("wait", 30),
    ]
)
def test_a_queue_does_what_its_model_does(slab_min: int, steps: list[tuple[str, object]]) -> None:
    """`slab_min`: from how many messages on slabs are watched as a whole."""
    clock = MockClock()

    async def main() -> None:
        await live(clock, steps)

    with mock.patch.object(queue_rules, "_SLAB_MIN", slab_min):
        trio.run(main, clock=clock)
