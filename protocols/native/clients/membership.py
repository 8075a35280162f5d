"""A consumer's part in its group: it joins, learns what it reads, says that it is there, and joins again.

1. One task does all that is asked of the broker; whatever touches what the application reads (giving partitions up,
   taking them over, its listener) waits in `steps` until the application asks for records, and runs in its task: all
   that it was given before counts as done then. Heartbeats go on meanwhile. A step in which that task is cancelled is
   done again, from its beginning, when it asks for the next records; until then nothing was given up.
2. An application that asks for no records for `max_poll_interval_ms` is out of the group, so that others go on.
3. A member whose only way is `cooperative-sticky` gives up what moves; others give everything up before each division.
   The leader of a generation divides (`assignors.py`), and watches what topics there are.
4. Partitions are *lost*, not given up, when others may read them already: nothing is committed for them then.
5. A static member (`instance_id`) does not say goodbye: it is the same one when it comes back within its session
   timeout.
6. Partitions of a topic that is gone are assigned and not read. They are taken up when the topic is there again before
   they are divided anew.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from inspect import isawaitable

import trio
from msgspec import Struct

from protocols.native import wire_groups
from protocols.native.clients.assignors import ASSIGNORS, Wish
from protocols.native.clients.coordinators import CoordinatorLink
from protocols.native.clients.group_bytes import (
    GroupBytesError,
    Partition,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from protocols.native.errors import (
    IllegalGeneration,
    MillraceError,
    NotAMember,
    RebalanceInProgress,
)

logger = logging.getLogger("protocols.native.clients.consumer")

_JOIN_SLACK_MS = 10_000
"""A group that was empty waits for more members."""
LEAVE_S_MAX = 2.0


class RebalanceListener:
    """Told what a member of a group reads. Methods may be async; they run while nobody has records under way, and may
    call the consumer's `commit` and `seek`. One that is cancelled, with the call that asks for records, is told again.
    """

    def on_assigned(self, partitions: list[Partition]) -> Awaitable[None] | None:
        """These are read from now on."""
        return None

    def on_revoked(self, partitions: list[Partition]) -> Awaitable[None] | None:
        """These are about to be given up; what is committed here is where the next owner begins."""
        return None

    def on_lost(self, partitions: list[Partition]) -> Awaitable[None] | None:
        """These are others' by now."""
        return self.on_revoked(partitions)


class GroupTerms(Struct, frozen=True, kw_only=True):
    """How a consumer is a member; see `Consumer`."""

    group: str
    instance_id: str | None
    assignors: tuple[str, ...]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    metadata_max_age_ms: int
    server_assignor: str | None = None


class Reader(ABC):
    """What a membership wants of the consumer."""

    @abstractmethod
    async def starts(self, partitions: list[Partition]) -> dict[Partition, int]:
        """Where to begin in each; those of topics that are gone are left out."""

    @abstractmethod
    def reads(self) -> Collection[Partition]:
        """What is read: less than what is assigned while topics are gone."""

    @abstractmethod
    def set_assigned(self, starts: Mapping[Partition, int]) -> None:
        """Read these and nothing else; what is read already goes on where it is."""

    @abstractmethod
    async def before_revoked(self, partitions: list[Partition]) -> None:
        """Finish what is under way, and commit if that is the consumer's to do."""

    @abstractmethod
    async def await_given(self, given: Awaitable[None]) -> None:
        """Await what the application's listener gave."""

    @abstractmethod
    def interrupt(self) -> None:
        """Have the application come by soon: there are steps."""

    @abstractmethod
    def progress(self) -> object:
        """Something that changes when the application goes on; None while it waits for records."""


