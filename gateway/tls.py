"""TLS between a socket and a protocol, without either: ciphertext in, plaintext out, and back.

1. The batch survives: one read from the socket is decrypted as a whole, and what a turn wrote is joined first,
   encrypted in records of 16 KiB and sent with one call. Nothing here happens per message. What a read has TLS answer
   by itself is sent behind it: who asks for it waits, and may never be sent anything else.
2. TLS 1.2 and 1.3 alone, no renegotiation, no compression. What the peer's certificate says was verified, or is not
   there: a certificate that does not verify ends the handshake. Where clients have some, each connection verifies
   its own: OpenSSL looks at none in a session that is resumed, and would let them in for ever once they have expired.
3. Certificates are replaced without a restart: every handshake takes the context of its moment, and a context is
   replaced as a whole, so files that do not fit together (yet) change nothing. Connections live on.
4. A certificate that nobody replaces in time is warned of before clients refuse it.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import structlog
import trio

from gateway.certificate_lifetime import Lifetime, lifetime_of
from gateway.config import Tls
from gateway.errors import StartError
from gateway.sockets import receive, see_off, send_all
from protocols.buffers import BytesLike, join_small

log = structlog.get_logger(__name__)

_RECORD_BYTES = 16 << 10
_READS_MAX = 4
"""At once, however little plaintext there is in them: records may be small, or padding."""
_WARN_EVERY_S = 86400

_ABBREVIATIONS = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "domainComponent": "DC",
    "userId": "UID",
    "emailAddress": "EMAIL",
    "serialNumber": "SERIALNUMBER",
    "streetAddress": "STREET",
}
"""Attribute types of a distinguished name as RFC 4514 writes them (section 3), and those RabbitMQ knows besides."""

_OF_THIS_SIDE = (
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_UNKNOWN",
    "BAD_CERTIFICATE",
    "UNSUPPORTED_CERTIFICATE",
    "UNKNOWN_CA",
)
"""Alerts by which a peer says what is wrong with the certificate that it was shown."""

_SPECIAL = frozenset(',+"\\<>;')


class HandshakeFailed(Exception):
    """The peer speaks no TLS, none that we accept, shows a certificate that does not verify, or is too slow."""


class Unverified(HandshakeFailed):
    """It is the peer's certificate that does not verify."""


class TlsReader:
    """The reading side of a socket with TLS, as the shell wants it: `recv` gives plaintext."""

    __slots__ = ("_early", "_send", "_socket", "_tls")

    def __init__(self, sock: socket.socket, tls: TlsLayer, send: Callable[[bytes], None] | None = None) -> None:
        """`send` takes what TLS answers by itself, which else goes with what is encrypted next."""
        self._socket = sock
        self._tls = tls
        self._send = send
        self._early = True

    def recv(self, size: int) -> bytes:
        """Like `socket.recv`; less than `size` means that the kernel has no more, and somewhat more may come.

        Raises BlockingIOError when nothing is complete, OSError when the connection or its records are broken.
        """
        tls, found = self._tls, []
        missing, taken_max = size, size * _READS_MAX
        if self._early:
            self._early = False
            found.append(self._decrypt(b""))
        while missing > 0 and taken_max > 0 and not tls.ended:
            try:
                data = self._socket.recv(size)
            except BlockingIOError:
                break
            if not data:
                tls.ended = True
                break
            plain = self._decrypt(data)
            found.append(plain)
            if len(data) < size:
                break
            missing -= len(plain)
            taken_max -= size
        if tls.answers and self._send is not None:
            self._send(tls.output())
        plain = found[0] if len(found) == 1 else b"".join(found)
        if not plain and not tls.ended:
            raise BlockingIOError
        return plain

    def _decrypt(self, data: bytes) -> bytes:
        try:
            return self._tls.decrypt(data)
        except ssl.SSLError as error:
            self._tls.failure = reason_of(error)
            with contextlib.suppress(OSError):  # the alert is for those who still listen
                self._socket.send(self._tls.output())
            raise


