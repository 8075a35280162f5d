"""What brokers tell each other of the queues that end with them (`topology/interest.py`), and the messages for these.

1. Each broker numbers what it tells, and tells it to all in the same order; a new link begins with everything. What was
   told before is good until the broker is gone, whether there is a link or not.
2. Whoever binds or deletes such a queue waits until each broker that is registered has noted it, or for `settle_s`:
   then a message that is published anywhere afterwards reaches it, or is known to find nobody.
3. Messages go with the turn in which they were published. A broker with which there is no link, or that has
   `forward_bytes_max` waiting for it, gets none: these queues promise nothing, and what is lost is counted. What is
   mandatory, and wanted by nobody but brokers with which there is no link, is returned: it would be lost for certain.
4. What has a name (`publishing/named.py`) goes with it, and comes to the queues here once, whoever sends it.
5. Dead letters that are not to come to queues in which they died say so; who gets them leaves out those he has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import trio

from routing.facts import DELAYED_FROM
from routing.message import Slab
from routing.publishing.confirms import deliver_regardless
from routing.publishing.deduplication import put
from routing.publishing.named import DIED, NamedSlab, Names, died
from routing.publishing.overflowing import deliver_refused
from routing.republishing.death_copies import barred_by
from routing.topology.interest import Interest, Others, Wanted
from routing.topology.route import Route, undelayed
from routing.topology.topology import Topology
from routing.topology.virtual_host import VirtualHost

if TYPE_CHECKING:
    from routing.cluster.clients.away_queues import AwayQueues

logger = logging.getLogger(__name__)

ROOM_BYTES = 12 << 20
"""What a link has to take yet, before more is read from clients."""
_LOOK_S = 0.002
_TOLD_WITHIN_S = 0.5
"""That somebody has closed his connection to another broker is known here by then."""
_GONE_FOR_S = 6.0
"""A broker that nobody reaches is known to be gone by then, or is back."""
INTERESTS_MAX = 1000
"""What one message tells of."""


class InterestLink(Protocol):
    """To another broker."""

    @property
    def broker(self) -> int:
        """Its id."""

    @property
    def room_bytes(self) -> int:
        """How much more of messages it takes now."""

    def tell(self, number: int, anew: bool, more: Sequence[Interest], less: Sequence[Interest]) -> None:
        """What is wanted here, or with `anew` that from here on all of it is told."""

    def forward(self, vhost: str, copies: tuple[str, ...], queue: str, slab: Slab, name: bytes = b"") -> None:
        """Messages for queues there, or for one of them if it is named; `name` is theirs (`publishing/named.py`)."""


class Interests:
    """See the module. `want_turn` has a turn soon."""

    def __init__(
        self,
        topology: Topology,
        *,
        want_turn: Callable[[], Any],
        now_ms: Callable[[], int],
        settle_s: float = 2.0,
        process: int = 0,
    ) -> None:
        """`process` is the number that others know this one by."""
        self.dropped_messages = 0
        """Messages for queues elsewhere that could not be sent."""
        self.names = Names()
        self.brokers: Callable[[], Collection[int]] = lambda: ()
        """The others that are registered."""
        self._topology = topology
        self._now_ms = now_ms
        self.want_turn = want_turn
        self._settle_s = settle_s
        self._wanted = Wanted()
        self._wanted.process = process
        self._wanted.changed = want_turn
        self.away: AwayQueues | None = None
        """Makes what others tell of queues usable here."""
        self._number = 0
        self._links: dict[int, InterestLink] = {}
        self._noted: dict[int, int] = {}
        """What brokers have noted, over the link there is."""
        self._settled = trio.Event()
        self._same: dict[tuple[str, str], int] = {}
        """Named queues here of which another broker had one, too, when it was told of them."""
        self._of: dict[int, dict[Interest, None]] = {}
        """What others want."""
        for vhost in topology.vhosts.values():
            self.vhost_made(vhost)
        topology.vhost_made = self.vhost_made

    def vhost_made(self, vhost: VirtualHost) -> None:
        """A virtual host is there, or is there again."""
        vhost.wanted, vhost.others = self._wanted, Others(vhost, self._send, self._reaches)
        vhost.send = deliver_regardless
        for broker, interests in self._of.items():
            for interest in interests:
                if interest.vhost == vhost.name:
                    vhost.others.add(broker, interest)
        if self.away is not None:
            self.away.vhost_made(vhost)

    # ---- telling

    def linked(self, link: InterestLink) -> None:
        """A link to a broker stands; one that stood before is over."""
        self._links[link.broker] = link
        self._noted[link.broker] = -1
        self._tell_news()
        everything = self._wanted.all()
        starts = range(0, len(everything) or 1, INTERESTS_MAX)
        for start in starts:
            link.tell(self._number - 1, not start, everything[start : start + INTERESTS_MAX], ())
        link.tell(self._number, False, (), ())

    def lost(self, link: InterestLink) -> None:
        """A link is over."""
        if self._links.get(link.broker) is link:
            del self._links[link.broker]
            del self._noted[link.broker]
            self._wake()

    @property
    def has_news(self) -> bool:
        """Whether there is something to tell."""
        return self._wanted.has_news

    def end_turn(self) -> None:
        """Tell what is news."""
        if self._wanted.has_news:
            self._tell_news()

    async def wait_for_room(self) -> None:
        """Wait while a broker takes messages more slowly than they come."""
        while any(link.room_bytes < ROOM_BYTES for link in self._links.values()):
            await trio.sleep(_LOOK_S)

    def _tell_news(self) -> None:
        more, less = self._wanted.news()
        for interest in less if self._same else ():
            self._same.pop((interest.vhost, interest.pattern), None)
        while more or less:
            self._number += 1
            for link in self._links.values():
                link.tell(self._number, False, more[:INTERESTS_MAX], less[:INTERESTS_MAX])
            more, less = more[INTERESTS_MAX:], less[INTERESTS_MAX:]

    def also_at(self, vhost: str, name: str) -> int | None:
        """Who had a queue of a name when it was told of the one that was made here; asked once."""
        return self._same.pop((vhost, name), None)

    async def until_free(self, vhost: VirtualHost, name: str) -> None:
        """Wait while somebody has a queue of this name to himself at another broker: for a moment, as that is told a
        little later, or for as long as it takes until a broker that is gone is known to be.
        """
        since_s = trio.current_time()
        while vhost.is_others(name) and not any(name in one for one in (vhost.queues, vhost.streams, vhost.away)):
            gone = vhost.others is not None and any(
                int(broker) not in self._links for broker in vhost.others.brokers_of(name)
            )
            if trio.current_time() >= since_s + (_GONE_FOR_S if gone else _TOLD_WITHIN_S):
                return
            await trio.sleep(_LOOK_S)

    async def until_told(self, vhost: VirtualHost, name: str) -> None:
        """Wait for another broker's queue to be known here, but not for long."""
        with trio.move_on_after(self._settle_s):
            while name not in vhost.away:
                await trio.sleep(_LOOK_S)

    def on_noted(self, link: InterestLink, number: int, same: Iterable[tuple[str, str]] = ()) -> None:
        """A broker has noted all up to this; it has queues of the same names (virtual host and name)."""
        for one in filter(self._has, same):
            self._same[one] = min(link.broker, self._same.get(one, link.broker))
        if self._links.get(link.broker) is link:
            self._noted[link.broker] = max(self._noted[link.broker], number)
            self._wake()

    def _wake(self) -> None:
        settled, self._settled = self._settled, trio.Event()
        settled.set()

    async def settled(self) -> None:
        """Return when all brokers have noted what is wanted now (rule 2)."""
        self._tell_news()
        number = self._number
        if not number or not self._missing(number):
            return
        self.want_turn()
        with trio.move_on_after(self._settle_s):
            while self._missing(number):
                await self._settled.wait()

    def _missing(self, number: int) -> bool:
        return any(self._noted.get(broker, -1) < number for broker in self.brokers())

    # ---- hearing

    def on_told(
        self, broker: int, anew: bool, more: Sequence[Interest], less: Sequence[Interest]
    ) -> list[tuple[str, str]]:
        """Another broker tells what it wants; nothing more or less means that it has told everything. Of which of its
        queues there is one here, too.
        """
        same: list[tuple[str, str]] = []
        away = self.away
        if anew:
            self._forget_all(broker)
            if away is not None:
                away.begin(broker)
        elif not more and not less and away is not None:
            away.complete(broker)
        there = self._of.setdefault(broker, {})
        for interest in more:
            there[interest] = None
            others = self._others(interest.vhost)
            if others is not None:
                others.add(broker, interest)
            if away is not None and not interest.exchange and interest.arguments:
                away.told(broker, interest)
                if self._has(name := (interest.vhost, interest.pattern)):
                    same.append(name)
        for interest in less:
            self._remove(broker, interest)
            if away is not None and not interest.exchange and interest.arguments:
                away.gone(broker, interest)
        return same

    def _has(self, name: tuple[str, str]) -> bool:
        vhost = self._topology.vhosts.get(name[0])
        queue = vhost.queues.get(name[1]) if vhost is not None else None
        return queue is not None and not queue.partition.durable and not queue.exclusive

    def forget(self, broker: int) -> None:
        """A broker is gone."""
        self._forget_all(broker)
        if self.away is not None:
            self.away.forget(broker)

    def _forget_all(self, broker: int) -> None:
        for interest in list(self._of.get(broker, ())):
            self._remove(broker, interest)
        self._of.pop(broker, None)

    @property
    def known(self) -> Collection[int]:
        """Brokers that have told something."""
        return self._of.keys()

    def forget_all_but(self, brokers: Collection[int]) -> None:
        """Only these are there."""
        for broker in [broker for broker in self._of if broker not in brokers]:
            self.forget(broker)
        self._wake()

    def _remove(self, broker: int, interest: Interest) -> None:
        if self._of.get(broker, {}).pop(interest, interest) is None:
            others = self._others(interest.vhost)
            if others is not None:
                others.remove(broker, interest)

    def _others(self, name: str) -> Others | None:
        vhost = self._topology.vhosts.get(name)
        return vhost.others if vhost is not None else None

    # ---- messages

    def _reaches(self, broker: int) -> bool:
        return broker in self._links

    def _send(self, broker: int, vhost: str, copies: tuple[str, ...], queue: str, is_dead: bool, slab: Slab) -> None:
        link = self._links.get(broker)
        if link is not None and link.room_bytes > 0:
            name = slab.name if isinstance(slab, NamedSlab) else died() if is_dead else b""
            link.forward(vhost, copies, queue, slab, name)
        else:
            if not self.dropped_messages:
                logger.warning("messages for queues of broker %d are lost: it takes none now", broker)
            self.dropped_messages += len(slab.bodies)

    def on_forwarded(self, vhost: str, copies: Sequence[str], queue: str, slab: Slab, name: bytes = b"") -> None:
        """Another broker has messages for queues here, or for one of them if it is named; `name` as in `forward`."""
        is_dead = name.startswith(DIED)
        if name and not is_dead and not self.names.is_new(name, queue):
            return
        found = self._topology.vhosts.get(vhost)
        if queue:
            chosen = found.queues.get(queue) if found is not None else None
            if found is not None and chosen is not None and not chosen.partition.durable:
                slab = slab if chosen.settings.delayed or _is_delayed(found, slab) else undelayed(slab)
                self._deliver(found.router.to_queues((chosen,), slab.exchange, 0), slab)
            return
        if found is None or slab.exchange not in found.exchanges:
            return
        barred = barred_by(slab) if is_dead else frozenset[str]()
        for route, part in found.router.routed_inside(slab, copies):
            self._deliver(route.here().after_death(barred), part)

    def _deliver(self, route: Route, slab: Slab) -> None:
        if route.guarded and (room := route.room(slab.bodies)) < len(slab.bodies):
            fullest = route.fullest(slab.bodies)
            if room:
                put(route, slab.part(0, room), self._now_ms)
            deliver_refused(route, slab.part(room, len(slab.bodies)), fullest)
        else:
            put(route, slab, self._now_ms)


def _is_delayed(vhost: VirtualHost, slab: Slab) -> bool:
    """Whether a slab may have passed an exchange where messages may ask to wait; True if none of it asks."""
    facts = slab.properties.facts if slab.facts is None else slab.highest_facts
    if facts < DELAYED_FROM:
        return True
    return slab.exchange in vhost.exchanges and any(r.delayed for r, _ in vhost.router.routed_inside(slab))
