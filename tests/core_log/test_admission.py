"""What topics say of batches before they are appended: keys, and times."""

from __future__ import annotations

import pytest

from core_log.admission import admit
from core_log.batch_header import HEADER_BYTES, TIMESTAMP_TYPE_BIT, encode_batch
from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.errors import InvalidRecord, InvalidTimestamp
from core_log.files import MemoryFiles
from core_log.log_config import LogConfig
from core_log.record_batch import Compression, decode_columns, validate
from tests.core_log.compaction.helpers import keyed, of_producer
from tests.core_log.helpers import TIME_MS, flush, open_log

HOUR_MS = 3_600_000


def admitted(config: LogConfig, batch: bytes, now_ms: int = TIME_MS) -> tuple[bytes, int]:
    _, (found,), time_ms = admit(config, [validate(batch)], [memoryview(batch)], now_ms)
    return bytes(found), time_ms


@pytest.mark.parametrize("compression", Compression)
def test_compacted_topics_take_keys_only(compression: Compression) -> None:
    config = LogConfig(cleanup_policy="compact")
    good = keyed([(b"", b"x"), (b"k", None)], compression=compression)
    assert admitted(config, good) == (good, -1)
    bad = keyed([(b"k", b"x"), (None, b"x")], compression=compression)
    with pytest.raises(InvalidRecord, match="record 1 has no key"):
        admitted(config, bad)
    assert admitted(LogConfig(), bad) == (bad, -1)


@pytest.mark.parametrize(("ahead_ms", "taken"), [(0, True), (HOUR_MS - 10, True), (HOUR_MS + 1, False)])
def test_times_may_be_so_far_ahead_and_behind(ahead_ms: int, taken: bool) -> None:
    after = LogConfig(timestamp_after_max_ms=HOUR_MS)
    before = LogConfig(timestamp_before_max_ms=HOUR_MS)
    for config, time_ms in ((after, TIME_MS + ahead_ms), (before, TIME_MS - ahead_ms)):
        batch = keyed([(b"k", b"v")], time_ms=time_ms)
        if taken:
            assert admitted(config, batch) == (batch, -1)
        else:
            with pytest.raises(InvalidTimestamp, match="the topic takes"):
                admitted(config, batch)


@pytest.mark.parametrize("stamps", [False, True])
@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("compression", Compression)
def test_batches_are_compressed_as_the_topic_says(compression: Compression, wanted: str, stamps: bool) -> None:
    config = LogConfig(compression=wanted, timestamp_type="LogAppendTime" if stamps else "CreateTime")  # type: ignore[arg-type]
    batch = of_producer(keyed([(b"k", b"v" * 100), (None, None)], compression=compression), 7, 3)
    (header,), (found,), time_ms = admit(config, [validate(batch)], [memoryview(batch)], TIME_MS + 5)
    names = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]
    assert names[header.compression] == names[validate(found).compression] == wanted
    assert decode_columns(found).values == decode_columns(batch).values
    assert decode_columns(found).keys == decode_columns(batch).keys
    before = validate(batch)
    assert (header.producer_id, header.base_sequence, header.last_offset_delta) == (7, 3, before.last_offset_delta)
    assert time_ms == (TIME_MS + 5 if stamps else -1)
    if names[compression] == wanted and not stamps:
        assert bytes(found) == batch


def test_what_nobody_would_decompress_is_not_compressed() -> None:
    value = bytes(DECOMPRESSED_BYTES_MAX)
    batch = keyed([(b"k", value)], compression=Compression.LZ4)
    assert decode_columns(batch).values == [value]
    found, _ = admitted(LogConfig(compression="lz4"), batch)
    assert decode_columns(found).values == [value]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_what_takes_long_to_compress_stays_as_it_came(compression: Compression) -> None:
    for size_bytes, stays in ((3 << 20, False), (4 << 20, True)):
        batch = keyed([(b"k", bytes(size_bytes))], compression=compression)
        found, _ = admitted(LogConfig(compression="lz4"), batch)
        assert (found == batch) is stays
        assert decode_columns(found).values == [bytes(size_bytes)]


@pytest.mark.parametrize("compression", Compression)
def test_log_append_time(compression: Compression) -> None:
    config = LogConfig(timestamp_type="LogAppendTime", timestamp_before_max_ms=0, timestamp_after_max_ms=0)
    rows: list[tuple[bytes | None, bytes | None]] = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    log = open_log(MemoryFiles())
    for number in range(5):
        batch = of_producer(keyed(rows, compression=compression), 7, number * 3)
        now_ms = TIME_MS + HOUR_MS + 1000 * number
        found, time_ms = admitted(config, batch, now_ms)
        header = validate(found)
        assert (time_ms, header.max_timestamp_ms, header.attributes & 8) == (now_ms, now_ms, 8)
        assert (header.producer_id, header.base_sequence) == (7, number * 3)
        columns = decode_columns(found)
        assert columns.timestamps_ms == [now_ms] * 3
        assert columns.keys == [b"a", b"b", b"c"]
        log.append(found)
    flush(log)
    for number in range(5):
        expected = (3 * number, TIME_MS + HOUR_MS + 1000 * number)
        assert log.offset_for_timestamp(expected[1]) == log.offset_for_timestamp(expected[1] - 999) == expected
    assert log.offset_for_timestamp(TIME_MS + 2 * HOUR_MS) is None


@pytest.mark.parametrize("code", [5, 6, 7])
def test_a_compression_that_nobody_knows_is_refused(code: int) -> None:
    header = validate(keyed([(b"k", b"v")]))
    batch = encode_batch(header._replace(attributes=code), b"what nobody can read")
    with pytest.raises(InvalidRecord, match=f"unknown compression {code}"):
        admitted(LogConfig(), batch)


@pytest.mark.parametrize("stamps", [False, True])
def test_offsets_without_records_and_times_of_the_broker_are_no_producers(stamps: bool) -> None:
    config = LogConfig(timestamp_type="LogAppendTime" if stamps else "CreateTime")
    batch = keyed([(b"k", b"v"), (b"k", b"w")])
    header, records = validate(batch), batch[HEADER_BYTES:]
    for count, delta in ((2, 2), (1, 1)):
        wrong = encode_batch(header._replace(record_count=count, last_offset_delta=delta), records)
        with pytest.raises(InvalidRecord, match=f"{count} records and {delta + 1} offsets"):
            admitted(config, wrong)
    with pytest.raises(InvalidTimestamp):
        admitted(config, encode_batch(header._replace(attributes=TIMESTAMP_TYPE_BIT), records))
