"""`POST /api/NAME`: operations of administration over HTTP, arguments and answers in JSON; and `GET
/api/messages?key=K[&topic=T][&limit=N]`, which is the operation `messages.find`.

1. A name is one of the table of operations, or one of `web_operations`, which are made of several requests of the
   native protocol. Who may ask for what, and what is refused, is the same as for the commands of `millrace`.
2. An answer is 200 with the value, or another status with `{"error": NAME, "reason": one line}`; names are those of the
   native protocol's errors.
3. Nothing of a body is read before it is known who asks, and no more than `http.body_bytes_max`; an operation takes at
   most `http.operation_timeout_ms`.
"""

from __future__ import annotations

from base64 import b64encode
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec
import structlog
import trio

from gateway.errors import Refused
from gateway.own_door import OwnDoor
from gateway.web_login import Asking, Login, logged_in, require_own_page, unauthorized
from gateway.web_operations import WEB_OPERATIONS, Asked
from protocols.native.adapter_errors import ENGINE_ERRORS, engine_error
from protocols.native.errors import RETRIABLE, ConnectionLost, DeliveryTimedOut, ErrorCode, MillraceError
from routing.administration import administer
from routing.administration.operations import checked

if TYPE_CHECKING:
    from gateway.authentication import Authenticate
    from gateway.config import Config
    from gateway.connection import Shell
    from gateway.http import Exchange, Page, Request
    from routing.broker import Broker

log = structlog.get_logger(__name__)

PREFIX = "/api/"
_MESSAGES = "/api/messages"
_FIELDS_MAX = 8
_JSON = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]

STATUSES: dict[ErrorCode, HTTPStatus] = {
    ErrorCode.REQUEST_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ErrorCode.BATCH_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ErrorCode.AUTHENTICATION_FAILED: HTTPStatus.UNAUTHORIZED,
    ErrorCode.ACCESS_REFUSED: HTTPStatus.FORBIDDEN,
    ErrorCode.UNKNOWN_API: HTTPStatus.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC: HTTPStatus.NOT_FOUND,
    ErrorCode.UNKNOWN_PARTITION: HTTPStatus.NOT_FOUND,
    ErrorCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.PRECONDITION_FAILED: HTTPStatus.CONFLICT,
    ErrorCode.LIMIT_EXCEEDED: HTTPStatus.CONFLICT,
    ErrorCode.UNKNOWN_MEMBER: HTTPStatus.CONFLICT,
    ErrorCode.ILLEGAL_GENERATION: HTTPStatus.CONFLICT,
    ErrorCode.REBALANCE_IN_PROGRESS: HTTPStatus.CONFLICT,
    ErrorCode.INCONSISTENT_PROTOCOL: HTTPStatus.CONFLICT,
    ErrorCode.FENCED_INSTANCE: HTTPStatus.CONFLICT,
    ErrorCode.PRODUCER_FENCED: HTTPStatus.CONFLICT,
    ErrorCode.WRONG_TRANSACTION_STATE: HTTPStatus.CONFLICT,
    ErrorCode.REQUEST_TIMED_OUT: HTTPStatus.GATEWAY_TIMEOUT,
    **dict.fromkeys(RETRIABLE - {ErrorCode.REQUEST_TIMED_OUT}, HTTPStatus.SERVICE_UNAVAILABLE),
}
"""What errors of the native protocol are in HTTP; all others are 400."""

_NAMES = {
    HTTPStatus.BAD_REQUEST: "INVALID_REQUEST",
    HTTPStatus.UNAUTHORIZED: "AUTHENTICATION_FAILED",
    HTTPStatus.FORBIDDEN: "ACCESS_REFUSED",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "REQUEST_TOO_LARGE",
    HTTPStatus.REQUEST_TIMEOUT: "REQUEST_TIMED_OUT",
}
"""What is refused before there is an operation, as far as the native protocol has a name for it."""


