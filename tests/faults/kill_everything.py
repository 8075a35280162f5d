"""Kill the broker with SIGKILL while everything is on at once: the load of `kill_rounds` and that of `everything`.

    python -m tests.faults.kill_everything --rounds 100
    python -m tests.faults.kill_everything --rounds 10 --seed 1234      what a failed run printed
    python -m tests.faults.kill_everything --rounds 50 --power          its disk loses power as well: needs root

Segments, caches and the distance of checkpoints are small, so that messages are read back, written again and deleted.
"""

from __future__ import annotations

import argparse
import random
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults import everything
from tests.faults.kill_rounds import World, check_logs, join
from tests.support import BrokerProcess, broker_process
from tests.support.broker_process import started
from tests.support.power import PoweredBroker, powered_disk

SETTINGS = """
[engine]
stripes = 2
queue_segment_bytes = 1048576
stripe_cache_bytes = 262144
checkpoint_interval_bytes = 524288
"""


class Rounds:
    """One broker and what is known of it; `round` as often as wanted."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.broker = broker
        self.dice = random.Random(seed)
        self.world = World(broker, self.dice.randrange(1 << 32))
        self.ledger = everything.Ledger()
        self.kills = 0
        everything.declare(broker)

    def delayed(self, queue: str) -> int:
        """Delayed messages, and dead ones on their way."""
        with self.world.native() as client:
            rows = client.administer("queues.list")
            at = rows["columns"].index
            (row,) = (row for row in rows["rows"] if row[at("name")] == queue)
        return int(row[at("delayed")] + row[at("unacknowledged")])

    def round(self) -> dict[str, int]:
        """Load, kill or stop, start, check. Raises AssertionError."""
        broker, dice = self.broker, self.dice
        threads = [*self.world.load(), *everything.load(broker, self.ledger, dice)]
        time.sleep(dice.uniform(0.2, 1.2))
        assert broker.running, f"the broker died by itself\n{broker.log()[-4000:]}"
        if dice.random() < 0.1:
            assert broker.terminate() == 0
        else:
            broker.kill9()
        join(threads)
        self.kills += 1
        if dice.random() < 0.3:
            self.world.killed_start()
        broker.start()
        self.world.check()
        everything.wait_for_due(broker, self.delayed)
        return everything.check(broker, self.ledger, self.kills, dice)


@contextmanager
def rounds(directory: Path, seed: int, *, power: bool = False) -> Iterator[Rounds]:
    """A broker with small parts, in `data` of a directory; with `power`, it is cut. Raises NoSuchDisk."""
    settings = directory / "millrace.toml"
    settings.write_text(SETTINGS)
    arguments = ["--config", str(settings)]
    if not power:
        with broker_process(directory / "data", arguments=arguments) as broker:
            yield Rounds(broker, seed)
        return
    with (
        powered_disk(directory / "data", directory / "disk.ext4") as disk,
        started(PoweredBroker(disk, arguments)) as powered,
    ):
        yield Rounds(powered, seed)


def main() -> None:
    """Run until done or until a promise was broken; the data of a failed run are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--power", action="store_true")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="millrace-everything-"))
    print(f"seed {options.seed}, data in {directory}", flush=True)
    with rounds(directory, options.seed, power=options.power) as all_rounds:
        for number in range(1, options.rounds + 1):
            began = time.monotonic()
            counts = all_rounds.round()
            print(
                f"round {number}: {len(all_rounds.ledger.confirmed):,} confirmed, "
                + ", ".join(f"{count:,} in {queue.rpartition('.')[2]}" for queue, count in counts.items())
                + f"; {all_rounds.world.confirmations():,} others; {time.monotonic() - began:.1f} s",
                flush=True,
            )
        assert all_rounds.broker.terminate() == 0
        print(f"{check_logs(directory / 'data'):,} batches whole; no promise was broken")


if __name__ == "__main__":
    main()
