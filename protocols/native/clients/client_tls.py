"""The terms on which clients of the native protocol speak TLS: an `ssl.SSLContext`, which programs may also make."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager


def tls_context(ca: str | None = None, cert: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """Verify the broker's certificate and name against the certificates in the file `ca` (without it: those the system
    trusts), and show the certificate `cert` with its private `key` if one is given. All are PEM.

    Raises OSError (`ssl.SSLError` is one) for files that cannot be used; it names them, which OpenSSL does not.
    """
    for path in filter(None, (ca, cert, key)):
        with open(path, "rb"):
            pass
    with _named(ca):
        context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None:
        with _named(cert, key):
            context.load_cert_chain(cert, key)
    return context


@contextmanager
def _named(*paths: str | None) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        files = ", ".join(path for path in paths if path)
        why = error.reason or error.strerror
        raise ssl.SSLError(error.errno, f"{files}: nothing in PEM that can be used: {why}") from None
