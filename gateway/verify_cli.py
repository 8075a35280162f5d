"""`millrace verify`: whether a data directory is whole, without a broker and without a cluster."""

from __future__ import annotations

import sys

import click

from gateway.client_cli import show, with_json
from gateway.stored_records import stopped_data_dir

EXIT_FAULTY = 1


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@with_json
def verify(directory: str, as_json: bool) -> None:
    """Read all of the data directory DIRECTORY, of a broker that is stopped, and check it; nothing is changed.

    A directory of a cluster's member is looked at alone: what is at other brokers is not missed. What is wrong is said
    on standard error, and makes the exit code 1. `cut bytes` are what an unclean stop has left behind the last whole
    batch: the next start cuts them off.
    """
    from routing.verification import verify_logs, verify_topology, whose

    with stopped_data_dir(directory) as files:
        click.echo(f"the data directory of {whose(files)}", err=True)
        logs = list(verify_logs(files))
        counts, problems = verify_topology(files)
    columns = ("log", "from", "to", "bytes", "cut_bytes", "problems")
    show(columns, [(*log[:5], len(log.problems)) for log in logs], as_json)
    if not as_json:
        click.echo("catalog: " + (", ".join(f"{count:,} {kind}" for kind, count in counts.items()) or "nothing"))
    problems = [problem for log in logs for problem in log.problems] + problems
    for problem in problems:
        click.echo(f"millrace: {problem}", err=True)
    if problems:
        sys.exit(EXIT_FAULTY)
