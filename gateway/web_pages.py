"""The doors for HTTP itself: the page, `POST /api/NAME`, `GET /metrics` in Prometheus' text format, `GET /healthz` ...

1. Who asks for figures is a user with the tag `monitoring` or `administrator`; who asks for an operation needs what
   that does (`web_api`). `web_login` tells who it is. Nobody needs a user for the health and for the page, which says
   nothing.
2. One asks for figures at a time, the others wait for their turn: `http.connections_max` are answered at a time at all.
3. A browser is told to load nothing from elsewhere, to run no script but the page's own, and to put the page into no
   other one.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

import trio

from gateway.errors import Refused
from gateway.health import HealthChecks
from gateway.http import Exchange, Page, Request
from gateway.web_api import PREFIX, WebApi
from gateway.web_files import WebFiles
from gateway.web_login import Asking, logged_in
from routing.administration.operations import LOOKS, require_tag
from routing.errors import AccessRefused

if TYPE_CHECKING:
    from gateway.authentication import Authenticate
    from gateway.config import Config
    from gateway.connection import Shell
    from gateway.tls import Terms, TlsLayer
    from routing.broker import Broker

_METHODS = ("GET", "HEAD")
_SECURITY = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]


class WebPages:
    """What there is, and who gets it."""

    def __init__(
        self,
        broker: Broker,
        shell: Shell,
        config: Config,
        authenticate: Authenticate,
        terms: Sequence[Terms] = (),
    ) -> None:
        """Raises OSError: `http.native_ca` cannot be read."""
        self._broker = broker
        self._config = config.http
        self._authenticate = authenticate
        self._api = WebApi(broker, shell, config, authenticate)
        self._files = WebFiles()
        self._health = HealthChecks(broker, terms)
        try:
            from gateway.metrics import Metrics

            self._metrics = Metrics(broker, shell, config.http.series_max, terms)
            self._missing = ""
        except ModuleNotFoundError as error:
            self._missing = f"/metrics needs {error.name}: pip install 'millrace[metrics]'"
        self._one = trio.Lock()
        self._open = 0

    async def answer(self, sock: socket.socket, tls: TlsLayer | None, peer: str, certificate_name: str | None) -> None:
        """Answer one request. Raises Refused when it was answered so, PeerGone."""
        config = self._config
        exchange = Exchange(sock, tls, head_bytes_max=config.head_bytes_max, always=_SECURITY)
        asking = Asking(peer, certificate_name, "http" if tls is None else "https")

        async def respond(request: Request) -> None:
            if request.path.startswith(PREFIX):
                page = await self._api.answer(exchange, request, asking)
            else:
                if exchange.has_body():
                    raise Refused(HTTPStatus.BAD_REQUEST, "a request here has no body")
                with trio.fail_after(config.request_timeout_ms / 1000):
                    page = await self._page(request, asking)
            with trio.fail_after(config.request_timeout_ms / 1000):
                await exchange.answer(*page)

        if self._open >= config.connections_max:
            refused = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at a time", [("Retry-After", "1")])
            await exchange.turn_away(refused)
            raise refused
        self._open += 1
        try:
            await exchange.take(respond, config.request_timeout_ms)
            await exchange.finish()
        finally:
            self._open -= 1

    async def _page(self, request: Request, asking: Asking) -> Page:
        """Raises Refused."""
        if request.path != "/metrics" and request.path not in self._health:
            found = self._files.page(request)
        if request.method not in _METHODS:
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "this is asked for with GET", [("Allow", ", ".join(_METHODS))])
        if request.path in self._health:
            return self._health.page(request.path)
        if request.path != "/metrics":
            return found
        await self._require_rights(request, asking)
        if self._missing:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED, self._missing)
        async with self._one:
            headers, body = await self._metrics.page(
                ",".join(request.headers.get("accept", ())), request.tokens("accept-encoding")
            )
        return HTTPStatus.OK, headers, body

    async def _require_rights(self, request: Request, asking: Asking) -> None:
        """Raises Refused."""
        bans = self._broker.bans
        try:
            bans.require_welcome("", "", asking.peer)
            login = await logged_in(request, asking, self._config, self._authenticate)
            if login is None:
                return
            bans.require_welcome("", login.user, asking.peer)
            require_tag(self._broker, login.user, "metrics", LOOKS)
        except AccessRefused as error:
            raise Refused(HTTPStatus.FORBIDDEN, str(error)) from None
