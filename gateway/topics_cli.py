"""`millrace topics`: create, alter, bind, list, describe and delete topics, and their first records, through a broker's
native door.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from gateway.client_cli import (
    COUNT,
    NUMBER,
    OFFSET,
    Name,
    Terms,
    client_of,
    list_all,
    show,
    show_fields,
    with_client,
    with_json,
    with_terms,
)
from gateway.cluster_status import SINGLE_COPY
from gateway.described import described_topic
from gateway.stored_records import data_option, require_offline, stopped_data_dir

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient


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
@click.argument("name", type=Name())
@click.option("--partitions", type=COUNT, default=1, show_default=True)
@click.option("--config", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting; may be given several times.")
@with_client
def create(client: BlockingClient, name: str, partitions: int, pairs: tuple[str, ...]) -> None:
    """Create topic NAME."""
    client.create_topic(name, partitions=partitions, config=_settings(pairs))


@topics.command()
@click.argument("name", type=Name())
@click.option("--partitions", type=COUNT, help="How many it is to have: never fewer.")
@click.option("--config", "pairs", metavar="NAME=VALUE", multiple=True, help="A setting; may be given several times.")
@click.option("--unset", metavar="NAME", multiple=True, help="A setting to be the default again; likewise.")
@with_client
def alter(
    client: BlockingClient, name: str, partitions: int | None, pairs: tuple[str, ...], unset: tuple[str, ...]
) -> None:
    """Configure topic NAME otherwise while it is used, or raise the number of its partitions.

    With more partitions records with a key go by the new number: those of one key may lie in two partitions.
    """
    if partitions is None and not pairs and not unset:
        raise click.UsageError("nothing to alter: say --partitions, --config or --unset")
    if pairs or unset:
        client.alter_topic(name, _settings(pairs), unset=unset)
    if partitions is not None:
        client.create_partitions(name, partitions)


@topics.command(name="delete-records")
@click.argument("name", type=Name())
@click.option("--partition", type=NUMBER, help="Of this partition; without it of all, with --all.")
@click.option("--before", type=OFFSET, metavar="OFFSET", help="What lies before this offset.")
@click.option("--all", "everything", is_flag=True, help="Everything that is committed now.")
@with_json
@with_client
def delete_records(
    client: BlockingClient, name: str, partition: int | None, before: int | None, everything: bool, as_json: bool
) -> None:
    """Delete records from the beginning of topic NAME; print where its partitions begin then."""
    if (before is None) is not everything or (partition is None and not everything):
        raise click.UsageError("say --all, or --partition and --before")
    chosen = [one.partition for one in client.describe_topic(name).partitions] if partition is None else [partition]
    begins = []
    for one in chosen:
        begins.append((name, one, client.delete_records(name, one, before)))
        if not as_json:
            click.echo("{} {} begins at {}".format(*begins[-1]))
    if as_json:
        show(("topic", "partition", "log_start_offset"), begins, True)


@topics.command()
@click.argument("name", type=Name())
@click.option("--exchange", required=True, help="The exchange to copy from, such as amq.topic.")
@click.option("--key", required=True, help="The binding key: a pattern, for an exchange of type topic.")
@with_client
def bind(client: BlockingClient, name: str, exchange: str, key: str) -> None:
    """Have topic NAME take what an exchange routes by a key."""
    client.bind_topic(name, exchange, key)


@topics.command(name="list")
@with_json
@data_option
@with_terms
def list_topics(terms: Terms, as_json: bool, data_dir: str | None) -> None:
    """Print the name and the number of partitions of every topic; with --data, of those that are in the directory."""
    if data_dir is None:
        with client_of(terms) as client:
            rows = [(name, len(partitions)) for name, partitions in sorted(client.metadata().items())]
    else:
        require_offline()
        from routing.stored_topics import stored_topics

        with stopped_data_dir(data_dir) as files:
            rows = [(topic.name, len(topic.directories)) for topic in stored_topics(files).values()]
    show(("name", "partitions"), rows, as_json)


@topics.command()
@with_json
@with_client
def readers(client: BlockingClient, as_json: bool) -> None:
    """Print for whom partitions keep what has not been read, beyond their retention: Spark's queries, say."""
    columns, rows = list_all(client, "topics.readers")
    show(columns, rows, as_json)


@topics.command()
@click.argument("name", type=Name())
@click.option("--settings", "all_settings", is_flag=True, help="All settings, and who has said so, instead.")
@with_json
@with_client
def describe(client: BlockingClient, name: str, all_settings: bool, as_json: bool) -> None:
    """Print how topic NAME is configured, and where each partition stands."""
    if all_settings:
        columns, rows = list_all(client, "topics.settings", name=name)
        show(columns if as_json else columns[:3], rows if as_json else [row[:3] for row in rows], as_json)
        return
    topic = described_topic(client.describe_topic(name))
    if as_json:
        show_fields(topic, True)
        return
    partitions = topic["partitions"]
    show_fields({"topic": topic["name"], **dict(sorted(topic["config"].items()))}, False)
    click.echo()
    show(list(partitions[0]), [list(one.values()) for one in partitions], False)
    single = [str(one["partition"]) for one in partitions if one["single_copy"]]
    if single:
        click.echo(f"\n{SINGLE_COPY}: partitions {', '.join(single)}")


@topics.command()
@click.argument("name", type=Name())
@click.option("--key", required=True, help="The whole key, as text.")
@click.option("--partition", type=NUMBER, help="Look only there.")
@click.option("--limit", type=COUNT, default=1000, show_default=True, metavar="N", help="Print the first so many.")
@with_json
@with_client
def find(client: BlockingClient, name: str, key: str, partition: int | None, limit: int, as_json: bool) -> None:
    """Print where topic NAME has records with a key: all that are committed, by partition and offset.

    At once if the topic has millrace.key.index.enable=true; else the log is looked through.
    """
    found = client.find_records(name, os.fsencode(key), limit=limit, partition=partition)
    rows = [
        (one.partition, one.offset, one.timestamp_ms, None if one.value is None else len(one.value)) for one in found
    ]
    show(("partition", "offset", "timestamp_ms" if as_json else "time_at_ms", "value_bytes"), rows, as_json)


@topics.command()
@click.argument("name", type=Name())
@with_client
def delete(client: BlockingClient, name: str) -> None:
    """Delete topic NAME and all its records."""
    client.delete_topic(name)
