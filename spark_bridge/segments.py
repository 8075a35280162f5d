"""Record batches from the files of a log, for readers on the broker's machine: `read.mode=direct`.

1. The broker says what there is to read, as always: ranges end at its high watermark, or before the first transaction
   that is open. The files are only a shorter way to what it would send.
2. Whatever is not plain is asked of the broker: batches of transactions and their markers, the first batch of a range
   (which also shows that the directory is that of this broker's topic), files that are not there, not yet written or
   replaced meanwhile, and gaps. So the answers are the same.
3. In a cluster the files may be those of a broker that led, ended and has not heard yet what was decided without it.
   Logs that have one batch in common, at its offset and of its epoch, are the same before it: so the last batch of a
   range is compared as well.
4. A file that is open stays readable when retention or compaction removes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from core_log.batch_header import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT, parse_header, size_of, validate
from core_log.errors import CorruptBatch
from core_log.segment_names import LOG_SUFFIX, SegmentName, effective

READ_BYTES = 1 << 20
_NOT_PLAIN = TRANSACTIONAL_BIT | CONTROL_BIT

Fetched = Callable[[int, int], list[memoryview]]
"""Whole batches from an offset on, of so many bytes and at least one, from the broker; none when there is no more."""


def directory_of(data_dir: str, topic: str, partition: int) -> Path | None:
    """Where the files of a partition are, if they can be read here."""
    topics = Path(data_dir, "topics")
    plain = topics / f"{topic}-{partition}"
    found = [plain] if plain.is_dir() else [one for one in topics.glob("*.*") if one.stem == plain.name]
    return found[0] if len(found) == 1 and os.access(found[0], os.R_OK | os.X_OK) else None


def read_directly(directory: Path, start: int, end: int, fetched: Fetched, fetch_bytes: int) -> Iterator[memoryview]:
    """The batches that hold [start, end). `fetched` may raise."""
    offset, size = start, 1
    first: memoryview | None = None
    agrees: bool | None = None
    while offset < end:
        batches = fetched(offset, size)
        if not batches:
            return
        for batch in batches:
            yield batch
            offset = parse_header(batch).next_offset
        first, size = first or batches[0], fetch_bytes
        if agrees is None and offset < end:
            last = fetched(end - 1, 1)
            agrees = bool(last) and _has(directory, last[0])
        if not agrees:
            continue
        for batch in _plain(directory, offset, end, first):
            yield batch
            offset = parse_header(batch).next_offset
            first = batch


def _plain(directory: Path, offset: int, end: int, known: memoryview) -> Iterator[memoryview]:
    """Batches from the files, as long as all is plain. `known` is one that the broker has sent, or that was found."""
    try:
        if not _has(directory, known):
            return
        segments, _ = effective(os.listdir(directory))
        at = offset
        for number, segment in enumerate(segments):
            follows = segments[number + 1].base_offset if number + 1 < len(segments) else None
            if (follows is not None and follows <= at) or segment.base_offset > at:
                continue
            for batch in _of_segment(directory, segment, at):
                header = validate(batch, may_be_empty=True)
                if header.attributes & _NOT_PLAIN or header.base_offset > at:
                    return
                yield batch
                at = header.next_offset
                if at >= end:
                    return
    except (OSError, CorruptBatch):
        return


def _has(directory: Path, known: memoryview) -> bool:
    """Whether these are the files of the log that the batch is from."""
    base = parse_header(known).base_offset
    try:
        segments, _ = effective(os.listdir(directory))
        within = [one for one in segments if one.base_offset <= base]
        found = next(_of_segment(directory, within[-1], base), None) if within else None
    except (OSError, CorruptBatch):
        return False
    return found is not None and found[:HEADER_BYTES] == known[:HEADER_BYTES]


def _of_segment(directory: Path, segment: SegmentName, offset: int) -> Iterator[memoryview]:
    """The whole batches of a segment from the one on that holds an offset."""
    with open(directory / f"{segment}{LOG_SUFFIX}", "rb", buffering=0) as file:
        position = _position(directory, segment, offset)
        while True:
            data = memoryview(os.pread(file.fileno(), READ_BYTES, position))
            at = 0
            while len(data) - at >= HEADER_BYTES:
                size = size_of(data, at)
                if size < HEADER_BYTES:
                    return
                if len(data) - at < size:
                    break
                if parse_header(data, at).next_offset > offset:
                    yield data[at : at + size]
                at += size
            if not at:
                large = size_of(data) if len(data) >= HEADER_BYTES else 0
                data = memoryview(os.pread(file.fileno(), large, position)) if large > READ_BYTES else data
                if not large or len(data) < large:
                    return
                if parse_header(data).next_offset > offset:
                    yield data
                at = large
            position += at


def _position(directory: Path, segment: SegmentName, offset: int) -> int:
    """Where to begin to look for an offset, by the index of the segment."""
    try:
        data = (directory / f"{segment}.index").read_bytes()
    except OSError:
        return 0
    entries = np.frombuffer(data, ">u4", len(data) // 8 * 2).reshape(-1, 2)
    number = int(np.searchsorted(entries[:, 0], offset - segment.base_offset, side="right"))
    return int(entries[number - 1, 1]) if number else 0
