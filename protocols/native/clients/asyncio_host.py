"""Trio as a guest of asyncio's event loop: both in one thread, so that neither locks nor hands over what it does.

1. A loop of asyncio's has one guest, from when the first client is opened on it to when the last one is closed.
2. A client lives in one task of trio's, which opens it, waits for the end of its block, and closes it.
3. What asyncio asks for is a task of trio's beside it. Whoever asks and is cancelled cancels that task, and goes on
   when it has ended: nothing is left half done behind its back. When the client ends first, it is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import trio

T = TypeVar("T")


class _Guest:
    """Rule 1."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._clients = 0
        self._nobody_left = trio.Event()
        self._ended: asyncio.Future[None] = loop.create_future()
        trio.lowlevel.start_guest_run(
            self._nobody_left.wait,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=loop.call_soon,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
        )

    def _done(self, how: Any) -> None:
        del _guests[self._loop]
        try:
            how.unwrap()
        except BaseException as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    @staticmethod
    async def entered() -> _Guest:
        """The guest of the loop that runs, with one client more."""
        loop = asyncio.get_running_loop()
        while (guest := _guests.get(loop)) is not None and not guest._clients:
            await asyncio.wait([guest._ended])
        if guest is None:
            if trio.lowlevel.in_trio_run():
                raise RuntimeError("trio runs in this thread: a client was not closed before its asyncio loop was?")
            guest = _guests[loop] = _Guest(loop)
        guest._clients += 1
        return guest

    async def leave(self) -> None:
        """One client less; with the last one the guest ends."""
        self._clients -= 1
        if not self._clients:
            self._nobody_left.set()
            await _to_its_end(self._ended)
            self._ended.result()


_guests: dict[asyncio.AbstractEventLoop, _Guest] = {}


class _Task(Generic[T]):
    """What a task of trio's does, and asyncio waits for."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._scope = trio.CancelScope()
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Do it, in trio."""
        answer = self.answer
        try:
            with self._scope:
                value = await self._function()
        except trio.Cancelled:
            answer.set_exception(RuntimeError("the client was closed meanwhile"))
            raise
        except BaseException as error:
            answer.set_exception(error)
        else:
            if self._scope.cancelled_caught:
                answer.cancel()
            else:
                answer.set_result(value)

    def cancel(self) -> None:
        """Have it end early."""
        self._scope.cancel()

    async def result(self) -> T:
        """What came of it, in asyncio: rule 3."""
        try:
            await asyncio.wait([self.answer])
        except asyncio.CancelledError:
            self.cancel()
            await _to_its_end(self.answer)
            raise
        return self.answer.result()


async def _to_its_end(future: asyncio.Future[Any]) -> None:
    """Wait for it, whoever is cancelled meanwhile, and take note of its error."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            pass  # its end is under way
    if not future.cancelled():
        future.exception()


class Client(Protocol):
    """What is hosted."""

    _nursery: trio.Nursery

    async def _enter(self) -> None: ...

    async def _exit(self, error: BaseException | None) -> None: ...


class Hosted:
    """A client that is open in asyncio."""

    def __init__(self, client: Client, guest: _Guest) -> None:
        self._client = client
        self._guest = guest
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._left = trio.Event()
        self._error: BaseException | None = None
        self._life = _Task(self._live)

    @staticmethod
    async def opened(client: Client) -> Hosted:
        """Open a client."""
        hosted = Hosted(client, await _Guest.entered())
        trio.lowlevel.spawn_system_task(hosted._life.run)
        life = hosted._life.answer
        try:
            await asyncio.wait([hosted._opened, life], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            hosted._life.cancel()
            await hosted.ended(None)
            raise
        if life.done():
            await hosted.ended(None)
        return hosted

    async def _live(self) -> None:
        """Rule 2."""
        client = self._client
        await client._enter()
        try:
            self._opened.set_result(None)
            await self._left.wait()
        except BaseException as error:
            await client._exit(error)
            raise
        await client._exit(self._error)

    async def ended(self, error: BaseException | None) -> None:
        """Close it, after its block was left in this way. Raises what opening or closing it does, and RuntimeError on
        another loop.
        """
        self._require_loop()
        self._error = error
        self._left.set()
        try:
            await self._life.result()
        finally:
            await self._guest.leave()

    def _require_loop(self) -> None:
        """Who asks on another loop, as in the next `asyncio.run`, would wait for ever."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the client belongs to another asyncio loop: the one on which its block was entered")

    async def carry_out(self, method: Callable[..., Awaitable[T]], /, *arguments: Any, **named: Any) -> T:
        """Have trio do something with the client. Raises RuntimeError when it is closed, and on another loop."""
        self._require_loop()
        if self._life.answer.done():
            raise RuntimeError("the client is closed")
        task = _Task(lambda: method(*arguments, **named))
        self._client._nursery.start_soon(task.run)
        return await task.result()

    async def await_given(self, given: Awaitable[T]) -> T:
        """Await something in asyncio, for trio."""
        task = asyncio.ensure_future(given, loop=self._loop)
        done = trio.Event()
        task.add_done_callback(lambda _: done.set())
        try:
            await done.wait()
        except trio.Cancelled:
            task.cancel()
            with trio.CancelScope(shield=True):
                await done.wait()
            if task.cancelled():
                raise
        return task.result()
