"""Opening a log's directory: what is trusted, what is scanned, what is cut.

1. Everything up to the recovery point is synced, indexes included, and is trusted. A log that was closed has its
   recovery point at its end, so opening it costs a few small reads.
2. From the recovery point on every batch is checked, CRC included. At the first that is damaged, torn or out of order
   the log is cut: the rest of the segment and all later segments go, which is logged with file and position. So they do
   where the next one was begun `early` and does not begin where this one ends: it lost its end (`closing.py`, 4).
   What goes is kept in `damaged/` if it does not look like the torn tail of a stop (`damage.py`): it may be what a bit
   that has flipped is in the way of. Later segments go first, the last one before all others: as long as there are any,
   the next start finds what they are cut off for, and no gap that looks like offsets that were left out.
3. What was scanned is written again where it is, as it was checked, and synced before the log is used, so that it may
   be called flushed (`written_again.py`). A disk that refuses this refuses the log.
4. Index files that are missing or cannot be right are rebuilt by scanning the segment, beside the old ones: they get
   their names when they are synced.
5. The leader epochs are what their file says. Where it is missing (logs of before there were any), or an older copy by
   what it says of the last stop, the last batch says in which epoch it was written. A stop was clean if the file says
   so and the log ends where it says.
6. Bytes that had been synced and are missing are `damage`: of a clean stop, below the recovery point, at the log start.
   What is found is used all the same; a replica knows then that it may lack what it had promised to keep. Whoever has
   to know of it after this start, too, is told (`on_damage`) before anything is written that makes it look well. A
   segment that is gone from between others, which the recovery point names, or of which an empty file is left, stays in
   the log as `missing`: its readers are told, and so the next start misses it, too.
7. Segments below the saved log start are left-overs of an interrupted deletion and go, and so do those that a compacted
   one stands for (`segment_names.py`). A compacted segment is never the active one: its end is in its name, since the
   last batches before that may be gone.
8. Zeros at the end of the last segment are room that nobody has written to (`room_ahead.py`), and go without a word.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from core_log.batch_header import HEADER_BYTES, parse_header
from core_log.checkpoint import TEMPORARY_SUFFIX
from core_log.damage import keep_damaged
from core_log.errors import CorruptBatch
from core_log.files import Files
from core_log.flush_job import RecoveryPoint, emptied, load_epochs, load_log_start
from core_log.log_config import LogConfig
from core_log.replication.epochs import NOT_CLEAN, LeaderEpochs
from core_log.room_ahead import is_room
from core_log.segment import RELATIVE_OFFSET_MAX, Segment, scan
from core_log.segment_index import SegmentIndex, is_plausible
from core_log.segment_names import SegmentName, effective
from core_log.written_again import WrittenAgain

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveredLog:
    """What a directory holds: segments in order, the last one active."""

    segments: list[Segment]
    log_start_offset: int
    next_offset: int
    recovery_position: int
    """How much of the active segment need not be scanned at the next start."""
    epochs: LeaderEpochs
    clean: bool
    """The log was closed, and ends where it ended then; or it is new."""
    marked: bool
    """There is a file that says where the last stop was."""
    damaged: bool
    """See rule 6."""
    room_bytes: int
    """See rule 8."""
    aside: str
    """Where what was cut off is kept, if it may be more than a torn tail."""


def recover(
    files: Files, directory: str, config: LogConfig, now_ms: int, on_damage: Callable[[], None] = lambda: None
) -> RecoveredLog:
    """Open a log's directory, making it when it is missing. Raises OSError."""
    files.make_directory(directory)
    log_start = load_log_start(files, directory)
    point = RecoveryPoint.load(files, directory)
    names = _segment_names(files, directory, log_start, point)
    bases = [name.base_offset for name in names]
    trusted_below = point.segment_base if point else -1
    segments: list[Segment] = []
    next_offset = log_start
    scanned = cut = False
    room_bytes, aside = 0, ""
    scanned_to: int | None = None
    """Where the segment before, if it was scanned, ends."""
    damaged = _lacks_files(directory, bases, log_start, point)
    for at, name in enumerate(names):
        base = name.base_offset
        segment = Segment(directory, name, config.index_interval_bytes, None)
        if not cut and point is not None and base == point.early and scanned_to is not None and base > scanned_to:
            logger.error("cutting the log: %s ends at offset %d, not at %d", segments[-1].log_path, scanned_to, base)
            cut = True
            _drop(files, directory, names[at:])
        if cut:
            break
        segments.append(segment)
        if base < trusted_below:
            segment.size = segment.written_bytes = files.size(segment.log_path)
            if not is_plausible(files, segment.stem, segment.size):
                damaged = _rebuild_index(files, segment, on_damage) or damaged
            continue
        synced = point if base == trusted_below else None
        trusted_bytes, end, cut, room_bytes, aside = _recover_segment(
            files, segment, synced, config, now_ms, names[at:]
        )
        segment.close_file()  # of many, or of many logs, and descriptors may be few
        damaged = damaged or bool(synced and segment.size < synced.position)
        scanned_to = end
        next_offset = max(next_offset, end, name.end)
        scanned = scanned or cut or segment.size > trusted_bytes
    is_compacted = bool(segments) and names[len(segments) - 1].generation > 0
    segments = _with_missing(directory, segments, point, names, log_start, config)
    damaged = damaged or any(segment.missing for segment in segments)
    if not segments or segments[-1].index is None or is_compacted:
        # A full or compacted segment is the last: the one after it had not got its name yet.
        next_offset = max(next_offset, trusted_below)
        segments.append(Segment(directory, next_offset, config.index_interval_bytes, SegmentIndex()))
    if damaged:
        on_damage()
    for segment in segments[:-1]:
        if segment.index is not None:
            _save_closed(files, segment)
    if scanned:
        files.sync_directory(directory)
    trusted_bytes = _trusted_bytes(files, directory, point, segments, cut=cut)
    log_start = max(log_start, segments[0].base_offset)
    found = _epochs_up_to(files, directory, next_offset)
    if found is None:
        epochs, clean = _epochs_of_last_batch(files, segments), not bases
    else:
        epochs, clean = found[0], found[1] == next_offset
        damaged = damaged or found[1] > next_offset
    return RecoveredLog(
        segments, log_start, next_offset, trusted_bytes, epochs, clean, found is not None, damaged, room_bytes, aside
    )


