"""Whether all that a data directory holds is whole, of a single broker or of a cluster's member: nothing is changed.

Each log is opened as a start would open it, then every batch is read and its CRC checked, and every index entry. What
an unclean stop has left behind the last whole batch is what the next start cuts off; it is named, and no fault. Nor are
segments that a compacted one stands for, which a start removes. A cluster's member is looked at alone, by its own copy
of the topology.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from core_log import checkpoint
from core_log.compaction import state as states
from core_log.damage import find_damage
from core_log.errors import CorruptBatch
from core_log.files import Files
from core_log.segment_names import LOG_SUFFIX, effective
from routing.cluster.metadata.identity import load_identity
from routing.directories import CATALOG, HOMES, TOPICS, lacking, logs_in
from routing.queues.homes.checkpoints import decode_checkpoint
from routing.stored_topics import open_stored, stored_catalog
from routing.topology.catalog import unpack_entry
from routing.topology.entries import Key

_BESIDE = ("recovery-point", "log-start", "leader-epochs", "transactions")
"""Small files of a log that stand for themselves; what is damaged of them is worked out anew, as far as that goes."""
_STORES = ("catalog", "offsets", "transactions", "retained")


class Verified(NamedTuple):
    """A log."""

    directory: str
    log_start_offset: int
    log_end_offset: int
    size_bytes: int
    cut_bytes: int
    """What the next start cuts off its end."""
    problems: list[str]


def whose(files: Files) -> str:
    """Whose directory it is. Raises ValueError, OSError."""
    identity = load_identity(files)
    if identity is None:
        return "a single broker"
    return f"broker {identity.broker_id} of cluster '{identity.cluster}'"


def verify_logs(files: Files) -> Iterator[Verified]:
    """Look at one log after the other; blocks. Raises OSError."""
    for room in _STORES:
        for name in logs_in(files, room):
            yield _verify(files, f"{room}/{name}", is_store=True)
    for name in logs_in(files, HOMES):
        found = _verify(files, f"{HOMES}/{name}")
        found.problems.extend(_faults_of_checkpoint(files, found))
        yield found
    for name in logs_in(files, TOPICS):
        found = _verify(files, f"{TOPICS}/{name}")
        found.problems.extend(_faults_of_compaction(files, found))
        yield found


def verify_topology(files: Files) -> tuple[dict[str, int], list[str]]:
    """How many entities of each kind the catalog has, and what it names that is not there. Raises OSError."""
    counts: Counter[str] = Counter()
    problems: list[str] = []
    identity = load_identity(files)
    alone = identity is None
    try:
        catalog = stored_catalog(files)
    except CorruptBatch as error:
        return {}, [str(error)]
    named: list[tuple[Key, Any]] = []
    for packed, data in catalog.items():
        try:
            key, value = unpack_entry(packed, data)
        except ValueError as error:
            problems.append(f"{CATALOG}: the entry {packed!r} is not understood: {error}")
            continue
        counts[key[0]] += 1
        named.append((key, value))
    if alone:  # of a member what is not here is at other brokers
        problems += lacking(files, catalog.log.log_end_offset, named)
    counts.pop("next-queue-id", None)
    return dict(counts), problems


def _verify(files: Files, directory: str, *, is_store: bool = False) -> Verified:
    damage = find_damage(files, directory) if is_store else None
    before = _log_bytes(files, directory)
    log = open_stored(files, directory)
    problems = [str(damage)] if damage is not None else []
    if log.damaged and damage is None:
        problems.append(f"{directory}: bytes that had been synced are missing or damaged at its end")
    if log.aside and damage is None:
        problems.append(f"{directory}: what a start would cut off its end is not only what a stop leaves")
    problems += log.verify()
    for name in _BESIDE:
        problems += _faults_in(files, f"{directory}/{name}", lambda _: None)
    for segment in log.segments:
        segment.close_file()
    cut = before - _log_bytes(files, directory) - log.room_bytes
    return Verified(directory, log.log_start_offset, log.log_end_offset, log.size_bytes, cut, problems)


def _log_bytes(files: Files, directory: str) -> int:
    names, _ = effective(files.list(directory))
    return sum(files.size(f"{directory}/{name}{LOG_SUFFIX}") for name in names)


def _faults_of_compaction(files: Files, log: Verified) -> Iterator[str]:
    def beyond(content: bytes) -> str | None:
        end = states.decode(content).clean_before
        return f"offset {end}: the log ends at {log.log_end_offset}" if end > log.log_end_offset else None

    return _faults_in(files, f"{log.directory}/{states.FILE_NAME}", beyond)


def _faults_of_checkpoint(files: Files, log: Verified) -> Iterator[str]:
    def beyond(content: bytes) -> str | None:
        # One from before the log start is only of no use any more: what it speaks of was settled, and has gone.
        offset = decode_checkpoint(content).standby.offset
        return f"offset {offset}: the log ends at {log.log_end_offset}" if offset > log.log_end_offset else None

    return _faults_in(files, f"{log.directory}/checkpoint", beyond)


def _faults_in(files: Files, path: str, wrong: Callable[[bytes], str | None]) -> Iterator[str]:
    """What is to be said of a file that may be missing; `wrong` says of what it speaks that is not there, or raises
    ValueError.
    """
    if not files.exists(path):
        return
    try:
        content = checkpoint.read(files, path)
    except ValueError as error:
        yield str(error)
        return
    try:
        told = wrong(content) if content is not None else None
    except ValueError as error:
        yield f"{path}: {error}"
        return
    if told is not None:
        yield f"{path} speaks of {told}"
