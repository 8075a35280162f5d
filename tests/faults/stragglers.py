"""One delivery that nobody acknowledges, and millions behind it that are: how much disk that keeps.

    python -m tests.faults.stragglers [--messages 10000000] [--within-s 60] [--data-dir DIR]

Fails unless the data directory is below 100 MB within the time, the message is still there for its client, and after a
start it is the only one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import trio

from core_log.files import OsFiles
from routing.broker import Broker, open_broker
from routing.config import BrokerConfig
from routing.errors import BrokerError
from routing.message import Properties, Slab
from routing.session import Consumer, Outcome

BYTES_MAX = 100_000_000
SLAB = 500
PROPERTIES = Properties("straggler", b"", persistent=True)


class Sink:
    """Acknowledges all but the first delivery, if it is told to."""

    def __init__(self) -> None:
        self.delivered = 0

    def deliver(self, consumer: Consumer, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Count."""
        self.delivered = first_id + stop - start - 1

    def confirm(self, up_to: int) -> None:
        """Nobody waits."""

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        """The disk refuses."""
        raise RuntimeError(f"publishes {first} to {last} were refused")

    def returned(self, slab: Slab, reason: str) -> None:
        """There is a queue."""

    def cancelled(self, consumer: Consumer) -> None:
        """Nobody deletes the queue."""

    def writable(self) -> bool:
        """Always."""
        return True


def used_bytes(directory: Path) -> int:
    """What the files of a directory take."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def fill(broker: Broker, messages: int) -> tuple[Sink, object]:
    """One message is held, the others come and are acknowledged."""
    await broker.declare_queue("q", durable=True)
    sink = Sink()
    session = broker.session(sink, protocol="straggler", owner=sink)
    session.publish(Slab("", "q", PROPERTIES, [b"straggler"]))
    await session.consume("q", tag="c", no_ack=False)
    broker.end_turn()
    assert sink.delivered == 1, "it was not delivered"
    body, done = bytes(100), 1
    while done <= messages:
        session.publish(Slab("", "q", PROPERTIES, [body] * SLAB), confirm=True)
        broker.end_turn()
        if sink.delivered > done:
            session.settle(done + 1, sink.delivered, Outcome.ACK)
            done = sink.delivered
        await broker.flusher.wait_for_room()
        await trio.lowlevel.checkpoint()
    return sink, session


async def check(directory: Path, messages: int, within_s: float) -> bool:
    """See the module."""
    config = BrokerConfig(fsync="interval")
    async with open_broker(OsFiles(str(directory)), config) as broker:
        began = time.monotonic()
        _, session = await fill(broker, messages)
        print(f"{messages} messages in {time.monotonic() - began:.0f} s, {used_bytes(directory) / 1e6:.0f} MB")
        began = time.monotonic()
        while used_bytes(directory) >= BYTES_MAX and time.monotonic() - began < within_s:
            await trio.sleep(0.5)
        used, waited = used_bytes(directory), time.monotonic() - began
        print(f"{used / 1e6:.1f} MB after {waited:.0f} s more")
        session.settle(1, 1, Outcome.REQUEUE)  # type: ignore[attr-defined]
        session.close()  # type: ignore[attr-defined]
    async with open_broker(OsFiles(str(directory)), config) as broker:
        session = broker.session(Sink(), protocol="straggler", owner=None)
        got = await session.get("q", no_ack=True)
        rest = await session.get("q", no_ack=True)
        right = got is not None and bytes(got.slab.bodies[got.index]) == b"straggler" and rest is None
        session.close()
    print("found again, alone" if right else "NOT what was to be found again")
    return right and used < BYTES_MAX


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--within-s", type=float, default=60)
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.data_dir or Path(temporary)
        sys.exit(0 if trio.run(check, directory, arguments.messages, arguments.within_s) else 1)


if __name__ == "__main__":
    main()
