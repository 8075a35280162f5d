"""What the files of a segment are called, and which of them count after a crash.

    <base>                      as it was written: the base offset in 20 digits
    <base>-<end>-<generation>   compacted: it stands for all of [base, end)

A compacted segment counts from the moment that its `.log` has its name, which is the last of its files to get it. It
supersedes every segment of a lower generation that begins within [base, end): those are left-overs then. Generations of
a log only rise, so a name never stands for two contents, and who has an old one open reads on undisturbed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_DIGITS = 20
LOG_SUFFIX = ".log"


class SegmentName(NamedTuple):
    """See the module; `end` is 0 for what was not compacted."""

    base_offset: int
    end: int = 0
    generation: int = 0

    def __str__(self) -> str:
        base = f"{self.base_offset:0{_DIGITS}d}"
        return f"{base}-{self.end:0{_DIGITS}d}-{self.generation}" if self.generation else base


def parse(file_name: str) -> SegmentName | None:
    """The segment that a `.log` file is of; None for all other files."""
    stem = file_name.removesuffix(LOG_SUFFIX)
    parts = stem.split("-")
    if stem == file_name or len(parts) not in (1, 3) or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    name = SegmentName(*map(int, parts))
    return name if str(name) == stem else None


def effective(file_names: Iterable[str]) -> tuple[list[SegmentName], list[SegmentName]]:
    """The segments of a directory in order, and those that are superseded."""
    found = sorted(name for name in map(parse, file_names) if name is not None)
    compacted = [name for name in found if name.generation]
    if not compacted:
        return found, []
    left = [
        name
        for name in found
        if any(one.generation > name.generation and one.base_offset <= name.base_offset < one.end for one in compacted)
    ]
    gone = set(left)
    return [name for name in found if name not in gone], left
