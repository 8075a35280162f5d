"""Exchanges, queues, bindings and topics as they stand, and the rules for changing them.

All changes are synchronous and seen at once; those that must outlive the process are written to the catalog, and
whoever asked waits for `Catalog.commit` before saying that they are done. The rules and texts are RabbitMQ's.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from core_log.errors import LogUnavailable
from routing.config import BrokerConfig
from routing.errors import (
    AccessRefused,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    NotImplementedYet,
    PreconditionFailed,
    ResourceLocked,
    UnknownExchangeType,
)
from routing.queues.queue import Queue
from routing.queues.queue_partition import QueuePartition
from routing.topics.topic import Topic
from routing.topology.catalog import Catalog
from routing.topology.exchange import KINDS, Binding, Destination, Exchange

DEFAULT_EXCHANGES = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)

_REFUSED_QUEUE_ARGUMENTS = frozenset(
    {
        "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange",
        "x-dead-letter-routing-key", "x-max-priority", "x-single-active-consumer", "x-delivery-limit",
    }
)  # fmt: skip
_REFUSED_EXCHANGE_ARGUMENTS = frozenset({"alternate-exchange"})


@dataclass(slots=True, frozen=True)
class QueueInfo:
    """What a declaration answers."""

    name: str
    message_count: int
    consumer_count: int


def _unequal(kind: str, name: str, argument: str, received: object, current: object) -> PreconditionFailed:
    return PreconditionFailed(
        f"inequivalent arg '{argument}' for {kind} '{name}' in vhost '/': received {_say(received)} "
        f"but current is {_say(current)}"
    )


def _locked(name: str) -> ResourceLocked:
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original declaration."
    )


def _say(value: object) -> str:
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _refuse_arguments(arguments: Mapping[str, Any], refused: frozenset[str]) -> None:
    for name in arguments:
        if name in refused:
            raise NotImplementedYet(f"argument '{name}' is not supported by this version")


class Topology:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        catalog: Catalog,
        *,
        stripes: list[QueuePartition],
        transient: QueuePartition,
        runnable: Callable[[Queue], None],
        changed: Callable[[], None],
    ) -> None:
        self.config = config
        self.catalog = catalog
        self.stripes = stripes
        self.transient = transient
        self.exchanges: dict[str, Exchange] = {name: Exchange(name, kind) for name, kind in DEFAULT_EXCHANGES}
        self.queues: dict[str, Queue] = {}
        self.topics: dict[str, Topic] = {}
        self.owned: dict[object, dict[Queue, None]] = {}
        """Exclusive queues by the connection they end with."""
        self._bindings_to: dict[Destination, dict[Binding, None]] = {}
        self._binding_count = 0
        self._runnable = runnable
        self._changed = changed

    # --- recovery ----------------------------------------------------------------------

    def recover_queues(self) -> None:
        """Make the exchanges and queues of the catalog; their partitions are replayed afterwards."""
        for (name,), entry in self.catalog.entries("exchange"):
            self.exchanges[name] = Exchange(
                name,
                entry["kind"],
                auto_delete=entry["auto_delete"],
                internal=entry["internal"],
                arguments=entry["arguments"],
            )
        for (name,), entry in self.catalog.entries("queue"):
            partition = self.stripes[entry["stripe"]]
            self._add_queue(
                entry["id"], name, partition, True, False, entry["auto_delete"], entry["arguments"], owner=None
            )

    def recover_bindings(self) -> None:
        """Make the bindings of the catalog, once queues and topics are there."""
        for (exchange, kind, destination, pattern, syntax, _), entry in self.catalog.entries("binding"):
            if exchange in self.exchanges and self._exists((kind, destination)):
                binding = Binding.make(exchange, (kind, destination), pattern, entry["arguments"], syntax)
                self._add_binding(binding)

    def _exists(self, destination: Destination) -> bool:
        kind, name = destination
        if kind == "queue":
            return name in self.queues
        return name in (self.exchanges if kind == "exchange" else self.topics)

    # --- exchanges ---------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """Look one up. Raises NotFound."""
        found = self.exchanges.get(name)
        if found is None:
            raise NotFound(f"no exchange '{name}' in vhost '/'")
        return found

    def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Mapping[str, Any] | None,
    ) -> bool:
        """Make an exchange, or check that the one there is the same; whether the catalog is concerned."""
        arguments = dict(arguments or {})
        if name == "":
            raise AccessRefused("operation not permitted on the default exchange")
        if kind not in KINDS:
            raise UnknownExchangeType(f"unknown exchange type '{kind}'")
        found = self.exchanges.get(name)
        if found is not None:
            asked = {"type": kind, "durable": durable, "auto_delete": auto_delete, "internal": internal}
            have = {
                "type": found.kind,
                "durable": found.durable,
                "auto_delete": found.auto_delete,
                "internal": found.internal,
            }
            for argument, value in asked.items():
                if value != have[argument]:
                    raise _unequal("exchange", name, argument, value, have[argument])
            self._check_arguments("exchange", name, arguments, found.arguments)
            return durable
        if name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        _refuse_arguments(arguments, _REFUSED_EXCHANGE_ARGUMENTS)
        if len(self.exchanges) >= self.config.exchanges_max:
            raise LimitExceeded(f"there are {self.config.exchanges_max} exchanges already")
        exchange = Exchange(
            name, kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
        )
        if durable:
            self.catalog.put_exchange(exchange)
        self.exchanges[name] = exchange
        self._changed()
        return durable

    @staticmethod
    def _check_arguments(kind: str, name: str, asked: Mapping[str, Any], have: Mapping[str, Any]) -> None:
        for argument in sorted({*asked, *have}):
            if asked.get(argument) != have.get(argument):
                raise _unequal(kind, name, argument, asked.get(argument, "none"), have.get(argument, "none"))

    def delete_exchange(self, name: str, *, if_unused: bool) -> bool:
        """Delete an exchange and its bindings; one that is not there is no error. Whether the catalog is concerned."""
        found = self.exchanges.get(name)
        if name == "" or name.startswith("amq."):
            raise AccessRefused(
                "operation not permitted on the default exchange"
                if name == ""
                else f"exchange name '{name}' contains reserved prefix 'amq.*'"
            )
        if found is None:
            return False
        if if_unused and found.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '/' in use")
        if found.durable:
            self.catalog.delete_exchange(name)
        for binding in list(found.bindings):
            self._remove_binding(binding)
        self._remove_bindings_to(("exchange", name))
        self.exchanges.pop(name, None)
        self._changed()
        return found.durable

    # --- queues ------------------------------------------------------------------------

    def queue(self, name: str, owner: object) -> Queue:
        """Look one up for a connection. Raises NotFound, ResourceLocked."""
        found = self.queues.get(name)
        if found is None:
            raise NotFound(f"no queue '{name}' in vhost '/'")
        if found.exclusive and found.owner is not owner:
            raise _locked(name)
        return found

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any] | None,
        owner: object,
    ) -> tuple[QueueInfo, bool]:
        """Make a queue, or check that the one there is the same; whether the catalog is concerned."""
        arguments = dict(arguments or {})
        durable_entry = durable and not exclusive
        if name in self.queues:
            found = self.queue(name, owner)
            if exclusive != found.exclusive:
                raise _locked(name)
            asked = {"durable": durable, "auto_delete": auto_delete}
            have = {"durable": found.durable, "auto_delete": found.auto_delete}
            for argument, value in asked.items():
                if value != have[argument]:
                    raise _unequal("queue", name, argument, value, have[argument])
            self._check_arguments("queue", name, arguments, found.arguments)
            return QueueInfo(name, found.message_count, len(found.consumers)), durable_entry
        if name == "":
            name = f"amq.gen-{secrets.token_urlsafe(16)}"
        elif name.startswith("amq."):
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        _refuse_arguments(arguments, _REFUSED_QUEUE_ARGUMENTS)
        kind = arguments.get("x-queue-type", "classic")
        if kind != "classic":
            raise NotImplementedYet(f"queue type '{kind}' is not supported by this version")
        if len(self.queues) >= self.config.queues_max:
            raise LimitExceeded(f"there are {self.config.queues_max} queues already")
        # An exclusive queue ends with its connection, so nothing of it has to outlive the process.
        queue_id = self.catalog.new_queue_id(durable=durable_entry)
        partition = self.stripes[queue_id % self.config.stripes] if durable_entry else self.transient
        queue = self._add_queue(queue_id, name, partition, durable, exclusive, auto_delete, arguments, owner)
        if durable_entry:
            self.catalog.put_queue(queue)
        self._changed()
        return QueueInfo(name, 0, 0), durable_entry

    def _add_queue(
        self,
        queue_id: int,
        name: str,
        partition: QueuePartition,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        owner: object,
    ) -> Queue:
        queue = Queue(
            queue_id,
            name,
            partition,
            self._runnable,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=arguments,
            owner=owner,
        )
        self.queues[name] = queue
        partition.queues[queue_id] = queue
        if exclusive:
            self.owned.setdefault(owner, {})[queue] = None
        return queue

    def delete_queue(self, name: str, *, if_unused: bool, if_empty: bool, owner: object) -> tuple[int, bool]:
        """Delete a queue: its messages, bindings and consumers. Message count, and whether the catalog is concerned.

        A queue that is not there is no error, as in RabbitMQ. Raises ResourceLocked, PreconditionFailed.
        """
        if name not in self.queues:
            return 0, False
        queue = self.queue(name, owner)
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"queue '{name}' in vhost '/' in use")
        if if_empty and queue.message_count:
            raise PreconditionFailed(f"queue '{name}' in vhost '/' is not empty")
        return self.drop_queue(queue)

    def drop_queue(self, queue: Queue) -> tuple[int, bool]:
        """Delete without asking."""
        if queue.deleted:
            return 0, False
        durable = queue.partition.durable
        if durable:
            self.catalog.delete_queue(queue.name)
        queue.deleted = True
        del self.queues[queue.name]
        if queue.exclusive:
            self._disown(queue)
        self._remove_bindings_to(("queue", queue.name))
        count = queue.message_count
        for first, number in queue.live_ranges():
            queue.partition.forget(first, number)
        queue.ready.clear()
        queue.returned.clear()
        queue.partition.queues.pop(queue.id, None)
        consumers, queue.consumers = queue.consumers, []
        for consumer in consumers:
            consumer.session.queue_gone(consumer)
        self._changed()
        return count, durable

    def _disown(self, queue: Queue) -> None:
        owned = self.owned[queue.owner]
        del owned[queue]
        if not owned:
            del self.owned[queue.owner]

    # --- bindings ----------------------------------------------------------------------

    def bind(self, binding: Binding, owner: object) -> bool:
        """Add a binding; whether the catalog is concerned. Raises NotFound, AccessRefused, InvalidArgument,
        LimitExceeded.
        """
        exchange, durable = self._ends(binding, owner)
        if binding in exchange.bindings:
            return durable
        if self._binding_count >= self.config.bindings_max:
            raise LimitExceeded(f"there are {self.config.bindings_max} bindings already")
        self._add_binding(binding)
        if durable:
            self.catalog.put_binding(binding)
        self._changed()
        return durable

    def _ends(self, binding: Binding, owner: object) -> tuple[Exchange, bool]:
        """The exchange, and whether both ends of the binding are durable."""
        if binding.exchange == "" or binding.destination == ("exchange", ""):
            raise AccessRefused("operation not permitted on the default exchange")
        exchange = self.exchange(binding.exchange)
        kind, name = binding.destination
        if kind == "queue":
            return exchange, exchange.durable and self.queue(name, owner).partition.durable
        if kind == "exchange":
            return exchange, exchange.durable and self.exchange(name).durable
        if name not in self.topics:
            raise NotFound(f"no topic '{name}'")
        return exchange, exchange.durable

    def _add_binding(self, binding: Binding) -> None:
        self.exchanges[binding.exchange].add(binding)
        self._bindings_to.setdefault(binding.destination, {})[binding] = None
        self._binding_count += 1

    def unbind(self, binding: Binding, owner: object) -> bool:
        """Remove a binding; one that is not there is no error, as in RabbitMQ. Whether the catalog is concerned."""
        exchange, durable = self._ends(binding, owner)
        if binding not in exchange.bindings:
            return False
        self._remove_binding(binding)
        self._changed()
        return durable

    def _remove_binding(self, binding: Binding) -> None:
        exchange = self.exchanges.get(binding.exchange)
        if exchange is None or not exchange.remove(binding):
            return
        self._binding_count -= 1
        there = self._bindings_to.get(binding.destination, {})
        there.pop(binding, None)
        if not there:
            self._bindings_to.pop(binding.destination, None)
        if self._is_durable(binding, exchange):
            self.catalog.delete_binding(binding)
        if exchange.auto_delete and not exchange.bindings and exchange.name in self.exchanges:
            with suppress(LogUnavailable):  # nobody asked for it: while the catalog cannot be written it stays
                self.delete_exchange(exchange.name, if_unused=False)

    def _is_durable(self, binding: Binding, exchange: Exchange) -> bool:
        kind, name = binding.destination
        if kind == "queue":
            # A queue that is being deleted is not in `queues` any more; deleting a record that is not there is
            # harmless.
            queue = self.queues.get(name)
            return exchange.durable and (queue is None or queue.partition.durable)
        if kind == "exchange":
            other = self.exchanges.get(name)
            return exchange.durable and (other is None or other.durable)
        return exchange.durable

    def _remove_bindings_to(self, destination: Destination) -> None:
        for binding in list(self._bindings_to.get(destination, ())):
            self._remove_binding(binding)

    # --- topics ------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Look one up. Raises NotFound."""
        found = self.topics.get(name)
        if found is None:
            raise NotFound(f"no topic '{name}'")
        return found

    def remove_topic(self, topic: Topic) -> None:
        """Forget a topic and its bindings."""
        self.catalog.delete_topic(topic.name)
        del self.topics[topic.name]
        self._remove_bindings_to(("topic", topic.name))
        self._changed()

    # --- routing -----------------------------------------------------------------------

    def resolve(
        self, exchange: Exchange, key: str, headers: Callable[[], Mapping[str, Any]]
    ) -> tuple[list[Queue], list[Topic], bool]:
        """Queues and topics that a message reaches, each once, and whether its headers had a say."""
        queues: dict[Queue, None] = {}
        topics: dict[Topic, None] = {}
        dynamic = False
        seen = {exchange.name}
        pending = [exchange]
        while pending:
            current = pending.pop()
            if current.name == "":
                queue = self.queues.get(key)
                if queue is not None:
                    queues[queue] = None
                continue
            dynamic = dynamic or current.matcher.needs_headers
            found: Iterable[Destination] = current.matcher.match(
                key, headers() if current.matcher.needs_headers else {}
            )
            for kind, name in found:
                if kind == "queue":
                    queues[self.queues[name]] = None
                elif kind == "topic":
                    topics[self.topics[name]] = None
                elif name not in seen:
                    seen.add(name)
                    pending.append(self.exchanges[name])
        return list(queues), list(topics), dynamic


def require_valid_topic_name(name: str) -> None:
    """Kafka's rule: 1 to 249 of letters, digits, `.`, `_` and `-`, neither `.` nor `..`; `__` is reserved."""
    legal = 0 < len(name) <= 249 and name not in (".", "..") and name.isascii()
    if not legal or not all(character.isalnum() or character in "._-" for character in name):
        raise InvalidArgument(f"topic name {name!r} is not 1 to 249 letters, digits, '.', '_' and '-'")
    if name.startswith("__"):
        raise InvalidArgument(f"topic name {name!r}: names that begin with '__' are reserved")
