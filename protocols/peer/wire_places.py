"""What goes before messages on links of kind `engine` where they are handed over once
(`routing/queues/homes/receipts.py`): numbers of publishes, and offsets of deliveries. The codec is `wire_engine.py`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from protocols.peer.wire import ENTRIES_MAX, Frame, LogName, Number, Ranges

NUMBERS_BYTES_MAX = 1 << 20


class NumberedEntry(Frame):
    """The slab at this position of a log is numbered by a publisher, over its connection of this epoch: uint16,
    little-endian, one for each message.
    """

    log: LogName
    position: Number
    publisher: Number
    epoch: Number
    numbers: Annotated[bytes, Meta(max_length=NUMBERS_BYTES_MAX)]


class Numbered(Frame, tag=39):
    """About slabs of the `Publish` that follows."""

    entries: Annotated[list[NumberedEntry], Meta(max_length=ENTRIES_MAX)]


class PlacedEntry(Frame):
    """Deliveries of a consumer, from an id on, lie at these offsets: first and last of each range."""

    number: Number
    first_id: Number
    offsets: Ranges


class Placed(Frame, tag=40):
    """About deliveries of the `Deliver` that follows, to consumers that are exclusive and acknowledge."""

    entries: Annotated[list[PlacedEntry], Meta(max_length=ENTRIES_MAX)]


class Fenced(Frame, tag=41):
    """A client has connected anew, elsewhere: what is said for connections of earlier epochs is not done."""

    client: Number
    epoch: Number
