"""What the engine costs per message between the codecs: routing, home partition, queue, session, settlement, confirm.

    python -m benchmarks.engine

One publisher session, one queue, one consumer session with a sink that drops everything; files are in memory. A turn
brings one slab; durable turns include the record batch with its CRC, and messages are settled a hundred at a time.
"""

from __future__ import annotations

import time

import trio

from core_log.memory_files import MemoryFiles
from routing.broker import Broker, open_broker
from routing.config import BrokerConfig
from routing.errors import BrokerError
from routing.message import Properties, Slab
from routing.session import Consumer, Outcome

MESSAGES = 400_000
BODY = bytes(100)


class CountingSink:
    """Takes deliveries and confirms, and remembers only the last."""

    def __init__(self) -> None:
        self.delivered = 0
        self.confirmed = 0

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        self.delivered = first_id + stop - start - 1

    def confirm(self, up_to: int) -> None:
        self.confirmed = up_to

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        raise AssertionError("nothing fails here")

    def returned(self, slab: Slab, reason: str) -> None:
        raise AssertionError("there is a queue")

    def cancelled(self, consumer: Consumer) -> None:
        raise AssertionError("nobody deletes the queue")

    def writable(self) -> bool:
        return True


async def measure(broker: Broker, *, durable: bool, slab_messages: int, queues: int = 1) -> float:
    """Microseconds per delivery."""
    name = f"{'durable' if durable else 'transient'}-{slab_messages}-{queues}"
    await broker.declare_exchange(name, "fanout")
    sinks = []
    sessions = []
    for index in range(queues):
        await broker.declare_queue(f"{name}-{index}", durable=durable)
        await broker.bind("queue", f"{name}-{index}", name, "")
        sink = CountingSink()
        session = broker.session(sink, protocol="bench", owner=sink)
        if durable:
            session.set_prefetch(300, per_session=False)
        await session.consume(f"{name}-{index}", tag="c", no_ack=not durable)
        sinks.append(sink)
        sessions.append(session)
    publishing = CountingSink()
    publisher = broker.session(publishing, protocol="bench", owner=publishing)
    properties = Properties("bench", b"", persistent=durable)
    bodies = [BODY] * slab_messages
    turns = max(1, MESSAGES // slab_messages // queues)
    began = time.perf_counter()
    for turn in range(turns):
        publisher.publish(Slab(name, "key", properties, bodies, len(BODY) * slab_messages), confirm=durable)
        broker.end_turn()
        if durable:
            for session, sink in zip(sessions, sinks, strict=True):
                if session.outstanding >= 100:
                    session.settle_up_to(sink.delivered, Outcome.ACK)
            broker.end_turn()
            if turn % 16 == 0:
                await broker.flusher.wait_for_room()
                await trio.lowlevel.checkpoint()
    seconds = time.perf_counter() - began
    for session in (*sessions, publisher):
        session.close()
    return seconds / (turns * slab_messages * queues) * 1e6


async def main() -> None:
    """Print the table."""
    async with open_broker(MemoryFiles(), BrokerConfig()) as broker:
        print("| messages in a slab | transient, us | durable, us | transient to 10 queues, us a delivery |")
        print("|---|---|---|---|")
        for slab_messages in (1, 10, 100, 1000):
            transient = await measure(broker, durable=False, slab_messages=slab_messages)
            durable = await measure(broker, durable=True, slab_messages=slab_messages)
            fanout = await measure(broker, durable=False, slab_messages=slab_messages, queues=10)
            print(f"| {slab_messages} | {transient:.2f} | {durable:.2f} | {fanout:.2f} |")


if __name__ == "__main__":
    trio.run(main)
