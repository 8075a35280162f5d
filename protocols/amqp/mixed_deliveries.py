"""Deliveries of messages whose keys or properties differ: encoded column by column.

A delivery, with what is the same for all consumers of a channel number (its *rest*) in brackets:

    method frame up to the consumer tag  delivery tag (8)
    [redelivered, exchange, routing key, frame end; header frame; body frame]

1. What precedes a body is one `struct` call a message where property lists are of one length (136 ns a message
   measured, against 481 when each is put together by itself).
2. When they are not, or a second consumer gets the same run, the rests are made, and this and all others interleave
   them with their own heads and tags (50 ns). Only the run that was encoded last is remembered for that (`LastRun`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import call

from protocols.amqp.wire import fitting, short_string

_FRAME_HEAD = struct.Struct(">BHI")
_TAG = struct.Struct(">Q")
_CONTENT_HEAD = struct.Struct(">BHIIQ")
_BODY_HEAD = struct.Struct(">BBHI")
"""The end of the header frame and the head of the body frame."""
_KEYS_MAX = 4096
_EXCHANGES_MAX = 32
_PACKERS_MAX = 64
_LOW_BYTES = [bytes((byte,)) for byte in range(256)]
_END = b"\xce"
_DELIVER = b"\x00\x3c\x00\x3c"


class RouteEnds(dict[str, bytes]):
    """Routing key -> what follows the delivery tag in a method frame, frame end included."""

    __slots__ = ("_start",)

    def __init__(self, exchange: str, redelivered: bool) -> None:
        super().__init__()
        self._start = b"%c%b" % (redelivered, short_string(fitting(exchange)))

    def __missing__(self, key: str) -> bytes:
        if len(self) >= _KEYS_MAX:
            self.clear()
        end = self[key] = self._start + short_string(fitting(key)) + _END
        return end


@lru_cache(_EXCHANGES_MAX)
def shared_ends(exchange: str, redelivered: bool) -> RouteEnds:
    """For deliveries to anybody."""
    return RouteEnds(exchange, redelivered)


class DeliveryHeads(dict[int, bytes]):
    """Length of a route's end -> what precedes the delivery tag in a method frame, for one consumer."""

    __slots__ = ("_channel_id", "_method", "bytes")

    def __init__(self, channel_id: int, consumer_tag: str) -> None:
        super().__init__()
        self._channel_id = channel_id
        self._method = _DELIVER + short_string(consumer_tag)
        self.bytes = 7 + len(self._method)

    def __missing__(self, size: int) -> bytes:
        head = self[size] = _FRAME_HEAD.pack(1, self._channel_id, len(self._method) + 7 + size) + self._method
        return head


