"""SaslAuthenticate: the client says who it is. PLAIN is RFC 4616."""

from __future__ import annotations

from protocols.kafka.adapter_door import Call, Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_connection import SASL_AUTHENTICATE
from protocols.kafka.registry import serves
from protocols.peers import is_welcome
from routing.errors import BrokerError


@serves(SASL_AUTHENTICATE, 0, 2, before_login=True)
async def sasl_authenticate(door: Door, call: Call, request: Entity) -> Entity:
    """Who is refused is told why, and the connection ends."""
    if not door.mechanism:
        return _refused(door, ErrorCode.ILLEGAL_SASL_STATE, "a mechanism has to be chosen first")
    parts = request.auth_bytes.split(b"\0")
    try:
        authority, user, password = parts[0].decode(), parts[1].decode(), parts[2]
    except (IndexError, UnicodeDecodeError):
        return _refused(door, ErrorCode.SASL_AUTHENTICATION_FAILED, "not a message of PLAIN")
    if len(parts) != 3 or authority not in ("", user):
        return _refused(door, ErrorCode.SASL_AUTHENTICATION_FAILED, "not a message of PLAIN")
    if not await is_welcome(door.authenticate, user, password, door.peer):
        return _refused(door, ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed: wrong user or password")
    try:
        door.login(user)
    except BrokerError as error:
        return _refused(door, ErrorCode.SASL_AUTHENTICATION_FAILED, str(error))
    return Entity(error_code=ErrorCode.NONE, error_message=None)


def _refused(door: Door, code: ErrorCode, why: str) -> Entity:
    door.end()
    return Entity(error_code=code, error_message=why)