def _trusted_bytes(
    files: Files, directory: str, point: RecoveryPoint | None, segments: list[Segment], *, cut: bool
) -> int:
    """How much of the active segment the next start need not scan."""
    active = segments[-1]
    trusted_bytes = point.position if point is not None and point.segment_base == active.base_offset else 0
    if cut or trusted_bytes > active.size:
        # What is appended next may grow beyond an old recovery point, which would then point into a batch.
        RecoveryPoint.at_start_of(active.base_offset, segments).save(files, directory, sync_name=True)
        return 0
    return trusted_bytes


def _epochs_up_to(files: Files, directory: str, next_offset: int) -> tuple[LeaderEpochs, int] | None:
    """The epochs that were noted and where the log was stopped; None without, or where more was written since."""
    found = load_epochs(files, directory)
    if found is not None and NOT_CLEAN < found[1] < next_offset:
        text = "%s/leader-epochs is from before: a stop at offset %d, and the log ends at %d"
        logger.warning(text, directory, found[1], next_offset)
        return None
    return found


def _epochs_of_last_batch(files: Files, segments: list[Segment]) -> LeaderEpochs:
    for segment in reversed(segments):
        if not segment.size:
            continue
        file = files.open(segment.log_path, create=False)
        try:
            position = segment.position_of(files, file, segment.base_offset + RELATIVE_OFFSET_MAX)
            for place in scan(file, segment.log_path, position, segment.size, check_crc=False):
                position = place.position
        except CorruptBatch as error:
            logger.error("the last leader epoch is not known: %s", error)
        else:
            epoch = parse_header(file.pread(HEADER_BYTES, position)).leader_epoch
            return LeaderEpochs([(max(epoch, 0), segments[0].base_offset)])
        finally:
            file.close()
    return LeaderEpochs()


