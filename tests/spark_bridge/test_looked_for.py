"""Filters on keys and headers read less, and never change what comes out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import datasource as ds

from core_log.batch_header import HEADER, encode_batch, parse_header
from core_log.compaction.rewrite import left_of
from core_log.compression import DECOMPRESSED_BYTES_MAX, Compression
from core_log.record_batch import BatchBuilder
from core_log.varint import varint
from protocols.native.wire_base import CONTAINING_MAX, CONTAINING_SINCE
from spark_bridge.columns import decode, opened
from spark_bridge.filters import looked_for, wanted_by
from spark_bridge.looked_for import strings_for
from spark_bridge.options import OptionError, parse_options
from spark_bridge.schema import spark_schema
from tests.spark_bridge.log_server import LogServer, Partition, log_server
from tests.spark_bridge.test_reader import source
from tests.spark_bridge.test_stream import ALL, stream

Row = tuple[int, bytes | None, list[tuple[str, bytes | None]]]
"""Offset, key and headers."""

ALPHABET = (None, b"", b"a", b"ab", b"b.c", b"b/c", b"b\0c", b"\xff", b"\x02a", b"\0", b"a" * 70, b"d" * 200)
CODECS = (Compression.NONE, Compression.NONE, Compression.ZSTD, Compression.GZIP)
COLUMNS = ("offset", "key", "headers", "messageId", "exchange", "routingKey", "mqttTopic", "protocol")


def random_log(rng: random.Random) -> Partition:
    """Batches of all kinds, compacted ones among them, of which nothing may be left."""
    batches, offset = [], 0
    for number in range(25):
        builder = BatchBuilder(offset, 0, 1000, control=number % 11 == 5, compression=rng.choice(CODECS))
        count = rng.randrange(1, 6)
        for at in range(offset, offset + count):
            headers: list[tuple[str, bytes | None]] = []
            if rng.random() < 0.6:
                headers.append(("millrace.exchange", rng.choice([b"amq.topic", b"e"])))
            if rng.random() < 0.6:
                headers += [("millrace.mqtt", b"\1"), ("millrace.message-id", rng.choice([b"a", b"m", b"\xff"]))]
            headers += [(rng.choice("xy"), rng.choice(ALPHABET)) for _ in range(rng.randrange(3))]
            builder.add(at, rng.choice(ALPHABET), rng.choice([b"", b"v", b"ab", b"\x02a\0"]), headers)
        batch = builder.build()
        header = parse_header(batch)
        if not header.is_control and rng.random() < 0.4:
            flags = bytes(rng.randrange(2) for _ in range(count))
            batch = bytes(left_of(header, batch, flags, DECOMPRESSED_BYTES_MAX))
        batches.append(batch)
        offset += count + rng.randrange(3)
    return Partition(batches)


def read(server: LogServer, *filters: Any, columns: tuple[str, ...] = COLUMNS, **options: str) -> list[dict[str, Any]]:
    found = source(server, filterPushdown="true", **options)
    reader = found.reader(schema=spark_schema(columns))
    reader.pushFilters(list(filters))  # type: ignore[attr-defined]
    return [row for part in reader.partitions() for rows in reader.read(part) for row in rows.to_pylist()]


def one_filter(rng: random.Random, rows: list[dict[str, Any]]) -> tuple[Any, Callable[[dict[str, Any]], bool]]:
    """A filter on a value that there may be, and what it means."""
    name = rng.choice(["key", "key", "key", "messageId", "exchange", "routingKey", "mqttTopic", "protocol"])
    values = [row[name] for row in rows if row[name] is not None] or [b"" if name == "key" else ""]
    one, other = rng.choice(values), rng.choice(values)
    kind = rng.randrange(2 if name == "key" else 5)
    part = one[rng.randrange(len(one) + 1) :] if kind > 2 else one[: rng.randrange(len(one) + 1)]
    return [
        (ds.EqualTo((name,), one), lambda row: row[name] == one),
        (ds.In((name,), (one, other, None)), lambda row: row[name] in (one, other)),
        (ds.StringStartsWith((name,), part), lambda row: row[name] is not None and row[name].startswith(part)),
        (ds.StringEndsWith((name,), part), lambda row: row[name] is not None and row[name].endswith(part)),
        (ds.StringContains((name,), part), lambda row: row[name] is not None and part in row[name]),
    ][kind]  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("version", [CONTAINING_SINCE, CONTAINING_SINCE - 1])
def test_a_filter_gives_the_rows_that_it_means(seed: int, version: int) -> None:
    rng = random.Random(seed)
    with log_server({"t": [random_log(rng)]}, version) as server:
        rows = read(server)
        for _ in range(12):
            filters, meanings = zip(*(one_filter(rng, rows) for _ in range(rng.choice([1, 1, 2]))), strict=True)
            expected = [row for row in rows if all(meaning(row) for meaning in meanings)]
            assert read(server, *filters) == expected, filters


@pytest.mark.parametrize("seed", range(6))
def test_rows_with_headers_are_those_that_have_them(seed: int) -> None:
    rng = random.Random(seed)
    with log_server({"t": [random_log(rng)]}) as server:
        rows = read(server)
        for wanted in ({"x": "ab"}, {"x": "a" * 70}, {"y": ""}, {"x": "a", "y": "b.c"}, {"z": "a"}, {"y": "d" * 200}):
            where = {"headers.where": str(wanted).replace("'", '"')}
            expected = [
                row
                for row in rows
                if all(
                    any(one == {"key": name, "value": value.encode()} for one in row["headers"] or ())
                    for name, value in wanted.items()
                )
            ]
            assert read(server, **where) == expected
            offsets = [row["offset"] for row in expected]
            assert [row["offset"] for row in read(server, columns=("offset",), **where)] == offsets
            reader = stream(server, startingOffsets="earliest", minPartitions="3", **where)
            parts = reader.partitions(reader.initialOffset(), reader.latestOffset(None, ALL))
            found = [row for part in parts for each in reader.read(part) for row in each.to_pylist()]
            assert [row["offset"] for row in found] == offsets
            key = expected[0]["key"] if expected else b"ab"
            both = read(server, ds.EqualTo(("key",), key), **where)
            assert both == [row for row in expected if key is not None and row["key"] == key]


def keyed(first: int, keys: list[bytes], compression: Compression = Compression.NONE) -> bytes:
    builder = BatchBuilder(first, 0, 1000, compression=compression)
    for offset, key in enumerate(keys, first):
        builder.add(offset, key, b"v" * 200, [("region", b"r" + key)])
    return builder.build()


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_key_in_a_hundredth_of_the_batches_takes_at_most_three_of_the_bytes(compression: Compression) -> None:
    batches = [keyed(first, [b"device-%d" % (first // 20)] * 20, compression) for first in range(0, 8000, 20)]
    whole = sum(map(len, batches))
    most = 0.03 * whole if compression is Compression.NONE else whole
    for version, filters, where in (
        (CONTAINING_SINCE, [ds.EqualTo(("key",), b"device-7")], {}),
        (CONTAINING_SINCE, [ds.In(("key",), (b"device-7", b"no"))], {}),
        (CONTAINING_SINCE, [], {"headers.where": '{"region": "rdevice-7"}'}),
        (CONTAINING_SINCE - 1, [ds.EqualTo(("key",), b"device-7")], {}),
    ):
        with log_server({"t": [Partition(batches)]}, version) as server:
            assert [row["offset"] for row in read(server, *filters, **where)] == list(range(140, 160))
            assert server.fetched_bytes <= (most if version == CONTAINING_SINCE else whole)


def test_batches_without_it_are_not_decoded() -> None:
    """Also when they are compressed, or come from a broker or a file that leaves nothing out."""
    batches = [keyed(0, [b"a", b"b"], Compression.ZSTD), keyed(2, [b"c", b"d"])]
    groups = looked_for(wanted_by([ds.EqualTo(("key",), b"c")]), ())
    assert decode(opened(batches, groups), with_headers=False).offsets.tolist() == [2, 3]
    groups = looked_for(wanted_by([]), [("region", "ra")])
    assert decode(opened(batches, groups), with_headers=False).offsets.tolist() == [0, 1]


def overlong(value: int, size: int) -> bytes:
    """A varint in more bytes than it needs."""
    data = varint(value)
    return bytes([*data[:-1], data[-1] | 128, *[128] * (size - len(data) - 1), 0])


@pytest.mark.parametrize("size", [2, 3, 5, 9, 10])
def test_lengths_in_more_bytes_than_they_need_lose_no_row(size: int) -> None:
    key, value = b"key", b"r1"
    plain = varint(len(key)) + key + varint(3) + b"val" + varint(1) + varint(1) + b"h"
    for body in (
        overlong(len(key), size) + plain[1:] + varint(len(value)) + value,
        plain + overlong(len(value), size) + value,
    ):
        record = varint(len(body) + 3) + b"\0\0\0" + body
        batch = encode_batch(HEADER.unpack_from(keyed(0, [b""])), record)
        with log_server({"t": [Partition([batch])]}) as server:
            for filters, where in (([ds.EqualTo(("key",), key)], {}), ([], {"headers.where": '{"h": "r1"}'})):
                assert [row["key"] for row in read(server, *filters, **where)] == [key]


def test_what_is_looked_for() -> None:
    key = (b"\x04k1", b"\0k1")
    assert strings_for([("key", [b"k1"])], [], []) == [key]
    assert strings_for([("routingKey", ["k1"]), ("key", [b""])], [], []) == [key]
    assert strings_for([("mqttTopic", ["a/b.c"])], [], []) == [(b"\x0aa.b/c", b"\0a.b/c")]
    assert strings_for([], [("mqttTopic", ["a/"]), ("routingKey", ["a/"])], []) == [(b"a.",), (b"a/",)]
    assert strings_for([], [], [("h", "v")]) == [(b"h\x02v", b"h\x82")]
    assert strings_for([("topic", ["t"]), ("routingKey", ["\ufffd"]), ("exchange", [""])], [], []) == []
    many = strings_for([("key", [b"%d" % number for number in range(CONTAINING_MAX)]), ("key", [b"k1"])], [], [])
    assert many == [key], "what is too much is left to the worker"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"headers.where": "x"}, "is not JSON"),
        ({"headers.where": "[]"}, "must be a JSON object"),
        ({"headers.where": "{}"}, "must look like"),
        ({"headers.where": '{"a": 1}'}, "must look like"),
        ({"headers.where": '{"a": "\\ud800"}'}, "no text"),
        ({"headers.where": '{"a": "b"}', "queue": "q", "queue.mode": "consume"}, "would be lost"),
    ],
)
def test_what_headers_cannot_be(options: dict[str, str], sentence: str) -> None:
    topics = {} if "queue" in options else {"subscribe": "t"}
    with pytest.raises(OptionError, match=sentence):
        parse_options({"millrace.servers": "h:1", **topics, **options}, streaming="queue" in options)
