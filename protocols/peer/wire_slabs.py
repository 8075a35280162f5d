"""Messages on links between brokers as bytes: a slab travels whole, as columns (`columns.py`).

What all messages of a slab share stands once. Names are bytes: they may not be UTF-8 (`columns.NAMES`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgpack
from msgspec import Meta

from protocols.peer.columns import FACTS_MASK, Column
from protocols.peer.wire import Frame, Pieces

MESSAGES_MAX = 1 << 18
"""Messages of a slab."""

_LARGE_BYTES = 16 << 10

Messages = Annotated[int, Meta(ge=1, le=MESSAGES_MAX)]
Name = Annotated[bytes, Meta(max_length=65_535)]
Protocol = Annotated[str, Meta(min_length=1, max_length=32)]

_pack = msgpack.Packer().pack


class SlabEntry(Frame):
    """A slab: `routing.message.Slab`. Facts are their low 42 bits and the delay, of all or of each (16 bytes)."""

    exchange: Name
    routing_key: Name
    protocol: Protocol
    persistent: bool
    raw: bytes
    facts: Annotated[int, Meta(ge=0, le=FACTS_MASK)]
    delay_ms: Annotated[int, Meta(ge=0, le=(1 << 41) - 1)]
    count: Messages
    bodies: Column
    keys: Column | None
    raws: Column | None
    facts_of_each: bytes | None


def write_array(pieces: Pieces, count: int) -> None:
    """The head of an array, whose entries follow."""
    pieces.append(b"\xdd" + count.to_bytes(4, "big"))


def write_head(pieces: Pieces, count: int, *fields: Any) -> None:
    """The head of an array of `count`, at most 15, and its first fields."""
    pieces.append(bytes((0x90 + count,)) + b"".join(map(_pack, fields)))


def write_slab(pieces: Pieces, slab: SlabEntry) -> None:
    """A slab; what is large of it is not copied."""
    bodies, keys, raws = slab.bodies, slab.keys, slab.raws
    head = (
        slab.exchange, slab.routing_key, slab.protocol, slab.persistent, slab.raw, slab.facts, slab.delay_ms,
        slab.count,
    )  # fmt: skip
    if len(bodies[1]) < _LARGE_BYTES:
        pieces.append(_pack((*head, bodies, keys, raws, slab.facts_of_each)))
        return
    pieces.append(b"\x9c" + _pack(head)[1:])
    write_column(pieces, bodies)
    for column in (keys, raws):
        if column is None:
            pieces.append(b"\xc0")
        else:
            write_column(pieces, column)
    pieces.append(_pack(slab.facts_of_each))


def write_column(pieces: Pieces, column: Column) -> None:
    """A column, likewise."""
    sizes, values = column
    if len(values) < _LARGE_BYTES:
        pieces.append(_pack(column))
    else:
        pieces.append(b"\x92" + _pack(sizes) + b"\xc6" + len(values).to_bytes(4, "big"))
        pieces.append(values)
