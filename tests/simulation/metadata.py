"""What etcd is to a role: keys changed by compare-and-swap, revisions, leases, a watch with lag. One true copy.

A request or its answer may be lost; then nobody knows whether it was done. (`etcd_model.py` is the same a level lower.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core_log.metadata.store import Guard, MetadataEntry, Put
from tests.simulation.clockwork import Clockwork

LEASE_S = 1.5


class Metadata:
    """See the module. `reachable` answers whether a broker's requests, and the answers to them, get through."""

    def __init__(self, clockwork: Clockwork, reachable: Callable[[int], bool]) -> None:
        self.clockwork = clockwork
        self.reachable = reachable
        self.revision = 1
        self.entries: dict[bytes, MetadataEntry] = {}
        self.history: list[tuple[int, list[MetadataEntry]]] = []
        self.leases: dict[int, tuple[float, list[bytes]]] = {}
        """Until when, and which keys."""
        self._last_lease = 0
        self.changed: Callable[[], None] = lambda: None

    # ---- in no time: what the member that has the quorum does

    def commit(self, guards: Sequence[Guard], puts: Sequence[Put], lease: int | None = None) -> int | None:
        """The revision; None: a guard does not hold, or the lease is gone."""
        if lease is not None and lease not in self.leases:
            return None
        if not all(guard.holds(self.entries.get(guard.key)) for guard in guards):
            return None
        self.revision += 1
        done = []
        for key, value in puts:
            old = self.entries.pop(key, None)
            created = old.create_revision if old is not None else self.revision
            entry = MetadataEntry(key, value, self.revision, created)
            if value is not None:
                self.entries[key] = entry
                if lease is not None:
                    self.leases[lease][1].append(key)
            done.append(entry)
        self.history.append((self.revision, done))
        self.changed()
        return self.revision

    def grant(self) -> int:
        self._last_lease += 1
        self.leases[self._last_lease] = (0.0, [])
        self.renew(self._last_lease)
        return self._last_lease

    def renew(self, lease: int) -> bool:
        if lease not in self.leases:
            return False
        until_s = self.clockwork.now_s + LEASE_S
        self.leases[lease] = (until_s, self.leases[lease][1])
        self.clockwork.at(until_s + self.clockwork.dice.uniform(0.01, 0.3), lambda: self._expire(lease))
        return True

    def _expire(self, lease: int) -> None:
        if lease in self.leases and self.leases[lease][0] < self.clockwork.now_s:
            self.revoke(lease)

    def revoke(self, lease: int) -> None:
        _, keys = self.leases.pop(lease, (0.0, []))
        gone = [key for key in keys if key in self.entries]
        if gone:
            self.clockwork.note(f"etcd: lease {lease} is over: {gone}")
            self.commit((), [(key, None) for key in gone])

    def new_leader(self) -> None:
        """Every lease is granted anew."""
        for lease in list(self.leases):
            self.renew(lease)

    # ---- over the network

    def request(self, broker: int, work: Callable[[], object], answer: Callable[[object, bool], None]) -> None:
        """Do `work` there; `answer` gets its result, or False for "known": nobody knows whether it was done."""
        clockwork = self.clockwork

        def arrive() -> None:
            result = work() if self.reachable(broker) else None
            arrived = self.reachable(broker)
            back_s = self._delay_s()

            def come_back() -> None:
                if arrived and self.reachable(broker):
                    answer(result, True)
                else:
                    answer(None, False)

            clockwork.after(back_s if arrived else 0.3, come_back)

        clockwork.after(self._delay_s(), arrive)

    def _delay_s(self) -> float:
        dice = self.clockwork.dice
        return dice.uniform(0.0005, 0.003) if dice.random() < 0.9 else dice.uniform(0.01, 0.3)