class TlsLayer:
    """One connection's state. `shake` until it is True; then `decrypt` and `encrypt`, in the order of the bytes."""

    __slots__ = ("_incoming", "_object", "_outgoing", "ended", "failure")

    def __init__(self, context: ssl.SSLContext, *, dialled: str | None = None) -> None:
        """`dialled`: this is the side that made the connection, to that host."""
        self.failure = ""
        """What was wrong with the peer's records, or what it said is wrong with this side."""
        self.ended = False
        """The peer said that no more will come."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=dialled is None, server_hostname=dialled
        )

    def shake(self, data: bytes) -> bool:
        """Take bytes of the handshake; whether it is complete. Raises ssl.SSLError, Unverified."""
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        # TLS 1.2 has sessions without tickets as well. A client forgets one whose connection ends so, and is verified.
        certificate = self._object.getpeercert() if self._object.session_reused else None
        if certificate and ssl.cert_time_to_seconds(str(certificate["notAfter"])) < time.time():
            raise Unverified("the certificate of a session that was resumed has expired")
        return True

    def decrypt(self, data: bytes) -> bytes:
        """All plaintext that `data` completes, perhaps none. Raises ssl.SSLError."""
        self._incoming.write(data)
        read, found = self._object.read, []
        try:
            while True:
                plain = read(_RECORD_BYTES)
                if not plain:
                    self.ended = True
                    break
                found.append(plain)
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self.ended = True
        return found[0] if len(found) == 1 else b"".join(found)

    def encrypt(self, pieces: Iterable[BytesLike]) -> bytes:
        """The records for `pieces`, small ones joined, and whatever TLS itself has to say. Raises ssl.SSLError."""
        write = self._object.write
        for buffer in join_small(pieces):
            view = memoryview(buffer)
            while view:  # a call takes one record's worth
                view = view[write(view) :]
        return self._outgoing.read()

    @property
    def answers(self) -> bool:
        """Whether there is something that the peer has asked for, of TLS itself: new keys, or what is refused."""
        return self._outgoing.pending > 0

    def output(self) -> bytes:
        """What TLS itself has to say: handshake, alerts."""
        return self._outgoing.read()

    def goodbye(self) -> bytes:
        """The last records: no more will come from us."""
        try:
            self._object.unwrap()
        except ssl.SSLError:
            pass  # the peer's own is not awaited, and what went wrong before is told by an alert
        return self._outgoing.read()

    def certificate_name(self, source: str) -> str | None:
        """What the peer's verified certificate calls it, see `Tls.name`; None without one."""
        certificate = self._object.getpeercert()
        return name_of(certificate, source) if certificate else None

    @property
    def context(self) -> ssl.SSLContext:
        """The terms of this connection."""
        return self._object.context


def name_of(certificate: Mapping[str, object], source: str) -> str | None:
    """The name in a certificate (as `SSLSocket.getpeercert` gives it); None where it has none of that sort."""
    if source in ("dns", "email", "uri"):
        kind = {"dns": "DNS", "email": "email", "uri": "URI"}[source]
        names = certificate.get("subjectAltName", ())
        assert isinstance(names, tuple)
        return next((str(name) for found, name in names if found == kind), None)
    subject = certificate.get("subject", ())
    assert isinstance(subject, tuple)
    if source == "common_name":
        common = [value for relative in subject for name, value in relative if name == "commonName"]
        return ",".join(common) or None
    # RFC 4514 begins with the last of the sequence (section 2.1).
    parts = ["+".join(f"{_ABBREVIATIONS.get(k, k)}={_escaped(v)}" for k, v in relative) for relative in subject]
    return ",".join(reversed(parts)) or None


def _escaped(value: str) -> str:
    """A value of a distinguished name (RFC 4514 section 2.4)."""
    text = "".join("\\" + character if character in _SPECIAL else character for character in value)
    if text.startswith((" ", "#")):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and len(text) > 1 else text


class Terms:
    """On what terms the connections of a door are secured, made again when the files that say so have changed."""

    _what = "certificates"

    def __init__(self, config: Tls, *, section: str) -> None:
        """Raises StartError when the files cannot be used, which names the `section` of the configuration."""
        self._config = config
        self.handshake_timeout_ms = config.handshake_timeout_ms
        self.lifetime: Lifetime | None = None
        """Of the certificate that this side shows, if it shows one."""
        self._warned_at = -math.inf
        self._seen = self._identities()
        try:
            self._read()
        except (OSError, ValueError) as error:
            raise StartError(f"{section}: {self._problem(error)}") from None

    def _read(self) -> None:
        lifetime = self._lifetime()
        self._load()
        self.lifetime, self._warned_at = lifetime, -math.inf

    def _lifetime(self) -> Lifetime | None:
        """See `lifetime`. Raises OSError, ValueError."""
        return None

    def _load(self) -> None:
        """Raises OSError (ssl.SSLError is one), ValueError, and then changes nothing."""
        raise NotImplementedError

    def _files(self) -> list[str]:
        raise NotImplementedError

    def _problem(self, error: Exception) -> str:
        """One line for the operator about files that cannot be used."""
        raise NotImplementedError

    def check(self) -> None:
        """Load the files again if they are others than before, and warn once a day of a certificate that expires."""
        if self._identities() != self._seen:
            self.reload()
        self._warn_of_expiry(time.time())

    def reload(self) -> None:
        """Load the files again; if they cannot be used, what is there stays, and the log says why."""
        self._seen = self._identities()
        try:
            self._read()
        except (OSError, ValueError) as error:
            log.error(f"{self._what} not reloaded", error=self._problem(error))
        else:
            log.info(f"{self._what} reloaded", files=self._files())

    def _warn_of_expiry(self, now: float) -> None:
        if self.lifetime is None or now - self._warned_at < _WARN_EVERY_S or not self.lifetime.expires_soon(now):
            return
        self._warned_at = now
        expires_at = datetime.fromtimestamp(self.lifetime.expires_at, UTC).isoformat()
        if now < self.lifetime.expires_at:
            log.warning("certificate expires soon", files=self._files(), expires_at=expires_at)
        else:
            log.error("certificate has expired", files=self._files(), expires_at=expires_at)

    def _identities(self) -> list[tuple[int, int, int] | None]:
        return [_identity(path) for path in self._files()]

    @property
    def certificate_file(self) -> str:
        """What this side shows; empty if nothing."""
        return self._config.cert

    def next_context(self) -> ssl.SSLContext:
        """For the next connection."""
        raise NotImplementedError

    def peer_name(self, tls: TlsLayer) -> str | None:
        """The user as whom the peer may log in, now that the handshake is complete; None for nobody."""
        raise NotImplementedError

    def refusal(self, context: ssl.SSLContext, reason: str) -> str:
        """Why a handshake failed, where OpenSSL says only `reason`."""
        return reason


