"""The directories of a data directory: what is set aside and removed, and when a damaged store stops the start.

1. Nothing is removed because nobody knows it. The directory of a topic that the catalog does not name is moved to
   `unknown/`, with a warning; what a new topic finds in its place is moved there as well. One that was never written
   to, as a crash leaves it while a topic is created, stays for the topic of that name; where a topic's id is in the
   name, which no other will have, it goes. Each start says how much is in `unknown/`, as nothing ever takes it away.
2. What is to be removed is noted in `deleting/` first, durably, and the note goes last. A start finishes what has a
   note, unless the catalog still names it: then the deletion had not become durable, and has not happened. A disk that
   has no room for the note (no inode) hinders no deletion, which makes room: should the broker end in the middle of it,
   rule 1 has what is left. Where there is no room for `unknown/` either, it stays where it is until a later start.
3. A store (catalog, group offsets, transactions, what is retained) that was damaged stops the start. When it is told to
   accept the damage, it keeps every batch that is whole, and a copy of the files as they were in `damaged/`.
4. So does what is not there and should be: the catalog, where logs have something in them, and where it has something
   the other stores, and directories that it names. Whoever forgot a part of a copy, or to mount it, would have what is
   missing made anew, empty, and what comes then stand in its place. When the damage is accepted that is what happens,
   with a line for each.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from core_log.damage import ASIDE, aside_of, find_damage, repair
from core_log.disk_space import NO_ROOM
from core_log.errors import LogDamaged
from core_log.files import Files, free_name
from core_log.threads import in_thread

logger = logging.getLogger(__name__)

TOPICS = "topics"
HOMES = "queues"
CATALOG = "catalog/0"
OFFSETS = "offsets/0"
TRANSACTIONS = "transactions/0"
RETAINED = "retained/0"
STORES = (OFFSETS, TRANSACTIONS, RETAINED)
"""Of a broker that is alone, besides the catalog: there before anything is declared."""
_UNKNOWN = "unknown"
_DELETING = "deleting"
_LINES_MAX = 100
_WITH_ID = re.compile(r".+-[0-9]+\.[0-9a-f]{16}")


def topic_directory(name: str, index: int, uid: str = "") -> str:
    """Where a partition of a topic lies; one that brokers share has the topic's id in its name."""
    return f"{TOPICS}/{name}-{index}.{uid}" if uid else f"{TOPICS}/{name}-{index}"


def logs_in(files: Files, room: str) -> Iterator[str]:
    """The names of the directories of logs; what else was put beside them stays there. Raises OSError."""
    for name in files.list(room):
        try:
            files.list(f"{room}/{name}")
        except NotADirectoryError:
            continue
        yield name


def require_undamaged(files: Files, directory: str, *, accept_damage: bool) -> None:
    """Look at a store before it is opened: rule 3. Raises LogDamaged, OSError."""
    damage = find_damage(files, directory)
    if damage is None:
        return
    if not accept_damage:
        raise LogDamaged(
            f"{damage}. Bring the file back from a copy, or start once with --accept-damage: all whole batches are "
            f"kept, what the damaged ones said is forgotten, and the files as they are now stay in {ASIDE}/"
        )
    aside = aside_of(files, directory)
    logger.error("%s. Going on without what is damaged; the files as they were are in %s", damage, aside)
    repair(files, directory, aside)


def lacking(files: Files, catalog_end: int, entries: Iterable[tuple[Sequence[Any], Any]]) -> Iterator[str]:
    """What is not there of the directory of a broker that is alone, and should be, by where the log of its catalog
    ends, and by what that says: a line each. Raises OSError.
    """
    if not catalog_end:
        yield from _without_catalog(files)
        return
    yield from (f"{store} is missing" for store in STORES if not files.exists(store))
    homes, topics = set(files.list(HOMES)), set(files.list(TOPICS))
    for key, value in entries:
        if key[0] == "queue" and str(value["stripe"]) not in homes:
            yield f"{HOMES}/{value['stripe']} is missing: queue '{key[2]}' is there"
        elif key[0] == "topic":
            places = [topic_directory(key[1], index, value.get("uid", "")) for index in range(value["partitions"])]
            yield from (f"{place} is missing" for place in places if place.removeprefix(f"{TOPICS}/") not in topics)


def _without_catalog(files: Files) -> Iterator[str]:
    for room in (HOMES, TOPICS):
        for name in logs_in(files, room):
            if not _is_empty(files, f"{room}/{name}"):
                yield f"{CATALOG} is missing or empty, and {room}/{name} is not"
                return


