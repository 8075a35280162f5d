"""Plans of which brokers have which replicas: even, in different racks, with few moves."""

from __future__ import annotations

import random
from collections import Counter
from time import process_time

import pytest

from routing.cluster.metadata.placement import Place
from routing.cluster.metadata.rebalance import Group, Shape, plan

THREE = [Place(number, number) for number in (1, 2, 3)]
FOUR = [*THREE, Place(4, 4)]


def copies(before: dict[str, Shape], after: dict[str, tuple[int, ...]]) -> int:
    return sum(len(set(replicas) - set(before[log].replicas)) for log, replicas in after.items())


def applied(before: dict[str, Shape], after: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {log: after.get(log, shape.replicas) for log, shape in before.items()}


def test_what_is_even_stays() -> None:
    logs = {f"home-{n}": Shape(tuple((n + place) % 3 + 1 for place in range(3)), 3) for n in range(6)}
    assert plan(logs, THREE) == {}
    assert plan({}, THREE) == {}
    assert plan(logs, []) == {}, "nobody is there to have any"


def test_a_new_broker_gets_its_share_and_no_more_is_copied() -> None:
    logs = {f"home-{n}": Shape(tuple((n + place) % 3 + 1 for place in range(3)), 3) for n in range(8)}
    after = plan(logs, FOUR)
    held = Counter(one for replicas in applied(logs, after).values() for one in replicas)
    assert held == {1: 6, 2: 6, 3: 6, 4: 6}
    assert copies(logs, after) == 6
    assert set(Counter(replicas[0] for replicas in applied(logs, after).values()).values()) == {2}


def test_a_broker_that_goes_has_none() -> None:
    logs = {f"topic-a-{n}": Shape(tuple((n + place) % 4 + 1 for place in range(3)), 3) for n in range(8)}
    after = plan(logs, THREE)
    assert all(sorted(replicas) == [1, 2, 3] for replicas in applied(logs, after).values())
    assert copies(logs, after) == 6
    two = plan({"home-0": Shape((1, 2, 3), 3)}, THREE[:2])
    assert two == {"home-0": (1, 2)}, "it gets its third when there is a broker again"
    assert plan({"home-0": Shape((1, 2), 3)}, THREE) == {"home-0": (1, 2, 3)}


def test_leaders_are_evened_without_a_copy_also_by_way_of_others() -> None:
    logs = {f"home-{n}": Shape((1, 2, 3), 3) for n in range(6)}
    after = plan(logs, THREE)
    assert copies(logs, after) == 0
    assert Counter(replicas[0] for replicas in applied(logs, after).values()) == {1: 2, 2: 2, 3: 2}
    assert len(after) == 4
    group = Group({"home-0": Shape((1, 2), 2), "home-1": Shape((1, 2), 2), "home-2": Shape((2, 3), 2)}, THREE, {})
    group.even_leaders({})
    assert sorted(line[0] for line in group.lines.values()) == [1, 2, 3]


def test_racks_come_before_the_balance() -> None:
    places = [Place(1, 1, "a"), Place(2, 2, "a"), Place(3, 3, "b")]
    logs = {f"topic-a-{n}": Shape((1, 2), 2) for n in range(4)}
    after = applied(logs, plan(logs, places))
    assert all(3 in replicas for replicas in after.values())
    assert Counter(one for replicas in after.values() for one in replicas) == {3: 4, 1: 2, 2: 2}


def test_kinds_are_balanced_each_by_itself() -> None:
    logs = {f"{kind}-{n}": Shape((1,), 1) for kind in ("home", "offsets", "topic-x") for n in range(4)}
    after = applied(logs, plan(logs, [Place(1, 1), Place(2, 2)]))
    for kind in ("home", "offsets", "topic"):
        assert Counter(after[log][0] for log in after if log.startswith(kind)) == {1: 2, 2: 2}


def test_of_thousands_of_logs_not_all_are_looked_through_for_each_that_moves() -> None:
    """It is worked out between two messages, and a broker that stands still for long loses its lease."""
    logs = {f"topic-{n}-0": Shape(tuple((n + place) % 3 + 1 for place in range(3)), 3) for n in range(10_000)}
    began_s = process_time()
    after = plan(logs, FOUR)
    assert process_time() - began_s < 1.5
    assert copies(logs, after) == 7_500
    assert set(Counter(replicas[0] for replicas in applied(logs, after).values()).values()) == {2_500}


@pytest.mark.parametrize("seed", range(40))
def test_any_cluster(seed: int) -> None:
    dice = random.Random(seed)
    brokers = list(range(1, dice.randint(2, 9)))
    racks = dice.choice([[""], ["a", "b", "c"]])
    places = [Place(one, one, dice.choice(racks)) for one in dice.sample(brokers, dice.randint(1, len(brokers)))]
    logs = {}
    for n in range(dice.randint(1, 40)):
        count = dice.randint(1, min(3, len(brokers)))
        logs[f"{dice.choice(['home', 'offsets', 'topic-x'])}-{n}"] = Shape(tuple(dice.sample(brokers, count)), 3)
    after = applied(logs, plan(logs, places))
    there = {place.broker: place.rack for place in places}
    for replicas in after.values():
        assert len(set(replicas)) == len(replicas) == min(3, len(places))
        assert set(replicas) <= there.keys()
        found = {there[one] for one in replicas}
        assert not there[replicas[0]] or len(found) == min(len(replicas), len(set(there.values())))
    if racks == [""]:
        for kind in ("home", "offsets", "topic"):
            lines = [replicas for log, replicas in after.items() if log.startswith(kind)]
            held = Counter(one for replicas in lines for one in replicas)
            counts = [held[one] for one in there]
            assert max(counts) - min(counts) <= 1
    again = plan({log: Shape(replicas, 3) for log, replicas in after.items()}, places)
    assert again == {}, "what was planned is even"
