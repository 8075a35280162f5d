"""Users, their passwords and tags, and what they may do: the one table that every door asks.

1. Everything here is in the catalog and durable before it counts, whoever wrote it. What changes counts at once, for
   connections that are there as well: `Grants` are told, and whoever listens to `user_deleted` ends the connections of
   a user who is gone.
2. Users of the configuration (`configured`) are there without an entry: with the password it gives, the tag
   `administrator`, and all permissions in every virtual host. An entry of the same name counts instead, also one that
   says that the user was deleted, and so does a permission that was set or cleared for one virtual host.
3. Names and rules are checked when they are set; a change that cannot be is refused as a whole.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import trio

from core_log.errors import Conflict
from routing.access import scram
from routing.access.grants import EVERYTHING, ExchangeKind, Grants, Permission, TopicPermission
from routing.access.passwords import Passwords
from routing.access.scram import Credential
from routing.commits import storage_errors
from routing.errors import (
    BrokerError,
    InvalidArgument,
    LimitExceeded,
    NoPermission,
    NotAllowed,
    NotFound,
    PreconditionFailed,
)
from routing.name_rules import InvalidExpression, NameRule
from routing.topology.entries import Entry

if TYPE_CHECKING:
    from routing.topology.topology import Topology

logger = logging.getLogger(__name__)

TAGS = ("administrator", "monitoring", "policymaker", "management", "impersonator")
"""What a user may be besides a client; the words are RabbitMQ's. `administrator` is needed for administration."""

USERS_MAX = 10_000
NAME_BYTES_MAX = 255
PASSWORD_BYTES_MAX = 1024
NO_PASSWORD = "!"
"""The hash of a user whom no password lets in."""
_SECRET = ("secret", "scram")
EXPRESSION_LENGTH_MAX = 16384

_Place = tuple[str, str]
"""Virtual host and user."""


class User(NamedTuple):
    """A user. `hash` is None for one of the configuration, whose password is compared as it is."""

    name: str
    tags: tuple[str, ...]
    hash: str | None
    password: str | None = None
    scram: Mapping[str, Credential | None] = {}
    """What is kept for SCRAM, by mechanism; None where somebody has taken it away."""


