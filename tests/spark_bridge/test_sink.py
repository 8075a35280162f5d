"""Rows to topics: what is in the records, and that each row is there once whatever happens to a task.

`test_spark.py` has real queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructType

from core_log.murmur2 import partition_of_key
from millrace import BlockingClient, BlockingConsumer, ConsumerRecord
from protocols.native.errors import ProducerFenced
from spark_bridge import sink
from spark_bridge.columns import HEADERS_TYPE
from spark_bridge.data_source import MillraceDataSource
from spark_bridge.options import Access, OptionError, SinkOptions
from spark_bridge.sink import write_rows
from tests.support import BrokerProcess


@pytest.fixture
def server(shared_broker: BrokerProcess) -> str:
    return f"127.0.0.1:{shared_broker.native_port}"


def options(server: str, topic: str | None, **others: Any) -> SinkOptions:
    return SinkOptions((server,), topic, others.get("compression"), 60_000, Access())


def made(server: str, topic: str, partitions: int = 3) -> str:
    with BlockingClient(server) as client:
        client.create_topic(topic, partitions=partitions)
    return topic


def records(server: str, topic: str) -> list[ConsumerRecord]:
    """All that is committed."""
    with BlockingConsumer(server, auto_offset_reset="earliest") as consumer:
        consumer.assign(topic)
        found: list[ConsumerRecord] = []
        while more := consumer.fetch(100_000, timeout_ms=300):
            found += more
        return found


def rows(first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Batches of ten rows, with a key each."""
    for start in range(first, last, 10):
        numbers = range(start, min(start + 10, last))
        yield pa.record_batch(
            {"value": pa.array([b"%d" % n for n in numbers]), "key": pa.array([b"k%d" % (n % 13) for n in numbers])}
        )


def numbers(server: str, topic: str) -> list[int]:
    return sorted(int(one.value or b"") for one in records(server, topic))


