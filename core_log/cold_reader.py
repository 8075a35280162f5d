"""Reading behind the tail cache: from the files, in a thread, safe against everything the event loop does meanwhile.

1. A read opens the segment's file itself and never shares a handle. When the file has gone because its prefix was
   deleted, the offset is out of range; when another segment stands for it, compacted, that is read. There are no other
   races, since the bytes of a written file never change.
2. One `pread` of about the size asked for, at the position the sparse index names, instead of many small ones. What is
   handed on are views of what it gave, not copies.
3. Every batch that is handed on is checked, CRC included, and that it is of this segment: a damaged one raises
   CorruptBatch with file and position. Of what lies between an index entry and the offset the headers lead the way.
4. Who looks for something (`containing.py`) is given the batches that may have it. They are looked at in slices of a
   millisecond or less, between which the event loop has its turn, and no more than `LOOKED_BYTES_MAX`, or less for many
   strings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from core_log import key_index, threads
from core_log.batch_header import HEADER_BYTES, parse_header
from core_log.containing import LOOKED_BYTES_MAX, Groups, containing
from core_log.errors import CorruptBatch, OffsetOutOfRange
from core_log.files import BytesLike, File
from core_log.noticing import noticed, noticing
from core_log.record_decoder import decode_columns
from core_log.segment import BatchPlace, Segment, check_batch, scan
from core_log.segment_index import NO_TIMESTAMP_MS, SegmentIndex
from core_log.transaction_marker import stand_in

if TYPE_CHECKING:
    from core_log.readable_log import ReadableLog

READ_BYTES_MIN = 64 << 10
READ_BYTES_MAX = 8 << 20
THREADS_MAX = 8
LOOK_BYTES = 1 << 20
"""So many bytes are looked through for one string at a time, and about so many are found at a time."""
_ATTEMPTS = 10
"""So often a read finds its files gone, compacted, before that is taken for a fault."""

T = TypeVar("T")


class Looked(NamedTuple):
    """What was found, and how many bytes of batches were looked at for that."""

    batches: list[BytesLike]
    looked_bytes: int


_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("cold_reader_limiter")


async def in_thread(work: Callable[[], T]) -> T:
    """Run a blocking read in a thread; at most `THREADS_MAX` at a time. A cancelled caller does not wait for it."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(THREADS_MAX)
        _limiter.set(limiter)
    return await threads.in_thread(work, limiter=limiter, abandon_on_cancel=True)


def read_batches(log: ReadableLog, offset: int, max_bytes: int, limit: int) -> list[BytesLike]:
    """Batches from the one that holds `offset`, below `limit`, which is at most the written offset.

    Raises OffsetOutOfRange, CorruptBatch, OSError.
    """
    with noticing(log):
        for _ in range(_ATTEMPTS):
            try:
                return _read(log, offset, max_bytes, limit)
            except FileNotFoundError as error:
                if offset < log.log_start_offset:
                    raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset) from None
                gone = error
        raise gone


