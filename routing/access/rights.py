"""What users may do, and who they are (`users.py`): the one table that every door asks.

1. Everything here is in the catalog and durable before it counts, whoever wrote it. What changes counts at once, for
   connections that are there as well: `Grants` are told, and whoever listens to `user_deleted` ends the connections of
   a user who is gone.
2. Users of the configuration have all permissions in every virtual host, as long as they are there without an entry;
   a permission that was set or cleared for one virtual host counts instead.
3. Names and rules are checked when they are set; a change that cannot be is refused as a whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from routing.access.grants import EVERYTHING, ExchangeKind, Grants, Permission, TopicPermission
from routing.access.users import NAME_BYTES_MAX, Users
from routing.errors import InvalidArgument, NoPermission, NotAllowed, NotFound
from routing.name_rules import InvalidExpression, NameRule
from routing.topology.entries import Entry

if TYPE_CHECKING:
    from routing.topology.topology import Topology

EXPRESSION_LENGTH_MAX = 16384

_Place = tuple[str, str]
"""Virtual host and user."""


class Rights(Users):
    """See the module; one for a broker."""

    def __init__(
        self, topology: Topology, configured: Mapping[str, str], *, kind_of: ExchangeKind, scram_iterations: int
    ) -> None:
        catalog = topology.catalog
        super().__init__(catalog, configured, scram_iterations=scram_iterations)
        self.user_deleted: Callable[[str], None] = lambda user: None
        self._kind_of = kind_of
        self._vhosts: Mapping[str, object] = topology.vhosts
        self._all_grants: WeakSet[Grants] = WeakSet()
        self._shared: dict[_Place, Grants] = {}
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
        super()._apply_user(entry)
        self._changed.add(("", entry.key[1]))

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

    def grants(self, name: str, vhost: str = "/", *, client_id: str | None = None) -> Grants:
        """What a user may do in a virtual host; keep it as long as you act for the user.

        `client_id` is that of an MQTT client, and stands for "{client_id}" in topic permissions. Raises NotAllowed when
        the user has no permission in the virtual host at all, or there is no such virtual host.
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
        grants = Grants(name, vhost, self._kind_of, client_id)
        grants.set_rules(permission, self._topics.get((vhost, name), {}))
        self._all_grants.add(grants)
        if client_id is None:
            self._shared[vhost, name] = grants
        return grants

    def may_enter(self, name: str, vhost: str) -> bool:
        """Whether a user has any permission in a virtual host."""
        return self._permission(vhost, name) is not None

    def no_grants(self, name: str, vhost: str) -> Grants:
        """What a user may do who does not enter a virtual host: nothing there, whatever is changed."""
        return Grants(name, vhost, self._kind_of, None)

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

    # --- changing ----------------------------------------------------------------------

    async def delete_user(self, name: str) -> None:
        """With all permissions; the user's connections end. Raises NotFound, StorageUnavailable."""
        async with self._changing:
            self._known(name)
            value = {"deleted": True} if name in self._configured else None
            places = [place for place in {*self._permissions, *self._topics} if place[1] == name]
            await self._write([Entry(("user", name), value, True), *self._removals(places)])

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
            yield self._removals(places)

    def _removals(self, places: Collection[_Place]) -> list[Entry]:
        """All that anybody may do there goes."""
        return [Entry(("permission", *place), None, True) for place in places] + [
            Entry(("topic-permission", *place, exchange), None, True)
            for place in places
            for exchange in self._topics.get(place, ())
        ]

    def _known_place(self, vhost: str, name: str) -> None:
        self._known(name)
        if vhost not in self._vhosts:
            raise NotFound(f"vhost {vhost} not found")

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


def _check_expressions(expressions: Iterable[str]) -> None:
    for expression in expressions:
        if len(expression) > EXPRESSION_LENGTH_MAX:
            raise InvalidArgument(f"a regular expression has at most {EXPRESSION_LENGTH_MAX} characters")
        try:
            NameRule(expression)
        except InvalidExpression as error:
            raise InvalidArgument(f"{expression!r} is no regular expression: {error}") from None
