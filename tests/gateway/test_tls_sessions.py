"""What a resumed session of TLS may not do: stand for a certificate that would not verify any more."""

from __future__ import annotations

import contextlib
import datetime
import ssl
from pathlib import Path

import pytest
import trustme

from gateway.config import Tls
from gateway.tls import Certificates, HandshakeFailed, TlsLayer

HOST = "localhost"


def shake_hands(server: Certificates, client: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLObject:
    """The client's side of a connection, on which it has read something. Raises HandshakeFailed, ssl.SSLError."""
    side = TlsLayer(server.context)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = client.wrap_bio(incoming, outgoing, server_hostname=HOST, session=session)
    done = False
    while not done:
        with contextlib.suppress(ssl.SSLWantReadError):
            made.do_handshake()
        try:
            done = side.shake(outgoing.read())
        except HandshakeFailed:  # the connection ends
            incoming.write_eof()
            with pytest.raises(ssl.SSLEOFError):
                made.read(1)
            raise
        incoming.write(side.output())
    incoming.write(side.encrypt([b"hello"]))
    made.do_handshake()
    assert made.read(5) == b"hello"
    side.goodbye()  # else OpenSSL forgets the session
    return made


@pytest.mark.parametrize("tickets", [True, False])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_expired_certificate_is_refused_though_it_was_valid_in_a_session_of_before(
    tmp_path: Path, version: ssl.TLSVersion, tickets: bool
) -> None:
    authority = trustme.CA()
    cert, ca = str(tmp_path / "cert.pem"), str(tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(cert)
    server = Certificates(Tls(cert=cert, ca=ca, verify="required"))
    client = ssl.create_default_context(cafile=ca)
    client.maximum_version = version
    if not tickets:
        client.options |= ssl.OP_NO_TICKET
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
    authority.issue_cert(HOST, common_name="ada", not_after=until).configure_cert(client)

    session = shake_hands(server, client, None).session
    with contextlib.suppress(ssl.SSLCertVerificationError):
        while True:
            shake_hands(server, client, None)

    with pytest.raises((ssl.SSLCertVerificationError, HandshakeFailed), match="expired"):
        shake_hands(server, client, session)
    authority.issue_cert(HOST, common_name="ada").configure_cert(client)
    assert not shake_hands(server, client, session).session_reused, "a new certificate is not held up by the session"