class MixedRun:
    """A run of messages on its way to consumers on channels of one number; every body fits into one frame.

    `ends` are from `RouteEnds`, `raws` are the property lists.
    """

    __slots__ = ("_bodies", "_channel_id", "_ends", "_raws", "_rests")

    def __init__(self, channel_id: int, ends: Sequence[bytes], raws: Sequence[bytes], bodies: Sequence[bytes]) -> None:
        self._channel_id = channel_id
        self._ends = ends
        self._raws = raws
        self._bodies = bodies
        self._rests: list[bytes] | None = None

    def encode(self, heads: DeliveryHeads, first_tag: int) -> bytes:
        """The deliveries with rising tags for a consumer."""
        bodies, raws, channel_id = self._bodies, self._raws, self._channel_id
        sizes, raw_bytes, count = list(map(len, bodies)), len(raws[0]), len(bodies)
        if not min(sizes) or [*map(len, raws)].count(raw_bytes) != count:
            return self.encode_again(heads, first_tag)
        end_sizes = list(map(len, self._ends))
        pieces = [_END] * (3 * count)
        pieces[0::3] = map(
            call,
            map(_packers(raw_bytes, heads.bytes).__getitem__, end_sizes),
            map(heads.__getitem__, end_sizes),
            range(first_tag, first_tag + count),
            self._ends,
            repeat(_FRAME_HEAD.pack(2, channel_id, 12 + raw_bytes) + b"\x00\x3c\x00\x00"),
            sizes,
            raws,
            repeat(b"\xce\x03" + channel_id.to_bytes(2, "big")),
            sizes,
        )
        pieces[1::3] = bodies
        return b"".join(pieces)

    def encode_again(self, heads: DeliveryHeads, first_tag: int) -> bytes:
        """As `encode`, for one of several consumers that get this run."""
        if self._rests is None:
            self._rests = self._make_rests()
        rests, count = self._rests, len(self._rests)
        before = list(map(heads.__getitem__, map(len, self._ends)))
        pieces: list[bytes] = []
        done = 0
        while done < count:
            # Up to the next multiple of 256 the upper seven bytes of the tag are constant.
            low = first_tag & 255
            step = min(count - done, 256 - low)
            block = [_TAG.pack(first_tag)[:7]] * (4 * step)
            block[0::4] = before[done : done + step]
            block[2::4] = _LOW_BYTES[low : low + step]
            block[3::4] = rests[done : done + step]
            pieces += block
            done += step
            first_tag += step
        return b"".join(pieces)

    def encode_each(self, heads: Sequence[DeliveryHeads], first_tag: int) -> bytes:
        """The deliveries with rising tags, each for a consumer of its own."""
        count = len(heads)
        pieces = [b""] * (3 * count)
        pieces[0::3] = [of[len(end)] for of, end in zip(heads, self._ends, strict=True)]
        pieces[1::3] = map(_TAG.pack, range(first_tag, first_tag + count))
        pieces[2::3] = self._make_rests()
        return b"".join(pieces)

    def _make_rests(self) -> list[bytes]:
        channel, sizes = repeat(self._channel_id), list(map(len, self._bodies))
        header_sizes = map((12).__add__, map(len, self._raws))
        headers = map(_CONTENT_HEAD.pack, repeat(2), channel, header_sizes, repeat(0x3C0000), sizes)
        body_heads = map(_BODY_HEAD.pack, repeat(0xCE), repeat(3), channel, sizes)
        columns = zip(self._ends, headers, self._raws, body_heads, self._bodies, repeat(_END))
        rests = list(map(b"".join, columns))
        if not min(sizes):
            # No body frame: the end of the header frame is the last byte.
            rests = [rest if size else rest[:-8] for rest, size in zip(rests, sizes)]
        return rests


class LastRun:
    """The run that was encoded last, in case that the next consumer gets the same."""

    __slots__ = ("_key", "_run", "_source")

    def __init__(self) -> None:
        self._source: object = None
        self._key: object = None
        self._run: MixedRun | None = None

    def get(self, source: object, key: object) -> MixedRun | None:
        """The run if it was made of this part (`key`) of this very object."""
        return self._run if self._source is source and self._key == key else None

    def keep(self, source: object, key: object, run: MixedRun) -> None:
        """Remember it instead of the one before."""
        self._source, self._key, self._run = source, key, run


class _Packers(dict[int, Callable[..., bytes]]):
    """Length of a route's end -> packs all that precedes a body."""

    __slots__ = ("_head_bytes", "_raw_bytes")

    def __init__(self, raw_bytes: int, head_bytes: int) -> None:
        super().__init__()
        self._raw_bytes = raw_bytes
        self._head_bytes = head_bytes

    def __missing__(self, end_bytes: int) -> Callable[..., bytes]:
        pack = self[end_bytes] = struct.Struct(f">{self._head_bytes}sQ{end_bytes}s11sQ{self._raw_bytes}s4sI").pack
        return pack


@lru_cache(_PACKERS_MAX)
def _packers(raw_bytes: int, head_bytes: int) -> _Packers:
    return _Packers(raw_bytes, head_bytes)
