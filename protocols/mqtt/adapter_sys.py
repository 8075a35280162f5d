"""The `$SYS` tree: what Mosquitto tells of itself, so that what reads it there reads it here.

1. Values are worked out every `sys_interval_s`, and written as Mosquitto writes them. They are retained in memory
   alone: a new subscriber gets them at once with RETAIN 1, later what has changed; what is asked for with QoS 1 or 2
   comes at QoS 0. They go straight into the queues of connected clients that have a filter which begins with `$SYS`: no
   exchange has them, so `#` does not match them, whatever protocol it is bound by.
2. Counting costs an addition a read, a run or a slab. Packets sent are worked out from what was received: each has one
   answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from protocols.convert import topic_to_routing_key
from protocols.mqtt.adapter_sessions import sessions_of
from protocols.mqtt.adapter_shares import MEMBERS
from protocols.mqtt.adapter_shares import PREFIX as SHARE
from protocols.mqtt.events import PUBREC, PUBREL, Acknowledgements
from protocols.mqtt.raw import GIVEN, RETAIN
from routing.alarms import resident_bytes
from routing.errors import BrokerError
from routing.kept.retained_names import NameTrie
from routing.key_patterns import parse_pattern
from routing.message import Properties, Slab
from routing.topology.route import Route
from routing.version import OWN_VERSION

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter
    from routing.broker import Broker
    from routing.queues.queue import Queue

ROOT = "$SYS/"
_ROOT_KEY = topic_to_routing_key(ROOT)
_EXCHANGE = "amq.topic"
_LIVE = Properties("mqtt", b"", persistent=False)
_RETAINED = Properties("mqtt", bytes((RETAIN | GIVEN,)), persistent=False)
_OF_CLIENTS = ("mqtt.", "$share/")
"""How the names of queues begin that are clients' and groups'."""
_MINUTES = (1, 5, 15)
_LEAST_CHANGE = 0.01
_ANSWERED = (PUBREC, PUBREL)


class Traffic:
    """What has gone through the door since the start."""

    __slots__ = (
        "acknowledgements", "answers", "bytes_received", "bytes_sent", "connections", "controls", "goodbyes",
        "publish_bytes_received", "publish_bytes_sent", "publishes_received", "publishes_sent", "publishes_too_large",
        "sockets",
    )  # fmt: skip

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        """To connections that are over; the others know their own."""
        self.publishes_received = 0
        self.publishes_sent = 0
        self.publishes_too_large = 0
        """Not sent, as the client takes no packets of that size."""
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        self.acknowledgements = 0
        """Received: as many publishes, and steps at QoS 2."""
        self.controls = 0
        """Packets received that are none of these; each is answered, but for DISCONNECT."""
        self.goodbyes = 0
        """What DISCONNECT adds to that: one more that is sent, one less for each that is received."""
        self.answers = 0
        """Packets sent for publishes and acknowledgements."""
        self.connections = 0
        self.sockets = 0

    @property
    def messages_received(self) -> int:
        """Packets of all kinds."""
        return self.publishes_received + self.acknowledgements + self.controls

    @property
    def messages_sent(self) -> int:
        """The same."""
        return self.publishes_sent + self.answers + self.controls + self.goodbyes

    def acknowledged(self, event: Acknowledgements) -> None:
        """Acknowledgements came."""
        before = self.acknowledgements
        for first, last in event.ranges:
            self.acknowledgements += last - first + 1
        if event.kind in _ANSWERED:
            self.answers += self.acknowledgements - before


class System:
    """The tree of one broker; see the module. `system_of` makes it with the first connection."""

    def __init__(self, broker: Broker, interval_s: float, vhost: str) -> None:
        self.traffic = Traffic()
        self.watchers: WeakSet[MqttAdapter] = WeakSet()
        """Clients with filters that begin with `$SYS`."""
        self._broker = broker
        self._interval_s = interval_s
        self._vhost = vhost
        self._started = self._before = time.monotonic()
        self._gave_way = 0
        """Messages that the queues of clients and groups had no room for any more."""
        broker.host.drops_seen.append(self._dropped)
        self._values: dict[str, str] = {}
        self._names = NameTrie()
        self._clients_max = 0
        self._loads: dict[tuple[str, int], float] = {}
        self._counted: dict[str, int] = {}
        if interval_s:
            self._update()
            self._wait()

    def _wait(self) -> None:
        self._broker.timers.at(self._broker.clock.seconds(self._broker.clock.now_ms()) + self._interval_s, self._tick)

    def _tick(self) -> None:
        self._wait()
        changed = self._update()
        if changed:
            for adapter in list(self.watchers):
                self._tell(adapter, changed)

    # --- clients -------------------------------------------------------------------------

    def watch(self, adapter: MqttAdapter, patterns: Iterable[str]) -> None:
        """A client has these subscriptions from now on, or again, as they are its session's."""
        if any(one.startswith(_ROOT_KEY) for one in patterns):
            self.watchers.add(adapter)

    def give_retained(self, adapter: MqttAdapter, patterns: Sequence[str]) -> None:
        """Give a client that has subscribed to these what it is given of it at once."""
        own = [one for one in patterns if one.startswith(_ROOT_KEY)]
        if own:
            self._give(adapter, own, self._values, _RETAINED)

    def _tell(self, adapter: MqttAdapter, changed: dict[str, str]) -> None:
        session = adapter.session
        patterns = [] if session is None else [p for p in adapter.subscribing.patterns if p.startswith(_ROOT_KEY)]
        if not patterns or not self._give(adapter, patterns, changed, _LIVE):
            self.watchers.discard(adapter)

    def _give(
        self, adapter: MqttAdapter, patterns: Sequence[str], values: dict[str, str], properties: Properties
    ) -> bool:
        """Whether the client has a queue for it."""
        session = adapter.session
        queue = None if session is None else session.vhost.queues.get(adapter.subscribing.queue_name)
        if session is None or queue is None:
            return False
        with suppress(BrokerError):
            for slab in self._slabs(patterns, values, properties):
                session.deliver_to(Route([queue], []), slab, False)
        return True

    def _slabs(self, patterns: Sequence[str], values: dict[str, str], properties: Properties) -> list[Slab]:
        found: dict[str, None] = {}
        for one in patterns:
            found |= dict.fromkeys(self._names.matching(parse_pattern(one, "mqtt")))
        keys = [key for key in found if key in values]
        bodies = [values[key].encode() for key in keys]
        return [Slab(_EXCHANGE, keys[0], properties, bodies, keys=keys)] if keys else []

    # --- values --------------------------------------------------------------------------

    def _dropped(self, queue: Queue, count: int) -> None:
        if queue.vhost == self._vhost and queue.name.startswith(_OF_CLIENTS):
            self._gave_way += count

    def _update(self) -> dict[str, str]:
        """Work all values out; those that have changed, by routing key."""
        now = time.monotonic()
        found = self._figures(now)
        passed_s, self._before = now - self._before, now
        if passed_s > 0:
            found |= self._load(passed_s)
        changed = {}
        for name, value in found.items():
            key = topic_to_routing_key(f"{ROOT}broker/{name}")
            if self._values.get(key) != value:
                if key not in self._values:
                    self._names.add(key)
                self._values[key] = changed[key] = value
        return changed

    def _figures(self, now: float) -> dict[str, str]:
        broker, traffic = self._broker, self.traffic
        clients = sessions_of(broker).clients.values()
        vhost = broker.topology.vhosts.get(self._vhost)
        every = [] if vhost is None else vhost.queues.values()
        queues = [queue for queue in every if queue.name.startswith("mqtt.") and not queue.elsewhere]
        connected = len(clients)
        away = [queue for queue in queues if queue.durable and not queue.consumers]
        offline = len(away)
        self._clients_max = max(self._clients_max, connected + offline)
        waiting = sum(queue.message_count + queue.outstanding for queue in queues)
        heap_bytes = resident_bytes()
        retained = broker.retained
        figures = {
            "uptime": f"{int(now - self._started)} seconds",
            "clients/total": connected + offline, "clients/connected": connected, "clients/active": connected,
            "clients/disconnected": offline, "clients/inactive": offline, "clients/expired": 0,
            "clients/maximum": self._clients_max,
            "messages/received": traffic.messages_received,
            "messages/sent": traffic.messages_sent,
            "messages/stored": retained.count + waiting,
            "store/messages/count": retained.count + waiting, "store/messages/bytes": retained.size_bytes,
            "subscriptions/count": self._subscriptions(queues),
            "shared_subscriptions/count": sum(len(one.subscribing.shares.granted) for one in clients if one.has_begun)
            + sum(map(self._shares, away)),
            "retained messages/count": retained.count,
            "publish/messages/received": traffic.publishes_received, "publish/messages/sent": traffic.publishes_sent,
            "publish/messages/dropped": self._all_dropped(),
            "publish/bytes/received": traffic.publish_bytes_received, "publish/bytes/sent": traffic.publish_bytes_sent,
            "bytes/received": traffic.bytes_received, "bytes/sent": self._bytes_sent(),
            "heap/current": heap_bytes,
            "heap/maximum": max(heap_bytes, int(self._values.get("$SYS.broker.heap.maximum", "0"))),
        }  # fmt: skip
        return {"version": f"millrace version {OWN_VERSION}"} | {k: str(v) for k, v in figures.items()}

    def _subscriptions(self, queues: list[Queue]) -> int:
        """Those of clients that are connected, and of sessions that last."""
        vhost = self._broker.topology.vhosts.get(self._vhost)
        if vhost is None:
            return 0
        count_to = vhost.exchanges[_EXCHANGE].bindings.count_to
        return sum(count_to(("queue", queue.name)) for queue in queues)

    def _shares(self, queue: Queue) -> int:
        """Of how many groups a session is a member."""
        vhost, to = self._broker.topology.vhosts[self._vhost], ("queue", queue.name)
        if not vhost.exchanges[MEMBERS].bindings.count_to(to):
            return 0
        return sum(one.exchange == MEMBERS and one.pattern.startswith(SHARE) for one in vhost.bindings_to[to])

    def _all_dropped(self) -> int:
        return self._broker.retained.refused + self._gave_way + self.traffic.publishes_too_large

    def _bytes_sent(self) -> int:
        clients = sessions_of(self._broker).clients.values()
        return self.traffic.bytes_sent + sum(one.outbox.written_bytes for one in clients)

    def _load(self, passed_s: float) -> dict[str, str]:
        """Averages a minute, over the last 1, 5 and 15: they follow what happens as the load of a machine does."""
        traffic = self.traffic
        counts = {
            "messages/received": traffic.messages_received,
            "messages/sent": traffic.messages_sent,
            "publish/dropped": self._all_dropped(),
            "publish/received": traffic.publishes_received,
            "publish/sent": traffic.publishes_sent,
            "bytes/received": traffic.bytes_received,
            "bytes/sent": self._bytes_sent(),
            "sockets": traffic.sockets,
            "connections": traffic.connections,
        }
        told = {}
        for name, count in counts.items():
            a_minute = (count - self._counted.get(name, 0)) * 60 / passed_s
            for minutes in _MINUTES:
                before = self._loads.get((name, minutes), 0.0)
                load = a_minute + math.exp(-passed_s / (60 * minutes)) * (before - a_minute)
                self._loads[name, minutes] = load
                if abs(load - before) >= _LEAST_CHANGE or not before:
                    told[f"load/{name}/{minutes}min"] = f"{load:.2f}"
        self._counted = counts
        return told


_systems: WeakKeyDictionary[Broker, System] = WeakKeyDictionary()


def system_of(adapter: MqttAdapter) -> System:
    """That of the adapter's broker."""
    found = _systems.get(adapter.broker)
    if found is None:
        config = adapter.config
        found = _systems[adapter.broker] = System(adapter.broker, config.sys_interval_s, config.virtual_host)
    return found
