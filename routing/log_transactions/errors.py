"""Why a transactional producer is refused; each protocol has its own codes for these."""

from __future__ import annotations


class LogTransactionError(Exception):
    """Base of them. Only protocols that know such transactions are told of them."""


class ProducerFenced(LogTransactionError):
    """Another process has the transactional id now, or the transaction was given up: this producer is over."""


class WrongProducerId(LogTransactionError):
    """The transactional id has another producer id, or none."""


class TransactionEnding(LogTransactionError):
    """The transaction before is decided and not ended everywhere: ask again."""


class WrongTransactionState(LogTransactionError):
    """There is no transaction that this could be a part of, or it has been ended the other way."""


class WrongTimeout(LogTransactionError):
    """No time, or longer than the broker allows."""


class NotATransactionalId(LogTransactionError):
    """It is empty, or too long."""


class UnknownTransactionalId(LogTransactionError):
    """Nobody has used it, or not for long."""


class TooManyInTransaction(LogTransactionError):
    """It has as many partitions, or the broker as many transactional ids, as there may be."""


class NotTransactionCoordinator(LogTransactionError):
    """Another broker looks after this transactional id."""


class TransactionCoordinatorUnavailable(LogTransactionError):
    """Nobody looks after it at the moment, or nobody knows yet what became of the request: ask again."""


BY_NAME: dict[str, type[LogTransactionError]] = {
    kind.__name__: kind
    for kind in (
        ProducerFenced, WrongProducerId, TransactionEnding, WrongTransactionState, WrongTimeout, NotATransactionalId,
        UnknownTransactionalId, TooManyInTransaction, NotTransactionCoordinator, TransactionCoordinatorUnavailable,
    )
}  # fmt: skip
"""For who is told of one by another broker."""
