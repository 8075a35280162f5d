"""Headers of records as AMQP's tables and MQTT's user properties: the same bytes as through the neutral form."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core_log.record_batch import encode_headers
from protocols.adapter_record_headers import Rewriter
from protocols.amqp.adapter_properties import from_neutral as amqp_list
from protocols.amqp.adapter_record_lists import lists_of
from protocols.amqp.adapter_streams import stream_raws
from protocols.amqp.stream_offsets import with_offsets
from protocols.mqtt.adapter_properties import PAYLOAD_FORMAT_HEADER, blocks_of
from protocols.mqtt.adapter_properties import from_neutral as mqtt_block
from protocols.mqtt.properties import with_length
from routing.message import Properties
from routing.topics.stream_records import RECORD_PROTOCOL, StreamSlab, neutral_of

FRAME_BYTES = 4096
Headers = list[tuple[str, bytes | None]]

TABLE: list[Headers] = [
    [],
    [("a", b"1")],
    [("a", b"2")],
    [("a", None)],
    [("a", b"")],
    [("", b"x")],
    [("name", "ü".encode())],
    [("name", b"\xff\xfe")],
    [("name", b"a\0b")],
    [("na\0me", b"x")],
    [("naïve", b"x"), ("b", b"\xc3")],
    [("\udcff", b"x")],
    [("a", b"1"), ("a", b"2")],
    [("a", b"1"), ("b", b"2"), ("a", b"3")],
    [("a", b"v" * 63)],
    [("a", b"v" * 64)],
    [("n" * 63, b"v")],
    [("n" * 64, b"v")],
    [("a", b"x" * 9000)],
    [("millrace.content-type", b"text/plain"), ("a", b"1")],
    [("a", b"1"), ("millrace.priority", b"7")],
    [(PAYLOAD_FORMAT_HEADER, b"1"), ("a", b"1")],
    [("x-death", b"x"), ("x-delay", b"5"), ("x-stream-offset", b"mine")],
    [(f"h{number}", b"%d" % number) for number in range(70)],
]


def slab_of(blocks: list[bytes]) -> StreamSlab:
    common = Properties(RECORD_PROTOCOL, b"", persistent=True)
    return StreamSlab(7, "", common, [b"body"] * len(blocks), ["k"] * len(blocks), blocks)


def same(blocks: list[bytes]) -> None:
    """What both doors send is what it is through the neutral form."""
    neutrals = [neutral_of(block) for block in blocks]
    expected = with_offsets(list(map(amqp_list, neutrals)), 7, FRAME_BYTES - 20)
    assert stream_raws(slab_of(blocks), FRAME_BYTES) == expected
    assert lists_of(blocks) == list(map(amqp_list, neutrals))
    assert blocks_of(slab_of(blocks), 0, len(blocks)) == [with_length(mqtt_block(neutral)) for neutral in neutrals]


def test_all_kinds_together_and_alone() -> None:
    blocks = list(map(encode_headers, TABLE))
    same(blocks)
    for block in blocks:
        same([block])
        same([block, encode_headers([("z", b"9")])])


texts = st.text(max_size=8) | st.sampled_from(["a", "b", "millrace.type", "n" * 70])
headers = st.lists(
    st.tuples(texts, st.none() | st.binary(max_size=70) | texts.map(lambda text: text.encode("utf-8", "replace")))
)


@given(st.lists(headers, min_size=1, max_size=6))
@example([[("a", b"1")], [("a", b"\xff")], [("a", b"1")]])
def test_any_headers(records: list[Headers]) -> None:
    same(
        [encode_headers([(name.encode("utf-8", "replace").decode(), value) for name, value in one]) for one in records]
    )


@pytest.mark.parametrize("headers", [one for one in TABLE if one])
def test_damaged_blocks_are_left_alone_or_written_as_what_they_say(headers: Headers) -> None:
    """A reader lets whole blocks through only; whatever comes here, nothing is read behind its end."""
    whole = encode_headers(headers)
    rewriter = Rewriter(lambda name, size: f"{name}:{size};".encode(), lambda name, value: value)
    for end in range(len(whole)):
        assert rewriter.rewrite([whole[:end]]) == [None]
    assert rewriter.rewrite([whole + b"\0"]) == [None]


def test_what_is_remembered_is_bounded() -> None:
    rewriter = Rewriter(lambda name, size: name.encode(), lambda name, value: value)
    blocks = [encode_headers([(f"name-{number}", b"x")]) for number in range(10_000)]
    assert rewriter.rewrite(blocks) == [b"name-%dx" % number for number in range(10_000)]
    assert len(rewriter._heads) <= 4096
