"""What the errors of the engine are called in Kafka's protocol."""

from __future__ import annotations

from core_log import errors as log_errors
from protocols.kafka.errors import ErrorCode, KafkaError
from routing import errors

_CODES: dict[type[Exception], ErrorCode] = {
    errors.NotFound: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.AccessRefused: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    errors.NotAllowed: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    errors.ResourceLocked: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    errors.PreconditionFailed: ErrorCode.INVALID_REQUEST,
    errors.InvalidArgument: ErrorCode.INVALID_REQUEST,
    errors.LimitExceeded: ErrorCode.POLICY_VIOLATION,
    errors.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    errors.StorageUnavailable: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.BrokerError: ErrorCode.INVALID_REQUEST,
    log_errors.LogUnavailable: ErrorCode.KAFKA_STORAGE_ERROR,
    log_errors.BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    log_errors.CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    log_errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    log_errors.ProducerFenced: ErrorCode.INVALID_PRODUCER_EPOCH,
    log_errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
}
ENGINE_ERRORS = (errors.BrokerError, log_errors.LogError, KafkaError)


def code_of(error: Exception) -> ErrorCode:
    """What a client is told of an error of `ENGINE_ERRORS`."""
    if isinstance(error, KafkaError):
        return error.code
    return next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
