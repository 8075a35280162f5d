"""The codec: every message both ways, against msgpack as the oracle, and against bytes that are no messages."""

from __future__ import annotations

import itertools
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.buffers import join_small
from protocols.native import wire, wire_topics
from protocols.native import wire_groups as groups
from protocols.native import wire_transactions as txn
from protocols.native.connection import FrameReader, split_address
from protocols.native.errors import MEANINGS, ErrorCode, MillraceError, ProtocolError, error_from_wire, wire_error

B = memoryview
ERROR = (8, False, "no topic 't'")

REQUESTS: list[tuple[wire.Request, list[Any]]] = [
    (wire.Hello(1, 1, 1, "me", None), [0, 1, 1, 1, "me", None]),
    (wire.Hello(1, 1, 3, "", ("u", "p")), [0, 1, 1, 3, "", ["u", "p"]]),
    (wire.Metadata(2, None, False), [1, 2, None, False]),
    (wire.Metadata(2, ["a", "b"], True), [1, 2, ["a", "b"], True]),
    (wire_topics.CreateTopic(3, "t", 4, {"retention.ms": "5"}), [2, 3, "t", 4, {"retention.ms": "5"}]),
    (wire_topics.DeleteTopic(4, "t"), [3, 4, "t"]),
    (wire_topics.DescribeTopic(5, "t"), [4, 5, "t"]),
    (wire.DescribeBroker(5), [12, 5]),
    (wire.Administer(5, "users.add", {"name": "a", "tags": ["x"]}), [13, 5, "users.add", {"name": "a", "tags": ["x"]}]),
    (wire_topics.CreatePartitions(5, "t", 7), [14, 5, "t", 7]),
    (wire.OffsetsForEpochs(5, [("t", 7, 3, 2), ("t", 8, -1, 0)]), [15, 5, [["t", 7, 3, 2], ["t", 8, -1, 0]]]),
    (wire_topics.Bind(6, "t", "amq.topic", "a.#", {"x": 1, "y": "z", "w": None}), [5, 6, "t", "amq.topic", "a.#", {"x": 1, "y": "z", "w": None}]),  # noqa: E501
    (wire_topics.Unbind(7, "t", "", "a", {}), [6, 7, "t", "", "a", {}]),
    (
        wire.Produce(8, -1, 1000, [wire.ProduceEntry("t", 0, 0, B(b"one")), wire.ProduceEntry("t", 1, 2, B(b"x" * 70_000), 9)]),  # noqa: E501
        [7, 8, -1, 1000, [["t", 0, 0, b"one"], ["t", 1, 2, b"x" * 70_000, 9]]],
    ),
    (wire.Fetch(9, 500, 1, 1 << 20, [wire.FetchEntry("t", 3, 1 << 40, 1 << 16), wire.FetchEntry("t", 4, 0, 1, 0)]), [8, 9, 500, 1, 1 << 20, [["t", 3, 1 << 40, 1 << 16], ["t", 4, 0, 1, 0]]]),  # noqa: E501
    (wire.Fetch(9, 0, 1, 9, [wire.FetchEntry("t", 3, 7, 8)], [[b"a", b""], [b"bc"]]), [8, 9, 0, 1, 9, [["t", 3, 7, 8]], [[b"a", b""], [b"bc"]]]),  # noqa: E501
    (wire.ListOffsets(10, [wire.ListOffsetsEntry("t", 0, -1), wire.ListOffsetsEntry("t", 1, -2, 7), wire.ListOffsetsEntry("t", 2, 1_700_000_000_000)]), [9, 10, [["t", 0, -1], ["t", 1, -2, 7], ["t", 2, 1_700_000_000_000]]]),  # noqa: E501
    (wire.CommitOffsets(11, "g", [("t", 0, 5, "note")]), [10, 11, "g", [["t", 0, 5, "note"]]]),
    (wire.FetchOffsets(12, "g", None), [11, 12, "g", None]),
    (wire.FetchOffsets(0xFFFF_FFFF, "g", [("t", 0)]), [11, 0xFFFF_FFFF, "g", [["t", 0]]]),
    (groups.FindCoordinator(13, 0, "g"), [16, 13, 0, "g"]),
    (groups.JoinGroup(14, "g", "", None, 9000, 60_000, [("range", b"\0\1")]), [17, 14, "g", "", None, 9000, 60_000, [["range", b"\0\1"]]]),  # noqa: E501
    (groups.JoinGroup(14, "g", "m", "i", 1, 2, [("a", b""), ("b", b"x")]), [17, 14, "g", "m", "i", 1, 2, [["a", b""], ["b", b"x"]]]),  # noqa: E501
    (groups.SyncGroup(15, "g", "m", None, 3, "range", [("m", b"\0")]), [18, 15, "g", "m", None, 3, "range", [["m", b"\0"]]]),  # noqa: E501
    (groups.Heartbeat(16, "g", "m", None, 3), [19, 16, "g", "m", None, 3]),
    (groups.LeaveGroup(17, "g", "m", "i"), [20, 17, "g", "m", "i"]),
    (groups.CommitGroupOffsets(18, "g", "", None, -1, [("t", 0, 5, "")]), [21, 18, "g", "", None, -1, [["t", 0, 5, ""]]]),  # noqa: E501
    (groups.ListGroups(19), [22, 19]),
    (groups.DescribeGroup(20, "g"), [23, 20, "g"]),
    (groups.DeleteGroup(21, "g"), [24, 21, "g"]),
    (groups.ForgetOffsets(22, "g", [("t", 0)]), [25, 22, "g", [["t", 0]]]),
    (txn.InitProducer(23, None, 0, -1, -1), [26, 23, None, 0, -1, -1]),
    (txn.InitProducer(23, "x", 60_000, 1 << 61, 7), [26, 23, "x", 60_000, 1 << 61, 7]),
    (txn.AddToTransaction(24, "x", 5, 0, [("t", 0)], ["g"]), [27, 24, "x", 5, 0, [["t", 0]], ["g"]]),
    (txn.CommitTransactionOffsets(25, "x", 5, 0, "g", "m", None, 3, [("t", 0, 5, "")]), [28, 25, "x", 5, 0, "g", "m", None, 3, [["t", 0, 5, ""]]]),  # noqa: E501
    (txn.EndTransaction(26, "x", 5, 0, True), [29, 26, "x", 5, 0, True]),
    (groups.ConsumerHeartbeat(27, "g", "m", 0, None, 5000, ["t"], None, "uniform", []), [30, 27, "g", "m", 0, None, 5000, ["t"], None, "uniform", []]),  # noqa: E501
    (groups.ConsumerHeartbeat(27, "g", "m", 3, "i", -1, None, None, None, [("t", 1)]), [30, 27, "g", "m", 3, "i", -1, None, None, None, [["t", 1]]]),  # noqa: E501
    (groups.FetchGroupOffsets(28, "g", [("t", 0)]), [31, 28, "g", [["t", 0]]]),
    (wire.Produce(29, -1, 5, [wire.ProduceEntry("t", 0, 0, B(b"one"), 9)], "x"), [7, 29, -1, 5, [["t", 0, 0, b"one", 9]], "x"]),  # noqa: E501
]  # fmt: skip

