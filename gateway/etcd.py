"""The connection to etcd: its JSON gateway over HTTP, with httpx (the extra `cluster`).

Why so: httpx runs under trio, is pure Python, well kept, and streams. The gRPC clients for Python bring threads or an
event loop of their own.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from core_log.metadata.etcd_client import Unreachable
from core_log.metadata.etcd_wire import EtcdError, parse_error

_CONNECT_TIMEOUT_S = 2.0


class HttpTransport:
    """A `Transport` to members at "host:port"; close it with `aclose`. With `tls` they are spoken to over HTTPS."""

    def __init__(self, members: Sequence[str], tls: ssl.SSLContext | None = None) -> None:
        self.members = list(members)
        scheme = "http" if tls is None else "https"
        self._transport = httpx.AsyncHTTPTransport(verify=tls if tls is not None else False, trust_env=False)
        timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        self._client = httpx.AsyncClient(transport=self._transport, timeout=timeout, trust_env=False)
        self._extensions = {"timeout": timeout.as_dict()}
        self._urls = [f"{scheme}://{member}" for member in self.members]

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

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
            answer = await self._transport.handle_async_request(request)
            decoded = _decoded(await answer.aread())
        except httpx.TransportError as error:
            raise self._unreachable(member, error) from error
        if answer.status_code != httpx.codes.OK or not isinstance(decoded, dict):
            raise parse_error(decoded, answer.status_code)
        return decoded

    @asynccontextmanager
    async def stream(
        self, member: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        """A request that is answered line by line. Entering and iterating raise Unreachable, EtcdError."""
        try:
            async with self._client.stream(
                "POST", self._urls[member] + path, content=msgspec.json.encode(body), headers=dict(headers)
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise parse_error(_decoded(await answer.aread()), answer.status_code)
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
        return Unreachable(
            f"etcd at {self.members[member]} cannot be reached: {error or type(error).__name__}", sent=sent
        )


def _decoded(data: bytes | str) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
