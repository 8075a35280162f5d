"""The codec: every frame both ways, against msgpack as the oracle, and against bytes that are no frames."""

from __future__ import annotations

import itertools
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_log.replication.messages import Batches
from protocols.buffers import FrameReader, join_small
from protocols.peer import wire
from protocols.peer.wire import ErrorCode, PeerError

B = memoryview
N = bytes(range(32))
LARGE = bytes(range(256)) * 300

HANDSHAKE: list[tuple[wire.AnyFrame, list[Any]]] = [
    (wire.Hello(1, 2, "replica", "c1", 3, 77, "d9", 1, N), [0, 1, 2, "replica", "c1", 3, 77, "d9", 1, N]),
    (wire.Challenge(1, "c1", 1, 78, "d8", N, 1 << 40, True), [1, 1, "c1", 1, 78, "d8", N, 1 << 40, True]),
    (wire.Answer(b""), [2, b""]),
    (wire.Answer(N), [2, N]),
    (wire.Accepted(N), [3, N]),
    (wire.Error(7, "no"), [255, 7, "no"]),
]
LINK: list[tuple[wire.AnyFrame, list[Any]]] = [
    (wire.Positions(8 << 20, 5, []), [4, 8 << 20, 5, []]),
    (
        wire.Positions((1 << 63) - 1, 0, [wire.PositionEntry("t/1-0", 4, 1 << 40, -1, 9, 2, True, 6, False)]),
        [4, (1 << 63) - 1, 0, [["t/1-0", 4, 1 << 40, -1, 9, 2, True, 6, False]]],
    ),
    (wire.Batches([]), [5, []]),
    (
        wire.Batches([
            wire.BatchesEntry("a", 1, 2, 3, 4, 5, 6, 7, [B(b"one"), B(LARGE), B(b"")]),
            wire.BatchesEntry("b", 1, 2, 3, 4, 5, 6, 7, []),
            wire.BatchesEntry("c" * 600, 1, 2, 3, 4, 5, 6, (1 << 63) - 1, [B(b"x")]),
        ]),
        [5, [["a", 1, 2, 3, 4, 5, 6, 7, [b"one", LARGE, b""]], ["b", 1, 2, 3, 4, 5, 6, 7, []], ["c" * 600, 1, 2, 3, 4, 5, 6, (1 << 63) - 1, [b"x"]]]],  # noqa: E501
    ),
    (wire.Diverging("a", 5, 4, 100, (120, 4)), [6, "a", 5, 4, 100, [120, 4]]),
    (wire.Refused("a", "out_of_range", 2, 5, 10, (3, -1)), [7, "a", "out_of_range", 2, 5, 10, [3, -1]]),
    (wire.Refused("a", "not_leader", None, 0, 0, (-1, -1)), [7, "a", "not_leader", None, 0, 0, [-1, -1]]),
]  # fmt: skip
ALL = HANDSHAKE + LINK


def body_of(frame: wire.AnyFrame) -> bytes:
    """The bytes of a frame, without their length, which is checked."""
    data = wire.encode(frame)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return data[4:]


@pytest.mark.parametrize(("frame", "expected"), ALL)
def test_both_ways(frame: wire.AnyFrame, expected: list[Any]) -> None:
    body = body_of(frame)
    assert msgpack.unpackb(body) == expected
    assert wire.decode(body) == frame
    assert wire.decode(msgpack.packb(expected)) == frame


def test_every_kind_is_in_the_table() -> None:
    assert {expected[0] for _, expected in ALL} == {*range(8), 255}


@pytest.mark.parametrize(("frame", "expected"), ALL)
def test_further_fields_only_where_versions_meet(frame: wire.AnyFrame, expected: list[Any]) -> None:
    longer = msgpack.packb([*expected, "of a later version"])
    if (frame, expected) in HANDSHAKE:
        assert wire.decode(longer) == frame
    else:
        with pytest.raises(PeerError):
            wire.decode(longer)


