"""A consumer's part in a group that the broker divides (KIP-848): it says what it wants, and is told what it reads.

1. A heartbeat says what has changed and brings what the member may read. There are no generations that all have to
   begin together: what moves is given up by one member and then taken over by another, and nobody else stops.
2. What the application has to do with it is as in `membership.py`: it waits until records are asked for, and heartbeats
   go on meanwhile. What was given up is said at once, so that the next owner gets it.
3. A static member that goes says that it will be back.
4. Of a heartbeat that was not answered nobody knows whether it was heard, and what came back: the next one says
   everything, and is told everything.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable

import trio

from protocols.native import wire_groups
from protocols.native.clients.coordinators import CoordinatorLink
from protocols.native.clients.group_bytes import Partition
from protocols.native.clients.membership import LEAVE_S_MAX, GroupTerms, Membership, Reader, RebalanceListener
from protocols.native.errors import MillraceError, NotAMember

logger = logging.getLogger("protocols.native.clients.consumer")

_COMES, _GOES, _GOES_FOR_NOW = 0, -1, -2
_UNCHANGED = -1
_LOOK_S = 0.01


class ServedMembership(Membership):
    """See the module. `generation` is the member's epoch."""

    def __init__(
        self,
        terms: GroupTerms,
        coordinator: CoordinatorLink,
        reader: Reader,
        topics: Iterable[str],
        pattern: str | None,
        listener: RebalanceListener,
    ) -> None:
        super().__init__(terms, coordinator, reader, topics, None, listener)
        self._wants_pattern = pattern
        self._wake = trio.Event()
        self._to_read: list[Partition] | None = None
        """What it may read, where that is not what it reads."""
        self._dividing = False
        self._say_owned = False
        """What it reads is not what it said last."""
        self._say_all = False
        """Rule 4."""
        self._epoch = _COMES

    async def run(self) -> None:
        """Be a member until cancelled or refused for good."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                await self._be_there(nursery)
        except MillraceError as error:
            self._fail(error)
        except BaseExceptionGroup as group:
            failures, rest = group.split(MillraceError)
            if rest is not None or failures is None:
                raise
            found: BaseException = failures
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            assert isinstance(found, MillraceError)
            self._fail(found)

    def _fail(self, error: MillraceError) -> None:
        self.failure = error
        self._reader.interrupt()

    async def _be_there(self, nursery: trio.Nursery) -> None:
        interval_s = 0.0
        seen, seen_at = self._reader.progress(), trio.current_time()
        while not self._joining:
            try:
                interval_s = await self._heartbeat()
            except NotAMember:
                await self._begin_anew()
                continue
            except MillraceError as error:
                if not error.retriable:
                    raise
                if trio.current_time() - self._heard_at > self.terms.session_timeout_ms / 1000:
                    self._heard_at = trio.current_time()
                    await self._begin_anew()
                await self._coordinator.pause()
                continue
            if self._to_read is not None and not self._dividing:
                self._dividing = True
                nursery.start_soon(self._divide_anew, self._to_read)
                self._to_read = None
            self._wake = trio.Event()
            if not self._say_owned:
                with trio.move_on_after(interval_s):
                    await self._wake.wait()
            now, progress = trio.current_time(), self._reader.progress()
            if progress is None or progress != seen:
                seen, seen_at = progress, now
            elif now - seen_at > self.terms.max_poll_interval_ms / 1000 and not self._out:
                logger.warning("no records were asked for in %d ms: leaving the group", self.terms.max_poll_interval_ms)
                self._out = True
                await self._leave_group()
                await self._begin_anew()

    async def _heartbeat(self) -> float:
        """Say what has changed; in how many seconds to say something again."""
        terms, comes = self.terms, self._epoch == _COMES
        if comes:
            self.member_id = self.member_id or secrets.token_urlsafe(16)
        everything = comes or self._say_all
        owned = list(self.assigned) if everything or self._say_owned else None
        self._say_owned = False
        request = wire_groups.ConsumerHeartbeat(
            0,
            terms.group,
            self.member_id,
            self._epoch,
            terms.instance_id,
            terms.max_poll_interval_ms if everything else _UNCHANGED,
            (self._topics if self._wants_pattern is None else None) if everything else None,
            self._wants_pattern if everything else None,
            terms.server_assignor if everything else None,
            owned,
        )
        try:
            reply = await self._coordinator.request(request, wire_groups.ConsumerHeartbeatReply)
        except MillraceError:
            self._say_all = True
            raise
        self._say_all = False
        self._heard_at = trio.current_time()
        self._epoch = self.generation = reply.epoch
        if reply.assignment is not None:
            self._to_read = reply.assignment
        return reply.heartbeat_interval_ms / 1000

    async def _divide_anew(self, to_read: list[Partition]) -> None:
        """Have the application give up and take over what it has to."""
        try:
            keep = set(to_read)
            await self._give_up([key for key in self.assigned if key not in keep])
            new = [key for key in to_read if key not in self.assigned]
            if new or not self._told:
                await self._take_over(to_read)
            self._say_owned = True
        except MillraceError as error:
            if not error.retriable:
                raise
            await self._coordinator.pause()
            if self._to_read is None:
                self._to_read = to_read
        finally:
            self._dividing = False
            self._wake.set()

    async def _goes_on(self, generation: int) -> bool:
        """Epochs pass without anything being given up: the next heartbeat brings the one that it is."""
        if self.generation == generation and not self._out:
            self._wake.set()
            with trio.move_on_after(self.terms.heartbeat_interval_ms / 1000):
                while self.generation == generation and not self._out:
                    await trio.sleep(_LOOK_S)
        return self.generation != generation and not self._out

    async def _begin_anew(self) -> None:
        """The group has gone on without it: come again, and have the application know that it lost everything."""
        self._out = True
        self._to_read = None
        while self._dividing:
            await self._coordinator.pause()
        await self._give_up(list(self.assigned), lost=True)
        self._out, self._epoch, self._to_read = False, _COMES, None

    async def _leave_group(self) -> None:
        if self.member_id and self._epoch > _COMES:
            terms = self.terms
            epoch = _GOES if terms.instance_id is None else _GOES_FOR_NOW
            request = wire_groups.ConsumerHeartbeat(
                0, terms.group, self.member_id, epoch, terms.instance_id, _UNCHANGED, None, None, None, None
            )
            with trio.move_on_after(LEAVE_S_MAX):
                try:
                    await self._coordinator.request(request, wire_groups.ConsumerHeartbeatReply)
                except MillraceError:
                    pass  # it will be missed
        self._epoch = _COMES
