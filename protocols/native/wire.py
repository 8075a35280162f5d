"""The native protocol's messages as bytes: README.md is the specification, this is its only codec.

1. A frame is a 4-byte big-endian length and that many bytes: exactly one msgpack array, `[api, correlation_id, ...]`.
2. msgspec reads, because it checks every type, range and count against the schema *while* decoding (nothing hostile is
   built first, so depth and sizes are bounded by the schema) and leaves record batches as views of the frame. It
   writes as well, but for frames with record batches, which msgpack puts together.
3. Record batches are never copied here: encoders return a list of pieces, the batches among them as they were given.
4. Requests must have exactly the fields of their version; readers of replies ignore further fields. What a field of a
   later version says if it is left out is never written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, get_args

import msgpack
import msgspec
from msgspec import Meta, Struct

from protocols.buffers import LENGTH_BYTES as LENGTH_BYTES
from protocols.buffers import BytesLike
from protocols.native import wire_groups, wire_topics, wire_transactions
from protocols.native.errors import ErrorCode, ProtocolError, WireError
from protocols.native.wire_base import CONFIG_MAX, ENTRIES_MAX, Containing, Count, Epoch, Name, Offset, Text
from protocols.native.wire_base import GROUPS_SINCE as GROUPS_SINCE
from protocols.native.wire_base import NO_EPOCH as NO_EPOCH
from protocols.native.wire_base import VERSION as VERSION
from protocols.native.wire_base import VERSION_MIN as VERSION_MIN
from protocols.native.wire_base import Argument as Argument
from protocols.native.wire_base import Reply as Reply
from protocols.native.wire_base import Request as Request
from protocols.sansio import RemoteProtocolError

FETCH_API, ERROR_API = 8, 255

ACKS_NONE: Final = 0
ACKS_ALL: Final = -1
LATEST, EARLIEST = -1, -2
"""Values of `ListOffsets` entries that are no timestamps."""

Pieces = list[BytesLike]


class Hello(Request, tag=0):
    """First request of a connection. `credentials` is user and password."""

    version_min: Count
    version_max: Count
    client_name: Text
    credentials: tuple[Text, Text] | None


class Metadata(Request, tag=1):
    """Topics and who leads their partitions; `topics` None asks for all, `create_missing` creates where allowed."""

    topics: Annotated[list[Name], Meta(max_length=ENTRIES_MAX)] | None
    create_missing: bool


class ProduceEntry(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Exactly one record batch for a partition. `round` counts the producer's new starts there, see README.md."""

    topic: Name
    partition: Count
    round: Count
    batch: memoryview
    leader_epoch: Epoch = NO_EPOCH


class Produce(Request, tag=7):
    """Batches to append, in order; see README.md for `acks`."""

    acks: Literal[-1, 0, 1]
    timeout_ms: Count
    entries: Annotated[list[ProduceEntry], Meta(min_length=1, max_length=ENTRIES_MAX)]
    transactional_id: Name | None = None


