"""Where a consumer reads, and what was fetched for it; see `fetcher.py`."""

from __future__ import annotations

from protocols.native import wire
from protocols.native.clients.records import offset_after
from protocols.native.clients.truncation import LastBatch


class Position:
    """Where a partition is read."""

    __slots__ = (
        "buffered_bytes", "epoch", "fetch_offset", "generation", "idle", "last", "offset", "out_of_range", "parked",
        "partition", "paused", "topic", "turn",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        self.topic = topic
        self.partition = partition
        self.generation = 0
        self.paused = False
        self.parked: list[Fetched] = []
        """What was fetched before it was paused."""
        self.turn = 0
        """When it had something last: rule 8 of `fetcher.py`."""
        self.move(offset)

    def move(self, offset: int) -> None:
        """Read from `offset` on; forget what was under way."""
        self.offset = offset
        self.fetch_offset = offset
        self.epoch = wire.NO_EPOCH
        """The leader epoch in which what was read is known to be in the log."""
        self.last: LastBatch | None = None
        """The last that was fetched."""
        self.buffered_bytes = 0
        self.idle = False
        """There was nothing when it was asked for last."""
        self.out_of_range = False
        """What it has to be read next is not there: rule 10 of `fetcher.py`."""
        self.parked.clear()
        self.generation += 1

    def go_on_at(self, offset: int) -> None:
        """`move`, with nothing ahead: what was handed out counts as before."""
        generation = self.generation
        self.move(offset)
        self.generation = generation

    @property
    def asked(self) -> tuple[int, int, int]:
        """What an answer has to be about to be of use: rules 2 and 4 of `fetcher.py`."""
        return self.generation, self.fetch_offset, self.epoch


class Fetched:
    """A batch that waits for the application."""

    __slots__ = ("batch", "generation", "left", "position")

    def __init__(self, position: Position, batch: memoryview) -> None:
        self.position = position
        self.generation = position.generation
        self.batch = batch
        self.left: int | None = None
        """From where on it comes again, where not all that was decoded of it could be handed out."""

    @property
    def end_offset(self) -> int:
        """Where the records end that were decoded of it."""
        return offset_after(self.batch) if self.left is None else self.left
