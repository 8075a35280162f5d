"""Who is kept out, whatever the rights: clients by what they call themselves, users, addresses.

1. Bans are in the catalog: durable before they count, known to all brokers of a cluster, there after a restart. Whoever
   is connected when one begins to count is closed.
2. They are looked at when a client has logged in and enters a virtual host (`Broker.connect`): two look-ups by name,
   and one for each length of prefix that occurs among the addresses. Adapters look at the address alone before that, so
   that who is banned by it is not told whether a password is right.
3. One whose time is up means nothing any more, and is removed with the next change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import trio

from core_log.errors import Conflict
from routing.commits import storage_errors
from routing.errors import Banned, InvalidArgument, LimitExceeded, NotFound, PreconditionFailed
from routing.topology.entries import Entry

if TYPE_CHECKING:
    from routing.clients import Client
    from routing.topology.catalog import Catalog

BanKind = Literal["client_id", "user", "address"]

VALUE_BYTES_MAX = 65_535
REASON_CHARACTERS_MAX = 1024

_Prefix = tuple[int, int, int]
"""Version of the protocol, length, and the bits of the prefix."""


class Ban(NamedTuple):
    """One of them."""

    kind: BanKind
    value: str
    """A name as it is; an address, or a network as ADDRESS/LENGTH."""
    until_ms: int
    """Milliseconds since 1970; 0: for ever."""
    reason: str
    by: str
    """The user who has set it, and since when, in ms since 1970:"""
    since_ms: int

    def is_over(self, now_ms: int) -> bool:
        """It means nothing any more."""
        return 0 < self.until_ms <= now_ms

    def matches(self, client_id: str, user: str, peer: str) -> bool:
        """Whether it is of such a client; see `Bans.find`."""
        if self.kind == "address":
            address = _address_of(peer)
            return address is not None and address in ip_network(self.value)
        return self.value == (user if self.kind == "user" else client_id)

    def __str__(self) -> str:
        return f"{self.kind} {self.value} is banned" + (f": {self.reason}" if self.reason else "")


class Bans:
    """See the module; one for a broker. `clients` are those connected to it, `close` ends connections for a reason."""

    def __init__(
        self,
        catalog: Catalog,
        clients: Callable[[], Iterable[Client]],
        close: Callable[[Iterable[tuple[Client, str]]], None],
        now_ms: Callable[[], int],
        bans_max: int,
    ) -> None:
        self._catalog = catalog
        self._clients = clients
        self._close = close
        self._now_ms = now_ms
        self._bans_max = bans_max
        self._changing = trio.Lock()
        self._all: dict[tuple[str, str], Ban] = {}
        self._prefixes: dict[_Prefix, Ban] = {}
        self._lengths: dict[tuple[int, int], int] = {}
        """How many prefixes there are, by version and length."""
        self._fresh: list[Ban] = []
        """Those of a change of which connections were not told yet."""
        for key, value in catalog.entries("ban"):
            self._apply(Entry(key, value, True))
        self._fresh.clear()
        catalog.appliers["ban"] = self._apply
        catalog.applied.append(self._tell)

    def _apply(self, entry: Entry) -> None:
        kind, value = cast("BanKind", entry.key[1]), entry.key[2]
        before = self._all.pop((kind, value), None)
        if before is not None and kind == "address":
            prefix = _prefix_of(ip_network(value))
            del self._prefixes[prefix]
            self._lengths[prefix[:2]] -= 1
            if not self._lengths[prefix[:2]]:
                del self._lengths[prefix[:2]]
        if entry.value is None:
            return
        ban = self._all[kind, value] = Ban(kind, value, **entry.value)
        if kind == "address":
            prefix = _prefix_of(ip_network(value))
            self._prefixes[prefix] = ban
            self._lengths[prefix[:2]] = self._lengths.get(prefix[:2], 0) + 1
        self._fresh.append(ban)

    def _tell(self) -> None:
        """End connections of who is banned now."""
        if not self._fresh:
            return
        self._fresh.clear()
        found = ((client, self.find(client.name, client.user, client.peer)) for client in self._clients())
        self._close([(client, str(ban)) for client, ban in found if ban is not None])

    # --- asking ------------------------------------------------------------------------

    def find(self, client_id: str, user: str, peer: str) -> Ban | None:
        """Why a client may not be here: what it calls itself ("" if it has not said), its user, and its address as
        "host:port".
        """
        if not self._all:
            return None
        now_ms = self._now_ms()
        for found in (self._all.get(("user", user)), self._all.get(("client_id", client_id)), self._of_address(peer)):
            if found is not None and not found.is_over(now_ms):
                return found
        return None

    def _of_address(self, peer: str) -> Ban | None:
        if not self._prefixes:
            return None
        address = _address_of(peer)
        if address is None:
            return None
        version, bits, size, now_ms = address.version, int(address), address.max_prefixlen, self._now_ms()
        for kind, length in self._lengths:
            if kind == version:
                found = self._prefixes.get((version, length, bits >> size - length))
                if found is not None and not found.is_over(now_ms):
                    return found
        return None

    def require_welcome(self, client_id: str, user: str, peer: str) -> None:
        """Raises Banned; for the arguments see `find`."""
        ban = self.find(client_id, user, peer)
        if ban is not None:
            raise Banned(str(ban))

    def all(self) -> list[Ban]:
        """Those that mean something, by kind and value."""
        now_ms = self._now_ms()
        return [ban for _, ban in sorted(self._all.items()) if not ban.is_over(now_ms)]

    # --- changing ----------------------------------------------------------------------

    async def add(self, ban: Ban) -> None:
        """Keep somebody out from now on, in place of what was said of it before. Raises InvalidArgument, LimitExceeded,
        StorageUnavailable, PreconditionFailed (another broker was told otherwise meanwhile).
        """
        now_ms = self._now_ms()
        if ban.is_over(now_ms) or ban.until_ms < 0:
            raise InvalidArgument("a ban ends in the future, or never (0)")
        if len(ban.reason) > REASON_CHARACTERS_MAX:
            raise InvalidArgument(f"a reason has at most {REASON_CHARACTERS_MAX:,} characters")
        key = ban.kind, ban.value
        async with self._changing:
            over = self._over(now_ms)
            if key not in self._all and len(self._all) - len(over) >= self._bans_max:
                raise LimitExceeded(f"there are {self._bans_max:,} bans already")
            value: dict[str, Any] = {
                "until_ms": ban.until_ms, "reason": ban.reason, "by": ban.by, "since_ms": ban.since_ms,
            }  # fmt: skip
            await self._write([Entry(("ban", *key), value, True), *(one for one in over if one.key[1:] != key)])

    async def delete(self, kind: BanKind, value: str) -> None:
        """Let somebody in again. Raises NotFound, StorageUnavailable, PreconditionFailed as `add`."""
        async with self._changing:
            now_ms = self._now_ms()
            there = self._all.get((kind, value))
            if there is None or there.is_over(now_ms):
                raise NotFound(f"{kind} {value} is not banned")
            await self._write([Entry(("ban", kind, value), None, True), *self._over(now_ms)])

    def _over(self, now_ms: int) -> list[Entry]:
        return [Entry(("ban", *key), None, True) for key, ban in self._all.items() if ban.is_over(now_ms)]

    async def _write(self, entries: list[Entry]) -> None:
        with storage_errors():
            try:
                await self._catalog.change(entries)
            except Conflict:
                raise PreconditionFailed("bans were changed by others meanwhile; try again") from None


def checked(kind: BanKind, value: str) -> str:
    """A value as bans have it; of an address with a length the network it lies in. Raises InvalidArgument."""
    if kind == "address":
        try:
            return _shown(ip_network(value, strict=False))
        except ValueError as error:
            raise InvalidArgument(f"no address, nor a network as ADDRESS/LENGTH: {error}") from None
    if not 0 < len(value.encode("utf-8", "surrogateescape")) <= VALUE_BYTES_MAX:
        raise InvalidArgument(f"a {kind} has 1 to {VALUE_BYTES_MAX:,} bytes")
    return value


def _shown(network: IPv4Network | IPv6Network) -> str:
    """An address without its length; what IPv6 has of IPv4 as IPv4."""
    size = network.max_prefixlen
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= 96:
        network = IPv4Network((mapped, network.prefixlen - 96))
        size = 32
    return str(network.network_address) if network.prefixlen == size else str(network)


def _prefix_of(network: IPv4Network | IPv6Network) -> _Prefix:
    length = network.prefixlen
    return network.version, length, int(network.network_address) >> network.max_prefixlen - length


def _address_of(peer: str) -> IPv4Address | IPv6Address | None:
    """That of "host:port" or "[host]:port"."""
    try:
        address = ip_address(peer.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