REPLIES: list[tuple[wire.Reply, list[Any]]] = [
    (wire.ErrorReply(None, ERROR), [255, None, [8, False, "no topic 't'"]]),
    (wire.HelloReply(1, 1, "millrace", 0, {"request_bytes_max": 5}), [0, 1, 1, "millrace", 0, {"request_bytes_max": 5}]),  # noqa: E501
    (wire.MetadataReply(2, [(0, "h", 1)], [("t", None, [wire.PartitionMetadata(0, 0, 7, [0, 1], [1])]), ("u", ERROR, [])], [b"t", b""]), [1, 2, [[0, "h", 1]], [["t", None, [[0, 0, 7, [0, 1], [1]]]], ["u", list(ERROR), []]], [b"t", b""]]),  # noqa: E501
    (wire_topics.CreateTopicReply(3), [2, 3]),
    (wire_topics.DeleteTopicReply(4), [3, 4]),
    (
        wire.DescribeBrokerReply(5, [wire.HomeDescription(-1, 2, 3, 4, 5)], 6, 7, "low on disk"),
        [12, 5, [[-1, 2, 3, 4, 5]], 6, 7, "low on disk"],
    ),
    (wire_topics.CreatePartitionsReply(5), [14, 5]),
    (wire.OffsetsForEpochsReply(5, [(None, 2, 9), (ERROR, -1, -1)]), [15, 5, [[None, 2, 9], [list(ERROR), -1, -1]]]),
    (wire.AdministerReply(5, {"rows": [["a", 1, None]]}), [13, 5, {"rows": [["a", 1, None]]}]),
    (wire_topics.DescribeTopicReply(5, "t", {"a": "b"}, [wire_topics.PartitionDescription(0, 0, 1, 2, 3, 4, 5, [0], [0])]), [4, 5, "t", {"a": "b"}, [[0, 0, 1, 2, 3, 4, 5, [0], [0]]]]),  # noqa: E501
    (wire_topics.BindReply(6), [5, 6]),
    (wire_topics.UnbindReply(7), [6, 7]),
    (wire.ProduceReply(8, [(None, 17), (ERROR, -1)]), [7, 8, [[None, 17], [list(ERROR), -1]]]),
    (wire.FetchReply(9, [wire.FetchedPartition(None, 0, 9, B(b"abc")), wire.FetchedPartition(ERROR, -1, -1, B(b""))]), [8, 9, [[None, 0, 9, b"abc"], [list(ERROR), -1, -1, b""]]]),  # noqa: E501
    (wire.FetchReply(9, [wire.FetchedPartition(None, 0, 9, B(b"a"), b"id"), wire.FetchedPartition(None, 0, 9, B(b"b"))]), [8, 9, [[None, 0, 9, b"a", b"id"], [None, 0, 9, b"b"]]]),  # noqa: E501
    (wire.ListOffsetsReply(10, [(None, 5, -1), (None, None, -1), (ERROR, None, -1)]), [9, 10, [[None, 5, -1], [None, None, -1], [list(ERROR), None, -1]]]),  # noqa: E501
    (wire.CommitOffsetsReply(11), [10, 11]),
    (wire.FetchOffsetsReply(12, [("t", 0, 5, "")]), [11, 12, [["t", 0, 5, ""]]]),
    (groups.FindCoordinatorReply(13, 1, "h", 2), [16, 13, 1, "h", 2]),
    (groups.JoinGroupReply(14, 3, "range", "m", "m", [("m", None, b"x")], False), [17, 14, 3, "range", "m", "m", [["m", None, b"x"]], False]),  # noqa: E501
    (groups.SyncGroupReply(15, b"\0"), [18, 15, b"\0"]),
    (groups.HeartbeatReply(16), [19, 16]),
    (groups.LeaveGroupReply(17), [20, 17]),
    (groups.CommitGroupOffsetsReply(18), [21, 18]),
    (groups.ListGroupsReply(19, [("g", "consumer", "Stable", 2)]), [22, 19, [["g", "consumer", "Stable", 2]]]),
    (groups.DescribeGroupReply(20, "Stable", "consumer", "range", 3, [groups.MemberDescription("m", None, "c", "/h", [("t", 0)])]), [23, 20, "Stable", "consumer", "range", 3, [["m", None, "c", "/h", [["t", 0]]]]]),  # noqa: E501
    (groups.DeleteGroupReply(21), [24, 21]),
    (groups.ForgetOffsetsReply(22), [25, 22]),
    (txn.InitProducerReply(23, 1 << 61, 0), [26, 23, 1 << 61, 0]),
    (txn.AddToTransactionReply(24), [27, 24]),
    (txn.CommitTransactionOffsetsReply(25), [28, 25]),
    (txn.EndTransactionReply(26), [29, 26]),
    (groups.ConsumerHeartbeatReply(27, "m", 3, 5000, None), [30, 27, "m", 3, 5000, None]),
    (groups.ConsumerHeartbeatReply(27, "m", 3, 5000, [("t", 0)]), [30, 27, "m", 3, 5000, [["t", 0]]]),
    (groups.FetchGroupOffsetsReply(28, [("t", 0, 5, "")]), [31, 28, [["t", 0, 5, ""]]]),
]  # fmt: skip


