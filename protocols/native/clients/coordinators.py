"""The link to the broker that looks after a group or a transactional id: one that a client has already, or another.

A broker that stands still does not say that another has taken over. So while it owes an answer others are asked every
`_LOOK_S` who it is by now, and what it was asked is asked of that one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import trio

from protocols.native import wire, wire_groups
from protocols.native.clients.blocking_link import named
from protocols.native.clients.link import Link, ReplyType
from protocols.native.errors import ConnectionLost, MillraceError, NotCoordinator, RequestTimedOut
from protocols.native.wire import Request

_PAUSE_S = 0.1
_CONNECT_S_MAX = 1.0
"""Who cannot be reached for so long may not be the one any more."""
_LOOK_S = 2.0


class CoordinatorLink:
    """See the module. `link` is to any broker; further links run in `nursery`."""

    def __init__(self, kind: Literal[0, 1], name: str, link: Link, nursery: trio.Nursery) -> None:
        self._kind: Literal[0, 1] = kind
        self._name = name
        self._link = link
        self._nursery = nursery
        self._found: Link | None = None
        self._own: tuple[Link, trio.CancelScope] | None = None
        self.unanswered = False
        """Something that was asked may have been heard, and was not answered; whoever looks sets it back."""

    async def request(self, request: Request, kind: type[ReplyType], *, wait_ms: int = 0) -> ReplyType:
        """Ask the coordinator once; when that is another one now, or gone, the next request goes where it is then.

        Raises what it answered, ConnectionLost.
        """
        try:
            link = self._found or await self._find()
            return await link.request(request, kind, wait_ms=wait_ms)
        except MillraceError as error:
            self.unanswered = self.unanswered or isinstance(error, ConnectionLost | RequestTimedOut)
            if error.retriable or isinstance(error, NotCoordinator):
                self._found = None
            raise

    async def call(self, make: Callable[[], Request], kind: type[ReplyType]) -> ReplyType:
        """`request`, made anew and repeated until `request_timeout_ms` while errors pass. Raises RequestTimedOut."""
        timeout_ms = self._link.config.request_timeout_ms
        last: MillraceError | None = None
        with trio.move_on_after(timeout_ms / 1000):
            while True:
                try:
                    return await self.request(make(), kind)
                except MillraceError as error:
                    if not error.retriable:
                        raise
                    last = error
                await self.pause()
        why = self._link.lost or last or "the coordinator does not answer"
        raise RequestTimedOut(f"no success within {timeout_ms} ms: {why}", retriable=True)

    async def pause(self) -> None:
        """Before asking again."""
        await trio.sleep(max(_PAUSE_S, self._link.config.reconnect_backoff_ms / 1000))

    async def partitions(self, topics: list[str] | None) -> dict[str, int]:
        """How many partitions topics have, or all topics, that there are."""
        reply = await self._link.call(wire.Metadata(0, topics, False), wire.MetadataReply)
        return {name: len(partitions) for name, error, partitions in reply.topics if error is None}

    async def _find(self) -> Link:
        reply = await self._ask()
        if not reply.host or reply.node_id == self._link.node_id:
            await self._link.wait_connected()
            self._let_go()
            self._found = self._link
            return self._link
        address = (reply.host, reply.port)
        if self._own is None or self._own[0].address != address:
            self._let_go()
            link, scope = Link([address], self._link.config), trio.CancelScope()
            link.closing = ConnectionLost(f"'{self._name}' is looked after by another broker", retriable=True)
            self._own = link, scope
            self._nursery.start_soon(self._keep, link, scope)
        link = self._own[0]
        with trio.move_on_after(min(_CONNECT_S_MAX, self._link.config.connect_timeout_ms / 1000)):
            await link.wait_connected()
        if not link.connected:
            raise ConnectionLost(f"cannot connect to {named(address)}", retriable=True)
        self._found = link
        return link

    async def _ask(self) -> wire_groups.FindCoordinatorReply:
        return await self._link.call(
            wire_groups.FindCoordinator(0, self._kind, self._name), wire_groups.FindCoordinatorReply
        )

    def _let_go(self) -> None:
        if self._own is not None:
            self._own[1].cancel()
            self._own = None

    async def _keep(self, link: Link, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, link)
                await link.run()
                nursery.cancel_scope.cancel()

    async def _watch(self, link: Link) -> None:
        """Let go of a broker that owes an answer and is not the one any more."""
        while True:
            await trio.sleep(_LOOK_S)
            if not link.requests_in_flight:
                continue
            try:
                now = await self._ask()
            except MillraceError:
                continue  # nobody knows
            if (now.host, now.port) != link.address and self._own is not None and self._own[0] is link:
                self._let_go()
