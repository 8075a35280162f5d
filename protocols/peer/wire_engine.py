"""What brokers tell each other of queues and topics elsewhere, as bytes: frames of links of kind `engine`.

README.md is the specification; framing and rules are those of `wire.py`. What is different: messages.

1. A slab travels whole, as columns (`columns.py`). What all messages of a slab share stands once.
2. Counts and lengths are checked against what is there before anything is made of them.
3. Names are bytes: they may not be UTF-8 (`columns.NAMES`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgpack
import msgspec
from msgspec import Meta, Struct

from protocols.buffers import LENGTH_BYTES, BytesLike
from protocols.peer.columns import FACTS_MASK, Column
from protocols.peer.wire import BATCHES_MAX, Error, ErrorCode, LogName, Maybe, Number, PeerError, Pieces
from protocols.peer.wire_places import Fenced, Numbered, Placed
from protocols.peer.wire_transactions import (
    AskCoordinator,
    AskPlaces,
    CoordinatorAnswer,
    KeepStep,
    KeepTransaction,
    PutThere,
    SettleThere,
    TransactionAnswer,
)

MESSAGES_MAX = 1 << 18
"""Messages of a slab."""
ENTRIES_MAX = 100_000
"""Entries of one frame."""
QUEUES_MAX = 1_000_000
"""Queues that one slab goes to."""
RANGES_MAX = 2_000_000
COMMAND_BYTES_MAX = 16 << 20
"""Arguments of an operation, or what it answers."""
FETCH_BYTES_MAX = 8 << 20
"""Record batches that one answer has, but for a single batch that is larger."""

_LARGE_BYTES = 16 << 10

Messages = Annotated[int, Meta(ge=1, le=MESSAGES_MAX)]
Name = Annotated[bytes, Meta(max_length=65_535)]
Protocol = Annotated[str, Meta(min_length=1, max_length=32)]
Ranges = Annotated[list[Number], Meta(max_length=RANGES_MAX)]
"""First and last of each, one after the other."""
Query = Literal["count", "purge", "get", "get_no_ack"]
Settlement = Literal["ack", "requeue", "discard", "release", "unseen", "unseen_again"]


class _Frame(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


class SlabEntry(_Frame):
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


class PublishEntry(_Frame):
    """A slab for queues of a home. `position` is that of its first message among all that this process sends there."""

    log: LogName
    leader_epoch: Number
    position: Number
    queue_ids: Annotated[list[Number], Meta(min_length=1, max_length=QUEUES_MAX)]
    once_in_ms: Number
    follows: Annotated[int, Meta(ge=0, le=3)]
    """1: it begins anew, and need not follow what was sent before; 2: another leader may have had it."""
    slab: SlabEntry


class RecordsEntry(_Frame):
    """Records for a topic's partition."""

    log: LogName
    leader_epoch: Number
    position: Number
    begins: bool
    count: Messages
    keys: Column
    header_blocks: Column
    bodies: Column


class WaitingEntry(_Frame):
    """Somebody waits until all before `sync_before` is committed; answers to what is before `heard_before` came."""

    log: LogName
    leader_epoch: Number
    sync_before: Number
    heard_before: Number


class Begin(_Frame, tag=16):
    """The first frame of who dialled: `process` is another number for each process, positions are the process's."""

    process: Number


class Publish(_Frame, tag=17):
    """What a turn sends. `revision` is the metadata's that is applied at the sender."""

    revision: Number
    slabs: Annotated[list[PublishEntry], Meta(max_length=ENTRIES_MAX)]
    records: Annotated[list[RecordsEntry], Meta(max_length=ENTRIES_MAX)]
    waiting: Annotated[list[WaitingEntry], Meta(max_length=ENTRIES_MAX)]


