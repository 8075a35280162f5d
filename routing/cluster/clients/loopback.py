"""What a broker had sent to a leader that is gone, when it leads the log itself now: it answers itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from routing.cluster.clients.streams import Kept, Slabs
from routing.message import Slab
from routing.unsettled import Outcome

if TYPE_CHECKING:
    from routing.cluster.clients.attachment import Attachment
    from routing.cluster.clients.forwarding import Forwarding
    from routing.cluster.clients.leader_questions import Answer
    from routing.cluster.clients.serving import Serving


class Loopback:
    """Both ends of a link, as far as publishing goes; queues that are led here are asked without one."""

    writable = True

    def __init__(self, broker: int, forwarding: Forwarding, serving: Serving, want_turn: Callable[[], None]) -> None:
        self.broker = broker
        self._forwarding = forwarding
        self._want_turn = want_turn
        self._served = serving.linked(self)
        self._served.begin(forwarding.process)

    def publish(self, log: str, leader_epoch: int, kept: Kept, *, begins: bool, again: bool) -> None:
        """See `EngineLink`."""
        what = kept.what
        if isinstance(what, Slabs):
            self._served.publish(
                log,
                leader_epoch,
                kept.position,
                what.queue_ids,
                what.once_in_ms,
                what.slab,
                begins=begins,
                again=again,
            )
        else:
            self._served.append(log, leader_epoch, kept.position, what, begins=begins)
        self._want_turn()

    def wait(self, log: str, leader_epoch: int, sync_before: int, heard_before: int) -> None:
        """See `EngineLink`."""
        self._served.wait(log, leader_epoch, sync_before, heard_before)
        self._want_turn()

    def done(self, log: str, leader_epoch: int, written: int, committed: int, refused: Sequence[int]) -> None:
        """See `ServedLink`."""
        self._forwarding.done(log, leader_epoch, written, committed, refused)

    def not_led(self, log: str, leader_epoch: int, *, last: bool) -> None:
        """See `ServedLink`."""
        self._forwarding.not_led(self, log, leader_epoch, last=last)

    def fenced(self, client: int, epoch: int) -> None:
        """See `ServedLink`."""
        self._forwarding.connections.fence(client, epoch)

    def flush(self) -> None:
        """Nothing is collected."""

    def beat(self) -> None:
        """Nobody listens."""

    def replaced(self) -> None:
        """Never."""

    def settle(self, number: int, outcome: Outcome, ranges: list[int]) -> None:
        """Never: nobody consumes over this link."""

    def credit(self, number: int, messages: int, size_bytes: int) -> None:
        """Never."""

    def consume(self, request: int, log: str, leader_epoch: int, queue_id: int, attachment: Attachment) -> None:
        """Never."""

    def cancel(self, number: int) -> None:
        """Never."""

    def ask(self, request: int, what: str, log: str, leader_epoch: int, queue_id: int, number: int) -> None:
        """Never."""

    def command(self, request: int, log: str, leader_epoch: int, name: str, arguments: Mapping[str, Any]) -> None:
        """Never."""

    def fetch(
        self, request: int, log: str, leader_epoch: int, offset: int, before: int, size_bytes: int, *, waits: bool
    ) -> None:
        """Never."""

    def find_time(self, request: int, log: str, leader_epoch: int, timestamp_ms: int) -> None:
        """Never."""

    def placed(self, number: int, first_id: int, ranges: Sequence[int]) -> None:
        """Never."""

    def deliver(self, number: int, first_id: int, slab: Slab, start: int, stop: int, redelivered: bool) -> None:
        """Never."""

    def answer(self, request: int, answer: Answer) -> None:
        """Never."""

    def over(self, number: int, *, queue_is_gone: bool) -> None:
        """Never."""
