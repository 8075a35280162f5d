"""Content on its way out: `basic.deliver` for runs of messages, and single contents of any method.

A delivery on the wire, with what is the same for a whole run of messages in brackets:

    [method frame up to the consumer tag]  delivery tag (8)
    [redelivered, exchange, routing key, frame end; header frame; body frame's head]  body  [frame end]

1. A run is encoded with one `join` over a list filled by strided slice assignment: per message only the low byte of the
   tag and the body are pieces of their own (36 ns a message measured, against 91 for a loop that appends).
2. The frame end of one message leads the constant head of the next.
3. Bodies of `SEPARATE_BYTES_MIN` and more are handed on as they are instead of being copied into a join.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from protocols.amqp.wire import fitting, short_string

SEPARATE_BYTES_MIN = 16 * 1024
_TAILS_MAX = 128

_FRAME_HEAD = struct.Struct(">BHI")
_TAG = struct.Struct(">Q")
_LOW_BYTES = [bytes((byte,)) for byte in range(256)]
_END = b"\xce"
_DELIVER = b"\x00\x3c\x00\x3c"


class DeliveryPrefix(dict[int, bytes]):
    """What is constant for one consumer, route, set of properties and redelivered flag.

    As a mapping: body length -> the bytes between delivery tag and body (without the last frame end for an empty body).
    """

    __slots__ = ("_channel_id", "_header", "_route", "head")

    def __init__(
        self, channel_id: int, consumer_tag: str, exchange: str, routing_key: str, raw: bytes, redelivered: bool
    ) -> None:
        super().__init__()
        head = _DELIVER + short_string(consumer_tag)
        route = b"%c%b%b" % (redelivered, short_string(fitting(exchange)), short_string(fitting(routing_key)))
        self._channel_id = channel_id
        self._route = route + _END + _FRAME_HEAD.pack(2, channel_id, 12 + len(raw)) + b"\x00\x3c\x00\x00"
        self._header = raw
        self.head = _FRAME_HEAD.pack(1, channel_id, len(head) + 8 + len(route)) + head

    def __missing__(self, size: int) -> bytes:
        tail = self._route + _TAG.pack(size) + self._header
        if size:
            tail += _END + _FRAME_HEAD.pack(3, self._channel_id, size)
        if len(self) < _TAILS_MAX:
            self[size] = tail
        return tail

    def header_end(self, size: int) -> bytes:
        """Between delivery tag and body frames, for a body that takes several frames."""
        return self._route + _TAG.pack(size) + self._header + _END


def encode_run(prefix: DeliveryPrefix, first_tag: int, bodies: Sequence[bytes], sizes: Sequence[int]) -> bytes:
    """Deliveries of `bodies` with rising tags; every body fits into one frame. `sizes` are their lengths."""
    count = len(bodies)
    if count == 1:
        return b"%b%b%b%b\xce" % (prefix.head, _TAG.pack(first_tag), prefix[sizes[0]], bodies[0])
    if sizes.count(sizes[0]) == count:
        tails = [prefix[sizes[0]]] * count
    else:
        tails = list(map(prefix.__getitem__, sizes))
    head = _END + prefix.head
    pieces: list[bytes] = []
    done = 0
    while done < count:
        # Up to the next multiple of 256 the upper seven bytes of the tag are constant too.
        low = first_tag & 255
        step = min(count - done, 256 - low)
        block = [head + _TAG.pack(first_tag)[:7]] * (4 * step)
        block[1::4] = _LOW_BYTES[low : low + step]
        block[2::4] = tails[done : done + step]
        block[3::4] = bodies[done : done + step]
        pieces += block
        done += step
        first_tag += step
    pieces[0] = pieces[0][1:]
    pieces.append(_END)
    return b"".join(pieces)


def encode_large(
    prefix: DeliveryPrefix, channel_id: int, first_tag: int, bodies: Sequence[bytes], frame_bytes_max: int
) -> list[bytes | memoryview]:
    """Deliveries as separate buffers, bodies cut into as many frames as they need."""
    buffers: list[bytes | memoryview] = []
    for tag, body in enumerate(bodies, first_tag):
        buffers.append(prefix.head + _TAG.pack(tag) + prefix.header_end(len(body)))
        buffers += body_frames(channel_id, body, frame_bytes_max)
    return buffers


def body_frames(channel_id: int, body: bytes, frame_bytes_max: int) -> list[bytes | memoryview]:
    """The body frames of a content: head, piece of the body and end as separate buffers."""
    payload_max = frame_bytes_max - 8
    if not body:
        return []
    if len(body) <= payload_max:
        return [_FRAME_HEAD.pack(3, channel_id, len(body)), body, _END]
    buffers: list[bytes | memoryview] = []
    view = memoryview(body)
    for start in range(0, len(body), payload_max):
        piece = view[start : start + payload_max]
        buffers += [_FRAME_HEAD.pack(3, channel_id, len(piece)), piece, _END]
    return buffers


def method_frame(channel_id: int, payload: bytes) -> bytes:
    """A method frame round `payload`."""
    return b"%b%b\xce" % (_FRAME_HEAD.pack(1, channel_id, len(payload)), payload)


def content(channel_id: int, payload: bytes, raw: bytes, body: bytes, frame_bytes_max: int) -> bytes:
    """A whole content: the method `payload`, a header frame with the properties `raw`, body frames."""
    header = _FRAME_HEAD.pack(2, channel_id, 12 + len(raw)) + b"\x00\x3c\x00\x00" + _TAG.pack(len(body)) + raw + _END
    return b"".join([method_frame(channel_id, payload), header, *body_frames(channel_id, body, frame_bytes_max)])
