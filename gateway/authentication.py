"""Who may log in: users and passwords of the configuration.

`guest` may connect from loopback addresses only, whatever its password, as in RabbitMQ. Clients without a user name are
the business of the protocols that allow them: MQTT and the native one do, by default from loopback addresses only.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping

from protocols.peers import is_loopback

Authenticate = Callable[[str, bytes | None, str], bool]
"""User, password and the peer's address ("host:port"); whether they are welcome. The password is None for a peer whose
name something else has shown: a certificate, or the configuration."""

LOOPBACK_ONLY = "guest"


def authenticator(users: Mapping[str, str]) -> Authenticate:
    """The check against `users`, passwords by name."""
    passwords = {user: password.encode() for user, password in users.items()}

    def authenticate(user: str, password: bytes | None, peer: str) -> bool:
        known = passwords.get(user)
        if password is None:
            return known is not None and (user != LOOPBACK_ONLY or is_loopback(peer))
        # An unknown user takes as long as a wrong password.
        right = hmac.compare_digest(password, known if known is not None else password + b"!")
        return right and (user != LOOPBACK_ONLY or is_loopback(peer))

    return authenticate
