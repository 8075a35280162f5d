"""What this broker sends to a log that another one leads, in order: to those who wait for it, it is that log.

Positions count the messages that this process has sent to the log; they are to a `Stream` what offsets are to a log.
`CommitWaiter` and `Route` ask nothing else of either.

1. What is sent is kept until the leader has it: written, and committed where somebody waits for that. When the link is
   lost, or the leader does not take it, all that is kept is sent again, over the next one or to the next leader, in the
   same order. A leader drops what it has by position (`served_broker.py`), and takes nothing that does not follow what
   it took last, or begins anew: what is under way behind something that was not taken comes again, too. What another
   leader may have had is marked as redelivered.
2. Publishers wait while there is no leader that can be reached and takes what is sent, for `patience_s` at most: then
   what is under way has failed, whoever waits is told so, and publishes are refused (`error`) until somebody leads.
3. What is kept is bounded: publishers are not read from while it is more than `WINDOW_BYTES` (`has_room`).
4. What clients of a broker publish to a log that it leads goes into it directly, but for the time in which nothing may
   be appended: then it comes here, as if the log were led elsewhere (`Homes`), and is sent to the broker itself
   (`loopback.py`) or to the next leader. What was appended before, and is not committed, keeps its place before it
   (`reserve`): if it is cut off the log, and only then, it is sent to the next leader, before all that came later.
   What is sent behind such a place follows nothing that was sent: it begins anew.
5. When a leader has handed over, what it has taken is known from its last word on that, which may come after the news
   that another one leads: so what it has not answered is sent to the next one behind that, or `_LAST_WORD_S` later.
6. What a leader refuses is told apart where somebody asks beforehand (`watch`), where queues may be full. Where nobody
   did, everything that is under way behind it has failed, whoever waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

if TYPE_CHECKING:
    from routing.cluster.clients.forwarding import EngineLink, Forwarding
    from routing.message import Slab

WINDOW_BYTES = 8 << 20
_RETRY_S, _RETRY_S_MAX = 0.01, 0.4
"""Who does not take what is sent is tried again then, ever later: it may become the leader within a moment."""
_LAST_WORD_S = 0.25
_MESSAGE_BYTES = 64
"""What a message takes besides its body, about."""


class Slabs(NamedTuple):
    """A slab for queues of a home."""

    queue_ids: tuple[int, ...]
    once_in_ms: int
    slab: Slab
    again: bool = False
    """It may be there already, by other means."""


class Records(NamedTuple):
    """Records for a partition of a topic."""

    keys: bytes | list[bytes]
    header_blocks: bytes | list[bytes]
    bodies: list[bytes]


class Kept(NamedTuple):
    """What was sent and is not answered yet: positions [position, end)."""

    position: int
    end: int
    size_bytes: int
    since_s: float
    what: Slabs | Records


class Own(NamedTuple):
    """What was appended here, at offsets [first, end): its fate is not known before it is committed, or cut off."""

    kept: Kept
    first: int
    end: int


class Watch:
    """Somebody wants to know which of the messages before `end` a queue refuses: `refused` are pairs of first and last,
    counted from 0.
    """

    __slots__ = ("count", "end", "refused")

    def __init__(self, end: int, count: int) -> None:
        self.end = end
        self.count = count
        self.refused: list[tuple[int, int]] = []

    def note(self, first: int, last: int) -> None:
        """A leader refused these positions."""
        start = self.end - self.count
        first, last = max(first, start) - start, min(last, self.end - 1) - start
        if first <= last and (first, last) not in self.refused:
            self.refused.append((first, last))


class Stream:
    """See the module; made by `Forwarding.stream`."""

    waits_out_errors = closed = False
    drops_what_failed = True

    def __init__(self, name: str, forwarding: Forwarding) -> None:
        self.name = self.directory = name
        self.next_position = 0
        self.written_offset = self.committed_offset = 0
        self.error: OSError | None = None
        self.listeners: list[Callable[[Stream], None]] = []
        self.kept: deque[Kept] = deque()
        self.kept_bytes = 0
        self.own: deque[Own] = deque()
        """See rule 4; in the order of their offsets."""
        self.given_up = 0
        """What was sent before this position and is not committed is not sent any more."""
        self.sync_before = 0
        """Somebody waits until all before this position is committed."""
        self._forwarding = forwarding
        self._link: EngineLink | None = None
        self._leader_epoch = 0
        self._sent_before = self._asked_before = 0
        """Positions below were sent over this link; below the second it knows that somebody waits."""
        self._begins = True
        """What is sent next is what it begins with."""
        self._sent_at_all = self._had_before = 0
        """Positions below were sent to any leader; below the second they may be in the log by an earlier one."""
        self._asked_of: tuple[EngineLink, int] | None = None
        """Who has been sent something last, and in which leader epoch; None after its last word."""
        self._held_until_s: float | None = None
        """See rule 5."""
        self._away_since_s: float | None = None
        self._refused_by: tuple[EngineLink, int] | None = None
        self._refused_at_s = 0.0
        self._retry_s = _RETRY_S
        self._watches: deque[Watch] = deque()
        self._refused_before = 0
        """Refusals of positions below are known."""
        self._heard_before: int | None = None
        """Whether the leader still tells of refusals: the position before which it was told that they are known."""
        self._written_there = 0
        """How far the leader itself has said that it is, over this link."""

    @property
    def log_end_offset(self) -> int:
        """Behind what was sent last."""
        return self.next_position

    @property
    def has_room(self) -> bool:
        """Publishers need not wait."""
        return self.kept_bytes < WINDOW_BYTES or self.error is not None

    # ---- what is sent

    def take(self, count: int, size_bytes: int, what: Slabs | Records) -> int:
        """Send messages when the turn ends; the position behind the last."""
        position = self.next_position
        self.next_position = end = position + count
        size_bytes += _MESSAGE_BYTES * count
        if self._away_since_s is None and self._link is None:
            self._away_since_s = self._forwarding.now_s()
        self.kept.append(Kept(position, end, size_bytes, self._forwarding.now_s(), what))
        self.kept_bytes += size_bytes
        self._forwarding.dirty[self] = None
        return end

    def request_sync(self) -> None:
        """Somebody waits until all that was sent so far is committed."""
        if self.sync_before < self.next_position:
            self.sync_before = self.next_position
            self._forwarding.dirty[self] = None

    def watch(self, end: int, count: int) -> Watch:
        """Note which of the `count` messages before position `end` are refused."""
        found = Watch(end, count)
        self._watches.append(found)
        return found

    @property
    def all_taken(self) -> bool:
        """Nothing waits for a leader: this broker has taken all there is."""
        own = self._link is not None and self._link is self._forwarding.own
        return not self.kept or (own and self._sent_before == self.next_position)

    def send(self) -> None:
        """The turn ends: hand what was not sent to the link, if there is one."""
        link = self._link
        if link is None or (self.own and link is not self._forwarding.own):
            return
        if self._sent_before < self.next_position:
            follows = self._sent_before
            for kept in self._unsent():
                again = kept.position < self._had_before or (isinstance(kept.what, Slabs) and kept.what.again)
                begins = self._begins or kept.position != follows
                link.publish(self.name, self._leader_epoch, kept, begins=begins, again=again)
                if self._link is not link:
                    break  # this broker itself has refused it at once: all of it comes again
                self._begins, follows = False, kept.end
            else:
                self._sent_before = self.next_position
            self._sent_at_all = self.next_position
            self._asked_of = link, self._leader_epoch
        heard_before = self._heard_before
        repeats = heard_before is not None and heard_before < self._written_there
        if self._link is link and (repeats or self._asked_before < self.sync_before):
            self._asked_before = self.sync_before
            if repeats:
                self._heard_before = self._written_there
            link.wait(self.name, self._leader_epoch, self.sync_before, self._written_there)

    def _unsent(self) -> Sequence[Kept]:
        found: list[Kept] = []
        for kept in reversed(self.kept):
            if kept.position < self._sent_before:
                break
            found.append(kept)
        found.reverse()
        return found

    # ---- what was appended here

    def reserve(self, count: int, size_bytes: int, what: Slabs, first: int, end: int) -> None:
        """Messages are in the log of this broker at [first, end), and nothing was published behind them yet."""
        position = self.next_position
        self.next_position = position + count
        size_bytes += _MESSAGE_BYTES * count
        kept = Kept(position, self.next_position, size_bytes, self._forwarding.now_s(), what)
        self.own.append(Own(kept, first, end))
        if self._sent_before == position:
            self._sent_before = self.next_position
        self._begins = True

    def own_committed(self, offset: int) -> None:
        """This broker's log is committed up to an offset."""
        own, position = self.own, 0
        while own and own[0].end <= offset:
            position = own.popleft().kept.end
        if position:
            self._advance(position, position)
            self._forwarding.dirty[self] = None

    def own_cut(self, offset: int) -> None:
        """This broker's log ends at an offset: what was behind it is the next leader's to take. -1: nobody knows."""
        own = self.own
        if offset < 0 and own:
            self._fail(f"{self.name}: this broker's replica was begun anew")
            return
        lost: list[Kept] = []
        while own and own[-1].end > offset:
            kept, first, end = own.pop()
            what, there = kept.what, offset - first
            if there > 0 and isinstance(what, Slabs):  # a part of it is there
                cut = kept.position + there
                own.append(Own(kept._replace(end=cut), first, offset))
                rest = what._replace(slab=what.slab.part(there, end - first))
                kept = kept._replace(position=cut, what=rest)
            lost.append(kept)
        if lost:
            self.kept_bytes += sum(kept.size_bytes for kept in lost)
            self.kept = deque(sorted([*self.kept, *lost], key=lambda kept: kept.position))
            self._sent_before, self._asked_before, self._begins = self.kept[0].position, 0, True
        self._forwarding.dirty[self] = None

    # ---- where it goes

    def retry(self) -> None:
        """Who did not take it may take it now."""
        self._refused_by = None
        self.look()

    def look(self, now_s: float | None = None) -> None:
        """Who leads the log, or whether there is a link to it, may have changed."""
        now_s = self._forwarding.now_s() if now_s is None else now_s
        broker, leader_epoch = self._forwarding.leader_of(self.name)
        link = self._forwarding.link_for(broker)
        if self._asked_of is not None and self._is_held(self._asked_of, broker, leader_epoch):
            link, leader_epoch = None, self._leader_epoch
        elif self._held_until_s is not None:
            self._held_until_s = self._asked_of = None
        retried = link is not None and self._refused_by == (link, leader_epoch)
        if retried and now_s < self._refused_at_s + self._retry_s:
            link = None  # what it was sent is sent again then, whatever time has passed since it said so
        if link is self._link and (link is None or leader_epoch == self._leader_epoch):
            return
        if leader_epoch != self._leader_epoch:
            self._had_before, self._retry_s = self._sent_at_all, _RETRY_S
            if self.kept:  # another leader decides again which of these it refuses
                self._refused_before = min(self._refused_before, self.kept[0].position)
        self._link, self._leader_epoch, self._begins = link, leader_epoch, True
        self._sent_before = self.kept[0].position if self.kept else self.next_position
        self._asked_before, self._heard_before, self._written_there = 0, None, 0
        if link is None:
            self._away_since_s = self._away_since_s or now_s
        else:
            if not (retried and self.kept):
                self._away_since_s = self.error = None
            self._forwarding.dirty[self] = None

    def _is_held(self, asked_of: tuple[EngineLink, int], broker: int | None, leader_epoch: int) -> bool:
        """Rule 5."""
        before, epoch = asked_of
        if epoch >= leader_epoch or broker in (None, before.broker) or not self.kept:
            return False
        if self._forwarding.link_for(before.broker) is not before or not self._forwarding.was_handed_over(self.name):
            return False
        if self._held_until_s is None:
            self._held_until_s = self._forwarding.now_s() + _LAST_WORD_S
            self._forwarding.spawn(self._look_later, _LAST_WORD_S)
        return self._forwarding.now_s() < self._held_until_s

    async def _look_later(self, after_s: float) -> None:
        await trio.sleep(after_s)
        self.look()
        self._forwarding.want_turn()

    def not_led(self, link: EngineLink, leader_epoch: int, *, last: bool) -> None:
        """The broker that was asked does not lead the log, or not yet; `last` as in `ServedLink`."""
        if last and self._asked_of == (link, leader_epoch):
            self._asked_of = None
            if self._held_until_s is not None:
                self.look()
        if link is self._link and leader_epoch == self._leader_epoch:
            if self._refused_by == (link, leader_epoch):
                self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)
            now_s = self._forwarding.now_s()
            self._refused_by, self._refused_at_s = (link, leader_epoch), now_s
            self._forwarding.spawn(self._look_later, self._retry_s)
            self.look(now_s)

    def tick(self, now_s: float) -> None:
        """Time has passed."""
        self.look()
        patience_s = self._forwarding.patience_s
        if self._away_since_s is not None and now_s - self._away_since_s >= patience_s and self.error is None:
            self.error = OSError(f"{self.name} {self._forwarding.whereabouts(self.name)}")
        waiting = [queue[0] for queue in (self.kept, deque(one.kept for one in self.own)) if queue]
        if any(now_s - kept.since_s >= patience_s for kept in waiting):
            self._fail(f"{self.name}: no answer for {patience_s:g} s")

    def drop(self) -> None:
        """What it leads to is deleted: who waits for what was to be there need not, and nothing is sent any more."""
        self.written_offset = self.committed_offset = self.next_position
        self._send_no_more()
        self.error = OSError(f"{self.name} is deleted")
        self._forwarding.forget(self)

    def _fail(self, why: str) -> None:
        """Tell whoever waits that it is not known to be safe, and send it no more."""
        before, self.error = self.error, OSError(why)
        self.given_up = self.next_position
        self._send_no_more()
        self.error = before
        if self._link is not None:
            self._away_since_s = self.error = None  # nothing is under way that could be answered: try what comes next

    def _send_no_more(self) -> None:
        """Nothing that was taken so far is sent any more; whoever waits looks what has become of it."""
        self.kept.clear()
        self.own.clear()
        self.kept_bytes = 0
        self._watches.clear()
        self._tell()

    # ---- what is answered

    def done(self, leader_epoch: int, written: int, committed: int, refused: Sequence[int]) -> None:
        """How far the leader is."""
        if leader_epoch != self._leader_epoch:
            return
        self._written_there = written
        if self._link is not None:
            self._retry_s = _RETRY_S
            self._refused_by = self._away_since_s = self.error = None
        if refused:
            self._note_refused(list(zip(refused[::2], refused[1::2], strict=True)), written, committed)
            self._heard_before = self._heard_before or 0
            self._forwarding.dirty[self] = None
        else:
            self._heard_before = None
        self._advance(written, committed)

    def _advance(self, written: int, committed: int) -> None:
        self.written_offset = max(self.written_offset, min(written, self.next_position))
        self.committed_offset = max(self.committed_offset, min(committed, self.next_position))
        kept = self.kept
        while kept:
            end = kept[0].end
            if end > (self.committed_offset if kept[0].position < self.sync_before else self.written_offset):
                break
            self.kept_bytes -= kept.popleft().size_bytes
        answered = kept[0].position if kept else self.next_position
        while self._watches and self._watches[0].end <= min(answered, self.written_offset):
            self._watches.popleft()
        self._tell()
        self._forwarding.room_changed()

    def _note_refused(self, refused: Sequence[tuple[int, int]], written: int, committed: int) -> None:
        """Tell those who asked; where nobody did, all who wait for these or what comes after: more than need be."""
        unasked = self.next_position
        for first, last in refused:
            if last < self._refused_before:
                continue  # known from before
            self._refused_before = last + 1
            asked = 0
            for watch in self._watches:
                watch.note(first, last)
                asked += max(min(last + 1, watch.end) - max(first, watch.end - watch.count), 0)
            if asked < last + 1 - first:
                unasked = min(unasked, first)
        if unasked < self.next_position:
            self.written_offset = max(self.written_offset, min(written, unasked))
            self.committed_offset = max(self.committed_offset, min(committed, unasked))
            before, self.error = self.error, OSError(f"{self.name}: its leader did not take it")
            self._tell()
            self.error = before

    def _tell(self) -> None:
        for listener in tuple(self.listeners):
            listener(self)
