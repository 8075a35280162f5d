"""What a broker says to whoever leads a log, in the order of what it publishes there: one message for no queue.

An order goes where messages go (`Stream`): it has a place among them, is said again to the next leader, and whoever
waits for it waits for a position. So it has to mean the same when it is said twice.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from core_log.errors import CorruptBatch
from routing.cluster.clients.streams import Slabs, Stream
from routing.message import NAME_ENCODING_ERRORS, NeutralProperties, Numbered, Properties, Slab, register_decoder
from routing.queues.history import HISTORY_BIT
from routing.queues.homes.destination_sets import NO_DUPLICATES
from routing.queues.homes.receipts import COMPLETED, RELEASED, RELEASED_FROM, complete, receive, release, release_from
from routing.queues.runs_of import runs_of
from routing.unsettled import Outcome

if TYPE_CHECKING:
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.queues.queue import Queue
    from routing.session import Session

NO_QUEUE = 0
"""No queue has this id."""
ALL_NEW = NO_QUEUE | HISTORY_BIT
"""Nor this one, before those of queues that are not to ask whether they know a message (`NO_DUPLICATES`)."""
_NO_NUMBER = array("H", [0])
_PROTOCOL = "millrace"
_PROPERTIES = Properties(_PROTOCOL, b"", persistent=True)

register_decoder(_PROTOCOL, lambda raw: NeutralProperties())


def for_queues(queue_ids: tuple[int, ...], once_in_ms: int, slab: Slab, again: bool = False) -> Slabs:
    """What their leader is sent."""
    if once_in_ms == NO_DUPLICATES:
        return Slabs((ALL_NEW, *queue_ids), 0, slab, again)
    return Slabs(queue_ids, once_in_ms, slab, again)


def order(
    stream: Stream,
    fields: Sequence[Any],
    *,
    kind: int = NO_QUEUE,
    about: str = "",
    said_by: tuple[int, int] | None = None,
) -> int:
    """Say something to the leader of a stream's log; the position behind it. The kind is what stands for a queue's id,
    `about` for the exchange; `said_by` a client and the epoch of its connection, where that matters.
    """
    body = msgpack.packb(list(fields), unicode_errors=NAME_ENCODING_ERRORS)
    slab = Slab(about, "", _PROPERTIES, [body])
    if said_by is not None:
        slab.once = Numbered(said_by[0], _NO_NUMBER, said_by[1])
    return stream.take(1, slab.size, Slabs((kind,), 0, slab))


def fields_of(body: bytes) -> list[Any]:
    """What was said. Raises CorruptBatch."""
    try:
        found = msgpack.unpackb(body, unicode_errors=NAME_ENCODING_ERRORS, max_str_len=len(body), max_bin_len=len(body))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptBatch(f"an order that cannot be read: {error}") from error
    return list(found)


def obey(home: QueuePartition, fields: Sequence[Any], sessions: Iterable[Session]) -> None:
    """Do what was told of a home (`queues/homes/receipts.py`); `sessions` may have its messages."""
    what, of, said = fields
    if what == RELEASED:
        release(home, of, said)
    elif what == RELEASED_FROM:
        release_from(home, of, but=said)
    elif of in home.queues:
        offsets = [one for first, last in zip(said[::2], said[1::2], strict=True) for one in range(first, last + 1)]
        if what == COMPLETED:
            complete(home.queues[of], offsets)
        else:
            receive_anywhere(home.queues[of], offsets, sessions)


def receive_anywhere(queue: Queue, offsets: Sequence[int], sessions: Iterable[Session]) -> None:
    """Messages are received, whoever has them by now: one of these sessions, or nobody."""
    sought = set(offsets)
    for session in sessions:
        ids = [
            entry.first + at
            for entry in session.unsettled
            if entry.queue is queue
            for at, offset in enumerate(entry.offsets_of(entry.first, entry.end))
            if offset in sought
        ]
        for first, count in runs_of(ids):
            session.settle(first, first + count - 1, Outcome.RECEIVED)
    if found := queue.rules.take_out(sorted(sought)):
        queue.outstanding += len(found)
        receive(queue, found)
