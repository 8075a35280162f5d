"""`millrace status`: what a running broker holds, and how it and its cluster are doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gateway.client_cli import show, show_fields, with_client, with_json
from gateway.cluster_status import cluster_status, show_troubles

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient


@click.command()
@with_json
@with_client
def status(client: BlockingClient, as_json: bool) -> None:
    """Print what the logs of queues hold, and how much of it only stays because of messages nobody has settled.

    Names the partitions that have no leader or lack replicas. With --json also all brokers and partitions.
    """
    found, cluster = client.describe_broker(), cluster_status(client)
    columns = ("stripe", "queues", "live_messages", "log_bytes", "pinned_bytes")
    homes = [
        ("transient" if home.stripe < 0 else home.stripe, *(getattr(home, name) for name in columns[1:]))
        for home in found.homes
    ]
    if as_json:
        fields = {
            **cluster,
            "homes": [dict(zip(columns, home, strict=True)) for home in homes],
            "sessions": found.sessions,
            "refused_messages": found.refused_messages,
            "blocked": found.blocked,
        }
        show_fields(fields, True)
        return
    show(columns, homes, False)
    click.echo(f"sessions {found.sessions:,}, messages refused {found.refused_messages:,}")
    if found.blocked is not None:
        click.echo(f"publishers are blocked: {found.blocked}")
    show_troubles(cluster)
