"""Outboxes: one send a turn, large pieces not copied, the marks, and what is left when a socket is full."""

from __future__ import annotations

import random
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from core_log.file_range import FileRange
from core_log.files import OsFiles
from gateway.config import Limits
from gateway.outbox import Outboxes, SocketOutbox, next_buffers, remove_sent, send_with_files
from protocols.buffers import LARGE_BYTES, join_small


class Recorder:
    """Stands for a socket that takes `room` bytes and records each call."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.calls: list[list[bytes]] = []
        self.error: OSError | None = None

    def send(self, data: bytes) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: list[bytes]) -> int:
        if self.error is not None:
            raise self.error
        size = min(self.room, sum(len(buffer) for buffer in buffers))
        if not size:
            raise BlockingIOError
        self.calls.append(list(buffers))
        self.room -= size
        return size


class Owner:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.flushes = 0
        self.errors: list[Exception] = []
        self.reasons: list[str] = []

    def flushed(self) -> None:
        self.flushes += 1

    def failed(self, error: Exception) -> None:
        self.errors.append(error)

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)


LIMITS = Limits(outbox_bytes_high=1024)


def make(sock: object, spawned: list[object] | None = None) -> tuple[SocketOutbox, Outboxes, Owner]:
    group = Outboxes(LIMITS, (spawned if spawned is not None else []).append)
    owner = Owner()
    return SocketOutbox(sock, group, owner), group, owner  # type: ignore[arg-type]


def test_thousands_of_tiny_writes_are_one_send() -> None:
    sock = Recorder()
    outbox, group, owner = make(sock)
    for index in range(5000):
        outbox.write(b"%d," % index)
    assert outbox.pending_bytes == sum(len(b"%d," % index) for index in range(5000))
    group.flush()
    assert sock.calls == [[b"".join(b"%d," % index for index in range(5000))]]
    assert outbox.pending_bytes == 0
    assert outbox.written_bytes == sum(len(b"%d," % index) for index in range(5000))
    assert owner.flushes == 1
    group.flush()
    assert (len(sock.calls), owner.flushes) == (1, 1), "a clean outbox is left alone"


def test_a_single_piece_and_large_pieces_are_not_copied() -> None:
    sock = Recorder()
    outbox, group, _ = make(sock)
    piece, large, view = b"small", bytes(LARGE_BYTES), memoryview(bytearray(LARGE_BYTES))
    outbox.write(piece)
    group.flush()
    assert sock.calls[0][0] is piece
    for data in (b"a", b"b", large, b"c", view, b"d", b"e"):
        outbox.write(data)
    group.flush()
    joined, sent_large, between, sent_view, end = sock.calls[1]
    assert (joined, between, end) == (b"ab", b"c", b"de")
    assert sent_large is large
    assert sent_view is view


@pytest.mark.parametrize(("size", "writable"), [(1024, True), (1025, False)])
def test_the_high_mark(size: int, writable: bool) -> None:
    outbox, _, _ = make(Recorder())
    outbox.write(bytes(size))
    assert outbox.writable is writable


def test_an_outbox_emptied_by_its_flush_is_writable_and_says_so_once() -> None:
    outbox, group, owner = make(Recorder())
    calls: list[bool] = []
    outbox.on_writable = lambda: calls.append(outbox.writable)
    outbox.write(bytes(2000))
    group.flush()
    assert calls == [True]
    outbox.write(b"x")
    group.flush()
    assert calls == [True]
    outbox.on_writable = lambda: 1 // 0  # type: ignore[assignment, return-value]
    outbox.write(bytes(2000))
    group.flush()
    assert [type(error) for error in owner.errors] == [ZeroDivisionError]


def test_what_is_written_while_a_flush_runs_is_sent_too() -> None:
    first, group, _ = make(Recorder())
    sock = Recorder()
    second = SocketOutbox(sock, group, Owner())  # type: ignore[arg-type]
    first.on_writable = lambda: second.write(b"woken")
    first.write(bytes(2000))
    group.flush()
    assert sock.calls == [[b"woken"]]


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_broken_socket_drops_everything(error: OSError) -> None:
    spawned: list[object] = []
    sock = Recorder()
    outbox, group, owner = make(sock, spawned)
    sock.error = error
    outbox.write(b"lost")
    group.flush()
    assert outbox.pending_bytes == 0
    outbox.write(b"lost too")
    assert outbox.pending_bytes == 0
    group.flush()
    assert owner.flushes == 2
    assert not spawned


def test_a_full_socket_gets_one_task_and_keeps_the_order() -> None:
    spawned: list[object] = []
    sock = Recorder(room=3)
    outbox, group, _ = make(sock, spawned)
    outbox.write(b"abcdef")
    group.flush()
    assert outbox.pending_bytes == 3
    for _ in range(3):
        outbox.write(b"more")
        group.flush()
    assert outbox.pending_bytes == 15
    assert len(spawned) == 1


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    left.setblocking(False)
    right.setblocking(False)
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    yield left, right
    left.close()
    right.close()


async def test_the_task_sends_the_rest_in_order(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    left, right = pair
    group = Outboxes(LIMITS, nursery.start_soon)
    outbox = SocketOutbox(left, group, Owner())
    expected = bytearray()
    received = bytearray()
    resumed: list[int] = []
    outbox.on_writable = lambda: resumed.append(outbox.pending_bytes)

    async def read() -> None:
        while True:
            await trio.lowlevel.wait_readable(right)
            received.extend(right.recv(10_000))

    for number in range(300):
        for piece in (b"%d" % number * (number % 7), bytes([number & 255]) * (number * 150)):
            outbox.write(piece)
            expected += piece
        if number % 3 == 0:
            group.flush()
        if number == 150:
            nursery.start_soon(read)
            await trio.lowlevel.checkpoint()
    group.flush()
    with trio.fail_after(10):
        await outbox.drained()
        assert outbox.pending_bytes <= LIMITS.outbox_bytes_high // 2
        await outbox.emptied()
        while len(received) < len(expected):
            await trio.lowlevel.checkpoint()
    assert received == expected
    assert resumed
    assert max(resumed) <= LIMITS.outbox_bytes_high // 2
    assert outbox.writable
    nursery.cancel_scope.cancel()


async def test_a_broken_outbox_lets_go_of_those_who_wait(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery
) -> None:
    left, right = pair
    group = Outboxes(LIMITS, nursery.start_soon)
    outbox = SocketOutbox(left, group, Owner())
    outbox.write(bytes(10 << 20))
    group.flush()
    nursery.start_soon(outbox.drained)
    nursery.start_soon(outbox.emptied)
    await trio.testing.wait_all_tasks_blocked()
    right.close()
    with trio.fail_after(10):
        while nursery.child_tasks:
            await trio.lowlevel.checkpoint()
    assert outbox.pending_bytes == 0


async def test_a_turn_that_is_wanted_comes_once(nursery: trio.Nursery) -> None:
    turns: list[int] = []
    group = Outboxes(LIMITS, nursery.start_soon)
    nursery.start_soon(group.run, lambda: turns.append(1))
    await trio.testing.wait_all_tasks_blocked()
    assert turns == []
    group.want_turn()
    group.want_turn()
    await trio.testing.wait_all_tasks_blocked()
    assert turns == [1]
    nursery.cancel_scope.cancel()


sizes = st.lists(st.sampled_from([1, 2, 100, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES]), max_size=12)


@given(sizes=sizes, taken=st.lists(st.integers(0, 1 << 17), max_size=8))
def test_buffers_keep_every_byte_in_order_however_much_is_taken(sizes: list[int], taken: list[int]) -> None:
    pieces = [bytes([index]) * size for index, size in enumerate(sizes, 1)]
    expected = b"".join(pieces)
    backlog = deque(join_small(pieces))
    assert b"".join(backlog) == expected
    assert all(any(buffer is piece for buffer in backlog) for piece in pieces if len(piece) >= LARGE_BYTES)
    sent = bytearray()
    for amount in taken:
        if not backlog:
            break
        buffers = next_buffers(backlog)
        part = b"".join(buffers)[:amount]
        sent += part
        remove_sent(buffers, len(part))
        backlog.extendleft(reversed(buffers))
    assert bytes(sent) + b"".join(backlog) == expected


async def test_ranges_of_files_go_between_what_is_in_memory(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery, tmp_path: Path
) -> None:
    content = random.Random(5).randbytes(3 << 20)
    (tmp_path / "file").write_bytes(content)
    left, right = pair
    group = Outboxes(LIMITS, nursery.start_soon)
    outbox = SocketOutbox(left, group, Owner())
    assert outbox.sends_files
    expected = bytearray()

    def write(data: bytes) -> None:
        outbox.write(data)
        expected.extend(data)

    file = OsFiles(tmp_path).open("file")
    for turn in range(6):
        write(b"head %d" % turn)
        for at, size in ((turn * 1000, 100_000), (5, LARGE_BYTES), (1 << 20, 2 << 20 if turn == 3 else 70_000)):
            outbox.write(FileRange(file, at, size, 0))
            expected += content[at : at + size]
            write(b"x" * (turn * 9_000))
        if turn % 2:
            group.flush()
    del file
    received = bytearray()
    with trio.fail_after(10):
        while len(received) < len(expected):
            await trio.lowlevel.wait_readable(right)
            received += right.recv(50_000)
    assert received == expected
    assert outbox.pending_bytes == 0


def test_who_sends_files_to_this_machine_is_not_paced_from_then_on(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(30))
    told: list[socket.socket] = []
    monkeypatch.setattr("gateway.outbox.do_not_pace", told.append)
    left, right = pair
    group = Outboxes(LIMITS, lambda *_: None)
    outbox = SocketOutbox(left, group, Owner())
    outbox.write(b"head")
    group.flush()
    assert told == []
    for _ in range(2):
        outbox.write(FileRange(OsFiles(tmp_path).open("file"), 0, 30, 0))
        group.flush()
    assert told == [left], "once"
    assert right.recv(100) == b"head" + bytes(60)


def test_one_call_sends_no_more_of_files_than_others_can_wait_for(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(3 << 20))
    left, _ = pair
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)  # as much as the host allows
    file = OsFiles(tmp_path).open("file")
    pieces = [b"head", *[FileRange(file, at << 18, 1 << 18, 0) for at in range(12)]]
    assert 0 < send_with_files(left, pieces) <= 4 + (1 << 20)


async def test_a_file_that_was_cut_ends_the_connection(
    pair: tuple[socket.socket, socket.socket], nursery: trio.Nursery, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(bytes(30_000))
    left, right = pair
    group = Outboxes(LIMITS, nursery.start_soon)
    outbox = SocketOutbox(left, group, Owner())
    outbox.write(b"head")
    outbox.write(FileRange(OsFiles(tmp_path).open("file"), 0, 40_000, 0))
    group.flush()
    received = bytearray()
    with trio.fail_after(10):
        while True:
            await trio.lowlevel.wait_readable(right)
            if not (data := right.recv(50_000)):
                break
            received += data
    assert received == b"head" + bytes(30_000)
    assert outbox.pending_bytes == 0
