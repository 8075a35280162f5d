"""Named queues that end with another broker, as clients of this one use them.

Each broker tells of the queues that it has (`topology/interest.py`), and of those that any connection may use what they
are: here a `RemoteQueue` stands for each, by which it is consumed, got from, purged and counted like one that another
broker leads. No route leads to it: messages are sent to its broker as to all queues that end with one.

1. Such a queue is the process's that has it: what is asked after that one is gone finds nobody.
2. A link that begins anew tells everything again. What is not told again is gone.
3. A queue of this broker comes before another's of the same name, and that of a lower id before others.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from routing.cluster.clients.remote_home import RemoteHome
from routing.cluster.clients.remote_queue import RemoteQueue
from routing.cluster.metadata.log_names import transient_log
from routing.errors import StorageUnavailable

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.clients.forwarding import Forwarding
    from routing.topology.interest import Interest
    from routing.topology.virtual_host import VirtualHost


class AwayHome(RemoteHome):
    """What the queues of a process of another broker are in. Nothing is published by it."""

    durable = False

    def __init__(self, broker: int, process: int, forwarding: Forwarding) -> None:
        self.index = -1
        self.queues = {}
        self.name = transient_log(broker, process)
        self.forwarding = forwarding

    @property
    def error(self) -> StorageUnavailable | None:
        """See `Home`."""
        return None


class AwayQueues:
    """See the module."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding
        self._there: dict[tuple[str, str], dict[int, tuple[Interest, RemoteQueue | None]]] = {}
        """By virtual host and name: what each broker tells, and what stands for it while there is the virtual host."""
        self._untold: dict[int, set[tuple[str, str]]] = {}
        """What brokers have not told again yet."""

    def told(self, broker: int, interest: Interest) -> None:
        """A broker has a queue."""
        name = (interest.vhost, interest.pattern)
        self._untold.get(broker, set()).discard(name)
        there = self._there.setdefault(name, {})
        known = there.get(broker)
        if known is not None and known[0] == interest:
            return
        if known is not None:
            self._drop(known[1])
        vhost = self._broker.topology.vhosts.get(interest.vhost)
        there[broker] = interest, self._make(broker, interest) if vhost is not None else None
        self._show(name)

    def _make(self, broker: int, interest: Interest) -> RemoteQueue:
        facts: dict[str, Any] = json.loads(interest.arguments)
        home = AwayHome(broker, facts["process"], self._forwarding)
        queue = home.make_queue(
            facts["id"],
            interest.pattern,
            self._broker.host,
            durable=facts["durable"],
            exclusive=False,
            auto_delete=facts["auto_delete"],
            arguments=facts["arguments"],
            owner=None,
            settings=self._broker.topology.vhosts[interest.vhost].settings_of(interest.pattern, facts["arguments"]),
        )
        assert isinstance(queue, RemoteQueue)
        queue.vhost = interest.vhost
        return queue

    def gone(self, broker: int, interest: Interest) -> None:
        """A broker has a queue no more; it may have another of that name."""
        name = (interest.vhost, interest.pattern)
        known = self._there.get(name, {}).get(broker)
        if known is not None and known[0] == interest:
            self._forget(broker, name)

    def _forget(self, broker: int, name: tuple[str, str]) -> None:
        there = self._there.get(name, {})
        known = there.pop(broker, None)
        if not there:
            self._there.pop(name, None)
        self._show(name)
        if known is not None:
            self._drop(known[1])

    def begin(self, broker: int) -> None:
        """A broker begins to tell everything (rule 2)."""
        self._untold[broker] = {name for name, there in self._there.items() if broker in there}

    def complete(self, broker: int) -> None:
        """It has."""
        for name in self._untold.pop(broker, ()):
            self._forget(broker, name)

    def forget(self, broker: int) -> None:
        """A broker is gone."""
        self.begin(broker)
        self.complete(broker)

    def vhost_made(self, vhost: VirtualHost) -> None:
        """There is a virtual host."""
        for name, there in self._there.items():
            if name[0] == vhost.name:
                for broker, (interest, _) in there.items():
                    there[broker] = interest, self._make(broker, interest)
                self._show(name)

    def _show(self, name: tuple[str, str]) -> None:
        """Rule 3."""
        vhost = self._broker.topology.vhosts.get(name[0])
        if vhost is None:
            return
        there = self._there.get(name, {})
        queue = next((there[broker][1] for broker in sorted(there)), None)
        if queue is not None:
            vhost.away[name[1]] = queue
        else:
            vhost.away.pop(name[1], None)
            vhost.unbind_away(name[1])

    def _drop(self, queue: RemoteQueue | None) -> None:
        if queue is None:
            return
        queue.deleted = True
        queue.partition.remove(queue)
        queue.clear()
        for consumer in queue.turns.drain():
            consumer.session.queue_gone(consumer)
        self._forwarding.want_turn()
