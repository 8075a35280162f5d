"""Random schedules of faults against replicated logs, and any one of them again.

python -m tests.simulation --schedules 10000 [--first SEED] [--moves]
python -m tests.simulation --seed N [--until EVENT] [--trace] [--moves]
"""

from __future__ import annotations

import sys
import time

import click

from tests.simulation.checker import Violation
from tests.simulation.world import run_seed


@click.command()
@click.option("--seed", type=int, help="Run this schedule alone.")
@click.option("--until", type=int, help="Stop before this event.")
@click.option("--trace", is_flag=True, help="Print what happens.")
@click.option("--moves", is_flag=True, help="With four brokers, and leaders and replicas that move.")
@click.option("--schedules", type=int, default=200, show_default=True, help="How many to run.")
@click.option("--first", type=int, default=0, show_default=True, help="The seed to begin with.")
def main(seed: int | None, until: int | None, trace: bool, moves: bool, schedules: int, first: int) -> None:
    """Run schedules; the first that breaks an invariant ends it, with its seed and story."""
    begun_s = time.monotonic()
    events = confirmed = given = 0
    for each in [seed] if seed is not None else range(first, first + schedules):
        try:
            world = run_seed(each, moves=moves, until=until, trace=trace)
        except Violation as error:
            click.echo(f"{error}\n\nagain: python -m tests.simulation --seed {each} --trace{' --moves' * moves}")
            sys.exit(1)
        events += world.clockwork.events
        confirmed += sum(history.confirmed for history in world.checker.histories.values())
        given += sum(history.given for history in world.checker.histories.values())
    click.echo(
        f"{events} events, {confirmed} batches confirmed, {given} given to readers, nothing lost, "
        f"{time.monotonic() - begun_s:.1f} s"
    )


if __name__ == "__main__":
    main()
