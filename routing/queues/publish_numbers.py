"""Publishes that may be said again and are to be there once: which of them a home partition has taken.

1. A publisher is a durable queue's id: who has one outlives its connections, and its numbers end with the queue. A
   number (uint16) belongs to one message from its publish until it is released; then it may be used for another.
2. That a message was taken stands in the directory of its batch (`directory.py`): a crash keeps both or neither.
   Releases are control records (`settlement.py`), and who releases waits for them to be committed. So a publish that is
   said again after a crash is put only where it is missing.
3. A publisher's connections have rising epochs (`clients_elsewhere.py`; 0: none). A home that has heard of one refuses
   what an earlier one says: what a broker that stood still says of a client that has gone on elsewhere. Publishes and
   releases bring the epoch along, and no release is written before it, so that a number may be used again only where
   nobody can come late with what it was before. The same holds for who consumes the queue and receives of it.
4. Checkpoints keep what is not released, and epochs.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from struct import Struct

_HEAD = Struct(">II")
_EPOCH = Struct(">II")


class PublishNumbers:
    """See the module; of one home partition."""

    __slots__ = ("by_publisher", "epochs")

    def __init__(self) -> None:
        self.by_publisher: dict[int, set[int]] = {}
        self.epochs: dict[int, int] = {}
        """Of the latest connection of a publisher that is known."""

    def __bool__(self) -> bool:
        return bool(self.by_publisher or self.epochs)

    def begin(self, publisher: int, epoch: int) -> None:
        """A connection is the latest; 0: nothing is known any more."""
        if epoch:
            self.epochs[publisher] = max(epoch, self.epochs.get(publisher, 0))
        else:
            self.epochs.pop(publisher, None)

    def known(self, publisher: int, numbers: Iterable[int]) -> set[int]:
        """Which of these were taken."""
        taken = self.by_publisher.get(publisher)
        return taken.intersection(numbers) if taken else set()

    def note(self, publisher: int, numbers: Iterable[int]) -> None:
        """These are taken."""
        self.by_publisher.setdefault(publisher, set()).update(numbers)

    def release(self, publisher: int, numbers: Collection[int] = ()) -> list[int]:
        """These, or all without any, may be used again; which of them were taken."""
        taken = self.by_publisher.get(publisher)
        if not taken:
            return []
        found = sorted(taken.intersection(numbers) if numbers else taken)
        taken.difference_update(found)
        if not taken:
            del self.by_publisher[publisher]
        return found

    def keep(self, publishers: Collection[int]) -> None:
        """Forget all others."""
        self.by_publisher = {one: taken for one, taken in self.by_publisher.items() if one in publishers}
        self.epochs = {one: epoch for one, epoch in self.epochs.items() if one in publishers}

    def copy(self) -> PublishNumbers:
        """The same for somebody else."""
        found = PublishNumbers()
        found.by_publisher = {publisher: set(taken) for publisher, taken in self.by_publisher.items()}
        found.epochs = dict(self.epochs)
        return found

    def dump(self) -> dict[int, bytes]:
        """For a checkpoint."""
        return {publisher: pack_numbers(sorted(taken)) for publisher, taken in self.by_publisher.items()}

    def load(self, dumped: Mapping[int, bytes]) -> None:
        """The inverse."""
        self.by_publisher = {publisher: set(unpack_numbers(packed)) for publisher, packed in dumped.items()}


def pack_numbers(numbers: Iterable[int]) -> bytes:
    """Numbers as they are written: little-endian."""
    column = array("H", numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def unpack_numbers(packed: bytes) -> array[int]:
    """The inverse."""
    column = array("H")
    column.frombytes(packed[: len(packed) // 2 * 2])
    if sys.byteorder == "big":
        column.byteswap()
    return column


def encode_numbers(noted: Iterable[tuple[int, Sequence[int]]]) -> bytes:
    """The value of a RELEASED or NUMBERED record from (publisher, numbers)."""
    return b"".join([_HEAD.pack(publisher, len(numbers)) + pack_numbers(numbers) for publisher, numbers in noted])


def decode_numbers(value: bytes) -> Iterator[tuple[int, array[int]]]:
    """(publisher, numbers) of such a record."""
    at = 0
    while at + _HEAD.size <= len(value):
        publisher, count = _HEAD.unpack_from(value, at)
        start = at + _HEAD.size
        at = start + 2 * count
        yield publisher, unpack_numbers(value[start:at])


def encode_epochs(begun: Iterable[tuple[int, int]]) -> bytes:
    """The value of an EPOCHS record from (publisher, epoch)."""
    return b"".join([_EPOCH.pack(*one) for one in begun])


def decode_epochs(value: bytes) -> Iterator[tuple[int, int]]:
    """The inverse."""
    return _EPOCH.iter_unpack(value[: len(value) // _EPOCH.size * _EPOCH.size])
