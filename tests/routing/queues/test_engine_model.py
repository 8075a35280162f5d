"""The engine against a model, through random lives: clients come and go, disks fail, processes stop, crash, are killed.

The model of a queue is two sets of message numbers, ready and returned, and the rules are checked at every delivery:
returned messages go first, each set in order, and the redelivered flag says exactly whether the message was delivered
before. After a crash the model asks what is there: everything that was confirmed and not settled must be, nothing that
was settled durably may be, in order, once, and marked. A seed reproduces the operations, though not how the disk's
threads interleave with them.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable

import pytest
import trio

from core_log.files import FaultyFiles, MemoryFiles
from routing.message import Slab
from routing.queues import fact_columns
from routing.queues.homes import live_counts, moves, relocation, standby
from routing.session import Consumer
from tests.routing.harness import PERSISTENT, TRANSIENT, Client, Engine, engine, killed
from tests.support.seeds import seeds

QUEUES = {"d0": True, "d1": True, "d2": True, "t0": False}
CONFIG = {
    "stripes": 2,
    "queue_segment_bytes": 6000,
    "stripe_cache_bytes": 3000,
    "transient_memory_bytes": 3000,
    "cold_read_bytes": 1000,
    "checkpoint_interval_bytes": 5000,
}
STEPS = 220


def number_of(body: bytes | str) -> int:
    text = body if isinstance(body, str) else bytes(body).decode()
    return int(text.partition(":")[0])


class QueueModel:
    """What a queue must hold; `lost` are settled messages whose settlement may not be durable yet."""

    def __init__(self) -> None:
        self.ready: set[int] = set()
        self.returned: set[int] = set()
        self.out: set[int] = set()
        self.settled: set[int] = set()

    def delivered(self, number: int, redelivered: bool) -> None:
        source = self.returned or self.ready
        assert source, f"{number} was delivered from an empty queue"
        assert number == min(source)
        assert redelivered == (source is self.returned)
        source.remove(number)
        self.out.add(number)

    def settle(self, number: int) -> None:
        self.out.remove(number)
        self.settled.add(number)

    def give_back(self, number: int) -> None:
        self.out.remove(number)
        self.returned.add(number)


class ModelClient(Client):
    """A client that tells the model of everything it gets."""

    def __init__(self, engine: Engine, models: dict[str, QueueModel]) -> None:
        super().__init__(engine, object())
        self.models = models
        self.held: dict[int, tuple[str, int]] = {}
        self.sequence: dict[int, int] = {}

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        model = self.models[consumer.queue_name]
        for at, body in enumerate(slab.bodies[start:stop]):
            number = number_of(body)
            model.delivered(number, redelivered)
            if consumer.no_ack:
                model.settle(number)
            else:
                self.held[first_id + at] = (consumer.queue_name, number)

    def cancelled(self, consumer: Consumer) -> None:
        """The queue was deleted; what is held of it is of no consequence any more."""


class Life:
    """One engine's history under one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.files = FaultyFiles(MemoryFiles())
        self.models = {name: QueueModel() for name in QUEUES}
        self.published = 0
        self.targets: dict[int, tuple[str, ...]] = {}
        self.confirmed: set[int] = set()
        self.clients: list[ModelClient] = []
        self.failing = False
        self.steps = 0
        self.running: Engine

    # --- one process ---------------------------------------------------------------------

    async def live(self) -> str:
        """Run until something ends the process; what it was."""
        async with engine(self.files, **CONFIG) as self.running:
            await self.declare()
            self.adopt_contents_after_crash()
            while self.steps < STEPS:
                self.steps += 1
                act = self.dice.choices(list(self.acts), [weight for _, weight in self.acts.values()])[0]
                ending = await self.acts[act][0](self)
                if ending is not None:
                    self.close_clients_in_model()
                    return ending
            await self.heal()
            await self.close_all()
            await self.check_all()
        return "end"

    async def declare(self) -> None:
        for name, durable in QUEUES.items():
            await self.running.queue(name, durable=durable)
            await self.running.bind("amq.fanout", name)

    def adopt_contents_after_crash(self) -> None:
        for name, model in self.models.items():
            queue = self.running.broker.topology.queues[name]
            assert queue.message_count == len(model.ready) + len(model.returned), name

    def close_clients_in_model(self) -> None:
        for client in self.clients:
            self.note_confirms(client)
            for name, number in client.held.values():
                if number in self.models[name].out:
                    self.models[name].give_back(number)
        self.clients.clear()
        for name, durable in QUEUES.items():
            if not durable:
                self.models[name] = QueueModel()

    def note_confirms(self, client: ModelClient) -> None:
        refused: set[int] = set()
        for event in client.events:
            if event[0] == "refuse":
                refused |= set(range(event[1], event[2] + 1))
        for sequence, number in client.sequence.items():
            if sequence <= client.confirmed and sequence not in refused:
                self.confirmed.add(number)

    async def check_all(self) -> None:
        for name, model in self.models.items():
            drained = await self.running.drain(name)
            numbers = [number_of(body) for body, _ in drained]
            assert numbers == sorted(model.returned) + sorted(model.ready), name
            assert [flag for _, flag in drained] == [True] * len(model.returned) + [False] * len(model.ready)

    async def after_crash(self, found: MemoryFiles) -> None:
        """Look at what a crash left, and go on from there."""
        self.files = FaultyFiles(found)
        self.failing = False
        async with engine(self.files, **CONFIG) as self.running:
            for name, durable in QUEUES.items():
                if durable:
                    await self.look(name)

    async def look(self, name: str) -> None:
        model = self.models[name]
        client = self.running.client()
        there = []
        while (got := await client.session.get(name, no_ack=False)) is not None:
            assert got.redelivered
            there.append(number_of(got.slab.bodies[got.index]))
        client.session.close()
        present = model.ready | model.returned
        assert there == sorted(set(there)), name
        assert present & self.confirmed <= set(there), f"{name}: confirmed messages are lost"
        unknown = set(there) - present - model.settled
        assert not unknown, f"{name}: came back from nowhere"
        fresh = QueueModel()
        fresh.returned = set(there)
        self.models[name] = fresh

    # --- what happens --------------------------------------------------------------------

    def client(self) -> ModelClient:
        if not self.clients or (len(self.clients) < 4 and self.dice.random() < 0.1):
            client = ModelClient(self.running, self.models)
            client.session.set_prefetch(self.dice.choice([0, 1, 3, 10]), per_session=False)
            self.clients.append(client)
        return self.dice.choice(self.clients)

    async def publish(self) -> None:
        client, count = self.client(), self.dice.randint(1, 5)
        numbers = range(self.published, self.published + count)
        self.published += count
        name = self.dice.choice([*QUEUES, None])
        persistent = self.dice.random() < 0.8
        targets = [name] if name else list(QUEUES)
        for target in targets:
            self.models[target].ready.update(numbers)
        refused = self.running.broker.refused_messages
        sequence = client.session.confirms.published
        client.publish(
            name or "",
            *[f"{number}:{'x' * self.dice.choice([0, 10, 200])}" for number in numbers],
            exchange="" if name else "amq.fanout",
            properties=PERSISTENT if persistent else TRANSIENT,
            confirm=True,
        )
        if self.running.broker.refused_messages > refused:
            for target in targets:
                self.models[target].ready.difference_update(numbers)
        elif persistent:
            client.sequence.update({sequence + 1 + at: number for at, number in enumerate(numbers)})

    async def turn(self) -> None:
        self.running.turn()

    async def let_others_run(self) -> None:
        for _ in range(self.dice.randint(1, 5)):
            await trio.lowlevel.checkpoint()

    async def consume(self) -> None:
        client = self.client()
        if len(client.session.consumers) < 3:
            await client.consume(self.dice.choice(list(QUEUES)), no_ack=self.dice.random() < 0.1)

    async def cancel(self) -> None:
        client = self.client()
        if client.session.consumers:
            client.session.cancel(self.dice.choice(list(client.session.consumers)))

    async def settle(self) -> None:
        client = self.client()
        back = self.dice.random() < 0.3
        for id_ in self.dice.sample(sorted(client.held), self.dice.randint(0, len(client.held))):
            self.done_with(client, id_, back)
            (client.requeue if back else client.ack)(id_)

    def done_with(self, client: ModelClient, id_: int, back: bool) -> None:
        name, number = client.held.pop(id_)
        if number in self.models[name].out:
            (self.models[name].give_back if back else self.models[name].settle)(number)

    async def recover(self) -> None:
        client = self.client()
        for id_ in list(client.held):
            self.done_with(client, id_, True)
        client.session.recover()

    async def get(self) -> None:
        client, name, no_ack = self.client(), self.dice.choice(list(QUEUES)), self.dice.random() < 0.5
        got = await client.session.get(name, no_ack=no_ack)
        if got is not None:
            number = number_of(got.slab.bodies[got.index])
            self.models[name].delivered(number, got.redelivered)
            client.held[got.delivery_id] = (name, number)
            if no_ack:
                self.done_with(client, got.delivery_id, False)

    async def leave(self) -> None:
        client = self.client()
        self.clients.remove(client)
        for id_ in list(client.held):
            self.done_with(client, id_, True)
        client.session.close()
        self.note_confirms(client)

    async def purge(self) -> None:
        name = self.dice.choice(list(QUEUES))
        model = self.models[name]
        assert await self.running.broker.purge_queue(name) == len(model.ready) + len(model.returned)
        model.settled |= model.ready | model.returned
        model.ready.clear()
        model.returned.clear()

    async def delete_and_declare(self) -> None:
        if self.failing:
            return
        name = self.dice.choice(list(QUEUES))
        await self.running.broker.delete_queue(name)
        self.models[name] = QueueModel()
        for client in self.clients:
            client.models = self.models
        await self.declare()

    async def sync(self) -> None:
        if not self.failing:
            settled = {name: set(model.settled) for name, model in self.models.items()}
            await self.running.synced()
            for name, model in self.models.items():
                model.settled -= settled[name]

    async def keep_house(self) -> None:
        broker = self.running.broker
        for partition in broker.topology.stripes:
            broker.checkpoints.take(partition)
            partition.delete_dead_prefix()
        broker.topology.transient.delete_dead_prefix()

    async def fail(self) -> None:
        self.files.failing[self.dice.choice(["write", "sync"])] = errno.EIO
        self.failing = True

    async def heal(self) -> None:
        self.files.failing.clear()
        broker = self.running.broker
        logs = [home.log for home in (*broker.topology.led, broker.topology.transient)] + broker.storage.stores
        await self.running.until(lambda: all(log.error is None and log.job is None for log in logs))
        self.failing = False

    async def close_all(self) -> None:
        for client in self.clients:
            client.session.close()
            self.note_confirms(client)
            for name, number in client.held.values():
                if number in self.models[name].out:
                    self.models[name].give_back(number)
        self.clients.clear()
        self.running.turn()

    async def restart(self) -> str | None:
        if self.failing:
            return None
        await self.close_all()
        return "stop"

    async def crash(self) -> str:
        self.found = self.files.crash(self.dice if self.dice.random() < 0.7 else None)
        return "crash"

    async def kill(self) -> str:
        assert isinstance(self.files.inner, MemoryFiles)
        self.found = killed(self.files.inner)
        return "crash"

    acts: dict[str, tuple[Callable[[Life], Awaitable[str | None]], int]] = {}


