"""`millrace messages`: single messages that an operator publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gateway.client_cli import input_bytes, say, vhost_option, with_client, with_json
from gateway.topology_cli import JsonObject

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient


@click.group()
def messages() -> None:
    """Publish single messages."""


@messages.command("publish")
@click.argument("body", required=False)
@click.option("--exchange", default="", help="By default the one that every queue is bound to by its name.")
@click.option("--key", "routing_key", default="", help="The routing key.")
@click.option("--mqtt-topic", help="Publish as an MQTT client, to this topic.")
@click.option("--retain", is_flag=True, help="Have it retained; an empty body clears what is.")
@click.option("--properties", type=JsonObject(), default="{}", help='Such as \'{"content_type": "text/plain"}\'.')
@click.option("--headers", type=JsonObject(), default="{}", help="The application's own, as a JSON object.")
@vhost_option
@with_json
@with_client
def publish(client: BlockingClient, body: str | None, as_json: bool, **given: Any) -> None:
    """Publish BODY, or what is read from standard input, any bytes, and say whether anybody gets it once it is safe."""
    content: object = {"base64": input_bytes().read()} if body is None else body
    routed = client.administer("messages.publish", body=content, **given)["routed"]
    say({"routed": routed}, "published" if routed else "published, but routed to nobody", as_json)
