"""The broker is killed while workers share a view of a topic: see `view_rounds`."""

from __future__ import annotations

from tests.faults.view_rounds import ViewWorld
from tests.support import BrokerProcess


def test_nothing_is_lost_and_nothing_that_is_gone_comes_again(broker: BrokerProcess) -> None:
    world = ViewWorld(broker, seed=11)
    for _ in range(2):
        world.round()
    assert broker.terminate() == 0
    broker.start()
    world.check()
    assert world.gone
