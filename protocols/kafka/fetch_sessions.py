"""Fetch sessions: what a consumer fetches is remembered; its next requests and the replies name what has changed.

1. A session knows which of its partitions may have news: those that a request has just named, and those whose log says
   so. The others are not looked at, however many they are; a fetch costs what has changed.
2. While it is *attached*, a session is told by its logs, and each log syncs what it writes, as it does for a fetch that
   waits. It is attached from the first request of a connection on, until that is gone. What the logs do not tell
   (rights, leaders, topics that are gone) is looked for now and then.
3. A partition is reported if there are records, an error, or if its ends are others than the client was told last. One
   with an error is reported again until there is none. Who had records comes last the next time: replies are bounded,
   and the first partitions would be all that a client gets until it is at their end.
4. Sessions are few, and their partitions are counted. One that is not used for a while ends. When there is room for no
   other, a smaller one that has existed for a while gives way; else the client does without.
5. A session is the user's that began it; for everybody else it is not there.

https://cwiki.apache.org/confluence/display/KAFKA/KIP-227
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable

from core_log.partition_log import PartitionLog
from protocols.kafka.config import KafkaConfig
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.log_waits import LogWaits, Waiter

Place = tuple[str | bytes, int]
"""A partition: the name of its topic or, from version 13 on, its id, and its number."""
LogOf = Callable[["SessionEntry"], object]
"""The log of a partition, or what is wrong with it."""

_EPOCH_MAX = (1 << 31) - 1
_LOOK_INTERVAL_S = 0.5
_UNTOLD = -1


def _nothing(entry: SessionEntry) -> None:
    """What is known of a partition while nobody uses its session."""


class SessionEntry:
    """A partition of a session: what is asked of it, and what the client knows. See `protocols.fetching.Entry`."""

    __slots__ = (
        "_session", "bytes_max", "fetched_epoch", "leader_epoch", "log", "offset", "partition", "told_end",
        "told_start", "topic", "topic_id",
    )  # fmt: skip

    def __init__(self, session: FetchSession, topic: str, topic_id: bytes, partition: int) -> None:
        self._session = session
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.offset = self.bytes_max = 0
        self.leader_epoch = self.fetched_epoch = -1
        self.told_end = self.told_start = _UNTOLD
        self.log: PartitionLog | None = None
        """Which tells of its news."""

    def log_advanced(self) -> None:
        """See `Waiter`."""
        self._session.has_news(self)

    @property
    def place(self) -> Place:
        """See `Place`."""
        return self.topic or self.topic_id, self.partition

    def listen(self, log: PartitionLog | None) -> None:
        """Be told by this log, and no other."""
        if log is not self.log:
            if self.log is not None:
                LogWaits.of(self.log).remove(self)
            if log is not None:
                LogWaits.of(log).add(self)
            self.log = log


class FetchSession:
    """See the module. As `protocols.log_waits.Waits` it is where its fetches wait."""

    __slots__ = (
        "_log_of", "_looked_at", "_waiters", "attached", "began_at", "by_id", "entries", "epoch", "id", "news", "owner",
        "used_at",
    )  # fmt: skip

    def __init__(self, owner: object, session_id: int, *, by_id: bool, now: float) -> None:
        self.owner = owner
        self.id = session_id
        self.by_id = by_id
        self.epoch = 1
        """That the next request has."""
        self.began_at = self.used_at = now
        self.entries: dict[Place, SessionEntry] = {}
        self.news: dict[SessionEntry, None] = {}
        """Those that there may be something of, who had records last at the end. All others listen to their logs."""
        self.attached: object = None
        """The connection that it is used by."""
        self._log_of: LogOf = _nothing
        self._waiters: dict[Waiter, None] = {}
        self._looked_at = now

    def has_news(self, entry: SessionEntry) -> None:
        """There may be something of a partition."""
        self.news[entry] = None
        for waiter in self._waiters:
            waiter.log_advanced()

    def told(self, entry: SessionEntry, log: PartitionLog, *, with_records: bool) -> bool:
        """The client is about to be told of a partition without an error: whether it must be."""
        end, start = log.high_watermark, log.log_start_offset
        changed = with_records or entry.told_end != end or entry.told_start != start
        entry.told_end, entry.told_start = end, start
        stays = with_records or entry.offset != end or self.attached is None
        if with_records or not stays:
            self.news.pop(entry, None)
        if stays:
            self.news[entry] = None
        else:
            entry.listen(log)
        return changed

    def told_error(self, entry: SessionEntry) -> None:
        """The client is told of an error, which may be another next time."""
        entry.told_end = _UNTOLD
        self.news[entry] = None

    def look(self, now: float) -> None:
        """Look for what logs do not tell, if it is time."""
        if now < self._looked_at + _LOOK_INTERVAL_S:
            return
        self._looked_at = now
        for entry in self.entries.values():
            log = entry.log
            if log is None or self._log_of(entry) is not log:
                entry.listen(None)
                self.news[entry] = None
            elif entry.told_start != log.log_start_offset:
                self.news[entry] = None

    def attach(self, connection: object, log_of: LogOf) -> None:
        """It is used by this connection from now on."""
        if self.attached is not connection:
            self.attached, self._log_of = connection, log_of
            self.news = dict.fromkeys(self.entries.values())

    def detach(self) -> None:
        """Nobody uses it: its logs need not tell it anything."""
        self.attached, self._log_of = None, _nothing
        for entry in self.entries.values():
            entry.listen(None)
        self.news = dict.fromkeys(self.entries.values())

    def update(self, asked: Iterable[SessionEntry], forgotten: Iterable[Place]) -> None:
        """What a request says of partitions: others than before, new ones, and ones that are fetched no more."""
        for one in asked:
            known = self.entries.setdefault(one.place, one)
            if known is not one:
                known.offset, known.bytes_max = one.offset, one.bytes_max
                known.leader_epoch, known.fetched_epoch = one.leader_epoch, one.fetched_epoch
            self.news[known] = None
        for place in forgotten:
            entry = self.entries.pop(place, None)
            if entry is not None:
                entry.listen(None)
                self.news.pop(entry, None)

    # `Waits`

    def add(self, waiter: Waiter) -> None:
        """See `protocols.log_waits.Waits`. What has nothing new now need not be looked at until its log says so."""
        self._waiters[waiter] = None
        for entry in list(self.news):
            log = entry.log
            if log is None:
                found = self._log_of(entry)
                if not isinstance(found, PartitionLog):
                    continue
                log = found
                entry.listen(log)
            end = log.high_watermark
            if entry.offset == end and entry.told_end == end and entry.told_start == log.log_start_offset:
                del self.news[entry]

    def remove(self, waiter: Waiter) -> None:
        """See `protocols.log_waits.Waits`."""
        self._waiters.pop(waiter, None)


class FetchSessions:
    """Those of a broker."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """By id, least recently used first."""
        self.partitions = 0
        """Of all of them."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, owner: object, asked: Callable[[FetchSession], list[SessionEntry]], count: int, *, by_id: bool, now: float
    ) -> FetchSession | None:
        """A session for so many partitions; None: there is no room."""
        self._expire(now)
        if not count or not self._has_room(count, now):
            return None
        session_id = 0
        while not session_id or session_id in self._sessions:
            session_id = secrets.randbits(31)
        session = FetchSession(owner, session_id, by_id=by_id, now=now)
        session.update(asked(session), ())
        self._sessions[session_id] = session
        self.partitions += len(session.entries)
        return session

    def _has_room(self, count: int, now: float) -> bool:
        most, partitions_max = self._config.fetch_sessions_max, self._config.fetch_session_partitions_max
        if count > partitions_max or not most:
            return False
        while len(self._sessions) >= most or self.partitions + count > partitions_max:
            victim = self._victim(count, now)
            if victim is None:
                return False
            self.end(victim)
        return True

    def _expire(self, now: float) -> None:
        before = now - self._config.fetch_session_eviction_ms / 1000
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if oldest.used_at >= before:
                return
            self.end(oldest)

    def _victim(self, count: int, now: float) -> FetchSession | None:
        before = now - self._config.fetch_session_eviction_ms / 1000
        older = [one for one in self._sessions.values() if one.began_at < before and len(one.entries) < count]
        return min(older, key=lambda one: len(one.entries), default=None)

    def find(self, owner: object, session_id: int, epoch: int, *, by_id: bool, now: float) -> FetchSession:
        """The session that a request goes on with. Raises KafkaError."""
        self._expire(now)
        session = self._sessions.get(session_id)
        if session is None or session.owner != owner:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id is not by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = epoch + 1 if epoch < _EPOCH_MAX else 1
        session.used_at = now
        self._sessions.move_to_end(session_id)
        return session

    def update(self, session: FetchSession, asked: list[SessionEntry], forgotten: Iterable[Place]) -> None:
        """`FetchSession.update`, as far as there is room. Raises KafkaError, and the session is gone."""
        before = len(session.entries)
        session.update(asked, forgotten)
        self.partitions += len(session.entries) - before
        if self.partitions > self._config.fetch_session_partitions_max:
            self.end(session)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def drop(self, owner: object, session_id: int) -> None:
        """The client needs its session no more."""
        session = self._sessions.get(session_id)
        if session is not None and session.owner == owner:
            self.end(session)

    def end(self, session: FetchSession) -> None:
        """It is gone; a fetch that waits in it is still answered."""
        if self._sessions.pop(session.id, None) is not None:
            self.partitions -= len(session.entries)
            session.detach()

    def detach(self, connection: object) -> None:
        """A connection is gone."""
        for session in self._sessions.values():
            if session.attached is connection:
                session.detach()
