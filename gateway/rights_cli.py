"""`millrace users`, `permissions`, `topic-permissions`: who may do what on a running broker."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gateway.client_cli import input_bytes, listing, vhost_option, with_client

if TYPE_CHECKING:
    from protocols.native.clients.blocking import BlockingClient


def _new_password() -> str:
    """Asked for twice at a terminal, else the first line of standard input."""
    if sys.stdin is not None and sys.stdin.isatty():
        return str(click.prompt("New password", hide_input=True, confirmation_prompt=True, err=True))
    try:
        return input_bytes().readline().decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.ClickException("the password is not UTF-8") from None


@click.group()
def users() -> None:
    """Look after the users of a running broker."""


users.command("list", help="Print all users and their tags.")(listing("users.list", by_vhost=False))


@users.command("add")
@click.argument("name")
@click.option("--tag", "tags", multiple=True, help="administrator, monitoring ...; may be given several times.")
@with_client
def add_user(client: BlockingClient, name: str, tags: tuple[str, ...]) -> None:
    """Add user NAME, who may do nothing yet. The password is asked for, or read from standard input."""
    client.administer("users.add", name=name, password=_new_password(), tags=list(tags))


@users.command("password")
@click.argument("name")
@with_client
def set_password(client: BlockingClient, name: str) -> None:
    """Change the password of user NAME. It is asked for, or read from standard input."""
    client.administer("users.password", name=name, password=_new_password())


@users.command("tags")
@click.argument("name")
@click.argument("tags", nargs=-1)
@with_client
def set_tags(client: BlockingClient, name: str, tags: tuple[str, ...]) -> None:
    """Give user NAME these TAGS and no others."""
    client.administer("users.tags", name=name, tags=list(tags))


@users.command("delete")
@click.argument("name")
@with_client
def delete_user(client: BlockingClient, name: str) -> None:
    """Delete user NAME with all permissions; the user's connections are closed."""
    from protocols.native.errors import MillraceError

    try:
        client.administer("users.delete", name=name)
    except MillraceError as error:
        if str(error) != f"user '{name}' is deleted":  # that closes this connection, too, if NAME is who asks
            raise


@click.group()
def permissions() -> None:
    """Look after what users may do in virtual hosts."""


permissions.command("list", help="Print what users may do in virtual hosts.")(listing("permissions.list"))


@permissions.command("set")
@click.argument("user_name", metavar="USER")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
@vhost_option
@with_client
def set_permission(client: BlockingClient, user_name: str, configure: str, write: str, read: str, vhost: str) -> None:
    """Let USER declare and delete, write to, and read from what these regular expressions match."""
    client.administer("permissions.set", vhost=vhost, name=user_name, configure=configure, write=write, read=read)


@permissions.command("clear")
@click.argument("user_name", metavar="USER")
@vhost_option
@with_client
def clear_permission(client: BlockingClient, user_name: str, vhost: str) -> None:
    """Keep USER out of a virtual host."""
    client.administer("permissions.clear", vhost=vhost, name=user_name)


@click.group("topic-permissions")
def topic_permissions() -> None:
    """Look after the keys that users may publish with, and bind, on topic exchanges."""


topic_permissions.command("list", help="Print limits of keys on topic exchanges.")(listing("topic-permissions.list"))


@topic_permissions.command("set")
@click.argument("user_name", metavar="USER")
@click.argument("exchange")
@click.argument("write")
@click.argument("read")
@vhost_option
@with_client
def set_topic_permission(
    client: BlockingClient, user_name: str, exchange: str, write: str, read: str, vhost: str
) -> None:
    """Let USER use only keys of EXCHANGE that these regular expressions match."""
    client.administer("topic-permissions.set", vhost=vhost, name=user_name, exchange=exchange, write=write, read=read)


@topic_permissions.command("clear")
@click.argument("user_name", metavar="USER")
@click.argument("exchange", required=False)
@vhost_option
@with_client
def clear_topic_permissions(client: BlockingClient, user_name: str, exchange: str | None, vhost: str) -> None:
    """Limit the keys of USER on EXCHANGE, or on all, no more."""
    client.administer("topic-permissions.clear", vhost=vhost, name=user_name, exchange=exchange)
