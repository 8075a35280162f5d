"""Transactions in a log, against a model that knows every batch."""

from __future__ import annotations

import random

import pytest
import trio

from core_log.batch_header import TRANSACTIONAL_BIT, parse_header, validate
from core_log.committed import committed
from core_log.errors import CorruptBatch
from core_log.files import MemoryFiles
from core_log.log_flusher import LogFlusher
from core_log.partition_log import LogConfig, PartitionLog
from core_log.record_batch import BatchBuilder, iterate_records
from core_log.replica_log import ReplicaLog
from core_log.transaction_marker import MARKER_BYTES, is_commit, marker, stand_in
from tests.core_log.helpers import DIRECTORY, TIME_MS, flush, make_batch, open_log, write
from tests.support.transactional import transactional

HOUR_MS = 3_600_000


def producer_batch(producer_id: int, values: list[bytes], *, epoch: int = 0) -> bytes:
    return transactional(make_batch(values), producer_id, epoch)


def end(producer_id: int, *, committed: bool, epoch: int = 0) -> bytes:
    return marker(producer_id, epoch, TIME_MS, 3, committed=committed)


def visible(log: PartitionLog) -> list[bytes]:
    """What a reader of committed records gets."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while batches := log.read_blocking(offset, 300, before=log.stable_offset):
        for batch in committed(log, batches):
            header = validate(batch)
            assert header.next_offset > offset
            offset = header.next_offset
            if not header.is_control:
                found += [record.value or b"" for record in iterate_records(batch)]
    assert offset <= log.stable_offset
    return found


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_marker_says_which_transaction_it_ends_and_how(is_committed: bool) -> None:
    batch = marker(1 << 40, 7, TIME_MS, 9, committed=is_committed)
    header = validate(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 40, 7, -1)
    assert (header.is_control, header.is_transactional, header.record_count) == (True, True, 1)
    assert is_commit(batch) is is_committed
    [record] = iterate_records(batch)
    assert (record.key, record.value) == (bytes([0, 0, 0, is_committed]), b"\0\0\0\0\0\x09")


def test_what_stands_in_for_a_batch_has_its_offsets_and_nothing_in_it() -> None:
    builder = BatchBuilder(100, 4, TIME_MS)
    builder.add_run(100, b"k", [b"x" * 50] * 20)
    header = validate(stand_in(parse_header(builder.build())))
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (100, 120, 4)
    assert (header.is_control, header.is_transactional) == (True, False)
    assert is_commit(stand_in(parse_header(builder.build()))) is None


def test_a_control_batch_without_a_type_is_refused_and_changes_nothing() -> None:
    builder = BatchBuilder(0, 0, TIME_MS, control=True, attributes=TRANSACTIONAL_BIT)
    builder.add(0, b"\0", None)
    log = open_log(MemoryFiles())
    with pytest.raises(CorruptBatch):
        log.append(builder.build())
    assert log.log_end_offset == 0
    log.close()


def test_a_transaction_of_no_producer_is_refused() -> None:
    log = open_log(MemoryFiles())
    with pytest.raises(CorruptBatch):
        log.append(transactional(make_batch([b"a"]), -1, -1))
    assert log.log_end_offset == 0
    log.close()


def test_logs_without_transactions_have_no_index_and_no_file() -> None:
    files = MemoryFiles()
    log = open_log(files)
    log.append(make_batch([b"a"]))
    flush(log)
    assert log.transactions is None
    assert log.stable_offset == log.high_watermark == 1
    log.close()
    assert not files.exists(f"{DIRECTORY}/transactions")


def test_readers_see_what_is_committed_and_wait_before_what_is_open() -> None:
    log = open_log(MemoryFiles())
    for batch in (
        make_batch([b"plain"]),
        producer_batch(1, [b"a1", b"a2"]),
        producer_batch(2, [b"b1"]),
        make_batch([b"other"]),
        end(2, committed=False),
        producer_batch(3, [b"c1"]),
    ):
        log.append(batch)
    flush(log)
    assert (log.stable_offset, visible(log)) == (1, [b"plain"])
    log.append(end(1, committed=True))
    assert log.stable_offset == 1, "the marker may still be lost"
    flush(log)
    assert (log.stable_offset, visible(log)) == (6, [b"plain", b"a1", b"a2", b"other"])
    log.append(end(3, committed=True))
    flush(log)
    assert visible(log) == [b"plain", b"a1", b"a2", b"other", b"c1"]
    index = log.transactions
    assert index is not None
    assert [tuple(one) for one in index.aborted_between(0, 9)] == [(2, 3, 5)]
    assert list(index.aborted_between(6, 9)) == list(index.aborted_between(0, 3)) == []
    log.close()


def test_the_file_is_there_before_the_first_transaction_and_survives_any_stop() -> None:
    files = MemoryFiles()
    log = open_log(files, LogConfig(recovery_bytes=1 << 30))
    log.append(make_batch([b"plain"] * 10))
    log.append(producer_batch(1, [b"a"]))
    write(log)  # not synced, and no stop
    again = open_log(files)
    assert again.transactions is not None
    assert again.stable_offset == 10
    again.append(end(1, committed=False))
    flush(again)
    assert visible(again) == [b"plain"] * 10
    again.close()
    last = open_log(files)
    assert last.transactions is not None
    assert last.transactions.has_aborted
    assert visible(last) == [b"plain"] * 10
    last.close()


def test_transactions_behind_what_is_damaged_are_known(caplog: pytest.LogCaptureFixture) -> None:
    files, config = MemoryFiles(), LogConfig(index_interval_bytes=1)
    log = open_log(files, config)
    for number in range(6):
        log.append(producer_batch(1, [b"%d" % number]))
        log.append(end(1, committed=number % 2 == 0))
    flush(log)
    place = log.read_blocking(0, 1 << 20, before=5)
    log.close()
    file = files.open(f"{DIRECTORY}/00000000000000000000.log")
    file.pwritev([b"\xff"], sum(map(len, place)) - 1)  # in the third transaction
    files.open(f"{DIRECTORY}/transactions").pwritev([b"\xff"], 0)
    again = open_log(files, config)
    assert again.transactions is not None
    assert again.stable_offset == 12
    assert [(one.first_offset, one.last_offset) for one in again.transactions.aborted_between(6, 12)] == [
        (6, 7),
        (10, 11),
    ]
    assert len(caplog.records) == 2
    again.close()


def test_aborted_transactions_are_forgotten_with_their_records() -> None:
    files = MemoryFiles()
    config = LogConfig(segment_bytes=200)
    log = open_log(files, config)
    for producer in range(20):
        log.append(producer_batch(producer, [b"x" * 50]))
        log.append(end(producer, committed=False))
        flush(log)
        assert visible(log) == []
    log.delete_prefix(31)
    flush(log)
    log.close()
    again = open_log(files, config)
    assert again.transactions is not None
    assert [one.first_offset for one in again.transactions.aborted_between(0, 99)] == [30, 32, 34, 36, 38]
    again.close()


def test_transactions_that_have_ended_are_forgotten_though_nobody_reads() -> None:
    files = MemoryFiles()
    log = open_log(files)
    sizes = []
    for producer in range(100):
        log.append(producer_batch(producer, [b"x"]))
        log.append(end(producer, committed=True))
        flush(log)
        assert log.transactions is not None
        sizes.append(len(log.transactions.encode(log)))
    assert max(sizes) < 200
    log.close()


class Model:
    """All batches of a log: (base offset, producer or -1, values, None or how the marker ends it)."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, list[bytes], bool | None]] = []

    def cut(self, offset: int) -> None:
        self.batches = [one for one in self.batches if one[0] + max(len(one[2]), 1) <= offset]

    def visible(self, start: int, high: int) -> list[bytes]:
        stable, fate = high, {}
        first: dict[int, int] = {}
        for at, (base, producer, _, ends) in enumerate(self.batches):
            if producer < 0:
                continue
            if ends is None:
                first.setdefault(producer, at)
            elif producer in first and base < high:
                begun = first.pop(producer)
                fate.update({(producer, place): ends for place in range(begun, at)})
        for begun in first.values():
            stable = min(stable, self.batches[begun][0])
        return [
            value
            for at, (base, producer, values, ends) in enumerate(self.batches)
            if ends is None and start <= base < stable and fate.get((producer, at), True)
            for value in values
        ]


