"""`millrace transactions`: transactions of producers that are open in topics, and ending one, by the native door."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gateway.client_cli import list_all, say, show, with_client, with_json

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient


@click.group()
def transactions() -> None:
    """Look after the transactions that producers have under way in topics."""


@transactions.command(name="list")
@click.option("--all", "every", is_flag=True, help="Also transactional ids that have none under way.")
@with_json
@with_client
def list_transactions(client: BlockingClient, every: bool, as_json: bool) -> None:
    """Print the transactions that have not ended, whose they are, and how old.

    Readers of committed records wait before the first of them.
    """
    columns, rows = list_all(client, "transactions.list", only_open=not every)
    show(columns, rows, as_json)


@transactions.command()
@click.argument("transactional_id")
@with_json
@with_client
def abort(client: BlockingClient, transactional_id: str, as_json: bool) -> None:
    """Abort what TRANSACTIONAL_ID has under way. Its producer is fenced: it has to begin anew."""
    aborted = client.administer("transactions.abort", transactional_id=transactional_id)
    text = f"the transaction of {transactional_id} is aborted"
    say({"aborted": aborted}, text if aborted else f"{transactional_id} has no transaction under way", as_json)