class Certificates(Terms):
    """This side shows a certificate, and verifies those of clients."""

    context: ssl.SSLContext

    def __init__(self, config: Tls, *, section: str = "tls") -> None:
        """See `Terms`."""
        super().__init__(config, section=section)

    def _load(self) -> None:
        self.context = make_context(self._config)

    def _lifetime(self) -> Lifetime | None:
        return lifetime_of(self._config) if self._config.cert else None

    def _files(self) -> list[str]:
        return [path for path in (self._config.cert, self._config.key, self._config.ca) if path]

    def _problem(self, error: Exception) -> str:
        return problem(self._config, error)

    def next_context(self) -> ssl.SSLContext:
        """That of all connections, until the files change."""
        return self.context

    def peer_name(self, tls: TlsLayer) -> str | None:
        """What a verified certificate calls the peer."""
        return tls.certificate_name(self._config.name)


def _identity(path: str) -> tuple[int, int, int] | None:
    """What changes when a file is replaced or rewritten."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def make_context(config: Tls, *, protocol: int = ssl.PROTOCOL_TLS_SERVER) -> ssl.SSLContext:
    """The server's terms, or with `PROTOCOL_TLS_CLIENT` those of who dials, which verifies the server in any case.

    Raises OSError (ssl.SSLError is one), ValueError.
    """
    context = ssl.SSLContext(protocol)
    restrict(context, config)
    # Without a function OpenSSL would ask the terminal.
    context.load_cert_chain(config.cert, config.key or None, password=lambda: config.key_password)
    if config.ca and config.verify != "none":
        context.load_verify_locations(config.ca)
        context.verify_mode = ssl.CERT_REQUIRED if config.verify == "required" else ssl.CERT_OPTIONAL
        context.options |= ssl.OP_NO_TICKET
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
    return context


def restrict(context: ssl.SSLContext, config: Tls) -> None:
    """Allow what is allowed on any terms: rule 2."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if config.version_min == "1.3" else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def problem(config: Tls, error: Exception) -> str:
    """One line for the operator about files that cannot be used."""
    for setting, path in (("cert", config.cert), ("key", config.key), ("ca", config.ca)):
        if path:
            try:
                with open(path, "rb"):
                    pass
            except OSError as refused:
                return f"{setting} {path}: cannot be read: {refused.strerror}"
    reason = getattr(error, "reason", None) or str(error)
    files = ", ".join(path for path in (config.cert, config.key, config.ca) if path)
    return f"{files}: no certificate and key in PEM that can be used: {reason}"


def reason_of(error: ssl.SSLError) -> str:
    """What is wrong, and with whose certificate, as a part of a line."""
    reason, why = error.reason or str(error), getattr(error, "verify_message", "")
    if "_ALERT_" in reason and reason.endswith(_OF_THIS_SIDE):
        why = "the other side does not accept the certificate of this one"
    return reason + (f": {why}" if why else "")


async def handshake(
    sock: socket.socket, context: ssl.SSLContext, timeout_ms: int, *, dialled: str | None = None
) -> TlsLayer:
    """Agree on keys with the peer at the other end of a non-blocking socket; for `dialled` see `TlsLayer`. Raises
    HandshakeFailed.
    """
    tls = TlsLayer(context, dialled=dialled)
    failed, reason = HandshakeFailed, f"not complete after {timeout_ms} ms"
    with trio.move_on_after(timeout_ms / 1000):
        done = False
        if dialled is not None:
            tls.shake(b"")
            if not await send_all(sock, tls.output()):
                raise HandshakeFailed("closed by the peer")
        while not done:
            try:
                data = await receive(sock)
                if not data:
                    raise HandshakeFailed("closed by the peer")
                done = tls.shake(data)
            except ssl.SSLError as error:
                failed = Unverified if isinstance(error, ssl.SSLCertVerificationError) else HandshakeFailed
                reason = reason_of(error)
                # The alert tells the peer, if it understands it at all. It may take its time to close.
                await send_all(sock, tls.output())
                await see_off(sock, False)
                raise failed(reason) from None
            except OSError as error:
                raise HandshakeFailed(error.strerror or str(error)) from None
            if not await send_all(sock, tls.output()):
                raise HandshakeFailed("closed by the peer")
        return tls
    raise failed(reason)
