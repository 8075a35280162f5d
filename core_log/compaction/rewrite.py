"""The second pass: segments written again without the records that have a successor.

1. A batch of which everything stays is copied as it is; one of which something goes keeps its offsets, its times, its
   codec, its headers and its place: what stays are the bytes of the records, moved together. Its largest timestamp is
   that of a record that is still there.
2. Of a batch of which nothing stays there is nothing left, unless it is the last of a producer that may come back:
   then its header stays, and says which sequence number is next. Or the last of an epoch: a replica that is made from
   what is left would take the records of an epoch of which it has nothing for records that its leader does not have.
3. A tombstone stays until a pass has dropped all that was before it, and `delete_retention_ms` have passed since.
4. A control batch that says "committed" goes like a tombstone, once no data of its transaction is there. One that says
   "aborted" stays: readers who are told of the transaction wait for it. So does the last of an epoch.
5. Nothing is written as long as nothing has changed. A single segment in which nothing changes stays what it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import compress as compressed_by
from typing import NamedTuple

from core_log.batch_header import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    encode_batch,
    parse_header,
)
from core_log.checkpoint import TEMPORARY_SUFFIX
from core_log.compaction.batches import Pause, read_batches
from core_log.compaction.key_map import KeyMap, runs
from core_log.compaction.records import bounds, payload, read_keys, timestamp_delta
from core_log.compaction.survey import Survey
from core_log.compression import Compression, compress
from core_log.errors import CorruptBatch
from core_log.files import File, Files
from core_log.log_config import LogConfig
from core_log.segment import RELATIVE_OFFSET_MAX, Segment
from core_log.segment_index import NO_TIMESTAMP_MS, SegmentIndex
from core_log.segment_names import SegmentName

_WRITE_BYTES = 1 << 20


@dataclass(slots=True)
class Filter:
    """What stays, batch by batch, in the order of the log."""

    keys: KeyMap
    survey: Survey
    tombstones_before: int
    """Tombstones below go."""
    producers_since_ms: int
    """Producers that have sent nothing since are forgotten."""
    decompressed_bytes_max: int
    epoch_ends: Collection[int]
    """Where epochs end, and the log."""
    tombstones_left: bool = False
    """There are some that will have to go."""
    dropped_records: int = 0
    _open: set[int] = field(default_factory=set)
    """Producers of whose transaction there was data, and no control batch since."""

    def keep(self, header: BatchHeader, batch: bytes) -> bytes:
        """What is left of a batch: the same object if all of it is; nothing if it is empty."""
        if header.is_control:
            return batch if self._keeps_control(header) or header.next_offset in self.epoch_ends else b""
        if header.producer_id >= 0 and header.attributes & TRANSACTIONAL_BIT:
            self._open.add(header.producer_id)
        if header.base_offset >= self.keys.end or header.base_offset in self.keys.opaque:
            return batch
        if self.survey.is_aborted(header):
            flags = bytes(header.record_count)
        elif header.record_count:
            try:
                flags, place = self._flags(header, batch)
                if 0 not in flags:
                    return batch
                if 1 in flags:
                    left = _without(header, *(place or payload(batch, header, self.decompressed_bytes_max)), flags)
                    self.dropped_records += flags.count(0)
                    return left
            except CorruptBatch:
                return batch
        else:
            flags = b""
        if not self._is_last(header) and header.next_offset not in self.epoch_ends:
            self.dropped_records += len(flags)
            return b""
        return _emptied(header) if flags else batch

    def _flags(self, header: BatchHeader, batch: bytes) -> tuple[bytes, tuple[bytes, int] | None]:
        """A byte for each record, 1 if it stays; and where the records are, if they had to be looked at."""
        keys, base = self.keys, header.base_offset
        is_new = base >= keys.first
        live = bytes(keys.live[base - keys.first : header.next_offset - keys.first]) if is_new else b""
        if is_new and header.record_count == len(live):
            return live, None
        place = payload(batch, header, self.decompressed_bytes_max)
        found = read_keys(*place, header)
        if is_new:
            return bytes(live[delta] for delta in found.deltas), place
        flags = keys.survives(found.keys, found.deltas, base)
        if found.tombstones and header.next_offset <= self.tombstones_before:
            changed = bytearray(flags)
            for index in found.tombstones:
                changed[index] = 0
            flags = bytes(changed)
        elif found.tombstones:
            self.tombstones_left = self.tombstones_left or any(flags[index] for index in found.tombstones)
        return flags, place

    def _keeps_control(self, header: BatchHeader) -> bool:
        had_data = header.producer_id in self._open
        self._open.discard(header.producer_id)
        return had_data or header.next_offset > self.tombstones_before or self.survey.aborts(header)

    def _is_last(self, header: BatchHeader) -> bool:
        return (
            header.producer_id >= 0
            and self.survey.last_data.get(header.producer_id) == header.base_offset
            and header.max_timestamp_ms >= self.producers_since_ms
        )


def left_of(header: BatchHeader, batch: bytes, flags: bytes, decompressed_bytes_max: int) -> bytes:
    """A batch of those of its records that are flagged with 1; the others leave gaps. Raises CorruptBatch."""
    if 1 not in flags:
        return _emptied(header)
    return _without(header, *payload(batch, header, decompressed_bytes_max), flags)


def _without(header: BatchHeader, data: bytes, at: int, flags: bytes) -> bytes:
    """A batch of the records that are flagged."""
    places = bounds(data, at, header.record_count)
    largest_ms = header.max_timestamp_ms
    if not header.attributes & TIMESTAMP_TYPE_BIT and largest_ms != header.base_timestamp_ms:
        kept = compressed_by(places, flags)
        largest_ms = header.base_timestamp_ms + max(timestamp_delta(data, start, places[-1]) for start in kept)
    records = b"".join([data[places[start] : places[stop]] for start, stop in runs(flags)])
    if header.compression:
        records = compress(Compression(header.compression), records)
    return encode_batch(header._replace(record_count=flags.count(1), max_timestamp_ms=largest_ms), records)


def _emptied(header: BatchHeader) -> bytes:
    return encode_batch(header._replace(attributes=header.attributes & ~COMPRESSION_MASK, record_count=0), b"")


class _Writer:
    """The file of a new segment, under its temporary name until it is put in place."""

    def __init__(self, files: Files, segment: Segment) -> None:
        self.files, self.segment = files, segment
        self.path = segment.log_path + TEMPORARY_SUFFIX
        self._file: File | None = None
        self._buffers: list[bytes] = []
        self._pending_bytes = 0
        self._position = 0

    @property
    def began(self) -> bool:
        """Whether anything is to be written."""
        return self._file is not None

    def begin(self, source: Segment, size: int, pause: Pause) -> None:
        """Write, from the first `size` bytes of another segment on, which were noted already."""
        file = self.files.open(source.log_path, create=False)
        try:
            self._file = self.files.open(self.path)
            self._file.truncate(0)
            while self._position < size:
                data = file.pread(min(_WRITE_BYTES, size - self._position), self._position)
                if not data:
                    raise CorruptBatch(f"{source.log_path} has become shorter")
                self._position += self._file.pwritev([data], self._position)
                pause()
        finally:
            file.close()

    def add(self, batch: bytes) -> None:
        """The next batch."""
        self._buffers.append(batch)
        self._pending_bytes += len(batch)
        if self._pending_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        assert self._file is not None
        self._position += self._file.pwritev(self._buffers, self._position)
        self._buffers, self._pending_bytes = [], 0

    def finish(self, name: SegmentName) -> None:
        """Write and sync all, indexes too; it has the name from then on."""
        assert self._file is not None
        segment = self.segment
        self._write()
        self._file.sync()
        self.close()
        segment.stem = f"{self.path.rpartition('/')[0]}/{name}"
        segment.save_index(self.files, segment.stem)
        segment.index = None
        segment.written_bytes = segment.size

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Rewritten(NamedTuple):
    """How many segments were read, and what is to stand for them; None: they stay what they are."""

    taken: int
    segment: Segment | None
    temporary: str
    """What its `.log` is called until it is put in place."""


def rewrite(
    files: Files,
    directory: str,
    candidates: Sequence[tuple[Segment, int]],
    generation: int,
    config: LogConfig,
    kept: Filter,
    pause: Pause,
) -> Rewritten:
    """What is left of some of these neighbours, at least one, as one segment, complete and synced. `candidates` are
    segments and where the one behind each begins. Another one is joined as long as it is sure to fit. Blocks.

    Raises CorruptBatch, OSError; then nothing is left behind.
    """
    base = candidates[0][0].base_offset
    segment = Segment(directory, SegmentName(base, base, generation), config.index_interval_bytes, SegmentIndex())
    writer = _Writer(files, segment)
    taken = 0
    try:
        for source, end in candidates:
            if taken and (segment.size + source.size > config.segment_bytes or end - base > RELATIVE_OFFSET_MAX):
                break
            if taken and not writer.began:
                before = candidates[taken - 1][0]
                writer.begin(before, before.written_bytes, pause)
            _filter(source, writer, kept, pause)
            taken += 1
        if not writer.began:
            return Rewritten(taken, None, "")
        writer.finish(SegmentName(base, candidates[taken - 1][1], generation))
        return Rewritten(taken, segment, writer.path)
    except BaseException:
        writer.close()
        remove_unfinished(files, Rewritten(taken, segment, writer.path))
        raise


def _filter(source: Segment, writer: _Writer, kept: Filter, pause: Pause) -> None:
    file = writer.files.open(source.log_path, create=False)
    try:
        for header, position, chunk, at in read_batches(file, source, source.written_bytes, pause):
            batch = chunk[at : at + header.size]
            left = kept.keep(header, batch)
            if left is not batch and not writer.began:
                writer.begin(source, position, pause)
            if left:
                if writer.began:
                    writer.add(left)
                # A header alone has no time that anybody could look for.
                largest_ms = header.max_timestamp_ms if left is batch else parse_header(left).max_timestamp_ms
                is_empty = len(left) == HEADER_BYTES
                latest_ms = NO_TIMESTAMP_MS if is_empty else largest_ms
                writer.segment.note(header.base_offset, header.next_offset, len(left), latest_ms)
    finally:
        file.close()


def remove_unfinished(files: Files, made: Rewritten) -> None:
    """Remove the files of what never was put in place. What cannot be removed goes with the next start."""
    assert made.segment is not None
    for path in (made.temporary, *(made.segment.stem + suffix for suffix in (".log", ".index", ".timeindex"))):
        try:
            files.remove(path)
        except OSError:
            pass
