"""Who may log in: the users of the engine, from where they may.

`guest` may connect from loopback addresses only, whatever its password, as in RabbitMQ. Clients without a user name are
the business of the protocols that allow them: they act for a user the configuration names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from protocols.peers import is_loopback
from routing.access.rights import Rights

Authenticate = Callable[[str, bytes | None, str], Awaitable[bool]]
"""User, password and the peer's address ("host:port"); whether they are welcome. The password is None for a peer whose
name something else has shown: a certificate, or the configuration."""

LOOPBACK_ONLY = "guest"


def authenticator(rights: Rights) -> Authenticate:
    """The check against the users of a broker."""

    async def authenticate(user: str, password: bytes | None, peer: str) -> bool:
        if password is None:
            right = rights.user(user) is not None
        else:
            right = await rights.authenticate(user, password)
        return right and (user != LOOPBACK_ONLY or is_loopback(peer))

    return authenticate
