"""A short round of `hostile.py`, over whatever is served; and how much a request may make of itself."""

from __future__ import annotations

import random
import tracemalloc
from struct import pack

import pytest
import trio
import trio.testing

from protocols.kafka.codec import Entity
from protocols.kafka.messages_records import FETCH, METADATA
from protocols.kafka.registry import SERVED
from tests.protocols.kafka import hostile
from tests.protocols.kafka.door import Peer, fetching, kafka_broker


@pytest.mark.parametrize("key", sorted(SERVED))
async def test_whatever_comes_the_broker_serves_others(key: int) -> None:
    dice = random.Random(key)
    served = SERVED[key]
    answered = 0
    async with kafka_broker(**hostile.SETTINGS) as broker:
        for version in range(served.version_min, served.version_max + 1):
            maker = await hostile.prepared(broker, dice)
            answered += await hostile.attack(broker, maker, served, version, 6)
        await hostile.honest(broker)
    assert answered


async def test_what_is_not_served_ends_the_connection() -> None:
    async with kafka_broker() as broker:
        await hostile.strangers(broker, random.Random(1), 60)
        await hostile.honest(broker)


async def test_lengths_that_lie_take_no_memory() -> None:
    dice = random.Random(2)
    async with kafka_broker(**hostile.SETTINGS) as broker:
        tracemalloc.start()
        try:
            for served in SERVED.values():
                maker = await hostile.prepared(broker, dice)
                await hostile.lies(broker, maker, dice, served, served.version_max, 5)
        finally:
            tracemalloc.stop()
        await hostile.honest(broker)


async def test_a_request_has_only_so_many_elements() -> None:
    async with kafka_broker() as broker:
        for version in (5, 12):
            for count, closed in ((1000, False), (1001, True)):
                peer = Peer(broker, request_elements_max=1000)
                topics = [Entity(name=f"{number}") for number in range(count)]
                await peer.send(METADATA, version, topics=topics, allow_auto_topic_creation=False)
                assert peer.adapter.closed is closed
        peer = Peer(broker, request_elements_max=1000)
        body = pack(">hhih", METADATA.key, 12, 1, -1) + b"\x80\x80\x80\x01" + bytes(2 << 21)
        await peer.receive(pack(">i", len(body)) + body)
        assert peer.adapter.closed, "two million tagged fields in the header alone"


async def test_before_the_login_requests_are_small() -> None:
    async with kafka_broker() as broker:
        for authenticate, closed in ((None, False), (_nobody, True)):
            peer = Peer(broker, authenticate=authenticate, address="192.0.2.1:5", login_request_bytes_max=100)
            await peer.receive(pack(">i", 101) + bytes(10))
            assert peer.adapter.closed is closed


async def _nobody(user: str, password: bytes | None, peer: str) -> bool:
    return False


async def test_who_does_not_read_is_not_answered_for_ever() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker, replies_bytes_max=1000)
        for number in range(20):
            await broker.create_topic(f"t{number}")
        head = pack(">hhih", METADATA.key, 1, 1, -1) + b"\xff\xff\xff\xff"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.adapter.handle, (pack(">i", len(head)) + head) * 50)
            await trio.testing.wait_all_tasks_blocked()
            size = len(peer.pipe.take())
            assert 1000 < size < 3000
            total = size
            while total < 50 * (size // 2):
                await trio.testing.wait_all_tasks_blocked()
                got = len(peer.pipe.take())
                assert 0 < got <= size
                total += got


async def test_behind_one_that_waits_no_more_is_served_than_may_be_kept() -> None:
    async with kafka_broker() as broker:
        for number in range(20):
            await broker.create_topic(f"t{number}")
        peer = Peer(broker, replies_bytes_max=10_000)
        await peer.send(FETCH, 11, **fetching("t0", wait_ms=60_000))
        served = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.receive, b"".join(peer.encoded(METADATA, 1, topics=None) for _ in range(20)))
            await trio.testing.wait_all_tasks_blocked()
            served.append(peer.adapter.waiting)
            assert 2 < served[0] < 20
            assert not peer.pipe.data
            peer.adapter.shut_down("the test ends")
            peer.pipe.wake_waiting()
        assert len(peer.replies()) == served[0], "the rest was left unread"
