"""`millrace policies`: what queues and exchanges are told by pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gateway.client_cli import DISTANCE, listing, vhost_option, with_client
from gateway.topology_cli import JsonObject

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient

policies = click.Group("policies", help="Look after policies and operator policies.")
policies.command("list", help="Print all policies.")(listing("policies.list"))

operator_option = click.option("--operator", is_flag=True, help="An operator policy: its limits cannot be gone beyond.")


@policies.command("set")
@click.argument("name")
@click.argument("pattern")
@click.argument("definition", type=JsonObject())
@click.option(
    "--priority", type=DISTANCE, default=0, show_default=True, help="Of several that match the highest counts."
)
@click.option(
    "--apply-to",
    type=click.Choice(["all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams"]),
    default="all",
    show_default=True,
)
@operator_option
@vhost_option
@with_client
def set_policy(client: BlockingClient, **given: Any) -> None:
    """Make or replace policy NAME for all whose name PATTERN is found in; DEFINITION is a JSON object, such as
    '{"max-length": 1000}'.
    """
    client.administer("policies.set", **given)


@policies.command("delete")
@click.argument("name")
@operator_option
@vhost_option
@with_client
def delete_policy(client: BlockingClient, **given: Any) -> None:
    """Delete policy NAME."""
    client.administer("policies.delete", **given)
