"""Users, their passwords and tags.

1. Everything here is in the catalog and durable before it counts, whoever wrote it.
2. Users of the configuration (`configured`) are there without an entry, with the password it gives and the tag
   `administrator`. An entry of the same name counts instead, also one that says that the user was deleted.
3. A change that cannot be is refused as a whole.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import trio

from core_log.errors import Conflict
from routing.access import scram
from routing.access.passwords import Passwords
from routing.access.scram import Credential
from routing.commits import storage_errors
from routing.errors import BrokerError, InvalidArgument, LimitExceeded, NotFound, PreconditionFailed
from routing.topology.entries import Entry

if TYPE_CHECKING:
    from routing.topology.catalog import Catalog

logger = logging.getLogger(__name__)

TAGS = ("administrator", "monitoring", "policymaker", "management", "impersonator")
"""What a user may be besides a client; the words are RabbitMQ's. `administrator` is needed for administration."""

USERS_MAX = 10_000
NAME_BYTES_MAX = 255
PASSWORD_BYTES_MAX = 1024
NO_PASSWORD = "!"
"""The hash of a user whom no password lets in."""
_SECRET = ("secret", "scram")


class User(NamedTuple):
    """A user. `hash` is None for one of the configuration, whose password is compared as it is."""

    name: str
    tags: tuple[str, ...]
    hash: str | None
    password: str | None = None
    scram: Mapping[str, Credential | None] = {}
    """What is kept for SCRAM, by mechanism; None where somebody has taken it away."""


