"""What a client says to log in: the mechanisms PLAIN (RFC 4616) and AMQPLAIN (a field table without its length)."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.amqp import methods, wire
from protocols.amqp.errors import AmqpError, SyntaxFault

MECHANISMS = b"PLAIN AMQPLAIN"
_START_OK = methods.ConnectionStartOk.IDENT


@dataclass(slots=True, frozen=True)
class Credentials:
    """A user name and the password it came with."""

    user: str
    password: bytes


def read_credentials(mechanism: str, response: bytes) -> Credentials:
    """Raises AmqpError for a mechanism there is not, or a response it does not allow."""
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) != 3:
            raise AmqpError(
                "ACCESS_REFUSED", "PLAIN response is not authzid NUL user NUL password", method_id=_START_OK
            )
        return Credentials(parts[1].decode("utf-8", wire.TEXT_ERRORS), parts[2])
    if mechanism == "AMQPLAIN":
        try:
            table = wire.read_table_items(response, 0, len(response))
        except SyntaxFault as fault:
            raise AmqpError("SYNTAX_ERROR", f"AMQPLAIN response: {fault}", method_id=_START_OK) from None
        user, password = table.get("LOGIN"), table.get("PASSWORD")
        if not isinstance(user, str) or not isinstance(password, str):
            raise AmqpError("ACCESS_REFUSED", "AMQPLAIN response without LOGIN and PASSWORD", method_id=_START_OK)
        return Credentials(user, password.encode("utf-8", wire.TEXT_ERRORS))
    raise AmqpError("COMMAND_INVALID", f"unknown authentication mechanism '{mechanism}'", method_id=_START_OK)