def frame_of(message: wire.Request | wire.Reply) -> bytes:
    """The bytes of a message, without their length, which is checked."""
    frame = b"".join(wire.encode(message))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


@pytest.mark.parametrize(("message", "expected"), REQUESTS)
def test_requests_both_ways(message: wire.Request, expected: list[Any]) -> None:
    frame = frame_of(message)
    assert msgpack.unpackb(frame) == expected
    assert wire.decode_request(frame) == message
    assert wire.decode_request(msgpack.packb(expected)) == message


@pytest.mark.parametrize(("message", "expected"), REPLIES)
def test_replies_both_ways(message: wire.Reply, expected: list[Any]) -> None:
    frame = frame_of(message)
    assert msgpack.unpackb(frame) == expected
    assert wire.decode_reply(frame) == message
    assert wire.decode_reply(msgpack.packb([*expected, "a field of a later version"])) == message


def test_every_api_is_in_the_tables() -> None:
    for table in (REQUESTS, REPLIES):
        assert {expected[0] for _, expected in table} - {wire.ERROR_API} == set(range(groups.API_MAX + 1))


@pytest.mark.parametrize(("message", "expected"), REQUESTS)
def test_a_truncated_request_is_malformed_and_names_its_id_if_known(message: wire.Request, expected: list[Any]) -> None:
    frame = frame_of(message)
    for length in range(len(frame)) if len(frame) < 1000 else (0, 1, 2, 3, 20, len(frame) // 2, len(frame) - 1):
        with pytest.raises(wire.BadRequest) as caught:
            wire.decode_request(frame[:length])
        assert caught.value.code is ErrorCode.MALFORMED_FRAME
        assert caught.value.fatal
        assert caught.value.correlation_id in (None, message.correlation_id)


def deep(depth: int) -> bytes:
    return b"\x91" * depth


BAD = [
    # what it is, frame, code, correlation id
    ("nothing", b"", ErrorCode.MALFORMED_FRAME, None),
    ("a number", b"\x07", ErrorCode.MALFORMED_FRAME, None),
    ("a map", msgpack.packb({0: 1}), ErrorCode.MALFORMED_FRAME, None),
    ("text", msgpack.packb("hello"), ErrorCode.MALFORMED_FRAME, None),
    ("an extension", msgpack.packb(msgpack.ExtType(5, b"x")), ErrorCode.MALFORMED_FRAME, None),
    ("the byte that is never used", b"\xc1", ErrorCode.MALFORMED_FRAME, None),
    ("an empty array", b"\x90", ErrorCode.MALFORMED_FRAME, None),
    ("no correlation id", b"\x91\x03", ErrorCode.MALFORMED_FRAME, None),
    ("a correlation id below 0", msgpack.packb([3, -1, "t"]), ErrorCode.MALFORMED_FRAME, None),
    ("a correlation id of 33 bits", msgpack.packb([3, 1 << 32, "t"]), ErrorCode.MALFORMED_FRAME, None),
    ("a correlation id that is text", msgpack.packb([3, "7", "t"]), ErrorCode.MALFORMED_FRAME, None),
    ("trailing garbage", msgpack.packb([3, 7, "t"]) + b"\0", ErrorCode.MALFORMED_FRAME, 7),
    ("a second message in the frame", msgpack.packb([3, 7, "t"]) * 2, ErrorCode.MALFORMED_FRAME, 7),
    ("text that is not UTF-8", b"\x93\x03\x07\xa2\xff\xfe", ErrorCode.MALFORMED_FRAME, 7),
    ("an api that is not there", msgpack.packb([77, 7]), ErrorCode.UNKNOWN_API, 7),
    ("an api below 0", msgpack.packb([-1, 7]), ErrorCode.UNKNOWN_API, 7),
    ("an api that is text", msgpack.packb(["3", 7, "t"]), ErrorCode.UNKNOWN_API, 7),
    ("the api of errors", msgpack.packb([255, 7, [1, False, ""]]), ErrorCode.UNKNOWN_API, 7),
    ("a field too few", msgpack.packb([3, 7]), ErrorCode.INVALID_REQUEST, 7),
    ("a field too many", msgpack.packb([3, 7, "t", 1]), ErrorCode.INVALID_REQUEST, 7),
    ("a number for text", msgpack.packb([3, 7, 1]), ErrorCode.INVALID_REQUEST, 7),
    ("bytes for text", msgpack.packb([3, 7, b"t"]), ErrorCode.INVALID_REQUEST, 7),
    ("an empty name", msgpack.packb([3, 7, ""]), ErrorCode.INVALID_REQUEST, 7),
    ("a name above the limit", msgpack.packb([3, 7, "t" * 256]), ErrorCode.INVALID_REQUEST, 7),
    ("an extension for a field", msgpack.packb([3, 7, msgpack.ExtType(9, b"x")]), ErrorCode.INVALID_REQUEST, 7),
    ("a timestamp for a field", msgpack.packb([3, 7, msgpack.Timestamp(1)]), ErrorCode.INVALID_REQUEST, 7),
    ("deep nesting for a field", b"\x93\x03\x07" + deep(100_000), ErrorCode.INVALID_REQUEST, 7),
    ("deep nesting from the start", deep(100_000), ErrorCode.MALFORMED_FRAME, None),
    ("a fraction for a number", msgpack.packb([2, 7, "t", 1.5, {}]), ErrorCode.INVALID_REQUEST, 7),
    ("no partitions", msgpack.packb([2, 7, "t", 0, {}]), ErrorCode.INVALID_REQUEST, 7),
    ("nested bind arguments", msgpack.packb([5, 7, "t", "e", "k", {"a": [1]}]), ErrorCode.INVALID_REQUEST, 7),
    ("acks of 2", msgpack.packb([7, 7, 2, 0, [["t", 0, 0, b""]]]), ErrorCode.INVALID_REQUEST, 7),
    ("nothing to produce", msgpack.packb([7, 7, 1, 0, []]), ErrorCode.INVALID_REQUEST, 7),
    ("a batch that is text", msgpack.packb([7, 7, 1, 0, [["t", 0, 0, "x"]]]), ErrorCode.INVALID_REQUEST, 7),
    ("a map for entries", msgpack.packb([8, 7, 0, 0, 0, {}]), ErrorCode.INVALID_REQUEST, 7),
    ("an epoch below -1", msgpack.packb([8, 7, 0, 0, 0, [["t", 0, 0, 1, -2]]]), ErrorCode.INVALID_REQUEST, 7),
    ("a field behind the epoch", msgpack.packb([8, 7, 0, 0, 0, [["t", 0, 0, 1, 2, 3]]]), ErrorCode.INVALID_REQUEST, 7),
    ("an offset below 0", msgpack.packb([8, 7, 0, 0, 0, [["t", 0, -1, 1]]]), ErrorCode.INVALID_REQUEST, 7),
    ("an offset of 64 bits", msgpack.packb([8, 7, 0, 0, 0, [["t", 0, 1 << 63, 1]]]), ErrorCode.INVALID_REQUEST, 7),
    ("too many entries", msgpack.packb([9, 7, [["t", 0, -1]] * 10_001]), ErrorCode.INVALID_REQUEST, 7),
    ("a count of four billion", b"\x93\x09\x07\xdd\xff\xff\xff\xff", ErrorCode.INVALID_REQUEST, 7),
    ("a map of four billion", b"\x95\x02\x07\xa1t\x01\xdf\xff\xff\xff\xff", ErrorCode.INVALID_REQUEST, 7),
    ("bytes of four billion", b"\x93\x03\x07\xc6\xff\xff\xff\xff", ErrorCode.MALFORMED_FRAME, 7),
]  # fmt: skip


@pytest.mark.parametrize(("frame", "code", "correlation_id"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_what_is_no_request(frame: bytes, code: ErrorCode, correlation_id: int | None) -> None:
    with pytest.raises(wire.BadRequest) as caught:
        wire.decode_request(frame)
    got = caught.value
    assert (got.code, got.correlation_id, got.fatal) == (code, correlation_id, code is ErrorCode.MALFORMED_FRAME)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([2, 7, "t", 0, {}], "Expected `int` >= 1 - at `partitions`"),
        ([10, 7, "g", [["t", 0, -5, ""]]], "Expected `int` >= 0 - at `entries[0][2]`"),
    ],
)
def test_what_is_wrong_is_said_with_the_name_of_the_field(fields: list[Any], said: str) -> None:
    with pytest.raises(wire.BadRequest) as caught:
        wire.decode_request(msgpack.packb(fields))
    assert str(caught.value) == said


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_request_or_refused(frame: bytes) -> None:
    try:
        wire.decode_request(frame)
    except wire.BadRequest:
        pass
    try:
        wire.decode_reply(frame)
    except ProtocolError:
        pass


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5) | st.floats(),  # noqa: E501
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.integers(-2, 14), st.integers(0, 2**32 - 1), st.lists(VALUES, max_size=5))
@settings(max_examples=300, deadline=None)
def test_any_array_is_a_request_or_refused_by_its_id(api: int, correlation_id: int, fields: list[Any]) -> None:
    try:
        request = wire.decode_request(msgpack.packb([api, correlation_id, *fields]))
        outcome = (request.correlation_id, False)
    except wire.BadRequest as bad:
        outcome = (bad.correlation_id, bad.fatal)
    assert outcome == (correlation_id, False)


