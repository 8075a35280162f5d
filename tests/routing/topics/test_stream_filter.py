"""Consumers of streams that want only what is marked with some values."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.memory_files import MemoryFiles
from core_log.record_batch import BatchBuilder
from routing.errors import PreconditionFailed
from routing.topics import stream as stream_module
from routing.topics.stream import Stream
from tests.routing.harness import PERSISTENT, Engine, engine, with_headers
from tests.routing.topics.test_streams import Reader, declare

MARK = "x-stream-filter-value"


async def marked(running: Engine, *values: Any) -> Stream:
    """A stream of messages with these marks, None for none; the body is the place."""
    stream, client = await declare(running), running.client()
    for place, value in enumerate(values):
        properties = PERSISTENT if value is None else with_headers({"a": 1, MARK: value})
        client.publish("s", place, properties=properties, confirm=True)
    running.turn()
    await running.until(lambda: client.confirmed == len(values))
    return stream


VALUES = ("x", "y", None, "x", "x", "z", None, "y", "x", 7)


@pytest.mark.parametrize("prefetch", [1, 2, 100])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x-stream-filter": "x"}, [0, 3, 4, 8]),
        ({"x-stream-filter": b"x"}, [0, 3, 4, 8]),
        ({"x-stream-filter": ["y", "z"]}, [1, 5, 7]),
        ({"x-stream-filter": "x", "x-stream-match-unfiltered": True}, [0, 2, 3, 4, 6, 8, 9]),
        ({"x-stream-filter": ["z"], "x-stream-match-unfiltered": "true"}, [2, 5, 6, 9]),
        ({"x-stream-match-unfiltered": True}, list(range(10))),
    ],
)
async def test_only_what_is_wanted_comes_with_its_offset(
    prefetch: int, arguments: dict[str, Any], expected: list[int]
) -> None:
    async with engine(MemoryFiles()) as running:
        await marked(running, *VALUES)
        reader = Reader(running, prefetch)
        await reader.read("s", **arguments)
        got = await reader.until(len(expected))
        assert [(offset, int(body)) for offset, _, body in got] == [(place, place) for place in expected]
        client = running.client()
        for value in ("no", "x"):
            client.publish("s", value, properties=with_headers({MARK: value}), confirm=True)
        running.turn()
        await running.until(lambda: client.confirmed == 2)
        if "x" in str(arguments.get("x-stream-filter", "")):
            assert (await reader.until(len(expected) + 1))[-1][2] == "x"
        else:
            running.turn()
            assert "no" not in reader.bodies or "x-stream-filter" not in arguments


async def test_records_of_other_doors_are_marked_by_their_header() -> None:
    async with engine(MemoryFiles()) as running:
        stream = await declare(running)
        builder = BatchBuilder(0, 0, 1000)
        for number, headers in enumerate([[(MARK, b"x")], [], [(MARK, None)], [("b", b"c"), (MARK, b"x")]]):
            builder.add(number, b"k", b"%d" % number, headers)
        stream.topic.partitions[0].append(builder.build())
        running.turn()
        reader = Reader(running)
        await reader.read("s", **{"x-stream-filter": "x"})
        assert [body for _, _, body in await reader.until(2)] == ["0", "3"]


async def test_who_wants_little_of_much_leaves_others_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "_LOOKED_AT_MAX", 3)
    async with engine(MemoryFiles()) as running:
        stream = await marked(running, *["no"] * 2500, "x")
        reader = Reader(running)
        consumer = await reader.read("s", **{"x-stream-filter": "x"})
        running.turn()
        (cursor,) = stream._cursors.values()
        assert cursor.waiting
        assert cursor.offset < 2500
        assert [body for _, _, body in await reader.until(1)] == ["2500"]
        reader.session.cancel(consumer)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-stream-filter": 7},
        {"x-stream-filter": []},
        {"x-stream-filter": ["x", 1]},
        {"x-stream-filter": "x", "x-stream-match-unfiltered": "perhaps"},
    ],
)
async def test_what_is_no_filter_is_refused(arguments: dict[str, Any]) -> None:
    async with engine(MemoryFiles()) as running:
        await declare(running)
        with pytest.raises(PreconditionFailed, match="unacceptable_type"):
            await Reader(running).read("s", **arguments)