class WebApi:
    """What answers requests for operations."""

    def __init__(self, broker: Broker, shell: Shell, config: Config, authenticate: Authenticate) -> None:
        self._broker = broker
        self._shell = shell
        self._config = config
        self._authenticate = authenticate
        self._door = OwnDoor(broker, shell, config)

    async def answer(self, exchange: Exchange, request: Request, asking: Asking) -> Page:
        """The result of an operation, or why there is none. Raises PeerGone."""
        try:
            return await self._answer(exchange, request, asking)
        except Refused as refused:
            log.info("request refused", door=asking.scheme, peer=asking.peer, reason=str(refused))
            name = _NAMES.get(refused.status, refused.status.name)
            return _refusal(refused.status, name, refused.reason, refused.headers)
        except ENGINE_ERRORS as error:
            code, _, reason = engine_error(error)
            return _of_code(code, reason)
        except ConnectionLost as error:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "CONNECTION_LOST", str(error))
        except DeliveryTimedOut as error:
            return _of_code(ErrorCode.REQUEST_TIMED_OUT, str(error))
        except MillraceError as error:
            return _of_code(error.code, str(error))

    async def _answer(self, exchange: Exchange, request: Request, asking: Asking) -> Page:
        """Raises what `answer` tells of."""
        config = self._config.http
        is_get = request.path == _MESSAGES and request.method == "GET"
        if request.method != "POST" and not is_get:
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "operations are asked for with POST", [("Allow", "POST")])
        require_own_page(request, asking, config)
        if is_get and exchange.has_body():
            raise Refused(HTTPStatus.BAD_REQUEST, "a GET has no body")
        if not is_get and (request.first("content-type") or "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "arguments are JSON: Content-Type: application/json")
        self._broker.bans.require_welcome("", "", asking.peer)
        login = await logged_in(request, asking, config, self._authenticate)
        user = self._user(login)
        self._broker.bans.require_welcome("", user, asking.peer)
        if is_get:
            name, arguments = "messages.find", _asked_by(request.query)
        else:
            name = request.path.removeprefix(PREFIX)
            arguments = _arguments(await exchange.body(config.body_bytes_max, config.request_timeout_ms))
        with trio.move_on_after(config.operation_timeout_ms / 1000):
            asked = Asked(self._door, self._config, login, user, asking.peer)
            return HTTPStatus.OK, _JSON, await self._run(name, arguments, asked)
        reason = f"{name}: no end within {config.operation_timeout_ms} ms; it may have been done, or go on"
        return _of_code(ErrorCode.REQUEST_TIMED_OUT, reason)

    def _user(self, login: Login | None) -> str:
        """For whom it is asked: somebody without a user as over the native protocol. Raises Refused."""
        if login is not None:
            return login.user
        native = self._config.native
        if not native.anonymous_loopback or self._broker.rights.user(native.anonymous_user) is None:
            raise unauthorized("a user is needed")
        return native.anonymous_user

    async def _run(self, name: str, arguments: dict[str, Any], asked: Asked) -> bytes:
        """The result, in JSON. Raises what operations raise, Refused."""
        found = WEB_OPERATIONS.get(name)
        try:
            if found is not None:
                result = await found.run(asked, asked.user, **checked(name, found, arguments))
            else:
                vhost = self._config.native.virtual_host
                result = await administer(
                    self._broker, asked.user, name, arguments, asked_from=asked.peer, topics_vhost=vhost
                )
            return msgspec.json.encode(result)
        except (Refused, MillraceError, *ENGINE_ERRORS):
            raise
        except Exception as error:
            log.error("operation failed", operation=name, peer=asked.peer, exc_info=error)
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, f"{name} failed: see the broker's log") from None
        finally:
            self._shell.end_turn()


def _arguments(body: bytes) -> dict[str, Any]:
    """Raises Refused."""
    try:
        found: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the body is no JSON object: {error}") from None
    return found


def _asked_by(query: str) -> dict[str, Any]:
    """The arguments of `messages.find`; a key is any bytes. Raises Refused."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape", max_num_fields=_FIELDS_MAX)
        found: dict[str, Any] = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name comes twice")
        if "key" in found:
            found["key"] = {"base64": b64encode(found["key"].encode("utf-8", "surrogateescape")).decode()}
        for name in found.keys() - {"key"}:
            found[name].encode()  # a UnicodeEncodeError is a ValueError
        if "limit" in found:
            if not found["limit"].isdecimal():
                raise ValueError("limit is no number of messages")
            found["limit"] = int(found["limit"])
    except ValueError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the query is not understood: {error}") from None
    return found


def _of_code(code: int, reason: str) -> Page:
    try:
        known = ErrorCode(code)
    except ValueError:  # of a later version's broker, or of none at all
        return _refusal(HTTPStatus.BAD_GATEWAY, "PROTOCOL_ERROR", reason)
    return _refusal(STATUSES.get(known, HTTPStatus.BAD_REQUEST), known.name, reason)


def _refusal(status: HTTPStatus, name: str, reason: str, headers: list[tuple[str, str]] | None = None) -> Page:
    body = msgspec.json.encode({"error": name, "reason": reason.encode("utf-8", "replace").decode()})
    return status, [*(headers or []), *_JSON], body