def test_rows_become_records(server: str) -> None:
    topic = made(server, "sink-columns")
    headers = [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, [], [{"key": "a", "value": b"2"}]]
    batch = pa.record_batch(
        {
            "value": pa.array(["one", None, "three", ""]),
            "key": pa.array([b"k", b"k", None, b""], pa.binary()),
            "partition": pa.array([2, None, 0, None], pa.int32()),
            "headers": pa.array(headers, HEADERS_TYPE),
        }
    )
    assert write_rows(iter([batch]), options(server, topic), "columns", 0, 0).rows == 4
    found = {(one.partition, one.value): (one.key, list(one.headers)) for one in records(server, topic)}
    assert found == {
        (2, b"one"): (b"k", [("a", b"1"), ("b", None)]),
        (partition_of_key(b"k", 3), None): (b"k", []),
        (0, b"three"): (None, []),
        (partition_of_key(b"", 3), b""): (b"", [("a", b"2")]),
    }


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_many_rows_in_order_of_their_keys(
    server: str, monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    monkeypatch.setattr(sink, "BATCH_BYTES_MAX", 700)
    monkeypatch.setattr(sink, "REQUEST_BYTES_MAX", 3000)
    topic = made(server, f"sink-many-{compression}")
    write_rows(rows(0, 1000), options(server, topic, compression=compression), f"many-{compression}", 0, 0)
    found = records(server, topic)
    assert sorted(int(one.value or b"") for one in found) == list(range(1000))
    for key in range(13):
        of_key = [one for one in found if one.key == b"k%d" % key]
        assert {one.partition for one in of_key} == {partition_of_key(b"k%d" % key, 3)}
        assert [int(one.value or b"") for one in of_key] == list(range(key, 1000, 13))


def test_the_topic_may_be_a_column(server: str) -> None:
    topics = [made(server, name) for name in ("sink-of-one", "sink-of-two")]
    batch = pa.record_batch(
        {"value": pa.array([b"0", b"1", b"2"]), "topic": pa.array([topics[0], topics[1], topics[0]])}
    )
    write_rows(iter([batch]), options(server, None), "topics", 0, 0)
    assert [numbers(server, topic) for topic in topics] == [[0, 2], [1]]
    missing = pa.record_batch({"value": pa.array([b"0"]), "topic": pa.array([None], pa.string())})
    with pytest.raises(OptionError, match="a row has no topic"):
        write_rows(iter([missing]), options(server, None), "topics", 1, 0)


def test_a_header_needs_a_name(server: str) -> None:
    topic = made(server, "sink-headers")
    for headers in ([None], [{"key": None, "value": b"1"}]):
        batch = pa.record_batch({"value": pa.array([b"0"]), "headers": pa.array([headers], HEADERS_TYPE)})
        with pytest.raises(OptionError, match="a header is null, or its key is"):
            write_rows(iter([batch]), options(server, topic), "headers", 0, 0)


def test_a_task_that_runs_again_writes_nothing(server: str) -> None:
    topic = made(server, "sink-again")
    where = options(server, topic)
    first = write_rows(rows(0, 50), where, "again", 7, 1)
    second = write_rows(rows(0, 50), where, "again", 7, 1)
    assert (first.again, second.again, second.rows) == (False, True, 50)
    write_rows(rows(50, 60), where, "again", 7, 2)  # another task of the same micro-batch
    write_rows(rows(60, 70), where, "again", 8, 1)  # the same task of the next
    assert numbers(server, topic) == list(range(70))
    write_rows(rows(0, 10), where, "another query", 7, 1)
    assert numbers(server, topic) == sorted([*range(70), *range(10)])


def test_a_job_writes_to_several_topics_under_one_number(server: str) -> None:
    topics = [made(server, "sink-job-one"), "sink-job-two"]  # the second is made when it is written to
    for _ in range(2):
        for topic in topics:
            write_rows(rows(0, 50), options(server, topic), "job", 7, 0)
    assert [numbers(server, topic) for topic in topics] == [list(range(50))] * 2


def test_nothing_to_write_writes_nothing(server: str) -> None:
    topic = made(server, "sink-nothing")
    assert write_rows(iter([]), options(server, topic), "nothing", 0, 0).rows == 0
    assert write_rows(rows(0, 5), options(server, topic), "nothing", 0, 0).again is False
    assert numbers(server, topic) == list(range(5))


def test_of_an_attempt_that_fails_nothing_is_seen(server: str) -> None:
    topic = made(server, "sink-fails")
    where = options(server, topic)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows(0, 500)
        raise ValueError("the task fails")

    with pytest.raises(ValueError, match="the task fails"):
        write_rows(broken(), where, "fails", 0, 0)
    assert numbers(server, topic) == []
    write_rows(rows(0, 500), where, "fails", 0, 0)
    assert numbers(server, topic) == list(range(500))


def test_of_two_attempts_at_once_one_counts(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "REQUEST_BYTES_MAX", 100)
    topic = made(server, "sink-speculative")
    where = options(server, topic)
    inner = []

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield from rows(0, 50)
        inner.append(write_rows(rows(0, 100), where, "speculative", 0, 0))
        yield from rows(50, 100)

    with pytest.raises(
        ProducerFenced, match=r"another attempt .* or it took longer than transactionTimeoutMs \(60000\)"
    ):
        write_rows(overtaken(), where, "speculative", 0, 0)
    assert inner[0].rows == 100
    assert numbers(server, topic) == list(range(100))


@pytest.mark.parametrize(
    ("columns", "given", "sentence"),
    [
        ({"value": IntegerType()}, {"topic": "t"}, "the column 'value' cannot be int"),
        ({"value": StringType(), "size": IntegerType()}, {"topic": "t"}, "no place for the column 'size'"),
        ({"key": StringType()}, {"topic": "t"}, "a column 'value' is needed"),
        ({"value": StringType()}, {}, "the option 'topic' or a column of that name"),
        (
            {"value": StringType(), "headers": ArrayType(StringType())},
            {"topic": "t"},
            "the column 'headers' cannot be array<string>",
        ),
        (
            {"value": StringType()},
            {"topic": "t", "subscribe": "t"},
            "unknown option 'subscribe'; the options of write are",
        ),
        (
            {"value": StringType()},
            {"topic": "t", "transactionTimeoutMs": "9999999999"},
            "transactionTimeoutMs must be a number from 1 to 2147483647, not '9999999999'",
        ),
        ({"value": StringType()}, {"topic": "t", "compression": "zip"}, "must be none, gzip, snappy, lz4 or zstd"),
    ],
)
def test_what_cannot_be_written(columns: dict[str, Any], given: dict[str, str], sentence: str) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    source = MillraceDataSource({"bootstrap.servers": "127.0.0.1:1", **given})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(OptionError, match=sentence):
            make(schema=schema, overwrite=False)
    with pytest.raises(OptionError, match="cannot be overwritten"):
        source.writer(schema=schema, overwrite=True)
