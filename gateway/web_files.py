"""The broker's own page and what belongs to it: `GET /` and `GET /web/NAME`, files of the package.

They are read once, when the door is opened: what is asked for is looked up among their names, never in a directory. Who
has a file already is told so by its tag.
"""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING

from gateway.errors import Refused

if TYPE_CHECKING:
    from gateway.http import Page, Request

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}


class WebFiles:
    """The files, as they were when the door was opened."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, str, bytes]] = {}
        for file in (files("gateway") / "web").iterdir():
            kind = _TYPES.get(file.name.rpartition(".")[2])
            if kind is not None and file.is_file():
                body = file.read_bytes()
                tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                self._found[f"/web/{file.name}"] = kind, tag, body
        self._found["/"] = self._found["/web/index.html"]

    def page(self, request: Request) -> Page:
        """What a GET of it is answered with. Raises Refused."""
        found = self._found.get(request.path)
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there are /, /api, /metrics and /healthz")
        kind, tag, body = found
        headers = [("Cache-Control", "no-cache"), ("ETag", tag)]
        if {tag, f"W/{tag}", "*"}.intersection(request.tokens("if-none-match")):
            return HTTPStatus.NOT_MODIFIED, headers, b""
        return HTTPStatus.OK, [*headers, ("Content-Type", kind)], body
