"""What this broker asks of the others for its clients: the streams to logs they lead, consumers of their queues.

1. Links come and go (`linked`, `lost`), leaders change (`moved`): streams send again (up to `patience_s`),
   consumers attach again, questions are asked again (up to `timeout_s`). A link is one from this broker; the other
   answers over it.
2. All that a turn has for a broker leaves when the turn ends. What is asked in between comes after it.
3. Consumers have numbers that no other consumer of this process has ever had.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import trio

from routing.cluster.clients.attachment import unseen
from routing.cluster.clients.latest_connections import LatestConnections
from routing.cluster.clients.leader_questions import NO_SUCH_QUEUE, Answer, LeaderQuestions, LinkLost, Send
from routing.cluster.clients.remote_home import RemoteHome
from routing.cluster.clients.remote_log import LogLeaders, RemoteLog
from routing.cluster.clients.remote_topic import RemoteTopicPartition
from routing.cluster.clients.streams import Kept, Stream
from routing.cluster.metadata.log_names import HOME, number_of, transient_of
from routing.errors import LedHere, NotFound, StorageUnavailable
from routing.message import Slab
from routing.unsettled import Outcome

if TYPE_CHECKING:
    from core_log.log_config import LogConfig
    from routing.cluster.clients.attachment import Attachment
    from routing.cluster.clients.remote_queue import RemoteQueue
    from routing.cluster.cluster import Cluster
    from routing.consumer import Consumer

TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 25.0
"""For what may take some seconds; longer than any of these takes."""
READS_MAX = 32
"""Reads of logs led elsewhere that are under way at once; each asks for at most `stream_read_bytes`."""


class EngineLink(Protocol):
    """To another broker. What is not answered by return is collected until `flush`."""

    @property
    def broker(self) -> int:
        """Its id."""

    def publish(self, log: str, leader_epoch: int, kept: Kept, *, begins: bool, again: bool) -> None:
        """Send messages. `begins`: nothing that was sent before and not answered matters any more; else they are taken
        only behind what was sent before them. `again`: another leader may have had them.
        """

    def wait(self, log: str, leader_epoch: int, sync_before: int, heard_before: int) -> None:
        """Say that somebody waits, and how far answers have come."""

    def settle(self, number: int, outcome: Outcome, ranges: list[int]) -> None:
        """Say what became of deliveries: first and last id of each range."""

    def credit(self, number: int, messages: int, size_bytes: int) -> None:
        """Let a consumer have more: all that it may have been sent."""

    def flush(self) -> None:
        """Send all of that."""

    def beat(self) -> None:
        """Show that this broker lives, if nothing has shown it for a while."""

    def consume(self, request: int, log: str, leader_epoch: int, queue_id: int, attachment: Attachment) -> None:
        """Attach a consumer."""

    def cancel(self, number: int) -> None:
        """Take it off, once what it gives back in this turn is back: else others get first what comes after that."""

    def ask(self, request: int, what: str, log: str, leader_epoch: int, queue_id: int, number: int) -> None:
        """Ask about a queue: "count", "purge" or "get"."""

    def command(self, request: int, log: str, leader_epoch: int, name: str, arguments: Mapping[str, Any]) -> None:
        """Have something done with a queue of a home (`served_commands.py`)."""

    def fetch(
        self, request: int, log: str, leader_epoch: int, offset: int, before: int, size_bytes: int, *, waits: bool
    ) -> None:
        """Read a log: whole batches from `offset` on, below `before`, about so many bytes. With `waits` there is no
        answer before the high watermark is beyond `offset`.
        """

    def find_time(self, request: int, log: str, leader_epoch: int, timestamp_ms: int) -> None:
        """Ask where the first record at or after a time is."""


class Forwarding:
    """See the module. `spawn` starts tasks, `want_turn` has a turn soon."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        spawn: Callable[..., Any],
        want_turn: Callable[[], None],
        now_s: Callable[[], float] = trio.current_time,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = TIMEOUT_S,
    ) -> None:
        self.cluster = cluster
        self.spawn = spawn
        self.want_turn = want_turn
        self.now_s = now_s
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        """How long publishers wait for a leader that takes what they publish."""
        self.links: dict[int, EngineLink] = {}
        self.own: EngineLink | None = None
        """To this broker itself, where it leads what it has sent elsewhere before."""
        self.streams: dict[str, Stream] = {}
        self.dirty: dict[Stream, None] = {}
        self.numbers: dict[int, RemoteQueue] = {}
        """Whose consumer has a number."""
        self.held_up: dict[Attachment, int] = {}
        """Consumers for which something waits that they cannot be given, and how much they had been given at the last
        tick."""
        self.connections = LatestConnections()
        self.process = secrets.randbits(62)
        """Positions and numbers are this process's."""
        self._next_number = 1
        self._questions = LeaderQuestions(self.leader_of, self.links, self.flush, want_turn, now_s)
        self._logs = LogLeaders(cluster, self._questions, spawn=spawn, want_turn=want_turn, reads_max=READS_MAX)
        self._room = trio.Event()
        cluster.moved.append(self._moved)

    @property
    def revision(self) -> int:
        """The metadata's that is applied here."""
        return self.cluster.store.revision

    def leader_of(self, log: str) -> tuple[int | None, int]:
        """See `Cluster.leader_of`; queues that end with a process are led by it alone."""
        return transient_of(log) or self.cluster.leader_of(log)

    def was_handed_over(self, log: str) -> bool:
        """Whether its leader was given it by the one before, who had answered everybody."""
        state = self.cluster.state_of(log)
        return state is not None and state.resigned

    def link_for(self, broker: int | None) -> EngineLink | None:
        """The link that leads to a broker."""
        if broker is None:
            return None
        return self.own if broker == self.cluster.broker_id else self.links.get(broker)

    def whereabouts(self, log: str) -> str:
        """Why nothing can be sent to a log, for a sentence."""
        broker, _ = self.leader_of(log)
        if broker is None:
            return "has no leader now"
        return f"is led by broker {broker}, " + ("which does not answer" if broker in self.links else "which is away")

    # ---- homes and streams

    def home(self, index: int) -> RemoteHome:
        """What stands for a home that is led elsewhere."""
        return RemoteHome(index, self)

    def partition(self, log: str) -> RemoteTopicPartition:
        """What stands for a partition of a topic that is led elsewhere."""
        return RemoteTopicPartition(
            self.stream(log), self._logs, lambda: self._logs.ends(log, timeout_s=self.timeout_s)
        )

    def log(self, log: str, what: str, settings: LogConfig) -> RemoteLog:
        """What stands for the log of a partition that this broker has no replica of."""
        return RemoteLog(log, what, settings, self._logs)

    def stream(self, log: str) -> Stream:
        """The stream to a log, for as long as the process or its topic lives: positions never begin anew."""
        found = self.streams.get(log)
        if found is None:
            found = self.streams[log] = Stream(log, self)
            found.look()
        return found

    def forget(self, stream: Stream) -> None:
        """What a stream leads to is deleted, and comes never again under that name."""
        self.streams.pop(stream.name, None)
        self.dirty.pop(stream, None)
        self.room_changed()

    def new_number(self, queue: RemoteQueue) -> int:
        """For a consumer of a queue."""
        number = self._next_number
        self._next_number += 1
        self.numbers[number] = queue
        return number

    # ---- turns and time

    def end_turn(self) -> None:
        """Give the links what the turn has brought; see rule 2."""
        if self.dirty:
            self._send()

    def _send(self) -> None:
        dirty, self.dirty = self.dirty, {}
        for stream in dirty:
            stream.look()
            stream.send()

    def flush(self, link: EngineLink) -> None:
        """Have all that was said so far arrive before what is asked now."""
        if self.dirty:
            self._send()
        link.flush()

    def tick(self) -> None:
        """Time has passed."""
        now_s = self.now_s()
        for stream in tuple(self.streams.values()):
            stream.tick(now_s)
        self.room_changed()
        for attachment, handed in tuple(self.held_up.items()):
            queue = self.numbers.get(attachment.number)
            if queue is None or not attachment.is_held_up or attachment.handed == handed:
                del self.held_up[attachment]
                if queue is not None and attachment.is_held_up:
                    self.spawn(queue.recall, attachment)
            else:
                self.held_up[attachment] = attachment.handed

    async def wait_for_room(self) -> None:
        """Return when no stream has too much that is not answered."""
        while self._is_full():
            await self._room.wait()

    def _is_full(self) -> bool:
        return any(stream.kept_bytes and not stream.has_room for stream in self.streams.values())

    def room_changed(self) -> None:
        """Somebody may go on publishing."""
        if self._room.statistics().tasks_waiting and not self._is_full():
            room, self._room = self._room, trio.Event()
            room.set()

    # ---- links

    def linked(self, link: EngineLink) -> None:
        """There is a link to a broker, in place of any other."""
        before = self.links.get(link.broker)
        if before is not None:
            self.lost(before)
        self.links[link.broker] = link
        self._look()

    def lost(self, link: EngineLink) -> None:
        """A link is over."""
        if self.links.get(link.broker) is link:
            del self.links[link.broker]
        self._questions.lost(link)
        self._look()
        for queue in dict.fromkeys(self.numbers.values()):
            queue.lost(link)

    def _moved(self, log: str) -> None:
        """The leader of a log has changed, or its epoch."""
        stream = self.streams.get(log)
        if stream is not None:
            stream.look()
            self.dirty[stream] = None
        if number_of(log, HOME) is not None:  # a broker that goes moves thousands of logs, most are of topics
            broker, _ = self.leader_of(log)
            for queue in [one for one in dict.fromkeys(self.numbers.values()) if one.home.name == log]:
                for link in tuple(self.links.values()):
                    if link.broker != broker:
                        queue.lost(link)
        self._questions.look()
        self.want_turn()

    def look(self) -> None:
        """A queue is led here now, or gone: whoever asks about it need not wait."""
        self._questions.look()

    def _look(self) -> None:
        for stream in self.streams.values():
            stream.look()
        self._questions.look()
        self.want_turn()

    # ---- what comes

    def delivered(self, link: EngineLink, number: int, first_id: int, redelivered: bool, slab: Slab) -> None:
        """Messages for a consumer."""
        queue = self.numbers.get(number)
        if queue is not None:
            queue.delivered(link, number, first_id, redelivered, slab)
        else:
            unseen(link, number, first_id, len(slab.bodies), redelivered)

    def placed(self, number: int, first_id: int, ranges: Sequence[int]) -> None:
        """Where deliveries lie that come next."""
        queue = self.numbers.get(number)
        if queue is not None:
            queue.placed(number, first_id, ranges)

    def over(self, number: int, *, queue_is_gone: bool) -> None:
        """A consumer is gone at the leader."""
        queue = self.numbers.get(number)
        if queue is not None:
            queue.over(number, queue_is_gone=queue_is_gone)

    def done(self, log: str, leader_epoch: int, written: int, committed: int, refused: Sequence[int]) -> None:
        """How far a leader is."""
        stream = self.streams.get(log)
        if stream is not None:
            stream.done(leader_epoch, written, committed, refused)

    def not_led(self, link: EngineLink, log: str, leader_epoch: int, *, last: bool) -> None:
        """What was published to a log was not taken; `last` as in `ServedLink`."""
        stream = self.streams.get(log)
        if stream is not None:
            stream.not_led(link, leader_epoch, last=last)

    def answered(self, request: int, answer: Answer) -> None:
        """To a question."""
        if not self._questions.answered(request, answer) and answer.slab is not None and answer.number:
            queue = self.numbers.get(answer.number)  # nobody waits for it any more
            if queue is not None:
                queue.not_wanted(answer.number, answer.first_id, answer.redelivered)

    # ---- questions

    async def ask(self, queue: RemoteQueue, what: str) -> Answer:
        """Ask the leader of a queue: "count", "purge", "get". Raises StorageUnavailable, NotFound."""

        def send(link: EngineLink, request: int, leader_epoch: int) -> None:
            number = queue.getter(link).number if what == "get" else 0
            link.ask(request, what, queue.home.name, leader_epoch, queue.id, number)

        return await self._ask(queue, send, self.now_s() + self.timeout_s)

    async def consume(self, queue: RemoteQueue, consumer: Consumer, *, patient: bool = False) -> Attachment | None:
        """Attach a consumer; None if it went meanwhile. With `patient` for as long as it takes. Raises what the leader
        says, and StorageUnavailable.
        """
        attached: list[Attachment | None] = []

        def send(link: EngineLink, request: int, leader_epoch: int) -> bool:
            attachment = queue.attaching(consumer, link)
            attached[:] = [attachment]
            if attachment is not None:
                link.consume(request, queue.home.name, leader_epoch, queue.id, attachment)
            return attachment is not None

        await self._ask(queue, send, float("inf") if patient else self.now_s() + self.timeout_s)
        if queue.retired:
            raise LedHere(f"queue '{queue.name}' in vhost '{queue.vhost}' is led here now")
        return attached[0] if attached else None

    async def command(self, queue: RemoteQueue, name: str, arguments: Mapping[str, Any], *, repeat: bool) -> Any:
        """Have the leader of a queue do something; what it answers. Raises what that raises, StorageUnavailable, also
        where nobody knows whether it was done and it may not be done twice (`repeat`).
        """

        def send(link: EngineLink, request: int, leader_epoch: int) -> None:
            link.command(request, queue.home.name, leader_epoch, name, arguments)

        answer = await self._ask(queue, send, self.now_s() + COMMAND_TIMEOUT_S, repeat=repeat)
        return answer.value[0] if answer.value else None

    async def _ask(self, queue: RemoteQueue, send: Send, deadline_s: float, *, repeat: bool = True) -> Answer:
        """Raises what the leader says, NotFound, LedHere, StorageUnavailable."""
        log = queue.home.name
        answer = await self._questions.ask(log, send, deadline_s, gone=lambda: queue.deleted, repeat=repeat)
        if answer is None and queue.retired:
            raise LedHere(f"queue '{queue.name}' in vhost '{queue.vhost}' is led here now")
        if answer is None:
            what = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            raise NotFound(f"no {what}") if queue.deleted else StorageUnavailable(f"{what} {self.whereabouts(log)}")
        if isinstance(answer.error, LinkLost):
            text = f"queue '{queue.name}' in vhost '{queue.vhost}' {self.whereabouts(log)}: it may have been done"
            raise StorageUnavailable(text)
        if isinstance(answer.error, NotFound) and str(answer.error) == NO_SUCH_QUEUE:
            raise NotFound(f"no queue '{queue.name}' in vhost '{queue.vhost}'")
        if answer.error is not None:
            raise answer.error
        return answer
