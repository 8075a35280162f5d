"""Requests to the doors for HTTP, as the page makes them."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trustme

HOST = "127.0.0.1"


class ApiError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason


class Api:
    """`api("queues.list", start=0)`: operations of a broker, without a user or as one."""

    def __init__(
        self, port: int, user: str | None = None, password: str = "", *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.url = f"{'http' if tls is None else 'https'}://{HOST}:{port}"
        self._tls = tls
        self.headers = {"Content-Type": "application/json"}
        if user is not None:
            self.headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def __call__(self, name: str, /, **arguments: Any) -> Any:
        return self.send(name, json.dumps(arguments).encode(), {})

    def send(self, name: str, body: bytes | None, headers: dict[str, str], *, method: str = "POST") -> Any:
        """Any body, with other headers over the usual ones. Raises ApiError."""
        told = {name: value for name, value in (self.headers | headers).items() if value}
        request = urllib.request.Request(f"{self.url}/api/{name}", body, told, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20, context=self._tls) as answer:
                assert answer.headers["Cache-Control"] == "no-store"
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                said = json.load(error)
            raise ApiError(error.code, said["error"], said["reason"]) from None


def refusal(api: Api, name: str, /, **arguments: Any) -> tuple[int, str]:
    """Status and name of the error with which an operation is refused."""
    with pytest.raises(ApiError) as caught:
        api(name, **arguments)
    return caught.value.status, caught.value.error


def with_tls(directory: Path, authority: trustme.CA, config: str) -> tuple[str, ...]:
    """Arguments of a broker with a configuration and a certificate of this authority."""
    cert, ca = str(directory / "cert.pem"), str(directory / "ca.pem")
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(cert)
    authority.cert_pem.write_to_path(ca)
    (directory / "config.toml").write_text(config)
    return ("--tls-cert", cert, "--tls-ca", ca, "--config", str(directory / "config.toml"))
