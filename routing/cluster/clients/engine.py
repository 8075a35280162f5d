"""What a broker and the others do for each other's clients: both directions, and what they have in common.

A broker that is not registered any more is gone, and so are the queues that end with it. But when etcd was away for
longer than leases last nobody is registered for a moment: who has had no lease itself waits until the others are back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio

from routing.cluster.clients.away_queues import AwayQueues
from routing.cluster.clients.clients_elsewhere import ClientsElsewhere
from routing.cluster.clients.forwarding import Forwarding
from routing.cluster.clients.interests import Interests
from routing.cluster.clients.keeping import Keeping
from routing.cluster.clients.loopback import Loopback
from routing.cluster.clients.offsets import Forward, ReplicatedOffsets
from routing.cluster.clients.serving import Serving
from routing.cluster.clients.transaction_links import TransactionLink
from routing.cluster.clients.transactions import SharedTransactions
from routing.log_transactions.links import CoordinatorLink

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.cluster import Cluster
    from routing.storage import Storage

_BACK_WITHIN_S = 2.0
"""Who is there when etcd is there again is registered by then."""


class Collecting(Protocol):
    """What collects until a turn ends."""

    def flush(self) -> None:
        """Send it."""


class Engine:
    """See the module. It has to be there before the engine's homes are, `serve` once they are."""

    serving: Serving
    interests: Interests
    offsets: ReplicatedOffsets
    transactions: SharedTransactions
    elsewhere: ClientsElsewhere

    def __init__(self, cluster: Cluster, *, spawn: Callable[..., Any], want_turn: Callable[[], None]) -> None:
        self.cluster = cluster
        self.spawn = spawn
        self.want_turn = want_turn
        patience_s = cluster.publish_patience_s
        self.forwarding = Forwarding(cluster, spawn=spawn, want_turn=want_turn, patience_s=patience_s)
        self.transaction_links: dict[int, TransactionLink] = {}
        """By broker."""
        self.coordinator_links: dict[int, CoordinatorLink] = {}
        """The same, of those that look after transactional producers."""
        self.unsent: dict[Collecting, None] = {}
        """Ends of links that have collected something in this turn."""
        self._no_lease_s = -math.inf
        """When this broker had none last."""
        self._awaits = False

    def keep_offsets(self, storage: Storage, topic_id: Callable[[str], bytes | None]) -> ReplicatedOffsets:
        """Group offsets are shared. Raises OSError."""
        self.offsets = storage.open_offsets(self.cluster, topic_id)
        return self.offsets

    def serve(self, broker: Broker) -> None:
        """The broker has its homes."""
        forwarding = self.forwarding
        self.serving = Serving(broker)
        self.cluster.moved.append(self.serving.moved)
        forwarding.own = Loopback(forwarding.cluster.broker_id, forwarding, self.serving, forwarding.want_turn)
        self.interests = Interests(
            broker.topology, want_turn=self.want_turn, now_ms=broker.clock.now_ms, process=forwarding.process
        )
        self.interests.away = AwayQueues(broker, forwarding)
        self.interests.brokers = self.others
        self.cluster.members.listeners.append(self._brokers_changed)

    def keep_transactions(self, broker: Broker) -> None:
        """What its transactions do elsewhere is seen to. Raises OSError."""
        stores = broker.storage.open_shared_transactions(self.cluster)
        self.transactions = broker.transactions.shared = SharedTransactions(broker, self, stores)

    def keep_retained(self, broker: Broker) -> Keeping:
        """Retained messages and wills are shared. Raises OSError."""
        self.elsewhere = ClientsElsewhere(broker, self)
        return Keeping(broker, self, partial(broker.storage.open_shared_retained, self.cluster))

    def is_gone(self, broker: int, process: int) -> bool:
        """Whether a process of a broker is not there any more, as far as is known here: one that etcd does not reach is
        there as long as it has a link.
        """
        if broker == self.cluster.broker_id:
            return process != self.forwarding.process
        there = self.serving.process_of(broker)
        if broker not in self.cluster.members.brokers and not self._may_be_back:
            return there != process or broker not in self.serving.links
        return there is not None and there != process

    def processes(self) -> list[int] | None:
        """All that there are; None: not all are known."""
        found = [self.serving.process_of(broker) for broker in self.others()]
        return None if None in found else [self.forwarding.process, *(one for one in found if one is not None)]

    def others(self) -> set[int]:
        """The other brokers that are registered."""
        members = self.cluster.members
        return members.brokers.keys() - {members.broker_id}

    def ask_offsets_by(self, forward: Forward) -> None:
        """How group offsets that others have are asked for."""
        self.offsets.forward = forward

    @property
    def _may_be_back(self) -> bool:
        """Whether others that are not registered may be about to."""
        return trio.current_time() < self._no_lease_s + _BACK_WITHIN_S

    def _brokers_changed(self) -> None:
        self._look_at_lease()
        self.interests.forget_all_but(self.interests.known if self._may_be_back else self.others())
        if self._may_be_back and not self._awaits:
            self._awaits = True
            self.spawn(self._forget_later)

    async def _forget_later(self) -> None:
        while self._may_be_back:
            await trio.sleep_until(self._no_lease_s + _BACK_WITHIN_S)
            self._look_at_lease()
        self._awaits = False
        self.interests.forget_all_but(self.others())

    def _look_at_lease(self) -> None:
        if self.cluster.has_no_lease:
            self._no_lease_s = trio.current_time()

    async def wait_for_room(self) -> None:
        """Wait while a broker takes less than comes for it."""
        await self.forwarding.wait_for_room()
        await self.interests.wait_for_room()

    @property
    def has_news(self) -> bool:
        """Whether `end_turn` has something to do."""
        return bool(self.unsent or self.forwarding.dirty or self.interests.has_news or self.serving.has_news)

    def end_turn(self) -> None:
        """Send what the turn has brought. Most turns bring nothing."""
        self.serving.end_turn()
        self.forwarding.end_turn()
        unsent = self.unsent
        while unsent:
            unsent.popitem()[0].flush()
        self.interests.end_turn()

    def tick(self) -> None:
        """A moment has passed."""
        self._look_at_lease()
        self.forwarding.tick()
        for link in tuple(self.forwarding.links.values()):
            link.beat()
        for served in tuple(self.serving.links.values()):
            served.tick()
            served.link.beat()
