"""Fetch: whole batches as they lie in the log, from where a consumer is.

1. A request stands for itself, or goes on with a session and says what has changed (`fetch_sessions.py`).
2. What waits and what is limited is `protocols.fetching`'s.
3. Topics are named or, from version 13 on, said by their id. An id that no topic has is an error of its partitions.
4. A consumer that says in which epoch the record before its offset was is told where that epoch ended, if that is not
   where it is: then what it has read was lost (KIP-595).
5. Who reads what is committed gets nothing from the stable offset on, and is told which transactions were aborted.
6. Who compares replicas (kafka-replica-verification) says so, and gets what a follower has as well, as far as it is
   known there to be committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core_log.batch_header import parse_header
from core_log.containing import Groups
from core_log.errors import OffsetOutOfRange
from core_log.expiry import unexpired
from core_log.partition_log import PartitionLog
from core_log.transaction_marker import stand_in
from protocols.buffers import BytesLike
from protocols.fetching import Entry, Found
from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_leaders import LEADER_ERRORS, current_leader, endpoints, epoch_end
from protocols.kafka.adapter_spark import note_progress
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.fetch_sessions import FetchSession, Place, SessionEntry
from protocols.kafka.messages_records import FETCH
from protocols.kafka.registry import serves
from protocols.log_waits import Waits

_IDS_SINCE, _LEADERS_SINCE = 13, 16
_INITIAL_EPOCH, _FINAL_EPOCH = 0, -1
_READ_COMMITTED = 1
_COMPARING = -2
"""The id of the replica that would be asking."""


class FetchEntry(NamedTuple):
    """One partition of a request that stands for itself."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int
    fetched_epoch: int
    compares: bool


class Diverging(NamedTuple):
    """A partition that is not what a consumer has read: where the epoch that it names ended here."""

    log: PartitionLog
    epoch: int
    end_offset: int


Problem = ErrorCode | Diverging


class KafkaFetch:
    """A request, as `protocols.fetching` takes it."""

    __slots__ = ("_entries", "bytes_max", "bytes_min", "call", "epoch", "is_committed", "session", "wait_ms_max")

    def __init__(self, call: Call, request: Entity, session: FetchSession | None) -> None:
        self.call = call
        self.wait_ms_max: int = max(request.max_wait_ms, 0)
        self.bytes_min: int = max(request.min_bytes, 0)
        self.bytes_max: int = max(request.max_bytes, 1)
        self.is_committed: bool = request.isolation_level == _READ_COMMITTED
        self.session = session
        self.epoch = 0 if session is None else session.epoch
        """In which the session must be when this is answered."""
        self._entries = [] if session is not None else _entries(request)

    @property
    def entries(self) -> Sequence[FetchEntry | SessionEntry]:
        """See `protocols.fetching.Fetch`."""
        return self._entries if self.session is None else list(self.session.news)


def _entries(request: Entity) -> list[FetchEntry]:
    asks = request if request.replica_state is None else request.replica_state
    compares = asks.replica_id == _COMPARING
    return [
        FetchEntry(
            topic.topic,
            topic.topic_id,
            one.partition,
            one.fetch_offset,
            max(one.partition_max_bytes, 1),
            one.current_leader_epoch,
            one.last_fetched_epoch,
            compares,
        )
        for topic in request.topics
        for one in topic.partitions
    ]


def _session_entries(session: FetchSession, request: Entity) -> list[SessionEntry]:
    found = []
    for topic in request.topics:
        for one in topic.partitions:
            entry = SessionEntry(session, topic.topic, topic.topic_id, one.partition)
            entry.offset, entry.bytes_max = one.fetch_offset, max(one.partition_max_bytes, 1)
            entry.leader_epoch, entry.fetched_epoch = one.current_leader_epoch, one.last_fetched_epoch
            found.append(entry)
    return found


