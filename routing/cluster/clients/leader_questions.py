"""Questions to whoever leads a log: asked again when the leader changes, until somebody answers who does lead it.

1. A question is asked over the link to the leader that the metadata names, behind all that was said over it before.
2. A link that is lost, and the answer that a broker does not lead the log, mean: look again.
3. Nobody waits for longer than he said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

if TYPE_CHECKING:
    from core_log.files import BytesLike
    from routing.cluster.clients.forwarding import EngineLink
    from routing.message import Slab

_AGAIN_S = 0.05


class LogPart(NamedTuple):
    """What is said of a log: where it begins, how far it is committed, whole batches of it; or where a time is."""

    log_start: int
    high_watermark: int
    batches: list[BytesLike]
    offset: int = -1


class Answer(NamedTuple):
    """To a question, or to an attachment. Without `error` it was done; `number` and what follows is what was got."""

    error: Exception | None = None
    messages: int = 0
    consumers: int = 0
    number: int = 0
    first_id: int = 0
    redelivered: bool = False
    slab: Slab | None = None
    part: LogPart | None = None
    value: tuple[Any, ...] = ()
    """What an operation answered, alone."""


NO_SUCH_QUEUE = "no such queue"
"""The text with which a leader says NotFound of a queue whose name it does not know."""


class NotLed(Exception):
    """The answer of a broker that does not lead what it was asked for."""


class LinkLost(NotLed):
    """What stands for an answer when the link was lost: nobody knows what was done."""


Send = Callable[["EngineLink", int, int], Any]
"""Asks over a link, under a number, in a leader epoch; it may answer that there is no need any more (False)."""


class LeaderQuestions:
    """See the module. `leader_of` and `links` tell whom to ask, `flush` sends what was said before, `want_turn` has a
    turn soon, which sends the question: whoever asks is in the middle of one, or in none.
    """

    def __init__(
        self,
        leader_of: Callable[[str], tuple[int | None, int]],
        links: dict[int, EngineLink],
        flush: Callable[[EngineLink], None],
        want_turn: Callable[[], None],
        now_s: Callable[[], float],
    ) -> None:
        self._leader_of = leader_of
        self._links = links
        self._flush = flush
        self._want_turn = want_turn
        self._now_s = now_s
        self._next_request = 1
        self._asked: dict[int, tuple[EngineLink, list[Answer], trio.Event]] = {}
        self._changed = trio.Event()

    async def ask(
        self, log: str, send: Send, deadline_s: float, *, gone: Callable[[], bool], repeat: bool = True
    ) -> Answer | None:
        """The leader's answer; None: nobody answered, or what is asked about is `gone`. Unless it may be asked for
        repeatedly the answer is `LinkLost` when that happens.
        """
        while not gone():
            changed = self._changed
            broker, leader_epoch = self._leader_of(log)
            link = self._links.get(broker) if broker is not None else None
            answer = await self._ask(link, leader_epoch, send, deadline_s) if link is not None else None
            if answer is not None and not isinstance(answer.error, NotLed):
                return answer
            if answer is not None and not repeat and isinstance(answer.error, LinkLost):
                return answer
            if self._now_s() >= deadline_s:
                return None
            with trio.move_on_at(min(deadline_s, self._now_s() + _AGAIN_S) if link is not None else deadline_s):
                await changed.wait()
        return None

    async def until_led(self, log: str, *, gone: Callable[[], bool]) -> None:
        """Wait until there is somebody to ask."""
        while not gone():
            changed = self._changed
            if self._leader_of(log)[0] in self._links:
                return
            await changed.wait()

    async def _ask(self, link: EngineLink, leader_epoch: int, send: Send, deadline_s: float) -> Answer | None:
        request = self._next_request
        self._next_request += 1
        answers: list[Answer] = []
        event = trio.Event()
        self._asked[request] = link, answers, event
        try:
            self._flush(link)
            if send(link, request, leader_epoch) is False:
                return Answer()
            self._want_turn()
            with trio.move_on_at(deadline_s):
                await event.wait()
        finally:
            self._asked.pop(request, None)
        return answers[0] if answers else None

    def answered(self, request: int, answer: Answer) -> bool:
        """An answer came; whether anybody waits for it."""
        asked = self._asked.pop(request, None)
        if asked is None:
            return False
        asked[1].append(answer)
        asked[2].set()
        return True

    def lost(self, link: EngineLink) -> None:
        """A link is over."""
        for request, (asked, _, _) in list(self._asked.items()):
            if asked is link:
                self.answered(request, Answer(LinkLost()))

    def look(self) -> None:
        """A leader, or a link, has changed: look again."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()