class Rights:
    """See the module; one for a broker."""

    def __init__(
        self, topology: Topology, configured: Mapping[str, str], *, kind_of: ExchangeKind, scram_iterations: int
    ) -> None:
        self.user_deleted: Callable[[str], None] = lambda user: None
        self._catalog = catalog = topology.catalog
        self._kind_of = kind_of
        self._vhosts: Mapping[str, object] = topology.vhosts
        self._scram_iterations = scram_iterations
        self._completing: set[str] = set()
        """Users for whom is being made what is not there yet."""
        self._made: dict[tuple[str, str], Credential] = {}
        """Credentials of users of the configuration."""
        self._secret: bytes | None = None
        self._passwords = Passwords()
        self._changing = trio.Lock()
        self._all_grants: WeakSet[Grants] = WeakSet()
        self._shared: dict[_Place, Grants] = {}
        self._configured = {
            name: User(name, ("administrator",), None, password) for name, password in configured.items()
        }
        self._users = dict(self._configured)
        self._trusted = set(self._configured)
        """Those of the configuration who may do what was not said otherwise."""
        self._permissions: dict[_Place, Permission | None] = {}
        self._topics: dict[_Place, dict[str, TopicPermission]] = {}
        self._changed: set[_Place] = set()
        """Where rules have changed of which `Grants` were not told yet; without a virtual host, a user's everywhere."""
        appliers = {
            "user": self._apply_user,
            "permission": self._apply_permission,
            "topic-permission": self._apply_topic_permission,
            "secret": self._apply_secret,
        }
        for kind, apply in appliers.items():
            for key, value in catalog.entries(kind):
                apply(Entry(key, value, True))
        self._changed.clear()
        catalog.appliers.update(appliers)
        catalog.applied.append(self._tell)

    def _apply_user(self, entry: Entry) -> None:
        name, value = entry.key[1], entry.value or {}
        if "hash" in value:
            kept = {one: Credential(*said) if said else None for one, said in value.get("scram", {}).items()}
            self._users[name] = User(name, tuple(value["tags"]), value["hash"], scram=kept)
        else:
            self._users.pop(name, None)
        if not value.get("configured"):
            self._trusted.discard(name)
        self._changed.add(("", name))

    def _apply_secret(self, entry: Entry) -> None:
        if entry.key == _SECRET and entry.value is not None:
            self._secret = entry.value["key"]

    def _apply_permission(self, entry: Entry) -> None:
        _, vhost, name = entry.key
        if entry.value is None:
            self._permissions.pop((vhost, name), None)
        else:
            self._permissions[vhost, name] = Permission(**entry.value) if "read" in entry.value else None
        self._changed.add((vhost, name))

    def _apply_topic_permission(self, entry: Entry) -> None:
        _, vhost, name, exchange = entry.key
        there = self._topics.setdefault((vhost, name), {})
        if entry.value is None:
            there.pop(exchange, None)
        else:
            there[exchange] = TopicPermission(**entry.value)
        if not there:
            del self._topics[vhost, name]
        self._changed.add((vhost, name))

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

    def grants(self, name: str, vhost: str = "/", *, client_id: str | None = None) -> Grants:
        """What a user may do in a virtual host; keep it as long as you act for the user.

        `client_id` stands for "{client_id}" in topic permissions. Raises NotAllowed when the user has no permission in
        the virtual host at all, or there is no such virtual host.
        """
        if vhost not in self._vhosts:
            raise NotAllowed(f"vhost {vhost} not found")
        permission = self._permission(vhost, name)
        if permission is None:
            raise NoPermission(f"access to vhost '{vhost}' refused for user '{name}'")
        if client_id is None:
            found = self._shared.get((vhost, name))
            if found is not None:
                return found
        grants = Grants(name, vhost, self._kind_of, {} if client_id is None else {"client_id": client_id})
        grants.set_rules(permission, self._topics.get((vhost, name), {}))
        self._all_grants.add(grants)
        if client_id is None:
            self._shared[vhost, name] = grants
        return grants

    def _permission(self, vhost: str, name: str) -> Permission | None:
        if name not in self._users:
            return None
        default = EVERYTHING if name in self._trusted else None
        return self._permissions.get((vhost, name), default)

    def permissions(self) -> list[tuple[str, str, Permission]]:
        """All (virtual host, user, permission)."""
        places = {place for place, permission in self._permissions.items() if permission is not None}
        places |= {(vhost, name) for name in self._trusted for vhost in self._vhosts}
        found = [(vhost, name, self._permission(vhost, name)) for vhost, name in sorted(places)]
        return [(vhost, name, permission) for vhost, name, permission in found if permission is not None]

    def topic_permissions(self) -> list[tuple[str, str, str, TopicPermission]]:
        """All (virtual host, user, exchange, permission)."""
        return [
            (vhost, name, exchange, permission)
            for (vhost, name), exchanges in sorted(self._topics.items())
            for exchange, permission in sorted(exchanges.items())
        ]

    # --- changing users ----------------------------------------------------------------

    async def add_user(self, name: str, password: bytes, tags: Iterable[str] = ()) -> None:
        """Raises InvalidArgument, PreconditionFailed (there is one), LimitExceeded, StorageUnavailable."""
        self._check_new(name)
        checked = _checked_tags(tags)
        await self._put_user(name, await self._hash(password), checked, await self._scram(password), new=True)

    def _check_new(self, name: str) -> None:
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX or not name.isprintable():
            raise InvalidArgument(f"user name {name!r} is not 1 to {NAME_BYTES_MAX} printable bytes")
        if name in self._users:
            raise PreconditionFailed(f"user '{name}' exists")
        if len(self._users) >= USERS_MAX:
            raise LimitExceeded(f"there are {USERS_MAX} users already")

    async def set_password(self, name: str, password: bytes) -> None:
        """Connections that are there live on. Raises NotFound, InvalidArgument, StorageUnavailable."""
        user = self._known(name)
        await self._put_user(name, await self._hash(password), user.tags, await self._scram(password))

    async def set_tags(self, name: str, tags: Iterable[str]) -> None:
        """Raises NotFound, InvalidArgument, StorageUnavailable."""
        user = self._known(name)
        checked = _checked_tags(tags)
        encoded, kept = user.hash, user.scram
        if user.password is not None:
            password = user.password.encode()
            encoded, kept = await self._hash(password), await self._scram(password)
        assert encoded is not None
        await self._put_user(name, encoded, checked, kept)

    async def set_scram(self, name: str, changes: Mapping[str, Credential | None]) -> None:
        """A password that is known salted only, by mechanism, or None to take away what there is of one. It is the
        user's only password from now on, at every door; a user who is not there is made. Raises InvalidArgument,
        PreconditionFailed, LimitExceeded, StorageUnavailable.
        """
        user = self._users.get(name)
        new = {mechanism: one for mechanism, one in changes.items() if one is not None}
        if user is None:
            self._check_new(name)
        tags = () if user is None else user.tags
        if new:
            best = max(new)
            await self._put_user(name, scram.as_hash(best, new[best]), tags, dict(changes), new=user is None)
        elif user is not None:
            encoded, kept = user.hash, {**user.scram, **changes}
            if user.password is not None:
                encoded = await self._hash(user.password.encode())
                kept = {**await self._scram(user.password.encode()), **changes}
            elif encoded is not None and scram.is_hash(encoded) and not any(kept.values()):
                encoded = NO_PASSWORD
            assert encoded is not None
            await self._put_user(name, encoded, tags, kept)

    async def _complete(self, user: User, password: bytes, lacking: list[str]) -> None:
        """Keep what is not kept yet of a password that has just been shown."""
        if user.name in self._completing:
            return
        self._completing.add(user.name)
        try:
            encoded = await self._hash(password)
            made = await self._passwords.work_out(scram.credentials, password, lacking, self._scram_iterations)
            await self._put_user(user.name, encoded, user.tags, {**user.scram, **made}, instead_of=user)
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

    async def _put_user(
        self,
        name: str,
        encoded: str,
        tags: tuple[str, ...],
        kept: Mapping[str, Credential | None],
        *,
        new: bool = False,
        instead_of: User | None = None,
    ) -> None:
        async with self._changing:
            said = {mechanism: list(one) if one is not None else None for mechanism, one in kept.items()}
            configured = not new and name in self._trusted
            value = {"hash": encoded, "tags": list(tags), "configured": configured, "scram": said}
            if new and name in self._users:
                raise PreconditionFailed(f"user '{name}' exists")
            if not new:
                user = self._known(name)
                if instead_of is not None and user is not instead_of:
                    return
            await self._write([Entry(("user", name), value, True)])

    async def delete_user(self, name: str) -> None:
        """With all permissions; the user's connections end. Raises NotFound, StorageUnavailable."""
        async with self._changing:
            self._known(name)
            value = {"deleted": True} if name in self._configured else None
            places = [place for place in {*self._permissions, *self._topics} if place[1] == name]
            entries = [Entry(("user", name), value, True)]
            entries += [Entry(("permission", *place), None, True) for place in places]
            entries += [
                Entry(("topic-permission", *place, exchange), None, True)
                for place in places
                for exchange in self._topics.get(place, ())
            ]
            await self._write(entries)

    def _known(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise NotFound(f"no user '{name}'")
        return user

    # --- changing permissions ----------------------------------------------------------

    async def set_permission(self, vhost: str, name: str, permission: Permission) -> None:
        """Raises NotFound (user or virtual host), InvalidArgument, StorageUnavailable."""
        _check_expressions(permission)
        await self._change_permission(vhost, name, permission)

    async def change_permission(self, vhost: str, name: str, change: Callable[[Permission], Permission]) -> None:
        """What a user may do becomes what `change` makes of it. Raises NotFound, InvalidArgument, PreconditionFailed
        (somebody else changed it meanwhile), StorageUnavailable, and what `change` raises.
        """
        async with self._changing:
            self._known_place(vhost, name)
            before = self._permission(vhost, name)
            permission = change(before or Permission("", "", ""))
            _check_expressions(permission)
            if permission != before:
                await self._write([Entry(("permission", vhost, name), permission._asdict(), True)])

    async def clear_permission(self, vhost: str, name: str) -> None:
        """The user has none left in the virtual host. Raises NotFound, StorageUnavailable."""
        await self._change_permission(vhost, name, None)

    async def _change_permission(self, vhost: str, name: str, permission: Permission | None) -> None:
        async with self._changing:
            self._known_place(vhost, name)
            value: dict[str, Any] | None = None
            if permission is not None:
                value = permission._asdict()
            elif name in self._trusted:
                value = {"cleared": True}
            await self._write([Entry(("permission", vhost, name), value, True)])

    async def set_topic_permission(self, vhost: str, name: str, exchange: str, permission: TopicPermission) -> None:
        """Raises NotFound (user or virtual host), InvalidArgument, StorageUnavailable."""
        _check_expressions(permission)
        if len(exchange.encode()) > NAME_BYTES_MAX:
            raise InvalidArgument(f"an exchange's name has at most {NAME_BYTES_MAX} bytes")
        async with self._changing:
            self._known_place(vhost, name)
            await self._write([Entry(("topic-permission", vhost, name, exchange), permission._asdict(), True)])

    async def clear_topic_permissions(self, vhost: str, name: str, exchange: str | None = None) -> None:
        """Those for one exchange, or all. Raises NotFound, StorageUnavailable."""
        async with self._changing:
            self._known_place(vhost, name)
            there = self._topics.get((vhost, name), {})
            gone = [one for one in there if exchange is None or one == exchange]
            await self._write([Entry(("topic-permission", vhost, name, one), None, True) for one in gone])

    @asynccontextmanager
    async def without(self, vhost: str) -> AsyncIterator[list[Entry]]:
        """What is to be written when a virtual host goes, and with it what anybody might do there; nobody else changes
        permissions within the block.
        """
        async with self._changing:
            places = sorted(place for place in {*self._permissions, *self._topics} if place[0] == vhost)
            yield [Entry(("permission", *place), None, True) for place in places] + [
                Entry(("topic-permission", *place, exchange), None, True)
                for place in places
                for exchange in self._topics.get(place, ())
            ]

    def _known_place(self, vhost: str, name: str) -> None:
        self._known(name)
        if vhost not in self._vhosts:
            raise NotFound(f"vhost {vhost} not found")

    async def _write(self, entries: list[Entry]) -> None:
        with storage_errors():
            try:
                await self._catalog.change(entries)
            except Conflict:
                raise PreconditionFailed("users or permissions were changed by others meanwhile; try again") from None

    def _tell(self) -> None:
        """Tell `Grants`, and whoever ends connections, what has changed."""
        if not self._changed:
            return
        changed, self._changed = self._changed, set()
        for grants in list(self._all_grants):
            place = (grants.vhost, grants.user)
            if place in changed or ("", grants.user) in changed:
                permission = self._permission(*place)
                grants.set_rules(permission, self._topics.get(place, {}))
                if permission is None:
                    self._shared.pop(place, None)
        for vhost, name in changed:
            if not vhost and name not in self._users:
                self.user_deleted(name)


def _checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    checked = tuple(dict.fromkeys(tags))
    for tag in checked:
        if tag not in TAGS:
            raise InvalidArgument(f"there is no tag '{tag}'; the tags are {', '.join(TAGS)}")
    return checked


def _check_expressions(expressions: Iterable[str]) -> None:
    for expression in expressions:
        if len(expression) > EXPRESSION_LENGTH_MAX:
            raise InvalidArgument(f"a regular expression has at most {EXPRESSION_LENGTH_MAX} characters")
        try:
            NameRule(expression)
        except InvalidExpression as error:
            raise InvalidArgument(f"{expression!r} is no regular expression: {error}") from None
