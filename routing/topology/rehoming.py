"""A home that is led by another broker from now on, or by this one: the same queues, in other objects.

Bindings stay, they are of names. Routes are worked out anew. What stood for the queues before is retired: what sessions
still say of it changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from routing.queues.history import HISTORY_BIT

if TYPE_CHECKING:
    from routing.queues.homes.home import Home
    from routing.queues.host import QueueHost
    from routing.queues.queue import Queue
    from routing.topology.topology import Topology


def adopt(topology: Topology, index: int, home: Home, host: QueueHost) -> None:
    """Have a home the same queues as what stands for it now, while that stays: once before `rehome`, or again."""
    there = topology.stripes[index].queues
    for queue in list(there.values()):
        vhost = topology.vhosts.get(queue.vhost)
        if vhost is None or vhost.queues.get(queue.name) is not queue:
            continue
        made = home.queues.get(queue.id) or made_by(home, queue, host)
        made.arguments, made.formerly = queue.arguments, queue.formerly
        if made.settings != queue.settings:
            made.apply_settings(queue.settings)
    for queue in [queue for queue in home.queues.values() if queue.id & ~HISTORY_BIT not in there]:
        queue.deleted = True
        home.remove(queue)
        queue.clear()


def rehome(topology: Topology, index: int, home: Home, host: QueueHost) -> None:
    """Let `home` stand for a stripe. Its queues are what it has under their ids, or makes now."""
    old, topology.stripes[index] = topology.stripes[index], home
    for queue in list(old.queues.values()):
        vhost = topology.vhosts.get(queue.vhost)
        if vhost is not None and vhost.queues.get(queue.name) is queue:
            vhost.queues[queue.name] = home.queues.get(queue.id) or made_by(home, queue, host)
    for vhost in topology.vhosts.values():
        vhost.router.forget_all()
    for queue in list(old.queues.values()):
        vhost = topology.vhosts.get(queue.vhost)
        successor = home.queues.get(queue.id)
        if vhost is not None and successor is not None and vhost.queues.get(queue.name) is successor:
            for consumer in queue.turns.drain():
                if consumer not in queue.joining:  # else it was not told yet that it consumes, and sees to it itself
                    successor.adopt(consumer)
        queue.retire()


def made_by(home: Home, like: Queue, host: QueueHost) -> Queue:
    """The queue that another object is, made by a home."""
    queue = home.make_queue(
        like.id,
        like.name,
        host,
        durable=like.durable,
        exclusive=like.exclusive,
        auto_delete=like.auto_delete,
        arguments=like.arguments,
        owner=like.owner,
        settings=like.settings,
        start=like.start,
    )
    queue.vhost, queue.formerly = like.vhost, like.formerly
    queue.rules.consumers_lost()
    return queue
