"""The broker is killed under load, again and again on one data directory: see `kill_rounds`.

More rounds: `python -m tests.faults.soak --rounds 100`.
"""

from __future__ import annotations

from pathlib import Path

from tests.faults.kill_rounds import World, check_logs
from tests.support import BrokerProcess

ROUNDS = 5


def test_nothing_confirmed_is_lost(broker: BrokerProcess, tmp_path: Path) -> None:
    """Five rounds of the soak; the seed is fixed so that a failure can be repeated."""
    world = World(broker, seed=20)
    for _ in range(ROUNDS):
        world.round()
    assert broker.terminate() == 0
    check_logs(tmp_path / "data")
    broker.start()
    world.check()
