"""The connection to etcd: its JSON gateway over HTTP, with httpx (the extra `cluster`).

Why so: httpx runs under trio, is pure Python, well kept, and streams. The gRPC clients for Python bring threads or an
event loop of their own.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import trio

from core_log.metadata.etcd_client import Unreachable
from core_log.metadata.etcd_wire import EtcdError, parse_error
from gateway.tls import reason_of

_CONNECT_TIMEOUT_S = 2.0
_TEXT_BYTES = 256


class _Connections:
    """Those that were made on the same terms."""

    def __init__(self, context: ssl.SSLContext | None, timeout: httpx.Timeout) -> None:
        self.context = context
        self.transport = httpx.AsyncHTTPTransport(verify=context or False, trust_env=False)
        self.client = httpx.AsyncClient(transport=self.transport, timeout=timeout, trust_env=False)
        self.under_way = 0
        """Requests, and the watch for as long as it lasts."""


class HttpTransport:
    """A `Transport` to members at "host:port"; close it with `aclose`. With `tls` they are spoken to over HTTPS, on the
    terms that it gives; once these are others, new connections are made, and what is under way on others goes on.
    """

    def __init__(self, members: Sequence[str], tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self.members = list(members)
        scheme = "http" if tls is None else "https"
        self._tls = tls
        self._timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        self._extensions = {"timeout": self._timeout.as_dict()}
        self._urls = [f"{scheme}://{member}" for member in self.members]
        self._now = _Connections(None if tls is None else tls(), self._timeout)
        self._open = {self._now}

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[_Connections]:
        """Those on the terms of this moment; the others go with what they have under way."""
        if self._tls is not None and self._tls() is not self._now.context:
            self._now = _Connections(self._tls(), self._timeout)
            self._open.add(self._now)
            await self._close_idle()
        here = self._now
        here.under_way += 1
        try:
            yield here
        finally:
            here.under_way -= 1
            if here is not self._now:
                await self._close_idle()

    async def _close_idle(self) -> None:
        with trio.CancelScope(shield=True):
            for one in [one for one in self._open if one is not self._now and not one.under_way]:
                self._open.discard(one)
                await one.client.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        for one in tuple(self._open):
            await one.client.aclose()

    async def call(
        self, member: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """One request. Raises Unreachable, EtcdError."""
        # Without the client, which is made for much more: what is asked each second costs half of it.
        request = httpx.Request(
            "POST",
            self._urls[member] + path,
            content=msgspec.json.encode(body),
            headers=dict(headers),
            extensions=self._extensions,
        )
        try:
            async with self._connections() as here:
                answer = await here.transport.handle_async_request(request)
                data = await answer.aread()
        except httpx.TransportError as error:
            raise self._unreachable(member, error) from error
        decoded = _decoded(data)
        if answer.status_code != httpx.codes.OK or not isinstance(decoded, dict):
            raise _refusal(data, answer.status_code)
        return decoded

    @asynccontextmanager
    async def stream(
        self, member: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        """A request that is answered line by line. Entering and iterating raise Unreachable, EtcdError."""
        try:
            async with (
                self._connections() as here,
                here.client.stream(
                    "POST", self._urls[member] + path, content=msgspec.json.encode(body), headers=dict(headers)
                ) as answer,
            ):
                if answer.status_code != httpx.codes.OK:
                    raise _refusal(await answer.aread(), answer.status_code)
                yield self._lines(member, answer)
        except httpx.TransportError as error:
            raise self._unreachable(member, error) from error

    async def _lines(self, member: int, answer: httpx.Response) -> AsyncIterator[Mapping[str, Any]]:
        try:
            async for line in answer.aiter_lines():
                if line:
                    decoded = _decoded(line)
                    if not isinstance(decoded, dict):
                        raise EtcdError(2, f"etcd at {self.members[member]} sent what is not JSON")
                    yield decoded
        except httpx.TransportError as error:
            raise self._unreachable(member, error) from error

    def _unreachable(self, member: int, error: httpx.TransportError) -> Unreachable:
        sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol)
        return Unreachable(f"etcd at {self.members[member]} cannot be reached: {_why(error)}", sent=sent)


def _why(error: BaseException) -> str:
    """What is wrong with a connection; httpx says nothing of what TLS found."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return f"TLS: {reason_of(cause)}"
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def _refusal(data: bytes, status: int) -> EtcdError:
    """What an answer says that is no success: in JSON, or as text where etcd's HTTP server itself refuses."""
    decoded = _decoded(data)
    return parse_error(
        " ".join(data[:_TEXT_BYTES].decode(errors="replace").split()) if decoded is None else decoded, status
    )


def _decoded(data: bytes | str) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
