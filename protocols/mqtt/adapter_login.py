"""Who an MQTT client is: what its user name and password say, or else its certificate, or else nobody in particular."""

from __future__ import annotations

from protocols.mqtt.config import MqttConfig
from protocols.mqtt.events import Connect
from protocols.mqtt.reasons import ReasonCode
from protocols.peers import Authenticate, is_loopback, is_welcome


class Login:
    """The peer of one connection. `certificate_name` is what a verified certificate calls it."""

    def __init__(
        self, config: MqttConfig, authenticate: Authenticate | None, peer: str, certificate_name: str | None
    ) -> None:
        """Without `authenticate` no user name is accepted."""
        self._config = config
        self._authenticate = authenticate
        self._peer = peer
        self._certificate_name = certificate_name if config.certificate_login else None
        self.shown: str | None = None
        """Who the client has shown to be by other means (`adapter_authentication`)."""

    def user_of(self, connect: Connect) -> str:
        """Who the client is, once it is welcome."""
        if self.shown is not None:
            return self.shown
        if connect.user_name is not None:
            return connect.user_name
        return self._config.anonymous_user if self._certificate_name is None else self._certificate_name

    async def refusal(self, connect: Connect) -> ReasonCode:
        """The reason code for a CONNECT (section 3.2.2.3)."""
        config = self._config
        level = connect.protocol_level
        if not connect.client_id and (level == 3 or (level == 4 and not connect.clean_start)):
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID  # MQTT-3.1.3-8
        if len(connect.client_id.encode()) > config.client_id_bytes_max:
            return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        if self.shown is not None:
            return ReasonCode.SUCCESS
        if connect.user_name is not None:
            password = connect.password or b""
            welcome = await is_welcome(self._authenticate, connect.user_name, password, self._peer)
            return ReasonCode.SUCCESS if welcome else ReasonCode.BAD_USER_NAME_OR_PASSWORD
        if self._certificate_name is not None:
            welcome = await is_welcome(self._authenticate, self._certificate_name, None, self._peer)
            return ReasonCode.SUCCESS if welcome else ReasonCode.BAD_USER_NAME_OR_PASSWORD
        if config.anonymous == "never" or (config.anonymous == "loopback" and not is_loopback(self._peer)):
            return ReasonCode.NOT_AUTHORIZED
        return ReasonCode.SUCCESS
