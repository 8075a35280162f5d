"""Listening sockets: opening them, and the task that accepts clients.

1. `open_listener` binds, `Listener.run` listens: a port that is taken is known before the engine is opened, and nobody
   can connect before it is ready.
2. All waiting clients are accepted at once, up to `_ACCEPT_AT_ONCE`. One above `connections_max` is closed at once.
3. With TLS, a WebSocket or a proxy in front a client counts from the first byte on, but is a connection only when the
   handshakes are complete. One that is answered in HTTP never is, and counts until it is answered.
4. When the process has no more file descriptors, accepting pauses; clients wait in the kernel's queue. Of few some are
   kept from clients: logs and links to other brokers need them, and what is confirmed must not hang on who is idle.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
import trio

from gateway.config import WebSocketConfig
from gateway.connection import Connection, MakeAdapter, Shell
from gateway.errors import PeerGone, Refused, StartError
from gateway.proxy_header import NoProxyHeader, Proxies, take_header
from gateway.sockets import set_up
from gateway.tls import HandshakeFailed, Terms, TlsLayer, handshake

log = structlog.get_logger(__name__)

_ACCEPT_AT_ONCE = 64
_PAUSE_S = 0.1

AnswerHttp = Callable[[socket.socket, TlsLayer | None, str, str | None], Awaitable[None]]
"""Answers a request: from a client's socket, its address, what its certificate calls it. Raises Refused, PeerGone."""
_KERNEL_QUEUE = 4096
_KEPT_PART = 8
"""No more than such a part of the process's descriptors is kept from clients,"""
_KEPT_MAX = 64
"""and no more than so many."""
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """A bound socket and the door behind it. With `terms` its clients speak TLS, with `web` in a WebSocket, with
    `proxies` a PROXY header comes before all that.
    """

    def __init__(
        self,
        door: str,
        sock: socket.socket,
        terms: Terms | None = None,
        web: WebSocketConfig | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        self.door = door
        self.answer: AnswerHttp | None = None
        """What takes clients instead of an adapter."""
        self.refused: Callable[[str, str], None] | None = None
        """Told of the address of a client with which TLS failed, and why, instead of the log."""
        self._socket = sock
        self._terms = terms
        self._web = web
        if web is not None:
            from gateway.websocket import upgrade  # some megabytes that only such a door needs

            self._upgrade = upgrade
        self._proxies = proxies
        self._short = False
        """It could not accept for want of descriptors, which was said."""
        self._taken = 0
        """The descriptor that came last: all below it were taken then."""
        self.keeps_some = True
        """Rule 4 is for its clients, too."""

    @property
    def address(self) -> str:
        """Where it listens, as "host:port"."""
        return format_address(self._socket.getsockname())

    @property
    def port(self) -> int:
        """The port, also when any free one was asked for."""
        port: int = self._socket.getsockname()[1]
        return port

    def listen(self) -> None:
        """Let clients connect. Raises StartError."""
        try:
            self._socket.listen(_KERNEL_QUEUE)
        except OSError as error:
            raise cannot_listen(self.door, self.address, error) from None

    async def run(self, shell: Shell, make_adapter: MakeAdapter | None, spawn: Callable[..., Any]) -> None:
        """Accept until `close`; every client gets a task of its own through `spawn`."""
        while self._socket.fileno() >= 0:
            try:
                await trio.lowlevel.wait_readable(self._socket)
            except trio.ClosedResourceError:
                break
            taken_max = self._taken_max()
            for number in range(_ACCEPT_AT_ONCE):
                try:
                    if self._taken >= taken_max:
                        if number:
                            break  # whether somebody else waits is not known
                        self._require_free(taken_max)
                    client, address = self._socket.accept()
                    self._taken = client.fileno()
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno in _OUT_OF_RESOURCES:
                        if not self._short:
                            log.error("cannot accept", door=self.door, error=error.strerror)
                        self._short = True
                        await trio.sleep(_PAUSE_S)
                        break
                    continue  # the client is gone before it was accepted
                if self._short:
                    self._short = False
                    log.warning("accepts again", door=self.door)
                self._welcome(client, address, shell, make_adapter, spawn)

    def _taken_max(self) -> float:
        """The first descriptor that is kept from clients."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if not self.keeps_some or limit == resource.RLIM_INFINITY:
            return math.inf
        return limit - min(_KEPT_MAX, limit // _KEPT_PART)

    def _require_free(self, taken_max: float) -> None:
        """Look for a descriptor that is not kept. Raises OSError."""
        self._taken = os.dup(self._socket.fileno())  # the kernel gives the lowest that is free
        os.close(self._taken)
        if self._taken >= taken_max:
            raise OSError(errno.EMFILE, "too many connections for the open files that this process may have")

    def _welcome(
        self,
        client: socket.socket,
        address: Any,
        shell: Shell,
        make_adapter: MakeAdapter | None,
        spawn: Callable[..., Any],
    ) -> None:
        peer = format_address(address)
        if len(shell.connections) + len(shell.handshakes) >= shell.limits.connections_max:
            client.close()
            log.warning("too many connections", door=self.door, peer=peer, connections_max=shell.limits.connections_max)
            return
        set_up(client)
        if any(one is not None for one in (self._terms, self._web, self._proxies, self.answer)):
            scope = trio.CancelScope()
            shell.handshakes.add(scope)
            spawn(self._prepare, client, address, shell, make_adapter, scope)
            return
        connection = self._connection(client, peer, shell, make_adapter)
        if connection is not None:
            spawn(connection.run)

    def _connection(
        self, client: socket.socket, peer: str, shell: Shell, make_adapter: MakeAdapter | None, **secured: Any
    ) -> Connection | None:
        assert make_adapter is not None  # only doors that answer in HTTP have none
        try:
            return Connection(client, peer, self.door, shell, make_adapter, **secured)
        except Exception as error:
            client.close()
            log.error("connection failed", door=self.door, peer=peer, exc_info=error)
            return None

    async def _prepare(
        self,
        client: socket.socket,
        address: Any,
        shell: Shell,
        make_adapter: MakeAdapter | None,
        scope: trio.CancelScope,
    ) -> None:
        """Hear whose connection it is, agree on TLS, and on a WebSocket, with a client, and serve it; or answer it in
        HTTP.
        """
        terms, ready, secured, peer = self._terms, False, {}, format_address(address)
        try:
            with scope:
                tls = name = dialled = None
                if self._proxies is not None:
                    header = await take_header(client, address[0], self._proxies)
                    peer, dialled = format_address(header.source or address), header.destination
                if terms is not None:
                    tls = await self._secure(client, terms)
                    name = terms.peer_name(tls)
                if self.answer is not None:
                    await self.answer(client, tls, peer, name)
                    return
                web = None
                if self._web is not None:
                    web = await self._upgrade(client, tls, self._web)
                secured = {"tls": tls, "certificate_name": name, "web": web, "dialled": dialled}
                ready = not scope.cancel_called  # by who says goodbye to those who are connections already
        except HandshakeFailed as error:
            if self.refused is not None:
                self.refused(peer, str(error))
            else:
                log.info("TLS handshake failed", door=self.door, peer=peer, reason=str(error))
        except NoProxyHeader as error:
            log.warning("PROXY header refused", door=self.door, peer=peer, reason=str(error))
        except Refused as error:
            log.info("request refused", door=self.door, peer=peer, reason=str(error))
        except PeerGone:
            log.debug("nothing asked for", door=self.door, peer=peer)
        except Exception as error:
            log.error("connection failed", door=self.door, peer=peer, exc_info=error)
        finally:
            shell.handshakes.remove(scope)
            if not ready:
                client.close()
        if ready:
            connection = self._connection(client, peer, shell, make_adapter, **secured)
            if connection is not None:
                await connection.run()

    async def _secure(self, client: socket.socket, terms: Terms) -> TlsLayer:
        context = terms.next_context()
        try:
            return await handshake(client, context, terms.handshake_timeout_ms)
        except HandshakeFailed as error:
            raise HandshakeFailed(terms.refusal(context, str(error))) from None

    def close(self) -> None:
        """Stop listening; connections that were accepted live on. Who still waits to be gets an end, not a reset."""
        if self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):
                for _ in range(_KERNEL_QUEUE):  # those who come meanwhile are not waited for
                    self._socket.accept()[0].close()
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def open_listener(
    door: str,
    host: str,
    port: int,
    terms: Terms | None = None,
    web: WebSocketConfig | None = None,
    proxies: Proxies | None = None,
) -> Listener:
    """Bind a door to an address; for `terms`, `web` and `proxies` see `Listener`. Raises StartError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise cannot_listen(door, format_address((host, port)), error) from None
    try:
        sock.setblocking(False)
        if not port:  # any free one may be given to two sockets that both reuse it, until one of them listens
            sock.bind(address)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if port:
            sock.bind(address)
    except OSError as error:
        sock.close()
        raise cannot_listen(door, format_address((host, port)), error) from None
    return Listener(door, sock, terms, web, proxies)


def cannot_listen(door: str, address: str, error: OSError) -> StartError:
    """What to tell the operator."""
    reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return StartError(f"cannot listen on {address} for {door}: {reason}")


def format_address(address: Any) -> str:
    """A socket address as "host:port" or "[host]:port"."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
