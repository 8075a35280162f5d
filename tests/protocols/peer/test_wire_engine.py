"""The codec of engine links: every frame both ways, against msgpack as the oracle, and against what is no frame; slabs
come out as they went in.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import protocols.amqp.adapter  # noqa: F401  registers its properties
from protocols.peer import columns, wire_feed, wire_slabs
from protocols.peer import wire_engine as wire
from protocols.peer.adapter_slabs import SlabReader, to_entry
from protocols.peer.wire import ErrorCode, PeerError
from protocols.peer.wire_places import Fenced, Numbered, NumberedEntry, Placed, PlacedEntry
from protocols.peer.wire_transactions import (
    AskCoordinator,
    AskPlaces,
    CoordinatorAnswer,
    KeepStep,
    KeepTransaction,
    PutThere,
    SettlementEntry,
    SettleThere,
    TransactionAnswer,
)
from routing.facts import pack
from routing.message import Properties, Slab

LARGE = bytes(range(256)) * 300
MAX = (1 << 63) - 1
SIZES = array("I", [1, 2, 0]).tobytes()
ONE = (b"\x03\0\0\0", b"abc")
SMALL = wire_slabs.SlabEntry(b"ex", b"key", "amqp", True, b"raw", 1, 0, 1, ONE, None, None, None)
FULL = wire_slabs.SlabEntry(
    b"\xff", b"", "mqtt-5", False, b"", 0, (1 << 41) - 1, 3,
    (b"\0\x64\0\0", LARGE[:25600] * 3), (SIZES, b"abb"), (SIZES, b"xyz"), b"\0" * 48,
)  # fmt: skip
SMALL_LIST = [b"ex", b"key", "amqp", True, b"raw", 1, 0, 1, list(ONE), None, None, None]
FULL_LIST = [
    b"\xff", b"", "mqtt-5", False, b"", 0, (1 << 41) - 1, 3,
    [b"\0\x64\0\0", LARGE[:25600] * 3], [SIZES, b"abb"], [SIZES, b"xyz"], b"\0" * 48,
]  # fmt: skip
DELIVERY = wire.DeliverEntry(MAX, 1, True, FULL)

ALL: list[tuple[wire.AnyEngineFrame, list[Any]]] = [
    (wire.Begin(MAX), [16, MAX]),
    (wire.Publish(0, [], [], []), [17, 0, [], [], []]),
    (
        wire.Publish(
            7,
            [
                wire.PublishEntry("home-1", 2, 3, [4, 5], 6, 3, SMALL),
                wire.PublishEntry("home-2", 2, MAX, [4], 0, 0, FULL),
            ],
            [
                wire.RecordsEntry("topic-a-0", 1, 2, True, 3, (b"", b"k"), (b"", b"h"), (SIZES, b"abb")),
                wire.RecordsEntry("topic-a-1", 1, 2, False, 3, (SIZES, b"abb"), (b"", LARGE), (SIZES, b"abb")),
            ],
            [wire.WaitingEntry("home-1", 2, 9, 8)],
        ),
        [
            17, 7,
            [["home-1", 2, 3, [4, 5], 6, 3, SMALL_LIST], ["home-2", 2, MAX, [4], 0, 0, FULL_LIST]],
            [
                ["topic-a-0", 1, 2, True, 3, [b"", b"k"], [b"", b"h"], [SIZES, b"abb"]],
                ["topic-a-1", 1, 2, False, 3, [SIZES, b"abb"], [b"", LARGE], [SIZES, b"abb"]],
            ],
            [["home-1", 2, 9, 8]],
        ],
    ),
    (
        wire.Consume(1, 2, 3, "home-1", 4, 5, b"tag\xff", True, False, -10, 6, 7, b"\x80"),
        [18, 1, 2, 3, "home-1", 4, 5, b"tag\xff", True, False, -10, 6, 7, b"\x80"],
    ),
    (
        wire.Consume(1, 2, 3, "topic-a-0", 4, None, b"", False, True, 0, 6, 7, b""),
        [18, 1, 2, 3, "topic-a-0", 4, None, b"", False, True, 0, 6, 7, b""],
    ),
    (wire.Cancel(3), [19, 3]),
    (wire.Credit([]), [20, []]),
    (wire.Credit([wire.CreditEntry(1, 2, MAX)]), [20, [[1, 2, MAX]]]),
    (
        wire.Settle([wire.SettleEntry(1, "ack", [1, 5, 9, 9]), wire.SettleEntry(2, "unseen_again", [])]),
        [21, [[1, "ack", [1, 5, 9, 9]], [2, "unseen_again", []]]],
    ),
    (wire.Ask(1, 2, "get_no_ack", "home-1", 3, 4, 5), [22, 1, 2, "get_no_ack", "home-1", 3, 4, 5]),
    (wire.Done([]), [23, []]),
    (wire.Done([wire.DoneEntry("home-1", 1, 9, 8, [3, 4])]), [23, [["home-1", 1, 9, 8, [3, 4]]]]),
    (wire.Deliver([]), [24, []]),
    (wire.Deliver([wire.DeliverEntry(1, 2, False, SMALL), DELIVERY]), [24, [[1, 2, False, SMALL_LIST], [MAX, 1, True, FULL_LIST]]]),  # noqa: E501
    (wire.Answer(1, "NotFound", "no queue", 2, 3, None), [25, 1, "NotFound", "no queue", 2, 3, None]),
    (wire.Answer(1, "", "", 2, 3, DELIVERY), [25, 1, "", "", 2, 3, [MAX, 1, True, FULL_LIST]]),
    (wire.Over(3, True), [26, 3, True]),
    (wire.NotLed("home-1", 4, True), [27, "home-1", 4, True]),
    (wire.Fetch(1, 2, "topic-a-0", 3, 4, MAX, 8 << 20, True), [28, 1, 2, "topic-a-0", 3, 4, MAX, 8 << 20, True]),
    (wire.FindTime(1, 2, "topic-a-0", 3, -5), [29, 1, 2, "topic-a-0", 3, -5]),
    (wire.Command(1, 2, "home-1", 3, "queues.move", b"\x80"), [31, 1, 2, "home-1", 3, "queues.move", b"\x80"]),
    (wire.Result(1, "", "", b"\xc0"), [38, 1, "", "", b"\xc0"]),
    (wire.Fetched(1, "NotLed", "text", 0, 0, -1, []), [30, 1, "NotLed", "text", 0, 0, -1, []]),
    (
        wire.Fetched(1, "", "", 2, MAX, 3, [memoryview(LARGE), memoryview(b"")]),
        [30, 1, "", "", 2, MAX, 3, [LARGE, b""]],
    ),
    (Numbered([NumberedEntry("home-1", 2, MAX, 3, b"\1\0\2\0")]), [39, [["home-1", 2, MAX, 3, b"\1\0\2\0"]]]),
    (Fenced(7, MAX), [41, 7, MAX]),
    (Placed([PlacedEntry(1, MAX, [3, 4, 9, 9])]), [40, [[1, MAX, [3, 4, 9, 9]]]]),
    (wire_feed.Wanted(-1, True, [], []), [32, -1, True, [], []]),
    (
        wire_feed.Wanted(
            3, False,
            [wire_feed.InterestEntry(b"/", b"e", b"a.#\xff", "amqp", b"{}", b"q")],
            [wire_feed.InterestEntry(b"v", b"", b"q", "mqtt", b"", b"")],
        ),
        [32, 3, False, [[b"/", b"e", b"a.#\xff", "amqp", b"{}", b"q"]], [[b"v", b"", b"q", "mqtt", b"", b""]]],
    ),
    (wire_feed.Noted(MAX, [(b"/", b"q")]), [33, MAX, [[b"/", b"q"]]]),
    (wire_feed.Forward(b"/", [], b"", b"", SMALL), [34, b"/", [], b"", b"", SMALL_LIST]),
    (wire_feed.Forward(b"v", [b"k", b"\xff"], b"q", b"n", FULL), [34, b"v", [b"k", b"\xff"], b"q", b"n", FULL_LIST]),
    (
        wire_feed.CommitOffsets(1, b"g", [wire_feed.OffsetEntry(b"t", 0, MAX, "note")], [(b"t", b"id")]),
        [35, 1, b"g", [[b"t", 0, MAX, "note"]], [[b"t", b"id"]]],
    ),
    (wire_feed.FetchOffsets(1, b"g", None), [36, 1, b"g", None]),
    (wire_feed.FetchOffsets(1, b"g", [(b"t", 3)]), [36, 1, b"g", [[b"t", 3]]]),
    (wire_feed.Offsets(1, "", [wire_feed.OffsetEntry(b"t", 0, 1, "")]), [37, 1, "", [[b"t", 0, 1, ""]]]),
    (KeepTransaction(1, 2, b"key", LARGE), [48, 1, 2, b"key", LARGE]),
    (KeepTransaction(1, 2, b"key", None), [48, 1, 2, b"key", None]),
    (AskPlaces(1, MAX, [1, 2, 4, 4]), [49, 1, MAX, [1, 2, 4, 4]]),
    (
        SettleThere(1, 2, "home-1", [SettlementEntry(3, 0, [], [5, MAX], True)]),
        [50, 1, 2, "home-1", [[3, 0, [], [5, MAX], True]]],
    ),
    (TransactionAnswer(1, "unknown", "why", [7, 8]), [51, 1, "unknown", "why", [7, 8]]),
    (AskCoordinator(1, b"question"), [52, 1, b"question"]),
    (KeepStep(1, 2, b"key", LARGE, b"writer", MAX), [54, 1, 2, b"key", LARGE, b"writer", MAX]),
    (PutThere(1, 2, "home-1", LARGE), [55, 1, 2, "home-1", LARGE]),
    (CoordinatorAnswer(1, "ProducerFenced", "why", b""), [53, 1, "ProducerFenced", "why", b""]),
]  # fmt: skip


def body_of(frame: wire.AnyEngineFrame) -> bytes:
    data = b"".join(wire.encode(frame))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return data[4:]


@pytest.mark.parametrize(("frame", "expected"), ALL)
def test_both_ways(frame: wire.AnyEngineFrame, expected: list[Any]) -> None:
    body = body_of(frame)
    assert msgpack.unpackb(body) == expected
    assert wire.decode(body) == frame
    assert wire.decode(memoryview(msgpack.packb(expected))) == frame


def test_offsets_of_brokers_that_know_no_ids_and_for_them() -> None:
    entries = [wire_feed.OffsetEntry(b"t", 0, 5, "")]
    body = b"".join(wire.encode(wire_feed.CommitPlainOffsets(1, b"g", entries)))[4:]
    assert msgpack.unpackb(body) == [35, 1, b"g", [[b"t", 0, 5, ""]]]
    assert wire.decode(body) == wire_feed.CommitOffsets(1, b"g", entries)


def test_every_kind_is_in_the_table() -> None:
    assert {expected[0] for _, expected in ALL} == {*range(16, 42), *range(48, 56)}


def test_what_is_large_is_not_copied() -> None:
    pieces = wire.encode(wire.Deliver([DELIVERY]))
    assert any(piece is FULL.bodies[1] for piece in pieces)


@pytest.mark.parametrize(("frame", "expected"), ALL)
def test_further_fields_are_refused(frame: wire.AnyEngineFrame, expected: list[Any]) -> None:
    with pytest.raises(PeerError):
        wire.decode(msgpack.packb([*expected, "of a later version"]))


@pytest.mark.parametrize(("frame", "expected"), ALL)
def test_cut_short_anywhere(frame: wire.AnyEngineFrame, expected: list[Any]) -> None:
    body = body_of(frame)
    for length in range(len(body)) if len(body) < 500 else (*range(60), len(body) // 2, len(body) - 1):
        with pytest.raises(PeerError) as caught:
            wire.decode(body[:length])
        assert caught.value.code is ErrorCode.MALFORMED_FRAME
    with pytest.raises(PeerError):
        wire.decode(body + b"\0")


def slab_list(**other: Any) -> list[Any]:
    names = (
        "exchange", "routing_key", "protocol", "persistent", "raw", "facts", "delay", "count", "bodies", "keys", "raws",
        "each",
    )  # fmt: skip
    return list((dict(zip(names, SMALL_LIST)) | other).values())


BAD = [
    ("a kind of another link", msgpack.packb([4, 0, 0, []])),
    ("no messages", msgpack.packb([24, [[1, 1, False, slab_list(count=0)]]])),
    ("too many messages", msgpack.packb([24, [[1, 1, False, slab_list(count=wire_slabs.MESSAGES_MAX + 1)]]])),
    ("text for bodies", msgpack.packb([24, [[1, 1, False, slab_list(bodies=["", "abc"])]]])),
    ("facts above the limit", msgpack.packb([24, [[1, 1, False, slab_list(facts=1 << 42)]]])),
    ("an endless delay", msgpack.packb([24, [[1, 1, False, slab_list(delay=1 << 41)]]])),
    ("a nameless protocol", msgpack.packb([24, [[1, 1, False, slab_list(protocol="")]]])),
    ("no queues", msgpack.packb([17, 0, [["h", 1, 1, [], 0, SMALL_LIST]], [], []])),
    ("a nameless log", msgpack.packb([27, "", 1])),
    ("an id below 0", msgpack.packb([19, -1])),
    ("an outcome that is none", msgpack.packb([21, [[1, "eaten", []]]])),
    ("a query that is none", msgpack.packb([22, 1, 2, "drop", "h", 3, 4, 5])),
    ("an array of four thousand million", b"\x92\x18\xdd\xff\xff\xff\xff"),
]


@pytest.mark.parametrize(("what", "data"), BAD, ids=[what for what, _ in BAD])
def test_what_is_no_frame(what: str, data: bytes) -> None:
    with pytest.raises(PeerError):
        wire.decode(data)


WRONG_SLABS = [
    ("a length too many", slab_list(bodies=[SIZES, b"abc"])),
    ("a length that is wrong", slab_list(bodies=[b"\x04\0\0\0", b"abc"])),
    ("lengths that are too long", slab_list(count=3, bodies=[SIZES, b"ab"])),
    ("lengths that are too short", slab_list(count=3, bodies=[SIZES, b"abbb"])),
    ("lengths cut off", slab_list(count=3, bodies=[SIZES[:-1], b"abb"])),
    ("no lengths", slab_list(bodies=[b"", b"abc"])),
    ("equal lengths that do not fit", slab_list(count=3, bodies=[b"\x04\0\0\0", b"abc"])),
    ("a huge length", slab_list(count=3, bodies=[b"\xff\xff\xff\xff", b"abc"])),
    ("huge lengths", slab_list(count=3, bodies=[b"\xff\xff\xff\xff" * 3, b"abc"])),
    ("keys that are too few", slab_list(count=3, bodies=[SIZES, b"abb"], keys=[SIZES[:8], b"abb"])),
    ("facts that are too few", slab_list(count=3, bodies=[SIZES, b"abb"], each=b"\x01" + b"\0" * 15)),
    ("facts that are too large", slab_list(each=b"\x01" + b"\xff" * 7)),
    ("an unknown protocol", slab_list(protocol="carrier pigeon")),
    ("transient facts of a persistent message", slab_list(facts=0)),
    ("transient facts of one persistent message", slab_list(each=b"\0" * 8)),
]


@pytest.mark.parametrize(("what", "fields"), WRONG_SLABS, ids=[what for what, _ in WRONG_SLABS])
def test_slabs_that_contradict_themselves(what: str, fields: list[Any]) -> None:
    frame = wire.decode(msgpack.packb([24, [[1, 1, False, fields]]]))
    assert isinstance(frame, wire.Deliver)
    with pytest.raises(PeerError) as caught:
        SlabReader().read(frame.entries[0].slab)
    assert caught.value.code is ErrorCode.MALFORMED_FRAME


names = st.one_of(st.text(max_size=9), st.binary(max_size=9).map(lambda data: data.decode("utf-8", columns.NAMES)))
bodies = st.one_of(
    st.lists(st.binary(max_size=20), min_size=1, max_size=12),
    st.lists(st.binary(min_size=3, max_size=3), min_size=1, max_size=12),
)
facts = st.builds(
    pack,
    st.just(True),
    st.integers(0, 255),
    st.none() | st.integers(0, 1 << 32),
    st.sampled_from([0, 0, 5, (1 << 41) - 1]),
)


@st.composite
def slabs(draw: st.DrawFn) -> Slab:
    """Any slab, with any of its columns."""
    values = draw(bodies)

    def column(each: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(each, min_size=len(values), max_size=len(values)))

    keys = column(names)
    raws = column(st.binary(max_size=20))
    properties = Properties("amqp", b"" if raws else draw(st.binary(max_size=9)), persistent=True, facts=draw(facts))
    key = draw(names) if keys is None else keys[0]
    return Slab(draw(names), key, properties, values, keys=keys, raws=raws, facts=column(facts))


def told(slab: Slab) -> list[Any]:
    """All that is said of each message."""
    return [
        (slab.exchange, slab.key_of(at), body, found.protocol, found.raw, found.persistent, each)
        for at, body in enumerate(slab.bodies)
        for found in (slab.properties_of(at),)
        for each in ((slab.properties.facts if slab.facts is None else slab.facts[at]),)
    ]


def through(slab: Slab, reader: SlabReader) -> Slab:
    frame = wire.decode(body_of(wire.Deliver([wire.DeliverEntry(1, 1, False, to_entry(slab))])))
    assert isinstance(frame, wire.Deliver)
    return reader.read(frame.entries[0].slab)


@given(slabs())
def test_a_slab_comes_out_as_it_went_in(slab: Slab) -> None:
    reader = SlabReader()
    found = through(slab, reader)
    assert told(found) == told(slab)
    assert found.size == slab.size
    assert through(slab, reader).properties is found.properties


def test_part_of_a_slab() -> None:
    properties = Properties("amqp", b"p", persistent=True)
    slab = Slab("x", "a", properties, [b"1", b"2", b"3"], keys=["a", "b", "b"])
    entry = to_entry(slab, 1, 3)
    found = SlabReader().read(entry)
    assert told(found) == told(slab)[1:]
    assert found.keys is None


any_bodies = st.sampled_from([body_of(frame) for frame, _ in ALL])
deliveries = st.sampled_from([body_of(frame) for frame, _ in ALL if isinstance(frame, wire.Deliver)])


@settings(max_examples=300)
@given(any_bodies | deliveries, st.data())
def test_damaged_frames_never_do_more_than_be_refused(body: bytes, data: st.DataObject) -> None:
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, min(len(body), 400) - 1))] = data.draw(st.integers(0, 255))
    with suppress(PeerError):
        frame = wire.decode(damaged)
        for entry in frame.entries if isinstance(frame, wire.Deliver) else ():
            assert len(SlabReader().read(entry.slab)) == entry.slab.count
