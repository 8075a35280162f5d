"""The shell: reading, back-pressure, ends, and one connection's failure that is nobody else's."""

from __future__ import annotations

import socket
import struct
from collections import Counter
from functools import partial

import pytest
import trio
from structlog.testing import capture_logs

from gateway.config import Limits
from gateway.connection import _ENDS_AT_ONCE
from protocols.sansio import Outbox
from routing.queues.homes.cold_reads import ColdReads
from tests.gateway.shell import EchoAdapter, open_door, receive_all, receive_exactly, until

SMALL = Limits(outbox_bytes_high=64 << 10, close_linger_ms=300)


async def test_bytes_go_through_the_adapter_and_back() -> None:
    async with open_door() as door, await door.connect() as client:
        await client.send_all(b"hello")
        assert await receive_exactly(client, 5) == b"hello"
        adapter = await door.adapter()
        assert adapter.reads == [b"hello"]
        host, _, port = adapter.peer.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) == client.socket.getsockname()[1]


async def test_small_packets_are_not_delayed() -> None:
    async with open_door() as door, await door.connect():
        await door.adapter()
        (connection,) = door.shell.connections
        assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_reads_grow_up_to_the_limit_and_one_stream_does_not_starve_others() -> None:
    limits = Limits(read_bytes_max=128 << 10)
    async with (
        open_door(limits=limits) as door,
        await door.connect() as client,
        await door.connect() as other,
        trio.open_nursery() as nursery,
    ):
        total = 32 << 20
        nursery.start_soon(client.send_all, bytes(total))
        await receive_exactly(client, total // 2)
        await other.send_all(b"still served")
        assert await receive_exactly(other, 12) == b"still served"
        await receive_exactly(client, total // 2)
        sizes = [len(read) for adapter in door.adapters for read in adapter.reads]
        assert max(sizes) == 128 << 10


async def test_end_of_stream_is_handled_once_and_what_was_written_still_arrives() -> None:
    class LastWords(EchoAdapter):
        async def handle(self, data: bytes) -> None:
            await super().handle(data)
            if not data:
                self.outbox.write(b"w" * 3_000_000)

    async with open_door(LastWords) as door, await door.connect() as client:
        await client.send_all(b"x")
        await client.send_eof()
        assert await receive_all(client) == b"x" + b"w" * 3_000_000
        adapter = await door.adapter()
        assert adapter.reads == [b"x", b""]
        assert adapter.lost == 1
        assert not door.shell.connections


async def test_a_reset_is_an_end_of_stream() -> None:
    async with open_door() as door:
        client = await door.connect()
        await door.adapter()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.aclose()
        adapter = await door.adapter()
        await until(lambda: adapter.lost)
        assert adapter.reads == [b""]
        assert adapter.lost == 1


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the event loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_of_many_that_end_at_once_a_few_do_so_in_each_round_of_the_event_loop() -> None:
    rounds, number = Rounds(), 10 * _ENDS_AT_ONCE
    lost_in: Counter[int] = Counter()

    class Ends(EchoAdapter):
        def connection_lost(self) -> None:
            super().connection_lost()
            lost_in[rounds.count] += 1

    trio.lowlevel.add_instrument(rounds)
    async with open_door(Ends) as door:
        clients = [await door.connect() for _ in range(number)]
        await door.adapter(count=number)
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.socket.close()
        await until(lambda: not door.shell.connections)
        assert all((adapter.reads, adapter.lost) == ([b""], 1) for adapter in door.adapters)
    trio.lowlevel.remove_instrument(rounds)
    assert max(lost_in.values()) <= _ENDS_AT_ONCE


async def test_a_closed_adapter_ends_the_connection_after_its_last_bytes() -> None:
    class Close(EchoAdapter):
        async def handle(self, data: bytes) -> None:
            await super().handle(data)
            self.outbox.write(b"bye")
            self.closed = True

    async with open_door(Close) as door, await door.connect() as client:
        await client.send_all(b"1")
        assert await receive_all(client) == b"1bye"
        adapter = await door.adapter()
        assert (adapter.reads, adapter.lost) == ([b"1"], 1)


async def test_last_bytes_arrive_though_the_peer_was_still_sending() -> None:
    """Closing a socket with unread bytes resets the connection; what was sent before would be lost."""

    class Refuse(EchoAdapter):
        async def handle(self, data: bytes) -> None:
            self.outbox.write(b"refused")
            self.closed = True

    async with open_door(Refuse) as door, await door.connect() as client:
        await client.send_all(bytes(500_000))
        assert await receive_all(client) == b"refused"


async def test_closed_by_another_connection_without_a_word() -> None:
    """A write of nothing makes the shell look: an MQTT session that is taken over ends that way."""
    async with open_door() as door, await door.connect() as client:
        adapter = await door.adapter()
        adapter.closed = True
        adapter.outbox.write(b"")
        door.shell.end_turn()
        assert await receive_all(client) == b""
        assert adapter.lost == 1
        assert adapter.reads == []


async def test_shut_down_says_goodbye() -> None:
    async with open_door() as door, await door.connect() as client:
        adapter = await door.adapter()
        (connection,) = door.shell.connections
        connection.shut_down("closing time")
        door.shell.end_turn()
        assert await receive_all(client) == b"closing time"
        assert adapter.lost == 1


async def test_a_connection_that_is_cancelled_within_handle_is_given_back_once() -> None:
    class Stuck(EchoAdapter):
        async def handle(self, data: bytes) -> None:
            self.reads.append(data)
            await trio.sleep_forever()

    async with open_door(Stuck) as door, await door.connect() as client:
        await client.send_all(b"declare")
        adapter = await door.adapter()
        await until(lambda: adapter.reads)
        door.shell.end_turn()
        assert adapter.lost == 0
    assert adapter.lost == 1
    assert not door.shell.connections


class Failing(EchoAdapter):
    """Raises where the first byte says so."""

    where = b""

    async def handle(self, data: bytes) -> None:
        await super().handle(data)
        self.where = data[:1] or self.where
        if data[:1] == b"h":
            raise ZeroDivisionError("in handle")
        if data[:1] == b"t":
            self.deadline_s = trio.current_time()
        if data[:1] == b"w":
            self.outbox.write(bytes(200_000))

    def handle_timer(self, now: float) -> None:
        raise ZeroDivisionError("in handle_timer")

    def next_timer_at(self) -> float:
        if self.where == b"n":
            raise ZeroDivisionError("in next_timer_at")
        return self.deadline_s

    def connection_lost(self) -> None:
        super().connection_lost()
        if self.where == b"l":
            raise ZeroDivisionError("in connection_lost")

    def on_writable(self) -> None:
        raise ZeroDivisionError("in on_writable")


@pytest.mark.parametrize("where", [b"handle", b"timer", b"next", b"lost", b"writable"])
async def test_what_an_adapter_raises_ends_its_connection_only(where: bytes) -> None:
    with capture_logs() as said:
        await _fail_beside_a_bystander(where)
    (line,) = said
    assert (line["event"], line["log_level"], line["door"]) == ("connection failed", "error", "test")
    assert isinstance(line["exc_info"], ZeroDivisionError)


async def _fail_beside_a_bystander(where: bytes) -> None:
    async with open_door(Failing, SMALL) as door, await door.connect() as bystander:
        await bystander.send_all(b"ok")
        assert await receive_exactly(bystander, 2) == b"ok"
        async with await door.connect() as client:
            await client.send_all(where)
            if where == b"lost":
                await client.send_eof()
            adapter = await door.adapter(count=2)
            try:
                await receive_all(client)
            except trio.BrokenResourceError:
                pass  # a reset
            await until(lambda: adapter.lost)
        await bystander.send_all(b"alive")
        assert await receive_exactly(bystander, 5) == b"alive"
        assert adapter.lost == 1
        assert len(door.shell.connections) == 1


@pytest.mark.parametrize("little", [True, False])
async def test_nothing_is_read_while_there_is_no_room_for_as_much(little: bool) -> None:
    async with open_door() as door, await door.connect() as client:
        adapter, room, blocked = await door.adapter(), door.room, trio.Event()
        room.appended_bytes = 4096 if little else 4097
        if little:
            room.free_for_little = blocked
        else:
            room.free = blocked
        await client.send_all(b"first")
        assert await receive_exactly(client, 5) == b"first"
        await client.send_all(b"second")
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert adapter.reads == [b"first"]
        adapter.outbox.write(b"delivered meanwhile")
        door.shell.end_turn()
        assert await receive_exactly(client, 19) == b"delivered meanwhile"
        blocked.set()
        assert await receive_exactly(client, 6) == b"second"


async def test_a_peer_that_does_not_read_is_not_read_from_until_it_does() -> None:
    async with open_door(limits=SMALL) as door, await door.connect(receive_bytes=4096) as client:
        adapter = await door.adapter()
        adapter.outbox.write(bytes(8 << 20))
        door.shell.end_turn()
        assert not adapter.outbox.writable
        for asked in (b"a", b"b"):  # with what waits already he is read from
            await client.send_all(asked)
            await until(lambda asked=asked: adapter.reads[-1:] == [asked])
        adapter.outbox.write(bytes(SMALL.outbox_bytes_high))
        await client.send_all(b"c")
        await until(lambda: adapter.reads[-1] == b"c")
        await client.send_all(b"d")
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert adapter.reads == [b"a", b"b", b"c"]
        await receive_exactly(client, (8 << 20) + SMALL.outbox_bytes_high + 4)
        assert adapter.reads == [b"a", b"b", b"c", b"d"]
        assert adapter.resumed == 1
        assert adapter.outbox.writable
        assert adapter.outbox.pending_bytes == 0


async def test_a_connection_that_waits_for_its_peer_can_be_ended() -> None:
    async with open_door(limits=SMALL) as door, await door.connect(receive_bytes=4096) as client:
        adapter = await door.adapter()
        adapter.outbox.write(bytes(8 << 20))
        door.shell.end_turn()
        adapter.outbox.write(bytes(SMALL.outbox_bytes_high))
        await client.send_all(b"a")
        (connection,) = door.shell.connections
        await until(lambda: connection._drains)
        adapter.closed = True
        adapter.outbox.write(b"")
        door.shell.end_turn()
        await until(lambda: adapter.lost)
        await until(lambda: not door.shell.connections)


@pytest.mark.parametrize(("bytes_max", "given_up"), [(1 << 20, True), (64 << 20, False)])
async def test_a_slow_peer_is_given_up_past_bytes_and_time_only(bytes_max: int, given_up: bool) -> None:
    limits = Limits(outbox_bytes_high=1024, outbox_bytes_max=bytes_max, outbox_stalled_ms=50, close_linger_ms=300)
    async with open_door(limits=limits) as door, await door.connect(receive_bytes=4096) as client:
        adapter = await door.adapter()
        adapter.outbox.write(bytes(16 << 20))
        door.shell.end_turn()
        if given_up:
            await until(lambda: adapter.lost)
            assert adapter.outbox.pending_bytes == 0
        else:
            await trio.sleep(0.2)  # four times what a stalled peer has
            assert adapter.lost == 0
            await receive_exactly(client, 16 << 20)


async def test_one_connection_too_many_is_closed_at_once() -> None:
    limits = Limits(connections_max=2)
    async with open_door(limits=limits) as door, await door.connect() as first, await door.connect():
        await door.adapter(count=2)
        async with await door.connect() as third:
            assert await receive_all(third) == b""
        await first.aclose()
        await until(lambda: len(door.shell.connections) == 1)
        async with await door.connect() as fourth:
            await fourth.send_all(b"in")
            assert await receive_exactly(fourth, 2) == b"in"


async def test_an_adapter_that_cannot_be_made_costs_its_client_only() -> None:
    class Broken(EchoAdapter):
        def __init__(self, *arguments: object) -> None:
            raise ZeroDivisionError

    async with open_door(Broken) as door:
        with capture_logs() as said:
            for _ in range(2):
                async with await door.connect() as client:
                    assert await receive_all(client) == b""
        assert [line["event"] for line in said] == ["connection failed"] * 2
        assert not door.shell.connections


class PublisherAdapter(EchoAdapter):
    """A read that begins with "p" publishes, and is put off while publishers are `blocked`."""

    blocked = False

    async def handle(self, data: bytes) -> None:
        self.published = data[:1] == b"p"
        if self.published and self.blocked:
            self.left = partial(super().handle, data)
        else:
            await super().handle(data)


async def test_a_door_that_answers_itself_and_fails_costs_its_client_only() -> None:
    async def answer(sock: socket.socket, tls: object, peer: str, certificate_name: str | None) -> None:
        raise UnicodeError("that was not to be")

    async with open_door() as door:
        door.listener.answer = answer
        with capture_logs() as logs:
            for _ in range(2):
                assert await receive_all(await door.connect()) == b""
        assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["connection failed"] * 2
        assert not door.shell.handshakes


async def test_who_publishes_while_publishers_are_blocked_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door(PublisherAdapter) as door, await door.connect() as publisher, await door.connect() as consumer:
        for client in (publisher, consumer):
            await client.send_all(b"p1")
            assert await receive_exactly(client, 2) == b"p1"
        monkeypatch.setattr(PublisherAdapter, "blocked", True)
        door.shell.publishers_blocked("low on disk")
        await consumer.send_all(b"ack")
        assert await receive_exactly(consumer, 3) == b"ack", "it has published before, but not since"
        await publisher.send_all(b"p2")
        await until(lambda: any(adapter.left for adapter in door.adapters))
        (held,) = [adapter for adapter in door.adapters if adapter.left]
        await publisher.send_all(b"p3")
        for _ in range(3):
            await consumer.send_all(b"ack")
            assert await receive_exactly(consumer, 3) == b"ack"
        assert (held.held, held.reads) == (True, [b"p1"])
        monkeypatch.setattr(PublisherAdapter, "blocked", False)
        door.shell.publishers_blocked(None)
        assert await receive_exactly(publisher, 4) == b"p2p3"
        assert not held.held


async def test_who_is_answered_that_publishing_is_refused_is_read_from_all_the_while() -> None:
    async with open_door(PublisherAdapter) as door, await door.connect() as client:
        await client.send_all(b"p1")
        assert await receive_exactly(client, 2) == b"p1"
        door.shell.publishers_blocked("low on disk")
        for said in (b"p2", b"p3", b"fetch"):
            await client.send_all(said)
            assert await receive_exactly(client, len(said)) == said


class ColdAdapter(PublisherAdapter):
    """What a read publishes goes to a queue that is behind."""

    cold_reads: ColdReads

    async def handle(self, data: bytes) -> None:
        self.cold_reads.wanted = True
        await super().handle(data)


async def test_who_publishes_to_a_queue_that_is_behind_is_read_from_when_more_of_it_was_read() -> None:
    async with open_door(ColdAdapter) as door, trio.open_nursery() as nursery:
        done = trio.Event()

        async def read(_: object) -> None:
            await done.wait()

        ColdAdapter.cold_reads = door.shell.cold_reads = ColdReads(nursery.start_soon, lambda: None, 60_000)
        ColdAdapter.cold_reads.start(read, None)
        async with await door.connect() as publisher, await door.connect() as consumer:
            await publisher.send_all(b"p1")
            assert await receive_exactly(publisher, 2) == b"p1", "what had come is taken"
            (held,) = [adapter for adapter in door.adapters if adapter.published]
            await until(lambda: held.held)
            await publisher.send_all(b"p2")
            for _ in range(3):
                await consumer.send_all(b"ack")
                assert await receive_exactly(consumer, 3) == b"ack"
            assert held.reads == [b"p1"]
            done.set()
            assert await receive_exactly(publisher, 2) == b"p2"


async def test_the_silence_of_a_peer_that_is_waited_for_means_nothing() -> None:
    class Slow(EchoAdapter):
        def __init__(self, outbox: Outbox, peer: str) -> None:
            super().__init__(outbox, peer)
            self.go_on = trio.Event()

        async def handle(self, data: bytes) -> None:
            await self.go_on.wait()
            await super().handle(data)

    async with open_door(Slow) as door, await door.connect() as client:
        await client.send_all(b"ping")
        adapter = await door.adapter()
        await until(lambda: adapter.held)
        adapter.go_on.set()
        assert await receive_exactly(client, 4) == b"ping"
        await until(lambda: not adapter.held)
