"""What clients were promised and given, and what must follow from it.

1  what was confirmed is in the committed log of each place it went to, and comes in the end unless it was settled
2  one process appends in one epoch                                                    (`truth.py`: 2 to 5, 7)
3  replicas have equal bytes below their watermarks
4  a leader has all that was committed before it, and readers get nothing else
5  watermarks never fall
6  queues give out what is committed and not settled; what was given out before a leader comes marked from the next;
   no message comes unmarked twice; those of one publisher come in order; none before it is due
7  one broker serves a log at a time
8  when faults stop, all comes together
9  group offsets are what was committed last
10 no broker takes for unknown what the catalog names
11 what was published in steps is once wherever it belongs                                       (`steps.py`)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.brokers.truth import Truth, WatchedLog

if TYPE_CHECKING:
    from routing.queues.queue import Queue
    from tests.simulation.brokers.world import World

IN_ORDER = ("plain", "shared")
TTL_S = 3.0
DYING, DEAD = "dying", "dead"


@dataclass(slots=True)
class Message:
    """One, as its publisher knows it."""

    publisher: str
    number: int
    queues: tuple[str, ...]
    topic: bool
    published_s: float
    due_s: float
    state: str = "sent"


class Ledger:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.messages: dict[bytes, Message] = {}
        self.homes: dict[str, str] = {}
        """The directory of each queue's home."""
        self.topic = ""
        """The directory of the topic's log."""
        self.ids: dict[str, int] = {}
        """Of queues."""
        self.dead: set[bytes] = set()
        """What clients have rejected where that makes a dead letter."""
        self.done: set[tuple[str, bytes]] = set()
        """Copies that a client has acknowledged, or took without."""
        self.unmarked: set[tuple[str, bytes]] = set()
        self.letters: Counter[bytes] = Counter()
        """Dead letters that came unmarked."""
        self.given_by: dict[tuple[int, int], object] = {}
        """By which leadership a queue's offset was given out last; that of a process may last for several epochs."""
        self.last: dict[tuple[str, str], int] = defaultdict(lambda: -1)
        self.confirmed = self.refused = self.delivered = self.marked = self.read = 0

    # ---- publishers

    def sent(self, body: bytes, message: Message) -> None:
        """A client has published it."""
        self.messages[body] = message

    def was_confirmed(self, body: bytes) -> None:
        """A client was told that it is safe."""
        message = self.messages[body]
        if message.state != "sent":
            return
        message.state = "confirmed"
        self.confirmed += 1
        places = [self.homes[queue] for queue in message.queues] + [self.topic] * message.topic
        for place in places:
            if body not in self.world.truths[place].offsets_of:
                self.world.fail(f"1: {body!r} is confirmed and not committed in {place}")

    def was_refused(self, body: bytes) -> None:
        """A client was told that it may be lost."""
        if self.messages[body].state == "confirmed":
            self.world.fail(f"1: {body!r} is refused after it was confirmed")
        self.messages[body].state = "refused"
        self.refused += 1

    # ---- leaders

    def given(self, log: WatchedLog, queue: Queue, bodies: list[bytes], offsets: list[int], redelivered: bool) -> None:
        """A leader gives messages of a queue out. What comes back unseen from another broker may come out of order."""
        queue_id = queue.id
        truth: Truth = log.truth
        truth.serves(log)
        settled, leadership = truth.settled[queue_id], queue.partition
        for body, offset in zip(bodies, offsets, strict=True):
            where = f"{log.process.name} gives {bytes(body)!r} out, offset {offset} of {log.directory},"
            if offset not in truth.offsets_of.get(bytes(body), ()):
                self.world.fail(f"6: {where} which is not committed")
            if offset in settled:
                self.world.fail(f"6: {where} which was settled")
            if self.given_by.get((queue_id, offset), leadership) is not leadership and not redelivered:
                self.world.fail(f"6: {where} unmarked, which an earlier leader gave out")
            if queue.name in IN_ORDER and not redelivered and (queue_id, offset) not in self.given_by:
                message = self.messages[bytes(body)]
                key = (queue.name, message.publisher)
                if self.last[key] > message.number:
                    self.world.fail(f"6: {where} after {self.last[key]} of the same publisher")
                self.last[key] = message.number
            self.given_by[queue_id, offset] = leadership

    # ---- consumers

    def got(self, queue: str, body: bytes, redelivered: bool) -> None:
        """A client has got a message."""
        message = self.messages[body]
        now_s = self.world.agenda.now_s
        self.delivered += 1
        self.marked += redelivered
        if queue == DEAD and DYING in message.queues:
            if body not in self.dead and now_s < message.published_s + TTL_S:
                self.world.fail(f"6: {body!r} is a dead letter, and nobody has rejected it")
        elif queue not in message.queues:
            self.world.fail(f"6: {body!r} comes from {queue}, was published to {message.queues}")
        if now_s < message.due_s - 0.002:
            self.world.fail(f"6: {body!r} comes at {now_s:.3f}, is due at {message.due_s:.3f}")
        if redelivered:
            return
        if queue == DEAD:  # a crash may leave copies and the original: as many as there are in the log
            copies = len(self.world.truths[self.homes[queue]].offsets_of[body])
            self.letters[body] += 1
            if self.letters[body] > copies:
                self.world.fail(f"6: {body!r} comes from {queue} {self.letters[body]} times, was put there {copies}")
        elif (queue, body) in self.unmarked:
            self.world.fail(f"6: {body!r} comes from {queue} twice and is not marked")
        self.unmarked.add((queue, body))

    def settled(self, queue: str, body: bytes) -> None:
        """A client has acknowledged it, or has not to."""
        self.done.add((queue, body))

    def rejected(self, queue: str, body: bytes) -> None:
        """A client does not want it."""
        if queue == DYING:
            self.dead.add(body)
        else:
            self.settled(queue, body)

    def there(self, queue: str) -> int | None:
        """How many messages of a queue are committed and not settled; None where that is not known."""
        if queue in (DYING, DEAD):
            return None
        truth = self.world.truths[self.homes[queue]]
        settled, offsets_of = truth.settled[self.ids[queue]], truth.offsets_of
        bodies = (body for body, message in self.messages.items() if queue in message.queues)
        return sum(offset not in settled for body in bodies for offset in offsets_of.get(body, ()))

    # ---- in the end

    def lacking(self) -> list[str]:
        """What was confirmed and came to nobody who settled it."""
        found = []
        for body, message in self.messages.items():
            if message.state == "confirmed":
                for queue in message.queues:
                    places = (DYING, DEAD) if queue == DYING else (queue,)
                    if queue != "mortal" and not any((place, body) in self.done for place in places):
                        found.append(f"{body!r} of {queue}")
        return found
