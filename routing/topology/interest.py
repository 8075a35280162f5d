"""What queues of one broker alone want of the others, and what the others' want of it.

Queues that end with their broker, and what is bound to them, are in nobody's catalog. So that a message published
anywhere reaches them, each broker tells all others what such queues want: once for each exchange and pattern, however
many want the same, and the name of each queue. The others send it what matches, once, and it routes that again among
such queues only.

1. What divides messages among its bindings (hashes, chance) is told with the names of the queues: whoever takes a
   message chooses among all bindings, as everybody would, and sends it to the queue. It is not divided again there.
2. What is wanted of an exchange that is not known here (yet) is kept and takes effect when there is one.
3. A broker that gets a message for which nobody here is left drops it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from routing.message import Slab
from routing.topology.binding import Binding, Common, Destination, sharing

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.errors import StorageUnavailable
    from routing.queues.queue import Queue
    from routing.topics.topic_partition import TopicPartition
    from routing.topology.exchange import Exchange
    from routing.topology.virtual_host import VirtualHost

BROKER = "broker"
"""The kind of destination that another broker is."""


class Interest(NamedTuple):
    """What is wanted: messages to an exchange that match; or with the exchange "" those to the queue `pattern`."""

    vhost: str
    exchange: str
    pattern: str
    syntax: str = "amqp"
    arguments: str = ""
    """Of the binding, as JSON; empty if there are none. Of a queue that others may use what it is, see `Wanted`."""
    queue: str = ""
    """The name of the queue, where the exchange divides messages."""

    def binding(self, broker: int) -> Binding:
        """As it stands in the exchange."""
        arguments = json.loads(self.arguments) if self.arguments else {}
        destination = ("queue", self.queue) if self.queue else (BROKER, str(broker))
        return Binding(self.pattern, Common(self.exchange, destination, arguments, self.syntax, self.arguments))


class Wanted:
    """What queues here want, and what of it is news. `changed` is called when there is some."""

    def __init__(self) -> None:
        self.changed: Callable[[], None] | None = None
        self.process = 0
        """Which process of its broker this is, to others."""
        self._named: dict[tuple[str, str], Interest] = {}
        self._counts: dict[Interest, int] = {}
        self._news: dict[Interest, bool] = {}

    def bound(self, vhost: VirtualHost, binding: Binding) -> None:
        """A binding was made here."""
        if _is_told(vhost, binding):
            self._count(_interest_of(vhost, binding), 1)

    def unbound(self, vhost: VirtualHost, binding: Binding) -> None:
        """A binding is gone."""
        if _is_told(vhost, binding):
            self._count(_interest_of(vhost, binding), -1)

    def named(self, queue: Queue) -> None:
        """A queue was made here."""
        facts = "" if queue.exclusive else json.dumps(self._facts_of(queue), sort_keys=True, default=str)
        interest = self._named[queue.vhost, queue.name] = Interest(queue.vhost, "", queue.name, arguments=facts)
        self._count(interest, 1)

    def _facts_of(self, queue: Queue) -> dict[str, Any]:
        """By which others declare and use it."""
        return {
            "id": queue.id,
            "process": self.process,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "arguments": queue.arguments,
        }

    def gone(self, queue: Queue) -> None:
        """A queue is gone."""
        self._count(self._named.pop((queue.vhost, queue.name)), -1)

    def _count(self, interest: Interest, by: int) -> None:
        before = self._counts.get(interest, 0)
        after = before + by
        if after:
            self._counts[interest] = after
        else:
            del self._counts[interest]
        if not before or not after:
            if self._news.pop(interest, bool(after)) is bool(after):
                self._news[interest] = bool(after)
            if self.changed is not None:
                self.changed()

    @property
    def has_news(self) -> bool:
        """Whether there is any."""
        return bool(self._news)

    def news(self) -> tuple[list[Interest], list[Interest]]:
        """What is wanted and was not, and what is not any more, since this was last asked."""
        news, self._news = self._news, {}
        return [one for one, wanted in news.items() if wanted], [one for one, wanted in news.items() if not wanted]

    def all(self) -> list[Interest]:
        """Everything."""
        return list(self._counts)


def _is_told(vhost: VirtualHost, binding: Binding) -> bool:
    """Whether a binding leads from what others know to what they do not."""
    exchange = vhost.exchanges[binding.exchange]
    kind, name = binding.destination
    if not exchange.durable:
        return False
    if kind == "queue":
        queue = vhost.queues.get(name)
        return queue is not None and not queue.partition.durable
    if kind == "exchange" and exchange.matcher.to_all:
        found = vhost.exchanges.get(name)
        return found is not None and not found.durable
    return False


def _interest_of(vhost: VirtualHost, binding: Binding) -> Interest:
    kind, name = binding.destination
    divided = name if kind == "queue" and not vhost.exchanges[binding.exchange].matcher.to_all else ""
    return Interest(vhost.name, binding.exchange, binding.pattern, binding.syntax, binding.arguments_key, divided)


Send = Callable[[int, str, tuple[str, ...], str, bool, Slab], None]
"""To a broker, messages for a virtual host, with further routing keys that they are published with, or for the queue of
this name alone; whether they are not to come to queues that they died in.
"""
Reaches = Callable[[int], bool]
"""Whether there is a link to a broker."""


class Elsewhere:
    """Another broker as a destination: to a route it is what a topic is. Nothing of it outlives the process."""

    __slots__ = ("_broker", "_copies", "_died", "_queue", "_reaches", "_send", "_vhost", "name", "partitions")

    def __init__(
        self,
        broker: int,
        vhost: str,
        send: Send,
        reaches: Reaches,
        copies: tuple[str, ...] = (),
        queue: str = "",
        *,
        died: bool = False,
    ) -> None:
        self.name = f"broker {broker}"
        self.partitions: tuple[TopicPartition, ...] = ()
        """There is no log."""
        self._broker = broker
        self._vhost = vhost
        self._send = send
        self._reaches = reaches
        self._copies = copies
        self._queue = queue
        self._died = died

    def with_copies(self, copies: Sequence[str]) -> Elsewhere:
        """The same for messages that go wherever `copies` lead as well."""
        return self if self._queue else Elsewhere(self._broker, self._vhost, self._send, self._reaches, tuple(copies))

    def after_death(self, barred: Collection[str]) -> Elsewhere | None:
        """The same for dead letters that must not get to some queues; None: it is one of these."""
        if self._queue:
            return None if self._queue in barred else self
        return Elsewhere(self._broker, self._vhost, self._send, self._reaches, self._copies, died=True)

    @property
    def is_reached(self) -> bool:
        """Whether there is a link; without one messages are lost."""
        return self._reaches(self._broker)

    def require_room(self, slab: Slab) -> None:
        """It takes what this broker takes."""

    def error(self) -> StorageUnavailable | None:
        """It does not refuse."""
        return None

    def wait(self) -> bool:
        """See `Topic`."""
        return True

    def append_slab(self, slab: Slab) -> list[tuple[PartitionLog, int]]:
        """Send messages; nobody waits for that."""
        self._send(self._broker, self._vhost, self._copies, self._queue, self._died, slab)
        return []


class Others:
    """What other brokers want of a virtual host here."""

    def __init__(self, vhost: VirtualHost, send: Send, reaches: Reaches) -> None:
        self.targets: dict[str, Elsewhere] = {}
        """The brokers that want anything, as destinations."""
        self._vhost = vhost
        self._send = send
        self._reaches = reaches
        self._names: dict[str, dict[str, Interest]] = {}
        """Brokers that have a queue of a name, with which it is: one that went may have been made anew."""
        self._queues: dict[str, Elsewhere] = {}
        """Single queues as destinations."""
        self._by_exchange: dict[str, dict[Binding, None]] = {}
        """What is wanted of exchanges, whether they are there or not (rule 2)."""

    def add(self, broker: int, interest: Interest) -> None:
        """A broker wants something more."""
        target = str(broker)
        if target not in self.targets:
            self.targets[target] = Elsewhere(broker, self._vhost.name, self._send, self._reaches)
        if not interest.exchange:
            self._names.setdefault(interest.pattern, {})[target] = interest
            self._queues.pop(interest.pattern, None)
            self._vhost.router.forget_queue(interest.pattern)
            return
        wanted = self._by_exchange.setdefault(interest.exchange, {})
        binding = sharing(interest.binding(broker), wanted)
        exchange = self._vhost.exchanges.get(interest.exchange)
        if binding not in wanted and exchange is not None:
            exchange.matcher.add(binding)
            self._vhost.router.forget(interest.exchange, binding)
        wanted[binding] = None

    def remove(self, broker: int, interest: Interest) -> None:
        """A broker does not want something any more."""
        if not interest.exchange:
            brokers = self._names.get(interest.pattern, {})
            if brokers.get(str(broker)) == interest:
                del brokers[str(broker)]
            self._queues.pop(interest.pattern, None)
            if not brokers:
                self._names.pop(interest.pattern, None)
            self._vhost.router.forget_queue(interest.pattern)
            return
        binding = interest.binding(broker)
        wanted = self._by_exchange.get(interest.exchange, {})
        exchange = self._vhost.exchanges.get(interest.exchange)
        if binding in wanted:
            del wanted[binding]
            if exchange is not None:
                exchange.matcher.remove(binding)
                self._vhost.router.forget(interest.exchange, binding)
        if not wanted:
            self._by_exchange.pop(interest.exchange, None)

    @property
    def queue_count(self) -> int:
        """How many queues others have that end with their brokers."""
        return len(self._names)

    def brokers_of(self, queue: str) -> Collection[str]:
        """Who has a queue of a name that ends with its broker."""
        return self._names.get(queue, ())

    def want(self, exchange: str) -> bool:
        """Whether anything is wanted of an exchange."""
        return exchange in self._by_exchange

    def exchange_made(self, exchange: Exchange) -> None:
        """There is an exchange of which something was wanted before."""
        for binding in self._by_exchange.get(exchange.name, ()):
            exchange.matcher.add(binding)

    def queue(self, name: str) -> Elsewhere | None:
        """A queue alone, as a destination."""
        found = self._queues.get(name)
        if found is None and name in self._names:
            broker = int(min(self._names[name]))
            found = self._queues[name] = Elsewhere(broker, self._vhost.name, self._send, self._reaches, queue=name)
        return found

    def named(self, keys: Sequence[str]) -> list[Destination]:
        """Where queues of these names are."""
        return [(BROKER, target) for key in keys for target in self._names.get(key, ())]