@given(st.integers(0, len(REQUESTS) - 1), st.integers(0, 60), st.binary(min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_damaged_requests_are_refused_or_other_requests(which: int, at: int, damage: bytes) -> None:
    frame = bytearray(frame_of(REQUESTS[which][0]))
    frame[at : at + len(damage)] = damage
    try:
        wire.decode_request(frame)
    except wire.BadRequest:
        pass


# Frames


def stream() -> tuple[bytes, list[bytes]]:
    frames = [frame_of(message) for message, _ in REQUESTS]
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames), frames


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 64, 1000, 16_384, 65_536, 1 << 20])
def test_frames_whatever_the_reads(step: int) -> None:
    data, frames = stream()
    reader = FrameReader(1 << 20)
    got = [bytes(frame) for at in range(0, len(data), step) for frame in reader.feed(data[at : at + step])]
    assert got == frames


@given(st.lists(st.integers(0, 100_000), max_size=12))
@settings(max_examples=50, deadline=None)
def test_frames_cut_anywhere(cuts: list[int]) -> None:
    data, frames = stream()
    reader = FrameReader(1 << 20)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    got = [bytes(f) for start, stop in itertools.pairwise(edges) for f in reader.feed(data[start:stop])]
    assert got == frames


def test_a_large_frame_is_a_view_of_one_buffer() -> None:
    reader = FrameReader(1 << 20)
    data, _ = stream()
    large = max(reader.feed(data), key=len)
    assert isinstance(large, memoryview)
    request = wire.decode_request(large)
    assert isinstance(request, wire.Produce)
    assert request.entries[1].batch.obj is large.obj


