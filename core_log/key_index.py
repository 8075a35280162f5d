"""Where in a segment batches with a key may be, so that who looks for one need not look through everything.

`<segment>.keys` holds blocks, each about a stretch of whole batches; what no block is about is looked through:

    magic              8     "MLRKEYS1"
    start, end         u64   positions in the segment's file, exclusive end
    offset, next       u64   offsets of which it has everything: [offset, next)
    last               u64   where its last batch begins
    count              u64   entries
    header             21    the first bytes of that batch: base offset, size, leader epoch, CRC
    crc                u32   CRC-32C of the above
    1024 x (u32, u32)        up to which entry a bucket reaches, its CRC-32C
    count x u64              entries in order: CRC-32 of a key << 32 | position of a batch; the highest 10 bits are
                             the bucket

1. A block speaks of the batches before its last one, and of that. It counts as long as that batch is where it was:
   an epoch and an offset never mean two records, so what lies before is the same as well. Each look-up looks at that,
   so a log that was cut, whenever it was, needs no care. Compaction gives its segments names of their own.
2. CRCs have what the header says in them. What is damaged, half written or of something else is as if it were not
   there.
3. Entries are of keys that may be there. Who looks for one decodes the batches.
4. Batches that cannot be decoded end a block, and are in none.
5. A new block swallows those before it that are not much larger, up to `BLOCK_BYTES` and `BLOCK_ENTRIES`: the files
   are small and blocks few however slowly a log grows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from crc32c import crc32c

from core_log.batch_header import CRC_START, HEADER_BYTES, parse_header
from core_log.compaction.records import payload, read_keys
from core_log.compression import DECOMPRESSED_BYTES_MAX
from core_log.containing import Groups, key_strings
from core_log.errors import CorruptBatch
from core_log.files import File, Files
from core_log.noticing import noticed, noticing
from core_log.segment import Segment, check_batch, scan

if TYPE_CHECKING:
    from core_log.readable_log import ReadableLog

SUFFIX = ".keys"
BLOCK_BYTES = 64 << 20
BLOCK_ENTRIES = 1 << 20
"""A block with as much, or as many, is complete."""
PIECE_ENTRIES = 1 << 18
"""After so many what was read becomes a block, which may swallow others."""
TAIL_BYTES = 256 << 10
"""Less than that behind the last block waits until nothing more comes."""
_BLOCKS_MAX = 1024
"""So many are looked at for one step."""
_BUCKETS = 1024
_BUCKET_SHIFT = 22
_HEAD = Struct("<8s6Q21sI")
_SLOT = Struct("<II")
_MAGIC = b"MLRKEYS1"
_TABLE_BYTES = _BUCKETS * _SLOT.size


class Block(NamedTuple):
    """A block, and where it is in its file."""

    place: int
    start: int
    end: int
    offset: int
    next_offset: int
    last: int
    entries: int
    header: bytes
    crc: int

    @property
    def size(self) -> int:
        """Bytes it takes in its file."""
        return _HEAD.size + _TABLE_BYTES + 8 * self.entries


class Step(NamedTuple):
    """What a look-up found, and the header of the batch up to which it looked."""

    batches: list[bytes]
    last: bytes


def hashes_of(groups: Groups) -> list[set[int]]:
    """Of the keys that are looked for, of each group that is of keys (`containing.key_strings`)."""
    found = []
    for strings in groups:
        group = [bytes(string) for string in strings]
        keys = [string[1:] for string in group[1::2]]
        if keys and b"" not in group and group == [string for key in keys for string in key_strings(key)]:
            found.append(set(map(crc32, keys)))
    return found


# ---- reading


def blocks_of(files: Files, segment: Segment) -> tuple[Block, ...]:
    """Those in its file that look right; none without one. Raises OSError."""
    if segment.keys is None:
        segment.keys = _load(files, segment.stem)
    return segment.keys


def _load(files: Files, stem: str) -> tuple[Block, ...]:
    try:
        file = files.open(stem + SUFFIX, create=False)
    except FileNotFoundError:
        return ()
    found: list[Block] = []
    place = 0
    try:
        size = files.size(stem + SUFFIX)
        while place + _HEAD.size <= size:
            data = file.pread(_HEAD.size, place)
            if len(data) < _HEAD.size:
                break
            magic, *numbers, header, crc = _HEAD.unpack(data)
            if magic != _MAGIC or crc32c(data[:-4]) != crc:
                break
            start, end, offset, following, last, entries = numbers
            block = Block(place, start, end, offset, following, last, entries, header, crc)
            if place + block.size > size or (found and block.start < found[-1].end):
                break
            found.append(block)
            place += block.size
    finally:
        file.close()
    return tuple(found)


def _counts(file: File, block: Block) -> bool:
    """Rule 1."""
    return file.pread(CRC_START, block.last) == block.header


def step(log: ReadableLog, offset: int, limit: int, wanted: Sequence[set[int]], bytes_max: int) -> Step | None:
    """The batches from the one that holds an offset on that may have keys of each of `wanted`, about `bytes_max`, as
    far as blocks are about all of them; None: look through what is there. Raises CorruptBatch, OSError.
    """
    for segment in log.segments_from(offset):
        if segment.base_offset >= limit or not segment.written_bytes:
            return None
        blocks = blocks_of(log.files, segment)
        at = bisect_left(blocks, offset + 1, key=lambda block: block.next_offset)
        if at < len(blocks) and blocks[at].offset <= offset:
            return _step_in(log, segment, blocks[at : at + _BLOCKS_MAX], offset, limit, wanted, bytes_max)
        if not blocks or offset < blocks[-1].next_offset:
            return None
    return None


def _step_in(
    log: ReadableLog,
    segment: Segment,
    blocks: Sequence[Block],
    offset: int,
    limit: int,
    wanted: Sequence[set[int]],
    bytes_max: int,
) -> Step | None:
    found: list[bytes] = []
    last = b""
    size, end, written = 0, blocks[0].start, segment.written_bytes
    file = log.files.open(segment.log_path, create=False)
    try:
        keys = log.files.open(segment.stem + SUFFIX, create=False)
    except FileNotFoundError:
        file.close()
        return None
    try:
        least = segment.position_of(log.files, file, offset) if offset > segment.base_offset else 0
        for block in blocks:
            if block.start != end or block.end > written or block.next_offset > limit or not _counts(file, block):
                break
            places = _places(keys, block, wanted)
            if places is None:
                break
            for place in places:
                if place < least:
                    continue
                with noticing(log):
                    batch = _batch(file, segment, place, block.end)
                header = parse_header(batch)
                if header.next_offset <= offset:
                    continue
                found.append(batch)
                size += len(batch)
                if size >= bytes_max:
                    return Step(found, batch)
            last, end = file.pread(HEADER_BYTES, block.last), block.end
    finally:
        file.close()
        keys.close()
    return Step(found, last) if last else None


def _batch(file: File, segment: Segment, place: int, end: int) -> bytes:
    head = file.pread(HEADER_BYTES, place)
    try:
        size = parse_header(head).size
        batch = file.pread(size, place) if HEADER_BYTES <= size <= end - place else b""
        if len(batch) != size:
            raise CorruptBatch(f"batch of {size} bytes in {end - place}")
        check_batch(batch, 0, size)
    except CorruptBatch as error:
        raise CorruptBatch(f"{segment.log_path} at position {place}: {error}") from None
    return batch


def _places(keys: File, block: Block, wanted: Sequence[set[int]]) -> list[int] | None:
    """Where batches with keys of each set are, in order; None if the block is damaged."""
    found: set[int] | None = None
    for hashes in wanted:
        places: set[int] = set()
        for one in hashes:
            entries = _bucket(keys, block, one >> _BUCKET_SHIFT)
            if entries is None:
                return None
            at, stop = bisect_left(entries, one << 32), bisect_left(entries, (one + 1) << 32)
            places.update(entry & 0xFFFFFFFF for entry in entries[at:stop])
        found = places if found is None else found & places
    return sorted(found or ())


def _bucket(keys: File, block: Block, number: int) -> array[int] | None:
    before = max(number - 1, 0)
    slots = keys.pread((number - before + 1) * _SLOT.size, block.place + _HEAD.size + before * _SLOT.size)
    if len(slots) < (number - before + 1) * _SLOT.size:
        return None
    first = _SLOT.unpack_from(slots)[0] if number else 0
    stop, crc = _SLOT.unpack_from(slots, len(slots) - _SLOT.size)
    if not first <= stop <= block.entries:
        return None
    data = keys.pread(8 * (stop - first), block.place + _HEAD.size + _TABLE_BYTES + 8 * first)
    if len(data) != 8 * (stop - first) or crc32c(data, _seed(block.crc, number)) != crc:
        return None
    return array("Q", data)


def _seed(crc: int, number: int) -> int:
    return int(crc32c(number.to_bytes(4, "little"), crc))


# ---- making


class _Draft:
    """A block that is being made."""

    def __init__(self, start: int, offset: int) -> None:
        self.start = self.end = self.last = start
        self.offset = self.next_offset = offset
        self.count = 0
        self.buckets: list[list[int]] = [[] for _ in range(_BUCKETS)]

    def add(self, keys: Sequence[bytes | None], position: int) -> None:
        """The keys of a batch."""
        hashes = {crc32(key) for key in keys if key is not None}
        buckets = self.buckets
        for one in hashes:
            buckets[one >> _BUCKET_SHIFT].append(one << 32 | position)
        self.count += len(hashes)

    def swallow(self, block: Block, keys: File) -> bool:
        """Take in the block before it; False if that is damaged."""
        older = [_bucket(keys, block, number) for number in range(_BUCKETS)]
        if None in older:
            return False
        self.buckets = [[*(old or ()), *new] for old, new in zip(older, self.buckets)]
        self.start, self.offset = block.start, block.offset
        self.count += block.entries
        return True

    def encode(self, place: int, header: bytes) -> tuple[Block, list[bytes]]:
        """As it is in its file."""
        numbers = (self.start, self.end, self.offset, self.next_offset, self.last, self.count)
        crc = crc32c(_HEAD.pack(_MAGIC, *numbers, header, 0)[:-4])
        parts: list[bytes] = []
        slots = []
        total = 0
        for number, bucket in enumerate(self.buckets):
            bucket.sort()
            data = array("Q", bucket).tobytes()
            total += len(bucket)
            slots.append(_SLOT.pack(total, crc32c(data, _seed(crc, number))))
            parts.append(data)
        head = _HEAD.pack(_MAGIC, *numbers, header, crc)
        return Block(place, *numbers, header=header, crc=crc), [head, *slots, *parts]


def extend(log: ReadableLog, pause: Callable[[], None], *, idle: bool) -> None:
    """Index what is committed and not in any block yet; with `idle` the last of it, too. Blocks, in a thread of its
    own, one at a time for a log; `pause` is called for every batch. Raises CorruptBatch, OSError.
    """
    limit = log.high_watermark
    for segment in log.segments_from(log.log_start_offset):
        if segment.base_offset >= limit:
            return
        blocks = blocks_of(log.files, segment)
        if segment.deleted or (blocks and blocks[-1].end >= segment.written_bytes):
            continue
        try:
            _extend(log, segment, limit, pause, idle=idle)
        except FileNotFoundError:
            segment.keys = None  # it was deleted, or compacted


def _extend(log: ReadableLog, segment: Segment, limit: int, pause: Callable[[], None], *, idle: bool) -> None:
    files, end = log.files, segment.written_bytes
    file = files.open(segment.log_path, create=False)
    try:
        blocks = list(blocks_of(files, segment))
        while blocks and not (blocks[-1].end <= end and _counts(file, blocks[-1])):
            blocks.pop()
        segment.keys = tuple(blocks)
        start = blocks[-1].end if blocks else 0
        if end - start < TAIL_BYTES and not idle and segment.index is not None:
            return
        draft = _Draft(start, blocks[-1].next_offset if blocks else segment.base_offset)
        for place in noticed(log, scan(file, segment.log_path, start, end)):
            if place.next_offset > limit:
                break
            pause()
            batch = file.pread(place.size, place.position)
            header = parse_header(batch)
            try:
                data, at = payload(batch, header, DECOMPRESSED_BYTES_MAX)
                keys = [] if header.is_control else read_keys(data, at, header).keys
            except CorruptBatch:
                _save(files, segment, file, draft)
                draft = _Draft(place.position + place.size, place.next_offset)
                continue
            draft.add(keys, place.position)
            draft.last, draft.end, draft.next_offset = place.position, place.position + place.size, place.next_offset
            if draft.count >= PIECE_ENTRIES or draft.end - draft.start >= BLOCK_BYTES:
                _save(files, segment, file, draft)
                draft = _Draft(draft.end, draft.next_offset)
        _save(files, segment, file, draft)
    finally:
        file.close()


def _save(files: Files, segment: Segment, file: File, draft: _Draft) -> None:
    if draft.end == draft.start:
        return
    blocks = list(segment.keys or ())
    keys = files.open(segment.stem + SUFFIX)
    try:
        while blocks and _belongs(blocks[-1], draft) and draft.swallow(blocks[-1], keys):
            blocks.pop()
        segment.keys = tuple(blocks)
        place = blocks[-1].place + blocks[-1].size if blocks else 0
        block, parts = draft.encode(place, file.pread(CRC_START, draft.last))
        keys.truncate(place)
        keys.pwritev([b"".join(parts)], place)
        if block.entries > BLOCK_ENTRIES // 2 or block.end - block.start > BLOCK_BYTES // 2:
            keys.sync()  # it will hardly be swallowed: one that is torn would stay
    finally:
        keys.close()
    segment.keys = (*blocks, block)


def _belongs(block: Block, draft: _Draft) -> bool:
    """Rule 5."""
    return (
        block.end == draft.start
        and block.end - block.start + draft.end - draft.start <= BLOCK_BYTES
        and block.entries + draft.count <= BLOCK_ENTRIES
        and (block.entries < 2 * draft.count + 1000 or block.end - block.start < 2 * (draft.end - draft.start))
    )
