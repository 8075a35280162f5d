"""The shell's timers: armed lazily, and not before what has come is read."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

from gateway.config import WebSocketConfig
from gateway.outbox import SocketOutbox
from protocols.sansio import Outbox
from tests.gateway.shell import EchoAdapter, open_door, receive_all, receive_exactly, until
from tests.gateway.test_websocket import UPGRADE


class KeepAlive(EchoAdapter):
    """Wants to hear something every so often, once it has."""

    patience_s = 0.05

    async def handle(self, data: bytes) -> None:
        await super().handle(data)
        self.deadline_s = trio.current_time() + self.patience_s


class LongerKeepAlive(KeepAlive):
    patience_s = 2


async def test_one_timer_serves_a_deadline_that_moves_with_every_read(mock_clock: MockClock) -> None:
    async with open_door(KeepAlive) as door, await door.connect() as client:
        for _ in range(200):
            await client.send_all(b"ping")
            await receive_exactly(client, 4)
            assert len(door.shell.timers) == 1
            mock_clock.jump(0.02)
        adapter = await door.adapter()
        last = adapter.deadline_s
        assert adapter.timer_calls == []
        mock_clock.rate = 1.0
        await until(lambda: adapter.timer_calls)
        assert last <= adapter.timer_calls[0] < last + 1
        assert len(door.shell.timers) == 0


async def test_what_came_while_the_process_stood_still_is_read_before_a_deadline_counts(mock_clock: MockClock) -> None:
    async with open_door(LongerKeepAlive) as door, await door.connect() as client:
        adapter = await door.adapter()
        for _ in range(20):
            client.socket._sock.send(b"ping")  # type: ignore[attr-defined]
            mock_clock.jump(10)
            await receive_exactly(client, 4)
        assert adapter.timer_calls == []
        mock_clock.jump(10)
        mock_clock.rate = 1.0
        await until(lambda: adapter.timer_calls)


async def test_who_has_spoken_and_was_not_read_yet_is_not_late(mock_clock: MockClock) -> None:
    """Thousands who connect at once have their turns one after the other."""
    async with open_door(LongerKeepAlive) as door, await door.connect() as client:
        adapter = await door.adapter()
        await client.send_all(b"1")
        await receive_exactly(client, 1)
        (connection,) = door.shell.connections
        for _ in range(20):
            client.socket._sock.send(b"ping")  # type: ignore[attr-defined]
            mock_clock.jump(adapter.deadline_s - mock_clock.current_time() + 0.01)
            connection._timer_fired()
            await receive_exactly(client, 4)
        assert adapter.timer_calls == []
        mock_clock.jump(adapter.deadline_s - mock_clock.current_time() + 0.01)
        connection._timer_fired()
        assert len(adapter.timer_calls) == 1


async def test_who_always_has_more_to_say_keeps_no_deadline_from_coming(mock_clock: MockClock) -> None:
    """As a heartbeat that is to be sent to a publisher who is faster than the broker."""
    async with open_door() as door, await door.connect() as client:
        adapter = await door.adapter()
        await client.send_all(b"1")
        await receive_exactly(client, 1)
        (connection,) = door.shell.connections
        adapter.deadline_s = mock_clock.current_time()
        client.socket._sock.send(b"2")  # type: ignore[attr-defined]
        connection._timer_fired()
        assert adapter.timer_calls == []
        await receive_exactly(client, 1)
        client.socket._sock.send(b"3")  # type: ignore[attr-defined]
        connection._timer_fired()
        assert len(adapter.timer_calls) == 1


async def test_an_earlier_deadline_replaces_the_timer_and_the_end_cancels_it() -> None:
    async with open_door() as door, await door.connect() as client:
        adapter = await door.adapter()
        adapter.deadline_s = trio.current_time() + 1000
        await client.send_all(b"1")
        await receive_exactly(client, 1)
        adapter.deadline_s = trio.current_time() + 0.01
        await client.send_all(b"2")
        await until(lambda: adapter.timer_calls)
        assert adapter.deadline_s == math.inf
        adapter.deadline_s = trio.current_time() + 1000
        await client.send_all(b"3")
        await receive_exactly(client, 2)
        assert len(door.shell.timers) == 1
        await client.aclose()
        await until(lambda: adapter.lost)
        assert len(door.shell.timers) == 0


async def test_a_timer_that_closes_ends_the_connection() -> None:
    class GiveUp(EchoAdapter):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            self.deadline_s = trio.current_time() + 0.01

        def handle_timer(self, now: float) -> None:
            super().handle_timer(now)
            self.outbox.write(b"too late")
            self.closed = True

    async with open_door(GiveUp) as door, await door.connect() as client:
        assert await receive_all(client) == b"too late"
        assert (await door.adapter()).lost == 1


class Talkative(KeepAlive):
    """Says more than there is room for."""

    patience_s = 2

    def __init__(self, outbox: Outbox, peer: str) -> None:
        super().__init__(outbox, peer)
        self.excused: list[bool] = []

    async def handle(self, data: bytes) -> None:
        await super().handle(data)
        self.outbox.write(bytes(16 << 20))

    def handle_timer(self, now: float) -> None:
        self.excused.append(self.held)
        self.deadline_s = now + self.patience_s


@asynccontextmanager
async def talking(
    clock: MockClock,
) -> AsyncIterator[tuple[Talkative, trio.SocketStream, SocketOutbox, Callable[[], None]]]:
    """One that has been told too much: its client, its outbox, and what makes its timer due."""
    async with open_door(Talkative) as door, await door.connect(receive_bytes=4096) as client:
        adapter = await door.adapter()
        assert isinstance(adapter, Talkative)
        await client.send_all(b"1")
        await receive_exactly(client, 1)
        (connection,) = door.shell.connections

        def come_due() -> None:
            clock.jump(adapter.deadline_s - clock.current_time() + 0.01)
            connection._timer_fired()

        yield adapter, client, connection.outbox, come_due


async def test_who_takes_slowly_what_waits_for_him_is_not_silent(mock_clock: MockClock) -> None:
    async with talking(mock_clock) as (adapter, client, outbox, come_due):
        while not outbox.moved:
            await receive_exactly(client, 65536)
        come_due()
        come_due()
        while not outbox.moved:
            await receive_exactly(client, 65536)
        come_due()
        assert adapter.excused == [True, False, True]


async def test_who_speaks_while_he_is_not_read_from_is_not_silent(mock_clock: MockClock) -> None:
    """The kernel has megabytes to send: of what a slow peer takes nothing is seen here for long."""
    async with talking(mock_clock) as (adapter, client, outbox, come_due):
        for heartbeat in (b"2", b"", b"3"):
            outbox.moved = False
            if heartbeat:
                client.socket._sock.send(heartbeat)  # type: ignore[attr-defined]
            come_due()
        assert adapter.excused == [True, False, True]


class Excusing(EchoAdapter):
    """Notes whether a silence means something."""

    def __init__(self, outbox: Outbox, peer: str) -> None:
        super().__init__(outbox, peer)
        self.excused: list[bool] = []

    def handle_timer(self, now: float) -> None:
        self.excused.append(self.held)
        self.deadline_s = math.inf


async def test_who_has_taken_what_waited_for_him_in_a_websocket_is_silent_again() -> None:
    async with open_door(Excusing, web=WebSocketConfig()) as door, await door.connect(receive_bytes=4096) as client:
        head = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        await client.send_all(f"GET /mqtt HTTP/1.1\r\n{head}\r\n".encode())
        adapter = await door.adapter()
        assert isinstance(adapter, Excusing)
        (connection,) = door.shell.connections
        adapter.outbox.write(b"\x30\x80\x80\x80\x02" + bytes(4 << 20))
        door.shell.end_turn()
        await client.send_all(b"\x89\x80\0\0\0\0")  # a ping, of which the adapter hears nothing
        await until(lambda: connection._drains)
        while not connection.outbox.moved:
            await receive_exactly(client, 65536)
        adapter.deadline_s = trio.current_time()
        connection._timer_fired()
        while connection._drains:
            await receive_exactly(client, 65536)
        adapter.deadline_s = trio.current_time()
        connection._timer_fired()
        assert adapter.excused == [True, False]
