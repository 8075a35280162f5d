"""What stands between brokers in a test: each is reached by its peers through a relay, which can stop what one broker
says to another, in one direction or both, without either being told.

Broker N listens on a port of 127.0.0.1 and advertises 127.0.1.N, where the relay listens on the same port.

The first frame of a link says who dials, so one relay tells all links apart. It runs in a thread of its own: the test
and its clients may block.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import trio

from protocols.peer import wire

_READ_BYTES = 1 << 16
_HELLO_BYTES_MAX = 4096


def advertised_host(broker: int) -> str:
    """Where others find a broker."""
    return f"127.0.1.{broker}"


class PeerRelay:
    """See the module. `ports` are those on which brokers listen for their peers."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        self._ports = dict(ports)
        self._silent: set[tuple[int, int]] = set()
        self._changed = trio.Event()
        self._links: dict[trio.CancelScope, tuple[int, int]] = {}
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop = trio.Event()

    # --- for the test, from any thread

    def cut(self, source: int, target: int) -> None:
        """Pass nothing on from one broker to another, until `heal`."""
        self._do(lambda: self._silent.add((source, target)))

    def isolate(self, broker: int) -> None:
        """Cut it off from all others, both ways."""
        for other in self._ports:
            if other != broker:
                self.cut(broker, other)
                self.cut(other, broker)

    def heal(self, *, hang_up: bool = False) -> None:
        """Pass everything on again, what was held up too; with `hang_up` that is lost with its links."""
        self._do(self._hang_up if hang_up else lambda: None)
        self._do(self._silent.clear)

    def _do(self, what: object) -> None:
        assert self._token is not None
        assert callable(what)
        done = threading.Event()

        def run() -> None:
            what()
            changed, self._changed = self._changed, trio.Event()
            changed.set()
            done.set()

        self._token.run_sync_soon(run)
        done.wait()

    # --- the thread

    def _hang_up(self) -> None:
        for scope in self._links:
            scope.cancel()

    async def run(self, ready: threading.Event) -> None:
        """Pass on until `stop`."""
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            for broker, port in self._ports.items():
                listeners = await trio.open_tcp_listeners(port, host=advertised_host(broker))

                async def serve(client: trio.SocketStream, broker: int = broker) -> None:
                    await self._serve(client, broker)

                nursery.start_soon(trio.serve_listeners, serve, listeners)
            ready.set()
            await self._stop.wait()
            nursery.cancel_scope.cancel()

    def stop(self) -> None:
        """End all links."""
        self._do(self._stop.set)

    async def _serve(self, client: trio.SocketStream, target: int) -> None:
        with trio.CancelScope() as scope:
            try:
                hello = await _first_frame(client)
                dialer = wire.decode(memoryview(hello)[4:])
                server = await trio.open_tcp_stream("127.0.0.1", self._ports[target])
            except (OSError, trio.BrokenResourceError, wire.PeerError):
                await trio.aclose_forcefully(client)
                return
            assert isinstance(dialer, wire.Hello)
            self._links[scope] = (dialer.broker_id, target)
            async with client, server, trio.open_nursery() as nursery:
                nursery.start_soon(self._pass, client, server, (dialer.broker_id, target), scope, hello)
                nursery.start_soon(self._pass, server, client, (target, dialer.broker_id), scope, b"")
        self._links.pop(scope, None)

    async def _pass(
        self,
        source: trio.SocketStream,
        to: trio.SocketStream,
        way: tuple[int, int],
        scope: trio.CancelScope,
        data: bytes,
    ) -> None:
        try:
            while data or (data := bytes(await source.receive_some(_READ_BYTES))):
                while way in self._silent:
                    await self._changed.wait()
                await to.send_all(data)
                data = b""
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


async def _first_frame(client: trio.SocketStream) -> bytes:
    """Raises BrokenResourceError."""
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = await client.receive_some(_HELLO_BYTES_MAX)
        if not more or len(data) > _HELLO_BYTES_MAX:
            raise trio.BrokenResourceError
        data += more
    return data


@contextmanager
def peer_relay(ports: Mapping[int, int]) -> Iterator[PeerRelay]:
    """A relay to some brokers, until the block ends."""
    relay, ready = PeerRelay(ports), threading.Event()
    thread = threading.Thread(target=trio.run, args=(relay.run, ready), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield relay
    finally:
        relay.stop()
        thread.join(10)
