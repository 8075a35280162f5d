"""Runs of publishes and acks: found whole, in pieces of any size, and never confused by what bodies contain."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp import methods
from protocols.amqp.config import AmqpConfig
from protocols.amqp.connection import Event
from protocols.amqp.deliveries import DeliveryPrefix, encode_large, encode_run
from protocols.amqp.properties import BasicProperties, encode_properties
from protocols.amqp.publish_run import AckRange, AckUpTo, PublishRun
from tests.protocols.amqp.wire import PERSISTENT, Wire, call, contents, publish

OTHER = encode_properties(BasicProperties(content_type="text/plain"))


def merged(events: Sequence[Event]) -> list[Any]:
    """Publishes one by one and acks as one range: how the bytes were cut must not matter beyond that."""
    found: list[Any] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, PublishRun):
            count = len(event.bodies)
            keys, raws = event.keys or [event.routing_key] * count, event.raws or [event.properties] * count
            found += [
                (event.channel, event.exchange, event.mandatory, *message)
                for message in zip(keys, raws, event.bodies, strict=True)
            ]
            continue
        if isinstance(event, AckRange) and isinstance(last, AckRange):  # noqa: SIM102
            if (event.channel, event.first) == (last.channel, last.last + 1):
                last.last = event.last
                continue
        found.append(event)
    return found


def messages(events: Sequence[Event]) -> list[tuple[str, bytes]]:
    """Key and body of everything that was published."""
    found: list[tuple[str, bytes]] = []
    for run in events:
        assert isinstance(run, PublishRun)
        found += zip(run.keys or [run.routing_key] * len(run.bodies), run.bodies, strict=True)
    return found


def test_a_run_is_one_event() -> None:
    bodies = [bytes([i % 256]) * 100 for i in range(1000)]
    (event,) = Wire.opened().receive(b"".join(publish("q", body) for body in bodies))
    assert event == PublishRun(1, "", "q", False, PERSISTENT, bodies)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 18, 127, 128, 129, 145, 300])
def test_runs_of_any_length_end_where_they_end(count: int) -> None:
    bodies = [i.to_bytes(4, "big") for i in range(count)]
    data = b"".join(publish("q", body) for body in bodies) + publish("other", b"last") + publish("q", b"more")
    runs = Wire.opened().receive(data)
    assert messages(runs) == [*[("q", body) for body in bodies], ("other", b"last"), ("q", b"more")]
    assert len(runs) == (1 if count < 16 else 2)


def test_mixed_sizes_stay_in_one_run() -> None:
    rng = random.Random(7)
    bodies = [rng.randbytes(rng.choice([1, 2, 2, 50, 50, 50, 50])) for _ in range(500)]
    (event,) = Wire.opened().receive(b"".join(publish("q", body) for body in bodies))
    assert isinstance(event, PublishRun)
    assert event.bodies == bodies


def test_a_key_that_differs_begins_a_mixed_run() -> None:
    one = publish("q", b"body")
    uniform, mixed = Wire.opened().receive(one * 20 + publish("other", b"body") + one * 3)
    assert isinstance(uniform, PublishRun)
    assert isinstance(mixed, PublishRun)
    assert (len(uniform.bodies), uniform.keys) == (20, None)
    assert (len(mixed.bodies), mixed.keys) == (4, ["other", "q", "q", "q"])


@pytest.mark.parametrize(
    "change",
    [
        lambda body: publish("q", body, exchange="x"),
        lambda body: publish("q", body, mandatory=True),
        lambda body: publish("q", body, raw=OTHER),
        lambda body: publish("q", body, channel=2),
        lambda body: call(1, methods.BasicNack(1)),
    ],
)
def test_a_run_ends_at_what_differs(change: Callable[[bytes], bytes]) -> None:
    one = publish("q", b"body")
    events = Wire.opened(channels=2).receive(one * 20 + change(b"body") + one * 3)
    assert len(events) == 3
    assert isinstance(events[0], PublishRun)
    assert isinstance(events[2], PublishRun)
    assert (len(events[0].bodies), len(events[2].bodies)) == (20, 3)
    assert isinstance(events[1], PublishRun) == (b"\x00\x3c\x00\x28" in change(b"body"))


def test_bodies_that_look_like_frames_are_bodies() -> None:
    inner = publish("q", b"x" * 30)
    bodies = [inner[: len(inner) - cut] for cut in (0, 1, 5)] * 50 + [b"\xce" * 80, inner * 2]
    bodies += [(b"\xce" + inner)[:80]] * 200
    (event,) = Wire.opened().receive(b"".join(publish("q", body) for body in bodies))
    assert isinstance(event, PublishRun)
    assert event.bodies == bodies


def test_empty_bodies_make_runs() -> None:
    (event,) = Wire.opened().receive(publish("q", b"") * 100)
    assert isinstance(event, PublishRun)
    assert event.bodies == [b""] * 100
    mixed = publish("q", b"") * 3 + publish("q", b"x") * 20 + publish("q", b"") * 2
    bodies = [body for *_, body in merged(Wire.opened().receive(mixed))]
    assert bodies == [b""] * 3 + [b"x"] * 20 + [b""] * 2


def test_properties_are_interned_once_for_a_run() -> None:
    seen: list[bytes] = []
    wire = Wire.opened()
    wire.connection._properties._intern = lambda raw: seen.append(raw) or raw  # type: ignore[func-returns-value]
    for _ in range(3):
        wire.receive(publish("q", b"one") * 50 + publish("r", b"two!") * 50)
    assert seen == [PERSISTENT]


def test_memos_are_bounded() -> None:
    wire = Wire.opened(AmqpConfig(parsed_memo_entries_max=10))
    for number in range(100):
        raw = encode_properties(BasicProperties(message_id=str(number)))
        (event,) = wire.receive(publish(f"key {number}", b"body", raw=raw))
        assert isinstance(event, PublishRun)
        assert (event.routing_key, event.properties) == (f"key {number}", raw)
    assert len(wire.connection._routes) <= 10
    assert len(wire.connection._properties._known) <= 10


def test_big_property_lists_are_not_remembered() -> None:
    wire = Wire.opened()
    raw = encode_properties(BasicProperties(headers={"big": "x" * 2000}))
    (event,) = wire.receive(publish("q", b"body", raw=raw) * 2)[:1]
    assert isinstance(event, PublishRun)
    assert event.properties == raw
    assert not wire.connection._properties._known


# --- acknowledgements ------------------------------------------------------------------


def ack(tag: int, *, channel: int = 1, multiple: bool = False) -> bytes:
    """An ack frame."""
    return call(channel, methods.BasicAck(tag, multiple))


@pytest.mark.parametrize(
    ("first", "count"), [(1, 1), (1, 2), (1, 255), (1, 256), (200, 1000), (2**32 - 5, 300), (0, 3)]
)
def test_rising_acks_are_one_range(first: int, count: int) -> None:
    data = b"".join(ack(tag) for tag in range(first, first + count))
    assert Wire.opened().receive(data) == [AckRange(1, first, first + count - 1)]


def test_acks_out_of_order_keep_their_order() -> None:
    data = b"".join(map(ack, [1, 2, 3, 7, 6, 8, 9, 9])) + ack(20, multiple=True) + ack(21) + ack(22, channel=2)
    assert Wire.opened(channels=2).receive(data) == [
        AckRange(1, 1, 3), AckRange(1, 7, 7), AckRange(1, 6, 6), AckRange(1, 8, 9), AckRange(1, 9, 9), AckUpTo(1, 20),
        AckRange(1, 21, 21), AckRange(2, 22, 22),
    ]  # fmt: skip


def test_the_largest_delivery_tag_is_just_a_tag() -> None:
    assert Wire.opened().receive(ack(2**64 - 1) + ack(0)) == [AckRange(1, 2**64 - 1, 2**64 - 1), AckRange(1, 0, 0)]


def test_a_long_run_broken_late_is_found() -> None:
    tags = [*range(1, 200), 777, *range(200, 400)]
    expected = [AckRange(1, 1, 199), AckRange(1, 777, 777), AckRange(1, 200, 399)]
    assert Wire.opened().receive(b"".join(map(ack, tags))) == expected


# --- however it is cut -----------------------------------------------------------------

OPERATIONS = st.one_of(
    st.builds(
        publish,
        st.sampled_from(["q", "other"]),
        st.sampled_from([b"", b"same", b"size", b"longer body", b"x" * 5000, publish("q", b"same")]),
        raw=st.sampled_from([PERSISTENT, OTHER]),
        channel=st.sampled_from([1, 2]),
        frame_bytes_max=st.sampled_from([4096, 131072]),
    ),
    st.builds(ack, st.integers(1, 9), channel=st.sampled_from([1, 2]), multiple=st.booleans()),
    st.builds(lambda tag: call(1, methods.BasicReject(tag)), st.integers(1, 9)),
).flatmap(lambda data: st.integers(1, 40).map(lambda count: data * count))


@settings(max_examples=60)
@given(st.lists(OPERATIONS, max_size=6).map(b"".join), st.sampled_from([1, 2, 7, 20, 21, 64, 1000, 4099]))
def test_how_reads_are_cut_does_not_matter(data: bytes, size: int) -> None:
    if size < 20:
        data = data[:3000]
    whole = merged(Wire.opened(channels=2).receive(data))
    assert merged(Wire.opened(channels=2).receive_in(data, size)) == whole


def test_contents_of_two_channels_may_interleave() -> None:
    one, two = (publish("q", b"body of %d" % channel, channel=channel) for channel in (1, 2))
    cuts = [0, one.index(b"\x02\0\1"), one.index(b"\x03\0\1"), len(one)]
    pieces = [side[a:b] for a, b in itertools.pairwise(cuts) for side in (one, two)]
    for size in (1, len(one) * 2):
        events = Wire.opened(channels=2).receive_in(b"".join(pieces), size)
        assert [event.bodies for event in events if isinstance(event, PublishRun)] == [[b"body of 1"], [b"body of 2"]]


def test_a_body_may_come_in_frames_of_any_size() -> None:
    body = random.Random(3).randbytes(10_000)
    data = publish("q", body, frame_bytes_max=4096) + publish("q", body, frame_bytes_max=100) + publish("q", b"next")
    events = merged(Wire.opened().receive(data))
    assert events == [(1, "", False, "q", PERSISTENT, sent) for sent in (body, body, b"next")]


def test_a_large_body_costs_no_more_than_its_bytes() -> None:
    body = bytes(1 << 20) * 15
    data = publish("q", body)
    wire = Wire.opened()
    largest = 0
    events: list[Event] = []
    for at in range(0, len(data), 10_000):
        events += wire.receive(data[at : at + 10_000])
        largest = max(largest, wire.connection._buffered)
    assert events == [PublishRun(1, "", "q", False, PERSISTENT, [body])]
    # What is joined again when more comes never exceeds one frame and one read.
    assert largest <= 131072 + 10_000


# --- deliveries ------------------------------------------------------------------------


def plainly(channel: int, tag: str, first: int, redelivered: bool, raw: bytes, bodies: Sequence[bytes]) -> list[object]:
    return [
        (channel, methods.BasicDeliver(tag, number, redelivered, "x", "key"), raw, body)
        for number, body in enumerate(bodies, first)
    ]


BODIES = [
    [b"one"], [b""], [b"a", b"b"], [b"", b"", b""], [b"same"] * 600, [b"x" * (i % 7) for i in range(400)],
]  # fmt: skip


@pytest.mark.parametrize("bodies", BODIES)
@pytest.mark.parametrize("first", [1, 250, 256, 2**32 - 2, 2**63])
def test_deliveries_are_what_they_say(bodies: list[bytes], first: int) -> None:
    prefix = DeliveryPrefix(3, "ctag", "x", "key", PERSISTENT, True)
    data = encode_run(prefix, first, bodies, list(map(len, bodies)))
    assert contents(data) == plainly(3, "ctag", first, True, PERSISTENT, bodies)


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8176, 8177, 50_000])
def test_large_bodies_are_cut_into_frames(size: int) -> None:
    bodies = [random.Random(size).randbytes(size), b"small"]
    prefix = DeliveryPrefix(3, "ctag", "x", "key", b"\0\0", False)
    data = b"".join(encode_large(prefix, 3, 9, bodies, 4096))
    assert contents(data) == plainly(3, "ctag", 9, False, b"\0\0", bodies)
    assert max(int.from_bytes(data[at + 3 : at + 7], "big") for at in [0]) <= 4088


def test_sizes_remembered_are_bounded() -> None:
    prefix = DeliveryPrefix(1, "c", "x", "key", b"\0\0", False)
    bodies = [b"x" * size for size in range(1000)]
    assert contents(encode_run(prefix, 1, bodies, list(map(len, bodies)))) == plainly(1, "c", 1, False, b"\0\0", bodies)
    assert len(prefix) <= 128
