"""The errors of the native protocol: one table for the wire, one small tree for Python.

1. A code is for ever: numbers are never reused, new ones are added at the end, and a client that does not know a code
   goes by the retriable flag, which travels with every error.
2. Retriable means: the same request may succeed later without anybody changing it.
3. Every error a broker answered is a `MillraceError` with its `code`; the classes below exist for those worth catching.
"""

from __future__ import annotations

from enum import IntEnum

WireError = tuple[int, bool, str]
"""Code, retriable, message: how an error looks on the wire."""


class ErrorCode(IntEnum):
    """Numbers on the wire; see `RETRIABLE` and the table in README.md."""

    MALFORMED_FRAME = 1
    REQUEST_TOO_LARGE = 2
    UNKNOWN_API = 3
    INVALID_REQUEST = 4
    HELLO_REQUIRED = 5
    UNSUPPORTED_VERSION = 6
    AUTHENTICATION_FAILED = 7
    UNKNOWN_TOPIC = 8
    UNKNOWN_PARTITION = 9
    OFFSET_OUT_OF_RANGE = 10
    CORRUPT_BATCH = 11
    BATCH_TOO_LARGE = 12
    STORAGE_UNAVAILABLE = 13
    REQUEST_TIMED_OUT = 14
    OUT_OF_ORDER = 15
    LIMIT_EXCEEDED = 16
    INVALID_ARGUMENT = 17
    NOT_FOUND = 18
    ACCESS_REFUSED = 19
    PRECONDITION_FAILED = 20
    NOT_LEADER = 21
    SHUTTING_DOWN = 22
    BLOCKED = 23
    NOT_ENOUGH_REPLICAS = 24
    FENCED_LEADER_EPOCH = 25
    UNKNOWN_LEADER_EPOCH = 26
    UNKNOWN_MEMBER = 27
    ILLEGAL_GENERATION = 28
    REBALANCE_IN_PROGRESS = 29
    INCONSISTENT_PROTOCOL = 30
    FENCED_INSTANCE = 31
    NOT_COORDINATOR = 32
    COORDINATOR_UNAVAILABLE = 33
    SEQUENCE_OUT_OF_ORDER = 34
    PRODUCER_FENCED = 35
    UNRELEASED_INSTANCE = 36
    TRANSACTION_ENDING = 37
    WRONG_TRANSACTION_STATE = 38
    QUEUE_FULL = 39


MEANINGS: dict[ErrorCode, str] = {
    ErrorCode.MALFORMED_FRAME: "the frame is not one whole msgpack array; the connection closes",
    ErrorCode.REQUEST_TOO_LARGE: "the announced length is above request_bytes_max; the connection closes",
    ErrorCode.UNKNOWN_API: "no such api in this version",
    ErrorCode.INVALID_REQUEST: "a field has the wrong type or range, or the number of fields is wrong",
    ErrorCode.HELLO_REQUIRED: "the first request must be hello, once; the connection closes",
    ErrorCode.UNSUPPORTED_VERSION: "no version of the protocol in common; the connection closes",
    ErrorCode.AUTHENTICATION_FAILED: "user or password are wrong; the connection closes",
    ErrorCode.UNKNOWN_TOPIC: "the topic does not exist",
    ErrorCode.UNKNOWN_PARTITION: "the topic has no partition of that number",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is below the log's start or above its high watermark",
    ErrorCode.CORRUPT_BATCH: "not one whole data batch of format 2 with a correct CRC; in a log: damaged, or gone",
    ErrorCode.BATCH_TOO_LARGE: "the batch is larger than the topic's message_bytes_max",
    ErrorCode.STORAGE_UNAVAILABLE: "the log cannot be written now",
    ErrorCode.REQUEST_TIMED_OUT: "not committed within timeout_ms; it may be later",
    ErrorCode.OUT_OF_ORDER: "an earlier batch for the partition was refused in the same round",
    ErrorCode.LIMIT_EXCEEDED: "a configured limit was reached",
    ErrorCode.INVALID_ARGUMENT: "a name or value that can never work",
    ErrorCode.NOT_FOUND: "no such exchange, binding or group",
    ErrorCode.ACCESS_REFUSED: "the name is reserved or not yours",
    ErrorCode.PRECONDITION_FAILED: "it exists with other properties, or is in use",
    ErrorCode.NOT_LEADER: "another node leads the partition; ask for metadata again",
    ErrorCode.SHUTTING_DOWN: "the broker is stopping; the connection closes",
    ErrorCode.BLOCKED: "the broker is low on disk or memory: producers wait until it has room",
    ErrorCode.NOT_ENOUGH_REPLICAS: "fewer replicas are in sync than acks -1 asks for; nothing was appended",
    ErrorCode.FENCED_LEADER_EPOCH: "the partition is in a later leader epoch; ask for metadata again",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "the broker does not know that leader epoch yet",
    ErrorCode.UNKNOWN_MEMBER: "the group has no such member: join again, without an id",
    ErrorCode.ILLEGAL_GENERATION: "the group has another generation by now: join again",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is divided anew: join again, as the same member",
    ErrorCode.INCONSISTENT_PROTOCOL: "the member cannot divide partitions as the others do",
    ErrorCode.FENCED_INSTANCE: "another process is this static member now",
    ErrorCode.NOT_COORDINATOR: "another broker looks after the group; ask for it again",
    ErrorCode.COORDINATOR_UNAVAILABLE: "nobody looks after the group now",
    ErrorCode.SEQUENCE_OUT_OF_ORDER: "a batch before this one of the same producer is missing; nothing was appended",
    ErrorCode.PRODUCER_FENCED: "the producer has a later epoch already, or another process is this one now",
    ErrorCode.UNRELEASED_INSTANCE: "another process is this static member still",
    ErrorCode.TRANSACTION_ENDING: "a transaction is not ended everywhere yet",
    ErrorCode.WRONG_TRANSACTION_STATE: "it is no part of a transaction that is under way",
    ErrorCode.QUEUE_FULL: "a queue has no room for it and refuses it; nothing was published",
}

