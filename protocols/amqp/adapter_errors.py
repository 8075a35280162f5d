"""The engine's errors in AMQP's words: one table."""

from __future__ import annotations

from protocols.amqp.errors import AmqpError
from routing import errors

# Engine error -> reply name; whether the channel or the connection closes follows from the name (`errors.HARD`).
REPLIES: dict[type[errors.BrokerError], str] = {
    errors.NotFound: "NOT_FOUND",
    errors.AccessRefused: "ACCESS_REFUSED",
    errors.NotAllowed: "NOT_ALLOWED",
    errors.PreconditionFailed: "PRECONDITION_FAILED",
    errors.ResourceLocked: "RESOURCE_LOCKED",
    errors.UnknownExchangeType: "COMMAND_INVALID",
    errors.InvalidArgument: "PRECONDITION_FAILED",
    errors.LimitExceeded: "PRECONDITION_FAILED",
    errors.NotImplementedYet: "NOT_IMPLEMENTED",
    errors.StorageUnavailable: "RESOURCE_ERROR",
    errors.BrokerError: "INTERNAL_ERROR",
}


def to_amqp_error(error: errors.BrokerError, channel: int, method_id: int) -> AmqpError:
    """What to answer when the engine refuses."""
    name = next(REPLIES[kind] for kind in type(error).__mro__ if kind in REPLIES)
    return AmqpError(name, str(error), channel=channel, method_id=method_id)
