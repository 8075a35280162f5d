"""Records with a time to live: who reads gets what is left of their batches, and the log keeps them."""

from __future__ import annotations

import pytest

from core_log.admission import admit
from core_log.errors import InvalidRecord
from core_log.expiry import unexpired
from core_log.files import MemoryFiles
from core_log.log_config import LogConfig
from core_log.partition_log import PartitionLog
from core_log.record_batch import BatchBuilder, Compression, iterate_records, validate
from tests.core_log.compaction.helpers import Clock
from tests.core_log.helpers import TIME_MS, flush, open_log

EXPIRES = LogConfig(expires=True)
Header = tuple[str, bytes | None]


def batch(*rows: tuple[bytes, list[Header]], codec: Compression = Compression.NONE) -> bytes:
    """Of records that are each a millisecond younger than the one before."""
    builder = BatchBuilder(0, 0, TIME_MS, compression=codec)
    for delta, (value, headers) in enumerate(rows):
        builder.add(delta, b"k", value, headers, TIME_MS + delta)
    return builder.build()


def seen(log: PartitionLog) -> list[tuple[int, bytes]]:
    """What a reader gets, whose checks it passes; every offset is in a batch."""
    found = []
    end = 0
    for one in unexpired(log, log.read_blocking(0, 1 << 20)):
        header = validate(bytes(one), may_be_empty=True)
        assert header.base_offset == end
        end = header.next_offset
        found += [(record.offset, bytes(record.value or b"")) for record in iterate_records(one)]
    assert end == log.log_end_offset
    return found


@pytest.mark.parametrize("codec", Compression)
def test_a_record_is_there_until_its_time_is_up(codec: Compression) -> None:
    clock = Clock()
    log = open_log(MemoryFiles(), EXPIRES, clock=clock)
    absolute = str(TIME_MS + 50).encode()
    log.append(batch(
        (b"0", [("x-ttl", b"100")]), (b"1", []), (b"2", [("a", None), ("expires-at", absolute)]),
        (b"3", [("x", b""), ("millrace.expiration-ms", b"100")]), codec=codec,
    ))  # fmt: skip
    log.append(batch((b"4", [("x-ttl", b"70")]), (b"5", [("x-ttl", b"0")]), codec=codec))
    log.append(batch((b"6", [("x", b"x-ttl")]), codec=codec))
    flush(log)
    expected = {0: b"0 1 2 3 4 5 6", 49: b"0 1 2 3 4 6", 50: b"0 1 3 4 6", 70: b"0 1 3 6", 100: b"1 3 6", 103: b"1 6"}
    for after_ms, values in expected.items():
        clock.now_ms = TIME_MS + after_ms
        left_out = log.expired_left_out
        assert seen(log) == [(int(value), value) for value in values.split()], after_ms
        assert log.expired_left_out - left_out == 7 - len(values.split())
    log.configure(LogConfig())
    assert [value for _, value in seen(log)] == [b"%d" % number for number in range(7)], "it is in the log all the same"


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_times_that_are_none_are_refused_and_what_other_doors_append_stays(codec: Compression) -> None:
    for value in (b"soon", b"-1", b"", None, b"1" * 16, "٣".encode()):
        bad = batch((b"0", []), (b"1", [("x-ttl", value)]), codec=codec)
        with pytest.raises(InvalidRecord, match="x-ttl"):
            admit(EXPIRES, [validate(bad)], [bad], TIME_MS)
        assert admit(LogConfig(), [validate(bad)], [bad], TIME_MS).batches == [bad]
        log = open_log(MemoryFiles(), EXPIRES)
        log.append(bad)
        flush(log)
        assert seen(log) == [(0, b"0"), (1, b"1")]
    good = batch((b"0", [("x-ttl", b"5")]), codec=codec)
    assert admit(EXPIRES, [validate(good)], [good], TIME_MS).batches == [good]


def test_a_time_to_live_counts_from_the_brokers_time_where_records_have_that() -> None:
    config = LogConfig(expires=True, timestamp_type="LogAppendTime")
    sent = batch((b"0", [("x-ttl", b"100")]), (b"1", [("x-ttl", b"200")]))
    _, (stamped,), _ = admit(config, [validate(sent)], [sent], TIME_MS + 1000)
    clock = Clock()
    log = open_log(MemoryFiles(), config, clock=clock)
    log.append(stamped)
    flush(log)
    for after_ms, count in ((0, 2), (1099, 2), (1100, 1), (1200, 0)):
        clock.now_ms = TIME_MS + after_ms
        assert len(seen(log)) == count