@pytest.mark.parametrize(("size", "refused"), [(99, False), (100, False), (101, True), (0xFFFF_FFFF, True), (0, True)])
def test_the_length_is_checked_before_the_frame_is_kept(size: int, refused: bool) -> None:
    prefix = size.to_bytes(4, "big")
    good = b"\0\0\0\1g"
    for data in (prefix, good + prefix, good * 2 + prefix + b"rest"):
        for cut in range(len(data) + 1):
            reader = FrameReader(100)
            frames = reader.feed(data[:cut])
            if reader.failure is None:
                frames += reader.feed(data[cut:])
            assert frames == [b"g"] * data.count(good)
            assert (reader.failure is not None) == refused
            if reader.failure is not None:
                assert reader.failure.fatal
                expected = ErrorCode.REQUEST_TOO_LARGE if size else ErrorCode.MALFORMED_FRAME
                assert reader.failure.code is expected


@pytest.mark.parametrize("pieces", [[], [b""], [b"a", b"b" * 70_000, b"c", b"d"], [b"x" * 70_000] * 2, [b"a"] * 5])
def test_joined_keeps_the_bytes(pieces: list[bytes]) -> None:
    joined = join_small(pieces, 64 << 10)
    assert b"".join(joined) == b"".join(pieces)
    assert len(joined) <= 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [("h:1", ("h", 1)), (":9094", ("localhost", 9094)), ("[::1]:5", ("::1", 5)), ("1.2.3.4:65535", ("1.2.3.4", 65535))],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize("text", ["", "h", "h:", "h:x", "h:65536", "h:-1", "h:²", "..:1", "a..b:1", "a" * 64 + ":1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(text)


def test_every_error_has_a_meaning_and_an_exception() -> None:
    assert set(MEANINGS) == set(ErrorCode)
    for code in ErrorCode:
        error = error_from_wire(wire_error(code))
        assert isinstance(error, MillraceError)
        assert error.code == code
        assert str(error) == MEANINGS[code]
    unknown = error_from_wire((999, True, "of the future"))
    assert (unknown.code, unknown.retriable) == (999, True)
