"""Random schedules: which clients, what happens to them, and how it ends."""

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.checker import Violation
from tests.simulation.groups.clients import ClassicClient, Client, ServedClient
from tests.simulation.groups.world import World

KINDS = ("served", "range", "cooperative", "mixed", "moving", "moving-range")
"""Of clients: how they divide a group; those that are moving know of two protocols."""
_FAULTY_MS = 60_000
_SETTLING_MS = 120_000
_CLIENTS_MAX = 6
_WAYS = {
    "range": (("range",),),
    "cooperative": (("cooperative-sticky",),),
    "mixed": (("range",), ("cooperative-sticky", "range")),
    "moving": (("cooperative-sticky",), ("cooperative-sticky", "range")),
    "moving-range": (("range",),),
}


class Figures(NamedTuple):
    """Of a schedule."""

    events: int
    started: int
    restarts: int
    committed: int


def run_seed(seed: int, *, kind: str | None = None, trace: bool = False) -> Figures:
    """One schedule. Raises Violation."""
    world = World(seed, trace=trace)
    dice = world.dice
    kind = kind or KINDS[seed % len(KINDS)]
    world.topics.set("a", dice.randint(1, 6))
    started = 0

    def wants() -> set[str]:
        return set(dice.sample(["a", "b", "c"], dice.randint(1, 3)) if dice.random() < 0.5 else ["a", "b"])

    def start(instance: str | None = None) -> None:
        if not world.faulty:
            return
        nonlocal started
        started += 1
        if kind == "served" or (kind.startswith("moving") and dice.random() < 0.5):
            ServedClient(world, f"c{started}", wants(), instance)
        else:
            ClassicClient(world, f"c{started}", wants(), instance, dice.choice(_WAYS[kind]))

    def stop(client: Client) -> None:
        client.is_ending = True
        client.die() if dice.random() < 0.5 else client.leave()

    def restart(client: Client) -> None:
        stop(client)
        world.later(dice.randrange(50, 3000), lambda: start(client.instance))

    def something() -> None:
        if not world.faulty:
            return
        world.later(dice.randrange(10, 2500), something)
        what, live = dice.random(), [client for client in world.clients if not client.is_ending]
        if what < 0.3 and len(live) < _CLIENTS_MAX:
            start(f"i{started}" if dice.random() < 0.3 else None)
        elif what < 0.45 and live:
            restart(dice.choice(live))
        elif what < 0.6 and live:
            stop(dice.choice(live))
        elif what < 0.65 and live:
            client = dice.choice(live)
            client.cut_until_ms = world.now_ms + dice.choice((3_000, 15_000))
            world.say(client, "is cut off")
        elif what < 0.75 and live:
            dice.choice(live).want(wants())
        elif what < 0.88:
            name = dice.choice("abc")
            world.say("topic", name, "grows")
            world.topics.set(name, len(world.places(name)) + dice.randint(1, 2))
        elif world.coordinator is not None:
            world.crash()

    something()
    world.run(_FAULTY_MS)
    world.faulty = False
    world.topics.set("a", len(world.places("a")) + 1)
    until_ms = world.now_ms + _SETTLING_MS
    why: str | None = "nothing happened"
    while why is not None and world.now_ms < until_ms:
        world.run(world.now_ms + 1000)
        why = world.settled()
        if kind != "served" and why is not None and "by nobody" in why:
            for client in world.clients:  # topics that grew are noticed by the clients themselves
                client.want(client.wants)
            world.run(world.now_ms + 10_000)
    if why is not None:
        raise Violation(f"after {_SETTLING_MS} ms without faults: {why}")
    return Figures(world.events, started, world.restarts, sum(world.confirmed.values()))
