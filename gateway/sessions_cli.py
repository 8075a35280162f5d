"""`millrace sessions`: sessions of clients, connected or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gateway.client_cli import listing, say, show, show_fields, vhost_option, with_client, with_json

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient


@click.group()
def sessions() -> None:
    """Look after the sessions of MQTT clients, connected or not."""


sessions.command("list", help="Print all sessions.")(listing("sessions.list"))


@sessions.command("describe")
@click.argument("client_id")
@vhost_option
@with_json
@with_client
def describe_session(client: BlockingClient, as_json: bool, **given: Any) -> None:
    """Print the session of CLIENT_ID, and what it is subscribed to."""
    found = client.administer("sessions.describe", **given)
    if as_json:
        show_fields(found, True)
        return
    subscriptions = found.pop("subscriptions")
    show(list(found), [list(found.values())], False)
    if subscriptions:
        click.echo()
        show(list(subscriptions[0]), [list(one.values()) for one in subscriptions], False)


@sessions.command("delete")
@click.argument("client_id")
@vhost_option
@with_json
@with_client
def delete_session(client: BlockingClient, as_json: bool, **given: Any) -> None:
    """End the session of CLIENT_ID, with its connection: it begins anew when it comes back."""
    dropped = client.administer("sessions.delete", **given)
    say({"dropped": dropped}, f"{dropped:,} messages dropped", as_json)
