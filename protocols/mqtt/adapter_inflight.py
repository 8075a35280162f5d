"""What is under way to a client: packet ids of deliveries, and what acknowledgements mean for them.

1. In a session that lasts a packet id is the message's own: it follows from its offset, so that a message has the same
   whenever it is sent (MQTT-4.4.0-1), whatever becomes of the connection or the broker. If another message that has the
   same is still under way (32,767 offsets apart), deliveries wait for that. Those of queues that such a session shares
   get ids above, which are never its own: who comes back may still know a message by its id. All others get any.
2. At QoS 2 such a message is sent when it is committed: its offset is nobody else's then. PUBREC settles it and has the
   queue hold its offset in the same record (`routing/queues/homes/receipts.py`); PUBREL is sent when that is committed,
   and again to whoever comes back. PUBCOMP ends it. So the receiver has each message once, whoever is killed.
3. Where another broker leads the session's queue it tells where deliveries lie, and what is received and completed is
   told to it by that (`queues/homes/receipts.py`), also when another leads it by then. What a new leader delivers again
   that this connection has been sent is not sent twice: it is acknowledged under the id that it has.
4. PUBREL goes out in the order of the PUBRECs (MQTT-4.6.0-4): what one leader of the queue was told may be known to be
   committed later than what the next one was told after it.
5. The window counts what is not completed (MQTT-3.3.4-9): what the engine counts as settled after PUBREC is taken off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from protocols.mqtt.events import PUBCOMP, PUBREC, PUBREL, Acknowledgements
from protocols.mqtt.inflight import PacketIds
from protocols.mqtt.reasons import ReasonCode
from protocols.mqtt.wire import PACKET_ID_BYTES
from routing.cluster.clients.orders import receive_anywhere
from routing.cluster.clients.remote_queue import RemoteQueue
from routing.queues.homes.home import led_elsewhere
from routing.queues.homes.receipts import complete
from routing.queues.queue import Queue
from routing.queues.runs_of import runs_of
from routing.session import Consumer, Outcome, Session
from routing.unsettled import ACK, Unsettled, entry_at

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter
    from protocols.mqtt.adapter_sessions import LastingSession
    from routing.errors import BrokerError
    from routing.queues.homes.home import Home


OWN_ID_MAX = 32_767
QOS_2 = 2
_NO_OFFSET = -1


def _offsets(entry: Unsettled, first: int, stop: int) -> Sequence[int]:
    """Where deliveries of a session's queue lie in its home."""
    found = entry.offsets_of(first, stop)
    if isinstance(entry.queue, RemoteQueue):
        there = entry.queue.offsets_of(found)
        assert there is not None, "an exclusive consumer is told where its deliveries lie"
        return there
    return found


def _silently(queue: object) -> AbstractContextManager[None]:
    """What is settled in the block is told to who leads the queue by other means."""
    return queue.told() if isinstance(queue, RemoteQueue) else nullcontext()


def own_id(offset: int) -> int:
    """The packet id of the message at an offset of a session's queue."""
    return offset % OWN_ID_MAX + 1


class _Releases:
    """Packet ids that PUBREL is to be sent for, when that is `safe`."""

    __slots__ = ("packet_ids", "safe")

    def __init__(self, packet_ids: list[int]) -> None:
        self.packet_ids = packet_ids
        self.safe = False


