"""Views that take in the records with certain keys alone."""

from __future__ import annotations

import pytest

from core_log.memory_files import MemoryFiles
from routing.errors import InvalidArgument
from routing.message import Properties, Slab
from routing.queues import view as views
from routing.queues import view_filter
from routing.queues.view_filter import KeyFilter, picked
from tests.routing.harness import engine, killed
from tests.routing.queues.test_views import append, records, topic, view, worker

MIXED = [
    ("a", "sensors.1.temp"), ("b", "sensors.2.hum"), ("c", "sensors.2.temp"), ("d", "sensors.3.temp"),
    ("e", "other"), ("f", "sensors.4.temp"), ("g", "sensors.4.temp.old"),
]  # fmt: skip
TEMPERATURES = ["a", "c", "d", "f"]


def slab(*keys: str) -> Slab:
    """A message with each key."""
    bodies = [str(number).encode() for number in range(len(keys))]
    raws = [b"raw " + body for body in bodies]
    return Slab(
        "",
        keys[0],
        Properties("test", b"", persistent=True),
        bodies,
        keys=list(keys) if len(set(keys)) > 1 else None,
        raws=raws,
    )


@pytest.mark.parametrize(
    ("pattern", "keys", "start", "stop", "found"),
    [
        ("a.*", ["a.b", "a.c", "b", "a.d"], 0, 4, [(0, 2), (3, 1)]),
        ("a.*", ["a.b", "a.c", "b", "a.d"], 1, 3, [(1, 1)]),
        ("a.*", ["a.b.c", "b"], 0, 2, []),
        ("a.#", ["a.b.c"] * 3, 1, 3, [(1, 2)]),
        ("a", ["b"] * 3, 0, 3, []),
        ("#", ["", "x"], 0, 2, [(0, 2)]),
    ],
)  # fmt: skip
def test_stretches_of_what_is_wanted(
    pattern: str, keys: list[str], start: int, stop: int, found: list[tuple[int, int]]
) -> None:
    assert KeyFilter(pattern).wanted(slab(*keys), start, stop) == found


def test_what_is_picked_keeps_key_and_properties() -> None:
    one = picked(slab("a", "b", "c", "b"), [(1, 1), (3, 1)])
    assert (one.routing_key, [one.key_of(at) for at in range(2)], one.bodies) == ("b", ["b", "b"], [b"1", b"3"])
    assert [one.properties_of(at).raw for at in range(2)] == [b"raw 1", b"raw 3"]
    assert picked(slab("a", "a"), [(0, 2)]).bodies == [b"0", b"1"]
    assert picked(slab("a", "b", "c"), [(1, 2)]).keys == ["b", "c"]


def test_keys_that_are_remembered_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_filter, "_KNOWN_MAX", 3)
    found = KeyFilter("1*.#")
    assert [key for key in map(str, range(10)) if found.wants(key)] == []
    assert len(found._known) <= 3


async def test_what_is_not_wanted_is_passed_and_stays_in_the_topic() -> None:
    async with engine(MemoryFiles()) as running:
        await topic(running, 2)
        queue = await view(running, view_filter="sensors.*.temp")
        for partition in range(2):
            await append(running, *MIXED, partition=partition)
        await append(running, ("no", "other"), ("none", "other"))
        client = await worker(running, 3)
        first = client.take()
        assert [one.body for one in first] == TEMPERATURES[:3]
        client.requeue(first[1].id)
        client.ack(first[0].id)
        client.ack(first[2].id)
        again = client.take()
        assert [(one.body, one.redelivered) for one in again] == [("c", True), ("f", False), ("a", False)]
        client.ack(again[0].id, again[-1].id)
        assert client.take_bodies() == TEMPERATURES[1:]
        assert (queue.message_count, queue.outstanding) == (0, 3)
        assert records(running)[1] == [body for body, _ in MIXED]


async def test_after_a_crash_what_was_not_settled_comes_and_nothing_else() -> None:
    files = MemoryFiles()
    async with engine(files) as running:
        await topic(running)
        await view(running, view_filter="sensors.*.temp")
        await append(running, *MIXED)
        client = await worker(running, 2)
        client.ack(client.take()[0].id)
        await running.synced()
        crashed = killed(files)
    async with engine(crashed) as running:
        left = await running.drain("v")
        assert [body for body, _ in left] == TEMPERATURES[1:]


async def test_others_have_their_turns_while_much_is_passed_and_a_get_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "_PASSED_MAX", 50)
    async with engine(MemoryFiles(), stream_read_bytes=4096) as running:
        await topic(running)
        queue = await view(running, view_filter="wanted")
        for _ in range(40):
            await append(running, *(("x" * 200, f"other.{at}") for at in range(20)))
        await append(running, ("here", "wanted"))
        assert not queue.view.take_in(), "it does not look through all of it at once"
        got = await running.client().session.get("v", no_ack=True)
        assert got is not None
        assert got.slab.bodies[got.index] == b"here"
        assert await running.client().session.get("v", no_ack=True) is None
        await append(running, ("more", "wanted"), *((str(at), "other") for at in range(200)), ("last", "wanted"))
        client = await worker(running, no_ack=True)
        got_bodies = client.take_bodies()
        await running.until(lambda: not queue.message_count)
        assert got_bodies + client.take_bodies() == ["more", "last"]


async def test_only_a_view_has_a_filter() -> None:
    async with engine(MemoryFiles()) as running:
        for kind in ("classic", "quorum"):
            with pytest.raises(InvalidArgument, match=f"x-view-filter.*rabbit_{kind}_queue"):
                await running.broker.declare_queue(
                    "q", durable=True, arguments={"x-queue-type": kind, "x-view-filter": "a"}
                )
