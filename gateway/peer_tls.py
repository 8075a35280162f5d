"""Connections to other brokers, and TLS on them: both sides show a certificate, and verify the other's against one CA.

1. Whoever has a certificate of that CA is taken for a broker, from whatever machine; who it says it is has to fit what
   the metadata knows, as ever. With a secret as well it has to know that, too.
2. Who dials also looks whether the certificate is made out for the host that it dialled, unless it is told not to.
3. Both contexts are replaced together when the files change: see `tls.py`. Links that stand live on.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import Any

import trio

from gateway.config import PeerTls, Tls
from gateway.sockets import set_up
from gateway.tls import Certificates, HandshakeFailed, TlsLayer, handshake, make_context

_ANSWER_MS_MAX = 1000


class PeerCertificates(Certificates):
    """The contexts of new links: `context` for those that are accepted, `dialling` for those that are made."""

    dialling: ssl.SSLContext

    def __init__(self, config: PeerTls) -> None:
        """Raises StartError when the files cannot be used."""
        self._verify_hostname = config.verify_hostname
        super().__init__(
            Tls(
                cert=config.cert,
                key=config.key,
                key_password=config.key_password,
                ca=config.ca,
                verify="required",
                version_min=config.version_min,
                handshake_timeout_ms=config.handshake_timeout_ms,
            ),
            section="peer_tls",
        )

    def _load(self) -> None:
        context = make_context(self._config)
        dialling = make_context(self._config, protocol=ssl.PROTOCOL_TLS_CLIENT)
        dialling.check_hostname = self._verify_hostname
        self.context, self.dialling = context, dialling

    async def secure(self, sock: socket.socket, address: str) -> TlsLayer:
        """Agree on keys with the broker that was dialled at "host:port". Raises HandshakeFailed."""
        host = address.rpartition(":")[0].strip("[]")
        return await handshake(sock, self.dialling, self.handshake_timeout_ms, dialled=host)


async def speaks_tls(address: str) -> bool:
    """Whether a broker at "host:port" answers TLS, with whatever it thinks of this side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        sock = await connect(address)
    except OSError:
        return False
    with sock:
        try:
            await handshake(sock, context, _ANSWER_MS_MAX, dialled="broker")
        except HandshakeFailed as error:
            return "ALERT" in str(error)
    return True


async def connect(address: str) -> socket.socket:
    """A connection to "host:port", as a plain non-blocking socket. Raises OSError."""
    host, _, port = address.rpartition(":")
    found: Any = await trio.socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, where = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        set_up(sock)
        error = sock.connect_ex(where)
        if error == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
    except BaseException:
        sock.close()
        raise
    return sock