RETRIABLE = frozenset(
    {
        ErrorCode.STORAGE_UNAVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.OUT_OF_ORDER,
        ErrorCode.NOT_LEADER,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.BLOCKED,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_UNAVAILABLE,
        ErrorCode.SEQUENCE_OUT_OF_ORDER,
        ErrorCode.UNRELEASED_INSTANCE,
        ErrorCode.TRANSACTION_ENDING,
        ErrorCode.QUEUE_FULL,
    }
)

GONE = frozenset({ErrorCode.UNKNOWN_TOPIC, ErrorCode.UNKNOWN_PARTITION})

OUTDATED = frozenset({ErrorCode.NOT_LEADER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})
"""Said where client and broker do not agree on who leads: ask for metadata again."""


def wire_error(code: ErrorCode, message: str = "") -> WireError:
    """The error as it travels; without a message of its own, with what the table says."""
    return (int(code), code in RETRIABLE, message or MEANINGS[code])


class MillraceError(Exception):
    """Base of everything the native clients raise. `code` is an `ErrorCode` number, 0 when no broker said it."""

    code = 0

    def __init__(self, message: str = "", *, code: int | None = None, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable
        """Whether the same request may succeed later."""
        if code is not None:
            self.code = code


class ConnectionLost(MillraceError):
    """The connection could not be made or ended; what was under way may or may not have happened."""


class ProtocolError(MillraceError):
    """The peer sent what this protocol does not allow."""


class RequestTimedOut(MillraceError):
    """No reply in time, or not committed in time; it may still happen."""

    code = ErrorCode.REQUEST_TIMED_OUT


class BufferFull(MillraceError):
    """`send` found no room in the producer's buffer for `max_block_ms`; the record was not taken."""


class DeliveryTimedOut(MillraceError):
    """A record was not acknowledged within `delivery_timeout_ms`; it may or may not be in the log."""


class UnknownTopic(MillraceError):
    """The topic does not exist."""

    code = ErrorCode.UNKNOWN_TOPIC


class UnknownPartition(MillraceError):
    """The topic has no partition of that number."""

    code = ErrorCode.UNKNOWN_PARTITION


class OffsetOutOfRange(MillraceError):
    """The offset is below the log's start or above its high watermark."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class BatchTooLarge(MillraceError):
    """The batch is larger than the topic's message_bytes_max."""

    code = ErrorCode.BATCH_TOO_LARGE


class StorageUnavailable(MillraceError):
    """The broker's log cannot be written now."""

    code = ErrorCode.STORAGE_UNAVAILABLE


class Blocked(StorageUnavailable):
    """The broker is low on disk or memory; it takes records again when it has room."""

    code = ErrorCode.BLOCKED


class NotLeader(MillraceError):
    """Another broker leads the partition, or nobody does now."""

    code = ErrorCode.NOT_LEADER


class FencedLeaderEpoch(NotLeader):
    """The partition is in a later leader epoch than the one that was named."""

    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpoch(NotLeader):
    """The broker does not know the leader epoch that was named yet."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class LogTruncated(MillraceError):
    """What was read is not in the log any more, as a leader was elected, or came back, that lacked it, or as the topic
    was deleted and made again: `offset` is where the log goes on with other records.
    """

    def __init__(self, topic: str, partition: int, offset: int, read_to: int, *, made_again: bool = False) -> None:
        why = "a leader was elected, or came back, without these records"
        super().__init__(
            f"partition {partition} of topic {topic!r} was cut at offset {offset}, and had been read up to {read_to}: "
            + ("the topic was deleted and made again" if made_again else why)
        )
        self.topic, self.partition, self.offset = topic, partition, offset


class DeserializationFailed(MillraceError):
    """A deserializer failed, by the error that is the cause, on the record at `offset`: who seeks behind it goes on."""

    def __init__(self, topic: str, partition: int, offset: int, error: Exception) -> None:
        super().__init__(f"offset {offset} of partition {partition} of topic {topic!r} cannot be read: {error!r}")
        self.topic, self.partition, self.offset = topic, partition, offset


class NotEnoughReplicas(StorageUnavailable):
    """Fewer replicas of the partition are in sync than have to be; nothing was appended."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotAMember(MillraceError):
    """The group has no such member any more, in this generation: its partitions may be others' by now."""

    code = ErrorCode.UNKNOWN_MEMBER


class IllegalGeneration(NotAMember):
    """The group has another generation by now."""

    code = ErrorCode.ILLEGAL_GENERATION


class RebalanceInProgress(NotAMember):
    """The group is being divided anew."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class InconsistentProtocol(MillraceError):
    """The member cannot divide partitions as the others of its group do."""

    code = ErrorCode.INCONSISTENT_PROTOCOL


class FencedInstance(MillraceError):
    """Another process is this static member now."""

    code = ErrorCode.FENCED_INSTANCE


class NotCoordinator(MillraceError):
    """Another broker looks after the group."""

    code = ErrorCode.NOT_COORDINATOR


class CoordinatorUnavailable(NotCoordinator):
    """Nobody looks after the group now."""

    code = ErrorCode.COORDINATOR_UNAVAILABLE


class SequenceOutOfOrder(MillraceError):
    """A batch before this one of the same producer is missing; nothing was appended."""

    code = ErrorCode.SEQUENCE_OUT_OF_ORDER


class ProducerFenced(MillraceError):
    """Another process is this producer now."""

    code = ErrorCode.PRODUCER_FENCED


class UnreleasedInstance(MillraceError):
    """Another process is this static member still."""

    code = ErrorCode.UNRELEASED_INSTANCE


class TransactionEnding(MillraceError):
    """A transaction is not ended everywhere yet."""

    code = ErrorCode.TRANSACTION_ENDING


class WrongTransactionState(MillraceError):
    """It is no part of a transaction that is under way: it took too long, or was ended."""

    code = ErrorCode.WRONG_TRANSACTION_STATE


class TransactionAborted(MillraceError):
    """A record that was not sent before its transaction was aborted."""


class AuthenticationFailed(MillraceError):
    """User or password are wrong."""

    code = ErrorCode.AUTHENTICATION_FAILED


class PreconditionFailed(MillraceError):
    """It exists with other properties, or is in use."""

    code = ErrorCode.PRECONDITION_FAILED


class NotFound(MillraceError):
    """No such exchange, binding or group."""

    code = ErrorCode.NOT_FOUND


_CLASSES: dict[int, type[MillraceError]] = {
    int(kind.code): kind
    for kind in (
        RequestTimedOut, UnknownTopic, UnknownPartition, OffsetOutOfRange, BatchTooLarge, StorageUnavailable,
        Blocked, NotLeader, FencedLeaderEpoch, UnknownLeaderEpoch, NotEnoughReplicas, AuthenticationFailed,
        PreconditionFailed, NotFound, NotAMember, IllegalGeneration, RebalanceInProgress, InconsistentProtocol,
        FencedInstance, UnreleasedInstance, TransactionEnding, WrongTransactionState,
        NotCoordinator, CoordinatorUnavailable, SequenceOutOfOrder, ProducerFenced,
    )
}  # fmt: skip


def error_from_wire(error: WireError) -> MillraceError:
    """The exception for an error a broker answered; a `MillraceError` itself for codes without a class."""
    code, retriable, message = error
    return _CLASSES.get(code, MillraceError)(message, code=code, retriable=retriable)
