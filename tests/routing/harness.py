"""An engine on a disk in memory, and clients that write down what it tells them.

Nothing here sleeps: `Engine.until` looks at a condition whenever a turn has ended; what the disk completes ends one.
A crash is a picture of the disk (`MemoryFiles.crash`) taken while the engine runs; another engine is then opened on it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import Files, MemoryFiles
from routing.broker import Broker, open_broker
from routing.config import BrokerConfig
from routing.errors import BrokerError
from routing.message import NeutralProperties, Properties, Slab, register_decoder
from routing.queues.homes.queue_partition import QueuePartition
from routing.session import Consumer, Got, Outcome, Session

PROTOCOL = "headers-as-json"
"""Raw properties of this protocol are the headers as JSON."""


def _decode(raw: bytes) -> NeutralProperties:
    return NeutralProperties(headers=json.loads(raw) if raw else {})


register_decoder(PROTOCOL, _decode)


killed = MemoryFiles.kill

PERSISTENT = Properties(PROTOCOL, b"", persistent=True)
TRANSIENT = Properties(PROTOCOL, b"", persistent=False)


def with_headers(headers: dict[str, Any], *, persistent: bool = True) -> Properties:
    """Properties with application headers."""
    return Properties(PROTOCOL, json.dumps(headers).encode(), persistent=persistent)


@dataclass(slots=True, frozen=True)
class Delivery:
    """One message as a client got it."""

    tag: str
    id: int
    body: str
    redelivered: bool
    exchange: str
    key: str


class Client:
    """A session with its sink; `events` has confirms, refusals, returns and cancellations in their order."""

    def __init__(self, engine: Engine, owner: object) -> None:
        self.engine = engine
        self.deliveries: list[Delivery] = []
        self.events: list[tuple[Any, ...]] = []
        self.open = True
        self.on_confirm: Callable[[int], None] | None = None
        self.session: Session = engine.broker.session(self, protocol=PROTOCOL, owner=owner)

    # --- the sink ----------------------------------------------------------------------

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        assert self.open
        assert not self.session.closed
        assert 0 <= start < stop <= len(slab.bodies)
        for number, body in enumerate(slab.bodies[start:stop]):
            text = bytes(body).decode()
            self.deliveries.append(
                Delivery(consumer.tag, first_id + number, text, redelivered, slab.exchange, slab.routing_key)
            )

    def confirm(self, up_to: int) -> None:
        self.events.append(("confirm", up_to))
        if self.on_confirm is not None:
            self.on_confirm(up_to)

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        self.events.append(("refuse", first, last))

    def returned(self, slab: Slab, reason: str) -> None:
        self.events.append(("returned", [body.decode() for body in slab.bodies], reason))

    def cancelled(self, consumer: Consumer) -> None:
        self.events.append(("cancelled", consumer.tag))

    def writable(self) -> bool:
        return self.open

    # --- what a client does ------------------------------------------------------------

    def publish(
        self,
        key: str,
        *bodies: object,
        exchange: str = "",
        properties: Properties = PERSISTENT,
        mandatory: bool = False,
        confirm: bool = False,
    ) -> None:
        """One slab."""
        slab = Slab(exchange, key, properties, [str(body).encode() for body in bodies])
        self.session.publish(slab, mandatory=mandatory, confirm=confirm)

    async def publish_safely(self, key: str, *bodies: object, exchange: str = "") -> None:
        """Publish with confirms and wait for them."""
        self.publish(key, *bodies, exchange=exchange, confirm=True)
        wanted = self.session.confirms.published
        self.engine.turn()
        await self.engine.until(lambda: self.confirmed >= wanted)

    async def consume(
        self, queue: str, *, tag: str = "c", no_ack: bool = False, exclusive: bool = False, **arguments: Any
    ) -> Consumer:
        """Subscribe; deliveries come with the next turn."""
        return await self.session.consume(queue, tag=tag, no_ack=no_ack, exclusive=exclusive, **arguments)

    def take(self) -> list[Delivery]:
        """End the turn; what was delivered since the last call."""
        self.engine.turn()
        taken, self.deliveries = self.deliveries, []
        return taken

    def take_bodies(self) -> list[str]:
        """As `take`, the bodies alone."""
        return [delivery.body for delivery in self.take()]

    def ack(self, first: int, last: int | None = None) -> None:
        """Settle deliveries."""
        self.session.settle(first, first if last is None else last, Outcome.ACK)

    def requeue(self, first: int, last: int | None = None) -> None:
        """Give deliveries back."""
        self.session.settle(first, first if last is None else last, Outcome.REQUEUE)

    @property
    def confirmed(self) -> int:
        """The highest sequence number confirmed."""
        return max((event[1] for event in self.events if event[0] == "confirm"), default=0)


def body_of(got: Got) -> str:
    """The one message of an answer to a get."""
    return bytes(got.slab.bodies[got.index]).decode()


class Engine:
    """A running broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._turned = trio.Event()
        broker.after_turn = self._turn_ended

    def _turn_ended(self) -> None:
        self._turned.set()

    def turn(self) -> None:
        """End the turn."""
        self.broker.end_turn()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for turns until the condition holds."""
        with trio.fail_after(20):
            while not condition():
                self._turned = trio.Event()
                await self._turned.wait()

    def client(self, owner: object = None) -> Client:
        """A new session, by default of a connection of its own."""
        return Client(self, owner if owner is not None else object())

    async def queue(self, name: str, *, durable: bool = True, **options: Any) -> None:
        """Declare a queue."""
        await self.broker.declare_queue(name, durable=durable, **options)

    async def bind(self, exchange: str, queue: str, pattern: str = "", **options: Any) -> None:
        """Bind a queue."""
        await self.broker.bind("queue", queue, exchange, pattern, **options)

    def home(self, queue: str) -> QueuePartition:
        """The partition of a queue."""
        return self.broker.topology.queues[queue].partition

    def count(self, queue: str) -> int:
        """Messages ready in a queue."""
        return self.broker.topology.queues[queue].message_count

    async def shortened(self, home: QueuePartition, beyond: int) -> None:
        """Checkpoints are taken of a partition, and the dead beginning of its log goes, up to more than this offset."""
        for _ in range(2000):  # a disk takes its time, whatever the test's clock says
            self.broker.checkpoints.take(home)
            home.delete_dead_prefix()
            await wait_all_tasks_blocked(0.01)
            if home.log.log_start_offset > beyond:
                return
        raise AssertionError(f"the log begins at {home.log.log_start_offset} still")

    async def synced(self) -> None:
        """All that was done so far is durable."""
        self.turn()
        logs = [partition.log for partition in self.broker.topology.stripes]
        finished: list[object] = []
        self.broker.commits.when_committed([(log, log.log_end_offset) for log in logs], finished.append)
        await self.until(lambda: bool(finished))
        assert finished == [None]

    async def drain(self, queue: str) -> list[tuple[str, bool]]:
        """Take everything out of a queue: bodies and redelivered flags."""
        client = self.client()
        out = []
        while (got := await client.session.get(queue, no_ack=True)) is not None:
            out.append((body_of(got), got.redelivered))
        self.turn()
        client.session.close()
        return out


async def passing(clock: MockClock, seconds: float) -> None:
    """Let time go by."""
    clock.jump(seconds)
    await wait_all_tasks_blocked()


def wall_clock_ms() -> int:
    # Rounded as the engine's own clock is: tenths of a second add up to a little less than whole milliseconds.
    return int(1_800_000_000_000 + trio.current_time() * 1000)


@asynccontextmanager
async def engine(files: Files, **config: Any) -> AsyncIterator[Engine]:
    """Open an engine on `files`; leaving stops it cleanly. Its wall clock goes with trio's."""
    settings = {
        "stripes": 2,
        "flush_retry_interval_ms": 5,
        "housekeeping_interval_ms": 3_600_000,
        "settle_delay_ms": 0,
    } | config
    async with open_broker(files, BrokerConfig(**settings), wall_clock_ms=wall_clock_ms) as broker:
        yield Engine(broker)
