"""Clients as Kafka's are: what they do by themselves to be members of a group, read and commit.

A client is one process. What it reads (`owned`) it goes on reading whatever it hears, until it has been told otherwise
and has let go. A partition's position begins where the group has come; a commit says how far it got.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocols.native.clients.group_bytes import (
    Partition,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from routing.groups.consumer_member import JOINING, LEAVING, LEAVING_FOR_NOW, Beat, Beaten
from routing.groups.coordinator import Coordinator
from routing.groups.errors import GroupError, MemberIdRequired, RebalanceInProgress
from routing.groups.membership import Joined, Joining, Synced
from routing.topics.offset_store import Committed
from tests.simulation.groups.world import GROUP, NETWORK_MS, World

SESSION_MS, REBALANCE_MS = 6_000, 4_000
REQUEST_MS = 2_000
Place = tuple[bytes, int]


class Client:
    """What both kinds have in common."""

    kind = ""

    def __init__(self, world: World, name: str, wants: set[str], instance: str | None = None) -> None:
        self.world = world
        self.name = name
        self.wants = wants
        """None: it has gone."""
        self.instance = instance
        self.member_id = ""
        self.epoch = 0
        self.owned: set[Place] = set()
        self.positions: dict[Place, int] = {}
        self._connection = 0
        self._era = 0
        """Rises when it forgets what it had."""
        self._next_ms = 0
        self._waiting: list[Callable[[Any], None]] = []
        self._commit_due = 0
        world.clients.append(self)
        self.is_ending = False
        self.cut_until_ms = 0
        """Nothing gets through until then; it reads on."""
        world.say(self, "starts, wants", sorted(wants))
        self._pulse()

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" ({self.instance})" if self.instance else "")

    def _pulse(self) -> None:
        if not self.is_over:
            self._read()
            self.world.later(self.world.dice.randrange(100, 400), self._pulse)

    def leave(self) -> None:
        """As a process that is stopped in order."""
        raise NotImplementedError

    def want(self, wants: set[str]) -> None:
        """Other topics from now on."""
        raise NotImplementedError

    def die(self) -> None:
        """At once, without a word."""
        self.world.say(self, "dies")
        self._over()

    def forget(self) -> None:
        """It is out: what it had is not its own any more."""
        self.owned, self.positions = set(), {}
        self._era += 1

    def _over(self) -> None:
        self.wants = set()
        self.forget()
        self._waiting.clear()
        self._connection += 1
        self.world.clients.remove(self)

    # ---- the network

    def ask(self, request: Callable[[Coordinator, Callable[[Any], None]], None], answer: Callable[[Any], None]) -> None:
        """Send a request. `answer` is called with its answer, an error of the group, or None: it was lost."""
        world, connection = self.world, self._connection

        def arrived(said: Any) -> None:
            if arrived in self._waiting:
                self._waiting.remove(arrived)
                answer(said)

        self._waiting.append(arrived)

        def served() -> None:
            coordinator, process = world.coordinator, world.process
            if coordinator is None or self._lost() or (connection != self._connection and not self.is_over):
                return

            def reply(said: Any) -> None:
                if world.process == process and not self._lost():
                    world.later(world.dice.randrange(1, NETWORK_MS), lambda: arrived(said))

            try:
                request(coordinator, reply)
            except GroupError as error:
                reply(error)

        self._next_ms = max(self._next_ms, world.now_ms + world.dice.randrange(1, NETWORK_MS))
        world.later(self._next_ms - world.now_ms, served)
        world.later(self.request_ms, lambda: self._gave_up() if arrived in self._waiting else None)

    request_ms = REQUEST_MS

    def _gave_up(self) -> None:
        """The connection is given up, with all requests."""
        self._connection += 1
        for arrived in tuple(self._waiting):
            arrived(None)

    def _lost(self) -> bool:
        return self.world.faulty and (self.world.now_ms < self.cut_until_ms or self.world.dice.random() < 0.03)

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self not in self.world.clients

    # ---- reading

    def take(self, places: set[Place]) -> None:
        """Read these as well, from where the group has come."""
        self.owned |= places
        for place in places:
            self._begin(place)

    def _begin(self, place: Place) -> None:
        topic = self.world.topics.by_id.get(place[0])
        if topic is None or place not in self.owned or place in self.positions:
            return
        where = topic.name, place[1]

        def fetch(coordinator: Coordinator, reply: Callable[[Any], None]) -> None:
            reply(self.world.offsets.known(GROUP, [where]))

        def found(said: Any) -> None:
            if place in self.owned and place not in self.positions:
                if said is None:
                    self._begin(place)
                else:
                    self.positions[place] = said.get(where, (0, ""))[0]

        self.ask(fetch, found)

    def let_go(self, places: set[Place], then: Callable[[], None]) -> None:
        """Commit, and stop reading."""
        era = self._era

        def gone(_: Any = None) -> None:
            if not self.is_over and era == self._era:
                self.owned -= places
                for place in places:
                    self.positions.pop(place, None)
                then()

        wait_ms = self.world.dice.randrange(100)
        if self.world.faulty and self.world.dice.random() < 0.03:
            wait_ms = REBALANCE_MS + 1000
        self.world.later(wait_ms, lambda: self.commit(gone, places) if era == self._era else None)

    def _read(self) -> None:
        """Some more records; a commit now and then."""
        for place in self.positions:
            self.positions[place] += self.world.dice.randrange(3)
        self._commit_due -= 1
        if self.positions and self._commit_due <= 0:
            self._commit_due = self.world.dice.randrange(2, 8)
            self.commit(lambda _: None, set(self.positions))

    def commit(self, done: Callable[[Any], None], places: set[Place]) -> None:
        """How far it has got."""
        by_id = self.world.topics.by_id
        offsets = {
            (by_id[place[0]].name, place[1]): self.positions[place]
            for place in places
            if place in self.positions and place[0] in by_id
        }
        if not offsets:
            done(None)
            return
        member_id, instance, epoch = self.member_id, self.instance, self.epoch

        def committing(coordinator: Coordinator, reply: Callable[[Any], None]) -> None:
            noted = {place: Committed(offset) for place, offset in offsets.items()}
            made = coordinator.commit(GROUP, member_id, instance, epoch, noted)
            self.world.commit(made, offsets, lambda: reply(Beaten(None)))

        self.ask(committing, done)


class ServedClient(Client):
    """Of a group that the broker divides."""

    kind = "served"
    request_ms = 1500

    def __init__(self, world: World, name: str, wants: set[str], instance: str | None = None) -> None:
        super().__init__(world, name, wants, instance)
        self.member_id = f"{name}-{world.dice.getrandbits(32):x}"
        self.assigned: set[Place] | None = None
        self._reported: set[Place] = set()
        self._whole = True
        self._letting_go = False
        self._tick()

    def want(self, wants: set[str]) -> None:
        """Other topics from now on."""
        self.world.say(self, "wants", sorted(wants))
        self.wants, self._whole = wants, True

    def leave(self) -> None:
        """As a process that is stopped in order."""
        epoch = LEAVING if self.instance is None else LEAVING_FOR_NOW
        self.world.say(self, "leaves")
        beat = Beat(self.member_id, epoch, self.instance)
        self.let_go(set(self.owned), lambda: self._leave(beat))
        self._letting_go = True

    def _leave(self, beat: Beat) -> None:
        self.ask(lambda coordinator, reply: coordinator.beat(GROUP, beat, reply), lambda _: None)
        self._over()

    def _tick(self) -> None:
        if self.is_over:
            return
        whole = self._whole or self.epoch == JOINING
        owned = frozenset(self.owned) if whole or self.owned != self._reported else None
        self._reported = set(self.owned)
        self._whole = False
        names = frozenset(self.wants) if whole else None
        beat = Beat(
            self.member_id, self.epoch, self.instance, None, self.name, "", REBALANCE_MS if whole else -1, names,
            owned=owned,
        )  # fmt: skip
        self.ask(lambda coordinator, reply: coordinator.beat(GROUP, beat, reply), self._told)

    def _told(self, said: Any) -> None:
        if self.is_over:
            return
        error = said if isinstance(said, GroupError) else said.error if said is not None else None
        if said is None:
            self._whole = True
            self._again(100)
        elif error is not None:
            self.world.say(self, "hears", type(error).__name__, error)
            if type(error).__name__ in ("FencedEpoch", "UnknownMember", "UnknownGroup", "FencedInstance"):
                self.forget()
                self.epoch, self.assigned, self._letting_go = JOINING, None, False
                if type(error).__name__ == "FencedInstance" or self.is_ending:
                    self.die()
                    return
            self._whole = True
            self._again(500)
        else:
            self.epoch = said.epoch
            if said.assignment is not None:
                self.world.say(self, "epoch", said.epoch, "may read", sorted(number for _, number in said.assignment))
                self.assigned = set(said.assignment)
            self._go_on()
            self._again(min(said.interval_ms, 500))

    def _again(self, wait_ms: int) -> None:
        self.world.later(wait_ms, self._tick)

    def _go_on(self) -> None:
        if self.assigned is None or self._letting_go:
            return
        gone = self.owned - self.assigned
        if gone:
            self._letting_go = True
            self.let_go(gone, self._gone)
        elif self.assigned - self.owned:
            self.take(self.assigned - self.owned)

    def _gone(self) -> None:
        self._letting_go = False
        self._go_on()


class ClassicClient(Client):
    """Of a group that one of its members divides. One all of whose ways are cooperative reads on meanwhile."""

    kind = "classic"

    def __init__(
        self, world: World, name: str, wants: set[str], instance: str | None = None, ways: tuple[str, ...] = ("range",)
    ) -> None:
        self.ways = ways
        self._eager = any(not way.startswith("cooperative") for way in ways)
        self._member = False
        super().__init__(world, name, wants, instance)
        self._rejoin()
        self._beat()

    request_ms = REBALANCE_MS + 3000

    def want(self, wants: set[str]) -> None:
        """Other topics from now on."""
        self.world.say(self, "wants", sorted(wants))
        self.wants = wants
        if self._member:
            self._rejoin()

    def leave(self) -> None:
        """As a process that is stopped in order; a static one says nothing."""
        self.world.say(self, "leaves")
        self._member = False
        self.let_go(set(self.owned), self._left)

    def _left(self) -> None:
        member_id = self.member_id
        if self.instance is None and member_id:
            self.ask(lambda coordinator, reply: coordinator.leave(GROUP, member_id, None), lambda _: None)
        self._over()

    def _rejoin(self) -> None:
        """Eager ones let go of everything first."""
        self._member = False
        if self._eager and self.owned:
            self.let_go(set(self.owned), self._join)
        else:
            self._join()

    def _join(self) -> None:
        if self.is_over:
            return
        owned = sorted(map(self.world.name_of, self.owned))
        metadata = encode_subscription(Subscription(sorted(self.wants), owned, self.epoch))
        joining = Joining(
            self.member_id, self.instance, self.name, "", SESSION_MS, REBALANCE_MS, "consumer",
            [(way, metadata) for way in self.ways], must_have_id=True,
        )  # fmt: skip
        self.ask(lambda coordinator, reply: coordinator.join(GROUP, joining, reply), self._joined)

    def _joined(self, said: Any) -> None:
        if self.is_over:
            return
        error = said if isinstance(said, GroupError) else said.error if said is not None else None
        if said is None or error is not None:
            if isinstance(error, MemberIdRequired):
                self.member_id = error.member_id
            elif error is not None:
                self._forget(error)
            self.world.later(50, self._join)
            return
        assert isinstance(said, Joined)
        self.member_id = said.member_id
        shares = self._divide(said) if said.leader == said.member_id else {}
        self.ask(
            lambda coordinator, reply: coordinator.sync(
                GROUP, said.member_id, self.instance, said.generation, "consumer", said.protocol, shares, reply
            ),
            lambda synced: self._synced(said.generation, synced),
        )

    def _forget(self, error: GroupError) -> None:
        self.world.say(self, "hears", type(error).__name__, error)
        if type(error).__name__ in ("UnknownMember", "IllegalGeneration", "FencedInstance"):
            self.forget()
            if type(error).__name__ != "IllegalGeneration":
                self.member_id = ""
            if type(error).__name__ == "FencedInstance":
                self.die()

    def _divide(self, joined: Joined) -> dict[str, bytes]:
        members = {member_id: decode_subscription(metadata) for member_id, _, metadata in joined.members}
        topics = self.world.topics
        owners: dict[Partition, tuple[int, str]] = {}
        for member_id, said in members.items():
            for place in said.owned:
                owners[place] = max(owners.get(place, (-1, "")), (said.generation, member_id))
        shares: dict[str, list[Partition]] = {member_id: [] for member_id in members}
        for name in sorted({name for said in members.values() for name in said.topics}):
            if name not in topics:
                continue
            who = sorted(member_id for member_id, said in members.items() if name in said.topics)
            for number in range(len(topics[name].partitions)):
                to = who[number * len(who) // len(topics[name].partitions)]
                owner = owners.get((name, number), (0, to))[1]
                if joined.protocol.startswith("cooperative") and owner != to:
                    continue  # with the next generation
                shares[to].append((name, number))
        return {member_id: encode_assignment(share) for member_id, share in shares.items()}

    def _synced(self, generation: int, said: Any) -> None:
        if self.is_over:
            return
        error = said if isinstance(said, GroupError) else said.error if said is not None else None
        if said is None or error is not None:
            if error is not None and not isinstance(error, RebalanceInProgress):
                self._forget(error)
            self.world.later(50, self._rejoin)
            return
        assert isinstance(said, Synced)
        share = {(self.world.topics[name].id, number) for name, number in decode_assignment(said.assignment)}
        gone, missed = self.owned - share, generation != self.epoch + 1
        self.epoch, self._member = generation, True
        self.world.say(self, "generation", generation, "reads", sorted(number for _, number in share))
        if gone and missed:
            # The others divided without it, by what it had said long ago: what it had may be somebody else's already.
            self.owned -= gone
            for place in gone:
                self.positions.pop(place, None)
            gone = set()
        if gone:
            self._member = False
            self.take(share - self.owned)
            self.let_go(gone, self._rejoin)
        else:
            self.take(share - self.owned)

    def _beat(self) -> None:
        if self.is_over:
            return
        self.world.later(500, self._beat)
        if not self._member:
            return
        member_id, generation = self.member_id, self.epoch

        def beat(coordinator: Coordinator, reply: Callable[[Any], None]) -> None:
            coordinator.heartbeat(GROUP, member_id, self.instance, generation)
            reply(Beaten(None))

        self.ask(beat, self._beaten)

    def _beaten(self, said: Any) -> None:
        if isinstance(said, GroupError) and self._member and not self.is_over:
            self._member = False
            if not isinstance(said, RebalanceInProgress):
                self._forget(said)
            if not self.is_over:
                self._rejoin()
