"""What an MQTT client publishes: runs of publishes become slabs, and confirms become acknowledgements.

1. PUBACK and PUBREC are sent when the engine confirmed the message, never before, and in the order of the publishes
   (MQTT-4.6.0-2, MQTT-4.6.0-3). What is refused is said so in MQTT 5, as is all while publishers are blocked; before, a
   client is only told by the end of the connection, and sends it again.
2. A packet id at QoS 2 is *taken* from its publish until PUBREL; a publish that repeats one is answered, and goes
   nowhere (MQTT-4.3.3-10). What a session that lasts publishes is numbered by these ids (`Slab.once`), so that homes
   know them after a crash as well. PUBCOMP is sent when that they may be used again is as durable.
3. What could not be stored may be in some logs all the same, or come to be. So it is not refused, whatever the version:
   the connection ends, and the client sends it again, in order and under its packet ids.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from sys import byteorder
from typing import TYPE_CHECKING

from protocols.convert import topic_to_routing_key
from protocols.mqtt.adapter_deliveries import HEADS_QOS_0, WIRES_QOS_0
from protocols.mqtt.adapter_dollar import Mixed, NotReady, keys_asked_about
from protocols.mqtt.adapter_errors import reason_of
from protocols.mqtt.adapter_properties import PUBLISHER_HEADER, slab_of
from protocols.mqtt.events import PUBACK, PUBCOMP, PUBREC, AcknowledgementKind, Acknowledgements, PublishRun
from protocols.mqtt.raw import mark_of
from protocols.mqtt.reasons import ACKNOWLEDGEMENT_REASONS, SERVER_DISCONNECT_REASONS, ReasonCode
from protocols.mqtt.topics import Rewriting
from protocols.mqtt.wire import PACKET_ID_BYTES
from routing.errors import BrokerError, LimitExceeded, StorageUnavailable
from routing.message import Numbered, Slab
from routing.queues.homes.home import led_elsewhere
from routing.queues.homes.receipts import release

if TYPE_CHECKING:
    from core_log.partition_log import PartitionLog
    from protocols.mqtt.adapter import MqttAdapter
    from protocols.mqtt.adapter_sessions import LastingSession
    from routing.queues.homes.home import Home
    from routing.session import Session

EXCHANGE = "amq.topic"
KEYS_REMEMBERED_MAX = 4096

_ANSWERS = (None, PUBACK, PUBREC)
_FAILURE = 0x80


def ids_of(packet_ids: bytes | bytearray) -> array[int]:
    """Packet ids of two bytes each, as numbers."""
    ids = array("H", packet_ids)
    if byteorder == "little":
        ids.byteswap()
    return ids


def _bytes_of(ids: Sequence[int]) -> bytes:
    return b"".join([PACKET_ID_BYTES[2 * one : 2 * one + 2] for one in ids])


def picked(run: PublishRun, places: Sequence[int]) -> PublishRun:
    """Some messages of a run at QoS 1 or 2, as a run of their own."""
    topics = None if run.topics is None else [run.topics[at] for at in places]
    return PublishRun(
        run.topic if topics is None else topics[0],
        run.qos,
        run.retain,
        [run.payloads[at] for at in places],
        b"".join([run.packet_ids[2 * at : 2 * at + 2] for at in places]),
        None,
        topics,
        run.raw,
        None if run.raws is None else [run.raws[at] for at in places],
        None if run.expiries_s is None else [run.expiries_s[at] for at in places],
    )


class _Keys(dict[str, str]):
    """Routing keys of topics."""

    __slots__ = ("_rewritten", "special")

    def __init__(self, rewritten: Callable[[str], str]) -> None:
        super().__init__()
        self._rewritten = rewritten
        self.special = False
        """There were topics that begin with `$`."""

    def __missing__(self, topic: str) -> str:
        if len(self) >= KEYS_REMEMBERED_MAX:
            self.clear()
        name = self._rewritten(topic)
        key = self[topic] = topic_to_routing_key(name)
        self.special |= name.startswith("$")
        return key


class _Answer:
    """Acknowledgements of one kind that are to be sent; `numbered` publishes wait for the engine's confirm."""

    __slots__ = ("ids", "kind", "numbered", "reason", "waits")

    def __init__(self, kind: AcknowledgementKind, ids: bytes, *, numbered: bool, reason: int = 0) -> None:
        self.kind = kind
        self.ids = bytearray(ids)
        self.numbered = numbered
        self.reason = reason
        self.waits = False
        """Without a number, for something else."""


