"""The leader's side of a replicated log.

1. Followers pull: a `Position` is a standing order, and what it asks for is sent from the tail cache, written here or
   not, so that all disks work at the same time.
2. A position is answered with batches only if the follower's last batch is one of this log's: same epoch, and that
   epoch does not end before it (KIP-320). Only then does its report count: it speaks of these bytes.
3. The high watermark goes by `isr.py`. A change of the ISR counts as made when the metadata says so, and as possible
   from the moment that it is asked for: both ISRs have to report meanwhile.
4. Who serves (reads, deliveries, confirms) has a lease that lives, or a fresh promise of every other member of the
   maximal ISR not to lead. A promise is counted from when this side sent the message that it answers. A leader that was
   a follower waits its own promise out first, unless the leader before it resigned.
5. A leader whose disk refuses, or keeps less than others for as long as no follower may, or that is asked to
   (`LogState.transfer`), hands over to a member of the ISR: one swap, after which it serves nobody. Who is asked does
   so only when all that it has taken is committed, so that it has answered whoever waits, and nobody sends that to the
   next one again; and takes nothing more only once the others have shown that they keep up, so that one that does
   not delays it and stops nobody. What is under way because of the log, and settled in it (`on_hand_over`), is waited
   for as well, for half of `transfer_max_s`.
6. If it is not the first of the replicas, it hands over to that one, when that has everything there is.
7. What nobody waits for costs no fsync, until an ISR member's report has stood still for half the lag time; but who
   would join has to keep what is committed.
8. Writes go in rounds: as long as a follower has to report what somebody waits for, it gets no more, and neither do the
   others in sync nor the disk here, as all of them have to have it: what comes then goes in one. Otherwise each write
   here would cost all sides a turn and a sync of its own. Who has reported nothing for `round_max_s` is not waited for.
9. A leader to whom no follower has a link can commit nothing, but they may be able to: `election.without`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from core_log.batch_header import parse_header
from core_log.errors import OffsetOutOfRange
from core_log.files import BytesLike
from core_log.metadata.store import Guard
from core_log.replication.election import without
from core_log.replication.isr import ReplicationConfig, high_watermark, may_join
from core_log.replication.messages import Batches, Diverging, Position, Refused, Reply
from core_log.replication.progress import OwnDisk, Progress
from core_log.replication.state import BrokerState, Change, LogState, Members, broker_key, log_key

if TYPE_CHECKING:
    from core_log.replica_log import ReplicaLog


class Leader:
    """See the module."""

    def __init__(
        self,
        name: str,
        log: ReplicaLog,
        me: int,
        state: LogState,
        revision: int,
        config: ReplicationConfig,
        *,
        now_s: float,
        serve_from_s: float,
    ) -> None:
        log.begin_epoch(state.leader_epoch)
        self.name, self.log, self.me, self.config = name, log, me, config
        self.epoch = state.leader_epoch
        self.epoch_start = log.log_end_offset
        self.state, self.revision = state, revision
        self.insync = state.isr_brokers
        """The ISR that the metadata names."""
        self.pending: Change | None = None
        self._later_epoch = 0
        self.fenced = False
        """Somebody has a later epoch: nobody is served any more."""
        self.begun_late: int | None = None
        """A follower has begun with an empty log at this offset, behind what the log had before, the last of them if
        there are several; whoever sees to that takes it back.
        """
        self.handing_over = False
        """It was asked to be somebody else's: nobody is served unless that failed."""
        self.closed_until_s: float | None = None
        """It is to be handed over: nothing is appended, until then at most."""
        self._asked_at: int | None = None
        """Where the log ended when it was asked to hand over."""
        self.serve_from_s = serve_from_s
        """Before, nobody is served: this broker had promised not to lead."""
        self._sync_before = self.epoch_start
        self._tag = 0
        self.disk = OwnDisk(now_s)
        self.followers = {broker: Progress(0, now_s) for broker in state.replicas if broker != me}

    # ---- what the metadata says

    def on_state(self, state: LogState, revision: int) -> None:
        """The log's key as it is at `revision`, which is later than all before; the leader and epoch are these."""
        if revision <= self.revision:
            return
        self.state, self.revision = state, revision
        self._state_changed()

    def renewed(self, state: LogState, revision: int) -> None:
        """The metadata names this process in the next epoch."""
        self.log.begin_epoch(state.leader_epoch)
        self.epoch = state.leader_epoch
        self.fenced = self._later_epoch > self.epoch
        for progress in self.followers.values():
            progress.accepted = progress.asked = False
        self.state, self.revision = state, revision
        self._state_changed()

    def _state_changed(self) -> None:
        state = self.state
        self.insync = state.isr_brokers
        for broker, progress in self.followers.items():
            if broker not in state.replicas:
                progress.reported, progress.accepted, progress.asked = -1, False, False
        if state.transfer is None:
            self.closed_until_s = self._asked_at = None
        self.refused()

    def refused(self) -> None:
        """The change that was asked for cannot happen any more."""
        self.pending = None
        self.handing_over = False
        self.log_advanced()

    def maximal(self) -> list[int]:
        """The ISR, as large as it may be."""
        isr, pending = self.insync, self.pending
        return isr if pending is None else list(dict.fromkeys(isr + pending.state.isr_brokers))

    # ---- serving

    def may_serve(self, now_s: float, lease_until_s: float) -> bool:
        """Rule 4; to be asked before something is given out, by a clock read then: the process may have stood still."""
        if self.fenced or self.handing_over or now_s < self.serve_from_s:
            return False
        if now_s < lease_until_s:
            return True
        return len(self.state.isr) >= self.state.min_insync and all(
            broker in self.followers and now_s < self.followers[broker].granted_until_s
            for broker in self.maximal()
            if broker != self.me
        )

    def is_well(self, now_s: float, lease_until_s: float) -> bool:
        """Nearly always: all of `may_serve`, by the lease, `may_append` and `watermark_is_known`."""
        return (
            self.serve_from_s <= now_s < lease_until_s
            and not (self.fenced or self.handing_over)
            and self.closed_until_s is None
            and len(self.state.isr) >= self.state.min_insync
            and self.log.high_watermark >= self.epoch_start
        )

    def may_append(self) -> bool:
        """Whether what is appended now can be committed, as far as is known here."""
        closed = self.fenced or self.handing_over or self.closed_until_s is not None
        return not closed and len(self.state.isr) >= self.state.min_insync

    @property
    def watermark_is_known(self) -> bool:
        """The high watermark is no lower than any leader's before it."""
        return self.log.high_watermark >= self.epoch_start

    # ---- followers

    def link_up(self, broker: int, broker_epoch: int, now_s: float) -> None:
        """A new link to a follower: whatever was said on an older one is over."""
        progress = self.followers.get(broker)
        if progress is None or progress.epoch != broker_epoch:
            found = self.followers[broker] = Progress(broker_epoch, now_s)
            if progress is not None:
                found.caught_up_s = progress.caught_up_s
            progress = found
        progress.linked()

    def link_down(self, broker: int, now_s: float) -> None:
        """The link to a follower is gone."""
        progress = self.followers.get(broker)
        if progress is not None:
            progress.unlinked(now_s)

    def on_position(self, broker: int, position: Position, now_s: float) -> Reply | None:
        """Take a follower's order; an answer if it cannot be followed. `link_up` came before."""
        progress = self.followers.get(broker)
        if progress is None or broker not in self.state.replicas:
            return Refused(self.name, "not_leader", self.me, self.epoch)
        if position.leader_epoch != self.epoch:
            reason = "fenced_epoch" if position.leader_epoch < self.epoch else "unknown_epoch"
            self._later_epoch = max(self._later_epoch, position.leader_epoch)
            self.fenced = self._later_epoch > self.epoch
            return Refused(self.name, reason, self.me, self.epoch)  # type: ignore[arg-type]
        progress.refusing = position.refusing
        answer = self._compare(position)
        if answer is not None:
            progress.accepted = progress.asked = False
            return answer
        if position.last_epoch < 0 and self.log.log_start_offset > 0:
            self.begun_late = max(self.begun_late or 0, position.fetch_offset)
        progress.heard(position, self.log.log_end_offset, now_s)
        progress.promised(position.tag, self.config.grant_s * self.config.grant_share)
        again = position.missed and position.tag >= progress.began_again
        if not progress.accepted or position.tag >= progress.tag or again:
            if position.fetch_offset < progress.next_offset:
                progress.awaited = -1
            progress.next_offset = position.fetch_offset
            progress.began_again = progress.tag + 1
        progress.accepted = progress.asked = True
        if position.reported > self.log.high_watermark:
            self.log_advanced()
        return None

    def _compare(self, position: Position) -> Reply | None:
        log = self.log
        answers = position.fetch_offset, position.last_epoch
        outside = Refused(self.name, "out_of_range", self.me, self.epoch, log.log_start_offset, answers)
        if position.fetch_offset < log.log_start_offset:
            return outside
        if position.last_epoch < 0:
            return None if position.fetch_offset <= log.log_end_offset else outside
        found = log.epochs.end_of(position.last_epoch, log.log_end_offset)
        if found is None:
            return outside
        if found[0] < position.last_epoch or found[1] < position.fetch_offset:
            return Diverging(self.name, self.epoch, *found, answers)
        return None

    def low_watermark(self) -> int:
        """Where the log starts on all of the ISR: what was deleted before it comes back with no leader."""
        starts = [self.followers[one].log_start for one in self.maximal() if one in self.followers]
        return min([self.log.log_start_offset, *starts])

    def due(self, broker: int, now_s: float, *, bytes_max: int, last: Batches | None = None) -> Batches | None:
        """What there is to send to a follower now; None: nothing new. Without `bytes_max` no batches. `last` is what
        another one in sync got just now. What is not in memory any more is not in the answer: ask `cold`.
        """
        progress = self.followers.get(broker)
        if progress is None or not progress.accepted:
            return None
        log = self.log
        batches: tuple[BytesLike, ...] = ()
        due = progress.asked and now_s - progress.last_sent_s >= self.config.grant_s / 5  # its promises need an answer
        progress.waits = False
        if progress.next_offset >= log.log_end_offset or progress.refusing:
            pass
        elif last is not None and last.after == progress.next_offset and sum(map(len, last.batches)) <= bytes_max:
            return self._sent(progress, last, now_s)
        elif self._is_round(self.insync if broker in self.insync else (broker,), progress.next_offset, now_s):
            progress.waits = True
            if not due:
                return None
        elif bytes_max > 0:
            try:
                batches = tuple(log.read_replica(progress.next_offset, bytes_max) or ())
            except OffsetOutOfRange:
                progress.accepted = False
                return None
        if not (batches or due) and progress.told == (log.high_watermark, log.log_start_offset, self.sync_before()):
            return None
        return self.sending(broker, batches, now_s)

    def disk_waits(self, now_s: float) -> bool:
        """Whether what there is for the disk here is to wait: rule 8."""
        written = self.log.written_offset
        return written < self.log.log_end_offset and self._is_round(self.insync, written, now_s)

    def is_in_round(self, now_s: float) -> bool:
        """Whether all followers are in sync, and none of them gets more now: rule 8."""
        end, insync = self.log.log_end_offset, self.insync
        for broker, one in self.followers.items():
            if broker not in insync:
                return False
            if one.next_offset < end:
                end = one.next_offset
        return self._is_round(insync, end, now_s)

    def _is_round(self, members: Collection[int], end: int, now_s: float) -> bool:
        """Whether somebody has to report no more than what ends there."""
        for broker, one in self.followers.items():
            if one.reported >= one.awaited or one.next_offset > end:
                continue
            if broker not in members or one.down_since_s is not None:
                continue
            in_time = now_s - one.awaited_since_s < self.config.round_max_s
            if in_time and self.log.size_bytes - one.sent_at < self.config.round_bytes_max:
                return True
        return False

    def owes(self) -> bool:
        """Whether a follower has not been sent all that there is, or the disk here."""
        log, end = self.log, self.log.log_end_offset
        disk = log.written_offset < end and log.job is None
        return disk or any(one.accepted and one.next_offset < end for one in self.followers.values())

    def cold(self, broker: int) -> tuple[int, int] | None:
        """From where to where a follower needs what only the disk has: `read_replica_cold`, then `sending`."""
        progress = self.followers.get(broker)
        if progress is None or not progress.accepted or progress.refusing:
            return None
        offset, written = progress.next_offset, self.log.written_offset
        if not self.log.log_start_offset <= offset < written or self.log.read_replica(offset, 1) is not None:
            return None
        return offset, written

    def sending(self, broker: int, batches: tuple[BytesLike, ...], now_s: float, *, end: int = 0) -> Batches:
        """The message with these batches, or with none because the log has none before `end`; it is taken as sent."""
        progress = self.followers[broker]
        after = progress.next_offset
        end = max(after, parse_header(batches[-1]).next_offset if batches else end)
        self._tag += 1
        told = self.log.high_watermark, self.log.log_start_offset, self.sync_before()
        return self._sent(progress, Batches(self.name, self.epoch, self._tag, *told, after, end, batches), now_s)

    def _sent(self, progress: Progress, message: Batches, now_s: float) -> Batches:
        progress.sent(message.tag, now_s)
        progress.next_offset = end = message.end
        progress.told = message.high_watermark, message.log_start, message.sync_before
        if message.batches:
            progress.sent_at = self.log.size_bytes
            if self.log.config.fsync != "commit" or end <= message.sync_before:
                if progress.reported >= progress.awaited:
                    progress.awaited_since_s = now_s
                progress.awaited = end
        return message

    def sync_before(self) -> int:
        """Up to where somebody waits for the disks."""
        return max(self._sync_before, self.log.sync_before)

    def log_advanced(self) -> None:
        """The log was written or synced, or a follower has reported more."""
        log, before = self.log, self.log.high_watermark
        kept = log.local_committed
        if kept <= before:
            return  # as a rule: most of what is heard comes before the last disk has it
        maximal = self.maximal()
        for broker, one in self.followers.items():
            if one.reported <= before and broker in maximal:
                return
        reported = {broker: progress.reported for broker, progress in self.followers.items()}
        reported[self.me] = kept
        state = self.state
        log.advance_high_watermark(high_watermark(reported, len(state.isr), maximal, state.min_insync, before))

    # ---- changes

    def tick(self, now_s: float) -> None:
        """Now and then: rule 7."""
        half_s = self.config.replica_lag_time_max_s / 2
        end = self.log.log_end_offset
        if self._sync_before < end and any(
            now_s - self.followers[broker].caught_up_s > half_s for broker in self.maximal() if broker in self.followers
        ):
            self._sync_before = end
        elif any(
            progress.accepted and progress.reported < self.log.high_watermark for progress in self.followers.values()
        ):
            self._sync_before = max(self._sync_before, self.log.high_watermark)  # who would join has to keep that
        self.log.sync_to(self._sync_before)
        self.disk.look(self.log.local_committed, min(end, self.sync_before()), now_s)

    def wish(self, brokers: Mapping[int, BrokerState], now_s: float, prefix: bytes = b"") -> Change | None:
        """The change of the ISR, or of the leader, that is due; it stays `pending` until the metadata has answered."""
        if self.pending is not None or self.fenced:
            return None
        state, guards = self._wanted(brokers, now_s, prefix)
        if state is None or state == self.state:
            return None
        mine = Guard(log_key(prefix, self.name), mod_revision=self.revision)
        self.pending = Change(state, (mine, *guards))
        self.handing_over = state.leader != self.me
        return self.pending

    def _wanted(
        self, brokers: Mapping[int, BrokerState], now_s: float, prefix: bytes
    ) -> tuple[LogState | None, list[Guard]]:
        if self.log.error is not None:
            return self.resignation(brokers, now_s, prefix)
        if self.disk.is_late(self.config):
            found = self.resignation(brokers, now_s, prefix, beyond=self.log.local_committed)
            if found[0] is not None:
                return found
        state = self.state
        left = tuple(member for member in state.isr if member[0] != self.me and self._leaves(member, brokers, now_s))
        isr: Members = tuple(member for member in state.isr if member not in left)
        guards = []
        for broker in state.replicas:
            if broker in dict(state.isr) and broker not in dict(left):
                continue
            if self._joins(broker, brokers, now_s):
                isr += ((broker, brokers[broker].epoch),)
                guards.append(Guard(broker_key(prefix, broker), create_revision=brokers[broker].epoch))
        if isr == state.isr:
            if state.transfer is not None:
                return self._transfer(state.transfer, brokers, now_s, prefix)
            return self._given_way(brokers, now_s, prefix)
        trusted = tuple(m for m in left if m[0] not in brokers or self.name not in brokers[m[0]].lost)
        return state.with_isr(isr, state.elr + trusted), guards

    def _given_way(
        self, brokers: Mapping[int, BrokerState], now_s: float, prefix: bytes
    ) -> tuple[LogState | None, list[Guard]]:
        """Rule 9."""
        if any(progress.down_since_s is None for progress in self.followers.values()):
            return None, []
        found = without(self.name, self.state, self.me, brokers)
        if found is None or found.leader is None:
            return None, []
        state = msgspec.structs.replace(found, resigned=now_s >= self.serve_from_s)
        return state, [Guard(broker_key(prefix, found.leader), create_revision=found.leader_broker_epoch)]

    def _transfer(
        self, to: int, brokers: Mapping[int, BrokerState], now_s: float, prefix: bytes
    ) -> tuple[LogState | None, list[Guard]]:
        """Rule 5, step by step: None while there is something to wait for."""
        progress = self.followers.get(to)
        found = self._handed_to(to, brokers, now_s, prefix) if progress is not None and progress.accepted else None
        if found is None or (self.closed_until_s is not None and now_s >= self.closed_until_s):
            return msgspec.structs.replace(self.state, transfer=None), []
        is_all = self.log.on_hand_over is None or self.log.on_hand_over()
        end = self.log.log_end_offset
        self._asked_at = end if self._asked_at is None else self._asked_at
        if self.closed_until_s is None and self._is_everywhere(self._asked_at):
            self.closed_until_s = now_s + self.config.transfer_max_s
        self._sync_before = end
        self.log.sync_to(end)
        if self.closed_until_s is None or not self._is_everywhere(end):
            return None, []
        is_late = self.closed_until_s - now_s < self.config.transfer_max_s / 2
        return found if is_all or is_late else (None, [])

    def _is_everywhere(self, offset: int) -> bool:
        """Whether all that is before it is committed; where nothing can be, whether all of the ISR have it."""
        if len(self.state.isr) >= self.state.min_insync:
            return self.log.high_watermark >= offset
        others = [self.followers[broker].reported for broker in self.maximal() if broker in self.followers]
        return min(self.log.local_committed, *others) >= offset

    def resignation(
        self, brokers: Mapping[int, BrokerState], now_s: float, prefix: bytes = b"", *, beyond: int | None = None
    ) -> tuple[LogState | None, list[Guard]]:
        """Somebody else of the ISR, who can work and has what lies `beyond`, instead of this one."""
        for broker in self.insync:
            if beyond is not None and broker != self.me and self.followers[broker].reported <= beyond:
                continue
            found = self._handed_to(broker, brokers, now_s, prefix)
            if found is not None:
                return found
        return None, []

    def is_followed_up(self, brokers: Mapping[int, BrokerState], now_s: float) -> bool:
        """Whether somebody who can lead is about to come into sync."""
        return any(
            progress.accepted
            and broker not in self.insync
            and broker in brokers
            and not (brokers[broker].refusing or brokers[broker].draining or progress.is_lost(now_s, self.config))
            for broker, progress in self.followers.items()
        )

    def _handed_to(
        self, broker: int, brokers: Mapping[int, BrokerState], now_s: float, prefix: bytes
    ) -> tuple[LogState, list[Guard]] | None:
        """A member of the ISR as the leader; None if it cannot be.

        It need not wait its promises out if this one has: then nobody before it serves any more.
        """
        found, progress, epoch = brokers.get(broker), self.followers.get(broker), dict(self.state.isr).get(broker)
        if progress is None or found is None or epoch is None or found.epoch != progress.epoch:
            return None
        if found.refusing or found.draining or self.name in found.unreadable or progress.refusing:
            return None
        if epoch != found.epoch and self.name in found.lost:
            return None
        guard = Guard(broker_key(prefix, broker), create_revision=found.epoch)
        return self.state.led_by(broker, found.epoch, resigned=now_s >= self.serve_from_s), [guard]

    def _leaves(self, member: tuple[int, int], brokers: Mapping[int, BrokerState], now_s: float) -> bool:
        progress, broker = self.followers.get(member[0]), brokers.get(member[0])
        if progress is None or broker is None:
            return True
        if broker.epoch != member[1] and self.name in broker.lost:
            return True
        return progress.is_lost(now_s, self.config)

    def _joins(self, broker: int, brokers: Mapping[int, BrokerState], now_s: float) -> bool:
        progress, found = self.followers.get(broker), brokers.get(broker)
        return (
            progress is not None
            and found is not None
            and progress.accepted
            and found.epoch == progress.epoch
            and not (progress.refusing or found.refusing)
            and not progress.is_late(now_s, self.config)
            and may_join(progress.reported, self.log.high_watermark, self.epoch_start)
        )
