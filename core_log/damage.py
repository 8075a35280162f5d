"""Damage in the files of a small log: telling it from the torn tail of an unclean stop, and going on without it.

A log that is opened is cut at the first batch that is not whole (`recovery.py`): after an unclean stop that is its torn
tail. Cutting is wrong where the bytes had been synced, for then something else than the stop has changed them, and what
follows them is good. `find_damage` says so before anything is cut. It takes as damage what is not whole and

1. lies below the recovery point or in a segment that has a successor, which was synced before that got a byte;
2. or is followed by a whole batch that was appended when it was durable, or does not say (`keyed_store.py`, rule 5):
   a loss of power may leave what was written later and not what was written before;
3. or has all of its bytes: a write that did not end leaves too few of them, or blocks of zeros.

In doubt it is damage. Files are read whole: this is for stores (`keyed_store.py`), whose records may stand in any
place, not for logs of many gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from core_log.batch_header import CRC_START, HEADER, HEADER_BYTES, LENGTH_START, MAGIC, parse_header
from core_log.errors import CorruptBatch
from core_log.files import Files, free_name, read_file
from core_log.flush_job import RecoveryPoint, emptied, load_log_start
from core_log.segment import RELATIVE_OFFSET_MAX, check_batch
from core_log.segment_names import SegmentName

ASIDE = "damaged"
"""The directory for what was damaged, as it was."""
_BASE_OFFSET = Struct(">q")
_CRC = Struct(">I")
_CRC_FIELD = 17
_MAGIC_FIELD = 16
_BLOCK_BYTES = 512
"""What a disk writes whole or not at all."""


class Damage(NamedTuple):
    """The first damage of a log: where, what, and how many whole batches follow it."""

    path: str
    position: int
    reason: str
    whole_batches_after: int

    def __str__(self) -> str:
        return (
            f"{self.path} is damaged at position {self.position} ({self.reason}), "
            f"{self.whole_batches_after} whole batches follow"
        )


def find_damage(files: Files, directory: str) -> Damage | None:
    """The first damage of the log in `directory`; None for a torn tail, too. Changes nothing. Raises OSError."""
    bases = _bases(files, directory)
    point = RecoveryPoint.load(files, directory)
    start = load_log_start(files, directory)
    if bases and bases[0] > start:
        return Damage(f"{directory}/{SegmentName(start)}.log", 0, "it is missing", _count(files, directory, bases))
    if point is not None and point.position and point.segment_base not in bases:
        path = f"{directory}/{SegmentName(point.segment_base)}.log"
        return Damage(path, 0, "it is missing", _count(files, directory, bases))
    for name in emptied(files, directory, map(SegmentName, bases), point):
        return Damage(f"{directory}/{name}.log", 0, "it is empty", _count(files, directory, bases))
    for base in point.missing([SegmentName(base) for base in bases], start) if point is not None else ():
        return Damage(f"{directory}/{SegmentName(base)}.log", 0, "it is missing", _count(files, directory, bases))
    for index, base in enumerate(bases):
        path = f"{directory}/{SegmentName(base)}.log"
        data = read_file(files, path)
        synced_bytes, synced_end = 0, base
        if point is not None and point.segment_base == base:
            synced_bytes, synced_end = point.position, point.next_offset
        end, expected, reason = _first_fault(data, base, synced_bytes, synced_end)
        later = bases[index + 1 :]
        if end == len(data) and end >= synced_bytes:
            continue
        behind = [(position, first) for position, _, first, _ in _whole_batches(data, end + 1)]
        superseded = bool(later) or (point is not None and base < point.segment_base)
        if superseded or end < synced_bytes or not _is_lost_end(data, end, expected, behind):
            whole = len(behind) + _count(files, directory, later)
            return Damage(path, end, reason or f"{synced_bytes - end} synced bytes are missing", whole)
    return None


def repair(files: Files, directory: str, aside: str) -> None:
    """Leave of the log in `directory` what is whole, after copying all its files to the directory `aside`.

    A batch whose offset cannot be right gets the next one. A crash in between leaves a log that can be repaired again.
    Raises OSError.
    """
    files.make_directory(aside)
    for name in files.list(directory):
        _write(files, f"{aside}/{name}", read_file(files, f"{directory}/{name}"))
    files.sync_directory(aside)
    bases = _bases(files, directory)
    for name in files.list(directory):
        if not name.endswith(".log") and name not in ("log-start", "leader-epochs"):
            files.remove(f"{directory}/{name}")
    files.sync_directory(directory)
    for base, following in zip(bases, [*bases[1:], 1 << 62]):
        path = f"{directory}/{SegmentName(base)}.log"
        data = read_file(files, path)
        expected, limit = base, min(following, base + RELATIVE_OFFSET_MAX)
        kept: list[bytes] = []
        for position, size, first, after in _whole_batches(data, 0):
            batch = data[position : position + size]
            if first < expected or after > limit:
                after += expected - first
                batch = _BASE_OFFSET.pack(expected) + batch[_BASE_OFFSET.size :]
            expected = after
            kept.append(batch)
        _write(files, path + ".new", b"".join(kept))
        files.rename(path + ".new", path)
        files.sync_directory(directory)


def aside_of(files: Files, directory: str) -> str:
    """A directory, not there yet, for what is set aside of the log in `directory`."""
    return free_name(files, f"{ASIDE}/{directory.replace('/', '-')}")


def keep_damaged(files: Files, directory: str, path: str, start: int, end: int) -> str:
    """Copy what [start, end) of a segment holds, which is to be cut off, unless it is the torn tail of a stop. Where
    that is; "": it is none. Raises OSError.
    """
    first = start - start % _BLOCK_BYTES
    file = files.open(path, create=False)
    try:
        data = file.pread(end - first, first)
    finally:
        file.close()
    at = start - first
    size = HEADER.unpack_from(data, at)[1] + LENGTH_START if len(data) - at >= HEADER_BYTES else 0
    batch = data[: at + size] if size > 0 else data  # there may be room behind it
    if _is_torn(batch, at) and next(_whole_batches(data, at + 1), None) is None:
        return ""
    aside = aside_of(files, directory)
    files.make_directory(aside)
    _write(files, f"{aside}/{path.rpartition('/')[2]}.from-{start}", data[at:])
    files.sync_directory(aside)
    return aside


def _bases(files: Files, directory: str) -> list[int]:
    names = files.list(directory)
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())


def _count(files: Files, directory: str, bases: list[int]) -> int:
    """Whole batches in all of these segments."""
    contents = (read_file(files, f"{directory}/{SegmentName(base)}.log") for base in bases)
    return sum(1 for data in contents for _ in _whole_batches(data, 0))


def _write(files: Files, path: str, data: bytes) -> None:
    file = files.open(path)
    try:
        file.truncate(0)
        file.pwritev([data], 0)
        file.sync()
    finally:
        file.close()


def _check(data: bytes, position: int, expected: int, base: int) -> tuple[int, int]:
    """(size, next offset) of the whole batch at a position. Raises CorruptBatch."""
    if len(data) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(data) - position} bytes are no batch")
    size, first, after, _ = check_batch(data, position, len(data))
    if size > len(data) - position:
        raise CorruptBatch(f"batch of {size} bytes in {len(data) - position}")
    if first < expected or after - base > RELATIVE_OFFSET_MAX:
        raise CorruptBatch(f"base offset {first} after {expected}")
    return size, after


def _first_fault(data: bytes, base: int, synced_bytes: int, synced_end: int) -> tuple[int, int, str]:
    """Where the first batch that is not whole begins, the offset it would have, and what it is; the end when there is
    none. The first so many bytes have offsets before `synced_end`.
    """
    position, expected = 0, base
    while position < len(data):
        try:
            size, after = _check(data, position, expected, base)
            if after > synced_end and position + size <= synced_bytes:
                raise CorruptBatch(f"offset {after - 1} before {synced_end}")
        except CorruptBatch as error:
            return position, expected, str(error)
        position, expected = position + size, after
    return position, expected, ""


def _whole_batches(data: bytes, position: int) -> Iterator[tuple[int, int, int, int]]:
    """(position, size, base offset, next offset) of all batches with a correct CRC, wherever they begin."""
    magic = bytes([MAGIC])
    while (found := data.find(magic, position + _MAGIC_FIELD)) >= 0 and len(
        data
    ) - found >= HEADER_BYTES - _MAGIC_FIELD:
        position = found - _MAGIC_FIELD
        try:
            size, first, after, _ = check_batch(data, position, len(data))
            if size > len(data) - position:
                raise CorruptBatch("no whole batch begins here")
        except CorruptBatch:
            position += 1
        else:
            yield position, size, first, after
            position += size


def _is_lost_end(data: bytes, position: int, offset: int, behind: Sequence[tuple[int, int]]) -> bool:
    """Whether what begins at `position` and is not whole may be what a stop left of writes from an offset on: blocks of
    it are missing, and none of the whole batches `behind` it (position and first offset) was appended when that offset
    was durable.
    """
    for whole, first in behind:
        unsynced = parse_header(data, whole).base_sequence
        if unsynced < 0 or first - unsynced > offset:
            return False
    return _lacks_blocks(data[: behind[0][0]], position) if behind else _is_torn(data, position)


def _is_torn(data: bytes, position: int) -> bool:
    """Whether what begins at `position`, which is not whole and has nothing behind it, is a write that did not end."""
    rest = len(data) - position
    if rest < HEADER_BYTES:
        return True
    if not any(data[position : position + _BLOCK_BYTES - position % _BLOCK_BYTES]):
        return True  # its first block, which may be no more than what is outside the CRC
    if crc32c(memoryview(data)[position + CRC_START :]) == _CRC.unpack_from(data, position + _CRC_FIELD)[0]:
        return False  # all is there but what is outside the CRC, such as the length
    if HEADER.unpack_from(data, position)[1] + LENGTH_START > rest:
        return True
    return _lacks_blocks(data, position)


def _lacks_blocks(data: bytes, position: int) -> bool:
    """Whether a block of what begins at `position` was never written."""
    zeros = bytes(_BLOCK_BYTES)
    starts = [position, *range(position - position % _BLOCK_BYTES + _BLOCK_BYTES, len(data), _BLOCK_BYTES)]
    ends = [*starts[1:], len(data)]
    return any(zeros.startswith(data[start:end]) for start, end in zip(starts, ends))
