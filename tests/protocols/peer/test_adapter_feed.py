"""Interests, messages and group offsets over the bytes of a link, between two engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import trio
import trio.testing

from protocols.buffers import FrameReader
from protocols.peer import wire_engine as wire
from protocols.peer import wire_feed
from protocols.peer.adapter_feed import FeedIn, FeedOut, Feeds
from protocols.peer.wire import Error, ErrorCode, PeerError
from routing.errors import StorageUnavailable
from routing.topics.offset_store import Committed, Partition
from tests.routing.cluster.clients.test_interests import Two, subscribed, two
from tests.routing.harness import TRANSIENT


class Pipe:
    """An outbox whose bytes arrive at once, in pieces of seven."""

    writable = True
    on_writable: Callable[[], None] | None = None
    pending_bytes = 0

    def __init__(self) -> None:
        self.to: Any = None
        self.cut = False
        self._reader = FrameReader(1 << 20)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        data = bytes(data)
        for start in range(0, len(data), 7):
            for frame in self._reader.feed(data[start : start + 7]):
                decoded = wire.decode(frame)
                assert not isinstance(decoded, Error)
                if not self.cut:
                    self.to.take(decoded)


class Kept:
    """Group offsets of one broker."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[Partition, Committed]] = {}
        self.topic_ids: Mapping[str, bytes] = {}

    async def commit_here(
        self, group: str, offsets: Mapping[Partition, Committed], topic_ids: Mapping[str, bytes]
    ) -> None:
        self.topic_ids = topic_ids
        if group == "refused":
            raise StorageUnavailable("not now")
        self.groups.setdefault(group, {}).update(offsets)

    async def fetch_here(self, group: str, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        found = self.groups.get(group, {})
        return {place: found[place] for place in partitions or found if place in found}


def linked(both: Two, source: int, spawn: Callable[..., Any]) -> tuple[FeedOut, Feeds, Kept, Pipe]:
    """A link over bytes from one of them to the other, in the place of the direct one."""
    out, back, feeds, kept = Pipe(), Pipe(), Feeds(), Kept()
    here, there = both.interests[source], both.interests[3 - source]
    feed = FeedOut(3 - source, out, here, feeds)
    out.to = FeedIn(source, back, there, kept, spawn)  # type: ignore[arg-type]
    back.to = feed
    feed.begin()
    return feed, feeds, kept, out


async def test_a_subscription_and_the_messages_for_it() -> None:
    async with two() as both, trio.open_nursery() as nursery:
        linked(both, 1, nursery.start_soon)
        linked(both, 2, nursery.start_soon)
        client = await subscribed(both, 2, "amq.topic", "a.+", syntax="mqtt")
        both.interests[2]._settle_s = 60
        with trio.fail_after(30):
            await both.interests[2].settled()
        publisher = both.engines[1].client()
        for number in range(3):
            publisher.publish(f"a.{number}", number, exchange="amq.topic", properties=TRANSIENT)
        both.turn()
        assert [one.body for one in client.deliveries] == ["0", "1", "2"]


async def test_group_offsets() -> None:
    async with two() as both, trio.open_nursery() as nursery:
        feed, feeds, kept, pipe = linked(both, 1, nursery.start_soon)
        offsets = {("t", 0): Committed(5, "note"), ("t", 1): Committed(1 << 40)}
        ids = {"t": b"1" * 16}
        await feeds.commit_offsets(2, "g", offsets, ids)
        assert (kept.groups, kept.topic_ids) == ({"g": offsets}, {}), "a broker of an earlier version takes none"
        feed._takes_ids = lambda: True
        await feeds.commit_offsets(2, "g", offsets, ids)
        assert (kept.groups, kept.topic_ids) == ({"g": offsets}, ids)
        assert await feeds.fetch_offsets(2, "g", None) == offsets
        assert await feeds.fetch_offsets(2, "g", [("t", 1), ("u", 0)]) == {("t", 1): Committed(1 << 40)}
        with pytest.raises(StorageUnavailable, match="not now"):
            await feeds.commit_offsets(2, "refused", offsets, ids)
        with pytest.raises(StorageUnavailable, match="cannot be reached"):
            await feeds.commit_offsets(3, "g", offsets, ids)
        pipe.cut = True

        async def lose() -> None:
            await trio.testing.wait_all_tasks_blocked()
            feed.lose()

        nursery.start_soon(lose)
        with pytest.raises(StorageUnavailable, match="does not answer"):
            await feed.commit_offsets("g", offsets, ids)
        assert not feeds.by_broker


async def test_frames_of_the_other_end_are_refused() -> None:
    async with two() as both, trio.open_nursery() as nursery:
        feed, _, _, pipe = linked(both, 1, nursery.start_soon)
        for end, frame in ((feed, wire_feed.FetchOffsets(1, b"g", None)), (pipe.to, wire_feed.Noted(1, []))):
            with pytest.raises(PeerError) as caught:
                end.take(frame)
            assert caught.value.code is ErrorCode.UNEXPECTED_FRAME
