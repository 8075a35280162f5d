"""Connections to other brokers, and TLS on them: both sides show a certificate, and verify the other's against one CA.

1. Whoever has a certificate of that CA is taken for a broker, from whatever machine; who it says it is has to fit what
   the metadata knows, as ever. With a secret as well it has to know that, too.
2. Who dials also looks whether the certificate is made out for the host that it dialled, unless it is told not to. So
   each looks whether its own is, before it shows that to anybody: one that is not would leave nobody who can dial it.
3. Both contexts are replaced together when the files change: see `tls.py`. Links that stand live on.
"""

from __future__ import annotations

import os
import socket
import ssl

import trio

from gateway.config import PeerTls, Tls
from gateway.errors import StartError
from gateway.sockets import set_up
from gateway.tls import Certificates, HandshakeFailed, TlsLayer, handshake, make_context

_ANSWER_MS_MAX = 1000
_OTHER_HOST = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH: the certificate is for somebody else."""
_NEXT_ADDRESS_S = 0.25
"""An address that has not taken a connection by then is not waited for alone."""


class PeerCertificates(Certificates):
    """The contexts of new links: `context` for those that are accepted, `dialling` for those that are made."""

    dialling: ssl.SSLContext

    def __init__(self, config: PeerTls) -> None:
        """Raises StartError when the files cannot be used."""
        self._verify_hostname = config.verify_hostname
        self._dialled_at = ""
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
        self._check_host(context)
        self.context, self.dialling = context, dialling

    def dialled_at(self, address: str) -> None:
        """Others find this broker at "host:port". Raises StartError when its certificate is not made out for that
        host; one that comes later and is not leaves the files before it in use.
        """
        self._dialled_at = _host_of(address)
        try:
            self._check_host(self.context)
        except (OSError, ValueError) as error:
            raise StartError(f"peer_tls: {self._problem(error)}") from None

    def _check_host(self, context: ssl.SSLContext) -> None:
        """Raises ValueError. What else may be wrong with the certificate is for others to say."""
        if not self._verify_hostname or not self._dialled_at:
            return
        dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        dialling.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself will do
        dialling.load_verify_locations(self._config.cert)
        dialling.load_cert_chain(self._config.cert, self._config.key or None, lambda: self._config.key_password)
        ours, theirs = TlsLayer(context), TlsLayer(dialling, dialled=self._dialled_at)
        try:
            theirs.shake(b"")
            ours.shake(theirs.output())
            theirs.shake(ours.output())
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in _OTHER_HOST:
                raise ValueError(f"not made out for {self._dialled_at}, where other brokers dial this one") from None

    async def secure(self, sock: socket.socket, address: str) -> TlsLayer:
        """Agree on keys with the broker that was dialled at "host:port". Raises HandshakeFailed."""
        return await handshake(sock, self.dialling, self.handshake_timeout_ms, dialled=_host_of(address))


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


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