def read_containing(log: ReadableLog, offset: int, max_bytes: int, limit: int, groups: Groups) -> Looked:
    """The batches that may have what `groups` look for (`containing.py`), as `read_batches`, of about `max_bytes` that
    are looked at. If the last of those is left out a control batch stands in its place, so that readers go on there.
    """
    found: list[BytesLike] = []
    last: BytesLike = b""
    end: BytesLike
    looked = size = 0
    strings = max(sum(map(len, groups)), 1)
    most = min(max_bytes, LOOKED_BYTES_MAX, max(2 * LOOKED_BYTES_MAX // strings, READ_BYTES_MIN))
    each = max(LOOK_BYTES // strings, READ_BYTES_MIN)
    wanted = key_index.hashes_of(groups) if log.config.key_index else []
    while not looked or (looked < most and size < LOOK_BYTES):
        try:
            step = _indexed(log, offset, limit, wanted, LOOK_BYTES - size) if wanted else None
            if step is not None:
                batches, end = step
                read_bytes = sum(map(len, batches), len(end))
            else:
                batches = read_batches(log, offset, min(each, most - looked), limit)
                read_bytes = sum(map(len, batches))
                end = batches[-1] if batches else b""
            if offset < log.log_start_offset:  # deleted meanwhile: what was read may lie behind a gap
                raise OffsetOutOfRange(offset, log.log_start_offset, log.log_end_offset)
        except (OffsetOutOfRange, CorruptBatch):
            if not looked:
                raise
            break  # the next read begins with it
        if step is None and (not batches or (looked and read_bytes > most - looked)):
            break
        last = end
        kept = containing(batches, groups) if batches else []
        if len(kept) < len(batches):
            kept = [bytes(batch) for batch in kept]  # who keeps them does not keep what is left out
        found += kept
        size += sum(map(len, kept))
        looked += read_bytes
        offset = parse_header(last).next_offset
    if last and (not found or parse_header(found[-1]).next_offset < offset):
        found.append(stand_in(parse_header(last)))
    return Looked(found, looked)


def _indexed(
    log: ReadableLog, offset: int, limit: int, wanted: Sequence[set[int]], bytes_max: int
) -> tuple[list[BytesLike], BytesLike] | None:
    """What the index of keys has; None where it has nothing to say."""
    try:
        step = key_index.step(log, offset, limit, wanted, bytes_max)
    except OSError:
        return None  # gone meanwhile, or it cannot be read: a look at the log itself tells
    return None if step is None else (list(step.batches), step.last)


def _read(log: ReadableLog, offset: int, max_bytes: int, limit: int) -> list[BytesLike]:
    segments = log.segments_from(offset)
    for at, segment in enumerate(segments):
        if segment.base_offset >= limit:
            break
        following = segments[at + 1].base_offset if at + 1 < len(segments) else None
        batches = _read_segment(log, segment, offset, max_bytes, limit, following)
        if batches:
            return batches
    return []


def _read_segment(
    log: ReadableLog, segment: Segment, offset: int, max_bytes: int, limit: int, following: int | None
) -> list[BytesLike]:
    end = segment.written_bytes
    if following is None:
        following = max(log.log_end_offset, limit)  # asked after that: an offset counts before its batch is written
    file = log.files.open(segment.log_path, create=False)
    try:
        position = segment.position_of(log.files, file, offset) if offset > segment.base_offset else 0
        # What is skipped to reach the offset is about an index interval.
        size = min(max(max_bytes, READ_BYTES_MIN) + segment.interval_bytes, READ_BYTES_MAX)
        while position < end:
            wanted = min(size, end - position)
            data = file.pread(wanted, position)
            batches, at, is_over = _batches_of(segment, data, position, offset, max_bytes, limit, following)
            if batches or is_over:
                return batches
            if not at:
                there = end - position if len(data) == wanted else len(data)  # a file that was cut has no more
                size = _size_of_first(segment, data, position, there)
            position += at
        return []
    finally:
        file.close()


def bytes_at(log: ReadableLog, offset: int, size: int) -> bytes:
    """What lies where the batch with an offset begins, however damaged that is; nothing if its file is gone.

    Raises OSError.
    """
    segment = log.segments_from(offset)[0]
    try:
        file = log.files.open(segment.log_path, create=False)
    except FileNotFoundError:
        return b""
    try:
        position = segment.position_of(log.files, file, offset)
        try:
            for place in scan(file, segment.log_path, position, segment.written_bytes, check_crc=False):
                if place.next_offset > offset:
                    break
                position += place.size
        except CorruptBatch:
            pass  # at this position
        return file.pread(size, position)
    finally:
        file.close()


def _batches_of(
    segment: Segment, data: bytes, position: int, offset: int, max_bytes: int, limit: int, following: int
) -> tuple[list[BytesLike], int, bool]:
    """The batches in bytes of a segment, up to where they were looked at, and whether what follows is not wanted."""
    view = memoryview(data)
    batches: list[BytesLike] = []
    total = 0
    at = _passed_over(segment, data, position, offset, following)
    is_over = False
    while len(data) - at >= HEADER_BYTES:
        try:
            batch_bytes, _, next_offset, _ = _check(segment, data, position, at, following)
        except CorruptBatch:
            if batches:
                break  # what is whole before the damage; the next read begins with it
            raise
        if batch_bytes > len(data) - at or (batches and total + batch_bytes > max_bytes):
            break
        if next_offset > limit:
            is_over = True
            break
        batches.append(view[at : at + batch_bytes])
        total += batch_bytes
        at += batch_bytes
    if total < len(data) // 2:
        # Whoever keeps them keeps little more than their size.
        batches = [bytes(batch) for batch in batches]
    return batches, at, is_over


def _passed_over(segment: Segment, data: bytes, position: int, offset: int, following: int) -> int:
    """Where in bytes of a segment the first batch begins that ends behind an offset. Of those before it only the
    headers are looked at: what is damaged there keeps nobody from what follows.
    """
    at = 0
    while len(data) - at >= HEADER_BYTES:
        batch_bytes, _, next_offset, _ = _check(segment, data, position, at, following, check_crc=False)
        if next_offset > offset or batch_bytes > len(data) - at:
            break
        at += batch_bytes
    return at


def _check(
    segment: Segment, data: bytes, position: int, at: int, following: int, *, check_crc: bool = True
) -> tuple[int, int, int, int]:
    try:
        found = check_batch(data, at, len(data), check_crc)
        if not segment.base_offset <= found[1] < found[2] <= following:
            raise CorruptBatch(f"offsets {found[1]} to {found[2] - 1} in another segment than theirs")
    except CorruptBatch as error:
        raise CorruptBatch(f"{segment.log_path} at position {position + at}: {error}") from None
    return found


def _size_of_first(segment: Segment, data: bytes, position: int, there: int) -> int:
    """How much to read for the batch `data` begins with, of which it holds only a part; so many bytes are there."""
    size = check_batch(data, 0, len(data))[0] if len(data) >= HEADER_BYTES else there + 1
    if size > there or size <= len(data):
        raise CorruptBatch(f"{segment.log_path} at position {position}: batch of {size} bytes in {there}")
    return size


def find_timestamp(log: ReadableLog, timestamp_ms: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record with a timestamp >= `timestamp_ms`, below the high watermark.

    Raises CorruptBatch, OSError.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _find_timestamp(log, timestamp_ms)
        except FileNotFoundError as error:
            gone = error
    with noticing(log):
        raise gone


def _find_timestamp(log: ReadableLog, timestamp_ms: int) -> tuple[int, int] | None:
    limit = log.high_watermark
    start = log.log_start_offset
    for segment in log.segments_from(start):
        if segment.base_offset >= limit:
            break
        if segment.largest_timestamp_ms(log.files, checked=True) < timestamp_ms:
            continue
        offset = max(segment.offset_before(log.files, timestamp_ms), start)
        file = log.files.open(segment.log_path, create=False)
        try:
            position = segment.position_of(log.files, file, offset)
            found = _find_in_segment(log, file, segment, position, timestamp_ms, limit)
        finally:
            file.close()
        if found is not None:
            return found
    return None


def _find_in_segment(
    log: ReadableLog, file: File, segment: Segment, position: int, timestamp_ms: int, limit: int
) -> tuple[int, int] | None:
    start = log.log_start_offset
    end = segment.written_bytes
    places = scan(file, segment.log_path, position, end, check_crc=False, piece_bytes=READ_BYTES_MIN)
    for place in noticed(log, places):
        if place.next_offset > limit:
            break
        if place.max_timestamp_ms < timestamp_ms or place.next_offset <= start:
            continue
        with noticing(log):
            (_,) = scan(file, segment.log_path, place.position, place.position + place.size)
        columns = decode_columns(file.pread(place.size, place.position))
        for offset, found_ms in zip(columns.offsets, columns.timestamps_ms):
            if found_ms >= timestamp_ms and offset >= start:
                return offset, found_ms
    return None


def verify(log: ReadableLog) -> list[str]:
    """See `PartitionLog.verify`."""
    problems = []
    segments = log.segments_from(log.log_start_offset)
    ends = [*(segment.base_offset for segment in segments[1:]), log.log_end_offset]
    for segment, end in zip(segments, ends):
        if segment.missing:
            problems.append(f"{segment.log_path} is missing")
        if not segment.written_bytes:
            continue
        try:
            file = log.files.open(segment.log_path, create=False)
        except OSError as error:
            problems.append(f"{segment.log_path}: {error}")
            continue
        try:
            index = segment.index or SegmentIndex.of_closed(log.files, segment.stem)
            places = scan(file, segment.log_path, 0, segment.written_bytes, expected=segment.base_offset)
            problems += _verify_index(segment, index, _in_order(log, file, _within(segment, places, end)))
        except (CorruptBatch, OSError) as error:
            problems.append(str(error))
        finally:
            file.close()
    return problems


def _within(segment: Segment, places: Iterable[BatchPlace], end: int) -> Iterator[BatchPlace]:
    """Those places, of which none reaches beyond where the next segment begins: no CRC covers an offset."""
    for place in places:
        if place.next_offset > end:
            offsets = f"offsets {place.base_offset} to {place.next_offset - 1}"
            raise CorruptBatch(
                f"{segment.log_path} at position {place.position}: {offsets} in another segment than theirs"
            )
        yield place


def _in_order(log: ReadableLog, file: File, places: Iterable[BatchPlace]) -> Iterator[BatchPlace]:
    """Those places, whose leader epochs do not fall and are of those that the log knows: no CRC covers them either.
    Of what is deleted it need not know any.
    """
    before = -1
    for place in places:
        if place.next_offset <= log.log_start_offset:
            yield place
            continue
        epoch = parse_header(file.pread(HEADER_BYTES, place.position)).leader_epoch
        if not before <= epoch <= log.leader_epoch:
            raise CorruptBatch(
                f"{log.directory} at offset {place.base_offset}: leader epoch {epoch} after {before}, "
                f"and the log's is {log.leader_epoch}"
            )
        before = epoch
        yield place


def _verify_index(segment: Segment, index: SegmentIndex, places: Iterable[BatchPlace]) -> Iterator[str]:
    """What is wrong with the entries of both kinds that `segment_index.py` knows."""
    base, end = segment.base_offset, segment.written_bytes
    entries = list(zip(index.offsets, index.positions))
    times = list(zip(index.times, index.time_offsets))
    at = time_at = 0
    largest_ms = NO_TIMESTAMP_MS
    for place in places:
        while at < len(entries) and entries[at][1] <= place.position:
            offset, position = entries[at]
            if position < place.position or base + offset not in (place.base_offset, place.next_offset - 1):
                yield f"{segment.stem}.index points offset {base + offset} to {position}"
            at += 1
        while time_at < len(times) and base + times[time_at][1] < place.next_offset:
            if times[time_at][0] < largest_ms:
                yield f"{segment.stem}.timeindex has {times[time_at][0]} for offset {base + times[time_at][1]}"
            time_at += 1
        if place.size > HEADER_BYTES:  # a header that compaction left has no time that anybody could look for
            largest_ms = max(largest_ms, place.max_timestamp_ms)
    for offset, position in entries[at:]:
        if position < end:
            yield f"{segment.stem}.index points offset {base + offset} to {position}"
