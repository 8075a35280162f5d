"""How a client logs in by SASL: the tokens of a mechanism, however they come.

1. PLAIN (RFC 4616) is one token, SCRAM (RFC 5802) two. A wrong password, a user who is not there and one who may not
   come from there are told the same.
2. Tokens come as SaslAuthenticate requests; after SaslHandshake in version 0 as nothing but tokens with their length.
"""

from __future__ import annotations

from protocols.kafka.adapter_door import Door
from protocols.kafka.errors import ErrorCode, KafkaError
from protocols.peers import is_welcome
from protocols.scram import Refused, ScramServer
from routing.access import scram
from routing.errors import BrokerError

MECHANISMS = ("PLAIN", *scram.MECHANISMS)
_WRONG = "Authentication failed: wrong user or password"


class Login:
    """One attempt, by a mechanism."""

    def __init__(self, mechanism: str) -> None:
        self.mechanism = mechanism
        self.done = False
        self._exchange: ScramServer | None = None

    async def token(self, door: Door, token: bytes) -> bytes:
        """What to answer; the client is logged in when that was all. Raises KafkaError."""
        try:
            door.broker.bans.require_welcome("", "", door.peer)
        except BrokerError as error:
            raise _refused(str(error)) from None
        if self.mechanism == "PLAIN":
            await _plain(door, token)
            self.done = True
            return b""
        try:
            if self._exchange is None:
                self._exchange = exchange = ScramServer(scram.MECHANISMS[self.mechanism], token)
                return exchange.challenge(await door.broker.rights.scram_credential(exchange.user, self.mechanism))
            exchange, self._exchange = self._exchange, None
            answer = exchange.finish(token)
        except Refused:
            raise _refused(_WRONG) from None
        await _welcome(door, exchange.user, None)
        self.done = True
        return answer


async def _plain(door: Door, token: bytes) -> None:
    parts = token.split(b"\0")
    try:
        authority, user, password = parts[0].decode(), parts[1].decode(), parts[2]
    except (IndexError, UnicodeDecodeError):
        raise _refused("not a message of PLAIN") from None
    if len(parts) != 3 or authority not in ("", user):
        raise _refused("not a message of PLAIN")
    await _welcome(door, user, password)


async def _welcome(door: Door, user: str, password: bytes | None) -> None:
    """Log in who has shown who it is, or has a password to show."""
    if not await is_welcome(door.authenticate, user, password, door.peer):
        raise _refused(_WRONG)
    if door.shown not in (None, user):
        raise _refused(f"Cannot change principals during re-authentication from {door.shown} to {user}")
    try:
        door.login(user)
    except BrokerError as error:
        raise _refused(str(error)) from None
    door.shown = user


def _refused(why: str) -> KafkaError:
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
