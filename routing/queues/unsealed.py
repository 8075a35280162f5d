"""What a home partition is to write of its queues in control records (`settlement.py`) when its log takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from routing.queues.publish_numbers import encode_epochs, encode_numbers
from routing.queues.settlement import (
    COMPLETED_KEY,
    EPOCHS_KEY,
    RECEIVED_KEY,
    RELEASED_KEY,
    RETURNED_KEY,
    SEEN_KEY,
    SETTLED_KEY,
    SIZES_KEY,
    TAKEN_KEY,
    Taken,
    encode_returned,
    encode_seen,
    encode_settled,
    encode_sizes,
    encode_taken,
)

Record = tuple[bytes, bytes]
"""Key and value."""


class Unsealed:
    """See the module; each list is what its record is made of."""

    __slots__ = ("completed", "epochs", "received", "released", "returned", "seen", "settled", "sizes", "taken")

    def __init__(self) -> None:
        self.epochs: list[tuple[int, int]] = []
        self.settled: list[tuple[int, int, int]] = []
        self.received: list[tuple[int, int, int]] = []
        self.completed: list[tuple[int, int, int]] = []
        self.released: list[tuple[int, Sequence[int]]] = []
        self.returned: list[tuple[int, int, int, int]] = []
        self.taken: list[Taken] = []
        self.seen: list[tuple[int, int, bytes]] = []
        self.sizes: list[tuple[int, int, Sequence[int]]] = []

    @property
    def waits(self) -> bool:
        """There is something that may wait a moment for more."""
        settled = self.settled or self.received or self.completed or self.released
        return bool(settled or self.returned or self.taken or self.epochs)

    def take(self, taken: Taken) -> None:
        """A view has taken records of its topic in, or passed them."""
        if self.taken:
            last = self.taken[-1]
            if last[:2] == taken[:2] and last.offset + last.count == taken.offset and last.end == taken.first:
                self.taken[-1] = last._replace(count=last.count + taken.count)
                return
        self.taken.append(taken)

    def settlements(self) -> Iterator[Record]:
        """What may wait a moment; each record counts as written when the next is asked for."""
        if self.epochs:  # before all that is said under them
            yield EPOCHS_KEY, encode_epochs(self.epochs)
            self.epochs.clear()
        if self.taken:
            yield TAKEN_KEY, encode_taken(self.taken)
            self.taken.clear()
        if self.settled:
            yield SETTLED_KEY, encode_settled(self.settled)
            self.settled.clear()
        if self.received:
            yield RECEIVED_KEY, encode_settled(self.received)
            self.received.clear()
        if self.completed:
            yield COMPLETED_KEY, encode_settled(self.completed)
            self.completed.clear()
        if self.released:
            yield RELEASED_KEY, encode_numbers(self.released)
            self.released.clear()
        if self.returned:
            yield RETURNED_KEY, encode_returned(self.returned)
            self.returned.clear()

    def notes(self) -> Iterator[Record]:
        """What belongs to messages that were written just now."""
        if self.seen:
            yield SEEN_KEY, encode_seen(self.seen)
            self.seen.clear()
        if self.sizes:
            yield SIZES_KEY, encode_sizes(self.sizes)
            self.sizes.clear()

    def clear(self) -> None:
        """Nothing of it will be written."""
        settled = (self.settled, self.received, self.completed, self.released)
        for unsealed in (*settled, self.epochs, self.returned, self.taken, self.seen, self.sizes):
            unsealed.clear()
