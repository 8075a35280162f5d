"""`millrace topics`: create, alter, bind, list, describe and delete topics of a broker, through its native door."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from gateway.client_cli import show, show_fields, with_client, with_json

if TYPE_CHECKING:
    from protocols.native.blocking import BlockingClient


@click.group()
def topics() -> None:
    """Look after the topics of a running broker."""


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
@with_client
def create(client: BlockingClient, name: str, partitions: int, pairs: tuple[str, ...]) -> None:
    """Create topic NAME."""
    client.create_topic(name, partitions=partitions, config=_settings(pairs))


@topics.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), required=True, help="How many it is to have: never fewer.")
@with_client
def alter(client: BlockingClient, name: str, partitions: int) -> None:
    """Raise the number of partitions of topic NAME.

    Records with a key go by the new number from then on: those of one key may lie in two partitions.
    """
    client.create_partitions(name, partitions)


@topics.command()
@click.argument("name")
@click.option("--exchange", required=True, help="The exchange to copy from, such as amq.topic.")
@click.option("--key", required=True, help="The binding key: a pattern, for an exchange of type topic.")
@with_client
def bind(client: BlockingClient, name: str, exchange: str, key: str) -> None:
    """Have topic NAME take what an exchange routes by a key."""
    client.bind_topic(name, exchange, key)


@topics.command(name="list")
@with_json
@with_client
def list_topics(client: BlockingClient, as_json: bool) -> None:
    """Print the name and the number of partitions of every topic."""
    rows = [(name, len(partitions)) for name, partitions in sorted(client.metadata().items())]
    if as_json:
        show(("name", "partitions"), rows, True)
        return
    for name, count in rows:
        click.echo(f"{name} {count}")


@topics.command()
@click.argument("name")
@with_json
@with_client
def describe(client: BlockingClient, name: str, as_json: bool) -> None:
    """Print the settings of topic NAME, and where each partition stands."""
    topic = client.describe_topic(name)
    if as_json:
        partitions = [msgspec.structs.asdict(partition) for partition in topic.partitions]
        show_fields({"name": topic.name, "config": topic.config, "partitions": partitions}, True)
        return
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
@with_client
def delete(client: BlockingClient, name: str) -> None:
    """Delete topic NAME and all its records."""
    client.delete_topic(name)
