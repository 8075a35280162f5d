"""A virtual host: a namespace of exchanges, queues and bindings as they stand.

Everything is looked up and changed here in memory only; `plans.py` has the rules of what may be changed, `topology.py`
sees to it that a change is written first. Changes of what is not there any more are no errors.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from routing.errors import NotFound, ResourceLocked
from routing.queues.queue import Queue
from routing.queues.settings import VIEW, VIEW_TOPIC, QueueSettings
from routing.topics.stream import Stream
from routing.topics.stream_settings import topic_name
from routing.topics.topic import Topic
from routing.topology.binding import Binding, BindingsTo, Common, Destination, shared_arguments, sharing
from routing.topology.entries import Key
from routing.topology.exchange import DEFAULT_EXCHANGES, Exchange
from routing.topology.history import RecentHistoryMatcher
from routing.topology.parked import parked_for
from routing.topology.policies import KINDS_OF_EXCHANGE, Policies, kinds_of_queue
from routing.topology.route import Route
from routing.topology.router import Router

if TYPE_CHECKING:
    from routing.clients import Client
    from routing.message import Slab
    from routing.topology.interest import Others, Wanted
    from routing.tracing import Trace


def locked(queue: str, vhost: str) -> ResourceLocked:
    """What a connection is told of another's exclusive queue."""
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration."
    )


