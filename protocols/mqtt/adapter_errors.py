"""What the errors of the engine are called in MQTT's terms."""

from __future__ import annotations

from protocols.mqtt.reasons import ReasonCode, permitted
from routing import errors

_REASONS: dict[type[Exception], ReasonCode] = {
    errors.NotFound: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    errors.AccessRefused: ReasonCode.NOT_AUTHORIZED,
    errors.Banned: ReasonCode.BANNED,
    errors.PreconditionFailed: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    errors.NoRoomForQueue: ReasonCode.QUOTA_EXCEEDED,
    errors.ResourceLocked: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    errors.NotAllowed: ReasonCode.NOT_AUTHORIZED,
    errors.InvalidArgument: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    errors.InvalidName: ReasonCode.TOPIC_NAME_INVALID,
    errors.LimitExceeded: ReasonCode.QUOTA_EXCEEDED,
    errors.StorageUnavailable: ReasonCode.SERVER_UNAVAILABLE,
    errors.BrokerError: ReasonCode.UNSPECIFIED_ERROR,
}


def reason_of(
    error: errors.BrokerError, reasons: frozenset[ReasonCode], *, not_authorized_told: bool = True
) -> ReasonCode:
    """The reason code for an error, in a packet that may carry these `reasons` (`protocols.mqtt.reasons`)."""
    for kind in type(error).__mro__:
        if kind in _REASONS:
            reason = _REASONS[kind]
            if reason is ReasonCode.NOT_AUTHORIZED and not not_authorized_told:
                reason = ReasonCode.UNSPECIFIED_ERROR
            return permitted(reason, reasons)
    return ReasonCode.UNSPECIFIED_ERROR
