"""What a client says to log in: the mechanisms PLAIN (RFC 4616) and AMQPLAIN (a field table without its length)."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.amqp import methods, wire
from protocols.amqp.errors import AmqpError, SyntaxFault

PASSWORD_MECHANISMS = ("PLAIN", "AMQPLAIN")
_START_OK = methods.ConnectionStartOk.IDENT


@dataclass(slots=True, frozen=True)
class Credentials:
    """A user name and the password it came with, None where something else shows who the peer is."""

    user: str
    password: bytes | None


def read_credentials(mechanism: str, response: bytes) -> Credentials:
    """Read the response of one of `PASSWORD_MECHANISMS`. Raises AmqpError for what it does not allow."""
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3 or parts[0]:
            # Nobody may act as another (authzid), as in RabbitMQ.
            raise AmqpError("ACCESS_REFUSED", "PLAIN response is not NUL user NUL password", method_id=_START_OK)
        return Credentials(parts[1].decode("utf-8", wire.TEXT_ERRORS), parts[2])
    try:
        table = wire.read_table_items(response, 0, len(response))
    except SyntaxFault as fault:
        raise AmqpError("SYNTAX_ERROR", f"AMQPLAIN response: {fault}", method_id=_START_OK) from None
    user, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(user, str) or not isinstance(password, str):
        raise AmqpError("ACCESS_REFUSED", "AMQPLAIN response without LOGIN and PASSWORD", method_id=_START_OK)
    return Credentials(user, password.encode("utf-8", wire.TEXT_ERRORS))
