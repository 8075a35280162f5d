"""The hot path in: runs of publishes and of acknowledgements, found in one pass over what was read from the socket.

A publish on the wire is a method frame, a header frame and a body frame:

    [1 channel size | 60 40 0 exchange key flags | CE]  [2 channel size | 60 0 body size, flags properties | CE]
    [3 channel size | body | CE]

1. Method frames are remembered by all their bytes (a `Route`), properties by theirs; both are parsed and checked once.
   A route remembers the shape of its last publish too: the next one like it is one `struct` call and two comparisons.
2. A run is what follows with the same method frame and the same properties. While the body size is the same too, only
   bodies differ: a `struct` of many repeats takes them out in C and the bytes between them are compared with what they
   must be (28 ns a message of 100 bytes measured, against 160 for a loop over `startswith`).
3. Where keys or properties change from message to message the run goes on (`mixed_runs`), as long as the exchange
   stays.
4. Whatever is not a whole publish in single frames within the buffer is left alone, for the frame by frame path: it
   decides, and raises, what is wrong. Only malformed properties raise here (`SyntaxFault`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_FRAME_HEAD = struct.Struct(">BHI")
_TAG = struct.Struct(">Q")
UNIFORM_MIN = 16
"""So many equal publishes in a row are taken as a run of their own."""
_END = 0xCE
_ACK_BYTES = 21
_TAG_MAX = (1 << 64) - 1
_CYCLE = bytes(range(256))
_CHUNKS = (128, 16)
_STRUCTS_MAX = 256
_REMEMBERED_BYTES_MAX = 1024

Family = tuple[int, str, bool]
"""Channel, exchange and mandatory flag: publishes that agree in them may go together."""

_run_structs: dict[tuple[int, int, int], Callable[[bytes, int], tuple[bytes, ...]]] = {}
_layouts: dict[tuple[int, int], struct.Struct] = {}


@dataclass(slots=True)
class PublishRun:
    """Publishes of one channel to one exchange that go together (rule 3).

    `properties` and `routing_key` are those of the first, and of all unless there are `raws` and `keys`, one for each;
    `facts` are there when they differ. `raw` are the property bytes of the first.
    """

    channel: int
    exchange: str
    routing_key: str
    mandatory: bool
    properties: Any
    bodies: list[bytes]
    raw: bytes = field(default=b"", compare=False)
    keys: list[str] | None = None
    raws: list[bytes] | None = None
    facts: list[int] | None = None

    @property
    def is_long_and_uniform(self) -> bool:
        """Worth more as it is than with others in it."""
        return len(self.bodies) >= UNIFORM_MIN and self.keys is None and self.raws is None


@dataclass(slots=True)
class AckRange:
    """`basic.ack` of the delivery tags `first` to `last`, one by one."""

    channel: int
    first: int
    last: int


@dataclass(slots=True)
class AckUpTo:
    """`basic.ack` with `multiple`: all up to and including `last`; 0 is all there are."""

    channel: int
    last: int


@dataclass(slots=True)
class Route:
    """A method frame `basic.publish`, parsed, and the shape of the last publish that began with it.

    A shape is everything that precedes a body but the two places where its size is written: `layout` reads `before`,
    body size, `between`, body length.
    """

    channel: int
    exchange: str
    routing_key: str
    mandatory: bool
    frame: bytes
    layout: struct.Struct | None = None
    before: bytes = b""
    between: bytes = b""
    properties: Any = None
    raw: bytes = b""
    family: Family = field(init=False)

    def __post_init__(self) -> None:
        self.family = self.channel, self.exchange, self.mandatory


class PropertiesMemo:
    """Property bytes -> what `intern` made of them."""

    def __init__(self, intern: Callable[[bytes], Any], entries_max: int) -> None:
        self._intern = intern
        self._entries_max = entries_max
        self._known: dict[bytes, Any] = {}

    def get(self, raw: bytes) -> Any:
        """What stands for these property bytes. Raises SyntaxFault when they are malformed."""
        found = self._known.get(raw)
        if found is None:
            found = self._intern(raw)
            # Big property lists are rarely seen twice, and would let a peer pin much memory.
            if len(raw) <= _REMEMBERED_BYTES_MAX:
                if len(self._known) >= self._entries_max:
                    self._known.clear()
                self._known[raw] = found
        return found

    def forget(self) -> None:
        """`intern` may make something else of the same bytes now."""
        self._known.clear()


def take_publishes(
    data: bytes, pos: int, end: int, route: Route, properties_of: Callable[[bytes], Any], body_bytes_max: int
) -> tuple[int, PublishRun | None]:
    """The run of publishes on `route` that starts at `pos`, and where it ends; None if there is no whole one.

    `body_bytes_max` is the largest body taken here: what one frame holds, or the message size limit if that is less.
    """
    layout = route.layout
    if layout is None or end - pos <= layout.size:
        return _take_first(data, pos, end, route, properties_of, body_bytes_max)
    before, size, between, length = layout.unpack_from(data, pos)
    start = pos + layout.size
    stop = start + length + 1
    if before != route.before or between != route.between or size != length:
        return _take_first(data, pos, end, route, properties_of, body_bytes_max)
    if not 0 < size <= body_bytes_max or stop > end or data[stop - 1] != _END:
        return pos, None
    bodies = [data[start : stop - 1]]
    run = PublishRun(
        route.channel, route.exchange, route.routing_key, route.mandatory, route.properties, bodies, route.raw
    )
    if data.startswith(before, stop):
        stop = _extend(data, stop, end, route, data[pos:start], size, bodies, body_bytes_max)
    return stop, run


def _take_first(
    data: bytes, pos: int, end: int, route: Route, properties_of: Callable[[bytes], Any], body_bytes_max: int
) -> tuple[int, PublishRun | None]:
    """`take_publishes` for a publish of another shape than the last one of the route."""
    header_at = pos + len(route.frame)
    if end - header_at < 22:
        return pos, None
    kind, channel, size = _FRAME_HEAD.unpack_from(data, header_at)
    body_at = header_at + size + 8
    if kind != 2 or channel != route.channel or size < 14 or body_at > end or data[body_at - 1] != _END:
        return pos, None
    if data[header_at + 7 : header_at + 11] != b"\x00\x3c\x00\x00":
        return pos, None
    body_size = int.from_bytes(data[header_at + 11 : header_at + 19], "big")
    if body_size > body_bytes_max:
        return pos, None
    start = stop = body_at
    body_head = b"\x03" + data[pos + 1 : pos + 3]
    if body_size:
        start = body_at + 7
        stop = start + body_size + 1
        if stop > end or data[stop - 1] != _END or data[body_at:start] != body_head + body_size.to_bytes(4, "big"):
            return pos, None
    raw = data[header_at + 19 : body_at - 1]
    bodies = [data[start : start + body_size]]
    properties = properties_of(raw)
    run = PublishRun(channel, route.exchange, route.routing_key, route.mandatory, properties, bodies, raw)
    if len(raw) <= _REMEMBERED_BYTES_MAX:
        route.before = data[pos : header_at + 11]
        route.between = data[header_at + 19 : body_at] + body_head
        route.layout = _layout(len(route.before), len(route.between))
        route.properties = properties
        route.raw = raw
        if data.startswith(route.before, stop):
            stop = _extend(data, stop, end, route, data[pos:start], body_size, bodies, body_bytes_max)
    return stop, run


def _layout(before_bytes: int, between_bytes: int) -> struct.Struct:
    key = (before_bytes, between_bytes)
    found = _layouts.get(key)
    if found is None:
        if len(_layouts) >= _STRUCTS_MAX:
            _layouts.clear()
        found = _layouts[key] = struct.Struct(f">{before_bytes}sQ{between_bytes}sI")
    return found


def _extend(
    data: bytes,
    pos: int,
    end: int,
    route: Route,
    prefix: bytes,
    body_size: int,
    bodies: list[bytes],
    body_bytes_max: int,
) -> int:
    """Add the bodies of all further publishes that differ from the first only in their bodies; returns where they end.

    `prefix` is all that precedes the body, of size `body_size`, that was taken last.
    """
    layout = route.layout
    assert layout is not None
    head_bytes = layout.size
    unpack_from = layout.unpack_from
    while pos < end:
        if data.startswith(prefix, pos):
            reached = _take_uniform(data, pos, end, prefix, body_size, bodies)
            if reached == pos:
                break
            pos = reached
            continue
        if end - pos < head_bytes:
            break
        before, size, between, length = unpack_from(data, pos)
        start = pos + head_bytes
        stop = start + length + 1
        if before != route.before or between != route.between or size != length or not 0 < size <= body_bytes_max:
            break
        if stop > end or data[stop - 1] != _END:
            break
        bodies.append(data[start : stop - 1])
        prefix = data[pos:start]
        body_size = size
        pos = stop
    return pos


def _take_uniform(data: bytes, pos: int, end: int, prefix: bytes, body_size: int, bodies: list[bytes]) -> int:
    """Take publishes that begin with `prefix` and have bodies of `body_size`; returns where the last of them ends."""
    if not body_size:
        while data.startswith(prefix, pos):
            bodies.append(b"")
            pos += len(prefix)
        return pos
    size = len(prefix) + body_size + 1
    available = (end - pos) // size
    between = b"\xce" + prefix
    for count in _CHUNKS:
        while available >= count and data.startswith(prefix, pos + (count - 1) * size):
            values = _unpacker(len(prefix), body_size, count)(data, pos)
            if values[1::2].count(between) != count - 1 or data[pos + count * size - 1] != _END:
                break
            if not data.startswith(prefix, pos):
                return pos
            bodies += values[::2]
            pos += count * size
            available -= count
    start = len(prefix)
    while available and data.startswith(prefix, pos) and data[pos + size - 1] == _END:
        bodies.append(data[pos + start : pos + size - 1])
        pos += size
        available -= 1
    return pos


def _unpacker(prefix_bytes: int, body_bytes: int, count: int) -> Callable[[bytes, int], tuple[bytes, ...]]:
    """Reads `count` messages as body, what is between, body, ..., body."""
    key = (prefix_bytes, body_bytes, count)
    found = _run_structs.get(key)
    if found is None:
        if len(_run_structs) >= _STRUCTS_MAX:
            _run_structs.clear()
        pairs = f"{body_bytes}s{prefix_bytes + 1}s" * (count - 1)
        found = _run_structs[key] = struct.Struct(f">{prefix_bytes}x{pairs}{body_bytes}s").unpack_from
    return found


def take_acks(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """From a single ack at `pos` on: the end of the acks with rising tags that follow it, and the last tag.

    Up to 256 acks are compared at once with what they must look like (5 ns each).
    """
    head = data[pos : pos + 11]
    (last,) = _TAG.unpack_from(data, pos + 11)
    pos += _ACK_BYTES
    count_max = 256
    while end - pos >= _ACK_BYTES and last < _TAG_MAX:
        expected = last + 1
        if data[pos : pos + _ACK_BYTES] != b"%b%b\0\xce" % (head, _TAG.pack(expected)):
            break
        low = expected & 255
        count = min((end - pos) // _ACK_BYTES, 256 - low, count_max)
        block = bytearray((head + _TAG.pack(expected) + b"\0\xce") * count)
        block[18::_ACK_BYTES] = _CYCLE[low : low + count]
        if data[pos : pos + len(block)] == block:
            last += count
            pos += len(block)
        else:
            last += 1
            pos += _ACK_BYTES
            count_max = max(1, count // 2)
    return pos, last
