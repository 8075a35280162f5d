"""What brokers tell each other of queues and topics elsewhere, as bytes: frames of links of kind `engine`.

README.md is the specification; framing and rules are those of `wire.py`. What is different: messages.

1. A slab travels whole (`wire_slabs.py`).
2. Counts and lengths are checked against what is there before anything is made of them.
3. Frames that have a concern of their own are in files of their own: `wire_feed.py`, `wire_places.py`,
   `wire_transactions.py`. Here are those of queues and logs, and the codec of all.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocols.buffers import LENGTH_BYTES, BytesLike
from protocols.peer.columns import Column
from protocols.peer.wire import (
    BATCHES_MAX,
    ENTRIES_MAX,
    Error,
    ErrorCode,
    Frame,
    LogName,
    Maybe,
    Number,
    PeerError,
    Pieces,
    Ranges,
)
from protocols.peer.wire_feed import CommitPlainOffsets, FeedFrame, Forward
from protocols.peer.wire_places import Fenced, Numbered, Placed
from protocols.peer.wire_slabs import Messages, Name, SlabEntry, write_array, write_column, write_head, write_slab
from protocols.peer.wire_transactions import TransactionFrame

QUEUES_MAX = 1_000_000
"""Queues that one slab goes to."""
COMMAND_BYTES_MAX = 16 << 20
"""Arguments of an operation, or what it answers."""
FETCH_BYTES_MAX = 8 << 20
"""Record batches that one answer has, but for a single batch that is larger."""

Query = Literal["count", "purge", "get", "get_no_ack"]
Settlement = Literal["ack", "requeue", "discard", "release", "unseen", "unseen_again"]


class PublishEntry(Frame):
    """A slab for queues of a home. `position` is that of its first message among all that this process sends there."""

    log: LogName
    leader_epoch: Number
    position: Number
    queue_ids: Annotated[list[Number], Meta(min_length=1, max_length=QUEUES_MAX)]
    once_in_ms: Number
    follows: Annotated[int, Meta(ge=0, le=3)]
    """1: it begins anew, and need not follow what was sent before; 2: another leader may have had it."""
    slab: SlabEntry


class RecordsEntry(Frame):
    """Records for a topic's partition."""

    log: LogName
    leader_epoch: Number
    position: Number
    begins: bool
    count: Messages
    keys: Column
    header_blocks: Column
    bodies: Column


class WaitingEntry(Frame):
    """Somebody waits until all before `sync_before` is committed; answers to what is before `heard_before` came."""

    log: LogName
    leader_epoch: Number
    sync_before: Number
    heard_before: Number


class Begin(Frame, tag=16):
    """The first frame of who dialled: `process` is another number for each process, positions are the process's."""

    process: Number


class Publish(Frame, tag=17):
    """What a turn sends. `revision` is the metadata's that is applied at the sender."""

    revision: Number
    slabs: Annotated[list[PublishEntry], Meta(max_length=ENTRIES_MAX)]
    records: Annotated[list[RecordsEntry], Meta(max_length=ENTRIES_MAX)]
    waiting: Annotated[list[WaitingEntry], Meta(max_length=ENTRIES_MAX)]


AT_MOST_ONCE = b"at-most-once"
"""Of a consumer that acknowledges nothing: what it has unsettled when the link is lost is done with. Its messages are
settled as they are passed on; a version before this takes it for one that acknowledges.
"""


class Consume(Frame, tag=18):
    """Attach consumer `number`. `arguments` are AT_MOST_ONCE or empty. Credit counts from here on: messages and bytes
    it may have been sent, all in all.
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


class Cancel(Frame, tag=19):
    """A consumer consumes no more; what it has may still be settled."""

    number: Number


class CreditEntry(Frame):
    """See `Consume`."""

    number: Number
    messages: Number
    size_bytes: Number


class Credit(Frame, tag=20):
    """More credit; without entries it is a sign of life."""

    entries: Annotated[list[CreditEntry], Meta(max_length=ENTRIES_MAX)]


class SettleEntry(Frame):
    """Deliveries of a consumer, by id; `unseen`: nobody was given them after all."""

    number: Number
    outcome: Settlement
    ranges: Ranges


class Settle(Frame, tag=21):
    """What became of deliveries."""

    entries: Annotated[list[SettleEntry], Meta(max_length=ENTRIES_MAX)]


class Ask(Frame, tag=22):
    """A question about a queue. What `get` takes is settled as a delivery of consumer `number`."""

    request: Number
    revision: Number
    query: Query
    log: LogName
    leader_epoch: Number
    queue_id: Number | None
    number: Number


class DoneEntry(Frame):
    """How far what was sent to a log is written and committed there, by position; what was refused counts as done."""

    log: LogName
    leader_epoch: Number
    written: Number
    committed: Number
    refused: Ranges


class Done(Frame, tag=23):
    """What a turn of the leader has for this peer; without entries it is a sign of life."""

    entries: Annotated[list[DoneEntry], Meta(max_length=ENTRIES_MAX)]


class DeliverEntry(Frame):
    """Messages for a consumer, under the ids `first_id` and following."""

    number: Number
    first_id: Number
    redelivered: bool
    slab: SlabEntry


class Deliver(Frame, tag=24):
    """What a turn of the leader delivers."""

    entries: Annotated[list[DeliverEntry], Meta(max_length=ENTRIES_MAX)]


class Answer(Frame, tag=25):
    """To `Consume` and `Ask`: an error by the engine's name for it (empty: none), counts, and what was got."""

    request: Number
    error: Annotated[str, Meta(max_length=64)]
    text: Annotated[str, Meta(max_length=4096)]
    messages: Number
    consumers: Number
    got: DeliverEntry | None


