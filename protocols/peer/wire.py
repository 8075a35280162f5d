"""What brokers tell each other as bytes: README.md is the specification, this is its only codec.

1. A frame is a 4-byte big-endian length and that many bytes: exactly one msgpack array, `[kind, ...]`.
2. msgspec reads, because it checks every type, range and count against the schema *while* decoding, and leaves record
   batches as views of the frame. It writes as well, but for frames with record batches, which msgpack puts together.
3. Record batches are never copied here: encoders return a list of pieces, the batches among them as they were given.
4. Frames of the handshake may have further fields, so that brokers of different versions understand each other that
   far; all others have exactly the fields of the version that was agreed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Literal

import msgpack
import msgspec
from msgspec import Meta, Struct

from core_log.replication import messages
from protocols.buffers import LENGTH_BYTES, BytesLike
from protocols.sansio import RemoteProtocolError

VERSION = 4
"""Of all frames. 2: sessions, retained messages and wills of MQTT go between brokers, and a leader has a last word.
3: steps of writers. 4: epochs of clients' connections.
"""
NONCE_BYTES = 32
PROOF_BYTES = 32
ENTRIES_MAX = 100_000
"""Entries of one frame."""
RANGES_MAX = 2_000_000
BATCHES_MAX = 1_000_000

Pieces = list[BytesLike]
LinkKind = Literal["replica", "engine"]
Reason = Literal["not_leader", "fenced_epoch", "unknown_epoch", "out_of_range"]

Count = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF)]
Number = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]
Maybe = Annotated[int, Meta(ge=-1, le=0x7FFF_FFFF_FFFF_FFFF)]
"""-1 stands for none."""
Id = Annotated[str, Meta(max_length=255)]
LogName = Annotated[str, Meta(min_length=1, max_length=600)]
Ranges = Annotated[list[Number], Meta(max_length=RANGES_MAX)]
"""First and last of each, one after the other."""
Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Proof = Annotated[bytes, Meta(max_length=PROOF_BYTES)]


class ErrorCode(IntEnum):
    """Why a link is closed. A number is for ever."""

    MALFORMED_FRAME = 1
    FRAME_TOO_LARGE = 2
    UNEXPECTED_FRAME = 3
    WRONG_VERSION = 4
    WRONG_CLUSTER = 5
    WRONG_BROKER = 6
    WRONG_SECRET = 7
    STALE_EPOCH = 8
    WRONG_DIRECTORY = 9
    NOT_A_MEMBER = 10
    TIMED_OUT = 11
    REPLACED = 12
    SHUTTING_DOWN = 13
    CREDIT_EXCEEDED = 14
    UNSUPPORTED_LINK = 15


class PeerError(RemoteProtocolError):
    """The link closes; the text is one line. `told` is set when the peer said it, who then need not be told."""

    def __init__(self, code: ErrorCode | int, text: str, *, told: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.told = told


class _Handshake(Struct, array_like=True, gc=False):
    pass


class Frame(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """What a frame, or an entry of one, is after the handshake."""


class Hello(_Handshake, tag=0):
    """From who dials: who it is, whom it wants and what for."""

    version_min: Count
    version_max: Count
    link: Annotated[str, Meta(max_length=32)]
    cluster_id: Id
    broker_id: Count
    broker_epoch: Number
    directory_id: Id
    to_broker_id: Count
    nonce: Nonce


class Challenge(_Handshake, tag=1):
    """From who was dialled: who it is, and the version that both will speak."""

    version: Count
    cluster_id: Id
    broker_id: Count
    broker_epoch: Number
    directory_id: Id
    nonce: Nonce
    wall_clock_ms: Number = 0
    """Milliseconds since 1970 where it is sent; 0 where that is not said."""
    takes_ids: bool = False
    """Whether it takes the ids of topics with offsets that are to be committed."""


class Answer(_Handshake, tag=2):
    """From who dials: the proof that it knows the secret; empty where there is none."""

    proof: Proof


class Accepted(_Handshake, tag=3):
    """From who was dialled: its own proof. From here on the link is what it was opened for."""

    proof: Proof


class PositionEntry(Frame):
    """`core_log.replication.messages.Position`, field by field."""

    log: LogName
    leader_epoch: Number
    fetch_offset: Number
    last_epoch: Maybe
    reported: Number
    log_start: Number
    refusing: bool
    tag: Number
    missed: bool


class Positions(Frame, tag=4):
    """A follower's standing orders, as far as they are new; without any it is a sign of life.

    `credit_bytes` is how many bytes of record batches the leader may have sent since the link began, all in all.
    `revision` is the metadata's at which the topology has changed last for all that the follower has applied.
    """

    credit_bytes: Number
    revision: Number
    entries: Annotated[list[PositionEntry], Meta(max_length=ENTRIES_MAX)]


class BatchesEntry(Frame):
    """`core_log.replication.messages.Batches`, field by field."""

    log: LogName
    leader_epoch: Number
    tag: Number
    high_watermark: Number
    log_start: Number
    sync_before: Number
    after: Number
    end: Number
    batches: Annotated[list[memoryview], Meta(max_length=BATCHES_MAX)]


class Batches(Frame, tag=5):
    """What a turn of the leader has for this follower; without entries it is a sign of life."""

    entries: Annotated[list[BatchesEntry], Meta(max_length=ENTRIES_MAX)]


class Diverging(Frame, tag=6):
    """`core_log.replication.messages.Diverging`, field by field."""

    log: LogName
    leader_epoch: Number
    epoch: Number
    end_offset: Number
    answers: tuple[Number, Maybe]


class Refused(Frame, tag=7):
    """`core_log.replication.messages.Refused`, field by field."""

    log: LogName
    reason: Reason
    leader: Count | None
    leader_epoch: Number
    log_start: Number
    answers: tuple[Maybe, Maybe]


class Error(_Handshake, tag=255):
    """The last frame: why the link closes, in one line."""

    code: Count
    text: str


AnyFrame = Hello | Challenge | Answer | Accepted | Positions | Batches | Diverging | Refused | Error

_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)


def decode(frame: BytesLike) -> AnyFrame:
    """What a frame (without its length) says. Batches are views of `frame`. Raises PeerError."""
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(ErrorCode.MALFORMED_FRAME, f"a frame that cannot be read: {error}") from None


def encode(frame: AnyFrame) -> bytes:
    """A frame with its length; for `Batches` rather use `encode_batches`, which copies nothing."""
    if isinstance(frame, Batches):
        return b"".join(encode_batches([messages.Batches(*msgspec.structs.astuple(entry)) for entry in frame.entries]))
    body = msgspec.msgpack.encode(frame)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def encode_batches(entries: Sequence[messages.Batches]) -> Pieces:
    """A `Batches` frame in pieces; the batches are passed through uncopied."""
    packer = msgpack.Packer(autoreset=False)
    packer.pack_array_header(2)
    packer.pack(5)
    packer.pack_array_header(len(entries))
    pieces: Pieces = []
    for entry in entries:
        packer.pack_array_header(9)
        for field in entry[:8]:
            packer.pack(field)
        packer.pack_array_header(len(entry.batches))
        head = packer.bytes()
        packer.reset()
        for batch in entry.batches:
            pieces.append(head + b"\xc6" + len(batch).to_bytes(4, "big"))
            pieces.append(batch)
            head = b""
        if head:
            pieces.append(head)
    if not entries:
        pieces.append(packer.bytes())
    pieces[0] = sum(map(len, pieces)).to_bytes(LENGTH_BYTES, "big") + pieces[0]
    return pieces