def require_present(lacking: Iterable[str], *, accept_damage: bool) -> None:
    """Rule 4, of lines that say what is missing. Raises LogDamaged."""
    for number, line in enumerate(lacking):
        if not accept_damage:
            raise LogDamaged(
                f"{line}. Bring it back from a copy, or start once with --accept-damage: what is missing is made anew, "
                "empty, and what was in it is lost"
            )
        if number < _LINES_MAX:
            logger.error("%s. Going on without it", line)


def note_deletion(files: Files, directories: Iterable[str]) -> None:
    """These directories of topics are about to be removed. Raises OSError."""
    try:
        files.make_directory(_DELETING)
        for directory in directories:
            files.open(_note(directory)).close()
        files.sync_directory(_DELETING)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logger.warning(
            "a topic is deleted though the disk has no room to note it (%s): if the broker ends before its files are "
            "removed, the next start moves them to %s/",
            error,
            _UNKNOWN,
        )


def forget_deletion(files: Files, directories: Iterable[str]) -> None:
    """They are removed, or will not be. Raises OSError."""
    for directory in directories:
        if files.exists(_note(directory)):
            files.remove(_note(directory))
    if files.exists(_DELETING):
        files.sync_directory(_DELETING)


def remove_noted(files: Files, directories: Collection[str]) -> None:
    """Remove directories that were noted, then the notes. Blocks. Raises OSError."""
    for directory in directories:
        files.remove_directory(directory)
    files.sync_directory(TOPICS)
    forget_deletion(files, directories)


def make_places(files: Files, directories: Iterable[str]) -> None:
    """Make the directories of a new topic's partitions, with nothing in their place: rules 1 and 2. Blocks, for a sync
    of each. Raises OSError.
    """
    for directory in directories:
        if files.exists(_note(directory)):
            remove_noted(files, [directory])
        elif not _is_empty(files, directory):
            _set_aside(files, directory)
        files.make_directory(directory)


def half_deleted(files: Files, known: Collection[str]) -> set[str]:
    """At a start: the topics whose deletion was not finished, by their notes. What else is known of them goes first,
    durably: `tidy_topics` takes the notes.
    """
    noted = {f"{TOPICS}/{name}" for name in files.list(_DELETING)}
    return {directory.removeprefix(f"{TOPICS}/").rpartition("-")[0] for directory in noted.difference(known)}


def tidy_topics(files: Files, known: Collection[str], *, with_ids: bool = False) -> None:
    """At a start: finish deletions, and set aside what is not among the `known` directories, of a cluster's member
    `with_ids`. Raises OSError.
    """
    noted = [f"{TOPICS}/{name}" for name in files.list(_DELETING)]
    gone = [directory for directory in noted if directory not in known]
    if noted:
        forget_deletion(files, [directory for directory in noted if directory in known])
        remove_noted(files, gone)
    for name in logs_in(files, TOPICS):
        directory = f"{TOPICS}/{name}"
        if directory in known:
            continue
        if not _is_empty(files, directory):
            _set_aside_if_room(files, directory)
        elif with_ids and _WITH_ID.fullmatch(name):
            files.remove_directory(directory)
    aside = len(files.list(_UNKNOWN))
    if aside:
        logger.warning(
            "%s/ has %d directories of topics that the catalog does not name: nothing uses them, and nothing removes "
            "them but who knows that they are not needed",
            _UNKNOWN,
            aside,
        )


def _note(directory: str) -> str:
    return f"{_DELETING}/{directory.rpartition('/')[2]}"


def _is_empty(files: Files, directory: str) -> bool:
    """Whether a log was never written to, as one is that was being created."""
    names = files.list(directory)
    return "log-start" not in names and not any(
        files.size(f"{directory}/{name}") for name in names if name.endswith(".log")
    )


def _set_aside(files: Files, directory: str) -> None:
    files.make_directory(_UNKNOWN)
    target = free_name(files, f"{_UNKNOWN}/{directory.rpartition('/')[2]}")
    files.move_directory(directory, target)
    logger.warning("the catalog does not name %s: moved to %s, nothing in it was changed", directory, target)


def _set_aside_if_room(files: Files, directory: str) -> None:
    """The same; where the disk has no room for another name, it stays: a start must not fail for that."""
    try:
        _set_aside(files, directory)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        logger.warning(
            "the catalog does not name %s: it stays there, as the disk has no room to move it to %s/ (%s)",
            directory,
            _UNKNOWN,
            error,
        )


async def remove_later(files: Files, places: Sequence[str], *, noted: bool = False) -> None:
    """Remove what was deleted; a start goes on with what could not be."""
    try:
        if not noted:
            await in_thread(note_deletion, files, places)
        await in_thread(remove_noted, files, places)
    except OSError as error:
        logger.warning("the files of a deleted topic stay until the next start: %s", error)
