"""Which batches may hold a record that a reader looks for: found by the bytes it must have, without decoding any.

1. A reader names groups of byte strings. A record that it looks for has at least one string of each group among its
   bytes, so a batch in which all strings of a group are missing holds none, and need not be sent or decoded. A batch
   that has them may still hold none: whoever looks for records looks at them.
2. An empty string occurs everywhere: its group asks for nothing.
3. Compressed batches are never left out here: what their records have does not stand in their bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from core_log.batch_header import COMPRESSION_MASK
from core_log.files import BytesLike
from core_log.varint import varint

Groups = Sequence[Sequence[bytes]]
"""See the module's rule 1; no groups: everything is looked for."""

LOOKED_BYTES_MAX = 16 << 20
"""So much of a log is looked at for one fetch."""
_ATTRIBUTES = 22
"""The byte of a header that has all the bits in use."""


def key_strings(key: bytes) -> tuple[bytes, ...]:
    """A group for records with a key: it stands behind its length, which may be written in more bytes than it needs (no
    client does, and readers take it). For an empty one nothing can be looked for.
    """
    return (varint(len(key)) + key, b"\0" + key) if key else (b"",)


def containing(batches: Sequence[BytesLike], groups: Groups) -> list[BytesLike]:
    """Those of some whole batches that may hold what is looked for."""
    data = b"".join(batches)
    ends = list(accumulate(map(len, batches)))
    found = set(range(len(batches)))
    for group in groups:
        if b"" not in group:
            found &= _holders(data, ends, group)
    return [batch for index, batch in enumerate(batches) if index in found or batch[_ATTRIBUTES] & COMPRESSION_MASK]


def may_have(records: bytes, groups: Groups) -> bool:
    """Whether what is looked for may be among the records of a batch, decompressed."""
    return all(any(string in records for string in group) for group in groups)


def _holders(data: bytes, ends: list[int], strings: Sequence[bytes]) -> set[int]:
    """The numbers of the batches, that end there, in which one of the strings begins. Where one was found the others
    are not looked for.
    """
    found = set()
    left = [(0, len(data))]
    for string in strings:
        rest = []
        for start, stop in left:
            while (at := data.find(string, start, stop)) >= 0:
                index = bisect_right(ends, at)
                begin = ends[index - 1] if index else 0
                if begin > start:
                    rest.append((start, begin))
                found.add(index)
                start = ends[index]
            if start < stop:
                rest.append((start, stop))
        left = rest
    return found
