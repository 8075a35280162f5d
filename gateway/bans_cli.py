"""`millrace bans`: who is kept out of a running broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from core_log.wall_clock import wall_clock_ms
from gateway.client_cli import Ago, Moment, listing, with_client

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient

_kind = click.argument("kind", type=click.Choice(["client_id", "user", "address"]))


@click.group()
def bans() -> None:
    """Keep clients, users and addresses out."""


bans.command("list", help="Print who is kept out.")(listing("bans.list", by_vhost=False))


@bans.command("add")
@_kind
@click.argument("value")
@click.option("--until", type=Moment(), metavar="TIME", help="ISO 8601, or ms since 1970; by default for ever.")
@click.option("--for", "for_s", type=Ago(), metavar="SECONDS", help="For so long.")
@click.option("--reason", default="", help="Clients are told.")
@click.option("--force", is_flag=True, help="Also yourself, or where you are.")
@with_client
def add_ban(
    client: BlockingClient,
    kind: str,
    value: str,
    until: int | None,
    for_s: float | None,
    reason: str,
    force: bool,
) -> None:
    """Keep out VALUE: what a client calls itself, a user, or an address or network (10.0.0.0/24). Who is connected is
    closed.
    """
    if until is not None and for_s is not None:
        raise click.UsageError("until when? Give --until or --for")
    until_ms = 0 if for_s is None else wall_clock_ms() + int(for_s * 1000)  # 0: for ever
    if until is not None:
        until_ms = max(until, 1)
    from protocols.native.errors import MillraceError

    try:
        kept = client.administer("bans.add", kind=kind, value=value, until_ms=until_ms, reason=reason, force=force)
    except MillraceError as error:
        if not (force and str(error).startswith(f"{kind} ") and " is banned" in str(error)):  # closes this one, too
            raise
    else:
        if kept is not None and kept != value:
            click.echo(f"{kind} {kept} is banned")


@bans.command("delete")
@_kind
@click.argument("value")
@with_client
def delete_ban(client: BlockingClient, kind: str, value: str) -> None:
    """Let VALUE in again."""
    client.administer("bans.delete", kind=kind, value=value)
