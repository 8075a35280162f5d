"""The replicas of a broker, and what goes between them and those of others in a turn.

1. Roles decide (`core_log/replication`), links carry (`FollowerLink`, `LeaderLink`): here is who has something to say,
   to whom, and when. Logs note that they have news; a turn looks at those only, and says all to each peer at once.
2. A turn ends with it after the logs were written to and before anything is sent: what was appended goes to the
   followers while this disk writes it, too.
3. A follower acknowledges what it got when that is kept as the log's `fsync` says, and is told of the high watermark
   with the next batches, or `_TELL_S` later: so a batch costs one frame each way. What waits for a report that does not
   come is looked at then, too.
4. A follower that has no credit, or takes nothing, is told of watermarks all the same; batches wait until it has.
5. Logs of which a follower is not in sync come after all others, and share `catch_up_bytes_per_s`. What is not in
   memory any more is read in a thread, for two logs at a time.
6. A replica that would have to cut what is committed says so in the log, and asks for nothing any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import trio

from core_log.errors import BelowHighWatermark, CorruptBatch, LogUnavailable, OffsetOutOfRange
from core_log.log_flusher import LogFlusher
from core_log.partition_log import PartitionLog
from core_log.replica_log import ReplicaLog
from core_log.replication.follower import Follower
from core_log.replication.leader import Leader
from core_log.replication.messages import Batches, Diverging, Position, Refused, Reply
from core_log.replication.replica import Replica
from core_log.replication.state import LogState
from routing.cluster.replica_links import Allowance, FollowerLink, Frame, LeaderLink

logger = logging.getLogger(__name__)

CATCH_UP_BYTES_PER_S = 64 << 20
_COLD_READS_MAX = 2
_RETRY_S = 1.0
_ASK_AGAIN_S = 0.005
_TELL_S = 0.1
_LITTLE_BYTES = 16 << 10
"""Batches that nobody waits for are acknowledged as late as that, if they are smaller."""
_RETRIES_MAX = 6  # later ones come with the tick
_PASSES_MAX = 4
"""What is committed may make something else committed within a turn, but not for ever."""


class Replicas:
    """See the module. `tick` is to be called every half a second or so, `end_turn` whenever a turn ends."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        spawn: Callable[..., Any],
        want_turn: Callable[[], None],
        flusher: LogFlusher | None = None,
        read_bytes_max: int = 1 << 20,
        catch_up_bytes_per_s: int = CATCH_UP_BYTES_PER_S,
    ) -> None:
        """`spawn` starts a task, `want_turn` has a turn soon; with a `flusher` what comes is handed to the disk at
        once. `read_bytes_max` is for one log in one turn.
        """
        self.by_name: dict[str, Replica] = {}
        self.followers: dict[int, FollowerLink] = {}
        """Links to brokers that follow, by their id."""
        self.leaders: dict[int, LeaderLink] = {}
        """Links to brokers that may lead, by their id."""
        self.heard: Callable[[int, int], None] | None = None
        """Called with a broker and the metadata's revision at which the topology has changed last there."""
        self.revision_due = False
        """Others wait to hear which one is applied here."""
        self.decide: Callable[[Leader], None] | None = None
        """Called for a leader whose ISR may have to change: see `Leader.wish`."""
        self.assumed: Callable[[str], None] | None = None
        """Called with a log's name when this broker's role in it has changed."""
        self.catch_up = Allowance(catch_up_bytes_per_s, clock())
        """For those who are not in sync, all together."""
        self._clock = clock
        self._spawn = spawn
        self._want_turn = want_turn
        self._flusher = flusher
        self._read_bytes_max = read_bytes_max
        self._by_log: dict[PartitionLog, Replica] = {}
        self._news: dict[ReplicaLog, None] = {}
        self._held: dict[int, dict[ReplicaLog, None]] = {}
        self._kept: dict[ReplicaLog, None] = {}
        """More of these is kept here, or committed, than when a turn ended last."""
        self._untold: dict[ReplicaLog, None] = {}
        """What is committed of these has not been told to a follower, or what was got of them to the leader."""
        self._busy: set[object] = set()
        self._cold_reads = trio.CapacityLimiter(_COLD_READS_MAX)

    # ---- what there is

    def add(self, replica: Replica) -> None:
        """One more."""
        self.by_name[replica.name] = self._by_log[replica.log] = replica
        replica.log.news = self._news
        replica.log.waits = partial(self._disk_waits, replica)
        replica.log.listeners.append(self._log_changed)
        self._news[replica.log] = None

    def remove(self, name: str) -> None:
        """One less."""
        replica = self.by_name.pop(name)
        replica.log.waits = None
        del self._by_log[replica.log]
        replica.log.news = None
        replica.log.listeners.remove(self._log_changed)
        self._news.pop(replica.log, None)

    def _log_changed(self, log: PartitionLog) -> None:
        replica = self._by_log[log]
        if isinstance(replica.role, Leader):
            self._kept[replica.log] = None  # what it appends is news by itself
        else:
            self._news[replica.log] = None

    @property
    def has_news(self) -> bool:
        """Whether there is something to say when the turn ends."""
        return bool(self._news or self._kept) or self.revision_due

    def on_state(self, name: str, state: LogState, revision: int, *, put_back: bool = False) -> None:
        """What the metadata says of a log; see `Replica.on_state`."""
        replica = self.by_name[name]
        before = replica.role
        replica.on_state(state, revision, self._clock(), put_back=put_back)
        self._assumed(replica, before)
        if isinstance(replica.role, Leader) and state.transfer is not None and self.decide is not None:
            self.decide(replica.role)
        self._want_turn()

    def registered(self, broker_epoch: int) -> None:
        """This broker stands in the metadata under an epoch of its own, or with 0 does not any more."""
        for replica in list(self.by_name.values()):
            before = replica.role
            replica.registered(broker_epoch)
            self._assumed(replica, before)

    def _assumed(self, replica: Replica, before: Leader | Follower | None) -> None:
        role = replica.role
        if role is not before and isinstance(role, Leader):
            for broker, link in self.followers.items():
                role.link_up(broker, link.broker_epoch, self._clock())
        self._news[replica.log] = None
        if role is not before:
            replica.log.write_on()
            if self.assumed is not None:
                self.assumed(replica.name)

    def _disk_waits(self, replica: Replica) -> bool:
        role = replica.role
        waits = isinstance(role, Leader) and role.disk_waits(self._clock())
        if waits:
            self._tell_soon(replica.log)
        return waits

    # ---- links

    def follower_linked(self, link: FollowerLink) -> None:
        """A broker asks for what is led here; an older link to it is over."""
        old = self.followers.pop(link.broker, None)
        if old is not None:
            old.replaced()
        self.followers[link.broker] = link
        self._held.pop(link.broker, None)
        for replica in self.by_name.values():
            if isinstance(replica.role, Leader):
                replica.role.link_up(link.broker, link.broker_epoch, self._clock())

    def follower_lost(self, link: FollowerLink) -> None:
        """A link is over."""
        if self.followers.get(link.broker) is not link:
            return
        del self.followers[link.broker]
        self._held.pop(link.broker, None)
        for replica in self.by_name.values():
            if isinstance(replica.role, Leader):
                replica.role.link_down(link.broker, self._clock())

    def leader_linked(self, link: LeaderLink) -> None:
        """A broker that may lead is reached."""
        old = self.leaders.pop(link.broker, None)
        if old is not None:
            old.replaced()
        self.leaders[link.broker] = link
        for replica in self.by_name.values():
            if isinstance(replica.role, Follower) and replica.role.leader == link.broker:
                replica.role.link_up()
                self._news[replica.log] = None

    def leader_lost(self, link: LeaderLink) -> None:
        """A link is over."""
        if self.leaders.get(link.broker) is link:
            del self.leaders[link.broker]

    def on_positions(self, link: FollowerLink, positions: Sequence[Position]) -> None:
        """A follower's orders, or a sign that it has room again."""
        if self.followers.get(link.broker) is not link:
            return
        now_s, broker = self._clock(), link.broker
        for position in positions:
            replica = self.by_name.get(position.log)
            role = replica.role if replica is not None else None
            if replica is None or not isinstance(role, Leader):
                state = replica.state if replica is not None else None
                known = (None, 0) if state is None else (state.leader, state.leader_epoch)
                link.answer(Refused(position.log, "not_leader", *known))
                continue
            answer = role.on_position(broker, position, now_s)
            if isinstance(answer, Diverging | Refused):
                link.answer(answer)
            if self.decide is not None and (
                position.refusing or role.state.transfer is not None or broker not in role.insync
            ):
                self.decide(role)  # others leave by the clock, which `tick` looks at
            if role.state.transfer is not None or (role.owes() and not role.is_in_round(now_s)):
                self._news[replica.log] = None  # what a report has made committed is news already
        self.has_room(link)

    def has_room(self, link: FollowerLink) -> None:
        """What waited for credit, or for the socket, may go on."""
        self._news |= self._held.pop(link.broker, {})

    def on_replies(self, link: LeaderLink, replies: Iterable[Reply]) -> None:
        """What a leader says at a time. Raises CorruptBatch for what is no batch."""
        if self._flusher is not None:
            self._flusher.hold()
        try:
            for reply in replies:
                self.on_reply(link, reply)
        finally:
            if self._flusher is not None:
                self._flusher.release()

    def on_reply(self, link: LeaderLink, reply: Reply) -> None:
        """What a leader says. Raises CorruptBatch for what is no batch."""
        replica = self.by_name.get(reply.log)
        role = replica.role if replica is not None else None
        if replica is None or not isinstance(role, Follower) or self.leaders.get(role.leader) is not link:
            return
        if isinstance(reply, Batches):
            role.on_batches(reply)
        elif isinstance(reply, Diverging):
            role.on_diverging(reply)
        else:
            role.on_refused(reply)
            if role.refused is not None and role.retries < _RETRIES_MAX and (role, "ask") not in self._busy:
                self._busy.add((role, "ask"))
                self._spawn(self._ask_again, replica, role)
        log = replica.log
        if log.written_offset == log.log_end_offset or role.needs_repair:
            self._news[log] = None
        else:
            self._news.pop(log, None)  # when it is written, one position says all of it

    async def _ask_again(self, replica: Replica, role: Follower) -> None:
        """Who is refused knew of a new leader earlier than that one itself, most likely."""
        await trio.sleep(_ASK_AGAIN_S * 2**role.retries)
        self._busy.discard((role, "ask"))
        if replica.role is role and role.refused is not None:
            role.ask_again()
            self._news[replica.log] = None
            self._want_turn()

    # ---- turns

    def tick(self) -> None:
        """Promise, and ask for promises, again; look whose turn it is to join or leave."""
        now_s = self._clock()
        positions: dict[LeaderLink, list[Position]] = {}
        for replica in self.by_name.values():
            role = replica.role
            if isinstance(role, Leader):
                role.tick(now_s)
                if self.decide is not None:
                    self.decide(role)
                self._news[replica.log] = None
            elif isinstance(role, Follower):
                self._follow(replica, role, positions, again=True)
        for link in list(self.leaders.values()):
            link.send(positions.get(link, ()))
        self._end_turn(now_s, tick=True)
        for to in list(self.followers.values()):
            to.send(())

    def look_at_kept(self) -> None:
        """See what more is kept here, or committed. Often that is news to nobody."""
        while self._kept:
            self._look_at_kept(self._kept.popitem()[0])

    def end_turn(self) -> None:
        """Say what is new."""
        self.look_at_kept()
        if self._news:
            self._end_turn(self._clock())
        if self.revision_due:
            self.revision_due = False
            for link in list(self.leaders.values()):
                link.send(())

    def _look_at_kept(self, log: ReplicaLog) -> None:
        replica = self._by_log.get(log)
        role = replica.role if replica is not None else None
        if isinstance(role, Leader):
            role.log_advanced()
            if self.decide is not None and role.state.transfer is not None:
                self.decide(role)  # this disk may have been the last that it waited for
                self._news[log] = None
            if any(progress.told[0] < log.high_watermark for progress in role.followers.values()):
                self._tell_soon(log)

    def _end_turn(self, now_s: float, *, tick: bool = False) -> None:
        for _ in range(_PASSES_MAX):
            if not self._news:
                return
            logs = list(self._news)
            self._news.clear()
            self._pass(logs, now_s, tick)

    def _pass(self, logs: list[ReplicaLog], now_s: float, tick: bool) -> None:
        positions: dict[LeaderLink, list[Position]] = {}
        batches: dict[FollowerLink, list[Batches]] = {}
        room: dict[FollowerLink, int] = {}
        late: list[tuple[Replica, Leader, FollowerLink]] = []
        for log in logs:
            replica = self._by_log.get(log)
            role = replica.role if replica is not None else None
            if replica is None or role is None:
                continue
            role.log_advanced()
            if isinstance(role, Follower):
                self._follow(replica, role, positions)
                continue
            if not tick and role.is_in_round(now_s):
                self._tell_soon(log)  # unless a report brings it here
                log.write_on()
                continue
            news = log.log_start_offset, role.sync_before()
            last: Batches | None = None
            for broker, progress in role.followers.items():
                link = self.followers.get(broker)
                if link is None:
                    continue
                if progress.next_offset >= log.log_end_offset and progress.told[1:] == news and not tick:
                    continue
                if link not in room:
                    room[link] = link.room_bytes
                if broker in role.insync:
                    last = self._lead(replica, role, link, room, batches, now_s, last)
                else:
                    late.append((replica, role, link))
            log.write_on()
        for replica, role, link in late:
            before = room[link]
            room[link] = min(before, max(self.catch_up.left(now_s), 0))
            allowed = room[link]
            self._lead(replica, role, link, room, batches, now_s)
            used = allowed - room[link]
            self.catch_up.take(used)
            room[link] = before - used
        said: list[Batches] = []
        frame: Frame | None = None
        for to, messages in batches.items():
            frame = to.send(messages, frame if messages == said else None)
            said = messages
        for leader, orders in positions.items():
            leader.send(orders)

    # ---- leading

    def _tell_soon(self, log: ReplicaLog) -> None:
        if not self._untold:
            self._spawn(self._tell_untold)
        self._untold[log] = None

    async def _tell_untold(self) -> None:
        """Rule 3."""
        await trio.sleep(_TELL_S)
        untold, self._untold = self._untold, {}
        positions: dict[LeaderLink, list[Position]] = {}
        led: list[ReplicaLog] = []
        for log in untold:
            replica = self._by_log.get(log)
            role = replica.role if replica is not None else None
            if isinstance(role, Leader):
                led.append(log)
            elif replica is not None and role is not None and role.unsaid_bytes:
                self._follow(replica, role, positions, again=True)
        for link, orders in positions.items():
            link.send(orders)
        self._pass(led, self._clock(), tick=True)
        self._want_turn()

    def _lead(
        self,
        replica: Replica,
        role: Leader,
        link: FollowerLink,
        room: dict[FollowerLink, int],
        batches: dict[FollowerLink, list[Batches]],
        now_s: float,
        last: Batches | None = None,
    ) -> Batches | None:
        broker, left = link.broker, room[link]
        message = role.due(broker, now_s, bytes_max=min(left, self._read_bytes_max), last=last)
        if message is not None:
            room[link] = left - sum(map(len, message.batches))
            batches.setdefault(link, []).append(message)
        progress = role.followers[broker]
        if not progress.accepted or progress.refusing or progress.next_offset >= role.log.log_end_offset:
            return message
        if message is None and progress.waits:
            self._tell_soon(replica.log)  # unless a report brings it here
            return None
        # There is more. It goes on when the follower has taken this.
        self._held.setdefault(broker, {})[replica.log] = None
        key = (role, broker)
        if left > 0 and (message is None or not message.batches) and key not in self._busy:
            cold = role.cold(broker)
            if cold is not None:
                self._busy.add(key)
                self._spawn(self._read_cold, replica, role, link, *cold)
        return message

    async def _read_cold(self, replica: Replica, role: Leader, link: FollowerLink, offset: int, written: int) -> None:
        try:
            async with self._cold_reads:
                batches = await self._cold(role.log, offset, min(max(link.room_bytes, 1), self._read_bytes_max))
        finally:
            self._busy.discard((role, link.broker))
        if replica.role is not role or self.followers.get(link.broker) is not link:
            return
        cold = role.cold(link.broker)
        if batches is not None and cold is not None and cold[0] == offset:
            while len(batches) > 1 and sum(map(len, batches)) > link.room_bytes:
                batches.pop()
            if link.room_bytes > 0:
                now_s = self._clock()
                message = role.sending(link.broker, tuple(batches), now_s, end=written)
                if link.broker not in role.state.isr_brokers:
                    self.catch_up.take(sum(map(len, batches)))
                link.send((message,))
        self._news[role.log] = None
        self._want_turn()

    async def _cold(self, log: ReplicaLog, offset: int, bytes_max: int) -> list[Any] | None:
        """Batches from the disk; None when there is something wrong with that, after a while if it is the disk."""
        try:
            return await log.read_replica_cold(offset, bytes_max)
        except OffsetOutOfRange:
            return None
        except (CorruptBatch, OSError) as error:
            logger.error("%s: cannot be read for a follower: %s", log.directory, error)
            await trio.sleep(_RETRY_S)
            return None

    # ---- following

    def _follow(
        self, replica: Replica, role: Follower, positions: dict[LeaderLink, list[Position]], *, again: bool = False
    ) -> None:
        if role.needs_repair:
            if role not in self._busy and not replica.log.truncating:
                self._busy.add(role)
                self._spawn(self._repair, replica, role)
            return
        link = self.leaders.get(role.leader)
        if link is None:
            return
        position = role.position(again=again, little_bytes=0 if link.credit_is_due else _LITTLE_BYTES)
        if position is not None:
            replica.promise(self._clock())
            positions.setdefault(link, []).append(position)
        elif role.unsaid_bytes:
            self._tell_soon(replica.log)

    async def _repair(self, replica: Replica, role: Follower) -> None:
        logger.warning("%s: %s", role.log.directory, role.repair_due)
        try:
            await role.repair()
        except BelowHighWatermark as error:
            logger.error("%s: this replica is out of service: %s", role.log.directory, error)
            replica.lost = True
            return  # it stays busy: nothing is asked for any more
        except (LogUnavailable, CorruptBatch, OSError) as error:
            logger.error("%s: %s", role.log.directory, error)
            await trio.sleep(_RETRY_S)
            if role.log.half_cut:  # no other role can have it before that is over
                self._spawn(self._repair, replica, role)
                return
        self._busy.discard(role)
        before = replica.role
        replica.assume(self._clock())
        self._assumed(replica, before)
        self._want_turn()