class FetchDoor:
    """See `protocols.fetching.Door`."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def log_of(self, entry: Entry) -> PartitionLog | Problem:
        """See `protocols.fetching.Door`."""
        assert isinstance(entry, FetchEntry | SessionEntry)
        door, name = self._door, entry.topic
        if not name:
            topic = door.broker.topics.by_id.get(entry.topic_id)
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            name = topic.name
        try:
            door.require("read", name)
            if isinstance(entry, FetchEntry) and entry.compares:
                return door.held(name, entry.partition).log
            partition = door.led(name, entry.partition, leader_epoch=entry.leader_epoch)
            if entry.fetched_epoch >= 0:
                epoch, end = epoch_end(partition, entry.fetched_epoch)
                if end < 0:
                    return ErrorCode.OFFSET_OUT_OF_RANGE
                if epoch < entry.fetched_epoch or end < entry.offset:
                    return Diverging(partition.log, epoch, end)
            return partition.log
        except ENGINE_ERRORS as error:
            return code_of(error)

    def limit(self, request: KafkaFetch, log: PartitionLog) -> int | None:
        """See `protocols.fetching.Door`."""
        return log.stable_offset if request.is_committed or log.config.held else None

    def seen(self, log: PartitionLog, batches: Sequence[BytesLike]) -> Sequence[BytesLike]:
        """See `protocols.fetching.Door`: the client passes over what was aborted by itself. librdkafka takes a reply
        with no record for one that was cut short and in the end tells its consumer so (MSG_SIZE_TOO_LARGE), unless
        there is a control record; kafka-go panics at a batch without a record.
        """
        if not log.config.empties:
            return batches
        return [
            batch if parse_header(batch).record_count else stand_in(parse_header(batch))
            for batch in unexpired(log, batches)
        ]

    def out_of_range(self, problem: OffsetOutOfRange) -> ErrorCode:
        """See `protocols.fetching.Door`."""
        return ErrorCode.OFFSET_OUT_OF_RANGE

    def unreadable(self, log: PartitionLog, problem: Exception) -> ErrorCode:
        """See `protocols.fetching.Door`. What is damaged for good is told as such: with a code to try again after,
        clients would stand before it and say nothing.
        """
        return ErrorCode.CORRUPT_MESSAGE if log.is_lost(problem) else ErrorCode.KAFKA_STORAGE_ERROR

    def looks_for(self, request: KafkaFetch) -> Groups:
        """See `protocols.fetching.Door`: Kafka's clients get everything."""
        return ()

    def looked(self, looked_bytes: int, sent_bytes: int) -> None:
        """See `protocols.fetching.Door`."""

    def waits(self, request: KafkaFetch) -> Waits | None:
        """See `protocols.fetching.Door`."""
        return request.session

    def answer(self, request: KafkaFetch, found: Sequence[Found[Problem]]) -> None:
        """See `protocols.fetching.Door`."""
        session, version = request.session, request.call.version
        if session is not None and session.epoch != request.epoch:
            request.call.answer(_refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH))
            return
        responses: list[Entity] = []
        leaders: set[int] = set()
        at = None
        for one in found:
            entry = one.entry
            assert isinstance(entry, FetchEntry | SessionEntry)
            if session is not None and not _is_news(session, entry, one):
                continue
            place = entry.topic or entry.topic_id
            if place != at:
                at = place
                responses.append(Entity(topic=entry.topic, topic_id=entry.topic_id, partitions=[]))
            said = _partition(entry, one, is_committed=request.is_committed)
            if version >= _LEADERS_SINCE and one.error in LEADER_ERRORS:
                said.current_leader = current_leader(self._door, entry.topic or entry.topic_id, entry.partition)
                leaders.add(said.current_leader.leader_id)
            responses[-1].partitions.append(said)
        session_id = 0 if session is None else session.id
        request.call.answer(
            Entity(responses=responses, session_id=session_id, node_endpoints=endpoints(self._door, leaders))
        )


def _is_news(session: FetchSession, entry: FetchEntry | SessionEntry, found: Found[Problem]) -> bool:
    assert isinstance(entry, SessionEntry)
    if found.error is None and found.log is not None:
        return session.told(entry, found.log, with_records=bool(found.batches or found.range))
    session.told_error(entry)
    return True


def _partition(entry: FetchEntry | SessionEntry, found: Found[Problem], *, is_committed: bool) -> Entity:
    log, error = found.log, found.error
    code = ErrorCode.NONE
    diverging = None
    if isinstance(error, Diverging):
        log = error.log
        diverging = Entity(epoch=error.epoch, end_offset=error.end_offset)
    elif error is not None:
        code = error
    said = Entity(
        partition_index=entry.partition,
        error_code=code,
        high_watermark=-1 if log is None else log.high_watermark,
        last_stable_offset=-1 if log is None else log.stable_offset,
        log_start_offset=-1 if log is None else log.log_start_offset,
        aborted_transactions=_aborted(entry.offset, found) if is_committed else None,
        records=found.batches if found.range is None else [found.range],
    )
    if diverging is not None:
        said.diverging_epoch = diverging
    return said


def _aborted(offset: int, found: Found[Problem]) -> list[Entity]:
    """The transactions that a reader of committed records has to pass over in what was found."""
    log = found.log
    if log is None or log.transactions is None or not (found.batches or found.range):
        return []
    end = parse_header(found.batches[-1]).next_offset if found.range is None else found.range.next_offset
    aborted = log.transactions.aborted_between(offset, end)
    return [Entity(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted]


def _refused(code: ErrorCode) -> Entity:
    return Entity(error_code=code, responses=[])


@serves(FETCH, 4, 18)
async def fetch(door: Door, call: Call, request: Entity) -> Entity | None:
    """Answered now or later."""
    try:
        session = _session(door, call, request)
    except KafkaError as error:
        return _refused(error.code)
    note_progress(door, call, request)
    await door.fetches.start(KafkaFetch(call, request, session))
    return None


def _session(door: Door, call: Call, request: Entity) -> FetchSession | None:
    """The session that a request begins, or goes on with. Raises KafkaError."""
    sessions, now, by_id = door.fetch_sessions, door.clock(), call.version >= _IDS_SINCE
    owner, log_of = door.owner, FetchDoor(door).log_of
    if request.session_epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
        if request.session_id:
            sessions.drop(owner, request.session_id)
        if request.session_epoch == _FINAL_EPOCH:
            return None
        count = sum(len(topic.partitions) for topic in request.topics)
        begun = sessions.begin(owner, lambda session: _session_entries(session, request), count, by_id=by_id, now=now)
        if begun is not None:
            begun.attach(door, log_of)
        return begun
    session = sessions.find(owner, request.session_id, request.session_epoch, by_id=by_id, now=now)
    forgotten: list[Place] = [
        (one.topic or one.topic_id, index) for one in request.forgotten_topics_data for index in one.partitions
    ]
    sessions.update(session, _session_entries(session, request), forgotten)
    if not session.entries:
        sessions.end(session)
        return None
    session.attach(door, log_of)
    session.look(now)
    return session
