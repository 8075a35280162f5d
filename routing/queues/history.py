"""What a queue has done with, for as long as it is told to retain it (`retain`).

A queue that retains has a *history* beside it: a queue that nobody sees, in the same home partition, with every message
that goes to the queue, for the time that is retained. A body is written once for both, so all that it costs is the
place on disk for longer. It has no entry in the catalog: its id is that of its queue with one bit more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.queues.settings import QueueSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from routing.queues.host import QueueHost
    from routing.queues.queue import Queue

HISTORY_BIT = 1 << 31


def follow(queue: Queue, retain_ms: int, host: QueueHost) -> None:
    """Have a queue retain messages for so long; 0: it forgets what it has retained."""
    history = queue.history
    if history is not None and not retain_ms:
        queue.history = None
        history.deleted = True
        history.partition.remove(history)
        history.clear()
    elif history is not None:
        history.apply_settings(QueueSettings(message_ttl_ms=retain_ms))
    elif retain_ms:
        queue.history = history = type(queue)(
            queue.id | HISTORY_BIT,
            queue.name,
            queue.partition,
            host,
            durable=queue.durable,
            exclusive=False,
            auto_delete=False,
            arguments={},
            owner=None,
            settings=QueueSettings(message_ttl_ms=retain_ms),
        )
        queue.partition.queues[history.id] = history


def with_histories(queues: Iterable[Queue]) -> Iterator[Queue]:
    """These queues, and those beside them."""
    for queue in queues:
        yield queue
        if queue.history is not None:
            yield queue.history
