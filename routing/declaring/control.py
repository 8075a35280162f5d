"""The control plane: what exists is declared, bound and deleted here.

Calls are asynchronous only because a durable change is answered when it is durable. The rules of what may be changed
are the topology's (`topology/plans.py`, `topology/broker_plans.py`); `Broker` hands these methods on as its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import trio

from routing.access.grants import Grants
from routing.administration.forwarded import ask_leader
from routing.administration.retained import forget
from routing.clients import Client
from routing.cluster.metadata.log_names import home_log
from routing.declaring.at_once import at_once
from routing.declaring.topic_control import TopicControl
from routing.declaring.views import Begun, arguments_of, require_same, start_of_view
from routing.elsewhere import LOOK_S, SERVED_WITHIN_S, is_served
from routing.errors import BrokerError, LedHere, NotAllowed, NotFound, PreconditionFailed, StorageUnavailable
from routing.queues.queue import Queue
from routing.queues.queue_rules import COME_AGAIN_S
from routing.queues.settings import VIEW
from routing.topics.stream import Stream
from routing.topics.stream_settings import STREAM
from routing.topology import broker_plans, plans
from routing.topology.binding import Binding, Destination
from routing.topology.broker_plans import Permitted, everything
from routing.topology.catalog import DEFAULT_VHOST
from routing.topology.entries import Plan
from routing.topology.virtual_host import VirtualHost

if TYPE_CHECKING:
    from routing.broker import Broker


@dataclass(slots=True, frozen=True)
class QueueInfo:
    """What a declaration answers."""

    name: str
    message_count: int
    consumer_count: int


Bound = tuple[str, Mapping[str, Any] | None]
"""The pattern of a binding, and its arguments."""


class BindingOptions(TypedDict, total=False):
    """What else is said of a binding: the syntax of its pattern ("amqp" or "mqtt"), who asks, and where."""

    syntax: str
    owner: object
    vhost: str


class _Declared(TypedDict):
    """What a queue is declared with, whatever its name."""

    durable: bool
    auto_delete: bool
    arguments: Mapping[str, Any] | None
    owner: object
    vhost: str
    permitted: Permitted


class Control:
    """See the module; one for each broker."""

    def __init__(self, broker: Broker, topics: TopicControl) -> None:
        self.topology = broker.topology
        self._broker = broker
        self._topics = topics

    # --- virtual hosts -----------------------------------------------------------------

    async def set_vhost(
        self, name: str, *, description: str | None = None, limits: Mapping[str, int] | None = None
    ) -> None:
        """Make a virtual host, or change what is given: `limits` are "max-connections" and "max-queues", -1 is none.

        Raises InvalidArgument, LimitExceeded, StorageUnavailable.
        """
        topology = self.topology
        await topology.change(lambda: broker_plans.set_vhost(topology, name, description=description, limits=limits))

    async def delete_vhost(self, name: str) -> None:
        """Everything in it goes with it, what users might do there as well, and connections to it are closed. Raises
        NotAllowed (there is none), AccessRefused ("/" stays), StorageUnavailable.
        """
        topology = self.topology
        broker_plans.delete_vhost(topology, name)
        await forget(self._broker, name)  # a later one of that name is not to have it, and nobody could ask again
        streams = topology.vhost(name).streams
        for stream in list(streams.values()):
            await self._topics.delete_stream(stream)
        async with self._broker.rights.without(name) as entries:
            await topology.change(lambda: broker_plans.delete_vhost(topology, name, also=entries))
        for stream in list(streams.values()):  # declared meanwhile
            await self._topics.delete_stream(stream)
        await forget(self._broker, name)  # kept meanwhile

    def connect(
        self, owner: object, client: Client, *, client_id: str | None = None, instead_of: object = None
    ) -> Grants:
        """A client connection is about to work in its virtual host; what it may do there. `Broker.release` is the
        inverse. For `client_id` see `Rights.grants`; the place of a connection that it comes `instead_of` counts as
        free. Raises NotAllowed, Banned.
        """
        self._broker.bans.require_welcome(client.name, client.user, client.peer)
        found = self.topology.vhost(client.vhost)
        grants = self._broker.rights.grants(client.user, client.vhost, client_id=client_id)
        others = len(found.connections) - len(found.attending) - (instead_of in found.connections)
        limit = found.room("max-connections", others)
        if limit is not None:
            raise NotAllowed(
                f"access to vhost '{client.vhost}' refused for user '{client.user}': "
                f"connection limit ({limit}) is reached"
            )
        found.connections[owner] = client
        return grants

    def attend(self, owner: object, client: Client) -> Grants:
        """A client connection that may not enter its virtual host asks for operations of administration alone, which
        look at tags and permissions themselves: an operator may be the one who can mend what keeps it out. It may do
        nothing in the virtual host, whatever is changed. Raises NotAllowed where there is no such virtual host.
        """
        found = self.topology.vhost(client.vhost)
        found.connections[owner] = client
        found.attending.add(owner)
        return self._broker.rights.no_grants(client.user, client.vhost)

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
        permitted: Permitted = everything,
    ) -> None:
        """Raises AccessRefused, PreconditionFailed, UnknownExchangeType, NotImplementedYet, LimitExceeded,
        StorageUnavailable.
        """
        topology = self.topology
        await topology.change(
            lambda: broker_plans.declare_exchange(
                topology,
                topology.vhost(vhost),
                name,
                kind,
                permitted,
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
        permitted: Permitted = everything,
    ) -> QueueInfo:
        """Without a name the queue gets one that begins with `prefix`. Raises AccessRefused, PreconditionFailed,
        ResourceLocked, NotImplementedYet, LimitExceeded, StorageUnavailable.
        """
        topology = self.topology
        declared: _Declared = {
            "durable": durable, "auto_delete": auto_delete, "arguments": arguments, "owner": owner, "vhost": vhost,
            "permitted": permitted,
        }  # fmt: skip
        if self._broker.engine is not None and (there := topology.vhosts.get(vhost)) is not None:
            await self._broker.engine.interests.until_free(there, name)
        begun: Begun | None = None
        if arguments and arguments.get("x-queue-type") == VIEW:
            found = topology.vhost(vhost)
            if name not in found.queues:
                begun = await start_of_view(topology, found, name, arguments, durable=durable, exclusive=exclusive)
            arguments = arguments_of(arguments)
        if arguments and arguments.get("x-queue-type") == STREAM:
            await self._topics.make_stream(
                topology.vhost(vhost), name, durable, exclusive, auto_delete, dict(arguments)
            )

        def make_plan() -> Plan:
            found = topology.vhost(vhost)
            if begun is not None and name not in found.queues:
                require_same(found, name, arguments or {}, begun)
            return broker_plans.declare_queue(
                topology, found, name, durable=durable, exclusive=exclusive, auto_delete=auto_delete,
                arguments=arguments or {}, owner=owner, prefix=prefix, permitted=permitted,
                start=None if begun is None else begun.offsets,
            )  # fmt: skip

        try:
            plan = await topology.change(make_plan)
        except PreconditionFailed:
            if not await self._is_altered(vhost, name):
                raise
            return await self.declare_queue(name, exclusive=exclusive, prefix=prefix, **declared)
        if plan.entries:
            await self._known_to_others()
            made = plan.entries[0].key[2]
            if exclusive or not await self._gives_way(topology.vhost(vhost), made):
                return QueueInfo(made, 0, 0)
            return await self.declare_queue(made, **declared)
        try:
            return await self.check_queue(name, owner, vhost=vhost)
        except NotFound:
            await self._until_unknown(vhost, name)
        return await self.declare_queue(name, exclusive=exclusive, prefix=prefix, **declared)

    async def _is_altered(self, vhost: str, name: str) -> bool:
        """Whether a queue that ends with another broker has other arguments than it was known here to have; from now on
        these are known.
        """
        away = self._away(vhost, name)
        if away is None:
            return False
        try:
            told = await ask_leader(self._broker, away, "queues.describe", {"name": name, "vhost": vhost})
        except BrokerError:
            return False
        if told["arguments"] == away.arguments or away.deleted:
            return False
        away.formerly = [*away.formerly, away.arguments]
        away.arguments = told["arguments"]
        self.topology.vhost(vhost).follow_policies(away)
        return True

    async def _until_unknown(self, vhost: str, name: str) -> None:
        """A queue that is known here is gone, says who has it: wait until this broker knows. Raises NotFound."""
        there = self.topology.vhost(vhost)
        gone = there.queues.get(name) or there.away.get(name)
        until_s = trio.current_time() + SERVED_WITHIN_S
        while gone is not None and not gone.deleted:
            if trio.current_time() >= until_s:
                raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
            await trio.sleep(LOOK_S)

    async def until_gone(self, queues: Iterable[Queue | Stream]) -> None:
        """Consumers of these are gone: return when the queues that go with their last one are, so that nobody is told
        of them any more, or when it is not known soon who could tell: the connection waits.
        """
        leaving = [one for one in set(queues) if isinstance(one, Queue) and one.auto_delete and not one.deleted]
        if not leaving:
            return
        here = [queue for queue in leaving if not queue.elsewhere]
        elsewhere = [partial(self._until_gone_elsewhere, queue) for queue in leaving if queue.elsewhere]
        with trio.move_on_after(SERVED_WITHIN_S):
            await at_once([partial(self._until_gone_here, here), *elsewhere])

    async def _until_gone_here(self, queues: Sequence[Queue]) -> None:
        for queue in queues:
            await self.topology.until_left(queue.vhost, queue.name)

    @staticmethod
    async def _until_gone_elsewhere(queue: Queue) -> None:
        with suppress(BrokerError):
            await queue.refresh()  # asked behind what was said of the consumers

    def see_off(self, queue: Queue) -> None:
        """The last consumer here of an auto-delete queue that another broker leads is gone. A leader that is gone, too,
        may not have heard of it, and the next does not know that there was one. So it is looked at when those that it
        may have elsewhere have had the time to come again, to the leader that there is then.
        """
        at = trio.current_time() + COME_AGAIN_S
        self._broker.timers.at(at, partial(self._look_after, queue.vhost, queue.name, queue.id, self._leader_of(queue)))

    def _leader_of(self, queue: Queue) -> tuple[int | None, int]:
        cluster = self._broker.cluster
        return cluster.leader_of(home_log(queue.partition.index)) if cluster is not None else (None, 0)

    def _look_after(self, vhost: str, name: str, queue_id: int, leader: tuple[int | None, int]) -> None:
        there = self.topology.vhosts.get(vhost)
        queue = None if there is None else there.queues.get(name)
        if queue is None or queue.id != queue_id or queue.consumers:
            return
        if leader == self._leader_of(queue):
            self._broker.spawn(self._delete_unused, queue)
        else:
            self.see_off(queue)

    async def _delete_unused(self, queue: Queue) -> None:
        try:
            await self.delete_queue(queue.name, if_unused=True, vhost=queue.vhost, queue_id=queue.id)
        except StorageUnavailable:
            self.see_off(queue)  # nobody leads it yet
        except BrokerError:
            return  # it is used, or gone with its virtual host

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
            await ask_leader(
                self._broker, away, "queues.alter", {"name": name, "arguments": dict(changes), "vhost": vhost}
            )
            await self._is_altered(vhost, name)
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
        """Raises NotFound, ResourceLocked; StorageUnavailable if another broker leads the queue, or may, and none
        answers.
        """
        await self.topology.until_left(vhost, name)
        queue = self.topology.vhost(vhost).source(name, owner)
        try:
            await queue.refresh()
        except LedHere:
            return await self.check_queue(name, owner, vhost=vhost)
        if isinstance(queue, Queue) and not queue.elsewhere:
            queue.rules.used()
            queue.rules.catch_up()
            if not await is_served(queue):
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
        queue_id: int | None = None,
    ) -> int:
        """How many messages it held; 0 if it is not there, or not that of an id. Raises ResourceLocked,
        PreconditionFailed, StorageUnavailable.
        """
        topology = self.topology
        said: dict[str, Any] = {"if_unused": if_unused, "if_empty": if_empty, "owner": owner, "queue_id": queue_id}
        away = self._away(vhost, name)
        if away is not None:
            told = {"name": name, "vhost": vhost, "if_unused": if_unused, "if_empty": if_empty}
            try:
                count: int = await ask_leader(self._broker, away, "queues.delete", told)
            except NotFound:
                return 0  # it went meanwhile, or its broker did
            return count
        stream = topology.vhost(vhost).streams.get(name)
        if stream is not None:
            if if_empty:
                await stream.refresh()
                if stream.deleted:
                    return await self.delete_queue(name, vhost=vhost, **said)
            stream.check_deletion(if_unused=if_unused, if_empty=if_empty)
            held = stream.message_count
            await self._topics.delete_topic(stream.topic.name)
            return held
        queue = topology.vhost(vhost).queues.get(name)
        if queue is not None:
            asks, led_otherwise = if_unused or if_empty, False
            try:
                await queue.refresh()
                led_otherwise = asks and not queue.elsewhere and not await is_served(queue)
            except NotFound:
                pass  # it went meanwhile
            except LedHere:
                led_otherwise = asks
            except StorageUnavailable:
                if asks:
                    raise
            if led_otherwise:
                return await self.delete_queue(name, vhost=vhost, **said)
        plan = await topology.change(lambda: plans.delete_queue(topology.vhost(vhost), name, **said))
        if queue is not None and not queue.partition.durable:
            await self._known_to_others()
        return plan.message_count

    async def purge_queue(self, name: str, *, owner: object = None, vhost: str = DEFAULT_VHOST) -> int:
        """Settle all messages that are not delivered; how many there were.

        Raises NotFound, ResourceLocked, NotImplementedYet (a stream), StorageUnavailable as `check_queue`.
        """
        queue = self.topology.vhost(vhost).queue(name, owner, "queue.purge")
        if not queue.elsewhere:
            await queue.refresh()
            queue.rules.catch_up()
            if await is_served(queue):
                return queue.purge()
        else:
            with suppress(LedHere):
                return await queue.purge_elsewhere()
        return await self.purge_queue(name, owner=owner, vhost=vhost)

    async def bind(
        self, destination_kind: str, destination: str, exchange: str, pattern: str,
        arguments: Mapping[str, Any] | None = None, **options: Unpack[BindingOptions],
    ) -> None:  # fmt: skip
        """Bind a "queue", "exchange" or "topic". Raises NotFound, AccessRefused, ResourceLocked, InvalidArgument,
        LimitExceeded, StorageUnavailable.
        """
        await self.change_bindings((destination_kind, destination), exchange, new=[(pattern, arguments)], **options)

    async def unbind(
        self, destination_kind: str, destination: str, exchange: str, pattern: str,
        arguments: Mapping[str, Any] | None = None, **options: Unpack[BindingOptions],
    ) -> None:  # fmt: skip
        """The inverse of `bind`; a binding that is not there is no error, nor is an end of it that is not there."""
        await self.change_bindings((destination_kind, destination), exchange, gone=[(pattern, arguments)], **options)

    async def change_bindings(
        self,
        destination: Destination,
        exchange: str,
        *,
        new: Sequence[Bound] = (),
        gone: Sequence[Bound] = (),
        syntax: str = "amqp",
        owner: object = None,
        vhost: str = DEFAULT_VHOST,
    ) -> None:
        """`bind` and `unbind` many at once: one change, written together. None is made if one cannot be."""
        topology = self.topology
        kind, name = destination
        away = self._away(vhost, name) if kind == "queue" else None
        source = topology.vhost(vhost).exchanges.get(exchange)
        if away is not None and (source is None or source.durable):
            # Who has the queue tells all what it wants. Exchanges that end with this broker have it do so here.
            for operation, some, fine in (("queues.bind", new, ()), ("queues.unbind", gone, (NotFound,))):
                for pattern, arguments in some:
                    said = {"exchange": exchange, "pattern": pattern, "syntax": syntax, "arguments": arguments or {}}
                    with suppress(*fine):  # where there is no queue any more, there is no binding
                        await ask_leader(self._broker, away, operation, {"name": name, "vhost": vhost, **said})
            return
        come, go = (
            [Binding.make(exchange, destination, pattern, arguments, syntax) for pattern, arguments in some]
            for some in (new, gone)
        )
        await topology.change(lambda: broker_plans.change_bindings(topology, topology.vhost(vhost), come, go, owner))
        await self._known_to_others()

    async def _known_to_others(self) -> None:
        """What queues that end with this broker want is known to all who may publish."""
        if self._broker.engine is not None:
            await self._broker.engine.interests.settled()
