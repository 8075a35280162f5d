"""Which replicas and preferred leaders logs should have, so that brokers have equally many: pure, and with few moves.

1. Brokers that are not to have any (gone, draining) have none afterwards. A log has as many replicas as it should
   have, as far as there are brokers.
2. Replicas of one log stand in different racks where there are enough; none is moved for the balance out of a rack of
   its own into one that the log is in.
3. Homes, group offsets and topics are balanced each by itself, as they bear different loads; of brokers with equally
   many, those with the fewest of all kinds are chosen. Two brokers differ by one at most, if racks allow it.
4. Preferred leaders are balanced by the order of the replicas alone, which costs no copy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from routing.cluster.metadata.placement import Place


class Shape(NamedTuple):
    """Of a log: its replicas, the preferred leader first, and how many there should be."""

    replicas: tuple[int, ...]
    factor: int


def plan(logs: Mapping[str, Shape], places: Sequence[Place]) -> dict[str, tuple[int, ...]]:
    """The replicas of all logs that should have others, or the same ones in another order."""
    found: dict[str, tuple[int, ...]] = {}
    kinds: dict[str, list[str]] = defaultdict(list)
    for log in sorted(logs):
        kinds[log.partition("-")[0]].append(log)
    total: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    for kind in sorted(kinds):
        group = Group({log: logs[log] for log in kinds[kind]}, places, total)
        group.fill()
        group.part_racks()
        group.even_replicas()
        group.even_leaders(leads)
        total.update(group.held)
        leads.update(line[0] for line in group.lines.values() if line)
        found |= {log: tuple(line) for log, line in group.lines.items() if line and tuple(line) != logs[log].replicas}
    return found


class Group:
    """Logs of one kind, as they are changed step by step."""

    def __init__(self, logs: Mapping[str, Shape], places: Sequence[Place], total: Mapping[int, int]) -> None:
        self.racks = {place.broker: place.rack for place in sorted(places)}
        self.total = total
        self.counts = {log: min(shape.factor, len(self.racks)) for log, shape in logs.items()}
        self.lines = {log: [one for one in shape.replicas if one in self.racks] for log, shape in logs.items()}
        self.held = Counter(one for line in self.lines.values() for one in line)

    def _rank(self, broker: int) -> tuple[int, int, int]:
        return self.held[broker], self.total.get(broker, 0), broker

    def _shares_rack(self, broker: int, others: Iterable[int]) -> bool:
        rack = self.racks[broker]
        return bool(rack) and any(self.racks[other] == rack for other in others if other != broker)

    def _replace(self, log: str, old: int, new: int) -> None:
        line = self.lines[log]
        line[line.index(old)] = new
        self.held[old] -= 1
        self.held[new] += 1

    def fill(self) -> None:
        """As many replicas as there should be."""
        for log, line in self.lines.items():
            while len(line) < self.counts[log]:
                others = [one for one in self.racks if one not in line]
                chosen = min(others, key=lambda one: (self._shares_rack(one, line), self._rank(one)))
                line.append(chosen)
                self.held[chosen] += 1

    def part_racks(self) -> None:
        """No two replicas in one rack where another rack has none."""
        for log, line in self.lines.items():
            for old in reversed(line[:]):
                rest = [one for one in line if one != old]
                if self._shares_rack(old, rest):
                    free = [one for one in self.racks if one not in line and not self._shares_rack(one, rest)]
                    if free:
                        self._replace(log, old, min(free, key=self._rank))

    def even_replicas(self) -> None:
        """No broker has two more than another one that could take one of these."""
        moved = True
        while moved:
            moved = False
            left: dict[tuple[int, int], Iterator[str]] = {}
            while self._move_one(left):
                moved = True

    def _move_one(self, left: dict[tuple[int, int], Iterator[str]]) -> bool:
        """What is `left` to look at of each pair of brokers: thousands of logs are looked through a few times, and not
        for each that moves.
        """
        by_rank = sorted(self.racks, key=self._rank)
        for giver in reversed(by_rank):
            for taker in by_rank:
                if self.held[giver] - self.held[taker] < 2:
                    break
                for log in left.setdefault((giver, taker), iter(self.lines)):
                    line = self.lines[log]
                    if giver not in line or taker in line:
                        continue
                    rest = [one for one in line if one != giver]
                    if self._shares_rack(taker, rest) <= self._shares_rack(giver, rest):
                        self._replace(log, giver, taker)
                        return True
        return False

    def even_leaders(self, total: Mapping[int, int]) -> None:
        """No broker is preferred for two more logs than another one, if there is a way between them."""
        leads = Counter(line[0] for line in self.lines.values() if line)
        ways: _Ways = defaultdict(lambda: defaultdict(dict))
        for log, line in self.lines.items():
            for to in line[1:]:
                ways[line[0]][to][log] = None
        while True:
            for giver in sorted(self.racks, key=lambda one: (-leads[one], -total.get(one, 0), one)):
                way = _way(ways, giver, leads, total)
                if way:
                    break
            else:
                return
            for log, to in way:
                line = self.lines[log]
                leads[line[0]] -= 1
                leads[to] += 1
                for other in line[1:]:
                    del ways[line[0]][other][log]
                line.remove(to)
                line.insert(0, to)
                for other in line[1:]:
                    ways[to][other][log] = None


_Ways = dict[int, dict[int, dict[str, None]]]
"""Logs by who is first in their line, and by each of the others."""


def _way(ways: _Ways, giver: int, leads: Mapping[int, int], total: Mapping[int, int]) -> list[tuple[str, int]]:
    """Logs and their new first replicas, which take one from `giver` and give one to who has two less."""
    found: dict[int, list[tuple[str, int]]] = {giver: []}
    line = [giver]
    for at in line:
        for to, logs in ways[at].items():
            if logs and to not in found:
                found[to] = [*found[at], (next(iter(logs)), to)]
                line.append(to)
    fewer = [one for one in line if leads.get(giver, 0) - leads.get(one, 0) >= 2]
    return found[min(fewer, key=lambda one: (leads.get(one, 0), total.get(one, 0), one))] if fewer else []