class FetchEntry(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """Where to read a partition from, and how much at most."""

    topic: Name
    partition: Count
    offset: Offset
    bytes_max: Count
    leader_epoch: Epoch = NO_EPOCH


class Fetch(Request, tag=FETCH_API):
    """Whole batches from each entry's offset on; waits up to `wait_ms_max` for `bytes_min`. With `containing` those
    only that have at least one byte string of each group, see README.md.
    """

    wait_ms_max: Count
    bytes_min: Count
    bytes_max: Count
    entries: Annotated[list[FetchEntry], Meta(min_length=1, max_length=ENTRIES_MAX)]
    containing: Containing = []


class ListOffsetsEntry(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """EARLIEST, LATEST, or a time in ms for the first record not before it."""

    topic: Name
    partition: Count
    which: Annotated[int, Meta(ge=EARLIEST, le=0x7FFF_FFFF_FFFF_FFFF)]
    leader_epoch: Epoch = NO_EPOCH


class ListOffsets(Request, tag=9):
    """The offset that each entry means."""

    entries: Annotated[list[ListOffsetsEntry], Meta(min_length=1, max_length=ENTRIES_MAX)]


class CommitOffsets(Request, tag=10):
    """Entries are (topic, partition, next offset to read, metadata); durable when answered."""

    group: Name
    entries: Annotated[list[tuple[Name, Count, Offset, Text]], Meta(min_length=1, max_length=ENTRIES_MAX)]


class FetchOffsets(Request, tag=11):
    """What a group committed; `partitions` None asks for all."""

    group: Name
    partitions: Annotated[list[tuple[Name, Count]], Meta(max_length=ENTRIES_MAX)] | None


class DescribeBroker(Request, tag=12):
    """How much the home partitions of queues hold."""


class Administer(Request, tag=13):
    """An operation of administration by its name; `arguments` by theirs. Needs a user with the right tag."""

    operation: Name
    arguments: Annotated[dict[Name, Any], Meta(max_length=CONFIG_MAX)]


class OffsetsForEpochs(Request, tag=15):
    """Entries are (topic, partition, current leader epoch, epoch of the last batch that was read): KIP-320."""

    entries: Annotated[
        list[tuple[Name, Count, Epoch, Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]]],
        Meta(min_length=1, max_length=ENTRIES_MAX),
    ]


class ErrorReply(Reply, tag=ERROR_API):
    """The whole request failed. Without a correlation id: the connection did, and closes."""

    error: WireError


class HelloReply(Reply, tag=0):
    """The version both will speak, and the limits of this broker by name."""

    version: int
    server: str
    node_id: int
    limits: dict[str, int]


class PartitionMetadata(Struct, array_like=True, gc=False):
    """Who leads a partition (-1: nobody), in which epoch; who has it, and who of these has all that is committed."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int] = []
    isr: list[int] = []


class MetadataReply(Reply, tag=1):
    """nodes: (id, host, port); topics: (name, error, partitions). `topic_ids` are of these, in their order, empty where
    there is an error; there are none in versions before 6, and from older brokers.
    """

    nodes: list[tuple[int, str, int]]
    topics: list[tuple[str, WireError | None, list[PartitionMetadata]]]
    topic_ids: list[bytes] = []


class ProduceReply(Reply, tag=7):
    """(error, base offset) of each entry, in the order of the request."""

    entries: list[tuple[WireError | None, int]]


class FetchedPartition(Struct, array_like=True, gc=False):
    """What one entry of a fetch got: whole record batches, back to back; and of which topic, by its id, where the
    broker says that.
    """

    error: WireError | None
    log_start_offset: int
    high_watermark: int
    records: memoryview
    topic_id: bytes = b""


class FetchReply(Reply, tag=FETCH_API):
    """Each entry's result, in the order of the request."""

    entries: list[FetchedPartition]


class ListOffsetsReply(Reply, tag=9):
    """(error, offset or None when no record is that young, timestamp or -1) of each entry, in order."""

    entries: list[tuple[WireError | None, int | None, int]]


class CommitOffsetsReply(Reply, tag=10):
    """Committed, durably."""


class FetchOffsetsReply(Reply, tag=11):
    """(topic, partition, offset, metadata) of what is committed; the rest is absent."""

    entries: list[tuple[str, int, int, str]]


class HomeDescription(Struct, array_like=True, gc=False):
    """One home partition; stripe -1 is of transient queues. `pinned_bytes` are settled and cannot be deleted yet."""

    stripe: int
    queues: int
    live_messages: int
    log_bytes: int
    pinned_bytes: int


class DescribeBrokerReply(Reply, tag=12):
    """The home partitions, sessions, messages refused without anybody to tell since the start, and why publishers wait,
    if they do.
    """

    homes: list[HomeDescription]
    sessions: int
    refused_messages: int
    blocked: str | None = None


class AdministerReply(Reply, tag=13):
    """What the operation answered."""

    result: Any


class OffsetsForEpochsReply(Reply, tag=15):
    """(error, epoch, end offset) of each entry, in order: the largest epoch that is not above the one asked for, and
    where it ends. Epoch -1: there is none, the log begins at that offset.
    """

    entries: list[tuple[WireError | None, int, int]]


AnyRequest = (
    Hello | Metadata | Produce | Fetch | ListOffsets | CommitOffsets | FetchOffsets | DescribeBroker | Administer
    | OffsetsForEpochs | wire_topics.AnyTopicRequest | wire_groups.AnyGroupRequest
    | wire_transactions.AnyTransactionRequest
)  # fmt: skip
AnyReply = (
    ErrorReply | HelloReply | MetadataReply | ProduceReply | FetchReply | ListOffsetsReply | CommitOffsetsReply
    | FetchOffsetsReply | DescribeBrokerReply | AdministerReply | OffsetsForEpochsReply
    | wire_topics.AnyTopicReply | wire_groups.AnyGroupReply | wire_transactions.AnyTransactionReply
)  # fmt: skip

_REQUEST_APIS = range(wire_groups.API_MAX + 1)

_REQUEST_FIELDS: dict[int | None, tuple[str, ...]] = {
    kind.__struct_config__.tag: ("api", *kind.__struct_fields__) for kind in get_args(AnyRequest)
}

_request_decoder: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)
_reply_decoder: msgspec.msgpack.Decoder[AnyReply] = msgspec.msgpack.Decoder(AnyReply)


class BadRequest(RemoteProtocolError):
    """A frame that is no request. `correlation_id` is None when it could not be read; `fatal` means: close."""

    def __init__(self, code: ErrorCode, message: str, correlation_id: int | None, *, fatal: bool) -> None:
        super().__init__(message)
        self.code = code
        self.correlation_id = correlation_id
        self.fatal = fatal


def decode_request(frame: BytesLike) -> AnyRequest:
    """The request in a frame (without its length). Batches are views of `frame`. Raises BadRequest."""
    try:
        return _request_decoder.decode(frame)
    except msgspec.ValidationError as error:
        api, correlation_id = _peek(frame)
        if correlation_id is None:
            raise BadRequest(ErrorCode.MALFORMED_FRAME, str(error), None, fatal=True) from None
        code = ErrorCode.INVALID_REQUEST if api in _REQUEST_APIS else ErrorCode.UNKNOWN_API
        raise BadRequest(code, _with_names(str(error), api), correlation_id, fatal=False) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(ErrorCode.MALFORMED_FRAME, str(error), _peek(frame)[1], fatal=True) from None


