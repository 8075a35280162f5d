"""Random schedules of faults against replicated logs or whole brokers, and any one of them again.

python -m tests.simulation --schedules 10000 [--first SEED] [--moves | --brokers [--harsh]]
python -m tests.simulation --seed N [--until EVENT] [--trace] [--moves | --brokers [--harsh]]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import click

from tests.simulation.checker import Violation
from tests.simulation.world import run_seed

HASH_SEED = "PYTHONHASHSEED"


@click.command()
@click.option("--seed", "seeds", type=int, multiple=True, help="Run this schedule alone; may be given more than once.")
@click.option("--until", type=int, help="Stop before this event.")
@click.option("--trace", is_flag=True, help="Print what happens.")
@click.option("--moves", is_flag=True, help="With four brokers, and leaders and replicas that move.")
@click.option("--brokers", is_flag=True, help="Whole brokers instead of logs and roles.")
@click.option("--harsh", is_flag=True, help="Of whole brokers, see brokers/harsh.py.")
@click.option("--mutation", help="With a wrong rule of whole brokers, see brokers/mutations.py.")
@click.option("--schedules", type=int, default=200, show_default=True, help="How many to run.")
@click.option("--first", type=int, default=0, show_default=True, help="The seed to begin with.")
def main(
    seeds: tuple[int, ...],
    until: int | None,
    trace: bool,
    moves: bool,
    brokers: bool,
    harsh: bool,
    mutation: str | None,
    schedules: int,
    first: int,
) -> None:
    """Run schedules; the first that breaks an invariant ends it, with its seed and story."""
    begun_s = time.monotonic()
    run = _broker_runner(mutation, harsh) if brokers else _log_runner(moves)
    events, figures = 0, [0] * 3
    for count, each in enumerate(seeds or range(first, first + schedules)):
        if count and not count % 100:
            click.echo(f"{count} schedules, {time.monotonic() - begun_s:.0f} s", err=True)
        try:
            found = run(each, until, trace)
        except Violation as error:
            kind = f"{' --moves' * moves}{' --brokers' * brokers}{' --harsh' * harsh}"
            again = f"python -m tests.simulation --seed {each} --trace{kind}"
            click.echo(f"{error}\n\nagain: {again}{f' --mutation {mutation}' if mutation else ''}")
            sys.exit(1)
        events += found[0]
        figures = [sum(pair) for pair in zip(figures, found[1:4], strict=True)]
        if brokers and seeds:
            click.echo(f"seed {each}: {found[4]}")
    what = (
        ("messages confirmed", "deliveries", "of them again") if brokers else ("batches confirmed", "given to readers")
    )
    told = ", ".join(f"{figure} {name}" for figure, name in zip(figures, what, strict=False))
    click.echo(f"{events} events, {told}, nothing lost, {time.monotonic() - begun_s:.1f} s")


Runner = Callable[[int, int | None, bool], tuple[int, int, int, int, str]]
"""Runs a seed: how many events, three figures, and a digest of all that happened."""


def _log_runner(moves: bool) -> Runner:
    def run(seed: int, until: int | None, trace: bool) -> tuple[int, int, int, int, str]:
        world = run_seed(seed, moves=moves, until=until, trace=trace)
        histories = world.checker.histories.values()
        confirmed = sum(history.confirmed for history in histories)
        return world.clockwork.events, confirmed, sum(history.given for history in histories), 0, ""

    return run


def _broker_runner(mutation: str | None, harsh: bool) -> Runner:
    if os.environ.get(HASH_SEED) != "0":
        # The order of sets is the same in all processes then, wherever it may matter.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {HASH_SEED: "0"})
    from tests.simulation.brokers.mutations import BY_NAME
    from tests.simulation.brokers.world import run_seed as run_brokers

    def run(seed: int, until: int | None, trace: bool) -> tuple[int, int, int, int, str]:
        with BY_NAME[mutation]() if mutation else nullcontext():
            world = run_brokers(seed, harsh=harsh, until=until, trace=trace)
        ledger = world.ledger
        return world.agenda.events, ledger.confirmed, ledger.delivered, ledger.marked, world.digest

    return run


if __name__ == "__main__":
    main()
