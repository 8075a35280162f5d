"""Operations on bans (`access/bans.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing.access.bans import Ban, BanKind, checked
from routing.administration.operations import LOOKS, operation, table
from routing.errors import PreconditionFailed

if TYPE_CHECKING:
    from routing.broker import Broker


@operation("bans.list", tags=LOOKS)
async def list_bans(broker: Broker, user: str, start: int = 0) -> dict[str, Any]:
    """Who is kept out, by whom and since when; those that end say when, in ms since 1970 (0: never)."""
    columns = ("kind", "value", "ends_at_ms", "reason", "by", "since_at_ms")
    return table(columns, ((*one,) for one in broker.bans.all()), start)


@operation("bans.add")
async def add_ban(
    broker: Broker,
    user: str,
    kind: BanKind,
    value: str,
    until_ms: int = 0,
    reason: str = "",
    force: bool = False,
    *,
    asked_from: str,
) -> str:
    """Keep out a client by what it calls itself, a user, or an address or network, until a time in ms since 1970 (0: no
    end), at all doors of all brokers. Who is connected is closed; sessions that last stay. Answers the value as
    `bans.list` has it: 10.1.2.3/16 is 10.1.0.0/16.

    With `force` also who asks, or where he asks from.
    """
    ban = Ban(kind, checked(kind, value), until_ms, reason, user, broker.clock.wall_ms())
    if not force and ban.matches("", user, asked_from):
        raise PreconditionFailed(f"this would ban you, user '{user}': say `force` if that is what you want")
    await broker.bans.add(ban)
    return ban.value


@operation("bans.delete")
async def delete_ban(broker: Broker, user: str, kind: BanKind, value: str) -> None:
    """Let somebody in again."""
    await broker.bans.delete(kind, checked(kind, value))
