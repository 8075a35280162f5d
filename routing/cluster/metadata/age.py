"""How old a member's data directory is, by which an older copy of it (a backup, a snapshot) is told from it.

1. Its age stands in the directory and in the metadata (`DirectoryRecord`), which outlive the broker. It is raised at
   each start before the broker takes part, every minute while it runs, and when it stops: in the directory first,
   durably, then in the metadata, and the next time only when both have it.
2. So a directory is as old as the metadata say, or by one older. A younger one is a copy from before, which may lack
   what was confirmed since. Of copies that were begun with, one has its token in the metadata.
3. Where a directory is older by more, the metadata are from before: what they say of who is in sync may be wrong.
4. Of a member of a version without ages neither has one.
"""

from __future__ import annotations

import logging

import msgspec

from core_log import checkpoint
from core_log.files import Files

PATH = "age"

logger = logging.getLogger(__name__)


class Age(msgspec.Struct, frozen=True):
    """See the module."""

    number: int = 0
    token: str = ""
    """Another one each time that a number is given."""

    def __str__(self) -> str:
        return f"{self.number}-{self.token}" if self.number else "none"

    def is_before(self, other: Age) -> bool:
        """Of a directory: whether it is a copy from before the metadata had `other`."""
        return self.number < other.number or (self.number == other.number and self.token != other.token)

    def is_far_beyond(self, other: Age) -> bool:
        """Of a directory: whether the metadata, which have `other`, have had a later one."""
        return self.number > other.number + 1


def load_age(files: Files) -> Age:
    """The one saved last; that of a directory without one where it is damaged (which is logged). Raises OSError."""
    data = checkpoint.load(files, PATH)
    try:
        return Age() if data is None else msgspec.msgpack.decode(data, type=Age)
    except msgspec.MsgspecError as error:
        logger.warning("%s is ignored: %s", PATH, error)
        return Age()


def save_age(files: Files, age: Age) -> None:
    """Replace it, durably. Raises OSError."""
    checkpoint.save(files, PATH, msgspec.msgpack.encode(age))
