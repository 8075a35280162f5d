"""What stands between two brokers in a test: it passes bytes on, holds them up, or hangs up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio


class Relay:
    """Listens on `address` and passes everything on to `target`; `there` and `back` are all that passed."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self.there: list[bytearray] = []
        self.back: list[bytearray] = []
        self._scopes: set[trio.CancelScope] = set()
        self._open = self._open_back = trio.Event()
        self._open.set()

    def hold(self) -> None:
        """Pass nothing on: nobody is told."""
        self._open = self._open_back = trio.Event()

    def hold_back(self) -> None:
        """Pass on what clients say, and no answers."""
        self._open_back = trio.Event()

    def go_on(self) -> None:
        """Pass on what was held up, too."""
        self._open.set()
        self._open_back.set()

    @property
    def is_holding(self) -> bool:
        """Something of what clients say is held up."""
        return self._open.statistics().tasks_waiting > 0

    def go_on_anew(self) -> trio.Event:
        """Pass on what comes from now on; what is held up waits for the event."""
        held, self._open = self._open, trio.Event()
        self._open_back = self._open
        self._open.set()
        return held

    def cut(self) -> None:
        """Hang up on both sides, for all connections there are."""
        for scope in self._scopes:
            scope.cancel()

    async def serve(self, client: trio.SocketStream) -> None:
        host, _, port = self.target.rpartition(":")
        server: trio.SocketStream | None = None
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                server = await trio.open_tcp_stream(host, int(port))
            except OSError:
                pass
            if server is not None:
                there, back = bytearray(), bytearray()
                self.there.append(there)
                self.back.append(back)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass, client, server, there, lambda: self._open, scope)
                    nursery.start_soon(self._pass, server, client, back, lambda: self._open_back, scope)
        self._scopes.discard(scope)
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(client)
            if server is not None:
                await trio.aclose_forcefully(server)

    async def _pass(
        self,
        source: trio.SocketStream,
        target: trio.SocketStream,
        seen: bytearray,
        is_open: Callable[[], trio.Event],
        scope: trio.CancelScope,
    ) -> None:
        try:
            while data := await source.receive_some():
                await is_open().wait()
                seen += data
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


@asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    """A relay to "host:port" until the block ends."""
    found = Relay(target)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        found.address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, found.serve, listeners)
        yield found
        nursery.cancel_scope.cancel()
