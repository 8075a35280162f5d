"""How a connection introduces the broker, and finds out who the peer is.

1. A mechanism is offered only where it can work: EXTERNAL when the transport verified a certificate and
   the configuration lets it say who the peer is, ANONYMOUS when that names the user that it stands for.
2. Whether a user is welcome is decided by `authenticate` alone; where the password is None the mechanism has shown who
   the peer is.
3. A refused login is told with a 403 to clients that understand it (capability `authentication_failure_close`).
"""

from __future__ import annotations

import platform
from typing import Any

from protocols.amqp import methods
from protocols.amqp.config import AmqpConfig
from protocols.amqp.errors import AmqpError
from protocols.amqp.login import PASSWORD_MECHANISMS, Credentials, read_credentials
from protocols.peers import Authenticate, is_welcome

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
"""What clients test for before they use it."""


def server_properties(config: AmqpConfig) -> dict[str, Any]:
    """What `connection.start` says of the broker."""
    return {
        "capabilities": CAPABILITIES,
        "cluster_name": config.cluster_name or f"millrace@{platform.node()}",
        "copyright": "Copyright the authors of Millrace and of what it is built from.",
        "information": "Licensed under the Apache License 2.0",
        "platform": f"{config.broker} on Python {platform.python_version()}",
        "product": config.product,
        "version": config.version,
    }


class Login:
    """The peer of one connection, before and after it has logged in."""

    def __init__(
        self, config: AmqpConfig, authenticate: Authenticate | None, peer: str, peer_certificate_name: str | None
    ) -> None:
        """Without `authenticate` nobody may log in."""
        self.user = ""
        """Who logged in."""
        self.capabilities: dict[str, Any] = {}
        """What the client said that it can do."""
        self.client_properties: dict[str, Any] = {}
        self._config = config
        self._authenticate = authenticate
        self._peer = peer
        self._certificate_name = peer_certificate_name if config.certificate_login else None

    @property
    def mechanisms(self) -> bytes:
        """What `connection.start` offers."""
        offered = list(PASSWORD_MECHANISMS)
        if self._certificate_name is not None:
            offered.append("EXTERNAL")
        if self._config.anonymous_user:
            offered.append("ANONYMOUS")
        return " ".join(offered).encode()

    @property
    def tells_refusals(self) -> bool:
        """Whether the client wants to be told that its login was refused."""
        return self.capabilities.get("authentication_failure_close") is True

    async def log_in(self, method: methods.ConnectionStartOk) -> str | None:
        """Take the answer to `connection.start`; None, or the name of the user that is not welcome. Raises AmqpError
        for a mechanism that was not offered and for a response that it does not allow.
        """
        self.client_properties = method.client_properties
        found = method.client_properties.get("capabilities")
        self.capabilities = found if isinstance(found, dict) else {}
        credentials = self._credentials(method.mechanism, method.response)
        if not await self._accepts(credentials):
            return credentials.user
        self.user = credentials.user
        return None

    def _credentials(self, mechanism: str, response: bytes) -> Credentials:
        if mechanism.encode() not in self.mechanisms.split():
            explanation = f"unknown authentication mechanism '{mechanism}'"
            raise AmqpError("COMMAND_INVALID", explanation, method_id=methods.ConnectionStartOk.IDENT)
        if mechanism == "EXTERNAL":
            assert self._certificate_name is not None
            return Credentials(self._certificate_name, None)
        if mechanism == "ANONYMOUS":
            return Credentials(self._config.anonymous_user, None)
        return read_credentials(mechanism, response)

    async def _accepts(self, credentials: Credentials) -> bool:
        return await is_welcome(self._authenticate, credentials.user, credentials.password, self._peer)
