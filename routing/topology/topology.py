"""Virtual hosts and topics as they stand, and how they change: plan, write, apply (`entries.py`).

1. A plan that has to do with a change which is being written waits for it and is made anew; others go their way, so
   that one flush covers the changes of many clients.
2. What must outlive the process is written and durable before it is applied, so before anybody sees it. A change that
   the catalog refuses has changed nothing, and can be asked for again. It is applied when the catalog says so, whoever
   wrote it; what depends on it goes with it: what is here alone (transient bindings of a queue that goes), and what
   another broker added before it knew, which is taken out of the catalog then. A plan that another broker's change has
   overtaken is made anew.
3. What goes with a connection or a consumer is applied at once and nobody waits for it; while the catalog refuses, the
   durable entities among it stay. Where the catalog takes its time they are *leaving* until then: whoever means one of
   them waits, and finds it gone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import trio

from core_log.errors import Conflict, MetadataUnavailable
from core_log.metadata.store import Guard
from routing.commits import storage_errors
from routing.config import BrokerConfig
from routing.errors import NotAllowed, NotFound, StorageUnavailable
from routing.queues.homes.home import Home
from routing.queues.homes.queue_partition import QueuePartition
from routing.queues.homes.receipts import release
from routing.queues.host import QueueHost
from routing.queues.queue import Queue
from routing.topics.stream import Stream, StreamHost
from routing.topics.topic import Topic
from routing.topics.topic_config import log_config
from routing.topics.topic_ids import Topics
from routing.topics.topic_partition import TopicPartition
from routing.topology.catalog import DEFAULT_VHOST, Catalog
from routing.topology.entries import Entry, InFlight, Key, Plan, queue_key
from routing.topology.exchange import Exchange
from routing.topology.large_numbers import numbers_again
from routing.topology.policies import policy_key
from routing.topology.queue_ids import OutOfQueueIds
from routing.topology.rehoming import adopt, rehome
from routing.topology.removal import Removal
from routing.topology.virtual_host import VirtualHost

logger = logging.getLogger(__name__)


class Topology:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        catalog: Catalog,
        *,
        stripes: list[Home],
        transient: QueuePartition,
        host: QueueHost,
        spawn: Callable[..., Any],
        stream_host: StreamHost,
        open_topic: Callable[[str, Mapping[str, Any]], Topic],
        open_partitions: Callable[[str, Mapping[str, Any], range], list[TopicPartition]],
    ) -> None:
        self.config = config
        self.catalog = catalog
        self.stripes = stripes
        self.transient = transient
        self.topics = Topics()
        self.vhosts: dict[str, VirtualHost] = {}
        self.owned: dict[object, dict[Queue, None]] = {}
        """Exclusive queues by the connection they end with."""
        self.stream_host = stream_host
        self.follow_policies: Callable[[str], Awaitable[None]] | None = None
        """Has all of a virtual host live by its policies; for those that others have changed."""
        self.topic_gone: Callable[[Topic], None] | None = None
        """Told of a topic that is deleted, whoever did it."""
        self.partitions_gone: Callable[[Topic, Sequence[TopicPartition]], None] | None = None
        """The same of partitions that a topic does not have any more."""
        self.queue_gone: Callable[[Queue], None] | None = None
        """The same of a durable queue, before it goes."""
        self.vhost_made: Callable[[VirtualHost], None] | None = None
        """Called with each that is made from now on."""
        self.vhost_gone: Callable[[str], object] | None = None
        """Told of the name of one that is deleted, whoever did it."""
        self.place_queue: Callable[[int, Mapping[str, Any]], int] = lambda queue_id, _: queue_id % config.stripes
        """The home of a new durable queue, from its id and arguments."""
        self._host = host
        self._spawn = spawn
        self._open_topic = open_topic
        self._open_partitions = open_partitions
        self.in_flight = InFlight()
        self._settled = trio.Event()
        self._appliers: dict[str, Callable[[Entry], None]] = {
            "vhost": self._apply_vhost,
            "exchange": self._apply_exchange,
            "queue": self._apply_queue,
            "binding": self._apply_binding,
            "topic": self._apply_topic,
            "policy": self._apply_policy,
            "operator-policy": self._apply_policy,
        }
        catalog.appliers.update(dict.fromkeys(self._appliers, self._apply_one))
        self._add_vhost(DEFAULT_VHOST)

    # --- looking up --------------------------------------------------------------------

    def vhost(self, name: str) -> VirtualHost:
        """Raises NotAllowed."""
        found = self.vhosts.get(name)
        if found is None:
            raise NotAllowed(f"vhost {name} not found")
        return found

    @property
    def queues(self) -> Mapping[str, Queue]:
        """The queues of the default virtual host."""
        return self.vhosts[DEFAULT_VHOST].queues

    @property
    def exchanges(self) -> Mapping[str, Exchange]:
        """The exchanges of the default virtual host."""
        return self.vhosts[DEFAULT_VHOST].exchanges

    def all_queues(self) -> Iterator[Queue]:
        """The queues of all virtual hosts."""
        for vhost in self.vhosts.values():
            yield from vhost.queues.values()

    @property
    def led(self) -> list[QueuePartition]:
        """The homes of durable queues that are led here: of a single broker, all."""
        return [home for home in self.stripes if isinstance(home, QueuePartition)]

    def topic(self, name: str) -> Topic:
        """Look one up. Raises NotFound."""
        found = self.topics.get(name)
        if found is None:
            raise NotFound(f"no topic '{name}'")
        return found

    # --- recovery ----------------------------------------------------------------------

    def recover_queues(self) -> None:
        """Make the virtual hosts, policies, exchanges and queues of the catalog; partitions are replayed afterwards."""
        astray: list[Key] = []
        for kind in ("vhost", "policy", "operator-policy", "exchange", "queue"):
            for key, value in self.catalog.entries(kind):
                if kind == "vhost" or key[1] in self.vhosts:
                    self._appliers[kind](Entry(key, value, True))
                else:
                    astray.append(key)
        self._erase(astray)
        for vhost in self.vhosts.values():
            for exchange in vhost.exchanges.values():
                vhost.follow_policies(exchange)  # those that no entry has made as well

    def recover_bindings(self) -> None:
        """Make the bindings of the catalog, once queues and topics are there."""
        astray: list[Key] = []
        for key, value in self.catalog.entries("binding"):
            vhost = self.vhosts.get(key[1])
            if vhost is None:
                astray.append(key)
            elif key[2] in vhost.exchanges and vhost.exists((key[3], key[4])):
                self._apply_binding(Entry(key, value, True))
        self._erase(astray)

    # --- changing ----------------------------------------------------------------------

    async def change(self, make_plan: Callable[[], Plan]) -> Plan:
        """Plan, write and apply. Raises what the plan raises, and StorageUnavailable. Does not suspend when nothing
        has to be written and nothing that matters is being written.
        """
        while True:
            plan = await self._plan(make_plan)
            while self.in_flight.conflicts(plan):
                await self._settled.wait()
                plan = await self._plan(make_plan)
            durable, rest = self._divide(plan)
            if not durable:
                break
            self.in_flight.add(plan)
            try:
                with storage_errors():
                    await self.catalog.change(
                        durable, plan.guards, check=plan.check, also=plan.also, relied=plan.relied
                    )
                break
            except Conflict:
                continue
            finally:
                self.in_flight.remove(plan)
                self._wake()
        self._apply(rest)
        return plan

    def _wake(self) -> None:
        """Whoever waits for what is in flight looks again."""
        settled, self._settled = self._settled, trio.Event()
        settled.set()

    def is_leaving(self, queue: Queue) -> bool:
        """Whether a queue is there no more for who asks now; see rule 3."""
        return self.in_flight.is_leaving(queue_key(queue.vhost, queue.name))

    async def until_left(self, vhost: str, queue: str) -> None:
        """Wait for a queue of that name that is leaving; it may stay. Does not suspend when there is none."""
        while self.in_flight.is_leaving(queue_key(vhost, queue)):
            await self._settled.wait()

    async def _plan(self, make_plan: Callable[[], Plan]) -> Plan:
        """Make a plan. Where others change things, what is not found may only not have come here yet."""
        if not self.catalog.shared:
            return make_plan()
        caught_up = False
        while True:
            try:
                return make_plan()
            except NotFound:
                if caught_up:
                    raise
                with storage_errors():
                    await self.catalog.catch_up()
                caught_up = True
            except OutOfQueueIds:
                with storage_errors():
                    await self.catalog.ids.reserve()

    def _divide(self, plan: Plan) -> tuple[list[Entry], list[Entry]]:
        """What has to be written, and what need not: it is of this broker alone, or the catalog does not know it."""
        durable: list[Entry] = []
        rest: list[Entry] = []
        for entry in plan.entries:
            written = entry.durable and (entry.value is not None or self.catalog.is_recorded(entry.key))
            (durable if written else rest).append(entry)
        return durable, rest

    def _change_unasked(self, make_plan: Callable[[], Plan], then: Callable[[], None] | None = None) -> None:
        """The same for what goes by itself; see rule 3. `then` is called when it has gone."""
        plan = make_plan()
        durable, rest = self._divide(plan)
        if durable:
            try:
                if self.in_flight.conflicts(plan) or not self.catalog.change_now(durable):
                    self.in_flight.leave(plan)
                    self._spawn(self._change_later, make_plan, plan, then)
                    return
            except MetadataUnavailable as error:
                logger.warning("%s stays while the catalog cannot be written: %s", plan.entries[-1].key, error)
                return
        self._apply(rest)
        if then is not None:
            then()

    async def _change_later(
        self, make_plan: Callable[[], Plan], leaving: Plan, then: Callable[[], None] | None
    ) -> None:
        try:
            await self.change(make_plan)
        except StorageUnavailable as error:
            logger.warning("a queue or exchange that was to go by itself stays: %s", error)
        else:
            if then is not None:
                then()
        finally:
            self.in_flight.left(leaving)
            self._wake()

    # --- applying ----------------------------------------------------------------------

    def _apply(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._apply_one(entry)

    def _apply_one(self, entry: Entry) -> None:
        kind = entry.key[0]
        if kind in ("vhost", "topic") or entry.key[1] in self.vhosts:
            self._appliers[kind](entry)

    def _apply_along(self, vhost: VirtualHost, gone: Key, removal: Removal) -> None:
        """Something goes, and what depends on it: see rule 2."""
        entries = [entry for entry in removal.plan().entries if entry.key != gone]
        self._apply(entries)
        astray = [entry.key for entry in entries if entry.durable]
        if astray:
            self._erase(astray)
            self._drop_unused(vhost, removal.orphans)

    def _erase(self, keys: Iterable[Key]) -> None:
        """These are entries of nothing any more: have the catalog forget those that it still has, as they are now."""
        astray = self.catalog.recorded(keys)
        if astray:
            self._spawn(self._erase_later, astray)

    async def _erase_later(self, astray: list[Guard]) -> None:
        try:
            await self.catalog.erase(astray)
        except MetadataUnavailable as error:
            logger.warning("%d entries that nothing belongs to any more stay in the catalog: %s", len(astray), error)

    def _apply_vhost(self, entry: Entry) -> None:
        name, value = entry.key[1], entry.value
        if value is None:
            gone = self.vhosts.get(name)
            if gone is None:
                return
            entries = Removal(gone).everything().plan().entries
            self._apply(entries)
            policies = [policy_key(name, one, operator=False) for one in gone.policies.own]
            policies += [policy_key(name, one, operator=True) for one in gone.policies.operator]
            del self.vhosts[name]
            if self.vhost_gone is not None:
                self.vhost_gone(name)
            self._erase([*(entry.key for entry in entries if entry.durable), *policies])
            for client in list(gone.connections.values()):
                client.close(f"vhost '{name}' is deleted")
            return
        if name not in self.vhosts:
            self._add_vhost(name)
        self.vhosts[name].description = value["description"]
        self.vhosts[name].limits = dict(value["limits"])

    def _add_vhost(self, name: str) -> None:
        vhost = self.vhosts[name] = VirtualHost(name, self.topics, self.config.routes_cached_max)
        if self.vhost_made is not None:
            self.vhost_made(vhost)

    def _apply_policy(self, entry: Entry) -> None:
        self.vhosts[entry.key[1]].policies.apply(entry.key, entry.value)
        if self.follow_policies is not None and entry.key not in self.in_flight:
            self._spawn(self.follow_policies, entry.key[1])

    def _apply_exchange(self, entry: Entry) -> None:
        vhost, name = self.vhosts[entry.key[1]], entry.key[2]
        if entry.value is not None:
            vhost.add_exchange(name, entry.value, entry.durable)
            return
        exchange = vhost.exchanges.get(name)
        if exchange is not None and exchange.durable is entry.durable:
            if exchange.bindings or ("exchange", name) in vhost.bindings_to:
                self._apply_along(vhost, entry.key, Removal(vhost, cascade=False).exchange(exchange))
            vhost.remove_exchange(name)

    def _apply_queue(self, entry: Entry) -> None:
        _, vhost, name = entry.key
        value = entry.value
        if value is None:
            queue = entry.live or self.vhosts[vhost].queues.get(name)
            if queue is not None and queue.partition.durable is entry.durable:
                if entry.durable and self.queue_gone is not None:
                    self.queue_gone(queue)
                self._drop(self.vhosts[vhost], queue)
            return
        there = self.vhosts[vhost].queues.get(name)
        arguments = numbers_again(value["arguments"])
        if there is not None and there.id == value["id"]:
            there.arguments, there.formerly = arguments, value.get("formerly", [])
            self.vhosts[vhost].follow_policies(there)
            return
        home: Home = self.stripes[value["stripe"]] if entry.durable else self.transient
        queue = home.make_queue(
            value["id"],
            name,
            self._host,
            durable=value.get("durable", True),
            exclusive=value.get("exclusive", False),
            auto_delete=value["auto_delete"],
            arguments=arguments,
            owner=entry.live,
            settings=self.vhosts[vhost].settings_of(name, arguments),
            start=value.get("start", ()),
        )
        queue.vhost = vhost
        queue.formerly = value.get("formerly", [])
        if queue.exclusive:
            self.owned.setdefault(queue.owner, {})[queue] = None
        self.vhosts[vhost].add_queue(queue)

    def adopt(self, index: int, home: Home) -> None:
        """Have a home the queues of what stands for it now; see `rehoming.py`."""
        adopt(self, index, home, self._host)

    def rehome(self, index: int, home: Home) -> None:
        """Another object stands for a home from now on; see `rehoming.py`."""
        rehome(self, index, home, self._host)

    def _drop(self, vhost: VirtualHost, queue: Queue) -> None:
        if queue.deleted:
            return
        queue.deleted = True
        if ("queue", queue.name) in vhost.bindings_to:
            removal = Removal(vhost, cascade=False).queue(queue)
            self._apply_along(vhost, queue_key(vhost.name, queue.name), removal)
        vhost.remove_queue(queue)
        if queue.exclusive:
            owned = self.owned[queue.owner]
            del owned[queue]
            if not owned:
                del self.owned[queue.owner]
        queue.partition.remove(queue)
        if queue.partition.durable:
            for home in self.led:
                release(home, queue.id)
        queue.clear()
        for consumer in queue.turns.drain():
            consumer.session.queue_gone(consumer)

    def _apply_binding(self, entry: Entry) -> None:
        vhost = self.vhosts[entry.key[1]]
        asked_for = entry.live or self.in_flight.live(entry.key)
        binding = entry.live or vhost.binding_of(entry.key, entry.value, asked_for)
        if entry.value is None:
            vhost.remove_binding(binding)
        else:
            vhost.add_binding(binding)

    def _apply_topic(self, entry: Entry) -> None:
        name, value = entry.key[1], entry.value
        if value is not None:
            live = self.in_flight.live(entry.key)
            topic = self.topics.get(name) or live or self._open_topic(name, value)
            if topic.config != value["config"]:
                topic.configure(log_config(value["config"], self.stream_host.config), value["config"])
            lacking = range(len(topic.partitions), value["partitions"])
            if len(topic.partitions) > value["partitions"]:  # as when etcd was put back to before it got them
                gone = topic.keep_partitions(value["partitions"])
                if self.partitions_gone is not None:
                    self.partitions_gone(topic, gone)
            elif lacking:
                topic.add_partitions(live or self._open_partitions(name, value, lacking))
            self.add_topic(topic, value)
            self._host.topics_changed()
            return
        topic = self.topics.remove(name)
        if topic is None:
            return
        if self.topic_gone is not None:
            self.topic_gone(topic)
        for vhost in self.vhosts.values():
            self._apply_along(vhost, entry.key, Removal(vhost, cascade=False).topic(name))
            for stream in [stream for stream in vhost.streams.values() if stream.topic is topic]:
                vhost.remove_stream(stream)
                stream.close()
            vhost.router.forget_all()

    def add_topic(self, topic: Topic, value: Mapping[str, Any]) -> None:
        """A topic is there, as its entry says; it may be a stream of a virtual host."""
        self.topics.add(topic)
        topic.view(any(vhost.viewed[topic.name] > 0 for vhost in self.vhosts.values()))
        said = value.get("stream")
        if said is not None and said["vhost"] in self.vhosts:
            vhost = self.vhosts[said["vhost"]]
            if (there := vhost.streams.get(said["name"])) is not None and there.topic is topic:
                vhost.follow_policies(there)
                return
            vhost.add_stream(Stream(said["name"], vhost.name, topic, said["arguments"], self.stream_host))

    # --- what goes by itself -----------------------------------------------------------

    def drop_queue(self, queue: Queue) -> None:
        """Delete a queue that goes with its owner or its last consumer; see rule 3."""
        if queue.deleted:
            return
        vhost = self.vhosts[queue.vhost]
        bindings = vhost.bindings_to.get(("queue", queue.name), ())
        sources = {vhost.exchanges[binding.exchange]: None for binding in bindings}
        self._change_unasked(
            lambda: Removal(vhost, cascade=False).queue(queue).plan() if not queue.deleted else Plan(),
            partial(self._drop_unused, vhost, [exchange for exchange in sources if exchange.auto_delete]),
        )

    def _drop_unused(self, vhost: VirtualHost, exchanges: Iterable[Exchange]) -> None:
        """Delete those that go with their last binding, if that has gone."""
        for exchange in exchanges:
            self._change_unasked(partial(self._plan_orphan, vhost, exchange))

    @staticmethod
    def _plan_orphan(vhost: VirtualHost, exchange: Exchange) -> Plan:
        if vhost.exchanges.get(exchange.name) is not exchange or vhost.is_used(exchange):
            return Plan()
        return Removal(vhost).exchange(exchange).plan()
