"""`millrace cluster`: run some brokers for trying out, see how they do, change it (`cluster_admin_cli`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.client_cli import show, show_fields, with_client, with_json
from gateway.cluster_admin_cli import COMMANDS
from gateway.cluster_status import cluster_status, show_troubles

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient


@click.group()
def cluster() -> None:
    """Several brokers as one."""


for _command in COMMANDS:
    cluster.add_command(_command)


@cluster.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--brokers", type=click.IntRange(1, 99), help="How many; by default as many as last time, and 3 at first."
)
@click.option("--base-port", type=click.IntRange(1, 65535), help="Broker N listens from this port + 10 N on.")
@click.option("--config", "config_file", metavar="FILE", type=click.Path(exists=True), help="Settings of all brokers.")
def up(directory: Path, brokers: int | None, base_port: int | None, config_file: str | None) -> None:
    """Run etcd and brokers on this machine below DIRECTORY until SIGTERM or SIGINT, to try a cluster out.

    Prints a line for each door of each broker, such as `broker 1 amqp 127.0.0.1:40123`, and then `ready`. Ports are
    free ones, and stay the same in the same directory. A broker that ends is reported and not started again.
    """
    import trio

    from gateway.errors import StartError, first_error

    try:
        from gateway.cluster_up import up as run_up
    except ImportError:
        _fail("a cluster needs the extra `cluster`: pip install 'millrace[cluster]'")
    more = ["--config", config_file] if config_file is not None else []
    reason = ""
    try:
        if not trio.run(run_up, directory.absolute(), brokers, base_port, more):
            reason = "no broker runs any more"
    except* StartError as group:
        reason = str(first_error(group))
    if reason:
        _fail(reason)


@cluster.command()
@with_json
@with_client
def status(client: BlockingClient, as_json: bool) -> None:
    """Print the brokers and partitions of a cluster as one of its brokers knows them; all of them may be asked."""
    found = cluster_status(client)
    if as_json:
        show_fields(found, True)
        return
    brokers = [
        {
            "broker": one["id"],
            "alive": one["alive"],
            "controller": one["id"] == found["controller"],
            "leads": sum(partition["leader"] == one["id"] for partition in found["partitions"]),
            "rack": one["rack"],
            "version": one["version"],
            **{door: one["addresses"].get(door) for door in ("amqp", "mqtt", "native", "peer")},
        }
        for one in found["brokers"]
    ]
    for rows in (brokers, found["partitions"]):
        if rows:
            show(tuple(rows[0]), [list(map(_cell, row.values())) for row in rows], False)
            click.echo()
    show_troubles(found)


def _cell(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _fail(message: str) -> None:
    click.echo(f"millrace: {message}", err=True)
    sys.exit(1)
