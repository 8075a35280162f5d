"""Both ways to divide partitions, by themselves: everything is somebody's who wants it, once, and little moves."""

from __future__ import annotations

import random

import pytest

from routing.groups.assignors import ASSIGNORS, Places, in_ranges, uniform

A, B, C = (bytes([number]) * 16 for number in range(3))


def places(topic: bytes, *numbers: int) -> Places:
    return frozenset((topic, number) for number in numbers)


def everything(partitions: dict[bytes, int], wants: dict[str, frozenset[bytes]]) -> Places:
    wanted = frozenset[bytes]().union(*wants.values())
    return frozenset((topic, number) for topic in wanted for number in range(partitions.get(topic, 0)))


def test_ranges_are_in_the_order_of_members_and_the_same_in_topics_of_the_same_size() -> None:
    both = frozenset({A, B})
    found = in_ranges({"x": both, "y": both, "z": frozenset({A})}, {A: 5, B: 2}, {})
    assert found == {
        "x": places(A, 0, 1) | places(B, 0), "y": places(A, 2, 3) | places(B, 1), "z": places(A, 4),
    }  # fmt: skip


def test_uniform_gives_a_fair_share_and_takes_no_more_than_that() -> None:
    wants = {"x": frozenset({A}), "y": frozenset({A})}
    before = uniform({"x": wants["x"]}, {A: 5}, {})
    assert before == {"x": places(A, 0, 1, 2, 3, 4)}
    found = uniform(wants, {A: 5}, before)
    assert found == {"x": places(A, 0, 1, 2), "y": places(A, 3, 4)}
    assert uniform(wants, {A: 5}, found) == found
    assert uniform(wants, {A: 6}, found) == {"x": found["x"], "y": found["y"] | places(A, 5)}


def test_nobody_and_nothing() -> None:
    for assignor in ASSIGNORS.values():
        assert assignor({}, {A: 3}, {}) == {}
        assert assignor({"x": frozenset()}, {A: 3}, {}) == {"x": frozenset()}
        assert assignor({"x": frozenset({A})}, {}, {"x": places(A, 0)}) == {"x": frozenset()}


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("name", ASSIGNORS)
def test_at_random(name: str, seed: int) -> None:
    dice = random.Random(seed)
    topics = [bytes([number]) * 16 for number in range(dice.randint(1, 5))]
    same = dice.random() < 0.5
    wants: dict[str, frozenset[bytes]] = {}
    before: dict[str, Places] = {}
    partitions = {topic: dice.randint(1, 12) for topic in topics}
    for _ in range(12):
        if wants and dice.random() < 0.4:
            del wants[dice.choice(list(wants))]
        else:
            some = topics if same else dice.sample(topics, dice.randint(1, len(topics)))
            wants[f"m{dice.randint(0, 99)}"] = frozenset(some)
        if dice.random() < 0.2:
            partitions[dice.choice(topics)] += 1
        found = ASSIGNORS[name](wants, partitions, before)
        given = [place for has in found.values() for place in has]
        assert len(given) == len(set(given))
        assert set(given) == everything(partitions, wants)
        assert all(place[0] in wants[member] for member, has in found.items() for place in has)
        if name == "uniform" and len(set(wants.values())) == 1:
            shares = sorted(map(len, found.values()))
            assert shares[-1] - shares[0] <= 1
            stayed = set(wants) & set(before)
            most = -(-len(given) // len(wants))
            lost = sum(len(before[member] - found[member]) for member in stayed)
            kept = [before[member] & frozenset(given) for member in stayed]
            least = len(given) // len(wants)
            assert lost <= sum(max(len(has) - least, 0) for has in kept) + sum(
                len(before[member] - frozenset(given)) for member in stayed
            )
            assert all(len(has) <= most for has in found.values())
        before = found
