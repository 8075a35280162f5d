"""What the errors of the engine are called in the native protocol."""

from __future__ import annotations

from core_log import errors as log_errors
from protocols.native.errors import ErrorCode, WireError, wire_error
from routing import errors
from routing.groups import errors as groups
from routing.log_transactions import errors as transactions

_CODES: dict[type[Exception], ErrorCode] = {
    errors.NotFound: ErrorCode.NOT_FOUND,
    errors.AccessRefused: ErrorCode.ACCESS_REFUSED,
    errors.NotAllowed: ErrorCode.ACCESS_REFUSED,
    errors.ResourceLocked: ErrorCode.ACCESS_REFUSED,
    errors.PreconditionFailed: ErrorCode.PRECONDITION_FAILED,
    errors.InvalidArgument: ErrorCode.INVALID_ARGUMENT,
    errors.LimitExceeded: ErrorCode.LIMIT_EXCEEDED,
    errors.QueueFull: ErrorCode.QUEUE_FULL,
    errors.NotLeader: ErrorCode.NOT_LEADER,
    errors.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.StorageUnavailable: ErrorCode.STORAGE_UNAVAILABLE,
    errors.BrokerError: ErrorCode.INVALID_ARGUMENT,
    groups.UnknownMember: ErrorCode.UNKNOWN_MEMBER,
    groups.IllegalGeneration: ErrorCode.ILLEGAL_GENERATION,
    groups.RebalanceInProgress: ErrorCode.REBALANCE_IN_PROGRESS,
    groups.InconsistentProtocol: ErrorCode.INCONSISTENT_PROTOCOL,
    groups.FencedInstance: ErrorCode.FENCED_INSTANCE,
    groups.InvalidSessionTimeout: ErrorCode.INVALID_ARGUMENT,
    groups.InvalidGroup: ErrorCode.INVALID_ARGUMENT,
    groups.GroupFull: ErrorCode.LIMIT_EXCEEDED,
    groups.GroupNotEmpty: ErrorCode.PRECONDITION_FAILED,
    groups.UnknownGroup: ErrorCode.NOT_FOUND,
    groups.NotCoordinator: ErrorCode.NOT_COORDINATOR,
    groups.CoordinatorUnavailable: ErrorCode.COORDINATOR_UNAVAILABLE,
    groups.FencedEpoch: ErrorCode.UNKNOWN_MEMBER,
    groups.StaleEpoch: ErrorCode.ILLEGAL_GENERATION,
    groups.UnreleasedInstance: ErrorCode.UNRELEASED_INSTANCE,
    groups.UnsupportedAssignor: ErrorCode.INVALID_ARGUMENT,
    groups.InvalidPattern: ErrorCode.INVALID_ARGUMENT,
    groups.InvalidBeat: ErrorCode.INVALID_REQUEST,
    groups.StateTooLarge: ErrorCode.LIMIT_EXCEEDED,
    groups.GroupError: ErrorCode.PRECONDITION_FAILED,
    transactions.ProducerFenced: ErrorCode.PRODUCER_FENCED,
    transactions.WrongProducerId: ErrorCode.PRODUCER_FENCED,
    transactions.TransactionEnding: ErrorCode.TRANSACTION_ENDING,
    transactions.WrongTransactionState: ErrorCode.WRONG_TRANSACTION_STATE,
    transactions.WrongTimeout: ErrorCode.INVALID_ARGUMENT,
    transactions.NotATransactionalId: ErrorCode.INVALID_ARGUMENT,
    transactions.UnknownTransactionalId: ErrorCode.NOT_FOUND,
    transactions.TooManyInTransaction: ErrorCode.LIMIT_EXCEEDED,
    transactions.NotTransactionCoordinator: ErrorCode.NOT_COORDINATOR,
    transactions.TransactionCoordinatorUnavailable: ErrorCode.COORDINATOR_UNAVAILABLE,
    transactions.LogTransactionError: ErrorCode.WRONG_TRANSACTION_STATE,
    log_errors.LogUnavailable: ErrorCode.STORAGE_UNAVAILABLE,
    log_errors.BatchTooLarge: ErrorCode.BATCH_TOO_LARGE,
    log_errors.CorruptBatch: ErrorCode.CORRUPT_BATCH,
    log_errors.OutOfOrderSequence: ErrorCode.SEQUENCE_OUT_OF_ORDER,
    log_errors.ProducerFenced: ErrorCode.PRODUCER_FENCED,
    log_errors.InvalidRecord: ErrorCode.INVALID_ARGUMENT,
    log_errors.InvalidTimestamp: ErrorCode.INVALID_ARGUMENT,
    log_errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
}
ENGINE_ERRORS = (errors.BrokerError, groups.GroupError, transactions.LogTransactionError, log_errors.LogError)


class Refused(Exception):
    """A request, or an entry of one, that is answered with `error`."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message)
        self.error = wire_error(code, message)


def engine_error(error: Exception) -> WireError:
    """What the client is told of an error of the engine."""
    code = next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
    return wire_error(code, str(error))
