"""Which broker leads which partition, as a blocking client knows it, and a connection to each of them.

1. Who leads the partitions of a topic is asked before the first record of it, and again after a broker said that it is
   another, or was not reached. A single broker leads everything and needs no second connection.
2. What only reads is asked again until `timeout_s`, of whoever leads then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from protocols.native import wire
from protocols.native.clients.blocking_link import BlockingLink
from protocols.native.errors import OUTDATED, ConnectionLost, ErrorCode, WireError

Partition = tuple[str, int]
"""Topic and partition number."""
_Entry = TypeVar("_Entry")
_Answer = TypeVar("_Answer")

_ASK_AGAIN_S = 0.1


class BlockingLeaders:
    """See the module. `link` is to any broker."""

    def __init__(self, link: BlockingLink) -> None:
        self._link = link
        self._topics: set[str] = set()
        self._leaders: dict[Partition, int] = {}
        self._epochs: dict[Partition, int] = {}
        self._nodes: dict[int, BlockingLink] = {}

    def close(self) -> None:
        """End the connections to leaders, and know nothing any more."""
        for link in self._nodes.values():
            link.close()
        self._topics.clear()

    def forget(self, topics: Iterable[str]) -> None:
        """Ask again who leads the partitions of these."""
        self._topics -= set(topics)

    def refused(self, topic: str, error: WireError) -> None:
        """What a broker said of one of its partitions."""
        if error[0] in OUTDATED:
            self._topics.discard(topic)

    def epoch_of(self, link: BlockingLink, key: Partition) -> int:
        """The leader epoch to name to a broker that is connected; NO_EPOCH to one that does not know the field."""
        return self._epochs.get(key, wire.NO_EPOCH) if link.version > wire.VERSION_MIN else wire.NO_EPOCH

    def by_leader(
        self, partitions: Sequence[Partition], *, create_missing: bool = False
    ) -> list[tuple[BlockingLink, list[int]]]:
        """The numbers of these, by the connections to their leaders. Raises ConnectionLost."""
        unknown = {topic for topic, _ in partitions} - self._topics
        if unknown:
            self._learn(sorted(unknown), create_missing)
        found: dict[int, tuple[BlockingLink, list[int]]] = {}
        for number, key in enumerate(partitions):
            link = self._nodes.get(self._leaders.get(key, -1), self._link)
            found.setdefault(id(link), (link, []))[1].append(number)
        return list(found.values())

    def read(
        self,
        partitions: Sequence[Partition],
        entries: Sequence[_Entry],
        ask: Callable[[BlockingLink, list[_Entry], int], list[_Answer]],
        error_of: Callable[[_Answer], WireError | None],
        *,
        fixed: bool = False,
    ) -> list[_Answer]:
        """The answers for entries, each of its leader. `ask` is also told among how many connections they are divided.
        `fixed`: they name leader epochs, and asking again for the same is no use.

        Raises ConnectionLost, RequestTimedOut.
        """
        deadline = time.monotonic() + self._link.terms.timeout_s
        while True:
            answers: list[_Answer | None] = [None] * len(entries)
            moved = False
            shares = self.by_leader(partitions)
            for link, numbers in shares:
                try:
                    got = ask(link, [entries[number] for number in numbers], len(shares))
                except ConnectionLost:
                    self.forget(partitions[number][0] for number in numbers)
                    if not self._nodes or time.monotonic() > deadline:
                        raise
                    moved = True
                    continue
                for number, answer in zip(numbers, got):
                    answers[number] = answer
                    error = error_of(answer)
                    if error is not None and error[0] in OUTDATED:
                        self._topics.discard(partitions[number][0])
                        again = error[0] == ErrorCode.NOT_LEADER or not fixed
                        moved = moved or (again and time.monotonic() < deadline)
            if not moved:
                return [answer for answer in answers if answer is not None]
            time.sleep(_ASK_AGAIN_S)

    def _learn(self, topics: list[str], create_missing: bool) -> None:
        reply = self._link.call(wire.Metadata(0, topics, create_missing), wire.MetadataReply)
        for name, error, partitions in reply.topics:
            if error is None:
                self._topics.add(name)
                self._leaders.update({(name, found.partition): found.leader for found in partitions})
                self._epochs.update({(name, found.partition): found.leader_epoch for found in partitions})
        nodes = {node: (host, port) for node, host, port in reply.nodes if host}
        if set(nodes) <= {self._link.node_id} and not self._nodes:
            return
        self._link.addresses = list(dict.fromkeys([*self._link.addresses, *nodes.values()]))
        for node, address in nodes.items():
            there = self._nodes.get(node)
            if there is None or there.addresses != [address]:
                if there is not None:
                    there.close()
                self._nodes[node] = BlockingLink([address], self._link.terms, self._link)
