"""The broker is killed under load, again and again on one data directory: see `kill_rounds`.

More rounds: `python -m tests.faults.soak --rounds 100`.
"""

from __future__ import annotations

from pathlib import Path

from millrace import BlockingClient
from tests.faults.kill_rounds import World, check_logs
from tests.support import BrokerProcess

ROUNDS = 5


def test_the_number_of_partitions_stands_as_soon_as_it_is_answered(broker: BrokerProcess) -> None:
    for count in (1, 3, 8):
        with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
            if count == 1:
                client.create_topic("grows")
            client.create_partitions("grows", count)
            broker.kill9()
        broker.start()
        with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
            assert client.metadata(["grows"])["grows"] == list(range(count))


def test_nothing_confirmed_is_lost(broker: BrokerProcess, tmp_path: Path) -> None:
    """Five rounds of the soak; the seed is fixed so that a failure can be repeated."""
    world = World(broker, seed=20)
    for _ in range(ROUNDS):
        world.round()
    assert broker.terminate() == 0
    check_logs(tmp_path / "data")
    broker.start()
    world.check()
