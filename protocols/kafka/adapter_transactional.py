"""What the handlers about transactions have in common."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_errors import code_of
from protocols.kafka.errors import ErrorCode, KafkaError

_BUSY = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.KAFKA_STORAGE_ERROR,
)  # fmt: skip
"""Why nobody can say now whether there is such a transaction."""
_NOBODY = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS)


def require_id(door: Door, transactional_id: str) -> None:
    """Who uses a transactional id needs the right to write to a resource of that name. Raises KafkaError."""
    if not door.allows("write", transactional_id):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def owner_of(door: Door, call: Call) -> str:
    """Who has a transaction under way, for operators."""
    user = door.grants.user if door.grants is not None else ""
    return f"{user}@{door.peer} {call.client_id or ''}".rstrip()


def transaction_code_of(error: Exception, *, fenced_since: bool = True) -> ErrorCode:
    """What a client is told whose transaction is not looked after now, or that is fenced; older versions know the last
    by another code.
    """
    code = code_of(error)
    if code == ErrorCode.PRODUCER_FENCED and not fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code in _NOBODY else code


def checked_code_of(error: Exception) -> ErrorCode:
    """The same, for batches and offsets that were to be a part of one: who cannot be told yet asks again."""
    code = code_of(error)
    return ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED else code


def check_code_of(error: Exception, busy: ErrorCode) -> KafkaError:
    """Why a check whether something is a part of a transaction failed; `busy` where asking again may help."""
    code = code_of(error)
    return KafkaError(busy if code in _BUSY else checked_code_of(error), str(error))
