"""SaslHandshake: how a client will log in."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.adapter_login import MECHANISMS, Login
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_connection import SASL_HANDSHAKE
from protocols.kafka.registry import serves


@serves(SASL_HANDSHAKE, 0, 1, before_login=True)
async def sasl_handshake(door: Door, call: Call, request: Entity) -> Entity:
    """Take note of the mechanism. After version 0 tokens come without requests around them."""
    known = request.mechanism in MECHANISMS
    door.sasl = Login(request.mechanism) if known else None
    door.bare_tokens = known and call.version == 0
    code = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
    return Entity(error_code=code, mechanisms=list(MECHANISMS))