class Publishing:
    """The inbound publishes of one connection, from CONNECT on; see the module."""

    __slots__ = (
        "_adapter", "_answers", "_completions", "_confirmed", "_grouped", "_inherited", "_keys", "_lasting", "_mark",
        "_passes_on", "_pending", "_session", "_taken", "_unrouted", "_verdicts", "_version_5", "_wire",
        "_wire_qos_0",
    )  # fmt: skip

    def __init__(
        self, adapter: MqttAdapter, session: Session, lasting: LastingSession | None, rewriting: Rewriting
    ) -> None:
        self._adapter = adapter
        self._session = session
        self._lasting = lasting
        self._taken: set[int] = set() if lasting is None else lasting.taken
        self._inherited = frozenset(self._taken)
        """Of these, what an earlier connection has published."""
        self._keys = _Keys(rewriting.name)
        self._wire = adapter.wire
        self._version_5 = adapter.wire.has_properties
        self._wire_qos_0 = WIRES_QOS_0[self._version_5]
        self._passes_on = not adapter.config.topic_rewrites
        """Subscribers get the very packets, where there is no reason against it."""
        self._mark = b""
        """That of the client, where each of its publishes is to have it."""
        self._grouped = session.vhost.grouped
        """Whether any queue groups by publishers: publishes name theirs then, which costs each a slab of its own."""
        self._confirmed = 0
        self._answers: deque[_Answer] | None = None
        """From the first that is to be given on: most clients never publish, and a deque is some hundred bytes."""
        self._verdicts: list[tuple[int, int]] = []
        """What became of publishes: up to which sequence number, and why not (0: they are safe)."""
        self._pending: list[tuple[PublishRun, array[int] | None]] = []
        """Runs that are being published, with their ids at QoS 2."""
        self._unrouted: list[tuple[int, int]] = []
        """Sequence numbers of publishes that went nowhere, as inclusive ranges."""
        self._completions: list[list[bytes | None]] = []

    def name_publisher(self, *, always: bool) -> None:
        """Have all publishes say whose they are, or only while others ask for it."""
        self._mark = mark_of(self._adapter.connect.client_id) if always else b""

    def publish(self, run: PublishRun) -> None:
        """Hand a run to the engine. Raises BrokerError when the user may not, or a message at QoS 0 finds no room, if
        the client cannot be told otherwise; NotReady, see `go_on`.
        """
        ids: array[int] | None = None
        twice: list[int] = []
        traffic, count = self._adapter.traffic, len(run.payloads)
        traffic.publishes_received += count
        if run.qos:
            traffic.answers += count
            if run.qos == 2:
                ids = ids_of(run.packet_ids)
                if not self._taken.isdisjoint(ids) or len(set(ids)) < len(ids):
                    fresh = self._repeated(run, ids, twice)
                    if fresh is None:
                        return
                    run, ids = fresh
            if self._version_5 and not self._has_room(len(run.payloads)):
                self._adapter.end("receive maximum exceeded", code=ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
                return
            if self._adapter.broker.blocked is not None and self.refuses(run):
                self._refuse_run(run, ids, ReasonCode.QUOTA_EXCEEDED)
                return
        published = self._session.confirms.published
        try:
            self._publish(run, ids)
        except (BrokerError, Mixed, NotReady) as error:
            self._pending.append((run, ids))
            self._not_published(error, published)
            self.go_on()
        if twice and (taken := self._taken.intersection(twice)):
            self._add(_Answer(PUBREC, _bytes_of([one for one in twice if one in taken]), numbered=False))

    def go_on(self) -> None:
        """Publish what is pending: what was not when NotReady was raised, and what came after it."""
        pending, confirms = self._pending, self._session.confirms
        while pending and not self._adapter.closed:
            published = confirms.published
            try:
                self._publish(*pending[0])
            except (BrokerError, Mixed, NotReady) as error:
                self._not_published(error, published)
            else:
                del pending[0]

    def _not_published(self, error: BrokerError | Mixed | NotReady, published: int) -> None:
        """The first of what is pending was refused as a whole, of this many that had been published before: raise why,
        answer it, or have its messages published one by one, so that only those are refused that have to be.
        """
        pending = self._pending
        run, ids = pending[0]
        kind = _ANSWERS[run.qos]
        if kind is None or not self._version_5 or self._session.confirms.published != published:
            raise error
        if isinstance(error, StorageUnavailable | NotReady):
            raise error
        del pending[0]
        if isinstance(error, Mixed) or len(run.payloads) > 1:
            alone = [picked(run, [at]) for at in range(len(run.payloads))]
            pending[:0] = [(one, ids_of(one.packet_ids) if ids else None) for one in alone]
            return
        told = self._adapter.config.not_authorized_told
        self._refuse_run(run, ids, reason_of(error, ACKNOWLEDGEMENT_REASONS[kind], not_authorized_told=told))

    def refuses(self, run: PublishRun) -> bool:
        """Whether the client can be told that these were refused, and so need not wait while publishers are blocked."""
        return self._version_5 and run.qos > 0

    def _refuse_run(self, run: PublishRun, ids: array[int] | None, reason: ReasonCode) -> None:
        kind = _ANSWERS[run.qos]
        assert kind is not None
        answer = _Answer(kind, run.packet_ids, numbered=False, reason=reason)
        self._add(answer)
        if ids and self._lasting is not None and self._lasting.present:  # an earlier connection may have had it
            self._release_refused(answer)
        self._answer()

    def _publish(self, run: PublishRun, ids: array[int] | None) -> None:
        adapter, names = self._adapter, self._keys
        keys = None if run.topics is None else list(map(names.__getitem__, run.topics))
        first = names.get(run.topic) or names[run.topic]
        if EXCHANGE not in adapter.grants.publishable:
            asked = keys or (first,)
            adapter.grants.require_publish(EXCHANGE, keys_asked_about(asked) if names.special else asked)
        mark = self._mark
        if PUBLISHER_HEADER in self._grouped and not mark:
            mark = mark_of(adapter.connect.client_id)
        slab = slab_of(run, EXCHANGE, first, keys, mark)
        adapter.traffic.publish_bytes_received += slab.size
        kind = _ANSWERS[run.qos]
        if kind is None:
            if self._passes_on:
                if run.wire is not None:
                    slab.wire = {self._wire_qos_0: run.wire}
                elif run.heads is not None:
                    slab.wire = {HEADS_QOS_0: run.heads}
            if run.retain or names.special:
                adapter.retaining.publish(slab, retain=run.retain)
            else:
                self._session.publish(slab)
            return
        if ids is not None and self._lasting is not None and self._lasting.queue is not None:
            slab.once = Numbered(self._lasting.queue.id, ids, self._lasting.epoch)
        told = self._version_5
        if run.retain or names.special:
            adapter.retaining.publish(slab, retain=run.retain, confirm=True, mandatory=told)
        else:
            self._session.publish(slab, confirm=True, mandatory=told)
        if ids is not None:
            self._taken.update(ids)
        last = self._answers[-1] if self._answers else None
        if last is not None and last.numbered and last.kind is kind:
            last.ids += run.packet_ids
        else:
            self._add(_Answer(kind, run.packet_ids, numbered=True))

    def _add(self, answer: _Answer) -> None:
        """It is given after all others."""
        if self._answers is None:
            self._answers = deque()
        self._answers.append(answer)

    def _repeated(self, run: PublishRun, ids: array[int], twice: list[int]) -> tuple[PublishRun, array[int]] | None:
        """Answer what was published before; the others, if there are any. The ids that come again among these are put
        into `twice`: they are answered behind the first of them, which is not confirmed yet.
        """
        fresh: list[int] = []
        repeated: list[int] = []
        seen: set[int] = set()
        for at, one in enumerate(ids):
            if one in self._taken:
                repeated.append(one)
            elif one in seen:
                twice.append(one)
            else:
                fresh.append(at)
                seen.add(one)
        answer = _Answer(PUBREC, _bytes_of(repeated), numbered=False)
        if self._inherited and not self._inherited.isdisjoint(repeated):
            self._wait_for_all(answer)
        if not fresh:
            self._add(answer)
            self._answer()
            return None
        if repeated:
            self._add(answer)
        return picked(run, fresh), array("H", [ids[at] for at in fresh])

    def _wait_for_all(self, answer: _Answer) -> None:
        """What an earlier connection published is safe when all is that had been published by now."""
        topology = self._adapter.broker.topology
        needed: list[tuple[PartitionLog, int]] = [(home.log, home.next_offset) for home in topology.stripes]
        for topic in topology.topics.values():
            needed += [(partition.log, partition.log.log_end_offset) for partition in topic.partitions]
        self._adapter.broker.commits.when_committed(needed, self._waiting(answer))

    def _waiting(self, answer: _Answer) -> Callable[[BrokerError | None], None]:
        """Have an answer wait; what is to be called when it need not any more, or cannot be given."""
        answer.waits = True

        def done(error: BrokerError | None) -> None:
            answer.waits = False
            if error is not None:
                self._adapter.end(str(error), code=ReasonCode.UNSPECIFIED_ERROR)
            else:
                self._answer()

        return done

    def _has_room(self, count: int) -> bool:
        """Nobody may have more under way than was announced (MQTT-3.3.4-9); what an earlier connection published does
        not count (MQTT 5, 4.9).
        """
        waiting = sum(len(one.ids) // 2 for one in self._answers or () if one.kind is PUBACK)
        return waiting + len(self._taken) - len(self._inherited) + count <= self._adapter.config.receive_maximum

    def confirm(self, up_to: int) -> None:
        """Answer all publishes up to this sequence number (MQTT-4.3.2-2, MQTT-4.3.3-8)."""
        self._verdicts.append((up_to, 0))
        self._answer()

    def refuse(self, first: int, last: int, error: BrokerError) -> None:
        """Publishes could not be stored; those before them are answered. Rule 3."""
        if not self._version_5 or not isinstance(error, LimitExceeded):
            self.forget_unanswered()
            told = f"{last - first + 1} messages could not be stored: {error}"
            self._adapter.end(told, code=reason_of(error, SERVER_DISCONNECT_REASONS))
            return
        self._verdicts.append((last, ReasonCode.QUOTA_EXCEEDED))
        self._answer()

    def forget_unanswered(self) -> None:
        """What is not confirmed may be lost: when it is said again it is put where it is missing, and not answered as
        something that was taken.
        """
        for answer in self._answers or ():
            if answer.numbered and answer.kind is PUBREC:
                self._taken.difference_update(ids_of(bytes(answer.ids)))

    def returned(self, slab: Slab) -> None:
        """The last publish, or this part of it, had nowhere to go."""
        last = self._session.confirms.published
        self._unrouted.append((last - len(slab.bodies) + 1, last))

    def _answer(self) -> None:
        """Send the acknowledgements that are next, as far as the engine has said what became of the publishes."""
        answers, verdicts, adapter = self._answers, self._verdicts, self._adapter
        while answers and not adapter.closed:
            answer = answers[0]
            if not answer.numbered:
                if answer.waits:
                    break
                answers.popleft()
                ids = bytes(answer.ids) if answer.reason else self._still_taken(answer.ids)
                if ids:
                    self._send(answer.kind, ids, answer.reason)
                continue
            if not verdicts:
                break
            up_to, reason = verdicts[0]
            first = self._confirmed + 1
            ids = bytes(answer.ids)
            self._confirmed += len(ids) // 2
            if self._confirmed <= up_to:
                answers.popleft()
            else:
                ids = ids[: 2 * (up_to + 1 - first)]
                del answer.ids[: len(ids)]
                self._confirmed = up_to
            if self._confirmed == up_to:
                del verdicts[0]
            if reason and answer.kind is PUBREC:
                self._refuse_numbered(ids, reason)
            elif self._unrouted and not reason:
                self._send_each(answer.kind, ids, first)
            else:
                self._send(answer.kind, ids, reason)

    def _refuse_numbered(self, ids: bytes, reason: int) -> None:
        """Publishes were refused that some homes may have taken: their ids are another message's next (MQTT-4.3.3-9),
        which those homes must not take for the same.
        """
        answer = _Answer(PUBREC, ids, numbered=False, reason=reason)
        assert self._answers is not None
        self._answers.appendleft(answer)
        self._release_refused(answer)

    def _release_refused(self, answer: _Answer) -> None:
        """Have its ids be nobody's when it is given."""
        homes, _ = self._release_numbers(ids_of(bytes(answer.ids)))
        if homes:
            self._session.confirms.when_written(homes, self._waiting(answer))

    def _still_taken(self, ids: bytearray) -> bytes:
        """Of publishes that had come before: where the first of them was refused since, that is the answer to all."""
        taken = self._taken
        return bytes(ids) if taken.issuperset(ids_of(ids)) else _bytes_of([one for one in ids_of(ids) if one in taken])

    def _send(self, kind: AcknowledgementKind, ids: bytes, reason: int) -> None:
        if reason >= _FAILURE and kind is PUBREC:
            self._taken.difference_update(ids_of(ids))
        reasons = bytes((reason,)) * (len(ids) // 2) if reason else None
        self._adapter.outbox.write(self._wire.acknowledgements(kind, ids, reasons))

    def _send_each(self, kind: AcknowledgementKind, ids: bytes, first: int) -> None:
        """Those from a sequence number on, some of which may have gone nowhere."""
        count = len(ids) // 2
        reasons = bytearray(count)
        left = []
        for low, high in self._unrouted:
            start, stop = max(low - first, 0), min(high - first + 1, count)
            if start < stop:
                reasons[start:stop] = bytes((ReasonCode.NO_MATCHING_SUBSCRIBERS,)) * (stop - start)
            if high >= first + count:
                left.append((low, high))
        self._unrouted = left
        self._adapter.outbox.write(self._wire.acknowledgements(kind, ids, bytes(reasons)))

    # --- the end of the exactly-once exchange ----------------------------------------------

    def _release_numbers(self, ids: array[int]) -> tuple[list[Home], set[int]]:
        """Ids are nobody's any more: the homes that have to write that, and which of them they knew."""
        homes: list[Home] = []
        known: set[int] = set()
        lasting = self._lasting
        queue = lasting.queue if lasting is not None else None
        if queue is not None and lasting is not None:
            epoch = lasting.epoch
            for home in self._adapter.broker.topology.stripes:
                found = set(ids) if home.numbers is None else home.numbers.known(queue.id, ids)
                known |= found
                if (found or epoch) and release(home, queue.id, ids, epoch):
                    homes.append(home)
        return homes, known

    def release(self, event: Acknowledgements) -> None:
        """PUBREL: packet ids may be used again; PUBCOMP says so (MQTT-4.3.3-11)."""
        ids = array("H", [one for first, last in event.ranges for one in range(first, last + 1)])
        homes, found = self._release_numbers(ids)
        known = self._taken.intersection(ids) | found
        self._taken.difference_update(ids)
        if self._inherited:
            self._inherited = self._inherited.difference(ids)
        reasons = None
        if len(known) < len(ids):
            reasons = bytes(0 if one in known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND for one in ids)
        packets = self._wire.acknowledgements(PUBCOMP, _bytes_of(ids), reasons)
        if not homes and not self._completions:
            self._adapter.outbox.write(packets)
            return
        completion: list[bytes | None] = [packets, None if homes else b""]
        self._completions.append(completion)
        if homes:
            self._complete(completion, ids, homes)

    def _complete(self, completion: list[bytes | None], ids: array[int], homes: list[Home]) -> None:
        """Say so when the homes have it, whoever leads them by then."""

        def done(error: BrokerError | None) -> None:
            if self._adapter.closed:
                return
            if error is not None and led_elsewhere(homes):
                self._session.confirms.when_written((), again)
                return
            if error is not None:
                self._adapter.end(str(error), code=ReasonCode.UNSPECIFIED_ERROR)
                return
            completion[1] = b""
            while self._completions and self._completions[0][1] is not None:
                self._adapter.outbox.write(self._completions.pop(0)[0] or b"")

        def again(_: BrokerError | None) -> None:
            self._complete(completion, ids, self._release_numbers(ids)[0])

        self._session.confirms.when_written(homes, done)
