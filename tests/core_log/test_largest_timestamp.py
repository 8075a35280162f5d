"""Which record has the largest timestamp, whatever of the log can be seen."""

from __future__ import annotations

import random

import pytest

from core_log.files import MemoryFiles
from core_log.largest_timestamp import find_largest_timestamp
from core_log.partition_log import LogConfig
from core_log.record_batch import BatchBuilder
from tests.core_log.compaction.helpers import keyed, of_producer, open_compacted, pass_over, put
from tests.core_log.helpers import TIME_MS, flush, open_log


def test_it_is_the_first_of_those_that_readers_see() -> None:
    dice = random.Random(4)
    config = LogConfig(segment_bytes=600, index_interval_bytes=100)
    for _ in range(20):
        log = open_log(MemoryFiles(), config)
        times: list[int] = []
        for number in range(40):
            builder = BatchBuilder(len(times), 0, TIME_MS)
            for offset in range(len(times), len(times) + 3):
                times.append(TIME_MS + dice.randrange(50))
                builder.add(offset, None, b"x" * 20, timestamp_ms=times[-1])
            log.append(builder.build())
            if dice.random() < 0.3:
                flush(log)
            if dice.random() < 0.1:
                log.delete_prefix(dice.randrange(log.log_start_offset, len(times)))
            start, end = log.log_start_offset, log.high_watermark
            seen = times[start:end]
            expected = (start + seen.index(max(seen)), max(seen)) if seen else None
            assert find_largest_timestamp(log) == expected, (number, start, end)
        flush(log)
        again = open_log(log.files, config)
        seen = times[again.log_start_offset :]
        assert find_largest_timestamp(again) == (again.log_start_offset + seen.index(max(seen)), max(seen))


@pytest.mark.parametrize("before", [0, 30])
def test_what_compaction_left_of_a_batch_has_no_time(before: int) -> None:
    log = open_compacted(MemoryFiles(), segment_bytes=400)
    for number in range(before):
        put(log, keyed([(b"old %d" % number, b"x" * 50)], time_ms=TIME_MS))
    put(log, of_producer(keyed([(b"key", b"first")], time_ms=TIME_MS + 900), 7))
    for number in range(30):
        put(log, keyed([(b"key", b"x" * 50)], time_ms=TIME_MS + number))
    end = log.log_end_offset - 1
    pass_over(log)
    assert log.read_blocking(before, 1), "the header of the producer's batch"
    assert find_largest_timestamp(log) == (end, TIME_MS + 29)
    for name in log.files.list(log.directory):
        if name.endswith(".timeindex"):
            log.files.remove(f"{log.directory}/{name}")
    again = open_compacted(log.files, segment_bytes=400)
    assert find_largest_timestamp(again) == (end, TIME_MS + 29), "of the headers, as of a replica that was sent them"
