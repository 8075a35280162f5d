"""Operations on retained messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

import trio

from core_log.threads import in_thread
from routing.administration.operations import LOOKS, ROWS_MAX, operation, plain, table
from routing.administration.shown import BODY_BYTES, shown_message
from routing.commits import storage_errors
from routing.errors import InvalidArgument, NotFound
from routing.filter_streams import MQTT_EXCHANGE
from routing.message import Properties

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.kept.retained import Retained

_CLEARED_AT_ONCE = 1000
_ORDERED_AT_ONCE = 10_000
"""Some milliseconds."""


@operation("retained.list", tags=LOOKS)
async def list_retained(
    broker: Broker, user: str, pattern: str = "#", vhost: str = "/", limit: int = 100, start: int = 0
) -> dict[str, Any]:
    """The retained messages whose keys match a pattern with the wildcards + and #, in the order of the keys: size in
    bytes, whether they are persistent, and when they end in ms since 1970 (0: never).
    """
    name = broker.topology.vhost(vhost).name
    if broker.keeping is not None:
        found: dict[str, Any] = await broker.keeping.operate("list", name, pattern, limit, start)
        return found
    return await listed(broker.retained, name, pattern, limit, start)


async def listed(retained: Retained, vhost: str, pattern: str, limit: int, start: int) -> dict[str, Any]:
    """The table of `list_retained`. A thread looks for the first of many: others have their turns meanwhile."""
    found = retained.matching(vhost, pattern, "mqtt")
    first = max(start, 0)
    wanted = first + max(min(limit, ROWS_MAX), 0)
    many = len(found) > _ORDERED_AT_ONCE
    names = await in_thread(nsmallest, wanted, found) if many else nsmallest(wanted, found)
    rows = []
    for name in names[first:]:
        value = retained.get(vhost, name)
        if value is not None:
            rows.append((name, len(value.body), value.properties.persistent, value.ends_at_ms))
    return table(("key", "bytes", "persistent", "ends_at_ms"), rows, 0)


@operation("retained.get", tags=None)
async def get_retained(
    broker: Broker, user: str, key: str, vhost: str = "/", bytes_max: int = BODY_BYTES
) -> dict[str, Any]:
    """The message that is retained of a routing key, with at most `bytes_max` bytes of its body, and when it ends in ms
    since 1970 (0: never). Who may subscribe to the key may do this; it needs no tag.
    """
    grants = broker.rights.grants(user, vhost)
    grants.require("read", "exchange", MQTT_EXCHANGE)
    grants.require_keys("read", MQTT_EXCHANGE, (key,))
    name = broker.topology.vhost(vhost).name
    if not {"+", "#"}.isdisjoint(key):
        raise InvalidArgument("a routing key is needed, without wildcards")
    rows = broker.retained.rows(name, [key]) if broker.keeping is None else await broker.keeping.rows(name, key)
    for _, tag, body, left_ms in rows:
        ends_at_ms = 0 if left_ms is None else broker.clock.now_ms() + left_ms
        message = shown_message(Properties.from_log_tag(tag), body, bytes_max)
        return {"key": plain(key), "ends_at_ms": ends_at_ms, "bytes": len(body), **message}
    raise NotFound(f"nothing is retained of '{plain(key)}' in vhost '{name}'")


@operation("retained.clear")
async def clear_retained(broker: Broker, user: str, pattern: str = "#", vhost: str = "/") -> int:
    """Keep nothing any more of keys that match a pattern; how many there were."""
    name = broker.topology.vhost(vhost).name
    if broker.keeping is not None:
        return int(await broker.keeping.operate("clear", name, pattern))
    retained = broker.retained

    async def committed() -> None:
        with storage_errors():
            await retained.log.wait_committed(retained.log.log_end_offset)

    return await clear(retained, name, pattern, committed)


async def clear(retained: Retained, vhost: str, pattern: str, committed: Callable[[], Awaitable[None]]) -> int:
    """The same; `committed` waits for what was written. Raises StorageUnavailable."""
    names = retained.matching(vhost, pattern, "mqtt")
    for first in range(0, len(names), _CLEARED_AT_ONCE):
        retained.clear(vhost, names[first : first + _CLEARED_AT_ONCE])
        await committed()
        await trio.lowlevel.checkpoint()
    return len(names)


async def forget(broker: Broker, vhost: str) -> None:
    """Keep nothing any more of a virtual host that goes; returns when that is safe. Raises StorageUnavailable."""
    if broker.keeping is not None:
        await broker.keeping.operate("forget", vhost)
        return
    broker.retained.forget(vhost)
    with storage_errors():
        await broker.retained.log.wait_committed(broker.retained.log.log_end_offset)
