"""A queue that is a view of a topic: whoever consumes it competes for the topic's records, message by message.

All that a queue does with messages it does; where they come from is `view.py`. What is published to it goes to the
topic (`Router.resolve`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from routing.queues.queue import Queue
from routing.queues.view import View

if TYPE_CHECKING:
    from routing.consumer import Consumer
    from routing.queues.homes.home import Declared
    from routing.queues.homes.queue_partition import QueuePartition
    from routing.queues.host import QueueHost


class ViewQueue(Queue):
    """See the module; made by `QueuePartition.make_queue`."""

    __slots__ = ("view",)

    def __init__(
        self, queue_id: int, name: str, partition: QueuePartition, host: QueueHost, **declared: Unpack[Declared]
    ) -> None:
        topic, pattern = declared["settings"].view_of, declared["settings"].view_filter
        assert topic is not None
        self.view = View(self, partition, lambda: host.topic_feed(topic, self.view.advanced), pattern)
        super().__init__(queue_id, name, partition, host, **declared)
        self.store = self.view
        host.views.add(self)

    @property
    def message_count(self) -> int:
        """See `Queue`: what was not taken in yet could be delivered now."""
        return self.line.count + self.view.backlog

    @property
    def is_empty(self) -> bool:
        """See `Queue`; False where that has to be looked for."""
        return self.line.is_empty and not self.view.news

    def attach(self, consumer: Consumer, arguments: Mapping[str, Any]) -> Awaitable[None] | None:
        """See `Queue`."""
        waited = super().attach(consumer, arguments)
        if len(self.consumers) == 1:
            self.view.waits(1)
        self.view.news = True
        return waited

    def detach(self, consumer: Consumer) -> None:
        """See `Queue`."""
        super().detach(consumer)
        if not self.consumers:
            self.view.waits(-1)

    def head(self) -> tuple[int, int, bool]:
        """See `Queue`."""
        if not self.line.count and self.view.news:
            self.view.take_in()
        return super().head()

    async def feed(self) -> bool:
        """See `Queue`."""
        return await self.view.more()

    def shed(self, count: int) -> int:
        """See `Queue`, for what was taken in."""
        return super().shed(min(count, self.line.count))

    async def refresh(self) -> None:
        """See `Queue`."""
        await super().refresh()
        if self.view.is_behind:
            await self.view.refresh()

    def purge(self) -> int:
        """See `Queue`."""
        count = self.message_count
        self.shed(count)
        self.view.skip_to_end()
        return count

    def clear(self) -> None:
        """See `Queue`."""
        super().clear()
        self.view.close()
