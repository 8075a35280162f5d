"""Who asks something over HTTP, and from which page.

1. A user shows name and password (RFC 7617), or a certificate: never a cookie, so there is nothing that a page from
   elsewhere could make a browser send along.
2. Clients on this machine need no user (`http.loopback_without_user`), if they name this machine as well: a page from
   elsewhere whose name leads here (DNS rebinding) does not.
3. A browser says where a page is from: that has to be here, or one of `http.origins`.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from gateway.errors import Refused
from gateway.http import is_listed
from protocols.peers import is_loopback, is_welcome

if TYPE_CHECKING:
    from gateway.authentication import Authenticate
    from gateway.config import HttpConfig
    from gateway.http import Request

_ASK = ("WWW-Authenticate", 'Basic realm="millrace", charset="UTF-8"')


@dataclass(slots=True, frozen=True)
class Asking:
    """Who is at the other end of a connection."""

    peer: str
    certificate_name: str | None
    scheme: str
    """"http" or "https"."""


@dataclass(slots=True, frozen=True)
class Login:
    """A user who was let in, and with which password; None: without one, by a certificate."""

    user: str
    password: bytes | None


def unauthorized(reason: str) -> Refused:
    """A user is asked for."""
    return Refused(HTTPStatus.UNAUTHORIZED, reason, [_ASK])


async def logged_in(request: Request, asking: Asking, config: HttpConfig, authenticate: Authenticate) -> Login | None:
    """The user; None: somebody who needs none. Raises Refused."""
    given = request.first("authorization")
    if given is not None:
        login = _credentials(given)
    elif asking.certificate_name is not None:
        login = Login(asking.certificate_name, None)
    elif config.loopback_without_user and is_loopback(asking.peer):
        if _names_this_machine(request):
            return None
        raise unauthorized("a user is needed, but by who asks for localhost or a loopback address")
    else:
        raise unauthorized("a user is needed")
    if not await is_welcome(authenticate, login.user, login.password, asking.peer):
        raise unauthorized("user or password is wrong")
    return login


def _credentials(given: str) -> Login:
    """User and password (RFC 7617 section 2). Raises Refused."""
    scheme, _, encoded = given.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise ValueError
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        if not colon:
            raise ValueError
        return Login(name.decode(), password)
    except (binascii.Error, ValueError):
        raise unauthorized("Authorization: Basic with user and password") from None


def _names_this_machine(request: Request) -> bool:
    """Whether the host that is asked for is one of loopback's own names."""
    host = request.first("host") or ""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdigit():
        name = host
    return name.lower() == "localhost" or is_loopback(f"{name}:0")


def require_own_page(request: Request, asking: Asking, config: HttpConfig) -> None:
    """Raises Refused for what a page from elsewhere asks for."""
    origins = request.headers.get("origin", [])
    own = f"{asking.scheme}://{request.first('host')}".lower()
    if any(origin.lower() != own and not is_listed(origin, config.origins) for origin in origins):
        raise Refused(HTTPStatus.FORBIDDEN, "a page from elsewhere may ask nothing here")
