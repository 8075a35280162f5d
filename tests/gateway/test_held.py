"""A connection that is not read from while publishers are blocked, and how it ends."""

from __future__ import annotations

import socket
import struct

import pytest
import trio

from tests.gateway.shell import Door, open_door, receive_all, until
from tests.gateway.test_connection import PublisherAdapter


class BlockedAdapter(PublisherAdapter):
    """Publishers are blocked."""

    blocked = True


async def held(door: Door, client: trio.SocketStream) -> BlockedAdapter:
    """What a client publishes is put off."""
    await client.send_all(b"p")
    adapter = await door.adapter()
    await until(lambda: adapter.held)
    return adapter


async def is_lost(door: Door, adapter: BlockedAdapter) -> None:
    """Something is sent to a peer that is gone."""
    adapter.outbox.write(b"heartbeat")
    door.shell.end_turn()
    await until(lambda: adapter.lost)


async def test_a_held_connection_can_be_ended() -> None:
    async with open_door(BlockedAdapter) as door, await door.connect() as client:
        door.shell.publishers_blocked("low on disk")
        adapter = await held(door, client)
        (connection,) = door.shell.connections
        connection.shut_down("bye")
        door.shell.end_turn()
        assert await receive_all(client) == b"bye"
        await until(lambda: adapter.lost)


async def test_a_held_connection_ends_when_nothing_can_be_sent_to_the_peer() -> None:
    async with open_door(BlockedAdapter) as door:
        door.shell.publishers_blocked("low on disk")
        async with await door.connect() as client:
            adapter = await held(door, client)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing it is a reset
        await is_lost(door, adapter)
        await until(lambda: not door.shell.connections)


async def test_what_follows_what_a_held_connection_never_took_is_not_taken_either() -> None:
    async with open_door(BlockedAdapter) as door:
        door.shell.publishers_blocked("low on disk")
        async with await door.connect() as client:
            adapter = await held(door, client)
            await client.send_all(b"commit")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await is_lost(door, adapter)
        assert adapter.reads == []


async def test_a_held_connection_whose_peer_has_closed_ends_when_the_peer_is_overdue() -> None:
    class Overdue(BlockedAdapter):
        def handle_timer(self, now: float) -> None:
            super().handle_timer(now)
            self.deadline_s = now + 0.02

    async with open_door(Overdue) as door:
        door.shell.publishers_blocked("low on disk")
        async with await door.connect() as client:
            adapter = await held(door, client)
            (connection,) = door.shell.connections
            adapter.deadline_s = trio.current_time()
            connection._arm()
            await until(lambda: len(adapter.timer_calls) > 1)
            assert not adapter.lost, "it is there, and waits"
            await client.send_all(b"unread")
        await until(lambda: adapter.lost)
        assert adapter.reads == []


async def test_a_deadline_that_comes_with_what_was_put_off_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closing(PublisherAdapter):
        async def handle(self, data: bytes) -> None:
            await super().handle(data)
            if self.left is not None:
                self.left = self.give_up

        async def give_up(self) -> None:
            self.deadline_s = trio.current_time()

    async with open_door(Closing) as door, await door.connect() as client:
        monkeypatch.setattr(Closing, "blocked", True)
        door.shell.publishers_blocked("low on disk")
        adapter = await held(door, client)
        door.shell.publishers_blocked(None)
        await until(lambda: adapter.timer_calls)