Life.acts = {
    "publish": (Life.publish, 50), "turn": (Life.turn, 30), "let others run": (Life.let_others_run, 15),
    "consume": (Life.consume, 8), "cancel": (Life.cancel, 3), "settle": (Life.settle, 20), "recover": (Life.recover, 2),
    "get": (Life.get, 8), "leave": (Life.leave, 2), "purge": (Life.purge, 1), "delete": (Life.delete_and_declare, 2),
    "sync": (Life.sync, 4), "keep house": (Life.keep_house, 8), "fail": (Life.fail, 2), "heal": (Life.heal, 4),
    "restart": (Life.restart, 2), "crash": (Life.crash, 2), "kill": (Life.kill, 1),
}  # fmt: skip


@pytest.fixture(params=[False, True], ids=["", "stragglers"])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old segments go, and what is live in them is written again, within a short life."""
    if request.param:
        for module in (fact_columns, live_counts, moves, standby):
            monkeypatch.setattr(module, "BLOCK_BITS", 3)
        monkeypatch.setattr(relocation, "_LIVE_SHARE", 1)
        monkeypatch.setitem(CONFIG, "queue_segment_bytes", 1200)
        weights = {"keep house": 30, "let others run": 25, "settle": 30}
        for name, weight in weights.items():
            monkeypatch.setitem(Life.acts, name, (Life.acts[name][0], weight))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", seeds(12, 30))
async def test_a_random_life(seed: int) -> None:
    life = Life(seed)
    while (ending := await life.live()) != "end":
        if ending == "crash":
            await life.after_crash(life.found)