class Trial:
    """A log to which everything happens, and the model of it."""

    def __init__(self, dice: random.Random, flusher: LogFlusher) -> None:
        self.dice = dice
        self.model = Model()
        self._flusher = flusher
        self._files = MemoryFiles()
        self._config = LogConfig(segment_bytes=dice.choice([300, 3000]), recovery_bytes=dice.choice([1, 500, 1 << 30]))
        self._epoch = 0
        self._ended = 0
        self.log = self._opened(0)
        self._begin_epoch()

    def _opened(self, high_watermark: int) -> ReplicaLog:
        return ReplicaLog.open_replica(
            self._files, DIRECTORY, self._config, self._flusher,
            wall_clock_ms=lambda: TIME_MS, high_watermark=high_watermark,
        )  # fmt: skip

    def _begin_epoch(self) -> None:
        self._epoch += 1
        self.log.begin_epoch(self._epoch)

    async def settle(self) -> None:
        """All that was appended is written, and nothing is under way."""
        await self.log.wait_written(self.log.log_end_offset)
        await self._flusher.drain(self.log)

    def append(self, values: list[bytes]) -> None:
        producer = -1 if self.dice.random() < 0.3 else self.dice.randrange(4)
        self.model.batches.append((self.log.log_end_offset, producer, values, None))
        self.log.append(make_batch(values) if producer < 0 else producer_batch(producer, values))

    def end(self) -> None:
        producer, ends = self.dice.randrange(4), self.dice.random() < 0.5
        self.model.batches.append((self.log.log_end_offset, producer, [], ends))
        self.log.append(end(producer, committed=ends))

    async def advance(self) -> None:
        await self.settle()
        self.log.advance_high_watermark(self.dice.choice([one[0] for one in self.model.batches] or [0]))

    async def truncate(self, *, committed: bool) -> None:
        await self.settle()
        # Whose first records are deleted is not opened again: nobody could tell where it began.
        first = self._ended if committed else self.log.high_watermark
        offset = self.dice.randrange(first, self.log.log_end_offset + 1)
        await (self.log.truncate_committed(offset) if committed else self.log.truncate(offset))
        self.model.cut(self.log.log_end_offset)
        self._begin_epoch()

    async def delete_prefix(self) -> None:
        await self.settle()
        log = self.log
        bases = [one[0] for one in self.model.batches if log.log_start_offset <= one[0] <= log.stable_offset]
        self._ended = log.high_watermark
        log.delete_prefix(self.dice.choice(bases or [0]))
        await self.settle()

    async def restart(self) -> None:
        """A clean stop, or none."""
        await self.settle()
        high_watermark = self.log.high_watermark
        if self.dice.random() < 0.5:
            self.log.close()
        self.log.closed = True
        self.log = self._opened(self.dice.choice([high_watermark, self.log.log_start_offset]))
        if self.log.high_watermark < high_watermark:
            self.log.advance_high_watermark(high_watermark)
        self._begin_epoch()


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_happens_to_the_log_readers_see_what_the_model_says(seed: int) -> None:
    """Appends, markers, watermarks, truncations, deleted prefixes and restarts, clean or not."""
    dice = random.Random(seed)
    async with trio.open_nursery() as nursery:
        flusher = LogFlusher()
        await nursery.start(flusher.run)
        trial = Trial(dice, flusher)
        for step in range(300):
            action = dice.random()
            if action < 0.4:
                trial.append([b"%d-%d" % (step, number) for number in range(dice.randrange(1, 4))])
            elif action < 0.6:
                trial.end()
            elif action < 0.85:
                await trial.advance()
            elif action < 0.92:
                await trial.truncate(committed=action >= 0.9)
            elif action < 0.94:
                await trial.delete_prefix()
            else:
                await trial.restart()
            log = trial.log
            if log.written_offset >= log.high_watermark:
                assert visible(log) == trial.model.visible(log.log_start_offset, log.high_watermark), step
        trial.log.close()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("place", [17, 21, 22, 30, 45, 50, 58, 61, 67, 70, MARKER_BYTES - 1])
def test_a_transaction_ends_where_its_marker_lies_though_a_bit_of_that_has_flipped(
    place: int, is_committed: bool
) -> None:
    """But one that says where the next batch begins, which is behind the next entry of the index then."""
    files = MemoryFiles()
    log = open_log(files)
    log.append(producer_batch(1, [b"first"]))
    log.append(end(1, committed=is_committed))
    log.append(producer_batch(1, [b"second"]))
    log.append(end(1, committed=not is_committed))
    flush(log)
    position = len(log.read_blocking(0, 1, before=1)[0]) + place
    log.close()
    file = files.open(f"{DIRECTORY}/00000000000000000000.log")
    (byte,) = file.pread(1, position)
    file.pwritev([bytes([byte ^ 1 << place % 8])], position)
    files.remove(f"{DIRECTORY}/transactions")
    files.open(f"{DIRECTORY}/transactions").pwritev([b"\xff"], 0)
    again = open_log(files)
    assert again.transactions is not None
    assert again.stable_offset == 4
    aborted = (2, 3) if is_committed else (0, 1)
    assert [tuple(one) for one in again.transactions.aborted_between(0, 4)] == [(1, *aborted)]
    again.close()
