"""What must be true after every event, whatever failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core_log.record_batch import parse_header
from core_log.replication.leader import Leader
from core_log.replication.state import BrokerState, LogState, decode, is_trusted, log_key

if TYPE_CHECKING:
    from tests.simulation.broker import Process
    from tests.simulation.machine import SimLog
    from tests.simulation.world import World


class Violation(AssertionError):
    """An invariant does not hold; the first word is its number in the list below.

    1  what was confirmed is with every member of ISR and ELR
    2  one process appends in one epoch
    3  replicas have equal bytes below their watermarks, and at one epoch and offset
    4  what a reader was given stays, in every later leader's log
    5  log start <= watermark <= what the disk has; a watermark never falls, for readers that follow epochs neither
    7  no two brokers serve one log at one time
    8  when faults stop, all replicas come together
    """


class History:
    """What is known of one log."""

    def __init__(self) -> None:
        self.leaders: dict[int, Process] = {}
        self.batches: dict[tuple[int, int], bytes] = {}
        """All that were ever appended, by epoch and offset."""
        self.committed: dict[int, bytes] = {}
        """All that were ever below a watermark, by offset."""
        self.confirmed_end = 0
        self.committed_end = 0
        self.reader_watermark = 0
        self.confirmed = self.given = self.handed_over = 0


class Checker:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.histories = {name: History() for name in world.logs}
        self._checked: dict[SimLog, tuple[int, int, int, int]] = {}
        """Of each open log: how many changes, batches and offsets below the watermark were looked at."""

        self._revision = 0
        self._brokers: dict[int, BrokerState] = {}
        self._states: dict[str, LogState] = {}

    def state_of(self, name: str) -> LogState:
        """What the metadata says, in truth."""
        entry = self.world.metadata.entries[log_key(b"", name)]
        assert entry.value is not None
        return decode(entry.value)

    # ---- what happens

    def leads(self, process: Process, name: str, role: Leader) -> None:
        """A leader begins: it has all that anybody was given or told."""
        history = self.histories[name]
        log = process.replicas[name].log
        history.handed_over += role.state.resigned
        before = history.leaders.setdefault(role.epoch, process)
        if before is not process:
            raise Violation(f"2: broker {process.me} leads {name} in epoch {role.epoch} as {before.me} did")
        if self.state_of(name).leader_epoch == role.epoch:  # else it has slept through its time
            self._has_committed(process, name, "as it begins to lead")
        disk = self.world.read(log, unwritten=True)
        mirror = log.mirror  # type: ignore[attr-defined]
        if disk is not None and disk != mirror[len(mirror) - len(disk) :]:
            raise Violation(f"3: broker {process.me}'s log {name} is not what was appended to it")

    def appended(self, process: Process, role: Leader, base: int) -> None:
        """A leader took a batch."""
        if self.histories[role.name].leaders.get(role.epoch) is not process:
            raise Violation(f"2: broker {process.me} appends to {role.name} in epoch {role.epoch}")

    def confirmed(self, process: Process, role: Leader, end: int, batch: bytes) -> None:
        """A client was told that its batch is safe."""
        history = self.histories[role.name]
        base = parse_header(batch).base_offset
        if history.committed.setdefault(base, batch) != batch:
            raise Violation(f"1: {role.name} at {base}: two batches were confirmed")
        history.confirmed_end = max(history.confirmed_end, end)
        history.committed_end = max(history.committed_end, end)
        history.confirmed += 1

    def given(self, process: Process, role: Leader, batches: list[bytes]) -> None:
        """A reader got these."""
        history = self.histories[role.name]
        for batch in batches:
            base = parse_header(batch).base_offset
            if history.committed.setdefault(base, batch) != batch:
                raise Violation(f"4: {role.name} at {base}: a reader got another batch than before")
            history.given += 1
        if role.watermark_is_known:
            if role.log.high_watermark < history.reader_watermark:
                raise Violation(
                    f"5: {role.name}: readers saw {history.reader_watermark}, now {role.log.high_watermark}"
                )
            history.reader_watermark = role.log.high_watermark

    # ---- what is

    def check(self, touched: list[Process]) -> None:
        """After an event."""
        for process in touched:
            if process.alive:
                for name, replica in process.replicas.items():
                    self._check_log(process, name, replica.log)  # type: ignore[arg-type]
        for name in self.histories:
            self._members_have_what_was_confirmed(name)
            self._one_serves(name)

    def _check_log(self, process: Process, name: str, log: SimLog) -> None:
        history = self.histories[name]
        where = f"broker {process.me}, {name}"
        watermark = log.high_watermark
        if not log.log_start_offset <= watermark <= log.local_committed:
            raise Violation(f"5: {where}: {log.log_start_offset} <= {watermark} <= {log.local_committed} is not so")
        changes, count, below, seen = self._checked.get(log, (0, 0, 0, 0))
        if changes != log.changes:
            changes, count, below = log.changes, 0, 0
            seen = min(seen, log.log_start_offset)  # it may have started anew
        if watermark < seen:
            raise Violation(f"5: {where}: the watermark fell from {seen} to {watermark}")
        mirror = log.mirror
        for _, epoch, batch in mirror[count:]:
            base = parse_header(batch).base_offset
            if history.batches.setdefault((epoch, base), batch) != batch:
                raise Violation(f"3: {where}: two batches at offset {base}, epoch {epoch}")
        if watermark > below:
            for end, _, batch in reversed(mirror):
                if end <= below:
                    break
                if end > watermark:
                    continue
                base = parse_header(batch).base_offset
                if history.committed.setdefault(base, batch) != batch:
                    raise Violation(f"3: {where}: other bytes at {base}, below the watermark {watermark}")
                history.committed_end = max(history.committed_end, end)
            below = watermark
        self._checked[log] = (changes, len(mirror), below, watermark)

    def _members_have_what_was_confirmed(self, name: str) -> None:
        history, world = self.histories[name], self.world
        if self._revision != world.metadata.revision:
            self._revision = world.metadata.revision
            self._brokers = world.registered()
            self._states = {log: self.state_of(log) for log in self.histories}
        state, brokers = self._states[name], self._brokers
        for member in (*state.isr, *state.elr):
            process = world.machines[member[0]].process
            if process is None or not is_trusted(name, member, brokers):
                continue
            replica = process.replicas.get(name)
            if replica is None:
                raise Violation(f"1: broker {process.me} of {state.isr}, {state.elr} has no replica of {name}")
            if replica.lost and (process.broker_epoch == 0 or process.broker_epoch != member[1]):
                continue  # it will say so before anybody can elect it
            if replica.log.local_committed < history.confirmed_end:
                raise Violation(
                    f"1: {name} is confirmed up to {history.confirmed_end}, broker {process.me} of {state.isr}, "
                    f"{state.elr} has {replica.log.local_committed}"
                )

    def _has_committed(self, process: Process, name: str, when: str) -> None:
        history = self.histories[name]
        log = process.replicas[name].log
        mine = {parse_header(batch).base_offset: batch for _, _, batch in log.mirror}  # type: ignore[attr-defined]
        for base, batch in history.committed.items():
            if parse_header(batch).next_offset > log.log_start_offset and mine.get(base) != batch:
                raise Violation(f"4: broker {process.me} lacks {name} at {base}, {when}")

    def _one_serves(self, name: str) -> None:
        now_s = self.world.clockwork.now_s
        serving = []
        for machine in self.world.machines.values():
            process = machine.process
            if process is None or now_s < process.paused_until_s:
                continue
            role = process.replicas[name].role if name in process.replicas else None
            if isinstance(role, Leader) and role.may_serve(process.local_s(), process.lease_until_s):
                serving.append(process.me)
        if len(serving) > 1:
            raise Violation(f"7: brokers {serving} serve {name}")

    def settled(self) -> str | None:
        """What is still missing once faults have stopped; None: nothing."""
        for name, history in self.histories.items():
            state = self.state_of(name)
            if state.leader is None or len(state.isr) < len(state.replicas):
                return f"{name}: leader {state.leader}, ISR {state.isr}, ELR {state.elr}"
            if self.world.moves and (state.target, state.transfer, state.leader) != (None, None, state.replicas[0]):
                return f"{name}: it moves: {state}"
            logs = [self.world.machines[broker].process.replicas[name].log for broker in state.replicas]  # type: ignore[union-attr]
            ends = {(log.log_end_offset, log.high_watermark) for log in logs}
            if len(ends) > 1 or any(end != watermark for end, watermark in ends):
                return f"{name}: ends and watermarks {ends}"
            if logs[0].high_watermark < history.committed_end:
                return f"{name}: {history.committed_end} was committed, now {logs[0].high_watermark}"
        return None

    def at_the_end(self) -> None:
        """All replicas, on their disks, have all that was committed."""
        for name in self.histories:
            for broker in self.state_of(name).replicas:
                process = self.world.machines[broker].process
                assert process is not None
                self._has_committed(process, name, "at the end")
                log = process.replicas[name].log
                if self.world.read(log) != log.mirror[-len(self.world.read(log) or ()) :]:  # type: ignore[attr-defined]
                    raise Violation(f"3: broker {process.me}'s file of {name} is not what was appended")