@pytest.mark.parametrize(("frame", "expected"), ALL)
def test_cut_short_anywhere(frame: wire.AnyFrame, expected: list[Any]) -> None:
    body = body_of(frame)
    for length in range(len(body)) if len(body) < 1000 else (*range(60), len(body) // 2, len(body) - 1):
        with pytest.raises(PeerError) as caught:
            wire.decode(body[:length])
        assert caught.value.code is ErrorCode.MALFORMED_FRAME
    with pytest.raises(PeerError):
        wire.decode(body + b"\0")


def position(**other: Any) -> list[Any]:
    fields: dict[str, Any] = {
        "log": "a", "epoch": 0, "fetch": 0, "last": 0, "reported": 0, "start": 0, "refusing": False, "tag": 0,
        "missed": False,
    }  # fmt: skip
    return [4, 0, 0, [list((fields | other).values())]]


BAD = [
    ("nothing", b""),
    ("a number", b"\x07"),
    ("a map", msgpack.packb({0: 1})),
    ("an empty array", b"\x90"),
    ("a kind that is not there", msgpack.packb([8])),
    ("a kind below 0", msgpack.packb([-1])),
    ("a kind that is text", msgpack.packb(["4", 0, 0, []])),
    ("a short nonce", msgpack.packb([0, 1, 1, "replica", "c", 1, 1, "d", 1, N[:31]])),
    ("a long nonce", msgpack.packb([0, 1, 1, "replica", "c", 1, 1, "d", 1, N + b"x"])),
    ("a long proof", msgpack.packb([2, N + b"x"])),
    ("a cluster id of a thousand letters", msgpack.packb([1, 1, "c" * 1000, 1, 1, "d", N])),
    ("a broker below 0", msgpack.packb([1, 1, "c", -1, 1, "d", N])),
    ("an epoch of 64 bits", msgpack.packb([1, 1, "c", 1, 1 << 63, "d", N])),
    ("text that is not UTF-8", b"\x93\xcc\xff\x07\xa2\xff\xfe"),
    ("a credit below 0", msgpack.packb([4, -1, 0, []])),
    ("a map for entries", msgpack.packb([4, 0, 0, {}])),
    ("a nameless log", msgpack.packb(position(log=""))),
    ("a log's name above the limit", msgpack.packb(position(log="a" * 601))),
    ("an offset below 0", msgpack.packb(position(fetch=-1))),
    ("a report below 0", msgpack.packb(position(reported=-1))),
    ("an epoch below -1", msgpack.packb(position(last=-2))),
    ("a number for a truth", msgpack.packb(position(refusing=1))),
    ("a fraction", msgpack.packb(position(fetch=1.5))),
    ("a field too many", msgpack.packb([4, 0, 0, [[*position()[3][0], 1]]])),
    ("four billion entries", b"\x94\x04\x00\x00\xdd\xff\xff\xff\xff"),
    ("more entries than a frame may have", msgpack.packb([4, 0, 0, position()[3] * (wire.ENTRIES_MAX + 1)])),
    ("a batch that is text", msgpack.packb([5, [["a", 0, 0, 0, 0, 0, 0, 0, ["x"]]]])),
    ("a batch of four billion bytes", b"\x92\x05\x91\x99\xa1a\0\0\0\0\0\0\0\x91\xc6\xff\xff\xff\xffxyz"),
    ("four billion batches", b"\x92\x05\x91\x99\xa1a\0\0\0\0\0\0\0\xdd\xff\xff\xff\xff"),
    ("a reason that is none", msgpack.packb([7, "a", "tired", 1, 0, 0, [0, 0]])),
    ("three answers", msgpack.packb([6, "a", 0, 0, 0, [0, 0, 0]])),
    ("deep nesting", b"\x91" * 100_000),
    ("deep nesting for a field", b"\x94\x04\x00\x00" + b"\x91" * 100_000),
]


@pytest.mark.parametrize(("what", "body"), BAD, ids=[what for what, _ in BAD])
def test_what_is_no_frame(what: str, body: bytes) -> None:
    with pytest.raises(PeerError) as caught:
        wire.decode(body)
    assert caught.value.code is ErrorCode.MALFORMED_FRAME
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=300))
def test_any_bytes(body: bytes) -> None:
    try:
        wire.decode(body)
    except PeerError:
        pass


@given(st.sampled_from([body_of(frame) for frame, _ in ALL if len(body_of(frame)) < 1000]), st.data())
@settings(deadline=None)
def test_frames_with_bytes_changed(body: bytes, data: st.DataObject) -> None:
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = wire.decode(changed)
    except PeerError:
        return
    assert wire.decode(body_of(found)) == found


numbers = st.integers(0, (1 << 63) - 1)
entries = st.lists(
    st.builds(
        Batches,
        st.text(min_size=1, max_size=20),
        *[numbers] * 7,
        st.lists(st.binary(max_size=50), max_size=4).map(tuple),
    ),
    max_size=5,
)


@given(entries)
def test_any_batches(entries: list[Batches]) -> None:
    body = b"".join(wire.encode_batches(entries))[4:]
    found = wire.decode(body)
    assert isinstance(found, wire.Batches)
    got = [msgspec.structs.astuple(entry) for entry in found.entries]
    assert [Batches(*entry[:8], tuple(map(bytes, entry[8]))) for entry in got] == entries


def test_batches_are_not_copied() -> None:
    batches = (b"one", LARGE, bytearray(b"three"))
    pieces = wire.encode_batches([Batches("a", 1, 2, 3, 4, 5, 6, 7, batches)] * 2)
    assert [id(piece) for piece in pieces[1::2]] == list(map(id, batches * 2))
    assert join_small(pieces)[1] is LARGE
    data = memoryview(b"".join(pieces))
    found = wire.decode(data[4:])
    assert isinstance(found, wire.Batches)
    assert found.entries[1].batches[1].obj is data.obj


@pytest.mark.parametrize("step", [1, 3, 64, 4096, 1 << 20])
def test_frames_whatever_the_reads(step: int) -> None:
    data = b"".join(wire.encode(frame) for frame, _ in ALL)
    reader = FrameReader(1 << 20)
    got = [wire.decode(frame) for at in range(0, len(data), step) for frame in reader.feed(data[at : at + step])]
    assert got == [frame for frame, _ in ALL]


@given(st.lists(st.integers(0, 100_000), max_size=8))
@settings(max_examples=50, deadline=None)
def test_frames_cut_anywhere(cuts: list[int]) -> None:
    data = b"".join(wire.encode(frame) for frame, _ in ALL)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = FrameReader(1 << 20)
    got = [wire.decode(f) for start, stop in itertools.pairwise(edges) for f in reader.feed(data[start:stop])]
    assert got == [frame for frame, _ in ALL]