class VirtualHost:
    """See the module. `topics` are those of all virtual hosts."""

    def __init__(self, name: str, topics: Mapping[str, Topic], routes_cached_max: int) -> None:
        self.name = name
        self.description = ""
        self.limits: dict[str, int] = {}
        """"max-connections" and "max-queues"; one that is missing or negative is none."""
        self.connections: dict[object, Client] = {}
        """Who is connected, by what owns exclusive queues."""
        self.attending: set[object] = set()
        """Those of them who may only ask for operations of administration; no limit counts them."""
        self.bindings_to = BindingsTo()
        self.binding_count = 0
        self.exchanges: dict[str, Exchange] = {
            name: Exchange(name, kind, internal=internal, bindings_to=self.bindings_to)
            for name, kind, internal in DEFAULT_EXCHANGES
        }
        self.send: Callable[[Route, Slab], object] = Route.deliver
        """Publishes what nobody waits for."""
        self.trace: Trace | None = None
        """Watches what is published and delivered, while it is switched on."""
        self.policies = Policies()
        self.queues: dict[str, Queue] = {}
        self.streams: dict[str, Stream] = {}
        """Topics that are declared and consumed like queues."""
        self.away: dict[str, Queue] = {}
        """Queues that end with other brokers, as far as they can be used from here. No route leads to these."""
        self.topics = topics
        self.viewed: Counter[str] = Counter()
        """How many queues are views of a topic, by its name."""
        self.grouped: Counter[str] = Counter()
        """How many queues group their messages, by what they group by."""
        self.parked: set[str] = set()
        """The names of the queues in which records of topics wait."""
        self.alternate_of: dict[str, set[str]] = {}
        """By the name of an exchange, which may not be there, those whose alternate it is."""
        self.wanted: Wanted | None = None
        """Told of what ends with this broker; None where there are no others."""
        self.others: Others | None = None
        """What those want."""
        self.router = Router(self, routes_cached_max)

    # --- looking up --------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """Raises NotFound."""
        found = self.exchanges.get(name)
        if found is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def queue(self, name: str, owner: object, operation: str) -> Queue:
        """Look a queue up for what no stream can do. Raises NotFound, ResourceLocked, NotImplementedYet."""
        found = self.source(name, owner)
        if isinstance(found, Stream):
            found.refuse(operation)
        return found

    def source(self, name: str, owner: object) -> Queue | Stream:
        """Look a queue or stream up for a connection. Of what is exclusive and at another broker only the name is known
        here. Raises NotFound, ResourceLocked.
        """
        found = self.queues.get(name) or self.streams.get(name) or self.away.get(name)
        if found is None:
            if self.is_others(name):
                raise locked(name, self.name)
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        if found.exclusive and found.owner is not owner:
            raise locked(name, self.name)
        return found

    def exists(self, destination: Destination) -> bool:
        """Whether a binding could lead there."""
        kind, name = destination
        if kind == "queue":
            return name in self.queues or name in self.streams
        return name in (self.exchanges if kind == "exchange" else self.topics)

    def binding_of(self, key: Key, value: Mapping[str, Any] | None, asked_for: Binding | None = None) -> Binding:
        """The binding of an entry; it has the very pattern that was asked for, which others may have as well."""
        _, _, exchange, kind, name, pattern, syntax, arguments_key = key
        if asked_for is not None:
            pattern = asked_for.pattern
        arguments = shared_arguments(value["arguments"] if value is not None else {}, arguments_key)
        found = self.exchanges.get(exchange)
        source = exchange if found is None else found.name
        common = Common(source, (kind, name), arguments, sys.intern(syntax), sys.intern(arguments_key))
        return Binding(pattern, common)

    def is_durable(self, binding: Binding) -> bool:
        """Whether both ends of a binding outlive a restart."""
        source = self.exchanges.get(binding.exchange)
        kind, name = binding.destination
        if source is None or not source.durable:
            return False
        if kind == "queue":
            queue = self.queues.get(name)
            return name in self.streams if queue is None else queue.partition.durable
        if kind == "exchange":
            exchange = self.exchanges.get(name)
            return exchange is not None and exchange.durable
        return name in self.topics

    def is_others(self, queue: str) -> bool:
        """Whether another broker has a queue of a name that ends with that broker."""
        return self.others is not None and bool(self.others.brokers_of(queue))

    def is_used(self, exchange: Exchange) -> bool:
        """Whether anything is bound to it, at whichever broker."""
        return bool(exchange.bindings) or self.is_wanted(exchange)

    def is_wanted(self, exchange: Exchange) -> bool:
        """Whether something is bound to it that is at another broker alone."""
        return self.others is not None and self.others.want(exchange.name)

    def room(self, limit: str, there: int) -> int | None:
        """The limit if it is reached."""
        most = self.limits.get(limit, -1)
        return most if 0 <= most <= there else None

    # --- changing ----------------------------------------------------------------------

    def add_exchange(self, name: str, value: Mapping[str, Any], durable: bool) -> None:
        """Make an exchange as its entry says."""
        exchange = self.exchanges[name] = Exchange(
            name,
            value["kind"],
            durable=durable,
            transient=value.get("transient", False),
            auto_delete=value["auto_delete"],
            internal=value["internal"],
            arguments=value["arguments"],
            bindings_to=self.bindings_to,
        )
        self._note_alternate(exchange)
        if self.others is not None:
            self.others.exchange_made(exchange)
        self.follow_policies(exchange)
        self.router.forget(name)

    def remove_exchange(self, name: str) -> None:
        """Its bindings were removed before."""
        self.router.forget(name)
        gone = self.exchanges.pop(name, None)
        if gone is not None:
            self._forget_alternate(gone)

    def _note_alternate(self, exchange: Exchange) -> None:
        if exchange.alternate is not None:
            self.alternate_of.setdefault(exchange.alternate, set()).add(exchange.name)

    def _forget_alternate(self, exchange: Exchange) -> None:
        if exchange.alternate is not None:
            there = self.alternate_of[exchange.alternate]
            there.discard(exchange.name)
            if not there:
                del self.alternate_of[exchange.alternate]

    def settings_of(self, name: str, arguments: Mapping[str, Any]) -> QueueSettings:
        """What a queue of this name and with these arguments is told, policies included."""
        found = QueueSettings.effective(arguments, self.policies.definition_of(kinds_of_queue(arguments), name))
        if arguments.get("x-queue-type") == VIEW:
            found = msgspec.structs.replace(found, view_of=topic_name(arguments[VIEW_TOPIC], self.name))
        return found

    def follow_policies(self, entity: Queue | Stream | Exchange) -> None:
        """Have a queue, a stream or an exchange live by the policies as they are now."""
        if isinstance(entity, Stream):
            if not entity.deleted:
                entity.apply_policy(self.policies.definition_of(kinds_of_queue(entity.arguments), entity.name))
            return
        if self.away.get(entity.name) is entity:
            assert isinstance(entity, Queue)
            entity.apply_settings(self.settings_of(entity.name, entity.arguments))
            return
        if isinstance(entity, Queue):
            settings = self.settings_of(entity.name, entity.arguments)
            if settings != entity.settings and not entity.deleted:
                self._group(entity.settings.group_by, -1)
                entity.apply_settings(settings)
                self._group(settings.group_by, 1)
                self.router.forget_all()
            return
        definition = self.policies.definition_of(KINDS_OF_EXCHANGE, entity.name) if entity.name else {}
        before = (entity.alternate, entity.delayed, entity.once_in_ms)
        self._forget_alternate(entity)
        entity.apply_policy(definition)
        self._note_alternate(entity)
        if before != (entity.alternate, entity.delayed, entity.once_in_ms):
            self.router.forget(entity.name)

    def add_queue(self, queue: Queue) -> None:
        """Make a queue known by its name."""
        self.queues[queue.name] = queue
        if parked_for(queue.name) is not None:
            self.parked.add(queue.name)
        self._view(queue.settings.view_of, 1)
        self._group(queue.settings.group_by, 1)
        if self.wanted is not None and not queue.partition.durable:
            self.wanted.named(queue)
        self.router.forget_queue(queue.name)

    def remove_queue(self, queue: Queue) -> None:
        """Its bindings were removed before."""
        gone = self.queues.pop(queue.name, None)
        self.parked.discard(queue.name)
        if gone is not None:
            self._view(gone.settings.view_of, -1)
            self._group(gone.settings.group_by, -1)
        if self.wanted is not None and gone is not None and not gone.partition.durable:
            self.wanted.gone(queue)
        self.router.forget_queue(queue.name)

    def _group(self, by: str | None, more: int) -> None:
        if by is not None:
            self.grouped[by] += more
            if not self.grouped[by]:
                del self.grouped[by]

    def _view(self, topic: str | None, more: int) -> None:
        if topic is not None:
            self.viewed[topic] += more
            if not self.viewed[topic]:
                del self.viewed[topic]
            if topic in self.topics:
                self.topics[topic].view(topic in self.viewed)

    def add_stream(self, stream: Stream) -> None:
        """Make a stream known by its name."""
        self.streams[stream.name] = stream
        self.follow_policies(stream)
        self.router.forget_all()

    def remove_stream(self, stream: Stream) -> None:
        """Its bindings were removed before."""
        self.streams.pop(stream.name, None)
        self.router.forget_all()

    def add_binding(self, binding: Binding) -> None:
        """Add a binding that was checked."""
        exchange = self.exchanges[binding.exchange]
        if binding in exchange.bindings:
            return
        binding = sharing(binding, self.bindings_to.get(binding.destination))
        exchange.add(binding)
        self.binding_count += 1
        if self.wanted is not None:
            self.wanted.bound(self, binding)
        self.router.forget(binding.exchange, binding)
        if isinstance(exchange.matcher, RecentHistoryMatcher):
            self.router.send_recent(exchange.matcher.recent(), binding.destination)

    def remove_binding(self, binding: Binding) -> None:
        """Remove a binding."""
        exchange = self.exchanges.get(binding.exchange)
        if exchange is None or not exchange.remove(binding):
            return
        self.binding_count -= 1
        if self.wanted is not None:
            self.wanted.unbound(self, binding)
        self.router.forget(binding.exchange, binding)

    def unbind_away(self, name: str) -> None:
        """A queue that ended with another broker is gone: so is what was bound to it here."""
        if name not in self.queues and name not in self.streams:
            for binding in list(self.bindings_to.get(("queue", name), ())):
                self.remove_binding(binding)
