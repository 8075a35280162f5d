"""Fetches by topic id, in sessions, and what they say of epochs."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from core_log.files import OsFiles
from core_log.memory_files import MemoryFiles
from protocols.kafka.codec import Entity
from protocols.kafka.config import KafkaConfig
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.fetch_sessions import FetchSession, FetchSessions, SessionEntry
from protocols.kafka.messages_records import FETCH
from routing.access.grants import Permission
from routing.broker import Broker
from routing.topics.topic import Topic
from tests.protocols.kafka.door import Peer, batch_of, kafka_broker, records_of

FINAL, INITIAL = -1, 0
LOOK_S = 0.5
PATIENCE_S = 30


@pytest.fixture
def clock() -> MockClock:
    """Time goes by when a test says so: a clock that jumps by itself would not wait for the log's threads."""
    return MockClock()


async def goes_by(clock: MockClock, seconds: float) -> None:
    """Time does, and what is due then is done."""
    clock.jump(seconds)
    await wait_all_tasks_blocked()


def asking(
    topic: Topic | bytes | str, offsets: dict[int, int], *, max_bytes: int = 1 << 20, **more: Any
) -> list[Entity]:
    """Partitions of a topic, from offsets on."""
    entries = [
        Entity(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes, **more)
        for index, offset in offsets.items()
    ]
    if isinstance(topic, str):
        return [Entity(topic=topic, partitions=entries)]
    return [Entity(topic_id=topic if isinstance(topic, bytes) else topic.id, partitions=entries)]


class Consumer:
    """A client's side of a session."""

    def __init__(self, peer: Peer, version: int = 13) -> None:
        self.peer = peer
        self.version = version
        self.session_id = 0
        self.epoch = INITIAL

    async def send(self, topics: Any = None, forgotten: Any = None, *, wait_ms: int = 0, **more: Any) -> None:
        """The next request."""
        said = {"max_wait_ms": wait_ms, "min_bytes": 1, "max_bytes": 50 << 20, "rack_id": ""} | more
        said |= {"session_id": self.session_id, "session_epoch": self.epoch}
        said |= {"topics": topics or [], "forgotten_topics_data": forgotten or []}
        self.epoch += 1
        await self.peer.send(FETCH, self.version, **said)

    async def reply(self) -> Any:
        """Of the request that was sent."""
        (reply,) = await self.replies(1)
        if reply.error_code == 0:
            self.session_id = reply.session_id
        return reply

    async def replies(self, count: int) -> list[Any]:
        """So many of them. Trio's time may stand still meanwhile."""
        found: list[Any] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline, found
            await trio.lowlevel.checkpoint()
            found += self.peer.replies()
        return found

    async def fetch(self, *args: Any, **how: Any) -> dict[int, Any]:
        """Ask; the partitions of the reply."""
        await self.send(*args, **how)
        reply = await self.reply()
        assert reply.error_code == 0
        return {one.partition_index: one for topic in reply.responses for one in topic.partitions}

    async def code(self, *args: Any, **how: Any) -> int:
        """Ask; the error of the whole reply."""
        await self.send(*args, **how)
        reply = await self.reply()
        assert (reply.error_code == 0) or (reply.session_id, reply.responses) == (0, [])
        return int(reply.error_code)


async def append(broker: Broker, topic: Topic, *indexes: int) -> None:
    """A record each, and wait until it can be read."""
    for index in indexes:
        partition = topic.partitions[index]
        partition.append(batch_of([b"x"]))
        partition.log.request_sync()
    broker.end_turn()
    for index in indexes:
        log = topic.partitions[index].log
        await log.wait_committed(log.log_end_offset)


def readers(topic: Topic) -> list[int]:
    """How many wait at each log."""
    return [partition.log._waiting_readers for partition in topic.partitions]


