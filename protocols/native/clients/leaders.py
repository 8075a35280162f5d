"""Which broker leads which partition, as a client knows it, and a link to each of them.

1. Any broker can be asked who leads what. With one broker there is one link; with several one more to each that leads
   something the client uses.
2. Brokers are asked every few seconds as well: one that stands still, or is cut off, does not say that another leads
   what it led, and nobody says that a topic has more partitions now. The link to a broker that the others do not know
   any more ends.
3. What turns out to be wrong (NOT_LEADER, a lost connection) is `stale`: nothing is sent there until the brokers were
   asked again. They are asked, ever less often, as long as a partition that is used has no leader that is reached, and
   for `_MOVING_S` while they tell of none but who refused it: it is handing over, most likely.
4. Requests name the leader epoch that is known here, so that a broker that is behind, or ahead, says so. A broker that
   tells of an older epoch than is known is behind, and not believed for a while (KIP-320).
5. Nothing here repeats a request: whoever sent it knows whether it may.
6. A topic's id says when it was made again under its name: nothing that was known of its partitions is true then, and
   who tells of the former id from then on is behind (`topic_ids.py`). Leaders say of which topic records are: what
   is read by what a broker that is behind tells of them is not of the topic that it tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import trio

from protocols.native import wire
from protocols.native.clients.blocking_link import Address, named
from protocols.native.clients.link import Link, LinkConfig
from protocols.native.clients.topic_ids import TopicIds
from protocols.native.errors import (
    ConnectionLost,
    ErrorCode,
    MillraceError,
    RequestTimedOut,
    UnknownPartition,
    error_from_wire,
)

Partition = tuple[str, int]
"""Topic and partition number."""

_ASK_EVERY_S = 2.0
_ANSWER_S_MAX = 2.0
"""A broker that takes longer is left for another, where there is one."""
_OLDER_S_MAX = 3.0
"""Then an older epoch is that of another topic, which has the name now."""
_ASK_AGAIN_S = 0.01
_ASK_AGAIN_S_MAX = 0.5
_MOVING_S = 1.0
_RECONNECT_BACKOFF_MS_MAX = 500
"""A broker that comes back is needed soon: it leads again what it led before."""


class Leaders:
    """See the module. `link` is to any broker; run `run` beside it."""

    def __init__(self, link: Link) -> None:
        self.on_change: Callable[[], None] | None = None
        """Called when a link was connected or lost, or when somebody else leads."""
        self.counts: dict[str, int] = {}
        """How many partitions topics have; fewer than before only where one was made again."""
        self.absent: set[str] = set()
        """Topics that do not exist, as was said last."""
        self.on_made_again: Callable[[str], None] | None = None
        """Called when a topic turns out to be another one than before."""
        self._ids = TopicIds()
        self._not_told: set[str] = set()
        """Topics that were made again, as records say, and nobody told yet how many partitions they have."""
        self._link = link
        self._topics: dict[str, None] = {}
        self._leaders: dict[Partition, int] = {}
        self._epochs: dict[Partition, tuple[int, float]] = {}
        """The latest leader epoch of each, and when it was heard of last."""
        self._stale: dict[str, None] = {}
        self._moving: dict[Partition, tuple[int, float]] = {}
        """Leader epochs in which partitions were refused, and until when the next one is looked for."""
        self._ask_again_s = _ASK_AGAIN_S
        self._nodes: dict[int, tuple[Link, trio.CancelScope]] = {}
        self._addresses: dict[int, Address] = {}
        self._single = True
        self._asking = trio.Event()
        self._nursery: trio.Nursery | None = None
        link.on_change = self._changed

    @property
    def config(self) -> LinkConfig:
        """How connections are kept."""
        return self._link.config

    @property
    def failure(self) -> MillraceError | None:
        """Why connecting again makes no sense, to the broker that was asked first or to a leader."""
        links = (self._link, *(link for link, _ in self._nodes.values()))
        return next((link.failure for link in links if link.failure is not None), None)

    def link_to(self, topic: str, partition: int) -> Link | None:
        """The link to the leader of a partition; None while none is known and connected."""
        if self._single:
            return self._link if self._link.connected and topic not in self._stale else None
        leader = self._leaders.get((topic, partition))
        if topic not in self._topics:
            self._topics[topic] = None
            self.stale([(topic, partition)])
        found = self._node(leader) if leader is not None else None
        return found if found is not None and found.connected else None

    def epoch_of(self, link: Link, topic: str, partition: int) -> int:
        """The leader epoch to name to a broker; NO_EPOCH while none is known, or if it does not know the field."""
        if topic not in self._topics:
            self._topics[topic] = None
            self._asking.set()
        known = self._epochs.get((topic, partition))
        return known[0] if known is not None and link.version > wire.VERSION_MIN else wire.NO_EPOCH

    def refused(self, partition: Partition) -> int:
        """A broker that was thought to lead a partition says that it does not: `stale`; the epoch that is known."""
        epoch = self._epochs.get(partition, (wire.NO_EPOCH, 0.0))[0]
        if self._moving.get(partition, (wire.NO_EPOCH - 1, 0.0))[0] < epoch:
            self._moving[partition] = epoch, trio.current_time() + _MOVING_S
            self._ask_again_s = _ASK_AGAIN_S
        self.stale([partition])
        return epoch

    def has_moved(self, partition: Partition, epoch: int) -> bool:
        """Whether a later leader epoch than this is known."""
        return self._epochs.get(partition, (wire.NO_EPOCH, 0.0))[0] > epoch

    def _node(self, node: int) -> Link | None:
        if self._link.connected and self._link.node_id == node:
            return self._link
        there = self._nodes.get(node)
        return there[0] if there is not None else None

    def stale(self, partitions: Iterable[Partition]) -> None:
        """These are not led by whom they were thought to be, or that broker is gone."""
        for key in partitions:
            self._leaders.pop(key, None)
            self._stale[key[0]] = None
        self._asking.set()

    async def partitions(self, topic: str, *, create_missing: bool, timeout_ms: int | None = None) -> list[int]:
        """Partition numbers of a topic, made if allowed. Raises UnknownTopic, RequestTimedOut."""
        config = self._link.config
        deadline = trio.current_time() + (config.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        while True:
            left_ms = max(0, int((deadline - trio.current_time()) * 1000))
            request = wire.Metadata(0, [topic], create_missing)
            reply = await self._link.call(request, wire.MetadataReply, timeout_ms=left_ms)
            ((_, error, partitions),) = reply.topics
            if error is None:
                self._topics[topic] = None
                self._learn(reply)
                return [found.partition for found in partitions]
            if error[0] != ErrorCode.NOT_LEADER:
                raise error_from_wire(error)
            await trio.sleep(config.reconnect_backoff_ms / 1000)

    async def wait_for(self, partitions: Iterable[Partition], deadline: float) -> dict[Link, list[Partition]]:
        """Partitions by the links to their leaders, once all are known. Raises RequestTimedOut at `deadline`, and
        UnknownPartition for one that its topic has not got, also when the brokers were asked again.
        """
        keys = list(partitions)
        if lacking := [key for key in keys if self._lacks(key)]:
            self.stale(lacking)
        asked_at = trio.current_time() + _MOVING_S
        with trio.move_on_at(deadline):
            while True:
                if self.failure is not None:
                    raise self.failure
                found: dict[Link, list[Partition]] = {}
                for key in keys:
                    link = self.link_to(*key)
                    if link is None:
                        if self._lacks(key) and trio.current_time() > asked_at:
                            raise UnknownPartition(
                                f"topic {key[0]!r} has no partition {key[1]}, but {self.counts[key[0]]}"
                            )
                        break
                    found.setdefault(link, []).append(key)
                else:
                    return found
                await trio.sleep(_ASK_AGAIN_S / 5)
        raise RequestTimedOut(self.why_unreached(keys), retriable=True)

    def why_unreached(self, keys: Iterable[Partition]) -> str:
        """What to say of partitions whose leaders are not all reached: which of them is not, and where it would be."""
        for topic, partition in keys:
            if self.link_to(topic, partition) is None:
                what = f"partition {partition} of topic {topic!r}"
                leader = self._leaders.get((topic, partition), -1)
                if self._single and self._link.lost is not None:
                    return f"the leader of {what} is not reached: {self._link.lost}"
                if self._single or (address := self._addresses.get(leader)) is None:
                    return f"no leader of {what} is known"
                return f"broker {leader} at {named(address)}, which leads {what}, is not reached"
        return "leaders were not reached in time"

    def _lacks(self, key: Partition) -> bool:
        """Whether its topic, for all that is known, has no such partition."""
        count = self.counts.get(key[0])
        return count is not None and not 0 <= key[1] < count

    # Asking

    async def run(self) -> None:
        """Ask who leads whenever that is in doubt, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            try:
                await self._ask_on()
            finally:
                self._nursery = None  # links that end now are not made again

    async def _ask_on(self) -> None:
        self._connect_nodes()
        while True:
            if not self._doubtful():
                self._ask_again_s = _ASK_AGAIN_S
                self._asking = trio.Event()
                age_s = self._link.config.metadata_max_age_ms / 1000
                often = self.absent or not self._single
                with trio.move_on_after(min(age_s, _ASK_EVERY_S) if often else age_s):
                    await self._asking.wait()
            await self._ask()
            wait_s = self._ask_again_s
            self._ask_again_s = min(2 * wait_s, _ASK_AGAIN_S_MAX)
            await trio.sleep(wait_s)

    def _doubtful(self) -> bool:
        if self._stale:
            return True
        if self._single:
            return False
        now_s = trio.current_time()
        if any(now_s < until_s and not self.has_moved(key, epoch) for key, (epoch, until_s) in self._moving.items()):
            return True
        self._moving.clear()
        return any(self.link_to(*key) is None for key in self._leaders if key[0] not in self.absent)

    async def _ask(self) -> None:
        topics = list(self._topics)
        try:
            await self._link.wait_connected()
            timeout_s = self._link.config.request_timeout_ms / 1000
            with trio.move_on_after(timeout_s if self._single else _ANSWER_S_MAX) as scope:
                reply = await self._link.request(wire.Metadata(0, topics, False), wire.MetadataReply)
                self._stale.clear()
                self._learn(reply)
            if scope.cancelled_caught:
                self._link.give_up()
        except MillraceError:
            if self._link.failure is not None:
                await trio.sleep_forever()

    def _learn(self, reply: wire.MetadataReply) -> None:
        nodes = {node: (host, port) for node, host, port in reply.nodes}
        self._single = len(nodes) <= 1 and all(not host or node == self._link.node_id for node, host, _ in reply.nodes)
        ids = reply.topic_ids or [b""] * len(reply.topics)
        made_again = []
        for (name, error, partitions), topic_id in zip(reply.topics, ids, strict=True):
            if error is not None:
                if error[0] == ErrorCode.UNKNOWN_TOPIC:
                    self.absent.add(name)
                continue
            if self._ids.is_former(name, topic_id):  # rule 6
                self._stale[name] = None
                continue
            self.absent.discard(name)
            is_another = self._ids.note(name, topic_id)
            if is_another or (topic_id and name in self._not_told):
                self._forget(name)
                self._not_told.discard(name)
            if is_another:
                made_again.append(name)
            self.counts[name] = max(self.counts.get(name, 0), len(partitions))  # who says less is behind
            for found in partitions:
                if self._is_older((name, found.partition), found.leader_epoch):
                    self._stale[name] = None
                    continue
                self._leaders[name, found.partition] = found.leader
                if found.leader < 0:
                    self._stale[name] = None
        if not self._single:
            self._link.also_at(list(nodes.values()))
            self._addresses = nodes
            self._connect_nodes()
        if self.on_made_again is not None:
            for name in made_again:
                self.on_made_again(name)
        self._changed()

    def is_of(self, topic: str, topic_id: bytes) -> bool:
        """Whether what a leader has read is of the topic that is known, by its id; else it counts for nothing: rule
        6.
        """
        is_another = self._ids.note(topic, topic_id)
        if not is_another and not self._ids.is_former(topic, topic_id):
            return True
        self._asking.set()
        if not is_another:
            self._stale[topic] = None
            return False
        self._not_told.add(topic)
        if self.on_made_again is not None:
            self.on_made_again(topic)
        return False

    def _forget(self, topic: str) -> None:
        """Its partitions are those of another topic now, or gone."""
        for partition in range(self.counts.pop(topic, 0)):
            for known in (self._leaders, self._epochs, self._moving):
                known.pop((topic, partition), None)

    def _is_older(self, key: Partition, epoch: int) -> bool:
        """Note an epoch, unless whoever tells of it is behind; of a single broker none is."""
        known, heard_s = self._epochs.get(key, (wire.NO_EPOCH, 0.0))
        now_s = trio.current_time()
        if epoch < known and not self._single and now_s - heard_s < _OLDER_S_MAX:
            return True
        self._epochs[key] = epoch, now_s
        return False

    def _connect_nodes(self) -> None:
        """A link to each broker that leads something, at the address where it is now."""
        if self._nursery is None or self._single:
            return
        for node, (link, scope) in list(self._nodes.items()):
            if self._addresses.get(node) != link.address:
                scope.cancel()
                del self._nodes[node]
        for node in set(self._leaders.values()):
            if node in self._addresses and node not in self._nodes and self._node(node) is None:
                config = msgspec.structs.replace(self._link.config, reconnect_backoff_ms_max=_RECONNECT_BACKOFF_MS_MAX)
                link = Link([self._addresses[node]], config)
                link.on_change = self._changed
                link.closing = ConnectionLost(f"broker {node} is not where it was", retriable=True)
                self._nodes[node] = link, trio.CancelScope()
                self._nursery.start_soon(self._keep, *self._nodes[node])

    @staticmethod
    async def _keep(link: Link, scope: trio.CancelScope) -> None:
        with scope:
            await link.run()

    def _changed(self) -> None:
        if not self._single:
            self._connect_nodes()
            self._asking.set()
        if self.on_change is not None:
            self.on_change()
