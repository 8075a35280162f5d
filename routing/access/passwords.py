"""Passwords: kept as salted hashes, checked without holding up the event loop.

1. A hash is Argon2id (RFC 9106) and takes tens of milliseconds and megabytes on purpose, so it is worked out in a
   thread, by few at once.
2. What was right is remembered as a keyed hash that only this process can make, so that ten thousand clients that come
   back do that work once; those who come at the same time with the same password wait for the same answer.
3. A wrong password costs the same whether the user is known or not. What was wrong is not remembered.
4. Where a password was only ever given salted for SCRAM (`scram.py`) it is compared with that. That takes less, so a
   wrong one is compared with a hash as well.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, TypeVar

import trio
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import ARGON2_VERSION

from core_log.threads import in_thread
from routing.access import scram

REMEMBERED_MAX = 10_000
_THREADS = 2
_T = TypeVar("_T")

# OWASP's second choice: 19 MiB, two passes. The library's default takes 64 MiB a login.
_hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


def _hash_of_nothing() -> str:
    """What costs as much to compare with as any hash and is one of no password that anybody knows."""
    settings = f"m={_hasher.memory_cost},t={_hasher.time_cost},p={_hasher.parallelism}"
    salt, value = (
        b64encode(secrets.token_bytes(size)).rstrip(b"=").decode() for size in (_hasher.salt_len, _hasher.hash_len)
    )
    return f"$argon2id$v={ARGON2_VERSION}${settings}${salt}${value}"


_DUMMY = _hash_of_nothing()
"""What the passwords of unknown users are compared with."""


def _matches(encoded: str, password: bytes) -> bool:
    if scram.is_hash(encoded):
        return scram.matches(encoded, password) or _matches(_DUMMY, password)
    try:
        return _hasher.verify(encoded, password)
    except InvalidHashError:  # of who has no password
        return _matches(_DUMMY, password)
    except VerificationError:
        return False


class _Check:
    """A comparison under way, and its result; None if whoever made it was cancelled."""

    __slots__ = ("done", "right")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.right: bool | None = None


class Passwords:
    """See the module."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._threads = trio.CapacityLimiter(_THREADS)
        self._right: dict[bytes, None] = {}
        self._checks: dict[bytes, _Check] = {}

    async def hash(self, password: bytes) -> str:
        """What is kept of a password."""
        return await self.work_out(_hasher.hash, password)

    async def work_out(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Do in a thread what takes so long."""
        return await in_thread(function, *arguments, limiter=self._threads)

    async def verify(self, encoded: str | None, password: bytes) -> bool:
        """Whether `encoded` was made from this password; None for a user who is not known."""
        digest = self._digest(encoded or _DUMMY, password)
        if digest in self._right:
            return True
        while (there := self._checks.get(digest)) is not None:
            await there.done.wait()
            if there.right is not None:
                return there.right
        check = self._checks[digest] = _Check()
        try:
            right = await self.work_out(_matches, encoded or _DUMMY, password)
            check.right = right and encoded is not None
        finally:
            del self._checks[digest]
            check.done.set()
        if check.right:
            if len(self._right) >= REMEMBERED_MAX:
                self._right.clear()
            self._right[digest] = None
        return check.right

    def _digest(self, encoded: str, password: bytes) -> bytes:
        # The hash is part of it: a changed password has another.
        return blake2b(encoded.encode() + b"\0" + password, key=self._key, digest_size=32).digest()
