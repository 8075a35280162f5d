"""Asks the members of an etcd one after the other until one answers; sockets are behind `Transport`.

1. A request goes to the member that answered last. One that does not answer in time, has no leader, no vote yet (a
   learner) or cannot be reached makes the next one the member in use.
2. A request whose answer was lost may have been carried out: `Unreachable.sent` says so, and whoever asked decides.
3. With a user there is a token, asked for when there is none and when etcd wants another: by one request for all, and
   once a second where the password is refused, as etcd works long on each. Where users are not enabled (yet, or any
   more) there is none, until etcd wants one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import trio

from core_log.metadata import etcd_wire as wire
from core_log.metadata.etcd_wire import EtcdError


class Unreachable(Exception):
    """A member does not answer. `sent`: it may have got the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Transport(Protocol):
    """JSON there and back, to members that are named by their place in `members`."""

    @property
    def members(self) -> Sequence[str]:
        """The addresses, for messages."""

    async def call(
        self, member: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """One request. Raises Unreachable, EtcdError."""

    def stream(
        self, member: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[Mapping[str, Any]]]:
        """A request that is answered line by line. Entering and iterating raise Unreachable, EtcdError."""


class EtcdClient:
    """See the module."""

    def __init__(
        self, transport: Transport, *, user: str = "", password: str = "", attempt_timeout_s: float = 2.0
    ) -> None:
        self.transport = transport
        self.member = 0
        self._user = user
        self._password = password
        self._attempt_timeout_s = attempt_timeout_s
        self._token: str | None = None
        """Empty where etcd has no users."""
        self._asking = trio.Lock()
        self._refused: tuple[EtcdError, float] | None = None
        """Why the password was refused last, and until when that is the answer."""

    @property
    def address(self) -> str:
        """Of the member in use."""
        return self.transport.members[self.member]

    def next_member(self, failed: int) -> None:
        """Use another one than that which failed."""
        if self.member == failed:
            self.member = (failed + 1) % len(self.transport.members)

    async def attempt(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Mapping[str, Any]:
        """Ask one member, once; if it fails the next attempt goes to another. Raises Unreachable, EtcdError."""
        member, timeout_s = self.member, timeout_s or self._attempt_timeout_s
        try:
            with trio.fail_after(timeout_s):
                headers = await self.headers()
                try:
                    return await self.transport.call(member, path, body, headers)
                except EtcdError as error:
                    if not self.wants_token(error, headers):
                        raise
                    if headers.get("Authorization", "") == self._token:
                        self._token = None
                    return await self.transport.call(member, path, body, await self.headers())
        except trio.TooSlowError:
            self.next_member(member)
            raise Unreachable(
                f"etcd at {self.transport.members[member]} does not answer within {timeout_s:g} s",
                sent=True,
            ) from None
        except Unreachable:
            self.next_member(member)
            raise
        except EtcdError as error:
            if error.is_of_learner:
                self.next_member(member)
                raise Unreachable(f"etcd at {self.transport.members[member]} refuses: {error}", sent=False) from error
            if error.may_have_happened:
                self.next_member(member)
            raise

    async def headers(self) -> dict[str, str]:
        """Those of a request, with a token if there is a user. Raises Unreachable, EtcdError."""
        if not self._user:
            return {}
        token = self._token
        if token is None:
            async with self._asking:
                token = self._token if self._token is not None else await self._ask_token()
        return {"Authorization": token} if token else {}

    async def _ask_token(self) -> str:
        if self._refused is not None and trio.current_time() < self._refused[1]:
            raise EtcdError(self._refused[0].code, str(self._refused[0]))
        asked = wire.authenticate(self._user, self._password)
        try:
            self._token = token = wire.parse_token(await self.transport.call(self.member, wire.AUTHENTICATE, asked, {}))
        except EtcdError as error:
            if error.has_no_users:
                self._token = ""
                return ""
            if not (error.may_have_happened or error.is_of_learner):
                self._refused = error, trio.current_time() + _REFUSED_S
            raise
        return token

    def wants_token(self, error: Exception, headers: Mapping[str, str] | None = None) -> bool:
        """Whether another token may help, where a request with these headers, or those of now, was refused. To an etcd
        with client certificates who has no token is a user without a name, who may do nothing once there are users.
        """
        if not self._user or not isinstance(error, EtcdError):
            return False
        had_none = self._token == "" if headers is None else not headers
        return error.wants_token or (had_none and error.is_denied)

    def forget_token(self) -> None:
        """The next request asks for another."""
        self._token = None

    async def read(self, path: str, body: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Ask until somebody answers. For what may be carried out twice. Raises Unreachable, EtcdError."""
        until = trio.current_time() + timeout_s
        while True:
            try:
                return await self.attempt(path, body)
            except Unreachable:
                if trio.current_time() >= until:
                    raise
            except EtcdError as error:
                if not error.may_have_happened or trio.current_time() >= until:
                    raise
            await trio.sleep(PAUSE_S)


_REFUSED_S = 1.0
PAUSE_S = 0.1
"""Between one attempt that failed and the next."""
