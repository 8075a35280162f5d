"""How much waits in queues, wherever they are led: their leaders are asked, once for all queues of a home."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from routing.administration.forwarded import ask_leader
from routing.administration.operations import LOOKS, operation
from routing.errors import BrokerError, NotFound
from routing.queues.limits import room

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.queues.queue import Queue

_ASKED_MAX = 1000
"""Queues that one question is about."""
_PATIENCE_S = 2.0
"""For so long a leader is waited for."""


class Figures(NamedTuple):
    """Of a queue."""

    ready: int
    unacknowledged: int
    delayed: int
    consumers: int


UNKNOWN = (None,) * len(Figures._fields)
DELAYED = Figures._fields.index("delayed")


async def figures_of(broker: Broker, queues: Iterable[Queue]) -> dict[Queue, Figures]:
    """The figures of queues; those are left out that another broker leads which does not say now."""
    found: dict[Queue, Figures] = {}
    elsewhere: defaultdict[Any, list[Queue]] = defaultdict(list)
    for queue in queues:
        if queue.elsewhere:
            elsewhere[queue.partition].append(queue)
        else:
            found[queue] = figures_here(queue)
    if elsewhere:
        async with trio.open_nursery() as nursery:
            for there in elsewhere.values():
                for start in range(0, len(there), _ASKED_MAX):
                    nursery.start_soon(_ask, broker, there[start : start + _ASKED_MAX], found)
    return found


async def _ask(broker: Broker, queues: list[Queue], found: dict[Queue, Figures]) -> None:
    names = [[queue.vhost, queue.name] for queue in queues]
    told: list[list[int] | None] = []
    with trio.move_on_after(_PATIENCE_S):
        try:
            told = await ask_leader(broker, queues[0], "queues.figures", {"queues": names})
        except BrokerError:
            return
    found.update((queue, Figures(*figures)) for queue, figures in zip(queues, told) if figures is not None)


@operation("queues.figures", tags=LOOKS)
async def list_figures(broker: Broker, user: str, queues: list[tuple[str, str]]) -> list[list[int] | None]:
    """What is ready, unacknowledged and delayed in queues, named with their virtual hosts, and how many consumers
    there are; None where the broker that is asked does not lead a queue.
    """
    found: list[list[int] | None] = []
    for vhost, name in queues[:_ASKED_MAX]:
        host = broker.topology.vhosts.get(vhost)
        queue = None if host is None else host.queues.get(name)
        found.append(None if queue is None or queue.elsewhere else list(figures_here(queue)))
    return found


@operation("queues.has_room", tags=LOOKS)
async def has_room(broker: Broker, user: str, name: str, sizes: list[int], vhost: str = "/") -> bool:
    """Whether a queue takes messages with bodies of these sizes, and refuses none of them."""
    queue = broker.topology.vhost(vhost).queues.get(name)
    if queue is None:
        raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
    if queue.elsewhere:
        return bool(await ask_leader(broker, queue, "queues.has_room", {"name": name, "sizes": sizes, "vhost": vhost}))
    return room(queue, list(map(range, sizes)))[0] == len(sizes)


def figures_here(queue: Queue) -> Figures:
    """Of a queue that is led here."""
    return Figures(queue.message_count, queue.outstanding, queue.rules.delayed_count, len(queue.consumers))