class Over(Frame, tag=26):
    """A consumer is gone: with its queue, or because this broker does not lead it any more."""

    number: Number
    queue_is_gone: bool


class NotLed(Frame, tag=27):
    """This broker does not lead the log in that epoch, or knows nothing of its queues yet: look again. `last`: it will
    say nothing more of what it was sent in that epoch.
    """

    log: LogName
    leader_epoch: Number
    last: bool


class Fetch(Frame, tag=28):
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


class FindTime(Frame, tag=29):
    """Where the first record at or after a time is; milliseconds since 1970."""

    request: Number
    revision: Number
    log: LogName
    leader_epoch: Number
    timestamp_ms: int


class Fetched(Frame, tag=30):
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


class Command(Frame, tag=31):
    """Have the leader of a home, or the process that has queues, run an operation; the arguments are msgpack."""

    request: Number
    revision: Number
    log: LogName
    leader_epoch: Number
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    arguments: Annotated[bytes, Meta(max_length=COMMAND_BYTES_MAX)]


class Result(Frame, tag=38):
    """To `Command`: an error as in `Answer`, and what the operation answered (msgpack)."""

    request: Number
    error: Annotated[str, Meta(max_length=64)]
    text: Annotated[str, Meta(max_length=4096)]
    value: Annotated[bytes, Meta(max_length=COMMAND_BYTES_MAX)]


AnyEngineFrame = (
    Begin | Publish | Consume | Cancel | Credit | Settle | Ask | Done | Deliver | Answer | Over | NotLed
    | Fetch | FindTime | Fetched | Command | Result
    | FeedFrame | Numbered | Placed | Fenced | TransactionFrame
)  # fmt: skip
_decoder: msgspec.msgpack.Decoder[AnyEngineFrame | Error] = msgspec.msgpack.Decoder(AnyEngineFrame | Error)


def decode(frame: BytesLike) -> AnyEngineFrame | Error:
    """What a frame (without its length) says. Raises PeerError."""
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(ErrorCode.MALFORMED_FRAME, f"a frame that cannot be read: {error}") from None


def encode(frame: AnyEngineFrame | CommitPlainOffsets) -> Pieces:
    """A frame with its length, in pieces: what is large is not copied."""
    packed: Pieces = []
    tag = type(frame).__struct_config__.tag
    if isinstance(frame, Publish):
        write_head(packed, 5, tag, frame.revision)
        write_array(packed, len(frame.slabs))
        for entry in frame.slabs:
            write_head(
                packed, 7, entry.log, entry.leader_epoch, entry.position, entry.queue_ids, entry.once_in_ms,
                entry.follows,
            )  # fmt: skip
            write_slab(packed, entry.slab)
        write_array(packed, len(frame.records))
        for records in frame.records:
            write_head(packed, 8, records.log, records.leader_epoch, records.position, records.begins, records.count)
            for column in (records.keys, records.header_blocks, records.bodies):
                write_column(packed, column)
        packed.append(msgspec.msgpack.encode(frame.waiting))
    elif isinstance(frame, Forward):
        write_head(packed, 6, tag, frame.vhost, frame.copies, frame.queue, frame.name)
        write_slab(packed, frame.slab)
    elif isinstance(frame, Deliver):
        write_head(packed, 2, tag)
        write_array(packed, len(frame.entries))
        for delivery in frame.entries:
            _delivery(packed, delivery)
    elif isinstance(frame, Answer):
        write_head(packed, 7, tag, frame.request, frame.error, frame.text, frame.messages, frame.consumers)
        if frame.got is None:
            packed.append(b"\xc0")
        else:
            _delivery(packed, frame.got)
    elif isinstance(frame, Fetched):
        write_head(
            packed, 8, tag, frame.request, frame.error, frame.text, frame.log_start, frame.high_watermark, frame.offset
        )
        write_array(packed, len(frame.batches))
        for batch in frame.batches:
            packed += (b"\xc6" + len(batch).to_bytes(4, "big"), batch)
    else:
        packed.append(msgspec.msgpack.encode(frame))
    size = sum(map(len, packed))
    packed.insert(0, size.to_bytes(LENGTH_BYTES, "big"))
    return packed


def _delivery(pieces: Pieces, entry: DeliverEntry) -> None:
    write_head(pieces, 4, entry.number, entry.first_id, entry.redelivered)
    write_slab(pieces, entry.slab)
