"""Questions to another broker that wait for an answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

import trio

Answer = TypeVar("Answer")


class Questions(Generic[Answer]):
    """Those of one link. Nobody waits for longer than `patience_s`."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._numbers = count(1)
        self._waiting: dict[int, tuple[trio.Event, list[Answer]]] = {}

    async def ask(self, send: Callable[[int], None]) -> Answer | None:
        """Send a question under its number; None if no answer came."""
        number = next(self._numbers)
        answered, answers = self._waiting[number] = trio.Event(), []
        try:
            send(number)
            with trio.move_on_after(self._patience_s):
                await answered.wait()
        finally:
            self._waiting.pop(number, None)
        return answers[0] if answers else None

    def answer(self, number: int, answer: Answer) -> None:
        """One came; maybe nobody waits for it any more."""
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting[1].append(answer)
            waiting[0].set()

    def close(self) -> None:
        """No more will come."""
        for answered, _ in self._waiting.values():
            answered.set()
        self._waiting.clear()
