"""How the members of a group divide partitions among them, worked out by one of them. Pure.

1. `range` gives each member neighbouring partitions of every topic that it wants, so that partitions of the same number
   of topics with as many partitions meet at one member. All members give up everything before a new division.
2. `cooperative-sticky` gives as even a share as what members want allows, and moves as little as it can. Members go on
   with what they keep; what moves is given to nobody until its owner has given it up and the group is divided again
   (KIP-429).

Names are Kafka's, as members of both protocols may share a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from protocols.native.clients.group_bytes import Partition, Subscription


class Wish(NamedTuple):
    """What a member wants."""

    instance_id: str | None
    subscription: Subscription


class Assignor(Protocol):
    """One way to divide partitions."""

    name: str
    cooperative: bool

    def assign(self, wishes: Mapping[str, Wish], counts: Mapping[str, int]) -> dict[str, list[Partition]]:
        """The partitions of each member, by its id. `counts` are numbers of partitions of the topics that exist."""


class RangeAssignor:
    """See the module."""

    name = "range"
    cooperative = False

    def assign(self, wishes: Mapping[str, Wish], counts: Mapping[str, int]) -> dict[str, list[Partition]]:
        """See `Assignor`."""
        result: dict[str, list[Partition]] = {member: [] for member in wishes}
        for topic, count in sorted(counts.items()):
            members = sorted(
                (member for member, wish in wishes.items() if topic in wish.subscription.topics),
                key=lambda member: _place(member, wishes[member]),
            )
            if not members:
                continue
            share, more = divmod(count, len(members))
            first = 0
            for number, member in enumerate(members):
                end = first + share + (number < more)
                result[member] += [(topic, index) for index in range(first, end)]
                first = end
        return result


def _place(member: str, wish: Wish) -> tuple[bool, str]:
    """Static members come first, by their own names: they stay where they are over restarts."""
    return (wish.instance_id is None, wish.instance_id or member)


class CooperativeStickyAssignor:
    """See the module."""

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, wishes: Mapping[str, Wish], counts: Mapping[str, int]) -> dict[str, list[Partition]]:
        """See `Assignor`."""
        wanted = {
            member: [topic for topic in dict.fromkeys(wish.subscription.topics) if topic in counts]
            for member, wish in wishes.items()
        }
        takers: dict[str, list[str]] = {}
        for member in sorted(wishes, key=lambda member: _place(member, wishes[member])):
            for topic in wanted[member]:
                takers.setdefault(topic, []).append(member)
        owners = _owners(wishes)
        shares: dict[str, dict[str, list[Partition]]] = {member: {} for member in wishes}
        loads = dict.fromkeys(wishes, 0)
        free: list[Partition] = []
        for topic in sorted(takers, key=lambda topic: (len(takers[topic]), topic)):
            for index in range(counts[topic]):
                owner = owners.get((topic, index))
                if owner is not None and topic in wanted[owner]:
                    shares[owner].setdefault(topic, []).append((topic, index))
                    loads[owner] += 1
                else:
                    free.append((topic, index))
        for partition in free:
            member = min(takers[partition[0]], key=lambda member: loads[member])
            shares[member].setdefault(partition[0], []).append(partition)
            loads[member] += 1
        _balance(shares, loads, takers)
        return {
            member: sorted(
                partition
                for partitions in share.values()
                for partition in partitions
                if owners.get(partition, member) == member
            )
            for member, share in shares.items()
        }


def _owners(wishes: Mapping[str, Wish]) -> dict[Partition, str]:
    """Who has a partition. Who says so of an older generation has lost it since; of two that say so nobody does."""
    newest: dict[Partition, tuple[int, str | None]] = {}
    for member, (_, subscription) in wishes.items():
        for partition in subscription.owned:
            generation, _ = newest.get(partition, (-2, None))
            if subscription.generation > generation:
                newest[partition] = subscription.generation, member
            elif subscription.generation == generation:
                newest[partition] = generation, None
    return {partition: member for partition, (_, member) in newest.items() if member is not None}


def _balance(
    shares: dict[str, dict[str, list[Partition]]], loads: dict[str, int], takers: dict[str, list[str]]
) -> None:
    """Move partitions from who has most to who has least of those that want them, while that makes it more even."""
    settled: set[str] = set()
    while len(settled) < len(loads):
        most = max((member for member in loads if member not in settled), key=lambda member: loads[member])
        best: tuple[int, str, str] | None = None
        for topic, partitions in shares[most].items():
            if partitions:
                least = min(takers[topic], key=lambda member: loads[member])
                if loads[least] + 1 < loads[most] and (best is None or loads[least] < best[0]):
                    best = loads[least], least, topic
        if best is None:
            settled.add(most)
            continue
        _, least, topic = best
        shares[least].setdefault(topic, []).append(shares[most][topic].pop())
        loads[most] -= 1
        loads[least] += 1
        settled.discard(least)


ASSIGNORS: dict[str, Assignor] = {one.name: one for one in (RangeAssignor(), CooperativeStickyAssignor())}