class Consume(_Frame, tag=18):
    """Attach consumer `number`. Without a queue id the log is a stream's, and `arguments` say where to begin (msgpack).
    Credit counts from here on: messages and bytes it may have been sent, all in all.
    """

    request: Number
    revision: Number
    number: Number
    log: LogName
    leader_epoch: Number
    queue_id: Number | None
    tag: Name
    no_ack: bool
    exclusive: bool
    priority: int
    messages: Number
    size_bytes: Number
    arguments: Annotated[bytes, Meta(max_length=1 << 16)]


class Cancel(_Frame, tag=19):
    """A consumer consumes no more; what it has may still be settled."""

    number: Number


class CreditEntry(_Frame):
    """See `Consume`."""

    number: Number
    messages: Number
    size_bytes: Number


class Credit(_Frame, tag=20):
    """More credit; without entries it is a sign of life."""

    entries: Annotated[list[CreditEntry], Meta(max_length=ENTRIES_MAX)]


class SettleEntry(_Frame):
    """Deliveries of a consumer, by id; `unseen`: nobody was given them after all."""

    number: Number
    outcome: Settlement
    ranges: Ranges


class Settle(_Frame, tag=21):
    """What became of deliveries."""

    entries: Annotated[list[SettleEntry], Meta(max_length=ENTRIES_MAX)]


class Ask(_Frame, tag=22):
    """A question about a queue. What `get` takes is settled as a delivery of consumer `number`."""

    request: Number
    revision: Number
    query: Query
    log: LogName
    leader_epoch: Number
    queue_id: Number | None
    number: Number


class DoneEntry(_Frame):
    """How far what was sent to a log is written and committed there, by position; what was refused counts as done."""

    log: LogName
    leader_epoch: Number
    written: Number
    committed: Number
    refused: Ranges


class Done(_Frame, tag=23):
    """What a turn of the leader has for this peer; without entries it is a sign of life."""

    entries: Annotated[list[DoneEntry], Meta(max_length=ENTRIES_MAX)]


class DeliverEntry(_Frame):
    """Messages for a consumer, under the ids `first_id` and following."""

    number: Number
    first_id: Number
    redelivered: bool
    slab: SlabEntry


class Deliver(_Frame, tag=24):
    """What a turn of the leader delivers."""

    entries: Annotated[list[DeliverEntry], Meta(max_length=ENTRIES_MAX)]


class Answer(_Frame, tag=25):
    """To `Consume` and `Ask`: an error by the engine's name for it (empty: none), counts, and what was got."""

    request: Number
    error: Annotated[str, Meta(max_length=64)]
    text: Annotated[str, Meta(max_length=4096)]
    messages: Number
    consumers: Number
    got: DeliverEntry | None


class Over(_Frame, tag=26):
    """A consumer is gone: with its queue, or because this broker does not lead it any more."""

    number: Number
    queue_is_gone: bool


class NotLed(_Frame, tag=27):
    """This broker does not lead the log in that epoch, or knows nothing of its queues yet: look again. `last`: it will
    say nothing more of what it was sent in that epoch.
    """

    log: LogName
    leader_epoch: Number
    last: bool


class InterestEntry(_Frame):
    """What queues that end with their broker want: `routing.topology.interest.Interest`."""

    vhost: Name
    exchange: Name
    pattern: Name
    syntax: Annotated[str, Meta(max_length=16)]
    arguments: Annotated[bytes, Meta(max_length=1 << 20)]
    queue: Name


class Wanted(_Frame, tag=32):
    """More and less that is wanted at the sender; with `anew` all that was told before is void."""

    number: Maybe
    anew: bool
    more: Annotated[list[InterestEntry], Meta(max_length=ENTRIES_MAX)]
    less: Annotated[list[InterestEntry], Meta(max_length=ENTRIES_MAX)]


class Noted(_Frame, tag=33):
    """All up to a number is known here. Queues of the same names are here, too: virtual host and name of each."""

    number: Maybe
    same: Annotated[list[tuple[Name, Name]], Meta(max_length=ENTRIES_MAX)]


