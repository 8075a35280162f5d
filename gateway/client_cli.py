"""Commands that talk to a running broker through its native door."""

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


def with_client(command: Callable[..., None]) -> Callable[..., None]:
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
            client = BlockingClient(server, timeout_s=TIMEOUT_S, client_name="millrace", credentials=credentials)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--server") from None
        try:
            with client:
                command(client, **arguments)
        except MillraceError as error:
            click.echo(f"millrace: {error}", err=True)
            sys.exit(1)

    return wrapped


@click.command()
@with_client
def status(client: BlockingClient) -> None:
    """Print what the logs of queues hold, and how much of it only stays because of messages nobody has settled."""
    found = client.describe_broker()
    rows: list[tuple[str, ...]] = [("stripe", "queues", "live messages", "log bytes", "pinned bytes")]
    for home in found.homes:
        name = "transient" if home.stripe < 0 else str(home.stripe)
        figures = (home.queues, home.live_messages, home.log_bytes, home.pinned_bytes)
        rows.append((name, *(f"{figure:,}" for figure in figures)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    click.echo(f"sessions {found.sessions:,}, messages refused {found.refused_messages:,}")
