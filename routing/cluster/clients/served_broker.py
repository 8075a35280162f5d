"""What this broker does for the clients of another, with the queues that it leads.

1. What another broker publishes is taken in the order of its positions, each once: what this broker has in this leader
   epoch is dropped when it comes again. The answer is how far the log has got with it. What queues refuse (they are
   full, or the disk is) is told as positions, and counts as done.
2. A consumer of another broker is a session here with one consumer, whose credit that broker grants. The ids of its
   deliveries are the session's. When the link is lost all is given back at once.
3. Nothing is done for a home that this broker does not lead now: the answer is that it does not.
4. Who ceases to lead a log says so to all who have published to it, behind its last answer: it is the last word on what
   they have sent. What is committed later says nothing of that any more.
5. What is said for a client over an earlier connection than its latest is not done (`latest_connections.py`): that is
   told first, then it counts as done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from core_log.errors import LogError, LogUnavailable
from routing.cluster.clients.latest_connections import is_latest
from routing.cluster.clients.leader_questions import NO_SUCH_QUEUE, Answer, NotLed
from routing.cluster.clients.orders import ALL_NEW, NO_QUEUE, fields_of, obey
from routing.cluster.clients.published import Publisher, Taken
from routing.cluster.clients.served import PeerConsumer, ServedLink, Sink
from routing.cluster.clients.served_commands import ServedCommands
from routing.cluster.clients.served_logs import ServedLogs
from routing.cluster.clients.streams import Records
from routing.errors import BrokerError, NotFound, NotLeader, PreconditionFailed
from routing.message import Slab
from routing.publishing.deduplication import put
from routing.publishing.overflowing import deliver_refused
from routing.queues.homes.destination_sets import NO_DUPLICATES
from routing.queues.homes.home import for_others
from routing.queues.homes.queue_partition import QueuePartition
from routing.queues.queue import Queue
from routing.queues.queue_rules import COME_AGAIN_S
from routing.queues.view_queue import ViewQueue
from routing.session import Session
from routing.topics.single_records import unpacked
from routing.unsettled import Outcome

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from routing.cluster.clients.serving import Serving

_SAID_FOR_S = 5.0
"""So long something may come yet about a consumer whose queue is gone, by who did not know that."""


class ServedBroker:
    """See the module; one link from another broker."""

    def __init__(self, serving: Serving, link: ServedLink) -> None:
        self.link = link
        self.publisher: Publisher | None = None
        self.logs = ServedLogs(serving, serving.broker, link)
        self.commands = ServedCommands(serving, serving.broker, link)
        self._serving = serving
        self._broker = serving.broker
        self._follows: dict[str, tuple[int, int]] = {}
        """By log: leader epoch, and the position behind what was taken last over this link."""
        self._asked: dict[str, int] = {}
        """By log: the leader epoch in which something was published last."""
        self._sessions: dict[int, Session] = {}
        """By the number of the consumer."""
        self._getting: list[int] = []
        """The sessions of which a message is being got, once for each."""
        self._next_id = 1
        """Of the next message that is got: what a number had before its session ended is not told by the same id."""
        self._alone: set[int] = set()
        """Sessions without a consumer that have something unsettled."""
        self._is_over = False
        """The link is."""

    # ---- publishing

    def begin(self, process: int) -> None:
        """Which process it is."""
        self.publisher = self._serving.publisher(self.link.broker, process)
        for taken in self.publisher.logs.values():
            taken.again()

    def publish(
        self,
        log: str,
        leader_epoch: int,
        position: int,
        queue_ids: Sequence[int],
        once_in_ms: int,
        slab: Slab,
        *,
        begins: bool,
        again: bool,
    ) -> None:
        """Take a slab for queues of a home; `begins` and `again` as in `EngineLink.publish`. With `NO_QUEUE` behind the
        queues they take it though they are full.
        """
        follows = self._follows.pop(log, None)
        self._asked[log] = leader_epoch
        if not begins and follows != (leader_epoch, position):
            return  # what it follows was not taken: that has been said, and all of it comes again
        home = self._serving.home(log, leader_epoch)
        kept = self._serving.keeping(log, leader_epoch) if home is None else None
        if (kept is None and (home is None or home.refusal is not None)) or self.publisher is None:
            self._not_led(log, leader_epoch)
            return
        self._follows[log] = leader_epoch, position + len(slab.bodies)
        where = home if home is not None else kept
        assert where is not None
        taken = self._taken(log, leader_epoch, where.log)
        count = len(slab.bodies)
        end = position + count
        latest = home is None or slab.once is None or is_latest(home, slab.once, self.link, self._serving.connections)
        if end <= taken.next_position:
            return
        if not latest:
            taken.add(end, 0)
            return
        if position < taken.next_position:
            slab = slab.part(taken.next_position - position, count)
            position = taken.next_position
        queues: tuple[Queue, ...] = ()
        try:
            if home is None:
                assert kept is not None
                offset = kept.take(self.publisher.process, position, queue_ids[0], slab, taken)
            elif queue_ids[0] == NO_QUEUE:
                offset = self._obey(home, slab)
            else:
                # Earlier versions may name one twice while its home is handed over.
                there = [queue_id for queue_id in dict.fromkeys(queue_ids) if queue_id in home.queues]
                queues = tuple(home.queues[queue_id] for queue_id in there)
                asks = queue_ids[-1] != NO_QUEUE
                once_in_ms = NO_DUPLICATES if queue_ids[0] == ALL_NEW else once_in_ms
                offset = self._put(home, queues, once_in_ms, slab, position, taken, asks=asks) if queues else 0
        except LogUnavailable:
            del self._follows[log]
            self._not_led(log, leader_epoch)
            return
        if again and home is not None:
            for queue in queues:
                queue.redelivered_before = max(queue.redelivered_before, home.next_offset)
        taken.add(end, offset)

    def _obey(self, home: QueuePartition, slab: Slab) -> int:
        """Do what was told; up to where the log has to get. Raises LogUnavailable."""
        for body in slab.bodies:
            obey(home, fields_of(body), self._broker.sessions)
        home.seal_all()
        if home.log.error is not None:
            raise LogUnavailable(str(home.log.error))
        return home.log.log_end_offset

    def _put(
        self,
        home: QueuePartition,
        queues: tuple[Queue, ...],
        once_in_ms: int,
        slab: Slab,
        position: int,
        taken: Taken,
        *,
        asks: bool,
    ) -> int:
        """Put a slab into queues, as `Session.publish` does, or, unless it `asks`, though they are full; up to where
        the log has to get. Raises LogUnavailable.
        """
        broker = self._broker
        vhost = broker.topology.vhosts[queues[0].vhost]
        route = vhost.router.to_queues(queues, slab.exchange, once_in_ms)
        with for_others((home,)):
            guarded = asks and bool(route.guarded)
            for piece in route.pieces(slab) if guarded else (slab,):
                count = len(piece.bodies)
                fitting = min(route.room(piece.bodies), count) if guarded else count
                fullest = route.fullest(piece.bodies) if fitting < count else None
                if fitting:
                    put(route, piece.part(0, fitting), broker.clock.now_ms)
                if fullest is not None:
                    deliver_refused(route, piece.part(fitting, count), fullest)
                    broker.refused_messages += count - fitting
                    taken.refuse(position + fitting, position + count - 1)
                position += count
        return home.next_offset

    def append(self, log: str, leader_epoch: int, position: int, records: Records, *, begins: bool) -> None:
        """Take records for a partition of a topic; `begins` as in `publish`."""
        keys, blocks, bodies = records
        end = position + len(bodies)
        follows = self._follows.pop(log, None)
        self._asked[log] = leader_epoch
        if not begins and follows != (leader_epoch, position):
            return
        partition = self._serving.partition(log, leader_epoch)
        if partition is None or self.publisher is None or partition.error() is not None:
            self._not_led(log, leader_epoch)
            return
        self._follows[log] = leader_epoch, end
        taken = self._taken(log, leader_epoch, partition.log)
        if end <= taken.next_position:
            return
        single = unpacked(keys, blocks, bodies)
        if single is not None:
            with suppress(LogError):  # else it waits like all that comes, as it is
                partition.append_new(single)
                taken.add(end, partition.next_offset)
                return
        skipped = max(taken.next_position - position, 0)
        if skipped:
            keys = keys if isinstance(keys, bytes) else keys[skipped:]
            blocks = blocks if isinstance(blocks, bytes) else blocks[skipped:]
            bodies = bodies[skipped:]
        taken.add(end, partition.append_records(keys, blocks, bodies, sum(map(len, bodies))))

    def _not_led(self, log: str, leader_epoch: int) -> None:
        self.link.not_led(log, leader_epoch, last=self._serving.epoch_of(log) > leader_epoch)

    def moved(self, log: str, leader_epoch: int, *, is_renewed: bool) -> None:
        """Rule 4; `publisher` was told. Without an epoch the log is deleted."""
        if not leader_epoch:
            self._asked.pop(log, None)
            self._follows.pop(log, None)
            return
        asked = self._asked.get(log)
        if asked is not None and asked < leader_epoch and not is_renewed:
            del self._asked[log]
            self.link.not_led(log, asked, last=True)

    def _taken(self, log: str, leader_epoch: int, where: PartitionLog) -> Taken:
        assert self.publisher is not None
        logs = self.publisher.logs
        found = logs.get(log)
        if found is None or found.leader_epoch != leader_epoch or found.log is not where:
            if found is not None:
                found.close()
                self.publisher.news.pop(found, None)
            role = self._serving.role_of(log)
            found = logs[log] = Taken(log, leader_epoch, where, self.publisher, role)
        return found

    def wait(self, log: str, leader_epoch: int, sync_before: int, heard_before: int) -> None:
        """Somebody there waits for what it published to be committed, or it knows by now what was refused."""
        found = self.publisher.logs.get(log) if self.publisher is not None else None
        if found is not None and found.leader_epoch == leader_epoch:
            found.heard(heard_before, sync_before)
            assert self.publisher is not None
            self.publisher.news[found] = None

    # ---- consuming

    def consume(
        self,
        request: int,
        log: str,
        leader_epoch: int,
        queue_id: int,
        number: int,
        *,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        messages: int,
        size_bytes: int,
        at_most_once: bool,
    ) -> None:
        """Attach a consumer."""
        queue = self._queue(request, log, leader_epoch, queue_id)
        if queue is None:
            return
        session = self._session(number, queue)
        consumer = PeerConsumer(
            session, queue, tag, no_ack=no_ack, exclusive=exclusive, priority=priority, at_most_once=at_most_once
        )
        consumer.allowed, consumer.allowed_bytes = messages, size_bytes
        try:
            queue.attach(consumer, {})
        except BrokerError as error:
            self.end(number)
            self.link.answer(request, Answer(error))
            return
        session.consumers[consumer] = None
        self.link.answer(request, Answer())
        queue.wake()

    def credit(self, number: int, messages: int, size_bytes: int) -> None:
        """A consumer may be sent more."""
        session = self._sessions.get(number)
        for consumer in session.consumers if session is not None else ():
            assert isinstance(consumer, PeerConsumer)
            consumer.allowed, consumer.allowed_bytes = messages, size_bytes
            consumer.queue.wake()

    def cancel(self, number: int) -> None:
        """A consumer consumes no more."""
        session = self._sessions.get(number)
        if session is not None:
            for consumer in list(session.consumers):
                session.cancel(consumer)
            self._alone.add(number)
            self._end_if_idle(number)

    def settle(self, number: int, outcome: Outcome, ranges: Sequence[int]) -> None:
        """What became of deliveries; of those that are not known nothing is said."""
        session = self._sessions.get(number)
        if session is None:
            return
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            try:
                session.settle(first, last, outcome)
            except PreconditionFailed:
                continue
        self._end_if_idle(number)

    def session_of(self, number: int) -> Session | None:
        """That of a consumer."""
        return self._sessions.get(number)

    def _session(self, number: int, queue: Queue) -> Session:
        found = self._sessions.get(number)
        if found is None:
            sink = Sink(self.link, number, self._over)
            found = self._broker.session(sink, protocol="peer", owner=self, vhost=queue.vhost)
            found.on_failed = partial(self._failed, number)
            self._sessions[number] = found
        return found

    def _end_if_idle(self, number: int) -> None:
        session = self._sessions[number]
        if not session.consumers and not session.unsettled and number not in self._getting:
            self.end(number)

    def _over(self, number: int) -> None:
        """The queue of a consumer is gone, or led elsewhere: its broker forgets the number when it hears of that."""
        self._broker.timers.at(trio.current_time() + _SAID_FOR_S, partial(self._end_over, number))

    def _end_over(self, number: int) -> None:
        session = self._sessions.get(number)
        if session is not None and not session.consumers and number not in self._getting:
            self.end(number)

    def _failed(self, number: int, error: BrokerError) -> None:
        """A consumer cannot be delivered to, and would not get further by coming again: it is cancelled."""
        self.link.over(number, queue_is_gone=True)
        self.end(number)

    def end(self, number: int) -> None:
        """A consumer is over, and all that it has is given back."""
        self._alone.discard(number)
        self._sessions.pop(number).close()

    def tick(self) -> None:
        """Time has passed: nobody says that queues are gone to who has no consumer."""
        for number in list(self._alone):
            if self._has_nothing(number):
                self._alone.discard(number)
                self._broker.timers.at(trio.current_time() + _SAID_FOR_S, partial(self._end_alone, number))

    def _has_nothing(self, number: int) -> bool:
        """All that a session has not settled is of queues that are gone, or led elsewhere."""
        unsettled = self._sessions[number].unsettled
        return number not in self._getting and all(
            isinstance(entry.queue, Queue) and entry.queue.deleted for entry in unsettled
        )

    def _end_alone(self, number: int) -> None:
        session = self._sessions.get(number)
        if session is None or session.consumers:
            return
        if self._has_nothing(number):
            self.end(number)
        else:
            self._alone.add(number)

    def resume(self) -> None:
        """The link takes deliveries again."""
        for session in self._sessions.values():
            session.resume()
        self.logs.resume()

    # ---- questions

    def _queue(self, request: int, log: str, leader_epoch: int, queue_id: int) -> Queue | None:
        """The queue that is meant; None: it was said why not."""
        home = self._serving.home(log, leader_epoch)
        if home is None:
            self.link.answer(request, Answer(NotLed()))
            return None
        queue = home.queues.get(queue_id)
        if queue is None:
            self.link.answer(request, Answer(NotFound(NO_SUCH_QUEUE)))
        elif self._broker.topology.is_leaving(queue):
            self.link.answer(request, Answer(NotLed()))  # asked again, it is gone
            return None
        return queue

    def ask(self, request: int, what: str, log: str, leader_epoch: int, queue_id: int, number: int) -> None:
        """Answer a question about a queue."""
        queue = self._queue(request, log, leader_epoch, queue_id)
        if queue is None:
            return
        if what not in ("count", "purge"):
            # A broker of a version before has no number for who acknowledges nothing: each time it is somebody else.
            self._broker.spawn(self._get, request, queue, number or -request, what == "get_no_ack")
        elif queue.partition.held_for(queue) or (isinstance(queue, ViewQueue) and queue.view.is_behind):
            self._broker.spawn(self._count_later, request, what, log, leader_epoch, queue)
        else:
            self._count(request, what, queue)

    def _count(self, request: int, what: str, queue: Queue) -> None:
        """Count a queue, or purge it."""
        if what == "count":
            queue.rules.used()
        queue.rules.catch_up()
        count = queue.message_count if what == "count" else queue.purge()
        self.link.answer(request, Answer(None, count, queue.consumer_count))

    async def _count_later(self, request: int, what: str, log: str, leader_epoch: int, queue: Queue) -> None:
        """The same once what was taken for it before is in it."""
        await queue.refresh()
        if self._queue(request, log, leader_epoch, queue.id) is not None:
            self._count(request, what, queue)
        self._broker.end_turn()

    async def _get(self, request: int, queue: Queue, number: int, no_ack: bool) -> None:
        if self._is_over:
            return  # else nobody would give back what it gets
        session = self._session(number, queue)
        session.next_id = max(session.next_id, self._next_id)
        self._getting.append(number)
        try:
            got = await session.get(queue.name, no_ack=no_ack)
        except NotLeader:
            answer = Answer(NotLed())
        except BrokerError as error:
            answer = Answer(error)
        else:
            answer = Answer(None, queue.message_count, queue.consumer_count)
            if got is not None and not session.closed:
                slab = got.slab.part(got.index, got.index + 1)
                counts = got.message_count, queue.consumer_count
                answer = Answer(None, *counts, max(number, 0), got.delivery_id, got.redelivered, slab)
        finally:
            self._getting.remove(number)
        self._next_id = max(self._next_id, session.next_id)
        self.link.answer(request, Answer(NotLed()) if session.closed else answer)  # it is asked again
        if not session.closed:
            self._alone.add(number)
            self._end_if_idle(number)
        self._broker.end_turn()

    # ---- turns and the end

    def tell(self, publisher: Publisher) -> None:
        """Say what is new of what it has published."""
        news, publisher.news = publisher.news, {}
        for taken in news:
            taken.tell(self.link)

    def lost(self) -> None:
        """The link is over: all that was given out is back."""
        self._is_over = True
        self.logs.lost()
        queues: dict[Queue, None] = {}
        for session in list(self._sessions.values()):
            for consumer in session.consumers:
                queue = consumer.queue
                queue.detach(consumer)
                if isinstance(queue, Queue):
                    queues[queue] = None
                if session.unsettled and isinstance(consumer, PeerConsumer) and consumer.at_most_once:
                    session.settle_up_to(0, Outcome.ACK)
            session.consumers.clear()
            session.close()
        self._sessions.clear()
        self._alone.clear()
        for queue in queues:
            queue.wake()
            queue.rules.consumers_lost()
            if queue.auto_delete:
                at = trio.current_time() + COME_AGAIN_S
                self._broker.timers.at(at, partial(self._broker.consumer_gone, queue))
