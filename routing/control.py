"""The control plane: what exists is declared, bound and deleted here.

Calls are asynchronous only because a durable change is answered when it is durable. The rules of what may be changed
are the topology's (`topology/topology.py`); `Broker` hands these methods on as its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import trio

from routing import directories
from routing.administration.forwarded import ask_leader
from routing.clients import Client
from routing.cluster.topic_logs import new_uid
from routing.commits import storage_errors
from routing.errors import (
    BrokerError,
    InvalidArgument,
    LedHere,
    LimitExceeded,
    NotAllowed,
    PreconditionFailed,
    StorageUnavailable,
)
from routing.grants import Grants
from routing.queues.queue import Queue
from routing.topics.stream_settings import STREAM, check_adoption, check_declaration, topic_config, topic_name
from routing.topics.topic import Topic, TopicPartition
from routing.topics.topic_config import log_config, replication
from routing.topics.topic_ids import new_id
from routing.topology import plans, topic_plans
from routing.topology.binding import Binding, Destination
from routing.topology.catalog import DEFAULT_VHOST
from routing.topology.entries import Entry, Plan, queue_key, topic_key, vhost_key
from routing.topology.plans import require_valid_topic_name
from routing.topology.virtual_host import VirtualHost

if TYPE_CHECKING:
    from routing.broker import Broker


@dataclass(slots=True, frozen=True)
class QueueInfo:
    """What a declaration answers."""

    name: str
    message_count: int
    consumer_count: int


class BindingOptions(TypedDict, total=False):
    """What else is said of a binding: the syntax of its pattern ("amqp" or "mqtt"), who asks, and where."""

    syntax: str
    owner: object
    vhost: str


class Control:
    """See the module; one for each broker."""

    def __init__(self, broker: Broker) -> None:
        self.config = broker.config
        self.topology = broker.topology
        self._broker = broker
        self._changing: set[str] = set()
        """Names of topics that are being created or deleted."""
        self._making_stream = trio.Lock()

    # --- virtual hosts -----------------------------------------------------------------

    async def set_vhost(
        self, name: str, *, description: str | None = None, limits: Mapping[str, int] | None = None
    ) -> None:
        """Make a virtual host, or change what is given: `limits` are "max-connections" and "max-queues", -1 is none.

        Raises InvalidArgument, LimitExceeded, StorageUnavailable.
        """
        topology = self.topology
        await topology.change(lambda: topology.plan_vhost(name, description=description, limits=limits))

    async def delete_vhost(self, name: str) -> None:
        """Everything in it goes with it, what users might do there as well, and connections to it are closed. Raises
        NotAllowed (there is none), AccessRefused ("/" stays), StorageUnavailable.
        """
        topology = self.topology
        topology.plan_vhost_removal(name)
        for stream in list(topology.vhost(name).streams.values()):
            await self.delete_topic(stream.topic.name)
        async with self._broker.rights.without(name) as entries:
            await topology.change(lambda: topology.plan_vhost_removal(name, also=entries))

    def connect(self, owner: object, client: Client, *, client_id: str | None = None) -> Grants:
        """A client connection is about to work in its virtual host; what it may do there. `Broker.release` is the
        inverse. For `client_id` see `Rights.grants`. Raises NotAllowed.
        """
        found = self.topology.vhost(client.vhost)
        grants = self._broker.rights.grants(client.user, client.vhost, client_id=client_id)
        limit = found.room("max-connections", len(found.connections))
        if limit is not None:
            raise NotAllowed(
                f"access to vhost '{client.vhost}' refused for user '{client.user}': "
                f"connection limit ({limit}) is reached"
            )
        found.connections[owner] = client
        return grants

    # --- exchanges, queues, bindings ---------------------------------------------------

    async def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
        vhost: str = DEFAULT_VHOST,
    ) -> None:
        """Raises AccessRefused, PreconditionFailed, UnknownExchangeType, NotImplementedYet, LimitExceeded,
        StorageUnavailable.
        """
        topology = self.topology
        await topology.change(
            lambda: topology.plan_exchange(
                topology.vhost(vhost),
                name,
                kind,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=arguments or {},
            )
        )

    def check_exchange(self, name: str, *, vhost: str = DEFAULT_VHOST) -> None:
        """Raises NotFound."""
        self.topology.vhost(vhost).exchange(name)

    async def delete_exchange(self, name: str, *, if_unused: bool = False, vhost: str = DEFAULT_VHOST) -> None:
        """Raises AccessRefused, PreconditionFailed, StorageUnavailable; one that is not there is no error."""
        topology = self.topology
        await topology.change(lambda: plans.delete_exchange(topology.vhost(vhost), name, if_unused=if_unused))

    async def declare_queue(
        self,
        name: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        owner: object = None,
        vhost: str = DEFAULT_VHOST,
        prefix: str = plans.GENERATED_PREFIX,
    ) -> QueueInfo:
        """Without a name the queue gets one that begins with `prefix`. Raises AccessRefused, PreconditionFailed,
        ResourceLocked, NotImplementedYet, LimitExceeded, StorageUnavailable.
        """
        topology = self.topology
        if arguments and arguments.get("x-queue-type") == STREAM:
            await self._make_stream(topology.vhost(vhost), name, durable, exclusive, auto_delete, dict(arguments))
        plan = await topology.change(
            lambda: topology.plan_queue(
                topology.vhost(vhost),
                name,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments or {},
                owner=owner,
                prefix=prefix,
            )
        )
        if plan.entries:
            await self._known_to_others()
            made = plan.entries[0].key[2]
            if exclusive or not await self._gives_way(topology.vhost(vhost), made):
                return QueueInfo(made, 0, 0)
            return await self.declare_queue(
                made, durable=durable, auto_delete=auto_delete, arguments=arguments, owner=owner, vhost=vhost
            )
        return await self.check_queue(name, owner, vhost=vhost)

    async def alter_queue(
        self, name: str, changes: Mapping[str, Any], *, owner: object = None, vhost: str = DEFAULT_VHOST
    ) -> None:
        """Give a queue other arguments while it is used; None takes one away. Declarations with the arguments it had
        before still mean this queue. Messages stay, and live by the new rules.

        Raises NotFound, ResourceLocked, InvalidArgument, NotImplementedYet (a stream, or to become one),
        StorageUnavailable.
        """
        away = self._away(vhost, name)
        if away is not None:
            await ask_leader(away, "queues.alter", {"name": name, "arguments": dict(changes), "vhost": vhost})
            return
        topology = self.topology
        await topology.change(lambda: plans.alter_queue(topology.vhost(vhost), name, changes, owner))

    async def _gives_way(self, vhost: VirtualHost, name: str) -> bool:
        """Whether a queue that was made here, and ends with this broker, is another's: one with a lower id has made one
        of that name at the same moment. Nobody was told of this one yet.
        """
        engine, cluster, own = self._broker.engine, self._broker.cluster, vhost.queues.get(name)
        if engine is None or cluster is None or own is None or own.partition.durable:
            return False
        other = engine.interests.also_at(vhost.name, name)
        if other is None or other > cluster.broker_id or own.consumers:
            return False
        self.topology.drop_queue(own)
        await engine.interests.until_told(vhost, name)
        return True

    def _away(self, vhost: str, name: str) -> Queue | None:
        """A queue that ends with another broker: what is to be changed of it is changed there. Raises NotAllowed."""
        there = self.topology.vhost(vhost)
        return None if name in there.queues or name in there.streams else there.away.get(name)

    async def check_queue(self, name: str, owner: object = None, *, vhost: str = DEFAULT_VHOST) -> QueueInfo:
        """Raises NotFound, ResourceLocked; StorageUnavailable if another broker leads the queue and does not answer."""
        queue = self.topology.vhost(vhost).source(name, owner)
        if not isinstance(queue, Queue) or queue.elsewhere:
            try:
                await queue.refresh()
            except LedHere:
                return await self.check_queue(name, owner, vhost=vhost)
        return QueueInfo(name, queue.message_count, queue.consumer_count)

    async def delete_queue(
        self,
        name: str,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        owner: object = None,
        vhost: str = DEFAULT_VHOST,
    ) -> int:
        """How many messages it held; 0 if it is not there. Raises ResourceLocked, PreconditionFailed,
        StorageUnavailable.
        """
        topology = self.topology
        away = self._away(vhost, name)
        if away is not None:
            told = {"name": name, "vhost": vhost, "if_unused": if_unused, "if_empty": if_empty}
            count: int = await ask_leader(away, "queues.delete", told)
            return count
        stream = topology.vhost(vhost).streams.get(name)
        if stream is not None:
            if if_empty:
                await stream.refresh()
            stream.check_deletion(if_unused=if_unused, if_empty=if_empty)
            held = stream.message_count
            await self.delete_topic(stream.topic.name)
            return held
        queue = topology.vhost(vhost).queues.get(name)
        if queue is not None and queue.elsewhere:
            try:
                await queue.refresh()
            except StorageUnavailable:
                if if_unused or if_empty:
                    raise
        plan = await topology.change(
            lambda: plans.delete_queue(topology.vhost(vhost), name, if_unused=if_unused, if_empty=if_empty, owner=owner)
        )
        return plan.message_count

    async def purge_queue(self, name: str, *, owner: object = None, vhost: str = DEFAULT_VHOST) -> int:
        """Settle all messages that are not delivered; how many there were.

        Raises NotFound, ResourceLocked, NotImplementedYet (a stream).
        """
        queue = self.topology.vhost(vhost).queue(name, owner, "queue.purge")
        if not queue.elsewhere:
            return queue.purge()
        try:
            return await queue.purge_elsewhere()
        except LedHere:
            return await self.purge_queue(name, owner=owner, vhost=vhost)

    async def bind(
        self, destination_kind: str, destination: str, exchange: str, pattern: str,
        arguments: Mapping[str, Any] | None = None, **options: Unpack[BindingOptions],
    ) -> None:  # fmt: skip
        """Bind a "queue", "exchange" or "topic". Raises NotFound, AccessRefused, ResourceLocked, InvalidArgument,
        LimitExceeded, StorageUnavailable.
        """
        ends = exchange, (destination_kind, destination)
        await self._change_binding("queues.bind", self.topology.plan_binding, ends, pattern, arguments, **options)

    async def unbind(
        self, destination_kind: str, destination: str, exchange: str, pattern: str,
        arguments: Mapping[str, Any] | None = None, **options: Unpack[BindingOptions],
    ) -> None:  # fmt: skip
        """The inverse of `bind`; a binding that is not there is no error, nor is an end of it that is not there."""
        ends = exchange, (destination_kind, destination)
        await self._change_binding("queues.unbind", plans.unbind, ends, pattern, arguments, **options)

    async def _change_binding(
        self,
        operation: str,
        plan: Callable[[VirtualHost, Binding, object], Plan],
        ends: tuple[str, Destination],
        pattern: str,
        arguments: Mapping[str, Any] | None,
        *,
        syntax: str = "amqp",
        owner: object = None,
        vhost: str = DEFAULT_VHOST,
    ) -> None:
        binding = Binding.make(*ends, pattern, arguments, syntax)
        topology = self.topology
        exchange, (kind, name) = ends
        away = self._away(vhost, name) if kind == "queue" else None
        source = topology.vhost(vhost).exchanges.get(exchange)
        if away is not None and (source is None or source.durable):
            # Who has the queue tells all what it wants. Exchanges that end with this broker have it do so here.
            said = {"exchange": exchange, "pattern": pattern, "syntax": syntax, "arguments": dict(arguments or {})}
            await ask_leader(away, operation, {"name": name, "vhost": vhost, **said})
            return
        await topology.change(lambda: plan(topology.vhost(vhost), binding, owner))
        await self._known_to_others()

    async def _known_to_others(self) -> None:
        """What queues that end with this broker want is known to all who may publish."""
        if self._broker.engine is not None:
            await self._broker.engine.interests.settled()

    # --- topics ------------------------------------------------------------------------

    async def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> Topic:
        """Raises InvalidArgument, PreconditionFailed (it exists), LimitExceeded, StorageUnavailable."""
        require_valid_topic_name(name)
        if not 1 <= partitions <= self.config.partitions_max:
            raise InvalidArgument(f"partitions must be 1 to {self.config.partitions_max}, not {partitions}")
        settings = dict(config or {})
        log_config(settings, self.config)
        said = replication(settings)
        if self._broker.cluster is None and said.asked > 1:
            raise InvalidArgument(f"topic config replication.factor={said.asked} is more than there are brokers (1)")
        return await self._make_topic(name, {"partitions": partitions, "config": settings}, lambda entry: Plan([entry]))

    async def _make_topic(self, name: str, value: dict[str, Any], plan: Callable[[Entry], Plan]) -> Topic:
        if name in self.topology.topics or name in self._changing:
            raise PreconditionFailed(f"topic '{name}' exists")
        if len(self.topology.topics) >= self.config.topics_max:
            raise LimitExceeded(f"there are {self.config.topics_max} topics already")
        value["id"] = new_id()
        if self._broker.storage.topic_logs is not None:
            return await self._make_shared_topic(name, value, plan)
        self._changing.add(name)
        try:
            with storage_errors():
                topic = self._broker.storage.create_topic(name, value)
            try:
                await self.topology.change(lambda: plan(Entry(topic_key(name), value, True, topic)))
            except BrokerError:
                self._close(topic.partitions)
                raise
        finally:
            self._changing.discard(name)
        return topic

    async def _make_shared_topic(self, name: str, value: dict[str, Any], plan: Callable[[Entry], Plan]) -> Topic:
        """The same in a cluster: brokers open its logs when they see it."""
        logs = self._broker.storage.topic_logs
        assert logs is not None

        def with_logs() -> Plan:
            if name in self.topology.topics:
                raise PreconditionFailed(f"topic '{name}' exists")
            uid = new_uid()
            found = plan(Entry(topic_key(name), value | {"uid": uid}, True))
            found.also, found.relied = logs.states(uid, range(value["partitions"]), replication(value["config"]))
            return found

        await self.topology.change(with_logs)
        return self.topology.topic(name)

    async def _make_stream(
        self,
        vhost: VirtualHost,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
    ) -> None:
        """Make a topic that is a stream, or a stream of the topic that has its name, unless it is there."""
        async with self._making_stream:
            if name in vhost.streams or name in vhost.queues:
                return
            plans.new_queue_name(name, plans.GENERATED_PREFIX)
            place = topic_name(name, vhost.name)
            check_declaration(
                name, vhost.name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments
            )
            said = {"vhost": vhost.name, "name": name, "arguments": arguments}
            topic = self.topology.topics.get(place)

            def plan(entry: Entry) -> Plan:
                if (
                    self.topology.vhost(vhost.name) is not vhost
                    or name in vhost.queues
                    or self.topology.topics.get(place) is not topic
                    or (topic is not None and len(topic.partitions) > 1)
                ):
                    raise PreconditionFailed(f"queue '{name}' in vhost '{vhost.name}' is being changed by others")
                plans.require_room_for_queue(vhost, name)
                return Plan([entry], [vhost_key(vhost.name), queue_key(vhost.name, name)])

            if topic is None:
                value = {"partitions": 1, "config": topic_config(arguments, self.config), "stream": said}
                await self._make_topic(place, value, plan)
                return
            check_adoption(place, len(topic.partitions), topic.config, arguments, self.config)
            entry = Entry(topic_key(place), topic.record(1) | {"stream": said}, True, topic)
            await self.topology.change(lambda: plan(entry))

    async def create_partitions(self, name: str, count: int) -> None:
        """Have a topic have `count` partitions. Raises NotFound, InvalidArgument (it has more), PreconditionFailed (it
        is a stream, or being changed), StorageUnavailable.
        """
        if count > self.config.partitions_max:
            raise InvalidArgument(f"partitions must be 1 to {self.config.partitions_max}, not {count}")
        if self._broker.storage.topic_logs is not None:
            await self.topology.change(lambda: self._plan_shared_partitions(name, count))
            return
        topic = self.topology.topic(name)
        plan = topic_plans.more_partitions(topic, count)
        if name in self._changing:
            raise PreconditionFailed(f"topic '{name}' is being changed or deleted")
        if not plan.entries:
            return
        self._changing.add(name)
        try:
            lacking = range(len(topic.partitions), count)
            with storage_errors():
                opened = self._broker.storage.create_partitions(name, {"config": topic.config}, lacking)
            try:
                await self.topology.change(lambda: topic_plans.more_partitions(topic, count, opened))
            except BrokerError:
                self._close(opened)
                raise
        finally:
            self._changing.discard(name)

    def _plan_shared_partitions(self, name: str, count: int) -> Plan:
        """The same in a cluster: the logs get replicas and leaders with the entry."""
        topic, logs = self.topology.topic(name), self._broker.storage.topic_logs
        plan = topic_plans.more_partitions(topic, count)
        if logs is not None and plan.entries:
            lacking = range(len(topic.partitions), count)
            said = replication(topic.config)._replace(unclean=logs.allows_unclean(topic))
            plan.also, plan.relied = logs.states(topic.uid, lacking, said)
        return plan

    async def delete_topic(self, name: str) -> None:
        """Raises NotFound, PreconditionFailed (it is being deleted), StorageUnavailable."""
        topic = self.topology.topic(name)
        if name in self._changing:
            raise PreconditionFailed(f"topic '{name}' is being changed or deleted")
        if topic.uid:
            await self.topology.change(lambda: self._plan_shared_removal(name, topic))
            return
        files = self._broker.files
        places = [partition.log.directory for partition in topic.partitions]
        self._changing.add(name)
        try:
            with storage_errors():
                await trio.to_thread.run_sync(directories.note_deletion, files, places)
                try:
                    await self.topology.change(lambda: topic_plans.removal(self.topology, name))
                finally:
                    if name in self.topology.topics:
                        directories.forget_deletion(files, places)
                self._close(topic.partitions)
                self._broker.offsets.forget_topic(name)
                await trio.to_thread.run_sync(directories.remove_noted, files, places)
        finally:
            self._changing.discard(name)

    def _plan_shared_removal(self, name: str, topic: Topic) -> Plan:
        plan = topic_plans.removal(self.topology, name)
        if self._broker.storage.topic_logs is not None and self.topology.topic(name) is topic:
            plan.also = self._broker.storage.topic_logs.removals(topic)
        return plan

    def _close(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._broker.forget_partition(partition)
            partition.log.close()
