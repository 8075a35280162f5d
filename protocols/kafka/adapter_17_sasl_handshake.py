"""SaslHandshake: how a client will log in."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_connection import SASL_HANDSHAKE
from protocols.kafka.registry import serves

MECHANISMS = ("PLAIN",)


@serves(SASL_HANDSHAKE, 1, 1, before_login=True)
async def sasl_handshake(door: Door, call: Call, request: Entity) -> Entity:
    """Take note of the mechanism. Version 0, after which tokens come without requests around them, is not served."""
    known = request.mechanism in MECHANISMS
    door.mechanism = request.mechanism if known else ""
    code = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return Entity(error_code=code, mechanisms=list(MECHANISMS))
