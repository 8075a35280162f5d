"""Operations on queues and on the messages in them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from routing.administration.figures import DELAYED, UNKNOWN, Figures, figures_here, figures_of
from routing.administration.forwarded import ask_leader
from routing.administration.move import move
from routing.administration.operations import LOOKS, operation, page, plain, require_short, table
from routing.administration.topology import Arguments, vhosts_of
from routing.errors import InvalidArgument, NotFound
from routing.queue_lag import first_waiting
from routing.queue_reading import durable, published_at
from routing.queues.queue import Queue
from routing.queues.retries import FIRST
from routing.republishing.rewind import rewind
from routing.topology.policies import kinds_of_queue

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.topics.stream import Stream
    from routing.topology.virtual_host import VirtualHost

MOVED_MAX = 10_000
"""Most messages one request moves."""
DELAYED_LOOKED_AT_MAX = 200_000
"""Most delayed messages that are looked at for the earliest ones."""

_COLUMNS = (
    "vhost", "name", "type", "durable", "auto_delete", "exclusive", "ready", "unacknowledged", "delayed", "consumers",
    "policy", "operator_policy", "arguments",
)  # fmt: skip


@operation("queues.list", tags=LOOKS)
async def list_queues(broker: Broker, user: str, vhost: str | None = None, start: int = 0) -> dict[str, Any]:
    """All queues and streams, or those of one virtual host, with their figures: None where another broker leads a
    queue, and does not say.
    """
    everything = ((found, one) for found in vhosts_of(broker, vhost) for one in _sources(found))
    shown = list(page(everything, start))
    figures = await figures_of(broker, (one for _, one in shown if isinstance(one, Queue)))
    rows = [
        _queue_row(found, one, figures.get(one)) if isinstance(one, Queue) else _stream_row(found, one)
        for found, one in shown
    ]
    return table(_COLUMNS, rows, 0)


def _sources(vhost: VirtualHost) -> Iterator[Queue | Stream]:
    yield from vhost.queues.values()
    yield from vhost.streams.values()


@operation("queues.describe", tags=LOOKS)
async def describe_queue(broker: Broker, user: str, name: str, vhost: str = "/") -> dict[str, Any]:
    """What `queues.list` says of one, and `oldest_s`: for how long the oldest message has waited; None if there is
    none, and for streams and views, where nothing waits in a queue's own log.
    """
    found = broker.topology.vhost(vhost)
    stream = found.streams.get(name)
    if stream is not None:
        return _described(_stream_row(found, stream), None)
    queue = found.queues.get(name) or found.away.get(name)
    if queue is None:
        raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
    if queue.elsewhere:
        told: dict[str, Any] = await ask_leader(broker, queue, "queues.describe", {"name": name, "vhost": vhost})
        return told
    row = _queue_row(found, queue, figures_here(queue))
    offset = first_waiting(queue)
    oldest_s = None
    if offset is not None and queue.settings.view_of is None:
        published_ms, _ = await published_at(queue, offset)
        oldest_s = max(0, queue.host.now_ms() - published_ms) / 1000
    return _described(row, oldest_s)


def _described(row: tuple[Any, ...], oldest_s: float | None) -> dict[str, Any]:
    return {**dict(zip(_COLUMNS, map(plain, row), strict=True)), "oldest_s": oldest_s}


def _queue_row(vhost: VirtualHost, queue: Queue, figures: Figures | None) -> tuple[Any, ...]:
    return (
        vhost.name, queue.name, queue.arguments.get("x-queue-type", "classic"), queue.durable, queue.auto_delete,
        queue.exclusive, *(figures or UNKNOWN), *_policies(vhost, queue), queue.arguments,
    )  # fmt: skip


def _stream_row(vhost: VirtualHost, stream: Stream) -> tuple[Any, ...]:
    return (
        vhost.name, stream.name, "stream", True, False, False, stream.message_count, 0, 0, len(stream.consumers),
        *_policies(vhost, stream), stream.arguments,
    )  # fmt: skip


def _policies(vhost: VirtualHost, queue: Queue | Stream) -> Iterator[str]:
    """The names of those that apply."""
    for policy in vhost.policies.of(kinds_of_queue(queue.arguments), queue.name):
        yield policy.name if policy else ""


@operation("queues.add")
async def add_queue(
    broker: Broker,
    user: str,
    name: str,
    vhost: str = "/",
    durable: bool = True,
    auto_delete: bool = False,
    arguments: Arguments | None = None,
) -> None:
    """Declare a queue."""
    if not name:
        raise InvalidArgument("a queue needs a name")
    require_short("the name of a queue", name)
    await broker.declare_queue(name, durable=durable, auto_delete=auto_delete, arguments=arguments, vhost=vhost)


@operation("queues.alter")
async def alter_queue(broker: Broker, user: str, name: str, arguments: Arguments, vhost: str = "/") -> None:
    """Change arguments of a queue that is there; one that is null goes."""
    queue = _queue(broker, vhost, name, "queues.alter")
    await broker.alter_queue(name, arguments, owner=queue.owner, vhost=vhost)


@operation("queues.delete")
async def delete_queue(
    broker: Broker, user: str, name: str, vhost: str = "/", if_unused: bool = False, if_empty: bool = False
) -> int:
    """Delete a queue, whoever it belongs to; how many messages it had."""
    found = broker.topology.vhost(vhost)
    queue = found.queues.get(name)
    if queue is None and name not in found.streams and name not in found.away:
        raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
    owner = None if queue is None else queue.owner
    return await broker.delete_queue(name, if_unused=if_unused, if_empty=if_empty, owner=owner, vhost=vhost)


@operation("queues.bind")
async def bind_queue(
    broker: Broker,
    user: str,
    name: str,
    exchange: str,
    pattern: str = "",
    syntax: Literal["amqp", "mqtt"] = "amqp",
    vhost: str = "/",
    arguments: Arguments | None = None,
) -> None:
    """Bind a queue to an exchange."""
    owner = _owner(broker, vhost, name)
    await broker.bind("queue", name, exchange, pattern, arguments, syntax=syntax, owner=owner, vhost=vhost)


@operation("queues.unbind")
async def unbind_queue(
    broker: Broker,
    user: str,
    name: str,
    exchange: str,
    pattern: str = "",
    syntax: Literal["amqp", "mqtt"] = "amqp",
    vhost: str = "/",
    arguments: Arguments | None = None,
) -> None:
    """The inverse of `queues.bind`; a binding that is not there is no error."""
    owner = _owner(broker, vhost, name)
    await broker.unbind("queue", name, exchange, pattern, arguments, syntax=syntax, owner=owner, vhost=vhost)


@operation("queues.purge")
async def purge_queue(broker: Broker, user: str, name: str, vhost: str = "/") -> int:
    """Drop all messages of a queue that are not delivered; how many there were."""
    return await broker.purge_queue(name, owner=_queue(broker, vhost, name, "queues.purge").owner, vhost=vhost)


@operation("queues.move")
async def move_messages(
    broker: Broker, user: str, source: str, destination: str, vhost: str = "/", limit: int = MOVED_MAX
) -> dict[str, int]:
    """Move messages that wait in a queue to another: how many were moved, and how many still wait.

    A message leaves its queue when the copy is safe. At most `MOVED_MAX` go in one request.
    """
    queue, target = (_queue(broker, vhost, name, "queues.move") for name in (source, destination))
    if queue is target:
        raise InvalidArgument("source and destination are the same queue")
    if queue.elsewhere:
        told = {"source": source, "destination": destination, "vhost": vhost, "limit": limit}
        there: dict[str, int] = await ask_leader(broker, queue, "queues.move", told)
        return there
    moved = await move(broker, vhost, queue, destination, min(limit, MOVED_MAX))
    if queue.deleted and not moved:
        there = await move_messages(broker, user, source, destination, vhost, limit)  # another's now, or gone
        return there
    if queue.deleted:
        queue = _queue(broker, vhost, source, "queues.move")
        await queue.refresh()
    return {"moved": moved, "left": queue.message_count}


@operation("queues.rewind")
async def rewind_queue(
    broker: Broker,
    user: str,
    name: str,
    since_ms: int,
    vhost: str = "/",
    dry_run: bool = False,
    after: int = -1,
    before: int | None = None,
) -> dict[str, int]:
    """Have a queue give out again what was published since a time (ms since 1970) and is done with.

    At most `MOVED_MAX` messages in one request; ask again with `after` as `last`, and the same `before`.
    """
    queue = _queue(broker, vhost, name, "queues.rewind")
    if queue.elsewhere:
        told = {
            "name": name,
            "since_ms": since_ms,
            "vhost": vhost,
            "dry_run": dry_run,
            "after": after,
            "before": before,
        }
        there: dict[str, int] = await ask_leader(broker, queue, "queues.rewind", told)
        return there
    end = queue.partition.next_offset if before is None else before
    done = await rewind(broker, queue, since_ms, after=after, before=end, limit=MOVED_MAX, dry_run=dry_run)
    if queue.deleted and done.left and not done.replayed:
        there = await rewind_queue(broker, user, name, since_ms, vhost, dry_run, after, end)  # another's now, or gone
        return there
    return {**done._asdict(), "before": end}


# --- delayed messages --------------------------------------------------------------------


@operation("delayed.count", tags=LOOKS)
async def count_delayed(broker: Broker, user: str, vhost: str | None = None, start: int = 0) -> dict[str, Any]:
    """Queues with delayed messages, and how many: None where another broker leads a queue, and does not say."""
    queues = [(found.name, queue) for found in vhosts_of(broker, vhost) for queue in found.queues.values()]
    figures = await figures_of(broker, (queue for _, queue in queues))
    rows = (
        (name, queue.name, delayed)
        for name, queue in queues
        if (delayed := figures.get(queue, UNKNOWN)[DELAYED]) is None or delayed
    )
    return table(("vhost", "queue", "delayed"), rows, start)


@operation("delayed.list", tags=LOOKS)
async def list_delayed(
    broker: Broker, user: str, queue: str, vhost: str = "/", limit: int = 100, start: int = 0
) -> dict[str, Any]:
    """The delayed messages of a queue that are due first: id, due time in ms since 1970, and how often a consumer
    refused it: a message waits for its next try as others wait for their first.

    Where more than `DELAYED_LOOKED_AT_MAX` wait, the first among so many.
    """
    there = _queue(broker, vhost, queue, "delayed.list")
    if there.elsewhere:
        told = {"queue": queue, "vhost": vhost, "limit": limit, "start": start}
        listed: dict[str, Any] = await ask_leader(broker, there, "delayed.list", told)
        return listed
    earliest = delayed_first(there, min(limit, 1000)) if not start else []
    tries = {} if there.returns is None else there.returns.tries
    rows = ((offset, due_ms, tries.get(offset, FIRST).failures) for due_ms, offset in earliest)
    return table(("id", "due_at_ms", "failures"), rows, 0)


def delayed_first(queue: Queue, limit: int) -> list[tuple[int, int]]:
    """(due time in ms, offset) of delayed messages, those due first."""
    return nsmallest(max(limit, 0), islice(queue.rules.delayed(), DELAYED_LOOKED_AT_MAX))


@operation("delayed.cancel")
async def cancel_delayed(broker: Broker, user: str, queue: str, id: int, vhost: str = "/") -> None:
    """Drop a delayed message of a queue, or one that waits for its next try: it does not come after a crash either.

    Raises StorageUnavailable where the disk refuses; it may be gone all the same.
    """
    there = _queue(broker, vhost, queue, "delayed.cancel")
    if there.elsewhere:
        await ask_leader(broker, there, "delayed.cancel", {"queue": queue, "id": id, "vhost": vhost})
        return
    home = there.partition
    if home.refusal is not None:
        raise home.refusal
    if not there.rules.cancel_delayed(id):
        raise NotFound(f"no delayed message {id} in queue '{queue}' in vhost '{vhost}'")
    home.seal_all()
    await durable(broker, there)


def _owner(broker: Broker, vhost: str, name: str) -> object:
    """The connection that a queue or stream belongs to alone: an operator may do what that may. Raises NotFound."""
    found = broker.topology.vhost(vhost)
    there = found.queues.get(name)
    owner = None if there is None else there.owner
    found.source(name, owner)
    return owner


def _queue(broker: Broker, vhost: str, name: str, operation: str) -> Queue:
    """Raises NotFound, NotImplementedYet (a stream)."""
    return broker.topology.vhost(vhost).queue(name, _owner(broker, vhost, name), operation)