class Forward(_Frame, tag=34):
    """Messages for queues that end with the receiver; `copies` are further keys that they are published with. With a
    `queue` they are for that one alone. What has a `name` is not given to them twice.
    """

    vhost: Name
    copies: Annotated[list[Name], Meta(max_length=ENTRIES_MAX)]
    queue: Name
    name: Annotated[bytes, Meta(max_length=64)]
    slab: SlabEntry


class OffsetEntry(_Frame):
    """How far a group has come in a partition."""

    topic: Name
    partition: Number
    offset: Number
    note: Annotated[str, Meta(max_length=65_535)]


class CommitOffsets(_Frame, tag=35):
    """Keep these for a group that the receiver leads."""

    request: Number
    group: Name
    entries: Annotated[list[OffsetEntry], Meta(max_length=ENTRIES_MAX)]


class FetchOffsets(_Frame, tag=36):
    """Tell what a group has committed: in some partitions, or everywhere."""

    request: Number
    group: Name
    partitions: Annotated[list[tuple[Name, Number]], Meta(max_length=ENTRIES_MAX)] | None


class Offsets(_Frame, tag=37):
    """To `CommitOffsets` and `FetchOffsets`: why not (empty: done), and what there is."""

    request: Number
    error: Annotated[str, Meta(max_length=4096)]
    entries: Annotated[list[OffsetEntry], Meta(max_length=ENTRIES_MAX)]


class Fetch(_Frame, tag=28):
    """Read a log that the receiver leads: whole batches from the one that holds `offset` on, below `before`, about
    `size_bytes` of them. With `waits` there is no answer before the high watermark is beyond `offset`.
    """

    request: Number
    revision: Number
    log: LogName
    leader_epoch: Number
    offset: Number
    before: Number
    size_bytes: Annotated[int, Meta(ge=0, le=FETCH_BYTES_MAX)]
    waits: bool


class FindTime(_Frame, tag=29):
    """Where the first record at or after a time is; milliseconds since 1970."""

    request: Number
    revision: Number
    log: LogName
    leader_epoch: Number
    timestamp_ms: int


class Fetched(_Frame, tag=30):
    """To both: an error as in `Answer`, where the log begins, how far it is committed, and what was asked for. `offset`
    is what was found for a time.
    """

    request: Number
    error: Annotated[str, Meta(max_length=64)]
    text: Annotated[str, Meta(max_length=4096)]
    log_start: Number
    high_watermark: Number
    offset: Maybe
    batches: Annotated[list[memoryview], Meta(max_length=BATCHES_MAX)]


class Command(_Frame, tag=31):
    """Have the leader of a home, or the process that has queues, run an operation; the arguments are msgpack."""

    request: Number
    revision: Number
    log: LogName
    leader_epoch: Number
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    arguments: Annotated[bytes, Meta(max_length=COMMAND_BYTES_MAX)]


class Result(_Frame, tag=38):
    """To `Command`: an error as in `Answer`, and what the operation answered (msgpack)."""

    request: Number
    error: Annotated[str, Meta(max_length=64)]
    text: Annotated[str, Meta(max_length=4096)]
    value: Annotated[bytes, Meta(max_length=COMMAND_BYTES_MAX)]


FeedFrame = Wanted | Noted | Forward | CommitOffsets | FetchOffsets | Offsets
"""What `adapter_feed.py` deals with."""
AnyEngineFrame = (
    Begin | Publish | Consume | Cancel | Credit | Settle | Ask | Done | Deliver | Answer | Over | NotLed
    | Fetch | FindTime | Fetched | Command | Result
    | Wanted | Noted | Forward | CommitOffsets | FetchOffsets | Offsets
    | Numbered | Placed | Fenced
    | KeepTransaction | AskPlaces | SettleThere | TransactionAnswer | AskCoordinator | CoordinatorAnswer
    | KeepStep | PutThere
)  # fmt: skip
_decoder: msgspec.msgpack.Decoder[AnyEngineFrame | Error] = msgspec.msgpack.Decoder(AnyEngineFrame | Error)
_pack = msgpack.Packer().pack


