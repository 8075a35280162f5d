"""What goes together with an exchange, a queue or a topic: bindings, and exchanges that go with their last binding."""

from __future__ import annotations

from routing.queues.queue import Queue
from routing.topology.binding import Binding, Destination
from routing.topology.entries import Entry, Key, Plan, exchange_key, queue_key, topic_key
from routing.topology.exchange import Exchange
from routing.topology.parked import parked_for
from routing.topology.virtual_host import VirtualHost


class Removal:
    """Collects the entries of a deletion; changes nothing. Without `cascade` the durable exchanges that would go with
    their last binding stay, and are in `orphans`.
    """

    def __init__(self, vhost: VirtualHost, *, cascade: bool = True) -> None:
        self._vhost = vhost
        self._cascade = cascade
        self._entries: dict[Key, Entry] = {}
        self._left: dict[Exchange, int] = {}
        self._doomed: list[Exchange] = []
        self.orphans: list[Exchange] = []

    def plan(self) -> Plan:
        """Everything that was collected; what is named last goes last."""
        return Plan(list(self._entries.values()))

    def queue(self, queue: Queue) -> Removal:
        """A queue goes."""
        self._bindings_to(("queue", queue.name))
        self._with_their_bindings()
        self._add(Entry(queue_key(self._vhost.name, queue.name), None, queue.partition.durable, queue))
        return self

    def topic(self, name: str) -> Removal:
        """A topic goes: the bindings in this virtual host to it, or to the stream that it is here, and its views."""
        self._bindings_to(("topic", name))
        for queue in self._vhost.queues.values():
            if queue.settings.view_of == name or parked_for(queue.name) == name:
                self.queue(queue)
        for stream in self._vhost.streams.values():
            if stream.topic.name == name:
                self._bindings_to(("queue", stream.name))
        self._with_their_bindings()
        self._add(Entry(topic_key(name), None, True))
        return self

    def exchange(self, exchange: Exchange) -> Removal:
        """An exchange goes."""
        self._doomed.append(exchange)
        self._with_their_bindings()
        return self

    def binding(self, binding: Binding) -> Removal:
        """A binding goes."""
        self._binding(binding)
        self._with_their_bindings()
        return self

    def everything(self) -> Removal:
        """All queues and exchanges of the virtual host go."""
        for queue in self._vhost.queues.values():
            self.queue(queue)
        for exchange in self._vhost.exchanges.values():
            self.exchange(exchange)
        return self

    def _add(self, entry: Entry) -> None:
        self._entries[entry.key] = entry

    def _with_their_bindings(self) -> None:
        """The exchanges that go: their bindings first, and what that brings with it."""
        while self._doomed:
            exchange = self._doomed.pop()
            key = exchange_key(self._vhost.name, exchange.name)
            if key in self._entries:
                continue
            self._add(Entry(key, None, exchange.durable))
            for binding in exchange.bindings:
                self._binding(binding)
            self._bindings_to(("exchange", exchange.name))
            self._add(self._entries.pop(key))

    def _bindings_to(self, destination: Destination) -> None:
        for binding in self._vhost.bindings_to.get(destination, ()):
            self._binding(binding)

    def _binding(self, binding: Binding) -> None:
        key = binding.key(self._vhost.name)
        if key in self._entries:
            return
        self._add(Entry(key, None, self._vhost.is_durable(binding), binding))
        source = self._vhost.exchanges[binding.exchange]
        left = self._left[source] = self._left.get(source, len(source.bindings)) - 1
        if left or not source.auto_delete or self._vhost.is_wanted(source):
            return
        if self._cascade or not source.durable:
            self._doomed.append(source)
        else:
            self.orphans.append(source)
