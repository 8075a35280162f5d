"""A native client within the broker's own process, for what HTTP's clients ask for that takes several requests.

1. The connection is a pair of sockets: at one end a connection as any other, with a native adapter, at the other the
   client that commands use as well. So rights, limits, leaders and coordinators are those of the native door, which
   need not be open. To the broker it comes from the address of HTTP's client.
2. What another broker leads is asked of that one, at its native door, in the name of the same user and with the
   password that came by HTTP. Who came without one, by a certificate or as a client on this machine, has none there.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from gateway.connection import Connection, Shell
from protocols.native.adapter import NativeAdapter
from protocols.native.clients.client import Client, LinkConfig
from protocols.native.clients.client_tls import tls_context
from protocols.native.clients.producer import Producer

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.outbox import SocketOutbox
    from gateway.web_login import Login
    from protocols.native.clients.link import Dial
    from routing.broker import Broker

NAME = "http"
"""Its door. The client has no name: one that has can be banned by it."""


class OwnDoor:
    """Where clients of this process come in."""

    def __init__(self, broker: Broker, shell: Shell, config: Config) -> None:
        """Raises OSError: `http.native_ca` cannot be read."""
        self.broker = broker
        self.shell = shell
        self._config = config
        self._tls = tls_context(config.http.native_ca) if config.http.native_ca else None
        self._timeout_ms = max(1, config.http.operation_timeout_ms // 2)

    @asynccontextmanager
    async def client(self, login: Login | None, peer: str) -> AsyncIterator[Client]:
        """Ask for a user who was let in, or for nobody in particular. Raises MillraceError."""
        async with self._dialled(login, peer) as dial, Client(dial, link=self._terms(login)) as client:
            yield client

    @asynccontextmanager
    async def producer(self, login: Login | None, peer: str) -> AsyncIterator[Producer]:
        """The same, to append; who has publishers wait refuses. Raises MillraceError."""
        within_ms = self._timeout_ms
        async with (
            self._dialled(login, peer) as dial,
            Producer(
                dial,
                link=self._terms(login),
                delivery_timeout_ms=within_ms,
                max_block_ms=within_ms,
                wait_while_blocked=False,
            ) as producer,
        ):
            yield producer

    def _terms(self, login: Login | None) -> LinkConfig:
        # Here nobody looks at the password, other brokers do.
        credentials = None if login is None else (login.user, (login.password or b"").decode("utf-8", "replace"))
        return LinkConfig(credentials=credentials, tls=self._tls, request_timeout_ms=self._timeout_ms)

    @asynccontextmanager
    async def _dialled(self, login: Login | None, peer: str) -> AsyncIterator[Dial]:
        """What makes connections, which end with the block."""

        def welcome(user: str, password: bytes | None, peer: str) -> bool:
            return login is not None and user == login.user

        def adapter(outbox: SocketOutbox, peer: str, certificate_name: str | None) -> NativeAdapter:
            return NativeAdapter(
                self.broker,
                outbox,
                peer=peer,
                clock=trio.current_time,
                config=self._config.native,
                authenticate=welcome,
                door="native" if self._tls is None else "natives",
            )

        failure: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def dial() -> trio.SocketStream:
                ours, theirs = socket.socketpair()
                theirs.setblocking(False)
                connection = Connection(theirs, peer, NAME, self.shell, adapter)
                nursery.start_soon(connection.run)
                return trio.SocketStream(trio.socket.from_stdlib_socket(ours))

            try:
                yield dial
            except Exception as error:  # as it is, not in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
