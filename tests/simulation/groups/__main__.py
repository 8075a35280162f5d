"""Random schedules of consumer groups, and any one of them again.

python -m tests.simulation.groups --schedules 10000 [--first SEED] [--kind KIND]
python -m tests.simulation.groups --seed N [--kind KIND] [--trace]
"""

from __future__ import annotations

import sys
import time

import click

from tests.simulation.checker import Violation
from tests.simulation.groups.schedules import KINDS, run_seed


@click.command()
@click.option("--seed", "seeds", type=int, multiple=True, help="Run this schedule alone; may be given more than once.")
@click.option("--kind", type=click.Choice(KINDS), help="Of clients; by default they take turns.")
@click.option("--trace", is_flag=True, help="Print what happens.")
@click.option("--schedules", type=int, default=200, show_default=True, help="How many to run.")
@click.option("--first", type=int, default=0, show_default=True, help="The seed to begin with.")
def main(seeds: tuple[int, ...], kind: str | None, trace: bool, schedules: int, first: int) -> None:
    """Run schedules; the first that breaks an invariant ends it, with its seed and story."""
    begun_s = time.monotonic()
    totals = [0] * 4
    for count, seed in enumerate(seeds or range(first, first + schedules)):
        if count and not count % 100:
            click.echo(f"{count} schedules, {time.monotonic() - begun_s:.0f} s", err=True)
        try:
            found = run_seed(seed, kind=kind, trace=trace)
        except Violation as error:
            again = f"python -m tests.simulation.groups --seed {seed}{f' --kind {kind}' if kind else ''} --trace"
            click.echo(f"seed {seed}: {error}\n\nagain: {again}")
            sys.exit(1)
        totals = [sum(pair) for pair in zip(totals, found, strict=True)]
    told = ", ".join(f"{n} {what}" for n, what in zip(totals, ("events", "clients", "crashes", "records"), strict=True))
    click.echo(f"{told}: nothing read twice, nothing unread, no offset went back, {time.monotonic() - begun_s:.1f} s")


if __name__ == "__main__":
    main()
