"""What a schedule consists of: one coordinator that crashes now and then, topics that grow, clients that come and go.

1. The coordinator, its groups and what it keeps of them are the engine's own; the log under them is a list of appends,
   durable a little later. A crash leaves any of those that were not durable, from the first on.
2. Requests and answers take up to `NETWORK_MS`, in the order of a connection; both get lost.
3. Checked with each event: no two clients that the coordinator would take commits from read the same partition; a
   client that is a member reads nothing that the group would give to somebody else; no committed offset goes back, one
   that was confirmed least of all. When faults end, everything is read by somebody, and the group is settled.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

from routing.commits import CommitWaiter
from routing.config import BrokerConfig
from routing.groups.consumer_group import ConsumerGroup
from routing.groups.consumer_member import ConsumerMember
from routing.groups.coordinator import Coordinator
from routing.groups.group import Group
from routing.groups.membership import State
from routing.topics.offset_store import Committed, OffsetStore, Partition
from tests.routing.groups.clock import Timer
from tests.routing.groups.topics import FakeTopics
from tests.simulation.checker import Violation

NETWORK_MS = 30
GROUP = "g"
Append = list[tuple[bytes, bytes | None]]


class Log:
    """Appends, durable in their order."""

    def __init__(self, world: World, appends: list[Append]) -> None:
        self.appends = appends
        self.committed_offset = self.written_offset = len(appends)
        self.error = None
        self.waits_out_errors = False
        self.listeners: list[Callable[[Any], None]] = []
        self._world = world

    def wall_clock_ms(self) -> int:
        """Of the world."""
        return self._world.now_ms

    def request_sync(self) -> None:
        """Soon."""
        end = len(self.appends)
        dice = self._world.dice
        self._world.later(dice.randrange(15) if dice.random() < 0.7 else 300, lambda: self._durable(end))

    def _durable(self, end: int) -> None:
        self.committed_offset = self.written_offset = max(end, self.committed_offset)
        for listener in tuple(self.listeners):
            listener(self)


class Store:
    """See `KeyedStore`."""

    has_garbage = False

    def __init__(self, log: Log) -> None:
        self.log = log
        self._values: dict[bytes, bytes] = {}
        for append in log.appends:
            self._apply(append)

    def _apply(self, append: Append) -> None:
        for key, value in append:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value

    def items(self) -> list[tuple[bytes, bytes]]:
        """What there is."""
        return list(self._values.items())

    def put_all(self, puts: Any) -> int:
        """One append."""
        self.log.appends.append(list(puts))
        self._apply(self.log.appends[-1])
        return len(self.log.appends)


class Offsets(OffsetStore):
    """What is committed may not go back."""

    world: World

    async def commit(self, group: str, offsets: Mapping[Partition, Committed]) -> None:
        """In the log; the world answers when that is durable."""
        for place, (offset, *_) in offsets.items():
            before = self.known(group, [place]).get(place, (0, ""))[0]
            if offset < before:
                raise Violation(f"{place} goes back from {before} to {offset}")
        self.note(group, offsets)


class World:
    """See the module."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.dice = random.Random(seed)
        self.now_ms = 0
        self.events = 0
        self.trace = trace
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self.topics = FakeTopics()
        self.ids: dict[bytes, str] = {}
        self.faulty = True
        self.restarts = 0
        self.confirmed: dict[Partition, int] = {}
        self.clients: list[Any] = []
        self.coordinator: Coordinator | None = None
        self.process = 0
        self.log = Log(self, [])
        self.start()

    # ---- time

    def later(self, wait_ms: int, event: Callable[[], None]) -> Timer:
        """Have something happen."""
        timer = Timer(event)
        heapq.heappush(self._agenda, (self.now_ms + wait_ms, next(self._numbers), timer.fire))
        return timer

    def run(self, until_ms: int) -> None:
        """Let things happen."""
        while self._agenda and self._agenda[0][0] <= until_ms:
            self.now_ms, _, event = heapq.heappop(self._agenda)
            self.events += 1
            event()
            if self.coordinator is not None:
                self.coordinator.flush()
                self.check(self.coordinator)
        self.now_ms = until_ms

    def say(self, *words: object) -> None:
        """For whoever looks."""
        if self.trace:
            print(f"{self.now_ms / 1000:9.3f}", *words)

    # ---- the coordinator

    def start(self) -> None:
        """A process with what is in the log."""
        process = self.process
        offsets = Offsets(Store(self.log))  # type: ignore[arg-type]
        offsets.world = self

        def timer(wait_ms: int, callback: Callable[[], None]) -> Timer:
            return self.later(wait_ms, lambda: callback() if self.process == process else None)

        config = BrokerConfig(
            group_initial_delay_ms=0, group_session_timeout_ms_min=1000, consumer_session_timeout_ms=8000
        )
        broker: Any = SimpleNamespace(
            config=config, offsets=offsets, topology=SimpleNamespace(topics=self.topics), cluster=None,
            commits=CommitWaiter(), spawn=None,
        )  # fmt: skip
        self.offsets = offsets
        self.coordinator = Coordinator(broker, timer, lambda: self.now_ms, lambda: self.now_ms)
        for place, offset in self.confirmed.items():
            found = offsets.known(GROUP, [place]).get(place, (0, ""))[0]
            if found < offset:
                raise Violation(f"{place} was confirmed at {offset}, and is at {found} after a crash")

    def crash(self) -> None:
        """The process is gone, and comes back."""
        log = self.log
        kept = log.committed_offset
        if self.dice.random() < 0.5:
            kept = self.dice.randrange(kept, len(log.appends) + 1)
        self.say("crash: keeps", kept, "of", len(log.appends), "appends,", log.committed_offset, "durable")
        self.process += 1
        self.restarts += 1
        self.coordinator = None
        self.log = Log(self, log.appends[:kept])
        self.later(self.dice.randrange(3000), self.start)

    def commit(
        self, made: Coroutine[Any, Any, None], offsets: Mapping[Partition, int], done: Callable[[], None]
    ) -> None:
        """Run a commit; `done` when it is durable. Raises GroupError."""
        try:
            made.send(None)
        except StopIteration:
            pass
        process, log = self.process, self.log
        end = len(log.appends)

        def durable(_: Any) -> None:
            if self.process == process and log.committed_offset >= end:
                for place, offset in offsets.items():
                    self.confirmed[place] = max(offset, self.confirmed.get(place, 0))
                done()

        self.offsets_waiter(log, end, durable)

    def offsets_waiter(self, log: Log, end: int, done: Callable[[Any], None]) -> None:
        """Once."""

        def look(_: Any) -> None:
            if log.committed_offset >= end:
                log.listeners.remove(look)
                done(None)

        log.listeners.append(look)
        log.request_sync()

    # ---- what must hold

    def check(self, coordinator: Coordinator) -> None:
        """See the module, rule 3."""
        group = coordinator.groups.get(GROUP)
        reads: dict[Any, Any] = {}
        for client in self.clients:
            if not client.owned or group is None:
                continue
            member = group.members.get(client.member_id)
            if member is None:
                continue
            if isinstance(group, ConsumerGroup):
                assert isinstance(member, ConsumerMember)
                current = client.epoch == member.epoch
                # A classic one that was not there when its group was divided goes on until it hears of that.
                if not client.owned <= member.held and (current or member.classic is None):
                    raise Violation(f"{client} reads {sorted(client.owned - member.held)}: nobody knows")
            else:
                current = client.epoch == group.generation and group.state is State.STABLE
            for place in client.owned if current else ():
                if reads.setdefault(place, client) is not client:
                    raise Violation(f"{client} and {reads[place]} both read {place} in {client.epoch}")

    def settled(self) -> str | None:
        """Why the group is not as it has to be when nothing fails any more."""
        live = [client for client in self.clients if client.wants]
        group = self.coordinator.groups.get(GROUP) if self.coordinator is not None else None
        wanted = {place for client in live for name in client.wants for place in self.places(name)}
        reads = [place for client in live for place in client.owned]
        if set(reads) != wanted:
            return f"read by nobody: {sorted(wanted - set(reads))}, by those who should not: {set(reads) - wanted}"
        if len(reads) != len(set(reads)):
            twice = sorted({place for place in reads if reads.count(place) > 1})
            return f"read twice: {twice} by {[str(client) for client in live if client.owned & set(twice)]}"
        state = group.state.value if isinstance(group, Group) else group.state if group is not None else "Empty"
        return None if state == ("Stable" if live else "Empty") else f"the group is {state}"

    def places(self, name: str) -> set[tuple[bytes, int]]:
        """Of a topic."""
        found = self.topics.get(name)
        return set() if found is None else {(found.id, number) for number in range(len(found.partitions))}

    def name_of(self, place: tuple[bytes, int]) -> Partition:
        """By the topic's name."""
        return self.topics.by_id[place[0]].name, place[1]
