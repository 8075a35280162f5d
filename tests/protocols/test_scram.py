"""A server's side of SCRAM: the examples of the RFCs, what is no SCRAM, and no right proof."""

from __future__ import annotations

import hashlib
import hmac
import random
from base64 import b64decode, b64encode

import pytest

from protocols.scram import Refused, ScramServer
from routing.access.scram import Credential, as_hash, credential, matches

NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = credential("SCRAM-SHA-256", b"pencil", SALT, 4096)


def proof(kind: str, password: bytes, kept: Credential, said: str) -> str:
    salted = hashlib.pbkdf2_hmac(kind, password, kept.salt, kept.iterations)
    client_key = hmac.digest(salted, b"Client Key", kind)
    signature = hmac.digest(hashlib.new(kind, client_key).digest(), said.encode(), kind)
    return b64encode(bytes(a ^ b for a, b in zip(client_key, signature))).decode()


def test_the_example_of_rfc_7677() -> None:
    server = ScramServer("sha256", FIRST, NONCE)
    assert server.user == "user"
    assert server.challenge(PENCIL) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.finish(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(("mechanism", "kind"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=a=2Cb=3Dc,"])
def test_names_and_headers(mechanism: str, kind: str, header: str) -> None:
    kept = credential(mechanism, b"\xff pass", b"salt", 4096)
    server = ScramServer(kind, f"{header}n=a=2Cb=3Dc,r=abc,tokenauth=false".encode())
    assert server.user == "a,b=c"
    challenge = server.challenge(kept).decode()
    bare = f"c={b64encode(header.encode()).decode()},{challenge.split(',')[0]}"
    said = f"n=a=2Cb=3Dc,r=abc,tokenauth=false,{challenge},{bare}"
    shown = proof(kind, b"\xff pass", kept, said)
    answer = server.finish(f"{bare},p={shown}".encode())
    assert answer == b"v=" + b64encode(hmac.digest(kept.server_key, said.encode(), kind))


def test_librdkafka_before_2_6_1_repeats_its_nonce_twice() -> None:
    server = ScramServer("sha256", b"n,,n=user,r=abc", NONCE)
    challenge = server.challenge(PENCIL).decode()
    bare = f"c=biws,r=abcabc{NONCE}"
    said = f"n=user,r=abc,{challenge},{bare}"
    shown = proof("sha256", b"pencil", PENCIL, said)
    assert server.finish(f"{bare},p={shown}".encode()).startswith(b"v=")


@pytest.mark.parametrize(
    "first",
    [
        b"", b"n", b"n,,", b"n,,n=user", b"n,,r=abc", b"n,,r=abc,n=user", b"n,,n=user,r=", b"n,,n=,r=abc",
        b"p=tls-unique,,n=user,r=abc", b"x,,n=user,r=abc", b"n,,m=ext,n=user,r=abc", b"n,,n=us=er,r=abc",
        b"n,a=other,n=user,r=abc", b"n,user,n=user,r=abc", b"n,,n=user,r=a\xc3\xa4", b"\xff\xfe", b"n,,n=user,r=a b",
        b"n,,n=u\0ser,r=abc", b"n,,n=user,r=" + b"a" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_first_message(first: bytes) -> None:
    with pytest.raises(Refused):
        ScramServer("sha256", first)


@pytest.mark.parametrize(
    "final",
    [
        b"", b"c=biws", b"c=biws,r={n}", b"c=biws,r={n},p=", b"c=biws,r={n},p=AAAA", b"c=biws,r={n},p=!!!!",
        b"c=eSws,r={n},p={p}", b"c=biws,r={n}x,p={p}", b"c=biws,r=x{n},p={p}", b"r={n},c=biws,p={p}",
        b"c=biws,r={n},p={w}", b"\xff", b"c=biws,p={p}",
    ],
)  # fmt: skip
def test_what_is_no_proof(final: bytes) -> None:
    server = ScramServer("sha256", FIRST, NONCE)
    server.challenge(PENCIL)
    nonce = b"rOprNGfwEbeRWgbNEkqO" + NONCE.encode()
    right, wrong = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVA="
    with pytest.raises(Refused):
        server.finish(final.replace(b"{n}", nonce).replace(b"{p}", right).replace(b"{w}", wrong))


def test_a_proof_before_the_question_is_none() -> None:
    with pytest.raises(Refused):
        ScramServer("sha256", FIRST, NONCE).finish(b"c=biws,r=x,p=AAAA")


def test_garbage_is_refused() -> None:
    dice = random.Random(1)
    for _ in range(2000):
        data = bytearray(FIRST)
        for _ in range(dice.randrange(4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            server = ScramServer("sha512", bytes(data))
            server.challenge(PENCIL)
            server.finish(dice.randbytes(dice.randrange(80)))
        except Refused:
            continue
        raise AssertionError(data)


def test_a_password_is_compared_with_what_is_kept_of_it() -> None:
    kept = as_hash("SCRAM-SHA-512", credential("SCRAM-SHA-512", b"pass", b"salt", 4096))
    assert matches(kept, b"pass")
    assert not matches(kept, b"Pass")
