"""SaslAuthenticate: the client says who it is, see `adapter_login.py`."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.kafka.messages_connection import SASL_AUTHENTICATE
from protocols.kafka.registry import serves


@serves(SASL_AUTHENTICATE, 0, 2, before_login=True)
async def sasl_authenticate(door: Door, call: Call, request: Entity) -> Entity:
    """Who is refused is told why, and the connection ends."""
    try:
        if door.sasl is None:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, "a mechanism has to be chosen first")
        answer = await door.sasl.token(door, request.auth_bytes)
    except KafkaError as error:
        door.end()
        return Entity(error_code=error.code, error_message=str(error))
    return Entity(error_code=ErrorCode.NONE, error_message=None, auth_bytes=answer)
