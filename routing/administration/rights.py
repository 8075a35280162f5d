"""Operations on users, permissions and topic permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing.access.grants import Permission, TopicPermission
from routing.administration.operations import operation, table
from routing.administration.topology import vhosts_of

if TYPE_CHECKING:
    from routing.broker import Broker


@operation("users.list")
async def list_users(broker: Broker, user: str, start: int = 0) -> dict[str, Any]:
    """All users with their tags."""
    rows = (
        (one.name, list(one.tags), "configuration" if one.hash is None else "catalog") for one in broker.rights.users
    )
    return table(("user", "tags", "from"), rows, start)


@operation("users.add")
async def add_user(broker: Broker, user: str, name: str, password: str, tags: list[str] = []) -> None:  # noqa: B006
    """A new user, who may do nothing yet."""
    await broker.rights.add_user(name, password.encode(), tags)


@operation("users.delete")
async def delete_user(broker: Broker, user: str, name: str) -> None:
    """A user with all permissions; connections of the user end."""
    await broker.rights.delete_user(name)


@operation("users.password")
async def set_password(broker: Broker, user: str, name: str, password: str) -> None:
    """Another password."""
    await broker.rights.set_password(name, password.encode())


@operation("users.tags")
async def set_tags(broker: Broker, user: str, name: str, tags: list[str]) -> None:
    """These tags instead of the ones before."""
    await broker.rights.set_tags(name, tags)


@operation("permissions.list")
async def list_permissions(
    broker: Broker, user: str, vhost: str | None = None, name: str | None = None, start: int = 0
) -> dict[str, Any]:
    """All permissions, or those in one virtual host, or of one user."""
    vhosts_of(broker, vhost)
    rows = (
        (place, one, *permission)
        for place, one, permission in broker.rights.permissions()
        if vhost in (None, place) and name in (None, one)
    )
    return table(("vhost", "user", "configure", "write", "read"), rows, start)


@operation("permissions.set")
async def set_permission(
    broker: Broker, user: str, vhost: str, name: str, configure: str, write: str, read: str
) -> None:
    """What a user may do in a virtual host."""
    await broker.rights.set_permission(vhost, name, Permission(configure, write, read))


@operation("permissions.clear")
async def clear_permission(broker: Broker, user: str, vhost: str, name: str) -> None:
    """A user may do nothing in a virtual host any more."""
    await broker.rights.clear_permission(vhost, name)


@operation("topic-permissions.list")
async def list_topic_permissions(
    broker: Broker, user: str, vhost: str | None = None, name: str | None = None, start: int = 0
) -> dict[str, Any]:
    """Limits of keys on topic exchanges."""
    vhosts_of(broker, vhost)
    rows = (
        (place, one, exchange, *permission)
        for place, one, exchange, permission in broker.rights.topic_permissions()
        if vhost in (None, place) and name in (None, one)
    )
    return table(("vhost", "user", "exchange", "write", "read"), rows, start)


@operation("topic-permissions.set")
async def set_topic_permission(
    broker: Broker, user: str, vhost: str, name: str, exchange: str, write: str, read: str
) -> None:
    """With which keys a user may publish to, and bind, a topic exchange."""
    await broker.rights.set_topic_permission(vhost, name, exchange, TopicPermission(write, read))


@operation("topic-permissions.clear")
async def clear_topic_permissions(
    broker: Broker, user: str, vhost: str, name: str, exchange: str | None = None
) -> None:
    """Keys of an exchange, or of all, are limited no more."""
    await broker.rights.clear_topic_permissions(vhost, name, exchange)
