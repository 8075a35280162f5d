"""The numbers that SCRAM's mechanisms have in requests about users."""

from __future__ import annotations

from protocols.kafka.errors import ErrorCode, KafkaError

NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES = {number: name for name, number in NUMBERS.items()}


def mechanism_of(number: int) -> str:
    """Raises KafkaError."""
    found = _NAMES.get(number)
    if found is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"Unknown SCRAM mechanism {number}")
    return found
