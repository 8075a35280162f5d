"""What a broker need not have any more, as it is not a replica of a log now: moved aside, and removed an hour later.

1. Only the directory of a log that the metadata knows and that names other replicas comes here. What nobody knows stays
   where it is.
2. A directory here is named after where it lay and when it came, `trash/<directory>.<milliseconds>`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from core_log.files import Files
from core_log.threads import in_thread

logger = logging.getLogger(__name__)

TRASH = "trash"
KEPT_MS = 3_600_000
_LOOK_S = 300


def put_aside(files: Files, directory: str, now_ms: int) -> str:
    """Move a directory here; where it is now. Blocks. Raises OSError."""
    files.make_directory(TRASH)
    name = directory.replace("/", "-")
    while files.exists(target := f"{TRASH}/{name}.{now_ms}"):
        now_ms += 1
    files.move_directory(directory, target)
    return target


def expired(files: Files, now_ms: int) -> list[str]:
    """Directories that have been here for an hour. Blocks. Raises OSError."""
    found = []
    for name in files.list(TRASH):
        came_ms = name.rpartition(".")[2]
        if came_ms.isdecimal() and now_ms - int(came_ms) >= KEPT_MS:
            found.append(f"{TRASH}/{name}")
    return found


async def keep_empty(files: Files, wall_clock_ms: Callable[[], int]) -> None:
    """Remove what has been here for an hour, until cancelled."""

    def remove(now_ms: int) -> None:
        for directory in expired(files, now_ms):
            files.remove_directory(directory)
            logger.info("%s is removed", directory)

    while True:
        try:
            await in_thread(remove, wall_clock_ms())
        except OSError as error:
            logger.warning("%s cannot be emptied: %s", TRASH, error)
        await trio.sleep(_LOOK_S)