@pytest.mark.parametrize("version", range(12, 19))
async def test_topics_are_fetched_by_their_id(version: int) -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker)
        await peer.produce("t", batch_of([b"a"]))
        topic = broker.topics["t"]
        consumer = Consumer(peer, version)
        consumer.epoch = FINAL
        found = await consumer.fetch(asking("t" if version < 13 else topic, {0: 0, 7: 0}))
        assert [one.value for one in records_of(found[0])] == [b"a"]
        assert found[7].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert consumer.session_id == 0
        if version >= 13:
            consumer.epoch = FINAL
            assert (await consumer.fetch(asking(bytes(15) + b"x", {0: 0})))[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
            await broker.rights.set_permission("/", "guest", Permission("", "", "^other$"))
            consumer.epoch = FINAL
            refused = (await consumer.fetch(asking(topic, {0: 0})))[0]
            assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# Sessions


@pytest.mark.parametrize("version", [7, 12, 13, 16, 18])
async def test_replies_of_a_session_say_what_has_changed(version: int) -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic("t", partitions=4)
        await append(broker, topic, 1)
        place = topic if version >= 13 else "t"
        consumer = Consumer(Peer(broker), version)
        first = await consumer.fetch(asking(place, dict.fromkeys(range(4), 0)))
        assert first.keys() == {0, 1, 2, 3}, "the first reply says all"
        assert [one.high_watermark for one in first.values()] == [0, 1, 0, 0]
        assert consumer.session_id
        again = await consumer.fetch()
        assert list(again) == [1], "it was not said that it has arrived"
        assert len(records_of(again[1])) == 1
        assert await consumer.fetch(asking(place, {1: 1})) == {}
        await append(broker, topic, 0, 1, 3)
        changed = await consumer.fetch()
        assert {index: len(records_of(one)) for index, one in changed.items()} == {0: 1, 1: 1, 3: 1}
        assert await consumer.fetch(asking(place, {0: 1, 1: 2, 3: 1})) == {}
        consumer.peer.adapter.connection_lost()
        assert readers(topic) == [0] * 4


async def test_a_session_changes_what_it_fetches() -> None:
    async with kafka_broker() as broker:
        topic, other = await broker.create_topic("t", partitions=3), await broker.create_topic("other")
        consumer = Consumer(Peer(broker))
        await consumer.fetch(asking(topic, {0: 0, 1: 0}))
        added = await consumer.fetch(asking(topic, {2: 0}) + asking(other, {0: 0}))
        assert added.keys() == {2, 0}, "new ones are reported whatever there is"
        await append(broker, topic, 0, 1, 2)
        gone = [Entity(topic_id=topic.id, partitions=[0, 5])]
        assert (await consumer.fetch(None, gone)).keys() == {1, 2}
        assert readers(topic)[0] == 0
        everything = [Entity(topic_id=topic.id, partitions=[1, 2]), Entity(topic_id=other.id, partitions=[0])]
        assert await consumer.fetch(None, everything) == {}
        assert consumer.session_id == 0, "a session of nothing ends"
        assert len(consumer.peer.adapter.door.fetch_sessions) == 0
        assert readers(topic) + readers(other) == [0] * 4


async def test_a_fetch_of_a_session_waits_and_is_answered_once_a_turn(clock: MockClock) -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic("t", partitions=3)
        consumer = Consumer(Peer(broker))
        await consumer.fetch(asking(topic, dict.fromkeys(range(3), 0)))
        await consumer.send(wait_ms=2_000)
        await goes_by(clock, 1.9)
        assert consumer.peer.replies() == []
        await goes_by(clock, 0.2)
        assert (await consumer.reply()).responses == []
        await consumer.send(wait_ms=2_000)
        assert readers(topic) == [1, 1, 1]
        await append(broker, topic, 0, 2)
        reply = await consumer.reply()
        found = {one.partition_index: len(records_of(one)) for one in reply.responses[0].partitions}
        assert found in ({0: 1, 2: 1}, {0: 1}, {2: 1})
        seen = set(found)
        while seen != {0, 2}:
            seen |= (await consumer.fetch(asking(topic, dict.fromkeys(found, 1)))).keys()


async def test_what_a_session_cannot_go_on_with() -> None:
    async def everybody(user: str, password: bytes | None, peer: str) -> bool:
        return True

    async with kafka_broker() as broker:
        topic = await broker.create_topic("t")
        peer = Peer(broker)
        consumer = Consumer(peer)
        consumer.epoch = 1
        assert await consumer.code() == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        consumer.epoch = INITIAL
        await consumer.fetch(asking(topic, {0: 0}))
        consumer.epoch = 2
        assert await consumer.code() == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        consumer.epoch, consumer.version = 1, 12
        assert await consumer.code() == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        consumer.version = 13
        other = Peer(broker, authenticate=everybody)
        other.adapter.door.fetch_sessions = peer.adapter.door.fetch_sessions
        other.adapter._login("u")
        stranger = Consumer(other)
        stranger.session_id, stranger.epoch = consumer.session_id, 1
        assert await stranger.code() == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        stranger.session_id, stranger.epoch = consumer.session_id, FINAL
        assert await stranger.code() == 0, "that is a fetch without a session"
        consumer.epoch = 1
        assert await consumer.code() == 0
        consumer.epoch = FINAL
        assert await consumer.code() == 0
        assert len(peer.adapter.door.fetch_sessions) == 0


async def test_of_two_fetches_in_a_session_the_older_is_void() -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic("t")
        consumer = Consumer(Peer(broker))
        await consumer.fetch(asking(topic, {0: 0}))
        await consumer.send(wait_ms=60_000)
        await consumer.send(wait_ms=60_000)
        await append(broker, topic, 0)
        found = await consumer.replies(2)
        assert [one.error_code for one in found] == [ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0]
        assert len(records_of(found[1].responses[0].partitions[0])) == 1


async def test_an_error_is_told_until_there_is_none(clock: MockClock) -> None:
    async with kafka_broker(auto_create_topics=False) as broker:
        topic = await broker.create_topic("t", partitions=2)
        consumer = Consumer(Peer(broker), 12)
        asked = asking("t", {0: 0}) + asking("missing", {0: 0}) + asking("t", {1: 9})
        await consumer.send(asked)
        reply = await consumer.reply()
        codes = [(one.topic, one.partitions[0].error_code) for one in reply.responses]
        missing = ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert codes == [("t", 0), missing, ("t", ErrorCode.OFFSET_OUT_OF_RANGE)]
        await consumer.send(wait_ms=5_000)
        reply = await consumer.reply()
        assert [one.topic for one in reply.responses] == ["missing", "t"], "and nobody waits"
        await broker.create_topic("missing")
        await consumer.send(asking("t", {1: 0}))
        reply = await consumer.reply()
        assert [(one.topic, one.partitions[0].error_code) for one in reply.responses] == [("missing", 0), ("t", 0)]
        assert await consumer.fetch() == {}
        await broker.delete_topic("t")
        await goes_by(clock, LOOK_S)
        assert [one.error_code for one in (await consumer.fetch()).values()] == [missing[1]] * 2
        assert readers(topic) == [0, 0]


async def test_what_logs_do_not_tell_is_noticed(clock: MockClock) -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic("t")
        await append(broker, topic, 0)
        consumer = Consumer(Peer(broker))
        await consumer.fetch(asking(topic, {0: 1}))
        topic.partitions[0].log.delete_prefix(1)
        await goes_by(clock, LOOK_S)
        assert [one.log_start_offset for one in (await consumer.fetch()).values()] == [1]
        await broker.rights.set_permission("/", "guest", Permission("", "", "^other$"))
        await goes_by(clock, LOOK_S)
        assert (await consumer.fetch())[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_session_outlives_its_connection() -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic("t", partitions=2)
        consumer = Consumer(Peer(broker))
        await consumer.fetch(asking(topic, {0: 0, 1: 0}))
        await consumer.send(wait_ms=60_000)
        sessions = consumer.peer.adapter.door.fetch_sessions
        consumer.peer.adapter.connection_lost()
        assert readers(topic) == [0, 0]
        await append(broker, topic, 1)
        consumer.peer = Peer(broker)
        consumer.peer.adapter.door.fetch_sessions = sessions
        assert (await consumer.fetch()).keys() == {1}
        await consumer.send(asking(topic, {1: 1}), wait_ms=60_000)
        assert readers(topic) == [1, 1]
        await append(broker, topic, 0)
        assert [one.partition_index for one in (await consumer.reply()).responses[0].partitions] == [0]


async def test_whoever_follows_a_session_misses_nothing() -> None:
    dice = random.Random(3)
    for version in (12, 16):
        async with kafka_broker() as broker:
            topic = await broker.create_topic("t", partitions=6)
            place = "t" if version < 13 else topic
            consumer = Consumer(Peer(broker), version)
            positions = dict.fromkeys(range(6), 0)
            told: dict[int, int] = {}
            asked = asking(place, positions)
            forgotten: list[Entity] = []
            idle = 0
            for step in range(400):
                if step < 300 and dice.random() < 0.5:
                    await append(broker, topic, *dice.sample(range(6), dice.randrange(1, 4)))
                limits = {"max_bytes": dice.choice([1, 150, 50 << 20])}
                found = await consumer.fetch(asked, forgotten, wait_ms=dice.choice([0, 1]), **limits)
                changed = {}
                for index, one in found.items():
                    assert one.error_code == 0
                    records = [record.offset for record in records_of(one) if record.offset >= positions[index]]
                    told[index] = one.high_watermark
                    if records and dice.random() < 0.9:  # else the client has dropped the reply
                        assert records == list(range(positions[index], positions[index] + len(records)))
                        changed[index] = positions[index] = records[-1] + 1
                asked = asking(place, changed, max_bytes=dice.choice([1, 1 << 20]))
                forgotten = []
                if dice.random() < 0.05:  # one is paused and goes on
                    index = dice.randrange(6)
                    said = {"topic": "t"} if version < 13 else {"topic_id": topic.id}
                    await consumer.fetch(asked, [Entity(partitions=[index], **said)])
                    asked = asking(place, {index: positions[index]})
                idle = 0 if changed else idle + 1
            ends = {index: partition.log.high_watermark for index, partition in enumerate(topic.partitions)}
            assert positions == ends
            assert told == ends


# Pieces of files


@pytest.mark.parametrize("version", [11, 16])
async def test_what_has_left_memory_goes_out_as_pieces_of_files(tmp_path: Path, version: int) -> None:
    dice = random.Random(4)
    values = [dice.randbytes(dice.randrange(1000, 30_000)) for _ in range(150)]
    async with kafka_broker(OsFiles(tmp_path)) as broker:
        topic = await broker.create_topic("t")
        for value in values:
            topic.partitions[0].append(batch_of([value]))
        await append(broker, topic, 0)
        topic.partitions[0].log._tail.drop_before(145)  # as when more has come
        for sends_files in (True, False):
            peer = Peer(broker, sends_files=sends_files)
            consumer = Consumer(peer, version)
            place = "t" if version < 13 else topic
            found: list[bytes | None] = []
            while len(found) <= len(values):
                limits = {"max_bytes": dice.choice([1, 300_000, 10 << 20]), "isolation_level": dice.randrange(2)}
                (one,) = (await consumer.fetch(asking(place, {0: len(found)}, max_bytes=1 << 20), **limits)).values()
                records = records_of(one)
                assert [record.offset for record in records] == [*range(len(found), len(found) + len(records))]
                found += [record.value for record in records]
            assert found == [*values, b"x"]
            assert (peer.pipe.ranges > 0) == sends_files


async def test_news_while_the_disk_is_read_is_not_missed(tmp_path: Path) -> None:
    async with kafka_broker(OsFiles(tmp_path)) as broker:
        topic = await broker.create_topic("t", partitions=2)
        partition = topic.partitions[0]
        for number in range(3):
            partition.append(batch_of([b"%d" % number * 900]))
        await append(broker, topic, 0)
        partition.log._tail.drop_before(3)
        consumer = Consumer(Peer(broker))
        read_cold = partition.log.read_cold

        async def meanwhile(*args: Any, **how: Any) -> Any:
            found = await read_cold(*args, **how)
            if topic.partitions[1].log.log_end_offset == 0:
                topic.partitions[1].append(batch_of([b"y" * 5000]))
                await append(broker, topic, 1)
            return found

        partition.log.read_cold = meanwhile  # type: ignore[method-assign]
        found = await consumer.fetch(asking(topic, {0: 0, 1: 0}, max_bytes=10_000), min_bytes=5_000, wait_ms=60_000)
        assert len(records_of(found[1])) == 2


# How many there are


def begun(sessions: FetchSessions, count: int, now: float, owner: str = "u") -> FetchSession | None:
    """A session of so many partitions."""

    def entries(session: FetchSession) -> list[SessionEntry]:
        return [SessionEntry(session, "t", b"", index) for index in range(count)]

    return sessions.begin(owner, entries, count, by_id=False, now=now)


def test_who_gives_way_to_whom() -> None:
    config = KafkaConfig(fetch_sessions_max=2, fetch_session_partitions_max=10, fetch_session_eviction_ms=1000)
    sessions = FetchSessions(config)
    first, second = begun(sessions, 2, 0.0), begun(sessions, 3, 0.5)
    assert first is not None
    assert second is not None
    assert begun(sessions, 9, 0.9) is None, "both are young"
    for now in (0.9, 1.2):
        sessions.find("u", first.id, first.epoch, by_id=False, now=now)
        sessions.find("u", second.id, second.epoch, by_id=False, now=now)
    assert begun(sessions, 2, 1.3) is None, "it is not larger"
    third = begun(sessions, 3, 1.3)
    assert third is not None
    with pytest.raises(KafkaError):
        sessions.find("u", first.id, first.epoch, by_id=False, now=1.3)
    assert (len(sessions), sessions.partitions) == (2, 6)
    fourth = begun(sessions, 1, 2.25)
    assert fourth is not None, "the second was not used for a second"
    assert (len(sessions), sessions.partitions) == (2, 4)
    assert begun(sessions, 11, 9.0) is None, "more than all may have"
    assert (len(sessions), sessions.partitions) == (0, 0)
    assert begun(FetchSessions(KafkaConfig(fetch_sessions_max=0)), 1, 0.0) is None
    assert begun(sessions, 0, 9.0) is None


def test_a_session_that_grows_beyond_what_all_may_have_ends() -> None:
    sessions = FetchSessions(KafkaConfig(fetch_session_partitions_max=4))
    session = begun(sessions, 3, 0.0)
    assert session is not None
    more = [SessionEntry(session, "t", b"", index) for index in range(2, 5)]
    with pytest.raises(KafkaError) as refused:
        sessions.update(session, more, ())
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partitions) == (0, 0)


async def test_without_room_for_a_session_all_is_said_each_time() -> None:
    async with kafka_broker() as broker:
        topic = await broker.create_topic("t")
        consumer = Consumer(Peer(broker, fetch_sessions_max=0))
        for _ in range(2):
            consumer.epoch = INITIAL
            assert (await consumer.fetch(asking(topic, {0: 0}))).keys() == {0}
            assert consumer.session_id == 0


# Epochs


async def test_who_has_read_what_was_lost_is_told_where_to_go_on() -> None:
    files = MemoryFiles()
    async with kafka_broker(files) as broker:
        topic = await broker.create_topic("t")
        await append(broker, topic, 0, 0)
        files = files.crash()
    async with kafka_broker(files) as broker:
        topic = broker.topics["t"]
        assert topic.partitions[0].leader_epoch == 1, "the stop was not clean"
        await append(broker, topic, 0)
        consumer = Consumer(Peer(broker), 12)

        async def ask(offset: int, fetched_epoch: int) -> Any:
            consumer.epoch = FINAL
            asked = asking("t", {0: offset}, last_fetched_epoch=fetched_epoch)
            return (await consumer.fetch(asked))[0]

        for offset, epoch in ((0, -1), (2, 0), (0, 0), (3, 1)):
            found = await ask(offset, epoch)
            assert (found.error_code, found.diverging_epoch) == (0, None)
            assert [one.offset for one in records_of(found)][:1] == [offset][: offset < 3]
        lost = await ask(5, 0)
        assert (lost.error_code, lost.records, lost.high_watermark) == (0, b"", 3)
        assert (lost.diverging_epoch.epoch, lost.diverging_epoch.end_offset) == (0, 2)
        assert (await ask(3, 7)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
