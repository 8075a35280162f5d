"""How long the certificate that this side shows is good for, as OpenSSL reads it.

Python tells the fields of a certificate that a handshake has brought and that verified, of no other: so one is made in
memory, in which the certificate is its own authority and its dates are not looked at.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from gateway.config import Tls

_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME, which `ssl` has no name for."""
_WARN_FOR_S = 30 * 86400
_WARN_FOR_SHARE = 0.1


class Lifetime(NamedTuple):
    """Of a certificate, in seconds since 1970."""

    begins_at: float
    expires_at: float

    def expires_soon(self, now: float) -> bool:
        """Whether a tenth of its time is left, or 30 days if that is less, or nothing."""
        return self.expires_at - now < min(_WARN_FOR_S, (self.expires_at - self.begins_at) * _WARN_FOR_SHARE)


def lifetime_of(config: Tls) -> Lifetime | None:
    """That of `cert`; None if it is not for servers, or something else keeps it from being known. Raises OSError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(config.cert, config.key or None, password=lambda: config.key_password)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(config.cert)
    client.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME) | ssl.VERIFY_X509_PARTIAL_CHAIN
    from_client, from_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(from_server, from_client)
    theirs = server.wrap_bio(from_client, from_server, server_side=True)
    for one in (ours, theirs, ours):
        try:
            one.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            return None
    certificate = ours.getpeercert()
    if not certificate:
        return None
    begins_at, expires_at = (ssl.cert_time_to_seconds(str(certificate[name])) for name in ("notBefore", "notAfter"))
    return Lifetime(begins_at, expires_at)