class Users:
    """See the module. What they may do is in `Rights`, the one object of a broker that has both."""

    def __init__(self, catalog: Catalog, configured: Mapping[str, str], *, scram_iterations: int) -> None:
        self._catalog = catalog
        self._scram_iterations = scram_iterations
        self._completing: set[str] = set()
        """Users for whom is being made what is not there yet."""
        self._made: dict[tuple[str, str], Credential] = {}
        """Credentials of users of the configuration."""
        self._secret: bytes | None = None
        self._passwords = Passwords()
        self._changing = trio.Lock()
        self._configured = {
            name: User(name, ("administrator",), None, password) for name, password in configured.items()
        }
        self._users = dict(self._configured)
        self._trusted = set(self._configured)
        """Those of the configuration who may do what was not said otherwise."""

    def _apply_user(self, entry: Entry) -> None:
        name, value = entry.key[1], entry.value or {}
        if "hash" in value:
            kept = {one: Credential(*said) if said else None for one, said in value.get("scram", {}).items()}
            self._users[name] = User(name, tuple(value["tags"]), value["hash"], scram=kept)
        else:
            self._users.pop(name, None)
        if not value.get("configured"):
            self._trusted.discard(name)

    def _apply_secret(self, entry: Entry) -> None:
        if entry.key == _SECRET and entry.value is not None:
            self._secret = entry.value["key"]

    # --- asking ------------------------------------------------------------------------

    @property
    def users(self) -> list[User]:
        """All users, by name."""
        return [self._users[name] for name in sorted(self._users)]

    def user(self, name: str) -> User | None:
        """One of them, if there is one."""
        return self._users.get(name)

    def is_impersonator(self, name: str) -> bool:
        """Whether a user may publish in the name of others."""
        user = self._users.get(name)
        return user is not None and "impersonator" in user.tags

    async def authenticate(self, name: str, password: bytes) -> bool:
        """Whether this is the password of a user; a wrong one takes as long whether or not there is such a user."""
        user = self._users.get(name)
        if len(password) > PASSWORD_BYTES_MAX:
            return False
        if user is not None and user.password is not None and hmac.compare_digest(user.password.encode(), password):
            return True
        right = await self._passwords.verify(user.hash if user is not None else None, password)
        if right and user is not None and user.hash is not None:
            lacking = [one for one in scram.MECHANISMS if one not in user.scram]
            if lacking or scram.is_hash(user.hash):
                await self._complete(user, password, lacking)
        return right

    def scram_iterations(self, name: str) -> dict[str, int]:
        """By which mechanisms a user can log in, and how often the password is hashed for each."""
        user = self._users.get(name)
        if user is None:
            return {}
        if user.password is not None:
            return dict.fromkeys(scram.MECHANISMS, self._scram_iterations)
        return {mechanism: one.iterations for mechanism, one in user.scram.items() if one is not None}

    async def scram_credential(self, name: str, mechanism: str) -> Credential:
        """What a proof of a user's password is checked with; also of users who are not there, or have none."""
        user = self._users.get(name)
        found = user.scram.get(mechanism) if user is not None else None
        if found is not None:
            return found
        secret = await self._kept_secret()
        if user is None or user.password is None:
            return scram.decoy(mechanism, name, secret, self._scram_iterations)
        made = self._made.get((name, mechanism))
        if made is None:
            salt, password = scram.made_salt(secret, mechanism, name), user.password.encode()
            made = await self._passwords.work_out(scram.credential, mechanism, password, salt, self._scram_iterations)
            self._made[name, mechanism] = made
        return made

    # --- changing ----------------------------------------------------------------------

    async def add_user(self, name: str, password: bytes, tags: Iterable[str] = ()) -> None:
        """Raises InvalidArgument, PreconditionFailed (there is one), LimitExceeded, StorageUnavailable."""
        self._check_new(name)
        checked = _checked_tags(tags)
        await self._add(User(name, checked, await self._hash(password), scram=await self._scram(password)))

    def _check_new(self, name: str) -> None:
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX or not name.isprintable():
            raise InvalidArgument(f"user name {name!r} is not 1 to {NAME_BYTES_MAX} printable bytes")
        if name in self._users:
            raise PreconditionFailed(f"user '{name}' exists")
        if len(self._users) >= USERS_MAX:
            raise LimitExceeded(f"there are {USERS_MAX} users already")

    async def set_password(self, name: str, password: bytes) -> None:
        """Connections that are there live on. Raises NotFound, InvalidArgument, StorageUnavailable."""
        self._known(name)
        encoded, made = await self._hash(password), await self._scram(password)
        await self._change(name, lambda user: user._replace(hash=encoded, password=None, scram=made))

    async def set_tags(self, name: str, tags: Iterable[str]) -> None:
        """Raises NotFound, InvalidArgument, StorageUnavailable."""
        checked = _checked_tags(tags)
        kept = await self._as_kept(self._known(name))
        await self._change(name, lambda user: (user if user.hash is not None else kept)._replace(tags=checked))

    async def set_scram(self, name: str, changes: Mapping[str, Credential | None]) -> None:
        """A password that is known salted only, by mechanism, or None to take away what there is of one. It is the
        user's only password from now on, at every door; a user who is not there is made. Raises InvalidArgument,
        PreconditionFailed, LimitExceeded, StorageUnavailable.
        """
        user = self._users.get(name)
        new = {mechanism: one for mechanism, one in changes.items() if one is not None}
        if user is None:
            self._check_new(name)
        if new:
            best = max(new)
            encoded = scram.as_hash(best, new[best])
            if user is None:
                await self._add(User(name, (), encoded, scram=dict(changes)))
            else:
                await self._change(name, lambda user: user._replace(hash=encoded, password=None, scram=dict(changes)))
        elif user is not None:
            kept = await self._as_kept(user)

            def without(user: User) -> User:
                user = user if user.hash is not None else kept
                left = {**user.scram, **changes}
                gone = user.hash is not None and scram.is_hash(user.hash) and not any(left.values())
                return user._replace(hash=NO_PASSWORD if gone else user.hash, scram=left)

            await self._change(name, without)

    async def _as_kept(self, user: User) -> User:
        """A user as the catalog has one: those of the configuration are not there yet."""
        if user.password is None:
            return user
        password = user.password.encode()
        return user._replace(hash=await self._hash(password), password=None, scram=await self._scram(password))

    async def _complete(self, user: User, password: bytes, lacking: list[str]) -> None:
        """Keep what is not kept yet of a password that has just been shown."""
        if user.name in self._completing:
            return
        self._completing.add(user.name)
        try:
            encoded = await self._hash(password)
            made = await self._passwords.work_out(scram.credentials, password, lacking, self._scram_iterations)
            completed = user._replace(hash=encoded, scram={**user.scram, **made})
            await self._change(user.name, lambda there: completed if there is user else there)
        except BrokerError as error:
            logger.warning("what SCRAM needs of user '%s' is made with the next login: %s", user.name, error)
        finally:
            self._completing.discard(user.name)

    async def _kept_secret(self) -> bytes:
        """See rule 3 of `scram.py`."""
        if self._secret is None:
            made = secrets.token_bytes(32)
            try:
                async with self._changing:
                    if self._secret is None:
                        await self._write([Entry(_SECRET, {"key": made}, True)])
            except PreconditionFailed:  # another broker was faster
                with suppress(BrokerError), storage_errors():
                    await self._catalog.catch_up()
            except BrokerError as error:
                logger.warning("a secret that users who are not there are hidden with is not kept: %s", error)
            if self._secret is None:
                self._secret = made
        return self._secret

    async def _scram(self, password: bytes) -> dict[str, Credential]:
        return await self._passwords.work_out(scram.credentials, password, scram.MECHANISMS, self._scram_iterations)

    async def _hash(self, password: bytes) -> str:
        if not 0 < len(password) <= PASSWORD_BYTES_MAX:
            raise InvalidArgument(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
        return await self._passwords.hash(password)

    async def _add(self, user: User) -> None:
        async with self._changing:
            if user.name in self._users:
                raise PreconditionFailed(f"user '{user.name}' exists")
            await self._put(user, configured=False)

    async def _change(self, name: str, change: Callable[[User], User]) -> None:
        """A user becomes what `change` makes of him as he is when nobody else changes anything."""
        async with self._changing:
            before = self._known(name)
            user = change(before)
            if user is not before:
                await self._put(user, configured=name in self._trusted)

    async def _put(self, user: User, *, configured: bool) -> None:
        assert user.hash is not None
        said = {mechanism: list(one) if one is not None else None for mechanism, one in user.scram.items()}
        value = {"hash": user.hash, "tags": list(user.tags), "configured": configured, "scram": said}
        await self._write([Entry(("user", user.name), value, True)])

    def _known(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise NotFound(f"no user '{name}'")
        return user

    async def _write(self, entries: list[Entry]) -> None:
        with storage_errors():
            try:
                await self._catalog.change(entries)
            except Conflict:
                raise PreconditionFailed("users or permissions were changed by others meanwhile; try again") from None


def _checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    checked = tuple(dict.fromkeys(tags))
    for tag in checked:
        if tag not in TAGS:
            raise InvalidArgument(f"there is no tag '{tag}'; the tags are {', '.join(TAGS)}")
    return checked
