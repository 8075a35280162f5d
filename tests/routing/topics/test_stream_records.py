"""Records of streams as slabs: where they are cut, and how properties come back from headers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_log.compression import Compression
from core_log.record_batch import NO_HEADERS, BatchBuilder, encode_headers
from routing.message import NeutralProperties, Properties, register_decoder
from routing.topics.stream_records import (
    RECORD_PROTOCOL,
    StreamReader,
    StreamSlab,
    neutral_of,
    source_headers,
)

PROTOCOL = "record-test"
register_decoder(PROTOCOL, lambda raw: NeutralProperties(headers={"raw": raw}))

Headers = list[tuple[str, bytes | None]]


def batch(first: int, records: list[tuple[bytes | None, bytes | None, Headers]], **options: Any) -> bytes:
    builder = BatchBuilder(first, 0, 1000, **options)
    for offset, (key, value, headers) in enumerate(records, first):
        builder.add(offset, key, value, headers)
    return builder.build()


def read(*batches: bytes) -> list[StreamSlab]:
    slabs, end = StreamReader().read(batches)
    assert end >= (slabs[-1].end_offset if slabs else 0)
    for slab in slabs:
        assert slab.raws is not None
        assert len(slab.bodies) == len(slab.raws) == slab.end_offset - slab.first_offset
        assert slab.keys is None or len(slab.keys) == len(slab.bodies)
    return slabs


def flat(slabs: list[StreamSlab]) -> list[tuple[int, str, str, str, bytes, bytes]]:
    return [
        (slab.first_offset + i, slab.exchange, slab.key_of(i), slab.properties.protocol, slab.raws[i], slab.bodies[i])  # type: ignore[index]
        for slab in slabs
        for i in range(len(slab))
    ]


def routed(exchange: str, raw: bytes, own: Headers = ()) -> Headers:  # type: ignore[assignment]
    return [*source_headers(exchange, Properties(PROTOCOL, raw, persistent=True)), *own]


def test_varied_neighbours_are_one_slab_and_come_back_as_they_were() -> None:
    rng = random.Random(5)
    records: list[tuple[bytes | None, bytes | None, Headers]] = []
    expected = []
    for offset in range(500):
        raw, body = rng.randbytes(rng.randint(1, 200)), rng.randbytes(rng.randint(0, 50))
        key = f"k{rng.randint(0, 9)}"
        records.append((key.encode(), body, routed("events", raw, [("id", str(offset).encode())])))
        expected.append((offset, "events", key, PROTOCOL, raw, body))
    for slabs in (
        read(batch(0, records)),
        read(batch(0, records[:200]), batch(200, records[200:])),
        read(batch(0, records, compression=Compression.ZSTD)),
    ):
        assert flat(slabs) == expected
        assert len(slabs) == 1


def test_slabs_end_where_exchange_protocol_or_offsets_change_and_at_a_length() -> None:
    one: list[tuple[bytes | None, bytes | None, Headers]] = [(b"k", b"v", routed("a", b"p"))]
    other: list[tuple[bytes | None, bytes | None, Headers]] = [(b"k", b"v", routed("b", b"p"))]
    plain: list[tuple[bytes | None, bytes | None, Headers]] = [(None, None, [])]
    slabs = read(batch(0, one * 3 + other * 2 + plain * 2), batch(7, one), batch(20, one * 2))
    assert [(slab.first_offset, slab.end_offset, slab.exchange) for slab in slabs] == [
        (0, 3, "a"),
        (3, 5, "b"),
        (5, 7, ""),
        (7, 8, "a"),
        (20, 22, "a"),
    ]
    assert flat(slabs)[5] == (5, "", "", RECORD_PROTOCOL, NO_HEADERS, b"")
    for count, body in [(5000, b""), (5000, b"x" * 100), (30, b"x" * 50_000)]:
        slabs = read(batch(0, [(b"k", body, routed("a", b"p"))] * count))
        assert len(slabs) > 1
        assert max(map(len, slabs)) <= 1024
        assert max(slab.size for slab in slabs) < 2 * (256 << 10)
        assert [at for at, *_ in flat(slabs)] == list(range(count))


def test_control_batches_are_passed_over() -> None:
    control = BatchBuilder(1, 0, 1000, control=True)
    control.add(1, b"\0\0\0\0", b"", [])
    slabs, end = StreamReader().read([batch(0, [(b"k", b"v", [])]), control.build()])
    assert (len(slabs), end) == (1, 2)


@pytest.mark.parametrize(
    "headers",
    [
        [("millrace.amqp-of-another-version", b"x")],
        [("millrace.exchange", None)],
        [("millrace.exchange", b"x" * 300)],
        [("millrace." + PROTOCOL, None)],
        [("", b"x")],
        [("a", b"x"), ("millrace." + PROTOCOL, b"late")],
    ],
)
def test_headers_that_only_look_like_ours(headers: Headers) -> None:
    mine = (b"k", b"v", routed("a", b"p"))
    slabs = read(batch(0, [mine, (b"k", b"v", headers), mine]))
    assert [slab.properties.protocol for slab in slabs] == [PROTOCOL, RECORD_PROTOCOL, PROTOCOL]
    assert flat(slabs)[1][4] == encode_headers(headers)


def test_typed_properties_come_back_from_their_headers() -> None:
    whole = NeutralProperties(
        content_type="text/plain",
        content_encoding="gzip",
        headers={"a": "text", "b": b"\xff\xfe", "none": None},
        persistent=True,
        priority=7,
        correlation_id=b"\x00c",
        reply_to="r",
        expiration_ms=60_000,
        message_id="m",
        timestamp_s=1_700_000_000,
        type="t",
        user_id="u",
        app_id="app",
    )
    register_decoder("whole-test", lambda raw: whole)
    headers = Properties("whole-test", b"x", persistent=True).record_headers
    whole.user_id = None
    whole.headers["millrace.user-id"] = "u"  # of whom it is nobody knows
    assert neutral_of(encode_headers(headers)) == whole
    assert neutral_of(NO_HEADERS) == NeutralProperties(persistent=True)


def test_typed_headers_that_are_not_what_they_should_be_are_left_out() -> None:
    bad: Headers = [
        ("millrace.priority", b"high"),
        ("millrace.timestamp-s", b"-5"),
        ("millrace.expiration-ms", b"9" * 5000),
        ("millrace.content-type", None),
        ("millrace.unknown", b"x"),
    ]
    assert neutral_of(encode_headers(bad)) == NeutralProperties(persistent=True)
    assert neutral_of(encode_headers([("millrace.priority", b"300")])).priority == 255


@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), max_size=70), st.binary())
def test_any_headers_are_read(headers: Headers, raw: bytes) -> None:
    records: list[tuple[bytes | None, bytes | None, Headers]] = [
        (b"k", b"v", headers),
        (b"k", b"v", routed("e", raw, headers)),
        (b"k", b"v", routed("", raw, headers)),
    ]
    got = flat(read(batch(0, records * 2)))
    assert [at for at, *_ in got] == list(range(6))
    if raw:
        assert [(one[1], one[4]) for one in got[1:3]] == [("e", raw), ("", raw)]
    neutral_of(encode_headers(headers))
