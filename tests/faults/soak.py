"""Many kill rounds on one data directory.

python -m tests.faults.soak --rounds 100
python -m tests.faults.soak --rounds 10 --seed 1234      what a failed run printed
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
import time
from pathlib import Path

from tests.faults.kill_rounds import World, check_logs
from tests.support import broker_process


def main() -> None:
    """Run until done or until a promise was broken; the data of a failed run are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="millrace-soak-"))
    print(f"seed {options.seed}, data in {directory}", flush=True)
    with broker_process(directory / "data") as broker:
        world = World(broker, options.seed)
        for number in range(1, options.rounds + 1):
            began = time.monotonic()
            world.round()
            waiting = sum(len(stream.present) for stream in world.queues)
            print(
                f"round {number}: {world.confirmations():,} confirmed so far, {waiting:,} in queues, "
                f"ready again in {broker.start_s:.2f} s, round took {time.monotonic() - began:.1f} s",
                flush=True,
            )
        assert broker.terminate() == 0
        print(f"{check_logs(directory / 'data'):,} batches whole; no promise was broken")


if __name__ == "__main__":
    main()
