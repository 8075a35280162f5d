"""Enhanced authentication (MQTT 5, section 4.12): SCRAM over AUTH, when a client connects and whenever it likes later.

    CONNECT method, first message      AUTH 0x18 challenge
    AUTH 0x18 proof                    CONNACK, or a CONNACK that refuses
    AUTH 0x19 first message            AUTH 0x18 challenge
    AUTH 0x18 proof                    AUTH 0x00, or a DISCONNECT

1. The methods are those of `routing.access.scram`; any other is answered with 0x8C. Until CONNACK nothing but AUTH and
   DISCONNECT may come, which the connection sees to (MQTT-3.1.2-30).
2. A wrong password, a user who is not there and one who may not come from there are told the same, 0x87.
3. Who authenticates again stays who it was: rights and session are that user's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.mqtt.events import Authenticate, Connect
from protocols.mqtt.reasons import ReasonCode
from protocols.peers import is_welcome
from protocols.scram import Refused, ScramServer
from routing.access import scram

if TYPE_CHECKING:
    from protocols.mqtt.adapter import MqttAdapter
    from protocols.peers import Authenticate as Check


class Authentication:
    """The exchanges of one connection, one at a time."""

    def __init__(self, adapter: MqttAdapter, check: Check | None) -> None:
        """`check` is whom the process lets in (`protocols.peers`); without it nobody."""
        self._adapter = adapter
        self._check = check
        self._exchange: ScramServer | None = None
        self._connect: Connect | None = None
        self.user: str | None = None
        """Who the client has shown to be."""
        self.asked_for: str | None = None
        """Who it says that it is."""

    async def begin(self, connect: Connect) -> ReasonCode:
        """The first message of a CONNECT: SUCCESS when the client was asked for a proof, else why it is refused."""
        method = connect.authentication_method
        if method not in scram.MECHANISMS:
            return ReasonCode.BAD_AUTHENTICATION_METHOD
        self._connect = connect
        return await self._challenge(method, connect.authentication_data)

    async def _challenge(self, method: str, data: bytes) -> ReasonCode:
        try:
            exchange = ScramServer(scram.MECHANISMS[method], data)
        except Refused:
            return ReasonCode.NOT_AUTHORIZED
        self.asked_for = exchange.user
        challenge = exchange.challenge(await self._adapter.broker.rights.scram_credential(exchange.user, method))
        self._exchange = exchange
        return self._tell(ReasonCode.CONTINUE_AUTHENTICATION, method, challenge)

    def _tell(self, reason: ReasonCode, method: str, data: bytes) -> ReasonCode:
        """Send AUTH, if the client takes packets as large (MQTT-3.1.2-24)."""
        packet = self._adapter.wire.auth(reason, method, data)
        if not (self._connect or self._adapter.connect).takes(len(packet)):
            return ReasonCode.PACKET_TOO_LARGE
        self._adapter.outbox.write(packet)
        return ReasonCode.SUCCESS

    async def go_on(self, event: Authenticate) -> tuple[ReasonCode, Connect | None]:
        """An AUTH. A connection that is to be opened now is returned, with what CONNACK has to tell in it."""
        method, again = event.method or "", event.reason == ReasonCode.REAUTHENTICATE
        if again != (self._exchange is None) or (again and self.user is None):
            return ReasonCode.PROTOCOL_ERROR, None
        if again:
            return await self._challenge(method, event.data), None
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        connect, self._connect = self._connect, None
        try:
            last = exchange.finish(event.data)
        except Refused:
            return ReasonCode.NOT_AUTHORIZED, connect
        welcome = await is_welcome(self._check, exchange.user, None, self._adapter.peer)
        if not welcome or self.user not in (None, exchange.user):
            return ReasonCode.NOT_AUTHORIZED, connect
        self.user = exchange.user
        if connect is None:
            return self._tell(ReasonCode.SUCCESS, method, last), None
        connect.authentication_data = last
        return ReasonCode.SUCCESS, connect
