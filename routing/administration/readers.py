"""Operations of readers that are no consumers: queues read as logs are, and logs of what MQTT filters match.

Who may read a queue may do these with it; none needs a tag. A reader that reserves (`queues/reservations.py`) takes
messages as a consumer does. `queue_lag.py` has how far readers are behind.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING, Any

from routing import filter_streams, queue_lag
from routing.administration.forwarded import ask_leader
from routing.administration.operations import LOOKS, Row, has_tag, operation, page, table
from routing.errors import InvalidArgument, NotAllowed, NotFound
from routing.filter_streams import MQTT_EXCHANGE
from routing.queue_reading import Read, browse, durable, reserved
from routing.queues import reservations

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.queue import Queue

BYTES_MAX = 4 << 20
"""Most of messages that one answer has, but that one message may be larger."""
READER_BYTES_MAX = 255
_PROCESS = token_hex(8)
"""Queues that end with this process have ids that are given anew by the next one."""
READERS = ("vhost", "queue", "group", "mode", "offset", "lag", "lag_ms")


@operation("queues.ends", tags=None)
async def ends(broker: Broker, user: str, name: str, vhost: str = "/") -> dict[str, Any]:
    """The topic of a stream; of a queue where the offsets of its home end that are committed, how many messages wait in
    it, and an id that no other queue ever has, also one that is made again under its name.
    """
    _may_read(broker, user, vhost, name)
    stream = broker.topology.vhost(vhost).streams.get(name)
    if stream is not None:
        return {"topic": stream.topic.name, "end": 0, "ready": 0, "id": ""}
    queue = _queue(broker, vhost, name)
    if queue.elsewhere:
        there: dict[str, Any] = await ask_leader(broker, queue, "queues.ends", {"name": name, "vhost": vhost})
        return there
    queue.require_led()
    end = await durable(broker, queue)
    return {"topic": None, "end": end, "ready": queue.message_count, "id": _id(queue)}


@operation("queues.browse", tags=None)
async def browse_queue(
    broker: Broker, user: str, name: str, offset: int, before: int, bytes_max: int = 1 << 20, vhost: str = "/"
) -> dict[str, Any]:
    """Record batches of what waits in a queue between two offsets, the offset to go on with, and the id that the queue
    has (`queues.ends`). It stays there.
    """
    _may_read(broker, user, vhost, name)
    queue = _queue(broker, vhost, name)
    if queue.elsewhere:
        told = {"name": name, "offset": offset, "before": before, "bytes_max": bytes_max, "vhost": vhost}
        there: dict[str, Any] = await ask_leader(broker, queue, "queues.browse", told)
        return there
    queue.require_led()
    return _shown(await browse(queue, max(offset, 0), before, _room(bytes_max))) | {"id": _id(queue)}


@operation("queues.reserve", tags=None)
async def reserve(
    broker: Broker,
    user: str,
    name: str,
    reader: str,
    position: int,
    count: int,
    lease_ms: int,
    vhost: str = "/",
) -> dict[str, int]:
    """Be done with all before a position, and have as many messages as `count` set aside from there on: up to which
    position, when that is durable, and how many still wait. They stand in line again when the reader is not heard of
    for `lease_ms` or the broker's limit.
    """
    _may_read(broker, user, vhost, name)
    _require_place(reader, position)
    queue = _queue(broker, vhost, name)
    if queue.elsewhere:
        told = {"name": name, "reader": reader, "position": position, "count": count, "lease_ms": lease_ms}
        there: dict[str, int] = await ask_leader(broker, queue, "queues.reserve", told | {"vhost": vhost})
        return there
    lease_ms = min(max(lease_ms, 1), broker.config.reader_lease_ms_max)
    found = reservations.reserve(queue, reader, position, count, lease_ms)
    end, ready = min(found.end, position + max(count, 0)), queue.message_count
    await durable(broker, queue)
    return {"position": position, "end": end, "reserved": found.end, "ready": ready}


@operation("queues.reserved", tags=None)
async def read_reserved(
    broker: Broker,
    user: str,
    name: str,
    reader: str,
    position: int,
    before: int,
    bytes_max: int = 1 << 20,
    vhost: str = "/",
) -> dict[str, Any]:
    """Record batches of what is set aside for a reader between two positions, and the position to go on with."""
    _may_read(broker, user, vhost, name)
    queue = _queue(broker, vhost, name)
    if queue.elsewhere:
        told = {"name": name, "reader": reader, "position": position, "before": before, "bytes_max": bytes_max}
        there: dict[str, Any] = await ask_leader(broker, queue, "queues.reserved", told | {"vhost": vhost})
        return there
    queue.require_led()
    found = (queue.reserved or {}).get(reader)
    if found is not None:
        reservations.renew(queue, reader, found)
    return _shown(await reserved(queue, reader, position, before, _room(bytes_max)))


@operation("queues.give_back", tags=None)
async def give_back(broker: Broker, user: str, name: str, reader: str, vhost: str = "/") -> int:
    """What is set aside for a reader stands in line again; how many messages."""
    _may_read(broker, user, vhost, name)
    queue = _queue(broker, vhost, name)
    if queue.elsewhere:
        told = {"name": name, "reader": reader, "vhost": vhost}
        there: int = await ask_leader(broker, queue, "queues.give_back", told)
        return there
    queue.require_led()
    count = reservations.give_back(queue, reader)
    await durable(broker, queue)
    return count


@operation("queues.lease", tags=None)
async def lease(
    broker: Broker, user: str, name: str, reader: str, offset: int, lease_ms: int, vhost: str = "/"
) -> None:
    """Say up to where a reader has browsed a queue: its lag is shown for so long or the broker's limit; 0: no longer.

    Nothing is kept for it. Of several readers of one name the last counts.
    """
    _may_read(broker, user, vhost, name)
    _require_place(reader, offset)
    queue = _queue(broker, vhost, name)
    if queue.elsewhere:
        told = {"name": name, "reader": reader, "offset": offset, "lease_ms": lease_ms, "vhost": vhost}
        await ask_leader(broker, queue, "queues.lease", told)
        return
    queue.require_led()
    queue_lag.stand(broker, queue, reader, offset, min(lease_ms, broker.config.reader_lease_ms_max))


@operation("queues.readers", tags=None)
async def list_readers(broker: Broker, user: str, group: str | None = None, start: int = 0) -> dict[str, Any]:
    """Readers of the queues that this broker leads, or those of one name: where they stand, how many messages they are
    behind, and how old the oldest of these is (None: not known). Of queues that the user may read; with a tag of all.
    """
    sees_all = has_tag(broker, user, LOOKS)
    found = [
        one
        for queue in broker.topology.all_queues()
        for one in queue_lag.standings(broker, queue, group)
        if sees_all or _sees(broker, user, queue)
    ]
    rows: list[Row] = []
    for one in page(found, start):
        lag_ms: int | None = 0
        if one.lag:
            oldest_ms = await queue_lag.oldest_ms(one)
            lag_ms = None if oldest_ms is None else max(broker.clock.now_ms() - oldest_ms, 0)
        rows.append((one.queue.vhost, one.queue.name, one.group, one.mode, one.position, one.lag, lag_ms))
    return table(READERS, rows, 0)


def _sees(broker: Broker, user: str, queue: Queue) -> bool:
    try:
        return broker.rights.grants(user, queue.vhost).allows("read", queue.name)
    except NotAllowed:
        return False


@operation("topics.of_filter", tags=None)
async def topic_of_filter(broker: Broker, user: str, pattern: str, vhost: str = "/") -> str:
    """The topic that keeps what an MQTT filter (with `.` for `/`) matches. It is made when it is not there, and begins
    with what is retained; it goes when nobody reads it for long (`filter_streams.py`).
    """
    grants = broker.rights.grants(user, vhost)
    grants.require("read", "exchange", MQTT_EXCHANGE)
    grants.require_keys("read", MQTT_EXCHANGE, (pattern,))
    return await filter_streams.topic_of_filter(broker, vhost, pattern)


def _shown(found: Read) -> dict[str, Any]:
    return {"batches": found.batches, "next": found.following}


def _id(queue: Queue) -> str:
    return str(queue.id) if queue.partition.durable else f"{queue.id} of {_PROCESS}"


def _require_place(reader: str, place: int) -> None:
    """Raises InvalidArgument."""
    if place < 0 or not 0 < len(reader.encode("utf-8", "replace")) <= READER_BYTES_MAX:
        raise InvalidArgument(f"a place from 0, and a reader's name of 1 to {READER_BYTES_MAX} bytes are needed")


def _room(bytes_max: int) -> int:
    return min(max(bytes_max, 1), BYTES_MAX)


def _may_read(broker: Broker, user: str, vhost: str, name: str) -> None:
    """Raises AccessRefused. Another broker has seen to it that its user may."""
    if user:
        broker.rights.grants(user, vhost).require("read", "queue", name)


def _queue(broker: Broker, vhost: str, name: str) -> Queue:
    """Raises NotFound, ResourceLocked (another connection's alone), NotImplementedYet (a stream)."""
    found = broker.topology.vhost(vhost)
    if name not in found.queues and name not in found.streams and name not in found.away:
        raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
    return found.queue(name, None, "reading")
