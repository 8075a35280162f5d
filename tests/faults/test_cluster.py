"""Short rounds of `python -m tests.faults.cluster_rounds`: three brokers and an etcd, shaken under load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.cluster_rounds import DOORS, ClusterWorld, shaken_cluster


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterWorld]:
    with shaken_cluster(tmp_path_factory.mktemp("cluster"), 20_240_607, DOORS) as found:
        yield found


@pytest.mark.parametrize(
    ("fault", "hold_s"), [("kill", 0.5), ("isolate", 2.0), ("full", 0.5), ("cut", 0.5), ("pause", 0.5)]
)
def test_what_is_confirmed_is_there_after(world: ClusterWorld, fault: str, hold_s: float) -> None:
    print(world.round(fault, hold_s=hold_s))


def test_replicas_are_equal_at_the_end(world: ClusterWorld) -> None:
    world.check_replicas()
