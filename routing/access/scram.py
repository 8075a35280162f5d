"""What is kept of passwords for SCRAM (RFC 5802, 7677): beside the hash that `passwords.py` makes, never the password.

1. A *credential* is salt, iterations and two keys. Who has it can check a proof, and can say that it knows the user;
   it cannot log in anywhere with it, and finds the password only by trying.
2. The password is salted as the bytes that it is: Kafka's clients normalise nothing.
3. Users who are not there have credentials, too: the same after every start and at every broker of a cluster, since
   they are made with a secret that the catalog keeps. So nobody learns whether there is such a user. No password fits.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import NamedTuple

MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The mechanisms that are offered, and the hash function of each."""
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 1_000_000
SALT_BYTES = 24
SALT_BYTES_MAX = 1024
_PREFIX = "$scram$"


class Credential(NamedTuple):
    """See the module's rule 1."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def key_bytes(mechanism: str) -> int:
    """How long a mechanism's keys and salted passwords are."""
    return hashlib.new(MECHANISMS[mechanism]).digest_size


def credential(mechanism: str, password: bytes, salt: bytes, iterations: int) -> Credential:
    """Of a password. Takes milliseconds on purpose."""
    return salted_credential(
        mechanism, hashlib.pbkdf2_hmac(MECHANISMS[mechanism], password, salt, iterations), salt, iterations
    )


def salted_credential(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> Credential:
    """Of a password that somebody else has salted."""
    kind = MECHANISMS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", kind)
    server_key = hmac.digest(salted_password, b"Server Key", kind)
    return Credential(salt, hashlib.new(kind, client_key).digest(), server_key, iterations)


def credentials(password: bytes, mechanisms: Iterable[str], iterations: int) -> dict[str, Credential]:
    """Of a password, for some mechanisms, each with a salt of its own. Blocks."""
    return {one: credential(one, password, secrets.token_bytes(SALT_BYTES), iterations) for one in mechanisms}


def decoy(mechanism: str, user: str, secret: bytes, iterations: int) -> Credential:
    """Of a user who is not there: nobody knows a password for it."""
    salted = made_of(secret, "password", mechanism, user)
    return salted_credential(mechanism, salted, made_salt(secret, mechanism, user), iterations)


def made_salt(secret: bytes, mechanism: str, user: str) -> bytes:
    """A salt that is the same each time."""
    return made_of(secret, "salt", mechanism, user)[:SALT_BYTES]


def made_of(secret: bytes, *parts: str) -> bytes:
    """What only who has the secret can make."""
    return hmac.digest(secret, "\0".join(parts).encode("utf-8", "surrogatepass"), "sha512")


def as_hash(mechanism: str, found: Credential) -> str:
    """What a password is compared with where nothing else is known of it."""
    parts = mechanism, str(found.iterations), _text(found.salt), _text(found.stored_key)
    return _PREFIX + "$".join(parts)


def is_hash(encoded: str) -> bool:
    """Whether `as_hash` made it."""
    return encoded.startswith(_PREFIX)


def matches(encoded: str, password: bytes) -> bool:
    """Whether what `as_hash` made is of this password."""
    mechanism, iterations, salt, stored_key = encoded.removeprefix(_PREFIX).split("$")
    found = credential(mechanism, password, b64decode(salt), int(iterations))
    return hmac.compare_digest(found.stored_key, b64decode(stored_key))


def _text(data: bytes) -> str:
    return b64encode(data).decode()
