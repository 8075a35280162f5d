"""TLS by keys that both sides know beforehand instead of certificates (RFC 4279; RFC 8446, section 2.2): for devices
that cannot verify a certificate, or have no room for one.

1. A door has keys or certificates. Who has no key that is in the file gets no connection; the identity of the key is
   the name that a client's certificate would have.
2. Each connection has a context of its own, for it is the context that is asked for a key. Nothing of a connection is
   resumed by another: that one would never say whose key it is, and a handshake without certificates is cheap.
3. The file is Mosquitto's `psk_file`: `IDENTITY:KEY` a line, the key in hexadecimal. It is read as a whole and replaced
   as a whole, as certificates are; connections of a key that is gone live on.
"""

from __future__ import annotations

import ssl

from gateway.config import PreSharedKeysConfig, Tls
from gateway.errors import StartError
from gateway.tls import Terms, TlsLayer, restrict

KEY_BYTES_MAX = 64
"""RFC 4279, section 5.3: implementations have to support keys of this length."""
IDENTITY_BYTES_MAX = 128
"""The same section."""
FILE_BYTES_MAX = 64 << 20

_CIPHERS = "PSK+AESGCM:PSK+CHACHA20:PSK+AESCCM:PSK+AES:!SHA1:!eNULL"
"""Of TLS 1.2. Those of TLS 1.3 are not chosen by this, and go with keys as they are."""


class KeyedContext(ssl.SSLContext):
    """Of one connection; see rule 2."""

    asked: list[str | None]
    """The identity whose key was asked for last; shared with who is asked, who must not hold the context."""

    @property
    def identity(self) -> str | None:
        """Whose key it is that both sides have, once the handshake is complete."""
        return self.asked[0]


class PreSharedKeys(Terms):
    """The keys of a file."""

    _what = "keys"

    def __init__(self, config: PreSharedKeysConfig, tls: Tls) -> None:
        """Versions, timeouts and intervals are those of `tls`. Raises StartError."""
        if not getattr(ssl, "HAS_PSK", False):
            raise StartError("psk: TLS with pre-shared keys needs Python 3.13 or newer, and OpenSSL with PSK")
        self._file, self._hint = config.file, config.hint or None
        self._keys: dict[str, bytes] = {}
        super().__init__(tls, section="psk")

    def _load(self) -> None:
        with open(self._file, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        self._keys = parse_keys(data)

    def _files(self) -> list[str]:
        return [self._file]

    def _problem(self, error: Exception) -> str:
        why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        return f"file {self._file}: {why}"

    def next_context(self) -> ssl.SSLContext:
        """A new one."""
        context = KeyedContext(ssl.PROTOCOL_TLS_SERVER)
        restrict(context, self._config)
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.set_ciphers(_CIPHERS)
        keys = self._keys
        asked = context.asked = [None]

        def key_of(identity: str | None) -> bytes:
            asked[0] = identity
            return keys.get(identity or "", b"")  # without one the handshake fails

        context.set_psk_server_callback(key_of, self._hint)  # type: ignore[attr-defined,unused-ignore]
        return context

    def peer_name(self, tls: TlsLayer) -> str | None:
        """The identity of the peer's key."""
        context = tls.context
        assert isinstance(context, KeyedContext)
        return context.identity

    def refusal(self, context: ssl.SSLContext, reason: str) -> str:
        """OpenSSL goes on without a key, and then misses something else."""
        assert isinstance(context, KeyedContext)
        if context.identity is not None and context.identity not in self._keys:
            return f"there is no key of {context.identity!r}"
        return reason


def parse_keys(data: bytes) -> dict[str, bytes]:
    """Keys by identity. Empty lines, and those that begin with `#`, say nothing. Raises ValueError."""
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")
    keys: dict[str, bytes] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        name, colon, digits = line.partition(b":")
        try:
            identity, key = name.decode(), bytes.fromhex(digits.decode("ascii"))
        except ValueError:
            raise ValueError(f"line {number}: not IDENTITY:KEY with a key in hexadecimal") from None
        if not colon or not 1 <= len(name) <= IDENTITY_BYTES_MAX or not 1 <= len(key) <= KEY_BYTES_MAX:
            raise ValueError(
                f"line {number}: not IDENTITY:KEY with an identity of 1 to {IDENTITY_BYTES_MAX} bytes "
                f"and a key of 1 to {KEY_BYTES_MAX}"
            )
        if identity in keys:
            raise ValueError(f"line {number}: {identity!r} is there twice")
        keys[identity] = key
    if not keys:
        raise ValueError("there is no key in it")
    return keys