def _with_names(message: str, api: int | None) -> str:
    """What is wrong with a request, with the name of the field instead of its place: "at `partitions`"."""
    names = _REQUEST_FIELDS.get(api, ())

    def name(place: re.Match[str]) -> str:
        number = int(place[1])
        return names[number] if number < len(names) else place[0]

    return re.sub(r"\$\[([0-9]+)\]", name, message, count=1)


def _peek(frame: BytesLike) -> tuple[int | None, int | None]:
    """Api and correlation id of a frame that could not be decoded, as far as they can be read."""
    unpacker = msgpack.Unpacker(max_buffer_size=64)
    unpacker.feed(bytes(frame[:32]))
    try:
        if unpacker.read_array_header() < 2:
            return None, None
        api, correlation_id = unpacker.unpack(), unpacker.unpack()
    except (msgpack.UnpackException, ValueError):
        return None, None
    if type(correlation_id) is not int or not 0 <= correlation_id <= 0xFFFF_FFFF:
        return None, None
    return (api if type(api) is int else None), correlation_id


def decode_reply(frame: BytesLike) -> AnyReply:
    """The reply in a frame (without its length). Records are views of `frame`. Raises ProtocolError."""
    try:
        return _reply_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the broker's reply cannot be read: {error}") from None


def _framed(pieces: Pieces) -> Pieces:
    """`pieces` with the length before them."""
    pieces[0] = sum(map(len, pieces)).to_bytes(LENGTH_BYTES, "big") + pieces[0]
    return pieces


def _api(message: Request | Reply) -> int:
    tag = type(message).__struct_config__.tag
    assert isinstance(tag, int)
    return tag


def encode(message: Request | Reply) -> Pieces:
    """Any request or reply as a frame in pieces; batches are passed through uncopied."""
    if isinstance(message, Produce):
        return _encode_produce(message)
    if isinstance(message, FetchReply):
        return encode_fetch_reply(
            message.correlation_id,
            [(e.error, e.log_start_offset, e.high_watermark, [e.records], e.topic_id) for e in message.entries],
        )
    if isinstance(message, Fetch | ListOffsets):
        fields = list(msgspec.structs.astuple(message))
        at = len(fields) - 1
        if isinstance(message, Fetch):
            at -= 1
            if not message.containing:
                fields.pop()
        fields[at] = [msgspec.structs.astuple(e)[:-1] if e.leader_epoch == NO_EPOCH else e for e in message.entries]
        return _framed([msgspec.msgpack.encode((_api(message), *fields))])
    return _framed([msgspec.msgpack.encode(message)])


def _bin_header(size: int) -> bytes:
    return b"\xc6" + size.to_bytes(4, "big")


def _join(head: bytearray, pieces: Pieces, blobs: Iterable[BytesLike]) -> None:
    """Add a bin made of `blobs` after `head`, which starts anew."""
    blobs = list(blobs)
    head += _bin_header(sum(map(len, blobs)))
    pieces.append(bytes(head))
    pieces += blobs
    head.clear()


def _encode_produce(request: Produce) -> Pieces:
    packer = msgpack.Packer()
    head = bytearray(packer.pack_array_header(5 if request.transactional_id is None else 6))
    fields: tuple[int, ...] = (_api(request), request.correlation_id, request.acks, request.timeout_ms)
    for field in fields:
        head += packer.pack(field)
    head += packer.pack_array_header(len(request.entries))
    pieces: Pieces = []
    for entry in request.entries:
        head += packer.pack_array_header(4 if entry.leader_epoch == NO_EPOCH else 5)
        head += packer.pack(entry.topic) + packer.pack(entry.partition) + packer.pack(entry.round)
        _join(head, pieces, (entry.batch,))
        if entry.leader_epoch != NO_EPOCH:
            head += packer.pack(entry.leader_epoch)
    if request.transactional_id is not None:
        head += packer.pack(request.transactional_id)
    if head:
        pieces.append(bytes(head))
    return _framed(pieces)


def encode_fetch_reply(
    correlation_id: int | None, entries: Sequence[tuple[WireError | None, int, int, Sequence[BytesLike], bytes]]
) -> Pieces:
    """A `FetchReply` from (error, log start offset, high watermark, batches, topic id) of each entry; batches
    uncopied.
    """
    packer = msgpack.Packer()
    head = bytearray(packer.pack_array_header(3))
    head += packer.pack(FETCH_API)
    head += packer.pack(correlation_id)
    head += packer.pack_array_header(len(entries))
    pieces: Pieces = []
    for error, log_start_offset, high_watermark, batches, topic_id in entries:
        head += packer.pack_array_header(5 if topic_id else 4)
        head += packer.pack(error)
        head += packer.pack(log_start_offset)
        head += packer.pack(high_watermark)
        _join(head, pieces, batches)
        if topic_id:
            head += packer.pack(topic_id)
    if head:
        pieces.append(bytes(head))
    return _framed(pieces)
