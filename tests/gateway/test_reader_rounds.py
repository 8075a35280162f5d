"""Rounds of turns, and what the reading task waits for besides sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import trio
import trio.testing

from core_log.files import OsFiles
from core_log.kernel_sync import KernelSync
from core_log.log_flusher import LogFlusher
from gateway.readers import Readers
from tests.core_log.helpers import make_batch, open_log
from tests.gateway.test_readers import Echo, LoopRounds, noted, only_linux, reading

needs_kernel = pytest.mark.skipif(KernelSync.open() is None, reason="the kernel does not offer it here")


class Order(list[str]):
    """What is told of rounds, among what the readers do."""

    def begin_round(self) -> None:
        self.append("begin")

    def end_round(self) -> None:
        self.append("end")

    def break_off_round(self) -> None:
        self.append("broken off")


@only_linux
async def test_a_round_is_all_who_are_ready_and_ends_with_a_turn_that_waits() -> None:
    order = Order()
    with noted(order, waits=True, goes=True) as (waits, goes):
        async with reading(goes, waits, rounds=order):
            await trio.testing.wait_all_tasks_blocked()
            assert (order[0], sorted(order[1:3]), order[3:]) == ("begin", ["goes", "waits"], ["end"])
            order.clear()
            waits.may_go_on = trio.Event()
            waits.theirs.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
            assert order == ["begin", "waits", "broken off"]
            goes.theirs.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
            assert order[3:] == ["begin", "goes", "end"], "another task goes on"
            waits.may_go_on.set()
            await trio.testing.wait_all_tasks_blocked()
            assert order[6:] == ["waits went on"], "in no round"
        assert order[7:] == ["broken off"], "by the end of the task"


@only_linux
async def test_who_needs_little_does_not_wait_for_the_end_of_who_needs_much() -> None:
    order = Order()
    with noted(order, much=False, little=True) as (much, little):
        async with reading(much, little, rounds=order):
            await trio.testing.wait_all_tasks_blocked()
    assert order[:6] == ["begin", "little", "end", "begin", "much", "end"]


@only_linux
async def test_what_is_watched_is_told_of_until_the_reader_ends() -> None:
    order = Order()
    number = os.eventfd(0, os.EFD_NONBLOCK)

    def ready() -> None:
        os.read(number, 8)
        order.append("ready")

    async with trio.open_nursery() as nursery:
        assert Readers(nursery.start_soon, order).watch(number, ready, lambda: order.append("given back"))
        for _ in range(2):
            os.eventfd_write(number, 1)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert order == ["begin", "ready", "end"] * 2 + ["broken off", "given back"]
    os.close(number)


@only_linux
async def test_what_is_watched_outlives_a_task_whose_turn_waits() -> None:
    order = Order()
    number = os.eventfd(0, os.EFD_NONBLOCK)
    with noted(order, waits=True) as (waits,):
        waits.may_go_on = trio.Event()
        async with trio.open_nursery() as nursery:
            readers = Readers(nursery.start_soon)
            readers.watch(number, lambda: order.append(str(os.read(number, 8)[0])), lambda: order.append("given back"))
            readers.add(waits.ours, waits)
            await trio.testing.wait_all_tasks_blocked()
            readers.remove(waits.ours)
            await trio.testing.wait_all_tasks_blocked()
            os.eventfd_write(number, 7)
            await trio.testing.wait_all_tasks_blocked()
            assert order == ["waits", "7"]
            nursery.cancel_scope.cancel()
    assert order == ["waits", "7", "given back"]
    os.close(number)


class Writer(Echo):
    """Appends what it reads to a log, and answers when that is synced."""

    def __init__(self, ours: socket.socket, flusher: LogFlusher, directory: Path) -> None:
        super().__init__(ours)
        self._log = open_log(OsFiles(str(directory)), flusher=flusher)
        self._log.listeners.append(self._answer)
        self._asked: list[tuple[int, bytes]] = []

    async def turn(self) -> bool:
        data = self._ours.recv(100)
        self._log.append(make_batch([data]))
        self._log.request_sync()
        self._asked.append((self._log.log_end_offset, data))
        return False

    def _answer(self, _: object) -> None:
        while self._asked and self._log.committed_offset >= self._asked[0][0]:
            self._ours.send(self._asked.pop(0)[1])


@only_linux
@needs_kernel
def test_a_synced_record_takes_no_round_of_the_event_loop(tmp_path: Path) -> None:
    rounds = LoopRounds()
    ours, theirs = socket.socketpair()

    async def main() -> None:
        flusher = LogFlusher()
        async with trio.open_nursery() as nursery:
            await nursery.start(flusher.run)
            async with trio.open_nursery() as reading:
                readers = Readers(reading.start_soon, flusher, holds=True)
                flusher.lend(readers.watch)
                writer = Writer(ours, flusher, tmp_path)
                readers.add(ours, writer)
                await trio.to_thread.run_sync(ask_all, theirs)
                reading.cancel_scope.cancel()
            with trio.fail_after(5):  # who reads is gone: the flusher looks after itself
                writer._log.append(make_batch([b"x"]))
                await writer._log.wait_committed(writer._log.log_end_offset)
            nursery.cancel_scope.cancel()

    with ours, theirs:
        trio.run(main, instruments=[rounds])
    assert rounds.count < 40


def ask_all(theirs: socket.socket) -> None:
    """One after another."""
    theirs.settimeout(10)
    for number in range(100):
        theirs.send(b"%d" % number)
        assert theirs.recv(100) == b"%d" % number
