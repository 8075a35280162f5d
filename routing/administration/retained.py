"""Operations on retained messages."""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Any

import trio

from routing.administration.operations import LOOKS, ROWS_MAX, operation, table
from routing.commits import storage_errors

if TYPE_CHECKING:
    from routing.broker import Broker

_CLEARED_AT_ONCE = 1000


@operation("retained.list", tags=LOOKS)
async def list_retained(
    broker: Broker, user: str, pattern: str = "#", vhost: str = "/", limit: int = 100, start: int = 0
) -> dict[str, Any]:
    """The retained messages whose keys match a pattern with the wildcards + and #, in the order of the keys: size in
    bytes, whether they are persistent, and when they end in ms since 1970 (0: never).
    """
    found = broker.retained.matching(broker.topology.vhost(vhost).name, pattern, "mqtt")
    first = max(start, 0)
    rows = []
    for name in nsmallest(first + max(min(limit, ROWS_MAX), 0), found)[first:]:
        value = broker.retained.get(vhost, name)
        if value is not None:
            rows.append((name, len(value.body), value.properties.persistent, value.ends_at_ms))
    return table(("key", "bytes", "persistent", "ends_at_ms"), rows, 0)


@operation("retained.clear")
async def clear_retained(broker: Broker, user: str, pattern: str = "#", vhost: str = "/") -> int:
    """Keep nothing any more of keys that match a pattern; how many there were."""
    names = broker.retained.matching(broker.topology.vhost(vhost).name, pattern, "mqtt")
    for first in range(0, len(names), _CLEARED_AT_ONCE):
        end = broker.retained.clear(vhost, names[first : first + _CLEARED_AT_ONCE])
        with storage_errors():
            await broker.retained.log.wait_committed(end)
        await trio.lowlevel.checkpoint()
    return len(names)
