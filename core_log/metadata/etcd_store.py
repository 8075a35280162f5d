"""The metadata of a cluster: etcd's keys below a prefix, mirrored in memory, changed by transactions.

1. The mirror follows one watch. It is begun at the revision behind the last one that was applied, with `hasleader`, and
   begun anew wherever it ends. When etcd has compacted what it would need, or what it has at the last revision of
   `clock` that was applied is another one, as it was put back meanwhile, everything is read and the difference is
   applied as one revision: what is gone first, the latest first, then what is there, the oldest first.
2. Each second the key `clock`, which every change puts, is read from the member that is watched, by a read that a
   quorum answers. A watch that is behind it and brings nothing for longer than that, or a member that does not answer,
   is left for another. If etcd itself is behind (a backup was restored), or its `clock` is or is another one,
   everything is read anew, however long that takes.
   While that member renews the lease at the very revision that is applied here, nothing happens, and it is asked each
   `_CHECK_IDLE_S` only.
3. Every change leaves a name of its own in `clock`. A transaction whose answer was lost is sent again, if it guards all
   that it puts: then it cannot be made twice. When the second is refused, the name tells whether the first was made.
   Changes of this kind that come together are one transaction (`joined_changes.py`).
4. The lease is renewed each third of its time; a member has a quarter of it to answer before another is asked.
   `lease_deadline` is reckoned from when the renewal was *sent*, with a tenth to spare, so here it ends before it does
   there. A lease that etcd does not know any more is lost for good.
5. Whoever has its `anchor` here applies nothing by which that would go, or be another: an etcd that has lost its data,
   or keys that somebody removed by hand, say nothing of what is gone. What is found to be gone when everything is read
   anew may have been lost, too: `reads_anew` tells listeners.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

import trio
from sortedcontainers import SortedDict

from core_log.errors import BatchTooLarge, Conflict, MetadataLost, MetadataUnavailable
from core_log.metadata import etcd_wire as wire
from core_log.metadata.etcd_client import PAUSE_S, EtcdClient, Unreachable
from core_log.metadata.etcd_watch import Standstill, WholeRevisions
from core_log.metadata.etcd_wire import EtcdError
from core_log.metadata.histories import Anchor, difference, is_before
from core_log.metadata.joined_changes import JoinedChanges, Unanswered, is_repeatable
from core_log.metadata.store import Guard, Listener, MetadataEntry, Put

logger = logging.getLogger(__name__)

CLOCK = b"clock"
PAGE_KEYS = 5_000
LEASE_TTL_S = 3
KEYS_MAX = 300_000
"""How many keys a cluster may have."""
_CHECK_S, _CHECK_IDLE_S = 1.0, 4.0
_TIMEOUT_S = 5.0


class LeaseLost(MetadataUnavailable):
    """The lease that a change asked for is gone."""


class EtcdStore:
    """See the module; a `MetadataStore`. Run `run` as long as it is used. Keys are without `prefix`."""

    puts_max = wire.OPERATIONS_MAX - 1

    def __init__(
        self,
        client: EtcdClient,
        prefix: bytes,
        *,
        lease_ttl_s: int = LEASE_TTL_S,
        name: bytes | None = None,
        anchor: Anchor | None = None,
    ) -> None:
        """`name` begins the names of changes; no other store on the same keys may have it. `anchor`: rule 5."""
        self.listeners: list[Listener] = []
        self.revision = 0
        self.lease_id = 0
        """0 while there is none."""
        self.lease_deadline = -1.0
        """Until when (trio's time) the lease is certainly there."""
        self.reads_anew = False
        """See `MetadataStore`."""
        self.refusal = ""
        self.lease_lost: list[Callable[[], None]] = []
        """Called when etcd does not know the lease any more."""
        self._client = client
        self._prefix = prefix
        self._lease_ttl_s = lease_ttl_s
        self._anchor = anchor
        self._over = ""
        """Why nothing is heard from etcd any more: rule 5 has stopped it, or it has ended."""
        self._entries: SortedDict[bytes, MetadataEntry] = SortedDict()
        self._name = name if name is not None else secrets.token_hex(6).encode()
        self._changes = 0
        self._joined = JoinedChanges(self._change, self.puts_max)
        self._made: dict[bytes, int] = {}
        """Revisions of changes whose answers were lost, by their names; 0 as long as nothing was seen of them."""
        self._read_anew = 0
        """How often changes have come without their names."""
        self._advanced = trio.Event()
        self._awaited = trio.Event()
        """Set when somebody waits for news; then the watch is tried again at once."""
        self._barrier = trio.Lock()
        self._barriers_asked = self._barriers_answered = self._clock = 0
        """How many barriers were asked for, how many of them the last read answers, and what it said."""
        self._granting = trio.Lock()
        self._watching = trio.CancelScope()
        self._watched_member = 0
        self._matched_until = 0.0
        """Until when nothing speaks for a watch that is behind."""
        self._must_read = False

    # --- reading -----------------------------------------------------------------------

    def get(self, key: bytes) -> MetadataEntry | None:
        """The entry of a key; None when it is not there."""
        found: MetadataEntry | None = self._entries.get(key)
        return found

    def keys(self, prefix: bytes = b"") -> Sequence[bytes]:
        """All keys that begin with `prefix`, in their order. Others are not looked at."""
        return list(takewhile(lambda key: key.startswith(prefix), self._entries.irange(prefix)))

    def items(self, prefix: bytes = b"") -> Iterable[tuple[bytes, MetadataEntry]]:
        """All keys that begin with `prefix`, in their order, with their entries."""
        entries = self._entries
        return [(key, entries[key]) for key in self.keys(prefix)]

    async def caught_up(self, revision: int) -> None:
        """See `MetadataStore`."""
        await self._until(lambda: self.revision >= revision)

    async def barrier(self) -> None:
        """See `MetadataStore`: a read that a quorum answers, then the watch. Who comes during one shares the next."""
        call = self._barriers_asked = self._barriers_asked + 1
        async with self._barrier:
            if self._barriers_answered < call:
                asked = self._barriers_asked
                try:
                    self._clock = await self._read_clock()
                except (Unreachable, EtcdError) as error:
                    raise MetadataUnavailable(f"etcd does not answer: {error}") from error
                self._barriers_answered = asked
            clock = self._clock
        await self.caught_up(clock)

    async def _read_clock(self) -> int:
        page = wire.parse_page(await self._client.read(wire.RANGE, wire.read_key(self._prefix + CLOCK), _TIMEOUT_S))
        return page.entries[0].mod_revision if page.entries else 0

    async def _until(self, condition: Callable[[], bool]) -> None:
        self._awaited.set()
        with trio.move_on_after(_TIMEOUT_S) as waiting:
            while not condition():
                if self._over:
                    raise MetadataUnavailable(self._over)
                await self._advanced.wait()
        if waiting.cancelled_caught:
            raise MetadataUnavailable(
                f"nothing has been heard from etcd at {self._client.address} for {_TIMEOUT_S:g} s"
            )

    # --- changing ----------------------------------------------------------------------

    async def change(
        self,
        guards: Sequence[Guard],
        puts: Sequence[Put],
        *,
        lease: bool = False,
        check: Callable[[], None] | None = None,
    ) -> int:
        """See `MetadataStore`; `check` is called right before it is sent. Raises LeaseLost, too."""
        if lease and not self.lease_id:
            await self.begin_lease()
        await trio.lowlevel.checkpoint_if_cancelled()
        lease_id = self.lease_id if lease else 0
        guards = [guard._replace(key=self._prefix + guard.key) for guard in guards]
        puts = [(self._prefix + key, value) for key, value in puts]
        try:
            with trio.CancelScope(shield=True):
                if not lease and is_repeatable(guards, puts):
                    return await self._joined.make(guards, puts, check)
                if check is not None:
                    check()
                revision = await self._change(guards, puts, lease_id)
        except LeaseLost:
            self._lost(lease_id)
            raise
        return revision

    def change_now(self, puts: Sequence[Put]) -> bool:
        """See `MetadataStore`: never."""
        return False

    async def _change(self, guards: list[Guard], puts: list[Put], lease_id: int = 0) -> int:
        self._changes += 1
        name = b"%s.%d" % (self._name, self._changes)
        body = wire.txn(guards, puts, lease_id)
        # Not on the lease: the clock stays.
        body["success"] += wire.txn([], [(self._prefix + CLOCK, name)], 0)["success"]
        self._made[name] = 0
        try:
            return await self._send(body, guards, puts, name)
        finally:
            del self._made[name]

    async def _send(self, body: dict[str, Any], guards: list[Guard], puts: list[Put], name: bytes) -> int:
        repeatable = is_repeatable(guards, puts)
        until = trio.current_time() + _TIMEOUT_S
        unsure, read_anew = False, self._read_anew
        while True:
            try:
                answer = wire.parse_txn(await self._client.attempt(wire.TXN, body), guards)
                break
            except Unreachable as error:
                problem: Exception = error
                unsure = unsure or error.sent
            except EtcdError as error:
                if not error.may_have_happened:
                    raise self._refused(error) from error
                problem, unsure = error, True
            is_over = trio.current_time() >= until
            if is_over or (unsure and not repeatable):
                perhaps = "; the change may have been made" if unsure else ""
                kind = Unanswered if is_over else MetadataUnavailable
                raise kind(f"etcd does not answer: {problem}{perhaps}") from problem
            await trio.sleep(PAUSE_S)
        self.refusal = ""
        if answer.succeeded:
            await self.caught_up(answer.revision)
            return answer.revision
        await self._until(lambda: all(self._has(key, entry, answer.revision) for key, entry in answer.found.items()))
        if self._made[name]:
            return self._made[name]
        if unsure and read_anew != self._read_anew:
            raise MetadataUnavailable("an answer of etcd was lost; the change may have been made")
        raise Conflict("etcd has it otherwise than it was here")

    def _refused(self, error: EtcdError) -> Exception:
        refused = _refusal(error)
        self.refusal = str(error) if type(refused) is MetadataUnavailable else self.refusal
        return refused

    def _has(self, key: bytes, found: MetadataEntry | None, revision: int) -> bool:
        """Whether the mirror knows what was found under a key at a revision."""
        here = self._entries.get(key.removeprefix(self._prefix))
        if found is None:
            return here is None or here.mod_revision > revision
        return here.mod_revision >= found.mod_revision if here is not None else self.revision >= found.mod_revision

    # --- the lease ---------------------------------------------------------------------

    async def begin_lease(self) -> None:
        """Get a lease, unless there is one. Raises MetadataUnavailable."""
        async with self._granting:
            if self.lease_id:
                return
            sent = trio.current_time()
            try:
                answer = await self._client.read(wire.LEASE_GRANT, wire.lease_grant(self._lease_ttl_s), _TIMEOUT_S)
                granted = wire.parse_lease(answer)
            except (Unreachable, EtcdError) as error:
                if isinstance(error, EtcdError) and not error.may_have_happened:
                    raise self._refused(error) from error
                raise MetadataUnavailable(f"etcd does not answer: {error}") from error
            self.lease_id = granted.id
            self.lease_deadline = sent + 0.9 * granted.ttl_s

    async def revoke(self, lease_id: int) -> None:
        """End a lease, and with it what is under it; one that is not there is no error. Raises MetadataUnavailable."""
        if lease_id == self.lease_id:
            self.lease_id, self.lease_deadline = 0, -1.0
        try:
            await self._client.read(wire.LEASE_REVOKE, wire.lease(lease_id), _TIMEOUT_S)
        except EtcdError as error:
            if error.code != wire.NOT_FOUND:
                raise MetadataUnavailable(f"etcd refuses: {error}") from error
        except Unreachable as error:
            raise MetadataUnavailable(f"etcd does not answer: {error}") from error

    async def _keep_lease(self) -> None:
        failing = False
        while True:
            hurry = failing and trio.current_time() < self.lease_deadline
            await trio.sleep(PAUSE_S if hurry else self._lease_ttl_s / 3)
            lease_id = self.lease_id
            if not lease_id:
                continue
            sent, member = trio.current_time(), self._client.member
            try:
                renewed = await self._client.attempt(
                    wire.LEASE_KEEPALIVE, wire.lease(lease_id), timeout_s=self._lease_ttl_s / 4
                )
                answer = wire.parse_lease(renewed)
            except (Unreachable, EtcdError) as error:
                if not failing:
                    logger.warning("the lease could not be renewed: %s", error)
                failing = True
                continue
            if failing and answer.ttl_s:
                logger.info("the lease is renewed again")
            failing = False
            if not answer.ttl_s:
                self._lost(lease_id)
            elif lease_id == self.lease_id:
                self.lease_deadline = sent + 0.9 * answer.ttl_s
                matches = answer.revision == self.revision and member == self._watched_member
                self._matched_until = sent + self._lease_ttl_s / 2 if matches else 0.0

    def _lost(self, lease_id: int) -> None:
        if lease_id != self.lease_id:
            return
        logger.warning("etcd does not know this broker's lease any more")
        self.lease_id, self.lease_deadline = 0, -1.0
        for listener in self.lease_lost:
            listener()

    # --- following ---------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read everything, and follow until cancelled. Raises MetadataUnavailable if etcd cannot be read at first,
        MetadataLost.
        """
        try:
            await self._warn_of_version()
            await self._read_all()
        except (Unreachable, EtcdError) as error:
            raise MetadataUnavailable(f"etcd cannot be read: {error}") from error
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow)
                nursery.start_soon(self._check)
                nursery.start_soon(self._keep_lease)
        finally:
            self._end(self._over or "the broker ends")

    def _end(self, why: str) -> None:
        self._over = why
        self._advanced.set()  # it never is anew

    async def _warn_of_version(self) -> None:
        version = wire.parse_version(await self._client.read(wire.STATUS, {}, _TIMEOUT_S))
        warning = wire.version_warning(version)
        if warning is not None:
            logger.warning("%s", warning)

    async def _follow(self) -> None:
        said, pause_s = "", PAUSE_S
        while True:
            began = trio.current_time()
            with trio.CancelScope() as self._watching:
                try:
                    if self._must_read:
                        await self._read_all()
                        self._must_read = False
                    await self._watch()
                    continue
                except (Unreachable, EtcdError) as error:
                    if str(error) != said:
                        said = str(error)
                        logger.warning("the watch on etcd at %s has ended: %s", self._client.address, said)
                    self._client.next_member(self._watched_member)
                    if self._client.wants_token(error):
                        self._client.forget_token()
            pause_s = PAUSE_S if trio.current_time() > began + _CHECK_S else min(2 * pause_s, _CHECK_S)
            await trio.sleep(PAUSE_S)
            self._awaited = trio.Event()
            with trio.move_on_after(pause_s - PAUSE_S):
                await self._awaited.wait()

    async def _watch(self) -> None:
        """Follow one watch to its end; a return is for etcd not having what it would have to begin with."""
        if not await self._goes_on():
            self._must_read = True
            return
        member = self._watched_member = self._client.member
        headers = await self._client.headers() | wire.HAS_LEADER
        body, whole = wire.watch(self._prefix, self.revision + 1), WholeRevisions()
        async with self._client.transport.stream(member, wire.WATCH, body, headers) as lines:
            async for line in lines:
                answer = wire.parse_watch(line)
                for revision, events in whole.take(answer):
                    if revision > self.revision:
                        self._apply(revision, [event._replace(key=self._relative(event.key)) for event in events])
                if answer.ended:
                    if not answer.compacted:
                        raise EtcdError(wire.UNAVAILABLE, answer.reason or "etcd has ended it")
                    self._must_read = True
                    return
        raise Unreachable("the connection was closed", sent=True)

    async def _goes_on(self) -> bool:
        """Whether what etcd has is what is known here, and what came after that: it may have been put back."""
        known = self._entries.get(CLOCK)
        for revision in (0, known.mod_revision) if known is not None else ():
            asked = wire.read_key(self._prefix + CLOCK, revision)
            try:
                page = wire.parse_page(await self._client.read(wire.RANGE, asked, _TIMEOUT_S))
            except EtcdError as error:
                if error.code != wire.OUT_OF_RANGE:
                    raise
                return False  # compacted, or not there yet
            if page.entries and page.entries[0][1:] == known[1:]:
                return True
        return known is None

    async def _check(self) -> None:
        standstill, checked = Standstill(), 0.0
        while True:
            await trio.sleep(_CHECK_S)
            now = trio.current_time()
            if self._must_read or (now < self._matched_until and now < checked + _CHECK_IDLE_S - _CHECK_S / 2):
                continue  # to read everything may take long, and looks for another member itself
            checked = now
            member, here, known = self._watched_member, self.revision, self._entries.get(CLOCK)
            try:
                with trio.fail_after(_CHECK_S):
                    answer = await self._client.transport.call(
                        member, wire.RANGE, wire.read_key(self._prefix + CLOCK), await self._client.headers()
                    )
                page = wire.parse_page(answer)
            except (Unreachable, EtcdError, trio.TooSlowError) as error:
                if self._client.wants_token(error):
                    self._client.forget_token()
                else:
                    self._leave(member)
                continue
            if page.revision < here or is_before(page.entries, known):
                logger.error("etcd is at revision %d and was at %d: it has lost something", page.revision, here)
                self._must_read = True
                self._leave(member)
                continue
            clock = page.entries[0].mod_revision if page.entries else 0
            if standstill.is_there(self.revision, clock):
                logger.warning("the watch on etcd at %s is behind", self._client.transport.members[member])
                self._leave(member)

    def _leave(self, member: int) -> None:
        self._client.next_member(member)
        self._watching.cancel()

    def _relative(self, key: bytes) -> bytes:
        return key[len(self._prefix) :]

    def _apply(self, revision: int, changed: Sequence[MetadataEntry]) -> None:
        self._require_anchor(changed)
        for entry in changed:
            if entry.value is None:
                self._entries.pop(entry.key, None)
            else:
                self._entries[entry.key] = entry
            if entry.key == CLOCK and entry.value in self._made:
                self._made[entry.value] = revision
        self.revision = revision
        for listener in self.listeners:
            listener(revision, changed)
        advanced, self._advanced = self._advanced, trio.Event()
        advanced.set()

    def _require_anchor(self, changed: Iterable[MetadataEntry]) -> None:
        """Raises MetadataLost: rule 5."""
        if self._anchor is not None and self._anchor.is_lost(self._entries, changed):
            self._end("etcd has lost its data")
            raise MetadataLost(f"etcd does not know {self._prefix.decode()} any more, or has another one")

    async def _read_all(self) -> None:
        """Read everything as it is at one revision, and apply what has changed."""
        end = wire.prefix_end(self._prefix)
        found: dict[bytes, MetadataEntry] = {}
        first, revision, more = self._prefix, 0, True
        while more:
            asked = wire.read_page(first, end, PAGE_KEYS, revision)
            page = wire.parse_page(await self._client.read(wire.RANGE, asked, _TIMEOUT_S))
            revision = revision or page.revision
            for entry in page.entries:
                key = self._relative(entry.key)
                found[key] = entry._replace(key=key)
            more = page.more and bool(page.entries)
            if more:
                first = page.entries[-1].key + b"\0"
        if len(found) > KEYS_MAX:
            logger.warning("etcd holds %d keys of this cluster, it is made for %d", len(found), KEYS_MAX)
        self._read_anew += 1
        self.reads_anew = True
        try:
            self._apply(revision, difference(self._entries, found, revision))
        finally:
            self.reads_anew = False


def _refusal(error: EtcdError) -> Exception:
    if error.code == wire.NOT_FOUND and "lease" in str(error):
        return LeaseLost("the lease has ended")
    if "request is too large" in str(error):
        return BatchTooLarge("the change is larger than etcd takes (--max-request-bytes)")
    return MetadataUnavailable(f"etcd refuses: {error}")