class Inflight:
    """Of one connection, from CONNECT on; see the module."""

    __slots__ = (
        "_adapter", "_asked", "_collided", "_held", "_lasting", "_releases", "_session", "_unreceived", "_waiting",
        "_window", "packet_ids",
    )  # fmt: skip

    def __init__(self, adapter: MqttAdapter, session: Session, lasting: LastingSession | None, window: int) -> None:
        self._adapter = adapter
        self._session = session
        self._lasting = lasting
        self._window = window if lasting is None else min(window, OWN_ID_MAX)
        self.packet_ids = PacketIds() if lasting is None else PacketIds(OWN_ID_MAX + 1)
        self._held: dict[int, int] = {}
        """Packet ids after PUBREC, with offsets; -1: it is not the message's own."""
        self._unreceived: set[int] = set()
        """Packet ids at QoS 2 before PUBREC: PUBACK is no answer to them."""
        self._releases: deque[_Releases] = deque()
        """In the order of what asked for them."""
        self._collided = False
        self._waiting: list[tuple[int, bytes]] = []
        """Packets at QoS 2 that are sent when the log has committed so far."""
        self._asked = False
        session.set_prefetch(self._window, per_session=True)

    # --- sending -------------------------------------------------------------------------

    def _own(self, consumer: Consumer) -> Queue | None:
        """The session's queue, if that is what is consumed."""
        queue = consumer.queue
        if self._lasting is None or not isinstance(queue, Queue):
            return None
        return queue if queue.name == self._lasting.name else None

    def take(
        self, consumer: Consumer, first_id: int, count: int, redelivered: bool, qos: int
    ) -> list[tuple[int, int, int]]:
        """Packet ids for deliveries at a QoS, as (first id, place of the first, count). Those that the client has been
        sent are left out. Where ids do not suffice for all, `collided` is true, and the others were given back.
        """
        if self._lasting is None or self._own(consumer) is None:
            taken = self.packet_ids.take(first_id, count)
        else:
            taken = self._take_own(first_id, count, redelivered)
        if qos == QOS_2:
            for packet_id, _, some in taken:
                self._unreceived.update(range(packet_id, packet_id + some))
        return taken

    def _take_own(self, first_id: int, count: int, redelivered: bool) -> list[tuple[int, int, int]]:
        taken: list[tuple[int, int, int]] = []
        done = 0
        entry = entry_at(self._session.unsettled, first_id)
        for offset, length in runs_of(_offsets(entry, first_id, first_id + count)):
            while length:
                packet_id = own_id(offset)
                some = min(length, OWN_ID_MAX - packet_id + 1)
                claimed = self.packet_ids.claim(packet_id, first_id + done, some)
                if claimed:
                    taken.append((packet_id, done, claimed))
                    done += claimed
                if claimed < some and self._has(packet_id + claimed, offset + claimed, first_id + done):
                    done += 1
                    claimed += 1
                    offset, length = offset + claimed, length - claimed
                    continue
                if claimed < some:
                    self.give_back(first_id + done, first_id + count - 1, redelivered)
                    return taken
                offset, length = offset + some, length - some
        return taken

    def _has(self, packet_id: int, offset: int, delivery: int) -> bool:
        """Whether a packet id is in use for this very message, which another leader of the queue delivers again."""
        session = self._session
        entry = entry_at(session.unsettled, delivery)
        if self._held.get(packet_id) == offset:
            if isinstance(entry.queue, RemoteQueue):  # else what was told of it is about to settle it
                with _silently(entry.queue):
                    session.settle(delivery, delivery, ACK)
            return True
        before = self.packet_ids.delivery_of(packet_id)
        if before < 0:
            return False
        there = entry_at(session.unsettled, before)
        if there.queue is entry.queue and not isinstance(there.queue, RemoteQueue):
            return False
        if list(_offsets(there, before, before + 1)) != [offset]:
            return False
        self.packet_ids.rebind(packet_id, delivery)
        session.settle(before, before, ACK)  # of a former leader: it means nothing
        return True

    @property
    def collided(self) -> bool:
        """A packet id that was needed is in use: nothing is sent until it is not."""
        return self._collided

    def give_back(self, first_id: int, last_id: int, redelivered: bool) -> None:
        """These come again when ids are free."""
        self._collided = True
        self._session.pause(True)
        self._session.settle(first_id, last_id, Outcome.UNSEEN_AGAIN if redelivered else Outcome.UNSEEN)

    def may_wait(self, consumer: Consumer, qos: int) -> bool:
        """Whether `write` may send other packets before these."""
        return qos == QOS_2 and self._own_here(consumer) is not None

    def _own_here(self, consumer: Consumer) -> Queue | None:
        """`_own`, where this broker leads it: then it is known when deliveries are committed."""
        return None if isinstance(consumer.queue, RemoteQueue) else self._own(consumer)

    def write(self, consumer: Consumer, packets: bytes, qos: int, last_id: int) -> None:
        """Send publishes, the last of which is this delivery: at QoS 2 when it is committed."""
        own = self._own_here(consumer) if qos == QOS_2 else None
        if own is not None:
            end = entry_at(self._session.unsettled, last_id).offsets_of(last_id, last_id + 1)[0] + 1
            if self._waiting or own.partition.log.committed_offset < end:
                self._waiting.append((end, packets))
                self._ask(own)
                return
        self._adapter.outbox.write(packets)

    def _ask(self, queue: Queue) -> None:
        if not self._asked:
            self._asked = True
            self._session.confirms.when_written([queue.partition], lambda error: self._committed(queue, error))

    def _committed(self, queue: Queue, error: BrokerError | None) -> None:
        self._asked = False
        if error is not None:
            self._adapter.end(str(error), code=ReasonCode.UNSPECIFIED_ERROR)
        if self._adapter.closed:
            return
        committed = queue.partition.log.committed_offset
        while self._waiting and self._waiting[0][0] <= committed:
            self._adapter.outbox.write(self._waiting.pop(0)[1])
        if self._waiting:
            self._ask(queue)

    def resume(self) -> None:
        """Send PUBREL for what the client had received before (MQTT-4.4.0-1)."""
        lasting = self._lasting
        queue = lasting.queue if lasting is not None else None
        if lasting is not None and lasting.held is not None:
            self._hold(lasting.held)
            if self._held:
                self._release(list(self._held))
                self._limit()
            return
        if queue is None or queue.held is None or not queue.held.count:
            return
        self._hold(queue.held.ranges())
        self._release_in_turn(list(self._held), [queue.partition])
        self._limit()

    def _hold(self, ranges: Iterable[tuple[int, int]]) -> None:
        for first, count in ranges:
            for offset in range(first, first + count):
                self._held[own_id(offset)] = offset
                self.packet_ids.hold_unsent(own_id(offset), own_id(offset))

    # --- acknowledgements ------------------------------------------------------------------

    def acknowledge(self, event: Acknowledgements) -> None:
        """Settle what was acknowledged."""
        if event.kind is PUBREC:
            self._received(event)
        elif event.kind is PUBCOMP:
            self._completed(event)
        elif (self._unreceived or self._held) and self._is_at_qos_2(event):
            # It would be received, and not completed: whatever it is, the client takes it for something else.
            self._adapter.end("PUBACK for a publish at QoS 2 [MQTT-4.3.3-1]", code=ReasonCode.PROTOCOL_ERROR)
        else:
            for packet_id, _ in event.failed:
                for first_delivery, last_delivery in self.packet_ids.release(packet_id, packet_id):
                    self._session.settle(first_delivery, last_delivery, Outcome.DISCARD)
            for first, last in event.ranges:
                for first_delivery, last_delivery in self.packet_ids.release(first, last):
                    self._session.settle(first_delivery, last_delivery, ACK)
            if self._collided:
                self._free()

    def _is_at_qos_2(self, event: Acknowledgements) -> bool:
        """Whether any of what is acknowledged was sent so, and is not completed."""
        return any(
            not (self._unreceived.isdisjoint(some) and self._held.keys().isdisjoint(some))
            for some in (range(first, last + 1) for first, last in event.ranges)
        )

    def _received(self, event: Acknowledgements) -> None:
        failed = {packet_id for packet_id, _ in event.failed if packet_id not in self._held}  # else it was received
        if self._unreceived:
            for first, last in event.ranges:
                self._unreceived.difference_update(range(first, last + 1))
        for packet_id in failed:  # that is the end of it (MQTT 5, 4.3.3)
            for first_delivery, last_delivery in self.packet_ids.release(packet_id, packet_id):
                self._session.settle(first_delivery, last_delivery, Outcome.DISCARD)
        told: list[int] = []
        unknown: list[int] = []
        homes: dict[Home, None] = {}
        for first, last in event.ranges:
            for low, high, delivery in self.packet_ids.hold(first, last):
                if delivery >= 0:
                    queue = self._receive(low, high, delivery)
                    if queue is not None:
                        homes[queue.partition] = None
            for packet_id in range(first, last + 1):
                if packet_id in self._held:
                    told.append(packet_id)
                elif packet_id not in failed:
                    unknown.append(packet_id)
        self._limit()
        if unknown:
            reasons = bytes((ReasonCode.PACKET_IDENTIFIER_NOT_FOUND,)) * len(unknown)
            self._release(unknown, reasons)
        if told:
            self._release_in_turn(told, list(homes))
        if failed and self._collided:
            self._free()

    def _receive(self, low: int, high: int, delivery: int) -> Queue | None:
        """The publishes with these ids have arrived; the queue, if that has to be written first."""
        session = self._session
        entry = entry_at(session.unsettled, delivery)
        queue, count = entry.queue, high - low + 1
        own = self._lasting is not None and queue.name == self._lasting.name and isinstance(queue, Queue)
        current = self._lasting.queue if self._lasting is not None else None
        if not own or not isinstance(queue, Queue) or current is None:
            self._held.update(dict.fromkeys(range(low, high + 1), _NO_OFFSET))
            session.settle(delivery, delivery + count - 1, ACK)
            return None
        if current.elsewhere or queue is not current:
            return self._receive_elsewhere(low, high, delivery, current)
        done = 0
        while done < count:
            entry = entry_at(session.unsettled, delivery + done)
            some = min(count - done, entry.end - delivery - done)
            offsets = entry.offsets_of(delivery + done, delivery + done + some)
            self._held.update(zip(range(low + done, low + done + some), offsets))
            done += some
        session.settle(delivery, delivery + count - 1, Outcome.RECEIVED)
        return queue

    def _receive_elsewhere(self, low: int, high: int, delivery: int, current: Queue) -> Queue:
        """The same of what another broker leads, or has led when it was sent."""
        session, done, count = self._session, 0, high - low + 1
        received: list[int] = []
        while done < count:
            entry = entry_at(session.unsettled, delivery + done)
            some = min(count - done, entry.end - delivery - done)
            first = delivery + done
            offsets = _offsets(entry, first, first + some)
            self._held.update(zip(range(low + done, low + done + some), offsets))
            received += offsets
            with _silently(entry.queue):
                session.settle(first, first + some - 1, ACK)
            done += some
        if isinstance(current, RemoteQueue):
            current.received(received, self._lasting.epoch if self._lasting is not None else 0)
        else:
            receive_anywhere(current, received, [session])
        return current

    def _release_in_turn(self, packet_ids: list[int], homes: Collection[Home]) -> None:
        """Send PUBREL when what was settled in these homes is committed, and all that was to be released before is."""
        releases = _Releases(packet_ids)
        self._releases.append(releases)
        if homes:
            self._wait(releases, homes)
        else:
            self._safe(releases)

    def _wait(self, releases: _Releases, homes: Collection[Home]) -> None:
        """Until it is safe, whoever leads these homes by then."""

        def done(error: BrokerError | None) -> None:
            if error is not None and led_elsewhere(homes):
                self._session.confirms.when_written((), lambda _: self._receive_again(releases))
            elif error is not None:
                self._adapter.end(str(error), code=ReasonCode.UNSPECIFIED_ERROR)
            else:
                self._safe(releases)

        self._session.confirms.when_written(homes, done)

    def _receive_again(self, releases: _Releases) -> None:
        """Another broker leads the session's queue by now, and may not know what was received."""
        queue = self._lasting.queue if self._lasting is not None else None
        if self._adapter.closed or self._lasting is None or queue is None:
            return
        held = [self._held.get(packet_id, _NO_OFFSET) for packet_id in releases.packet_ids]
        offsets = sorted(offset for offset in held if offset != _NO_OFFSET)
        if isinstance(queue, RemoteQueue):
            queue.received(offsets, self._lasting.epoch)
        else:
            receive_anywhere(queue, offsets, [self._session])
        self._wait(releases, [queue.partition])

    def _safe(self, releases: _Releases) -> None:
        releases.safe = True
        while self._releases and self._releases[0].safe and not self._adapter.closed:
            self._release(self._releases.popleft().packet_ids)

    def _release(self, packet_ids: list[int], reasons: bytes | None = None) -> None:
        ids = b"".join([PACKET_ID_BYTES[2 * one : 2 * one + 2] for one in packet_ids])
        self._adapter.outbox.write(self._adapter.wire.acknowledgements(PUBREL, ids, reasons))

    def _completed(self, event: Acknowledgements) -> None:
        held = self._held
        offsets = []
        for first, last in event.ranges:
            for packet_id in range(first, last + 1):
                offset = held.pop(packet_id, None)
                if offset is None:
                    continue
                self.packet_ids.release(packet_id, packet_id)
                if offset >= 0:
                    offsets.append(offset)
        queue = self._lasting.queue if self._lasting is not None else None
        if offsets and queue is not None:
            offsets.sort()
            if isinstance(queue, RemoteQueue) and self._lasting is not None:
                queue.completed(offsets, self._lasting.epoch)
            else:
                complete(queue, offsets)
        if self._collided and queue is not None:
            # An id is another message's when nobody can bring back that it was this one's.
            self._session.confirms.when_written([queue.partition], lambda _error: self._free())
        self._limit()

    def _free(self) -> None:
        self._collided = False
        self._limit()

    def _limit(self) -> None:
        """Let the engine give out what the window has room for."""
        session = self._session
        if session.closed:
            return
        room = self._window - len(self._held)
        if room > 0 and not self._collided:
            session.paused = False
            session.set_prefetch(room, per_session=True)
        else:
            session.pause(True)
