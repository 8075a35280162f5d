"""What the errors of the engine are called in Kafka's protocol."""

from __future__ import annotations

from core_log import errors as log_errors
from protocols.kafka.errors import ErrorCode, KafkaError
from routing import errors
from routing.groups import errors as groups
from routing.log_transactions import errors as transactions

_CODES: dict[type[Exception], ErrorCode] = {
    errors.NotFound: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.AccessRefused: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    errors.NotAllowed: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    errors.ResourceLocked: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    errors.PreconditionFailed: ErrorCode.INVALID_REQUEST,
    errors.InvalidArgument: ErrorCode.INVALID_REQUEST,
    errors.AlreadyExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    errors.InvalidName: ErrorCode.INVALID_TOPIC,
    errors.InvalidConfig: ErrorCode.INVALID_CONFIG,
    errors.InvalidPartitions: ErrorCode.INVALID_PARTITIONS,
    errors.InvalidReplication: ErrorCode.INVALID_REPLICATION_FACTOR,
    errors.InvalidAssignment: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    errors.LimitExceeded: ErrorCode.POLICY_VIOLATION,
    errors.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.TimedOut: ErrorCode.REQUEST_TIMED_OUT,
    errors.StorageUnavailable: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.BrokerError: ErrorCode.INVALID_REQUEST,
    groups.UnknownMember: ErrorCode.UNKNOWN_MEMBER_ID,
    groups.IllegalGeneration: ErrorCode.ILLEGAL_GENERATION,
    groups.RebalanceInProgress: ErrorCode.REBALANCE_IN_PROGRESS,
    groups.InconsistentProtocol: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    groups.MemberIdRequired: ErrorCode.MEMBER_ID_REQUIRED,
    groups.FencedInstance: ErrorCode.FENCED_INSTANCE_ID,
    groups.InvalidSessionTimeout: ErrorCode.INVALID_SESSION_TIMEOUT,
    groups.InvalidGroup: ErrorCode.INVALID_GROUP_ID,
    groups.GroupFull: ErrorCode.GROUP_MAX_SIZE_REACHED,
    groups.GroupNotEmpty: ErrorCode.NON_EMPTY_GROUP,
    groups.UnknownGroup: ErrorCode.GROUP_ID_NOT_FOUND,
    groups.NotCoordinator: ErrorCode.NOT_COORDINATOR,
    groups.FencedEpoch: ErrorCode.FENCED_MEMBER_EPOCH,
    groups.StaleEpoch: ErrorCode.STALE_MEMBER_EPOCH,
    groups.UnreleasedInstance: ErrorCode.UNRELEASED_INSTANCE_ID,
    groups.UnsupportedAssignor: ErrorCode.UNSUPPORTED_ASSIGNOR,
    groups.InvalidPattern: ErrorCode.INVALID_REGULAR_EXPRESSION,
    groups.InvalidBeat: ErrorCode.INVALID_REQUEST,
    groups.NeedsEpochs: ErrorCode.UNSUPPORTED_VERSION,
    groups.StateTooLarge: ErrorCode.UNKNOWN_SERVER_ERROR,
    groups.CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    groups.CoordinatorUnavailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    transactions.ProducerFenced: ErrorCode.PRODUCER_FENCED,
    transactions.WrongProducerId: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    transactions.TransactionEnding: ErrorCode.CONCURRENT_TRANSACTIONS,
    transactions.WrongTransactionState: ErrorCode.INVALID_TXN_STATE,
    transactions.WrongTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    transactions.NotATransactionalId: ErrorCode.INVALID_REQUEST,
    transactions.UnknownTransactionalId: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    transactions.TooManyInTransaction: ErrorCode.POLICY_VIOLATION,
    transactions.NotTransactionCoordinator: ErrorCode.NOT_COORDINATOR,
    transactions.TransactionCoordinatorUnavailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    log_errors.LogUnavailable: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    log_errors.CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    log_errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    log_errors.ProducerFenced: ErrorCode.INVALID_PRODUCER_EPOCH,
    log_errors.CoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    log_errors.InvalidRecord: ErrorCode.INVALID_RECORD,
    log_errors.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    log_errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
}
_NOBODY = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS)
ENGINE_ERRORS = (
    errors.BrokerError, groups.GroupError, transactions.LogTransactionError, log_errors.LogError, KafkaError,
)  # fmt: skip


def group_code_of(error: Exception) -> ErrorCode:
    """The same, of what is about the offsets of a group: where they cannot be written nobody looks after it."""
    code = code_of(error)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code in _NOBODY else code


def code_of(error: Exception) -> ErrorCode:
    """What a client is told of an error of `ENGINE_ERRORS`."""
    if isinstance(error, KafkaError):
        return error.code
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
