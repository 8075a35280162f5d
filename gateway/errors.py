"""Errors of the process that are the operator's business, said in one line, and of connections before there is one."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus


class StartError(Exception):
    """The broker cannot start: a port is taken, the data directory is in use. The text is one line."""


class Refused(Exception):
    """The request is answered with an HTTP status and closed; the text is the body."""

    def __init__(self, status: HTTPStatus, reason: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(f"{status.value} {status.phrase}: {reason}")
        self.status = status
        self.reason = reason
        self.headers = list(headers)


class PeerGone(Exception):
    """The client closed the transport, or it broke."""


def first_error(error: BaseException) -> BaseException:
    """The first error within groups of them: nurseries wrap what is raised within them.

    What `except*` makes of it is raised behind the statement: within it, Python before 3.11.4 wraps it again.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
