"""Which brokers have replicas of a log, and who of them leads it, if it can be chosen. Pure.

1. The first replica is the *preferred* leader: it leads when nothing speaks against it. The first replicas of the
   partitions of a topic, and of all homes, are spread over the brokers.
2. Replicas of one log stand in different racks, as far as there are enough.
3. A log may have fewer replicas than it should, because there were too few brokers: it grows with the cluster. Its
   minimum of replicas in sync rises only when that many are in sync, and stay; one that nobody asked for not before it
   has all its replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from core_log.replication.moves import lasting_insync
from core_log.replication.state import LogState
from routing.cluster.metadata.log_names import RETAINED, TRANSACTIONS, home_log, log_of_kind, offsets_log, parsed

FACTOR = 3
"""How many replicas a log has if nothing is said, where there are so many brokers."""


class Place(NamedTuple):
    """A broker that may have replicas."""

    broker: int
    epoch: int
    rack: str = ""


def minimum_of(factor: int) -> int:
    """How many replicas have to be in sync for anything to be committed, if nothing is said."""
    return 2 if factor >= FACTOR else 1


def ring(places: Iterable[Place], start: int, count: int, held: Mapping[int, int] | None = None) -> list[Place]:
    """`count` brokers for a log, or all: beginning with the `start`-th, then in other racks first, then those that hold
    least.
    """
    held = held or {}
    line = sorted(places)
    line = line[start % len(line) :] + line[: start % len(line)] if line else []
    chosen: list[Place] = []
    while line and len(chosen) < count:
        racks = {place.rack for place in chosen if place.rack}
        best = min(line, key=lambda place: (place.rack in racks, held.get(place.broker, 0))) if chosen else line[0]
        line.remove(best)
        chosen.append(best)
    return chosen


def new_state(
    places: Sequence[Place],
    *,
    factor: int,
    minimum: int,
    unclean: bool = False,
    strict: bool = False,
    firm: bool = False,
) -> LogState:
    """The state of a log that nothing is in yet: all its replicas are in sync, the first leads. `factor` and `minimum`
    are what it should have; `unclean` is whether others may lead it when none of those in sync is left, `strict`
    whether the minimum holds though there are fewer brokers, `firm` whether somebody asked for it.
    """
    first = places[0]
    enough = strict or len(places) >= (minimum if firm else factor)
    now = minimum if enough else min(minimum, minimum_of(len(places)))
    return LogState(
        replicas=tuple(place.broker for place in places),
        isr=tuple((place.broker, place.epoch) for place in places),
        leader=first.broker,
        leader_broker_epoch=first.epoch,
        leader_epoch=1,
        min_insync=now,
        factor=factor,
        minimum=minimum,
        firm=firm,
        unclean=unclean,
    )


def spread(
    count: int, places: Sequence[Place], factor: int, leads: Mapping[int, int], held: Mapping[int, int]
) -> list[list[Place]]:
    """Replicas for `count` partitions of a topic, which is spread by itself. `leads` and `held`: how many logs a broker
    is preferred for, and has.
    """
    line = sorted(places)
    mine = dict.fromkeys((place.broker for place in line), 0)
    leading = {place.broker: leads.get(place.broker, 0) for place in line}
    holding = {place.broker: held.get(place.broker, 0) for place in line}
    found: list[list[Place]] = []
    for _ in range(count):
        first = min(range(len(line)), key=lambda index: (mine[line[index].broker], leading[line[index].broker], index))
        chosen = ring(line, first, factor, holding)
        mine[chosen[0].broker] += 1
        for place in chosen:
            holding[place.broker] += 1
        found.append(chosen)
    return found


def grown(state: LogState, places: Sequence[Place], start: int) -> LogState:
    """The state with as many replicas as it should have, and the minimum that its ISR allows. `start` is the log's
    place among its kind: see `ring`.
    """
    lacking = state.factor - len(state.replicas)
    if lacking > 0 and state.target is None:
        others = [place for place in ring(places, start, len(places)) if place.broker not in state.replicas]
        added = tuple(place.broker for place in others[:lacking])
        if added:
            state = msgspec.structs.replace(state, replicas=_rotated((*state.replicas, *added), start))
    wanted = minimum_now(state)
    if state.min_insync < wanted <= lasting_insync(state):
        state = msgspec.structs.replace(state, min_insync=wanted)
    return state


def minimum_now(state: LogState) -> int:
    """What the minimum of a log should be with the replicas that it has, once enough of them are in sync."""
    if state.firm or len(state.replicas) >= state.factor:
        return state.minimum
    return min(state.minimum, minimum_of(len(state.isr)))


def _rotated(replicas: Sequence[int], start: int) -> tuple[int, ...]:
    line = sorted(replicas)
    return (*line[start % len(line) :], *line[: start % len(line)])


def internal_logs(homes: int, offsets: int, transactions: int, retained: int) -> list[tuple[str, int]]:
    """The logs that a cluster has whatever is declared, and their places among their kind."""
    found = [(home_log(n), n) for n in range(homes)] + [(offsets_log(n), n) for n in range(offsets)]
    found += [(log_of_kind(TRANSACTIONS, n), n) for n in range(transactions)]
    return found + [(log_of_kind(RETAINED, n), n) for n in range(retained)]


def start_of(log: str) -> int:
    """The place of a log among its kind, 0 if it has none."""
    return parsed(log)[2] or 0