def epochs_of_batches(files: Files, segments: list[Segment]) -> LeaderEpochs:
    """The epochs that the headers of all batches name, as far as they can be read. Raises OSError."""
    epochs = LeaderEpochs()
    end = segments[0].base_offset
    for segment in segments:
        if not segment.size:
            continue
        file = files.open(segment.log_path, create=False)
        try:
            for place in scan(file, segment.log_path, 0, segment.size, check_crc=False):
                epoch = parse_header(file.pread(HEADER_BYTES, place.position)).leader_epoch
                if not epochs.entries or epoch > epochs.latest:
                    epochs.begin(epoch, end)
                end = place.next_offset
        except CorruptBatch as error:
            logger.error("the leader epochs end early: %s", error)
        finally:
            file.close()
    return epochs


def _lacks_files(directory: str, bases: list[int], log_start: int, point: RecoveryPoint | None) -> bool:
    """Whether segments are not there that were, with a line for it."""
    if bases and bases[0] > log_start:
        logger.error("%s begins at offset %d: what was kept from %d on is missing", directory, bases[0], log_start)
        return True
    if point is not None and point.position and point.segment_base not in bases:
        path = f"{directory}/{SegmentName(point.segment_base)}.log"
        logger.error("%s is missing, %d bytes of it that were synced are lost", path, point.position)
        return True
    return False


def _with_missing(
    directory: str,
    segments: list[Segment],
    point: RecoveryPoint | None,
    names: list[SegmentName],
    log_start: int,
    config: LogConfig,
) -> list[Segment]:
    """Those segments, and with them those between them that the recovery point knows and that are not there."""
    found = segments.copy()
    for base in point.missing(names, log_start) if point is not None and segments else ():
        if base > segments[0].base_offset:
            segment = Segment(directory, base, config.index_interval_bytes, None)
            logger.error("%s is missing, what was in it is lost", segment.log_path)
            segment.missing = True
            found.append(segment)
    return sorted(found, key=attrgetter("base_offset"))


def _segment_names(files: Files, directory: str, log_start: int, point: RecoveryPoint | None) -> list[SegmentName]:
    """The segments in order; what is left over of others goes, and so does the empty file of one that had something."""
    listed = files.list(directory)
    names, left_over = effective(listed)
    stems = {str(name) for name in names}
    gone = {str(name) for name in left_over}
    for file_name in listed:
        stem, _, suffix = file_name.rpartition(".")
        orphan = suffix in ("index", "timeindex", "keys") and stem not in stems
        if orphan or stem in gone or file_name.endswith(TEMPORARY_SUFFIX):
            files.remove(f"{directory}/{file_name}")
    while len(names) > 1 and names[1].base_offset <= log_start:
        Segment(directory, names.pop(0), 0, None).remove(files)
    for name in emptied(files, directory, names, point):
        segment = Segment(directory, name, 0, None)
        logger.error("%s is empty, and was not", segment.log_path)
        segment.remove(files)
        names.remove(name)
    return names


