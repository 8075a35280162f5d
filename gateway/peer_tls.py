"""Connections to other brokers, and TLS on them: both sides show a certificate, and verify the other's against one CA.

1. Whoever has a certificate of that CA is taken for a broker, from whatever machine; who it says it is has to fit what
   the metadata knows, as ever. With a secret as well it has to know that, too.
2. Who dials also looks whether the certificate is made out for the host that it dialled, unless it is told not to.
3. Both contexts are replaced together when the files change: see `tls.py`. Links that stand live on.
"""

from __future__ import annotations

import os
import socket
import ssl

import trio

from gateway.config import PeerTls, Tls
from gateway.sockets import set_up
from gateway.tls import Certificates, HandshakeFailed, TlsLayer, handshake, make_context

_ANSWER_MS_MAX = 1000
_NEXT_ADDRESS_S = 0.25
"""An address that has not taken a connection by then is not waited for alone."""


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
    """A connection to "host:port", as a plain non-blocking socket: to whichever of the host's addresses takes it, as it
    may have some where nobody listens. Raises OSError, which says why none does.
    """
    host, _, port = address.rpartition(":")
    try:
        stream = await trio.open_tcp_stream(host.strip("[]"), int(port), happy_eyeballs_delay=_NEXT_ADDRESS_S)
    except OSError as error:
        raise _reason_of_all(error) from error
    sock = socket.socket(fileno=stream.socket.detach())
    try:
        set_up(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _reason_of_all(error: OSError) -> OSError:
    """What was wrong with each of the addresses, for one error of all of them."""
    cause = error.__cause__
    causes = cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause,)
    told = dict.fromkeys(os.strerror(one.errno) for one in causes if isinstance(one, OSError) and one.errno)
    return OSError(error.errno, ", ".join(told)) if told else error
