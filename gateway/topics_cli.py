"""`millrace topics`: create, bind, list, describe and delete topics of a running broker, through its native door."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from protocols.native.blocking import BlockingClient

DEFAULT_SERVER = "127.0.0.1:9094"
TIMEOUT_S = 30


@click.group()
def topics() -> None:
    """Look after the topics of a running broker."""


def _with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Add --server, --user and --password, pass a client, and make what the broker answers a line and exit code 1."""

    @click.option("--server", metavar="HOST:PORT", default=DEFAULT_SERVER, show_default=True, help="The native door.")
    @click.option("--user", help="Log in with this name.")
    @click.option("--password", default="", help="The user's password.")
    @functools.wraps(command)
    def wrapped(server: str, user: str | None, password: str, **arguments: Any) -> None:
        from protocols.native.blocking import BlockingClient
        from protocols.native.errors import MillraceError

        credentials = None if user is None else (user, password)
        try:
            client = BlockingClient(server, timeout_s=TIMEOUT_S, client_name="millrace topics", credentials=credentials)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--server") from None
        try:
            with client:
                command(client, **arguments)
        except MillraceError as error:
            click.echo(f"millrace: {error}", err=True)
            sys.exit(1)

    return wrapped


def _settings(pairs: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--config")
        settings[name] = value
    return settings


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--config", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting; may be given several times.")
@_with_client
def create(client: BlockingClient, name: str, partitions: int, pairs: tuple[str, ...]) -> None:
    """Create topic NAME."""
    client.create_topic(name, partitions=partitions, config=_settings(pairs))


@topics.command()
@click.argument("name")
@click.option("--exchange", required=True, help="The exchange to copy from, such as amq.topic.")
@click.option("--key", required=True, help="The binding key: a pattern, for an exchange of type topic.")
@_with_client
def bind(client: BlockingClient, name: str, exchange: str, key: str) -> None:
    """Have topic NAME take what an exchange routes by a key."""
    client.bind_topic(name, exchange, key)


@topics.command(name="list")
@_with_client
def list_topics(client: BlockingClient) -> None:
    """Print the name and the number of partitions of every topic."""
    for name, partitions in sorted(client.metadata().items()):
        click.echo(f"{name} {len(partitions)}")


@topics.command()
@click.argument("name")
@_with_client
def describe(client: BlockingClient, name: str) -> None:
    """Print the settings of topic NAME, and where each partition stands."""
    topic = client.describe_topic(name)
    click.echo(f"topic {topic.name}")
    for setting, value in sorted(topic.config.items()):
        click.echo(f"  {setting}={value}")
    for partition in topic.partitions:
        click.echo(f"partition {partition.partition}")
        for field in partition.__struct_fields__:
            if field != "partition":
                click.echo(f"  {field}={getattr(partition, field)}")


@topics.command()
@click.argument("name")
@_with_client
def delete(client: BlockingClient, name: str) -> None:
    """Delete topic NAME and all its records."""
    client.delete_topic(name)
