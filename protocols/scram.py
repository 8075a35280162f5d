"""A server's side of SCRAM: who knows a password, shown without sending it. RFC 5802, RFC 7677. Pure.

1. The first message names the user, the second is the proof. What is wrong in either is `Refused`, and whoever answers
   the client says no more than that.
2. Channel binding is not offered, and who asks for it is refused. An identity to act for has to be the user's own.
3. Names are as they come: Kafka's clients normalise nothing.
4. librdkafka before 2.6.1 puts its nonce a second time before the one that it is to repeat
   (https://github.com/confluentinc/librdkafka/pull/4895). It is taken, as Kafka before 4 takes it: the nonce of this
   side is all there, so nothing that was said before can be said again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import Protocol

MESSAGE_BYTES_MAX = 4096
_NONCE_BYTES = 24


class Refused(Exception):
    """No SCRAM, or no right proof."""


class Credential(Protocol):
    """What is kept of a password."""

    @property
    def salt(self) -> bytes:
        """What it was hashed with."""

    @property
    def iterations(self) -> int:
        """How often."""

    @property
    def stored_key(self) -> bytes:
        """Checks a proof."""

    @property
    def server_key(self) -> bytes:
        """Shows that the user is known."""


class ScramServer:
    """One exchange, with a hash function ("sha256", "sha512")."""

    def __init__(self, kind: str, first: bytes, nonce: str = "") -> None:
        """`first` is the client's first message. `nonce` is this side's. Raises Refused."""
        self._kind = kind
        text = _text(first)
        binding, _, rest = text.partition(",")
        authority, _, self._bare = rest.partition(",")
        if binding not in ("n", "y"):
            raise Refused("channel binding is not offered")
        self._header = f"{binding},{authority},"
        attributes = self._bare.split(",")
        if len(attributes) < 2 or attributes[0][:2] != "n=" or attributes[1][:2] != "r=":
            raise Refused("a first message names user and nonce")
        self.user = _name(attributes[0][2:])
        """Who wants to log in."""
        if authority and (authority[:2] != "a=" or _name(authority[2:]) != self.user):
            raise Refused("nobody acts for others")
        theirs = attributes[1][2:]
        if not theirs or not all("!" <= character <= "~" for character in theirs):
            raise Refused("no nonce")
        self._nonce = theirs + (nonce or b64encode(secrets.token_bytes(_NONCE_BYTES)).decode())
        self._answers = self._nonce, theirs + self._nonce
        self._credential: Credential | None = None
        self._challenge = ""

    def challenge(self, credential: Credential) -> bytes:
        """What to answer the first message with; `credential` is the user's."""
        self._credential = credential
        salt = b64encode(credential.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={credential.iterations}"
        return self._challenge.encode()

    def finish(self, final: bytes) -> bytes:
        """What to answer the client's proof with. Raises Refused."""
        credential = self._credential
        if credential is None:
            raise Refused("not asked yet")
        text = _text(final)
        without_proof, found, proof_text = text.rpartition(",p=")
        attributes = without_proof.split(",")
        if not found or len(attributes) < 2 or attributes[0][:2] != "c=" or attributes[1][:2] != "r=":
            raise Refused("a last message says channel, nonce and proof")
        proof = _bytes(proof_text)
        if _bytes(attributes[0][2:]) != self._header.encode() or attributes[1][2:] not in self._answers:
            raise Refused("not an answer to what was asked")
        said = f"{self._bare},{self._challenge},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, said, self._kind)
        if len(proof) != len(signature):
            raise Refused("no proof")
        client_key = bytes(a ^ b for a, b in zip(proof, signature))
        if not hmac.compare_digest(hashlib.new(self._kind, client_key).digest(), credential.stored_key):
            raise Refused("a wrong proof")
        return b"v=" + b64encode(hmac.digest(credential.server_key, said, self._kind))


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise Refused("a message that is too long")
    try:
        return str(message, "utf-8")
    except UnicodeDecodeError:
        raise Refused("no text") from None


def _name(escaped: str) -> str:
    name = escaped.replace("=2C", ",").replace("=3D", "\0")
    if not name or "=" in name or "\0" in escaped:
        raise Refused("no name")
    return name.replace("\0", "=")


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):
        raise Refused("no base64") from None
