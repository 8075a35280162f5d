"""Which packet identifiers are under way to a client, and for which deliveries (section 2.3.1).

1. Identifiers 1 to 65535 are given out in circles; one that is not yet acknowledged is stepped over, so none is ever
   used twice at a time (MQTT-2.3.1-4) whatever order the acknowledgements come in.
2. At QoS 2 an identifier is in use until PUBCOMP (MQTT-4.3.3-2): after PUBREC it is *held* and stands for no delivery.
3. The messages of a session that lasts have identifiers of their own, `claim`ed: they are what the receiver knows them
   by whenever they come again. So what is given out beside them begins above.
4. The state is a list of runs, sorted by identifier, in each of which identifiers and delivery ids rise together:
   one run as long as a client acknowledges in order, and taking or releasing a thousand messages is one step.
"""

from __future__ import annotations

from bisect import bisect_right

from protocols.mqtt.wire import PACKET_ID_MAX
from protocols.sansio import LocalProtocolError

_HELD = -(1 << 40)
"""Held identifiers have deliveries from here on, so that neighbours join."""


class PacketIds:
    """See the module."""

    __slots__ = ("_first", "_firsts", "_next", "_runs", "outstanding")

    def __init__(self, first: int = 1) -> None:
        """Identifiers from `first` on are given out; those below are left to who claims them."""
        self.outstanding = 0
        self._first = self._next = first
        self._firsts: list[int] = []
        self._runs: dict[int, tuple[int, int]] = {}
        """First packet id of a run: its last packet id, and the delivery id of the first."""

    def take(self, first_delivery: int, count: int) -> list[tuple[int, int, int]]:
        """Identifiers for `count` deliveries from `first_delivery` on, as (first, place of the delivery it is for,
        count): one run, seldom more.
        """
        self.outstanding += count
        if self.outstanding > PACKET_ID_MAX - self._first + 1:
            self.outstanding -= count
            raise LocalProtocolError("more messages under way than there are packet identifiers")
        first = self._next
        if self._firsts:
            # Nearly always the newest run goes on.
            run_first = self._firsts[-1]
            last, delivery = self._runs[run_first]
            if last == first - 1 and delivery + first - run_first == first_delivery and last + count < PACKET_ID_MAX:
                self._runs[run_first] = (last + count, delivery)
                self._next = first + count
                return [(first, 0, count)]
        elif first + count <= PACKET_ID_MAX:
            self._firsts.append(first)
            self._runs[first] = (first + count - 1, first_delivery)
            self._next = first + count
            return [(first, 0, count)]
        taken, done = [], 0
        while count:
            first = self._next
            at = bisect_right(self._firsts, first)
            before = self._firsts[at - 1] if at else 0
            if before and self._runs[before][0] >= first:
                self._next = self._after(self._runs[before][0])
                continue
            limit = self._firsts[at] - 1 if at < len(self._firsts) else PACKET_ID_MAX
            last = min(first + count - 1, limit)
            self._insert(at, first, last, first_delivery)
            some = last - first + 1
            taken.append((first, done, some))
            first_delivery += some
            done += some
            count -= some
            self._next = self._after(last)
        return taken

    def _after(self, last: int) -> int:
        return last + 1 if last < PACKET_ID_MAX else self._first

    def claim(self, first: int, first_delivery: int, count: int) -> int:
        """Take the identifiers from `first` on, which do not go round; how many there were before one in use."""
        at = bisect_right(self._firsts, first)
        if at and self._runs[self._firsts[at - 1]][0] >= first:
            return 0
        if at < len(self._firsts):
            count = min(count, self._firsts[at] - first)
        self._insert(at, first, first + count - 1, first_delivery)
        self.outstanding += count
        return count

    def _insert(self, at: int, first: int, last: int, delivery: int) -> None:
        """Put a run before the one at `at`, or prolong the one before that."""
        if at:
            before = self._firsts[at - 1]
            last_before, delivery_before = self._runs[before]
            if last_before == first - 1 and delivery_before + first - before == delivery:
                self._runs[before] = (last, delivery_before)
                return
        self._firsts.insert(at, first)
        self._runs[first] = (last, delivery)

    def release(self, first: int, last: int) -> list[tuple[int, int]]:
        """Free the identifiers `first..last`; returns the deliveries they stood for, as inclusive ranges.

        Identifiers that are not in use are passed over: the standard gives them no meaning.
        """
        freed = []
        for low, high, delivery in self._cut(first, last):
            self.outstanding -= high - low + 1
            if delivery >= 0:
                freed.append((delivery, delivery + high - low))
        return freed

    def hold(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Have the identifiers `first..last` stay in use until they are released. Returns, for each run of those in
        use, its first and last and the delivery of the first: a negative one if they are held already.
        """
        found = self._cut(first, last)
        for low, high, _ in found:
            self._insert(bisect_right(self._firsts, low), low, high, _HELD + low)
        return found

    def hold_unsent(self, first: int, last: int) -> None:
        """Identifiers that a receiver knows from before are in use."""
        for low, high, _ in self._cut(first, last):
            self.outstanding -= high - low + 1
        self._insert(bisect_right(self._firsts, first), first, last, _HELD + first)
        self.outstanding += last - first + 1

    def delivery_of(self, packet_id: int) -> int:
        """The delivery that an identifier stands for; negative: none."""
        at = bisect_right(self._firsts, packet_id)
        first = self._firsts[at - 1] if at else 0
        last, delivery = self._runs.get(first, (0, -1))
        return delivery + packet_id - first if last >= packet_id and delivery >= 0 else -1

    def rebind(self, packet_id: int, delivery: int) -> None:
        """An identifier that is in use stands for another delivery, of the same message."""
        self._cut(packet_id, packet_id)
        self._insert(bisect_right(self._firsts, packet_id), packet_id, packet_id, delivery)

    def held(self) -> list[tuple[int, int]]:
        """The identifiers that are held, as inclusive ranges."""
        return [(first, self._runs[first][0]) for first in self._firsts if self._runs[first][1] < 0]

    def _cut(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Take out what is in use of `first..last`: first and last of each run, and the delivery of the first."""
        found, firsts = [], self._firsts
        at = bisect_right(firsts, first) - 1 if len(firsts) > 1 else 0
        if at < 0:
            at = 0
        while at < len(firsts) and firsts[at] <= last:
            run_first = firsts[at]
            run_last, delivery = self._runs[run_first]
            low = first if first > run_first else run_first
            high = last if last < run_last else run_last
            if low > high:
                at += 1
                continue
            found.append((low, high, delivery + low - run_first))
            if low > run_first:
                self._runs[run_first] = (low - 1, delivery)
                at += 1
            else:
                del self._runs[run_first], firsts[at]
            if high < run_last:
                firsts.insert(at, high + 1)
                self._runs[high + 1] = (run_last, delivery + high + 1 - run_first)
                at += 1
        return found