def _recover_segment(
    files: Files,
    segment: Segment,
    point: RecoveryPoint | None,
    config: LogConfig,
    now_ms: int,
    names: list[SegmentName],
) -> tuple[int, int, bool, int, str]:
    """Scan a segment, the first of `names`, from the recovery point in it or from its start; (bytes trusted, next
    offset, is it cut, and those behind it with it, room, where what was damaged is kept).
    """
    path = segment.log_path
    directory = path.rpartition("/")[0]
    file = segment.writable(files)
    file_bytes = files.size(path)
    next_offset = segment.base_offset
    index = segment.index = SegmentIndex()
    if point is not None and point.position > file_bytes:
        logger.error("%s has %d bytes, %d of them synced are lost", path, file_bytes, point.position - file_bytes)
    elif point is not None:
        if index.load(files, segment.stem, point.offset_entries, point.time_entries):
            next_offset = point.next_offset
            segment.size = point.position
            segment.max_timestamp_ms = point.max_timestamp_ms
            segment.max_timestamp_last = point.max_timestamp_last
            segment.created_ms = point.created_ms
        else:
            logger.warning("%s: index files are missing or too short, rebuilding", segment.stem)
    cut, room_bytes, aside = False, 0, ""
    trusted_bytes = segment.size
    synced_bytes = point.position if point is not None and point.position <= file_bytes else 0
    again = WrittenAgain(file, path, synced_bytes if config.fsync != "never" else file_bytes)
    try:
        for place in scan(again, path, segment.size, file_bytes, expected=next_offset):
            if not segment.size:
                segment.created_ms = min(place.max_timestamp_ms, now_ms) if place.max_timestamp_ms > 0 else now_ms
            if place.next_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
                raise CorruptBatch(f"{path} at position {place.position}: base offset {place.base_offset}")
            segment.note(place.base_offset, place.next_offset, place.size, place.max_timestamp_ms)
            next_offset = place.next_offset
    except CorruptBatch as error:
        if len(names) == 1 and not names[0].generation and is_room(file, segment.size, file_bytes):
            room_bytes = file_bytes - segment.size
        else:
            cut = True
            aside = keep_damaged(files, directory, path, segment.size, file_bytes)
            kept = f", and kept in {aside}" if aside else ""
            text = "cutting the log, %d bytes of the segment are dropped%s: %s"
            logger.error(text, file_bytes - segment.size, kept, error)
            _drop(files, directory, names[1:], aside)
        file.truncate(segment.size)
    segment.written_bytes = segment.size
    if cut or segment.size > trusted_bytes:
        again.finish(segment.size)
    return trusted_bytes, next_offset, cut, room_bytes, aside


def _drop(files: Files, directory: str, names: list[SegmentName], aside: str = "") -> None:
    """Have these segments go, durably, the last one first; into `aside` if that is given."""
    for name in reversed(names):
        segment = Segment(directory, name, 0, None)
        if aside:
            files.rename(segment.log_path, f"{aside}/{name}.log")
        segment.remove(files)
    for changed in (aside, directory) if names else ():
        if changed:
            files.sync_directory(changed)


def _rebuild_index(files: Files, segment: Segment, on_damage: Callable[[], None]) -> bool:
    """Index a closed segment again; whether it ends in bytes that are no batch. Its batches are not judged here: a
    damaged one is reported by who reads it.
    """
    logger.warning("%s: index files are missing or damaged, rebuilding", segment.stem)
    file = files.open(segment.log_path, create=False)
    segment.index = SegmentIndex()
    size, segment.size = segment.size, 0
    damaged = False
    try:
        for place in scan(file, segment.log_path, 0, size, expected=segment.base_offset, check_crc=False):
            segment.note(place.base_offset, place.next_offset, place.size, place.max_timestamp_ms)
    except CorruptBatch as error:
        logger.error("the index ends early: %s", error)
        damaged = True
        on_damage()
    finally:
        file.close()
    segment.size = size
    _save_closed(files, segment, suffix=TEMPORARY_SUFFIX)
    for kind in (".index", ".timeindex"):
        files.rename(segment.stem + TEMPORARY_SUFFIX + kind, segment.stem + kind)
    return damaged


def _save_closed(files: Files, segment: Segment, suffix: str = "") -> None:
    segment.save_index(files, segment.stem + suffix)
    segment.index = None
