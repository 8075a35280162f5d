"""The doors for HTTP itself: `GET /metrics` in Prometheus' text format, `GET /healthz`.

1. Who asks for figures is a user with the tag `monitoring` or `administrator`, by name and password (RFC 7617) or by a
   certificate. Clients on this machine need none (`http.loopback_without_user`), and nobody needs one for the health.
2. One asks for figures at a time, the others wait for their turn: `http.connections_max` are answered at a time at all.
"""

from __future__ import annotations

import base64
import binascii
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING

import trio

from gateway.errors import Refused
from gateway.http import Exchange, Headers, Request
from gateway.metrics import Metrics
from protocols.peers import is_loopback, is_welcome
from routing.administration.operations import LOOKS, require_tag
from routing.errors import AccessRefused

if TYPE_CHECKING:
    from gateway.authentication import Authenticate
    from gateway.config import HttpConfig
    from gateway.connection import Shell
    from gateway.tls import TlsLayer
    from routing.broker import Broker

_METHODS = ("GET", "HEAD")
_ASK = ("WWW-Authenticate", 'Basic realm="millrace", charset="UTF-8"')

Page = tuple[HTTPStatus, Headers, bytes]


class WebPages:
    """What there is, and who gets it."""

    def __init__(self, broker: Broker, shell: Shell, config: HttpConfig, authenticate: Authenticate) -> None:
        self._broker = broker
        self._config = config
        self._authenticate = authenticate
        self._metrics = Metrics(broker, shell, config.series_max)
        self._one = trio.Lock()
        self._open = 0

    async def answer(self, sock: socket.socket, tls: TlsLayer | None, peer: str, certificate_name: str | None) -> None:
        """Answer one request. Raises Refused when it was answered so, PeerGone."""
        exchange = Exchange(sock, tls, head_bytes_max=self._config.head_bytes_max)

        async def respond(request: Request) -> None:
            if exchange.has_body():
                raise Refused(HTTPStatus.BAD_REQUEST, "a request here has no body")
            await exchange.answer(*await self._page(request, peer, certificate_name))

        if self._open >= self._config.connections_max:
            refused = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at a time", [("Retry-After", "1")])
            await exchange.turn_away(refused)
            raise refused
        self._open += 1
        try:
            await exchange.take(respond, self._config.request_timeout_ms)
            await exchange.finish()
        finally:
            self._open -= 1

    async def _page(self, request: Request, peer: str, certificate_name: str | None) -> Page:
        """Raises Refused."""
        if request.path not in ("/metrics", "/healthz"):
            raise Refused(HTTPStatus.NOT_FOUND, "there are /metrics and /healthz")
        if request.method not in _METHODS:
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "this is asked for with GET", [("Allow", ", ".join(_METHODS))])
        if request.path == "/healthz":
            return self._health()
        await self._require_rights(request, peer, certificate_name)
        async with self._one:
            headers, body = await self._metrics.page(
                ",".join(request.headers.get("accept", ())), request.tokens("accept-encoding")
            )
        return HTTPStatus.OK, headers, body

    def _health(self) -> Page:
        """Whether clients are served: by a member of a cluster, whether it has its lease. Raises Refused."""
        cluster = self._broker.cluster
        if cluster is not None and cluster.has_no_lease:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "this broker is not registered in its cluster now")
        return HTTPStatus.OK, [("Content-Type", "text/plain; charset=utf-8")], b"ok\n"

    async def _require_rights(self, request: Request, peer: str, certificate_name: str | None) -> None:
        """Raises Refused."""
        given = request.first("authorization")
        if given is not None:
            user, password = _credentials(given)
        elif certificate_name is not None:
            user, password = certificate_name, None
        elif self._config.loopback_without_user and is_loopback(peer):
            return
        else:
            raise Refused(HTTPStatus.UNAUTHORIZED, "a user is needed", [_ASK])
        if not await is_welcome(self._authenticate, user, password, peer):
            raise Refused(HTTPStatus.UNAUTHORIZED, "user or password is wrong", [_ASK])
        try:
            require_tag(self._broker, user, "metrics", LOOKS)
        except AccessRefused as error:
            raise Refused(HTTPStatus.FORBIDDEN, str(error)) from None


def _credentials(given: str) -> tuple[str, bytes]:
    """User and password (RFC 7617 section 2). Raises Refused."""
    scheme, _, encoded = given.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise ValueError
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        if not colon:
            raise ValueError
        return name.decode(), password
    except (binascii.Error, ValueError):
        raise Refused(HTTPStatus.UNAUTHORIZED, "Authorization: Basic with user and password", [_ASK]) from None