def decode(frame: BytesLike) -> AnyEngineFrame | Error:
    """What a frame (without its length) says. Raises PeerError."""
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(ErrorCode.MALFORMED_FRAME, f"a frame that cannot be read: {error}") from None


def encode(frame: AnyEngineFrame) -> Pieces:
    """A frame with its length, in pieces: what is large is not copied."""
    packed: Pieces = []
    tag = type(frame).__struct_config__.tag
    if isinstance(frame, Publish):
        _head(packed, 5, tag, frame.revision)
        _array(packed, len(frame.slabs))
        for entry in frame.slabs:
            _head(
                packed, 7, entry.log, entry.leader_epoch, entry.position, entry.queue_ids, entry.once_in_ms,
                entry.follows,
            )  # fmt: skip
            _slab(packed, entry.slab)
        _array(packed, len(frame.records))
        for records in frame.records:
            _head(packed, 8, records.log, records.leader_epoch, records.position, records.begins, records.count)
            for column in (records.keys, records.header_blocks, records.bodies):
                _column(packed, column)
        packed.append(msgspec.msgpack.encode(frame.waiting))
    elif isinstance(frame, Forward):
        _head(packed, 6, tag, frame.vhost, frame.copies, frame.queue, frame.name)
        _slab(packed, frame.slab)
    elif isinstance(frame, Deliver):
        _head(packed, 2, tag)
        _array(packed, len(frame.entries))
        for delivery in frame.entries:
            _delivery(packed, delivery)
    elif isinstance(frame, Answer):
        _head(packed, 7, tag, frame.request, frame.error, frame.text, frame.messages, frame.consumers)
        if frame.got is None:
            packed.append(b"\xc0")
        else:
            _delivery(packed, frame.got)
    elif isinstance(frame, Fetched):
        _head(
            packed, 8, tag, frame.request, frame.error, frame.text, frame.log_start, frame.high_watermark, frame.offset
        )
        _array(packed, len(frame.batches))
        for batch in frame.batches:
            packed += (b"\xc6" + len(batch).to_bytes(4, "big"), batch)
    else:
        packed.append(msgspec.msgpack.encode(frame))
    size = sum(map(len, packed))
    packed.insert(0, size.to_bytes(LENGTH_BYTES, "big"))
    return packed


def _array(pieces: Pieces, count: int) -> None:
    pieces.append(b"\xdd" + count.to_bytes(4, "big"))


def _head(pieces: Pieces, count: int, *fields: Any) -> None:
    """An array of `count`, and its first fields."""
    pieces.append(bytes((0x90 + count,)) + b"".join(map(_pack, fields)))


def _delivery(pieces: Pieces, entry: DeliverEntry) -> None:
    _head(pieces, 4, entry.number, entry.first_id, entry.redelivered)
    _slab(pieces, entry.slab)


def _slab(pieces: Pieces, slab: SlabEntry) -> None:
    bodies, keys, raws = slab.bodies, slab.keys, slab.raws
    head = (
        slab.exchange, slab.routing_key, slab.protocol, slab.persistent, slab.raw, slab.facts, slab.delay_ms,
        slab.count,
    )  # fmt: skip
    if len(bodies[1]) < _LARGE_BYTES:
        pieces.append(_pack((*head, bodies, keys, raws, slab.facts_of_each)))
        return
    pieces.append(b"\x9c" + _pack(head)[1:])
    _column(pieces, bodies)
    for column in (keys, raws):
        if column is None:
            pieces.append(b"\xc0")
        else:
            _column(pieces, column)
    pieces.append(_pack(slab.facts_of_each))


def _column(pieces: Pieces, column: Column) -> None:
    sizes, values = column
    if len(values) < _LARGE_BYTES:
        pieces.append(_pack(column))
    else:
        pieces.append(b"\x92" + _pack(sizes) + b"\xc6" + len(values).to_bytes(4, "big"))
        pieces.append(values)