class Membership:
    """See the module. Run `run` beside the consumer; `step` when the application asks for records."""

    def __init__(
        self,
        terms: GroupTerms,
        coordinator: CoordinatorLink,
        reader: Reader,
        topics: Iterable[str],
        pattern: str | None,
        listener: RebalanceListener,
    ) -> None:
        self.terms = terms
        self.member_id = ""
        self.generation = wire_groups.NO_GENERATION
        self.failure: MillraceError | None = None
        """Why it is no member for good."""
        self.assigned: dict[Partition, None] = {}
        self._coordinator = coordinator
        self._reader = reader
        self._topics = list(dict.fromkeys(topics))
        self._pattern = None if pattern is None else re.compile(pattern)
        self._listener = listener
        self._assignors = [ASSIGNORS[name] for name in terms.assignors]
        self._cooperative = all(assignor.cooperative for assignor in self._assignors)
        """With one among its ways that is not, a member gives everything up, whichever is chosen."""
        self._steps: list[tuple[Callable[[], Awaitable[None]], trio.Event]] = []
        self._again = trio.Event()
        """It has to join again."""
        self._out = False
        """The group has gone on without it."""
        self._joining = False
        self._leads: dict[str, int] | None = None
        """If it divided this generation: numbers of partitions of the group's topics then."""
        self._group_topics: set[str] = set()
        self._heard_at = 0.0
        self._told = False
        """The application knows what it reads."""

    # The application's side

    async def step(self) -> None:
        """Run what waits for the application. Raises what its listener does."""
        if self.failure is not None:
            raise self.failure
        while self._steps:
            work, done = self._steps.pop(0)
            try:
                await work()
            except Exception:
                done.set()
                raise
            except BaseException:  # cancelled: it is still to be done
                self._steps.insert(0, (work, done))
                raise
            done.set()

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Store offsets as this member. Raises NotAMember."""
        entries = [(topic, partition, offset, "") for (topic, partition), offset in offsets.items()]
        terms = self.terms
        mine = [key for key in offsets if key in self.assigned]

        def commit() -> wire_groups.CommitGroupOffsets:
            """Made anew for each try: what was given up meanwhile is another's to commit."""
            if not self.member_id or not all(key in self.assigned for key in mine):
                raise NotAMember(f"no member of group '{terms.group}' now, or not with these partitions")
            return wire_groups.CommitGroupOffsets(
                0, terms.group, self.member_id, terms.instance_id, self.generation, entries
            )

        while True:
            generation = self.generation
            try:
                await self._coordinator.call(commit, wire_groups.CommitGroupOffsetsReply)
                return
            except IllegalGeneration:
                if not await self._goes_on(generation):
                    raise

    async def _goes_on(self, generation: int) -> bool:
        """Whether it is a member in another generation by now, with what it had."""
        return False

    async def leave(self, *, commit: bool) -> None:
        """Give everything up and go. Call it with `run` still running, as the last."""
        partitions = list(self.assigned)
        self._joining = True  # no more heartbeats
        if partitions and commit and not self._out:
            await self._reader.before_revoked(partitions)
            await self._tell(self._listener.on_revoked, partitions)
        self.assigned.clear()
        await self._leave_group()

    async def _leave_group(self) -> None:
        member_id, self.member_id = self.member_id, ""
        if member_id and self.terms.instance_id is None:
            request = wire_groups.LeaveGroup(0, self.terms.group, member_id, None)
            with trio.move_on_after(LEAVE_S_MAX):
                try:
                    await self._coordinator.request(request, wire_groups.LeaveGroupReply)
                except MillraceError:
                    pass  # it will be missed

    async def _tell(self, listener: Callable[[list[Partition]], Awaitable[None] | None], what: list[Partition]) -> None:
        told = listener(what)
        if isawaitable(told):
            await self._reader.await_given(told)

    # The task

    async def run(self) -> None:
        """Be a member until cancelled or refused for good."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            nursery.start_soon(self._watch)
            try:
                while True:
                    try:
                        await self._join_and_stay()
                    except NotAMember as error:
                        if not isinstance(error, RebalanceInProgress | IllegalGeneration):
                            self._out = True
                    except MillraceError as error:
                        if not error.retriable:
                            raise
                        await self._coordinator.pause()
            except MillraceError as error:
                self.failure = error
                self._reader.interrupt()
            nursery.cancel_scope.cancel()

    async def _join_and_stay(self) -> None:
        """One generation: until it is to join again."""
        if self._out:
            await self._give_up(list(self.assigned), lost=True)
            self.member_id, self.generation, self._out = "", wire_groups.NO_GENERATION, False
        elif not self._cooperative:
            await self._give_up(list(self.assigned))
        self._again = trio.Event()
        self._joining = True
        try:
            joined = await self._join()
            assigned = await self._sync(joined)
        finally:
            self._heard_at = trio.current_time()
            self._joining = False
        revoked = [key for key in self.assigned if key not in assigned]
        await self._give_up(revoked)
        await self._take_over(assigned)
        if revoked and self._cooperative:
            return  # who is to have them gets them now
        await self._again.wait()

    async def _join(self) -> wire_groups.JoinGroupReply:
        terms = self.terms
        await self._match()
        subscription = Subscription(self._topics, list(self.assigned), self.generation)
        wanted = encode_subscription(subscription)
        while True:
            request = wire_groups.JoinGroup(
                0,
                terms.group,
                self.member_id,
                terms.instance_id,
                terms.session_timeout_ms,
                terms.max_poll_interval_ms,
                [(assignor.name, wanted) for assignor in self._assignors],
            )
            wait_ms = terms.max_poll_interval_ms + _JOIN_SLACK_MS
            joined = await self._coordinator.request(request, wire_groups.JoinGroupReply, wait_ms=wait_ms)
            self.member_id = joined.member_id
            if joined.generation >= 0:
                self.generation = joined.generation
                return joined

    async def _sync(self, joined: wire_groups.JoinGroupReply) -> list[Partition]:
        terms = self.terms
        given: list[tuple[str, bytes]] = []
        self._leads = None
        if joined.leader == joined.member_id and not joined.skip_assignment:
            given = await self._divide(joined)
        request = wire_groups.SyncGroup(
            0, terms.group, self.member_id, terms.instance_id, joined.generation, joined.protocol, given
        )
        reply = await self._coordinator.request(request, wire_groups.SyncGroupReply, wait_ms=terms.max_poll_interval_ms)
        try:
            return decode_assignment(reply.assignment)
        except GroupBytesError as error:
            raise MillraceError(f"the leader of group '{terms.group}' sent no assignment: {error}") from None

    async def _divide(self, joined: wire_groups.JoinGroupReply) -> list[tuple[str, bytes]]:
        wishes: dict[str, Wish] = {}
        for member_id, instance_id, wanted in joined.members:
            try:
                wishes[member_id] = Wish(instance_id, decode_subscription(wanted))
            except GroupBytesError as error:
                logger.warning("member %s of group '%s' wants nothing: %s", member_id, self.terms.group, error)
                wishes[member_id] = Wish(instance_id, Subscription([]))
        self._group_topics = {topic for wish in wishes.values() for topic in wish.subscription.topics}
        counts = await self._counts()
        self._leads = counts
        shares = ASSIGNORS[joined.protocol].assign(wishes, counts)
        return [(member_id, encode_assignment(partitions)) for member_id, partitions in shares.items()]

    # Steps in the application's task

    async def _at_step(self, work: Callable[[], Awaitable[None]]) -> None:
        done = trio.Event()
        self._steps.append((work, done))
        self._reader.interrupt()
        await done.wait()

    async def _give_up(self, partitions: list[Partition], *, lost: bool = False) -> None:
        if not partitions:
            return

        async def work() -> None:
            gone = lost or self._out
            failure: Exception | None = None
            if not gone:
                await self._reader.before_revoked(partitions)
                gone = self._out  # what was under way may have taken too long
            try:
                await self._tell(self._listener.on_lost if gone else self._listener.on_revoked, partitions)
            except Exception as error:
                failure = error
            for key in partitions:
                self.assigned.pop(key, None)
            read = self._reader.reads()
            self._reader.set_assigned(dict.fromkeys((key for key in self.assigned if key in read), 0))
            if failure is not None:
                raise failure

        await self._at_step(work)

    async def _take_over(self, assigned: list[Partition]) -> None:
        new = [key for key in assigned if key not in self.assigned]
        starts = await self._reader.starts(new) if new else {}

        async def work() -> None:
            self.assigned = dict.fromkeys(assigned)
            self._told = True
            read = self._reader.reads()
            self._reader.set_assigned({key: starts.get(key, 0) for key in assigned if key in starts or key in read})
            await self._tell(self._listener.on_assigned, new)

        await self._at_step(work)

    # Being there

    async def _beat(self) -> None:
        terms = self.terms
        interval_s = min(terms.heartbeat_interval_ms, terms.session_timeout_ms / 3) / 1000
        seen, seen_at = self._reader.progress(), trio.current_time()
        while True:
            await trio.sleep(interval_s)
            now, progress = trio.current_time(), self._reader.progress()
            if progress is None or progress != seen:
                seen, seen_at = progress, now
            if self._joining or not self.member_id or self._out:
                continue
            if now - seen_at > terms.max_poll_interval_ms / 1000:
                logger.warning("no records were asked for in %d ms: leaving the group", terms.max_poll_interval_ms)
                self._out = True
                await self._leave_group()
                self._lost()
                continue
            request = wire_groups.Heartbeat(0, terms.group, self.member_id, terms.instance_id, self.generation)
            try:
                await self._coordinator.request(request, wire_groups.HeartbeatReply)
                self._heard_at = trio.current_time()
            except RebalanceInProgress:
                self._heard_at = trio.current_time()
                self._again.set()
            except NotAMember:
                if not self._joining and request.generation == self.generation:
                    self._lost()
            except MillraceError as error:
                if not error.retriable:
                    self.failure = error
                    self._reader.interrupt()
                    return
                if trio.current_time() - self._heard_at > terms.session_timeout_ms / 1000:
                    self._lost()

    def _lost(self) -> None:
        self._out = True
        self._again.set()

    async def _watch(self) -> None:
        """Join again when there are other topics or partitions to divide."""
        while True:
            await trio.sleep(self.terms.metadata_max_age_ms / 1000)
            try:
                if (self._pattern is not None and await self._match()) or (
                    self._leads is not None and self._leads != await self._counts()
                ):
                    self._again.set()
                else:
                    await self._take_up_again()
            except MillraceError:
                continue  # later

    async def _take_up_again(self) -> None:
        """Rule 6."""
        unread = [key for key in self.assigned if key not in self._reader.reads()]
        starts = await self._reader.starts(unread) if unread else {}
        if not starts:
            return

        async def work() -> None:
            here = {key: start for key, start in starts.items() if key in self.assigned}
            self._reader.set_assigned(here | dict.fromkeys(self._reader.reads(), 0))

        await self._at_step(work)

    async def _match(self) -> bool:
        """Whether the pattern means other topics now."""
        if self._pattern is None:
            return False
        counts = await self._coordinator.partitions(None)
        before = self._topics
        self._topics = sorted(topic for topic in counts if self._pattern.fullmatch(topic))
        return self._topics != before

    async def _counts(self) -> dict[str, int]:
        return await self._coordinator.partitions(sorted(self._group_topics)) if self._group_topics else {}
