"""The clients are of trio, and are used in asyncio programs as well: the same classes and the same methods.

1. A method that waits is marked by `on_either_loop`. Called in a task of trio's it is what it is; called in asyncio it
   is carried out by trio, which is asyncio's guest (`asyncio_host.py`), and awaited there.
2. What does not wait runs where it is called: a record is taken, or handed out, without either loop.
3. What an application gives to a client, and is awaited (a listener, a handler), is awaited on the application's loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio
from trio.lowlevel import in_trio_task

if TYPE_CHECKING:
    import asyncio

    from protocols.native.clients.asyncio_host import Hosted

Method = TypeVar("Method", bound=Callable[..., Coroutine[Any, Any, Any]])
T = TypeVar("T")


def on_either_loop(method: Method) -> Method:
    """See the module's rule 1. The first argument is an `OnEitherLoop`."""

    @wraps(method)
    def called(client: OnEitherLoop, /, *arguments: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        hosted = client._hosted
        if in_trio_task():
            return method(client, *arguments, **named)
        if hosted is None:
            raise RuntimeError("the client is not open: it is used in its block (`async with`)")
        return hosted.carry_out(method, client, *arguments, **named)

    return cast(Method, called)


class OnEitherLoop:
    """Base of what is used on either loop."""

    _hosted: Hosted | None = None
    """How asyncio gets at it, if it was opened there."""

    async def _await_given(self, given: Awaitable[T]) -> T:
        """What the application gave: rule 3."""
        return await (given if self._hosted is None else self._hosted.await_given(given))

    @on_either_loop
    async def _run_in_trio(self, work: Callable[[], Awaitable[T]]) -> T:
        """What is not a method."""
        return await work()


class EventOnEitherLoop:
    """An event that tasks of both loops may wait for; each kind is made when it is needed."""

    __slots__ = ("_asyncio", "_trio")

    def __init__(self) -> None:
        self._asyncio: asyncio.Event | None = None
        self._trio: trio.Event | None = None

    def set(self) -> None:
        """Have all go on; called once."""
        for event in (self._asyncio, self._trio):
            if event is not None:
                event.set()

    async def wait(self) -> None:
        """Wait on the loop of the caller."""
        if in_trio_task():
            if self._trio is None:
                self._trio = trio.Event()
            await self._trio.wait()
        else:
            import asyncio  # nobody else needs it

            if self._asyncio is None:
                self._asyncio = asyncio.Event()
            await self._asyncio.wait()
