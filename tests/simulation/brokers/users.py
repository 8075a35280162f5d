"""Clients: sessions at a broker, as its adapters have them. They end with its process."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import trio

from core_log.absent_log import AbsentLog
from core_log.errors import OffsetOutOfRange
from core_log.record_batch import parse_header
from routing.errors import BrokerError
from routing.facts import pack
from routing.message import Properties, Slab
from routing.session import Consumer, Outcome
from tests.routing.harness import PROTOCOL
from tests.simulation.brokers.ledger import Message
from tests.simulation.brokers.truth import WatchedLog

if TYPE_CHECKING:
    from tests.simulation.brokers.process import Process
    from tests.simulation.brokers.world import World

QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared": {},
    "levels": {"x-max-priority": 3},
    "late": {"x-delayed": True},
    "mortal": {"x-message-ttl": 3000},
}
HARSH_QUEUES: dict[str, dict[str, Any]] = QUEUES | {
    "dying": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 3000},
    "dead": {},
}
"""Of harsh schedules: what is rejected in one, or gets too old, comes to the other."""
PERSISTENT = Properties(PROTOCOL, b"", persistent=True)


class User:
    """A session and its sink."""

    def __init__(self, process: Process, name: str) -> None:
        self.process, self.world, self.name = process, process.world, name
        self.broker = process.broker
        self.dice: random.Random = self.world.agenda.dice
        self.session = self.broker.session(self, protocol=PROTOCOL, owner=self)
        self.published: dict[int, bytes] = {}
        self.pending: list[tuple[int, str, bytes]] = []
        """Delivery id, queue, body of what it has not settled."""
        self.numbers = 0

    # ---- the sink

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        if self.process.ended:
            return
        for number, body in enumerate(slab.bodies[start:stop]):
            self._got(consumer.queue_name, first_id + number, bytes(body), redelivered, consumer.no_ack)

    def _got(self, queue: str, delivery_id: int, body: bytes, redelivered: bool, no_ack: bool) -> None:
        self.process.note(f"{self.name} gets {body.rstrip()!r} of {queue}{' again' * redelivered}")
        self.world.ledger.got(queue, body, redelivered)
        if no_ack:
            self.world.ledger.settled(queue, body)
        else:
            self.pending.append((delivery_id, queue, body))

    def confirm(self, up_to: int) -> None:
        if self.process.ended:
            return
        for number in [number for number in self.published if number <= up_to]:
            self.world.ledger.was_confirmed(self.published.pop(number))

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        if self.process.ended:
            return
        self.process.note(f"{self.name} is refused {first} to {last}")
        for number in range(first, last + 1):
            self.world.ledger.was_refused(self.published.pop(number))

    def returned(self, slab: Slab, reason: str) -> None:
        self.world.fail(f"6: {slab.bodies} are returned: {reason}")

    def cancelled(self, consumer: Consumer) -> None:
        if not self.process.ended:
            self.process.note(f"{self.name} is cancelled")

    def writable(self) -> bool:
        return True

    # ---- what it does

    def publish(self) -> None:
        """A slab to a queue, or to several and a topic."""
        dice, now_s = self.dice, self.world.agenda.now_s
        bodies = []
        facts = None
        target = dice.choice([*(name for name in self.world.queues if name != "dead"), "", "", "plain"])
        count = dice.choice([1, 1, 2, 5, 20])
        due_s = now_s
        if target == "levels":
            facts = [pack(True, dice.randrange(4)) for _ in range(count)]
        elif target == "late" and dice.random() < 0.7:
            delay_ms = dice.randrange(2000)
            due_s, facts = now_s + delay_ms / 1000, [pack(True, delay_ms=delay_ms)] * count
        for _ in range(count):
            self.numbers += 1
            bodies.append(b"%s-%d%s" % (self.name.encode(), self.numbers, b" " * dice.choice([0, 0, 200])))
        slab = Slab("" if target else "all", target, PERSISTENT, bodies, facts=facts)
        before = self.session.confirms.published
        for number, body in enumerate(bodies, before + 1):
            self.published[number] = body
            queues = (target,) if target else ("plain", "shared")
            message = Message(self.name, self.numbers - count + number - before, queues, not target, now_s, due_s)
            self.world.ledger.sent(body, message)
        self.process.note(f"{self.name} publishes {count} to {target or 'all'}, from {before + 1}")
        self.session.publish(slab, confirm=True, mandatory=True)
        self.broker.end_turn()

    def settle(self) -> None:
        """Say something of what it has."""
        dice, pending = self.dice, self.pending
        if not pending:
            return
        outcome = dice.choice([Outcome.ACK] * 7 + [Outcome.REQUEUE] * 2 + [Outcome.DISCARD])
        if dice.random() < 0.5:
            chosen = [pending.pop(dice.randrange(len(pending)))]
        else:
            stop = dice.randrange(len(pending)) + 1
            chosen, pending[:stop] = pending[:stop], []
        for delivery_id, queue, body in chosen:
            if outcome is Outcome.DISCARD:
                self.world.ledger.rejected(queue, body)
            elif outcome is Outcome.ACK:
                self.world.ledger.settled(queue, body)
            self.session.settle(delivery_id, delivery_id, outcome)
        self.process.note(f"{self.name} {outcome.value}s {len(chosen)}, from {chosen[0][2]!r}")
        self.broker.end_turn()

    def close(self) -> None:
        """Leave."""
        self.session.close()
        self.pending.clear()
        self.broker.end_turn()


async def publishes(world: World, process: Process, number: int) -> None:
    """A publisher: now and then a slab, and a new connection."""
    user = User(process, f"p{process.name.partition(' ')[2]}.{number}")
    while not world.quiet:
        await trio.sleep(world.agenda.dice.expovariate(1 / world.pause_s))
        if world.quiet:
            break
        user.publish()
        with trio.move_on_after(5):
            await process.broker.wait_for_room()


async def consumes(world: World, process: Process, number: int) -> None:
    """A consumer, again and again another one."""
    dice, agenda = world.agenda.dice, world.agenda
    count = 0
    while not world.quiet:
        await trio.sleep(dice.expovariate(1 / 0.1))
        count += 1
        user = User(process, f"c{process.name.partition(' ')[2]}.{number}.{count}")
        queue = dice.choice([*world.queues, "plain"])
        try:
            user.session.set_prefetch(dice.choice([1, 3, 10, 100]), per_session=dice.random() < 0.3)
            no_ack = dice.random() < 0.1
            user.process.note(f"{user.name} consumes {queue}")
            consumer = await user.session.consume(queue, tag="t", no_ack=no_ack)
            process.broker.end_turn()
            until_s = agenda.now_s + dice.uniform(0.2, 4)
            while agenda.now_s < until_s and not world.quiet:
                await trio.sleep(dice.expovariate(1 / 0.05))
                user.settle()
            if dice.random() < 0.5:
                user.session.cancel(consumer)
                process.broker.end_turn()
                await trio.sleep(dice.uniform(0, 0.1))
                user.settle()
        except BrokerError as error:
            process.note(f"{user.name}: {error}")
        user.close()


async def gets(world: World, process: Process, number: int) -> None:
    """One message at a time."""
    dice = world.agenda.dice
    user = User(process, f"g{process.name.partition(' ')[2]}.{number}")
    while not world.quiet:
        await trio.sleep(dice.expovariate(1 / 0.2))
        queue = dice.choice([*world.queues])
        try:
            got = await user.session.get(queue, no_ack=False)
        except BrokerError as error:
            process.note(f"{user.name}: {error}")
            continue
        if got is not None:
            user._got(queue, got.delivery_id, bytes(got.slab.bodies[got.index]), got.redelivered, False)
        process.broker.end_turn()
        user.settle()
    user.close()


async def reads(world: World, process: Process, number: int) -> None:
    """A reader of the topic, wherever it is led here."""
    while True:
        await trio.sleep(world.agenda.dice.expovariate(1 / 0.3))
        await read(world, process)


async def read(world: World, process: Process) -> None:
    """Once, from anywhere."""
    dice = world.agenda.dice
    topic = process.broker.topics.get("t")
    partition = topic.partitions[0] if topic is not None else None
    if partition is None or isinstance(partition.log, AbsentLog) or partition.leadership is None:
        return
    if partition.leadership.refusal() is not None:
        return
    log: Any = partition.log
    assert isinstance(log, WatchedLog)
    position = dice.randrange(log.log_start_offset, log.high_watermark + 1)
    try:
        batches = log.read(position, dice.choice([1, 2000, 100_000]))
        if batches is None:
            batches = await log.read_cold(position, 2000)
    except (OffsetOutOfRange, OSError):
        return
    if partition.leadership.refusal() is not None:
        return
    log.truth.serves(log)
    for batch in batches:
        known = log.truth.committed.get(parse_header(batch).base_offset)
        if known is None or known[2] != bytes(batch):
            world.fail(f"4: {process.name}: a reader got what is not committed, at {position} of the topic")
        world.ledger.read += 1


async def asks_for_messages(world: World, process: Process, number: int) -> None:
    """One of each queue, at once."""
    user = User(process, f"q{process.name.partition(' ')[2]}.{number}")
    queues = list(world.queues)
    world.agenda.dice.shuffle(queues)
    for queue in queues:
        try:
            got = await user.session.get(queue, no_ack=False)
        except BrokerError as error:
            process.note(f"{user.name}: {error}")
            continue
        if got is not None:
            user._got(queue, got.delivery_id, bytes(got.slab.bodies[got.index]), got.redelivered, False)
    process.broker.end_turn()
    await trio.sleep(world.agenda.dice.expovariate(1 / 0.1))
    user.settle()
    user.close()


async def asks_for_counts(world: World, process: Process) -> None:
    """How many messages there are, of each queue. A leader counts what was in its log when it began to lead, before all
    of it is committed.
    """
    ledger = world.ledger
    for queue in world.queues:
        truth = world.truths[ledger.homes[queue]]
        there, before, end = ledger.there(queue), truth.committed_end, _end_of(world, truth.name)
        try:
            count = (await process.broker.check_queue(queue)).message_count
        except BrokerError as error:
            process.note(f"the count of {queue}: {error}")
            continue
        end = max(end, truth.committed_end, _end_of(world, truth.name))
        if there is not None and count > there + end - before:
            world.fail(f"6: {process.name} counts {count} messages in {queue}, there were {there}")


def _end_of(world: World, directory: str) -> int:
    """How far any broker's log reaches."""
    there = [process.logs.get(directory) for process in world.processes()]
    return max((log.log_end_offset for log in there if log is not None), default=0)
