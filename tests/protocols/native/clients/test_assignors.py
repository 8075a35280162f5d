"""What members of a group say to each other, and how partitions are divided among them."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor

from protocols.native.clients.assignors import ASSIGNORS, Wish
from protocols.native.clients.group_bytes import (
    GroupBytesError,
    Partition,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

RANGE, STICKY = ASSIGNORS["range"], ASSIGNORS["cooperative-sticky"]


def wish(topics: str, owned: list[Partition] | None = None, generation: int = 1, instance: str | None = None) -> Wish:
    return Wish(instance, Subscription(list(topics), owned or [], generation if owned else -1))


def test_a_subscription_both_ways() -> None:
    whole = Subscription(["t", "ü"], [("t", 3), ("t", 5), ("u", 0)], 7, "rack", b"data")
    assert decode_subscription(encode_subscription(whole)) == whole
    none = Subscription([])
    assert decode_subscription(encode_subscription(none)) == none
    # Kafka's bytes of version 0: topics and user data; 1 has what is owned as well.
    assert decode_subscription(bytes.fromhex("0000 00000001 0001 74 ffffffff")) == Subscription(["t"])
    owned = bytes.fromhex("0001 00000001 0001 74 00000000 00000001 0001 74 00000002 00000000 00000001")
    assert decode_subscription(owned) == Subscription(["t"], [("t", 0), ("t", 1)], user_data=b"")


def test_an_assignment_both_ways() -> None:
    given = [("t", 0), ("t", 4), ("u", 1)]
    assert decode_assignment(encode_assignment(given)) == given
    assert decode_assignment(b"") == decode_assignment(encode_assignment([])) == []


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_nonsense_is_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except GroupBytesError:
            pass


def test_what_is_cut_short_is_refused() -> None:
    data = encode_subscription(Subscription(["topic"], [("topic", 1)], 3))
    for size in range(len(data)):
        with pytest.raises(GroupBytesError):
            decode_subscription(data[:size])


def test_range_gives_neighbours_of_each_topic() -> None:
    wishes = {"b": wish("tu"), "a": wish("tu"), "c": wish("t")}
    assert RANGE.assign(wishes, {"t": 5, "u": 3}) == {
        "a": [("t", 0), ("t", 1), ("u", 0), ("u", 1)],
        "b": [("t", 2), ("t", 3), ("u", 2)],
        "c": [("t", 4)],
    }
    static = {"z": wish("t", instance="1"), "y": wish("t", instance="2"), "a": wish("t")}
    assert RANGE.assign(static, {"t": 3}) == {"z": [("t", 0)], "y": [("t", 1)], "a": [("t", 2)]}
    assert RANGE.assign({"a": wish("tx")}, {"t": 1}) == {"a": [("t", 0)]}


class _Cluster:
    """What kafka-python's assignor asks."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(self.counts[topic]))


@pytest.mark.parametrize("seed", range(20))
def test_range_is_that_of_kafkas_clients(seed: int) -> None:
    dice = random.Random(seed)
    counts = {topic: dice.randint(1, 9) for topic in "tuv"}
    wishes = {f"m{n}": wish("".join(dice.sample("tuv", dice.randint(1, 3)))) for n in range(dice.randint(1, 5))}
    members = [
        SimpleNamespace(member_id=name, group_instance_id=None, metadata=one.subscription)
        for name, one in wishes.items()
    ]
    theirs = RangePartitionAssignor.assign(_Cluster(counts), members)
    found = {
        name: sorted((topic, index) for topic, numbers in one.assigned_partitions for index in numbers)
        for name, one in theirs.items()
    }
    assert RANGE.assign(wishes, counts) == found


def divided(wishes: dict[str, Wish], counts: dict[str, int]) -> dict[str, list[Partition]]:
    """What members have once they have joined again and again."""
    for generation in range(2, 10):
        given = STICKY.assign(wishes, counts)
        assert_sound(wishes, given, counts)
        again = {
            name: Wish(one.instance_id, Subscription(one.subscription.topics, given[name], generation))
            for name, one in wishes.items()
        }
        if {n: w.subscription.owned for n, w in again.items()} == {n: w.subscription.owned for n, w in wishes.items()}:
            return given
        wishes = again
    raise AssertionError("it never comes to rest")


def assert_sound(wishes: dict[str, Wish], given: dict[str, list[Partition]], counts: dict[str, int]) -> None:
    """Nothing twice, nothing that is still another's, nothing unwanted."""
    flat = [partition for partitions in given.values() for partition in partitions]
    assert len(flat) == len(set(flat))
    for name, partitions in given.items():
        for partition in partitions:
            assert partition[0] in wishes[name].subscription.topics
            assert partition[1] < counts[partition[0]]
            owners = [n for n, one in wishes.items() if partition in one.subscription.owned]
            assert not owners or name in owners or len(owners) > 1


def test_sticky_moves_as_little_as_it_can() -> None:
    counts = {"t": 6}
    first = STICKY.assign({"a": wish("t"), "b": wish("t")}, counts)
    assert sorted(map(len, first.values())) == [3, 3]
    wishes = {name: wish("t", partitions) for name, partitions in first.items()} | {"c": wish("t")}
    second = STICKY.assign(wishes, counts)
    assert second["c"] == [], "what moves is given up first"
    assert all(set(second[name]) < set(first[name]) for name in "ab")
    last = divided(wishes, counts)
    assert sorted(map(len, last.values())) == [2, 2, 2]
    assert all(set(last[name]) < set(first[name]) for name in "ab")
    gone = divided({name: wish("t", last[name]) for name in "ac"}, counts)
    assert all(set(last[name]) < set(gone[name]) and len(gone[name]) == 3 for name in "ac")


def test_of_two_owners_the_later_one_counts() -> None:
    late = {"a": wish("t", [("t", 0)], 3), "b": wish("t", [("t", 0)], 4)}
    assert STICKY.assign(late, {"t": 1}) == {"a": [], "b": [("t", 0)]}
    both = {"a": wish("t", [("t", 0)], 4), "b": wish("t", [("t", 0)], 4)}
    assert sorted(map(len, STICKY.assign(both, {"t": 1}).values())) == [0, 1]


@pytest.mark.parametrize("seed", range(30))
def test_sticky_comes_to_rest_and_is_even(seed: int) -> None:
    dice = random.Random(seed)
    counts = {topic: dice.randint(1, 12) for topic in "tuv"}
    same = dice.random() < 0.5
    members = {f"m{n}": "tuv" if same else "".join(dice.sample("tuv", dice.randint(1, 3))) for n in range(5)}
    owned: dict[str, list[Partition]] = {}
    for _ in range(6):
        chosen = dice.sample(sorted(members), dice.randint(1, 5))
        owned = divided({name: wish(members[name], owned.get(name)) for name in chosen}, counts)
        wanted = {topic for name in chosen for topic in members[name]}
        assert sum(map(len, owned.values())) == sum(counts[topic] for topic in wanted)
        if same:
            assert max(map(len, owned.values())) - min(map(len, owned.values())) <= 1


def test_many_are_divided_quickly() -> None:
    counts = {"t": 2000}
    first = STICKY.assign({f"m{n}": wish("t") for n in range(100)}, counts)
    wishes = {name: wish("t", owned) for name, owned in first.items()} | {f"n{n}": wish("t") for n in range(100)}
    assert sorted(map(len, divided(wishes, counts).values())) == [10] * 200
