"""`millrace groups`: how far consumer groups have come, who is in them, and where they are to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from core_log.wall_clock import wall_clock_ms
from gateway.client_cli import DISTANCE, OFFSET, Ago, Moment, Name, show, show_fields, with_client, with_json
from gateway.described import described_group

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient


@click.group()
def groups() -> None:
    """Look after consumer groups."""


def _reach(client: BlockingClient) -> None:
    """A group's coordinator is looked for for half a minute, as another broker may be about to be it. Where there is
    no broker at all that is said at once.
    """
    client.metadata([])


@groups.command(name="list")
@with_json
@with_client
def list_groups(client: BlockingClient, as_json: bool) -> None:
    """Print all groups, of the Kafka door as well."""
    rows = [(found.group, found.state, found.members, found.type) for found in client.list_groups()]
    show(("group", "state", "members", "type"), rows, as_json)


@groups.command()
@click.argument("name", type=Name())
@with_json
@with_client
def describe(client: BlockingClient, name: str, as_json: bool) -> None:
    """Print where group NAME stands: how many records and seconds it is behind, and who reads what.

    Seconds are the age of the first record that was not read; in queues, which Spark's queries read, of the oldest
    message.
    """
    _reach(client)
    fields = described_group(client.describe_group(name), client.lag(name), client.queue_lag(name))
    if as_json:
        show_fields(fields, True)
        return
    members, lists = fields.pop("members"), (fields.pop("partitions"), fields.pop("queues"))
    show_fields(fields, False)
    for rows in lists:
        if rows:
            click.echo()
            show(list(rows[0]), [list(row.values()) for row in rows], False)
    if members:
        click.echo()
        shown = [
            (one["member_id"], one["instance_id"], one["client_name"], one["host"], len(one["assignment"]))
            for one in members
        ]
        show(("member_id", "instance_id", "client_name", "host", "partitions"), shown, False)


@groups.command()
@click.argument("name", type=Name())
@with_client
def delete(client: BlockingClient, name: str) -> None:
    """Forget group NAME, and how far it has come. It must have no members."""
    _reach(client)
    client.delete_group(name)


@groups.command()
@click.argument("name", type=Name())
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="Behind the last record.")
@click.option(
    "--to-time", type=Moment(), metavar="TIME", help="To the first record not before: ISO 8601, or ms since 1970."
)
@click.option("--ago", type=Ago(), metavar="SECONDS", help="The same, so long before now.")
@click.option("--to-offset", type=OFFSET, metavar="N")
@click.option("--shift-by", type=DISTANCE, metavar="N", help="So many records further, or back if below 0.")
@click.option(
    "--topic", "topics", type=Name(), metavar="TOPIC[:0,1]", multiple=True, help="Default: wherever the group has come."
)
@click.option("--dry-run", is_flag=True, help="Change nothing, print what would be.")
@with_json
@with_client
def reset_offsets(
    client: BlockingClient,
    name: str,
    to_earliest: bool,
    to_latest: bool,
    to_time: int | None,
    ago: float | None,
    to_offset: int | None,
    shift_by: int | None,
    topics: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Have group NAME, which must have no members, go on somewhere else.

    What is not there is cut to what is. Prints where the group goes on.
    """
    chosen = [to_earliest or None, to_latest or None, to_time, ago, to_offset, shift_by]
    if len(chosen) - chosen.count(None) != 1:
        raise click.UsageError(
            "say where to: one of --to-earliest, --to-latest, --to-time, --ago, --to-offset, --shift-by"
        )
    to: Any = None
    if to_earliest or to_latest:
        to = "earliest" if to_earliest else "latest"
    elif to_time is not None:
        to = to_time
    elif ago is not None:
        to = wall_clock_ms() - int(ago * 1000)
    partitions = client.places(topics) if topics else None
    found = client.reset_offsets(name, to, offset=to_offset, shift=shift_by, partitions=partitions, dry_run=dry_run)
    show(("topic", "partition", "offset"), [(*key, offset) for key, offset in sorted(found.items())], as_json)
