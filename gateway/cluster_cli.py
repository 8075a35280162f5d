"""`millrace cluster`: see how several brokers are doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gateway.client_cli import show, show_fields, with_client, with_json
from gateway.cluster_status import cluster_status, show_troubles

if TYPE_CHECKING:
    from protocols.native.blocking import BlockingClient


@click.group()
def cluster() -> None:
    """Several brokers as one."""


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
