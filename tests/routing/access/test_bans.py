"""Who is kept out: what bans match, when they end, what outlives a restart, and who is closed."""

from __future__ import annotations

import errno
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from core_log.files import Files, MemoryFiles
from core_log.memory_files import FaultyFiles
from routing.administration import administer
from routing.broker import Broker, open_broker
from routing.clients import Client
from routing.config import BrokerConfig
from routing.errors import Banned, InvalidArgument, LimitExceeded, NotFound, PreconditionFailed, StorageUnavailable
from tests.routing.harness import passing, wall_clock_ms

NOW_MS = 1_800_000_000_000


@pytest.fixture
def clock() -> MockClock:
    return MockClock()


class World:
    """A broker, its clock, and clients that note why they were closed."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.closed: list[tuple[str, str]] = []

    async def ask(self, operation: str, **arguments: Any) -> Any:
        return await administer(self.broker, "guest", operation, arguments, asked_from="[2001:db9::9]:5")

    async def ban(self, kind: str, value: str, **more: Any) -> None:
        await self.ask("bans.add", kind=kind, value=value, **more)

    def connect(self, name: str = "", peer: str = "10.0.0.1:5", user: str = "guest") -> None:
        client = Client("test", user, "/", peer, lambda reason: self.closed.append((name, reason)), name)
        self.broker.connect(client, client)

    def welcome(self, name: str = "", peer: str = "10.0.0.1:5", user: str = "guest") -> bool:
        return self.broker.bans.find(name, user, peer) is None


@asynccontextmanager
async def world(files: Files | None = None, **config: Any) -> AsyncIterator[World]:
    users = {"guest": "guest", "ada": "secret"}
    settings = BrokerConfig(flush_retry_interval_ms=5, **config)
    async with open_broker(files or MemoryFiles(), settings, users, wall_clock_ms=wall_clock_ms) as broker:
        yield World(broker)


@pytest.mark.parametrize(
    ("value", "kept", "inside", "outside"),
    [
        ("10.0.0.5", "10.0.0.5", ["10.0.0.5:1", "[::ffff:10.0.0.5]:1"], ["10.0.0.4:1", "10.0.0.50:1"]),
        ("10.0.0.5/32", "10.0.0.5", ["10.0.0.5:1"], ["10.0.0.6:1"]),
        ("10.1.0.0/16", "10.1.0.0/16", ["10.1.0.0:1", "10.1.255.255:1"], ["10.2.0.0:1", "[2001:db8::1]:1"]),
        ("10.1.2.3/16", "10.1.0.0/16", ["10.1.0.0:1"], ["10.2.0.0:1"]),
        ("0.0.0.0/0", "0.0.0.0/0", ["1.2.3.4:1"], ["[2001:db8::1]:1", "no address"]),
        ("2001:DB8::/32", "2001:db8::/32", ["[2001:db8::1]:1", "[2001:db8:1::2%eth0]:9"], ["[2001:db9::1]:1"]),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8", ["10.9.9.9:1"], ["11.0.0.1:1"]),
    ],
)
async def test_addresses_and_networks(value: str, kept: str, inside: list[str], outside: list[str]) -> None:
    async with world() as it:
        await it.ban("address", value)
        assert [row[1] for row in (await it.ask("bans.list"))["rows"]] == [kept]
        assert [peer for peer in inside if it.welcome(peer=peer)] == []
        assert [peer for peer in outside if not it.welcome(peer=peer)] == []
        await it.ask("bans.delete", kind="address", value=value)
        assert all(it.welcome(peer=peer) for peer in inside)
        with pytest.raises(NotFound, match=f"address {kept} is not banned"):
            await it.ask("bans.delete", kind="address", value=value)


async def test_networks_within_networks_go_one_by_one() -> None:
    async with world() as it:
        for value in ("10.0.0.0/8", "10.0.0.0/24", "10.0.0.1", "10.0.1.0/24"):
            await it.ban("address", value)
        await it.ask("bans.delete", kind="address", value="10.0.0.0/24")
        assert not it.welcome(peer="10.0.0.2:1")
        await it.ask("bans.delete", kind="address", value="10.0.0.0/8")
        assert it.welcome(peer="10.0.0.2:1")
        assert not it.welcome(peer="10.0.0.1:1")
        assert not it.welcome(peer="10.0.1.1:1")


async def test_who_is_banned_is_closed_and_cannot_come_back() -> None:
    async with world() as it:
        it.connect("device", user="ada")
        it.connect("other", user="ada", peer="10.0.0.2:1")
        it.connect("mine")
        await it.ban("client_id", "device", reason="too loud")
        assert it.closed == [("device", "client_id device is banned: too loud")]
        with pytest.raises(Banned, match="client_id device is banned: too loud"):
            it.connect("device")
        it.closed.clear()
        await it.ban("user", "ada")
        assert ("other", "user ada is banned") in it.closed
        assert "mine" not in dict(it.closed)
        with pytest.raises(Banned):
            it.connect("x", user="ada")
        await it.ask("bans.delete", kind="user", value="ada")
        it.connect("x", user="ada")


@pytest.mark.parametrize("how", ["ban", "delete"])
async def test_others_have_their_turns_while_many_connections_end(how: str) -> None:
    async with world() as it, trio.open_nursery() as nursery:
        closed: list[str] = []

        def close(reason: str) -> None:
            until_s = time.perf_counter() + 0.001
            while time.perf_counter() < until_s:
                pass
            closed.append(reason)

        gone = Client("test", "ada", "/", "10.0.0.1:1", closed.append)
        clients = [Client("test", "ada", "/", "10.0.0.1:5", close) for _ in range(60)]
        for client in (*clients, gone):
            it.broker.connect(client, client)
        if how == "ban":
            nursery.start_soon(it.ban, "user", "ada")
        else:
            nursery.start_soon(partial(it.ask, "users.delete", name="ada"))
        counts = [0]
        while len(closed) < len(clients):
            if closed:
                it.broker.release(gone)
            await trio.lowlevel.checkpoint()
            counts.append(len(closed))
        assert max(after - before for before, after in pairwise(counts)) <= 12
    assert len(closed) == len(clients)


async def test_bans_outlive_a_restart_and_end_when_they_say(clock: MockClock) -> None:
    files = MemoryFiles()
    async with world(files) as it:
        await it.ban("user", "ada", until_ms=NOW_MS + 1000, reason="for a second")
        await it.ban("client_id", "device")
        await it.ban("client_id", "device", reason="changed")
    async with world(files) as it:
        rows = (await it.ask("bans.list"))["rows"]
        assert rows == [
            ["client_id", "device", 0, "changed", "guest", NOW_MS],
            ["user", "ada", NOW_MS + 1000, "for a second", "guest", NOW_MS],
        ]
        await passing(clock, 1.0)
        assert it.welcome(user="ada")
        assert not it.welcome("device")
        assert [row[1] for row in (await it.ask("bans.list"))["rows"]] == ["device"]
        with pytest.raises(NotFound):
            await it.ask("bans.delete", kind="user", value="ada")
        await it.ban("address", "10.9.9.9")
        assert sorted(key[1:] for key, _ in it.broker.topology.catalog.entries("ban")) == [
            ("address", "10.9.9.9"),
            ("client_id", "device"),
        ]


@pytest.mark.parametrize("ahead_ms", [-86_400_000, 86_400_000])
async def test_a_ban_ends_by_the_wall_clock_also_when_that_was_set_since_the_start(ahead_ms: int) -> None:
    said_ms = [NOW_MS]
    async with open_broker(MemoryFiles(), wall_clock_ms=lambda: said_ms[0]) as broker:
        it = World(broker)
        said_ms[0] += ahead_ms
        await it.ban("client_id", "device", until_ms=said_ms[0] + 60_000)
        assert (await it.ask("bans.list"))["rows"][0][2:] == [said_ms[0] + 60_000, "", "guest", said_ms[0]]
        assert not it.welcome("device")
        said_ms[0] += 60_000
        assert it.welcome("device")


@pytest.mark.parametrize(
    ("kind", "value", "more"),
    [
        ("address", "10.0.0.300", {}),
        ("address", "10.0.0.0/33", {}),
        ("address", "host", {}),
        ("user", "", {}),
        ("client_id", "x" * 65_536, {}),
        ("user", "ada", {"until_ms": NOW_MS}),
        ("user", "ada", {"until_ms": -1}),
        ("user", "ada", {"reason": "x" * 1025}),
        ("name", "ada", {}),
    ],
)
async def test_what_makes_no_sense_is_refused(kind: str, value: str, more: dict[str, Any]) -> None:
    async with world() as it:
        with pytest.raises(InvalidArgument):
            await it.ban(kind, value, **more)
        assert it.broker.bans.all() == []


async def test_there_are_only_so_many(clock: MockClock) -> None:
    async with world(bans_max=2) as it:
        await it.ban("user", "a", until_ms=NOW_MS + 5)
        await it.ban("user", "b")
        await it.ban("user", "b", reason="again")
        with pytest.raises(LimitExceeded, match="there are 2 bans already"):
            await it.ban("user", "c")
        await passing(clock, 0.005)
        await it.ban("user", "c")


async def test_nobody_bans_himself_by_mistake() -> None:
    async with world() as it:
        it.connect("other", user="ada")
        for kind, value in (("user", "guest"), ("address", "2001:db9::9"), ("address", "2001:db9::/64")):
            with pytest.raises(PreconditionFailed, match="this would ban you, user 'guest'"):
                await it.ban(kind, value)
        assert it.closed == []
        await it.ban("user", "guest", force=True)
        assert not it.welcome()


async def test_what_the_disk_refuses_does_not_count() -> None:
    files = FaultyFiles(MemoryFiles())
    async with world(files) as it:
        files.failing["write"] = errno.EIO
        with pytest.raises(StorageUnavailable):
            await it.ban("user", "ada")
        assert it.welcome(user="ada")
        del files.failing["write"]
