"""Whom this broker serves with what it leads: the links from other brokers, and what their processes have published.

What is done for one of them, and by which rules, is in `served_broker.py`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from core_log.errors import MetadataUnavailable
from routing.cluster.clients.latest_connections import LatestConnections
from routing.cluster.clients.published import Publisher
from routing.cluster.clients.served import ServedLink
from routing.cluster.clients.served_broker import ServedBroker
from routing.cluster.metadata.log_names import HOME, number_of, transient_log
from routing.queues.homes.queue_partition import QueuePartition

if TYPE_CHECKING:
    from core_log.replication.leader import Leader
    from routing.broker import Broker
    from routing.cluster.clients.keeping import LedKeeping
    from routing.topics.topic_partition import TopicPartition

_BEHIND_S = 0.5


class Serving:
    """See the module; of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.links: dict[int, ServedBroker] = {}
        self._transient_log = ""
        """What stands for queues that end with this process."""
        self.connections = LatestConnections() if broker.engine is None else broker.engine.forwarding.connections
        if broker.engine is not None:
            self._transient_log = transient_log(broker.engine.cluster.broker_id, broker.engine.forwarding.process)
        self._publishers: dict[int, Publisher] = {}

    def home(self, log: str, leader_epoch: int) -> QueuePartition | None:
        """A home, if this broker leads it in that epoch and may serve now."""
        cluster = self.broker.cluster
        number = number_of(log, HOME)
        if number is None and log == self._transient_log:
            return self.broker.topology.transient
        if cluster is None or number is None:
            return None
        if cluster.leader_of(log) != (cluster.broker_id, leader_epoch) or not cluster.may_append(log):
            return None
        stripes = self.broker.topology.stripes
        home = stripes[number] if number < len(stripes) else None
        return home if isinstance(home, QueuePartition) else None

    def keeping(self, log: str, leader_epoch: int) -> LedKeeping | None:
        """What is retained, likewise."""
        keeping = self.broker.keeping
        return keeping.served(log, leader_epoch) if keeping is not None else None

    def partition(self, log: str, leader_epoch: int) -> TopicPartition | None:
        """A partition of a topic, if this broker leads it in that epoch and may serve now."""
        cluster, logs = self.broker.cluster, self.broker.storage.topic_logs
        if cluster is None or logs is None or cluster.leader_of(log) != (cluster.broker_id, leader_epoch):
            return None
        return logs.partition(log) if cluster.may_append(log) else None

    def epoch_of(self, log: str) -> int:
        """The leader epoch of a log, for all that is known here."""
        return self.broker.cluster.leader_of(log)[1] if self.broker.cluster is not None else 0

    def role_of(self, log: str) -> Leader | None:
        """This broker's part in a log that it leads."""
        return self.broker.cluster.role_of(log) if self.broker.cluster is not None else None

    def moved(self, log: str) -> None:
        """Its leader, or the part of this broker in it, may be another: rule 4 of `served_broker.py`. Of a log that is
        deleted nothing is known any more.
        """
        role, leader_epoch = self.role_of(log), self.epoch_of(log)
        if not leader_epoch:
            role = None  # this broker's part in it ends a moment later
        for broker, publisher in self._publishers.items():
            served = self.links.get(broker)
            here = served if served is not None and served.publisher is publisher else None
            publisher.moved(log, leader_epoch, role, here.link if here is not None else None)
        for served in tuple(self.links.values()):
            served.moved(log, leader_epoch, is_renewed=role is not None and role.epoch == leader_epoch)

    @property
    def revision(self) -> int:
        """The metadata's that is applied here."""
        cluster = self.broker.cluster
        return cluster.store.revision if cluster is not None else 0

    async def catch_up(self, revision: int) -> None:
        """Wait for a revision of the metadata, but not for long: what is not known here then is not led here."""
        if self.broker.cluster is not None:
            with trio.move_on_after(_BEHIND_S), suppress(MetadataUnavailable):
                await self.broker.cluster.store.caught_up(revision)

    def process_of(self, broker: int) -> int | None:
        """The process of another broker that was linked last."""
        found = self._publishers.get(broker)
        return found.process if found is not None else None

    def publisher(self, broker: int, process: int) -> Publisher:
        """What is known of a process of another broker; of a former one nothing is any more."""
        found = self._publishers.get(broker)
        if found is None or found.process != process:
            if found is not None:
                found.close()
            found = self._publishers[broker] = Publisher(process)
        return found

    def linked(self, link: ServedLink) -> ServedBroker:
        """There is a link from a broker, in place of any other."""
        before = self.links.get(link.broker)
        if before is not None:
            before.link.replaced()
            self.lost(before)
        found = self.links[link.broker] = ServedBroker(self, link)
        return found

    def lost(self, served: ServedBroker) -> None:
        """A link is over."""
        if self.links.get(served.link.broker) is served:
            del self.links[served.link.broker]
        served.lost()

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell."""
        return any(one.publisher is not None and one.publisher.news for one in self.links.values())

    def end_turn(self) -> None:
        """Tell what the turn has brought."""
        for served in tuple(self.links.values()):
            publisher = served.publisher
            if publisher is not None and publisher.news:
                served.tell(publisher)
