"""Two ends of a link, byte by byte, and everybody who must not get through."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.peer import wire
from protocols.peer.config import PeerConfig
from protocols.peer.connection import Acceptor, Admit, Dialer, Link, PeerId, prove
from protocols.peer.wire import ErrorCode, PeerError

CONFIG = PeerConfig(secret="s3cret", frame_bytes_max=1 << 20)
OPEN = PeerConfig()
ONE = PeerId("c", 1, 11, "d1")
TWO = PeerId("c", 2, 12, "d2")


def welcome(peer: PeerId) -> None:
    """Anybody."""


def pair(
    config: PeerConfig = CONFIG,
    other: PeerConfig = CONFIG,
    *,
    dialer: PeerId = ONE,
    acceptor: PeerId = TWO,
    to: int = 2,
    loopback: bool = True,
    admit: Admit = welcome,
    expect: Admit = welcome,
    kind: wire.LinkKind = "replica",
) -> tuple[Dialer, Acceptor]:
    return (
        Dialer(config, dialer, kind, b"1" * 32, expect, loopback=loopback, to=to),
        Acceptor(other, acceptor, b"2" * 32, admit, loopback=loopback),
    )


def move(source: Link, target: Link, *, step: int = 1 << 20) -> list[wire.AnyFrame]:
    """Everything `source` has to send, in pieces."""
    data = bytes(source.outgoing)
    source.outgoing.clear()
    return [frame for at in range(0, len(data), step) for frame in target.receive(data[at : at + step])]


def shake(dialer: Dialer, acceptor: Acceptor, *, step: int = 1 << 20) -> None:
    for source, target in [(dialer, acceptor), (acceptor, dialer)] * 2:
        assert move(source, target, step=step) == []


def refused(dialer: Dialer, acceptor: Acceptor) -> tuple[PeerError, str]:
    """Who ends the handshake and why."""
    found: PeerError | None = None
    source: Link = dialer
    target: Link = acceptor
    while found is None and source.outgoing:
        try:
            move(source, target)
            source, target = target, source
        except PeerError as error:
            found = error
    assert found is not None
    assert not target.open
    assert "\n" not in str(found)
    return found, "acceptor" if target is acceptor else "dialer"


@pytest.mark.parametrize("step", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("secret", ["s3cret", ""])
def test_both_know_each_other(step: int, secret: str) -> None:
    config = PeerConfig(secret=secret)
    dialer, acceptor = pair(config, config)
    shake(dialer, acceptor, step=step)
    assert dialer.open
    assert acceptor.open
    assert (dialer.peer, acceptor.peer) == (TWO, ONE)
    assert (dialer.version, acceptor.kind) == (wire.VERSION, "replica")
    frame = wire.Positions(1, 2, [])
    acceptor_got = acceptor.receive(wire.encode(frame) * 2)
    assert acceptor_got == [frame, frame]


def test_the_proofs_are_what_the_specification_says() -> None:
    dialer, acceptor = pair()
    hello = bytes(dialer.outgoing)[4:]
    move(dialer, acceptor)
    challenge = bytes(acceptor.outgoing)[4:]
    move(acceptor, dialer)
    parts = (b"millrace peer", b"dialer", hello, challenge)
    told = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    assert msgpack.unpackb(dialer.outgoing[4:]) == [2, hmac.new(b"s3cret", told, hashlib.sha256).digest()]
    move(dialer, acceptor)
    proof = msgpack.unpackb(acceptor.outgoing[4:])[1]
    assert proof == prove(b"s3cret", b"acceptor", hello, challenge)


REFUSED: list[tuple[str, dict[str, Any], ErrorCode, str]] = [
    ("another secret", {"other": PeerConfig(secret="other")},
     ErrorCode.WRONG_SECRET, "another peer.secret than broker 2"),
    ("only the dialer has one", {"other": OPEN},
     ErrorCode.WRONG_SECRET, "broker 2 has no peer.secret, its peer has one"),
    ("only the acceptor has one", {"config": OPEN},
     ErrorCode.WRONG_SECRET, "broker 2 has a peer.secret, its peer has none"),
    ("no secret, another machine", {"config": OPEN, "other": OPEN, "loopback": False},
     ErrorCode.WRONG_SECRET, "its peers must be on its machine"),
    ("another cluster", {"dialer": ONE._replace(cluster_id="x")},
     ErrorCode.WRONG_CLUSTER, "broker 2 is of cluster c, not of x"),
    ("another broker there", {"to": 3},
     ErrorCode.WRONG_BROKER, "at this address is broker 2, not broker 3"),
    ("itself", {"dialer": ONE._replace(broker_id=2)},
     ErrorCode.WRONG_BROKER, "broker 2 is here"),
    ("another sort of link", {"kind": "engine"},
     ErrorCode.UNSUPPORTED_LINK, "takes no link 'engine'"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "differs", "code", "text"), REFUSED, ids=[row[0] for row in REFUSED])
def test_who_does_not_get_through(what: str, differs: dict[str, Any], code: ErrorCode, text: str) -> None:
    error, by = refused(*pair(**differs))
    assert (error.code, by) == (code, "acceptor")
    assert text in str(error)


@pytest.mark.parametrize(("there_ms", "said"), [
    (1_000_000, None),
    (1_030_000, None),
    (1_045_500, "the clock of broker 2 is 45 s ahead of this one's; they may differ by 30 s"),
    (900_000, "the clock of broker 2 is 100 s behind this one's"),
    (0, None),
])  # fmt: skip
def test_clocks_are_compared_where_both_are_told(there_ms: int, said: str | None) -> None:
    dialer = Dialer(CONFIG, ONE, "replica", b"1" * 32, welcome, loopback=True, to=2, wall_clock_ms=1_000_000)
    acceptor = Acceptor(CONFIG, TWO, b"2" * 32, welcome, loopback=True, wall_clock_ms=there_ms)
    shake(dialer, acceptor)
    assert dialer.open
    assert (dialer.clocks_apart or "").startswith(said or "")
    assert (dialer.clocks_apart is None) == (said is None)


def test_versions_that_do_not_meet() -> None:
    dialer, acceptor = pair()
    hello = wire.decode(bytes(dialer.outgoing)[4:])
    assert isinstance(hello, wire.Hello)
    for lowest, highest in ((1, 1), (5, 9)):
        other = msgspec.structs.replace(hello, version_min=lowest, version_max=highest)
        with pytest.raises(PeerError, match=f"speaks version 4 of the peer protocol, broker 1 {lowest} to {highest}"):
            Acceptor(CONFIG, TWO, b"2" * 32, welcome, loopback=True).receive(wire.encode(other))
    acceptor.receive(wire.encode(msgspec.structs.replace(hello, version_max=9)))
    assert msgpack.unpackb(acceptor.outgoing[4:])[1] == wire.VERSION


def test_a_stale_epoch_is_looked_at_after_the_secret_and_by_both() -> None:
    def stale(peer: PeerId) -> None:
        raise PeerError(ErrorCode.STALE_EPOCH, f"{peer.broker_epoch} is over")

    error, side = refused(*pair(admit=stale))
    assert (error.code, side, str(error)) == (ErrorCode.STALE_EPOCH, "acceptor", "11 is over")
    error, side = refused(*pair(expect=stale))
    assert (error.code, side, str(error)) == (ErrorCode.STALE_EPOCH, "dialer", "12 is over")
    error, _ = refused(*pair(other=PeerConfig(secret="other"), admit=stale))
    assert error.code is ErrorCode.WRONG_SECRET, "a stranger learns nothing of epochs"


def test_a_broker_that_cannot_prove_itself_gets_nothing() -> None:
    """Proofs are bound to the side, the nonces and who speaks: what was heard before is of no use."""
    dialer, acceptor = pair()
    hello = bytes(dialer.outgoing)
    move(dialer, acceptor)
    challenge = bytes(acceptor.outgoing)
    move(acceptor, dialer)
    answer = bytes(dialer.outgoing)
    move(dialer, acceptor)
    assert acceptor.open
    again = Acceptor(CONFIG, TWO, b"3" * 32, welcome, loopback=True)
    again.receive(hello)
    with pytest.raises(PeerError) as caught:
        again.receive(answer)
    assert caught.value.code is ErrorCode.WRONG_SECRET
    mirrored = Dialer(CONFIG, ONE, "replica", b"1" * 32, welcome, loopback=True, to=2)
    mirrored.receive(challenge)
    with pytest.raises(PeerError) as caught:
        mirrored.receive(wire.encode(wire.Accepted(msgpack.unpackb(answer[4:])[1])))
    assert caught.value.code is ErrorCode.WRONG_SECRET


def test_what_the_peer_says_last_is_told_in_one_line() -> None:
    dialer, _ = pair()
    with pytest.raises(PeerError) as caught:
        dialer.receive(wire.encode(wire.Error(9, "a\nb\x1b[31m" + "x" * 1000)))
    assert (caught.value.code, caught.value.told) == (9, True)
    assert str(caught.value).startswith("a?b?[31mxxx")
    assert len(str(caught.value)) == 500


FRAMES = [
    wire.Accepted(b""),
    wire.Answer(b""),
    wire.Challenge(1, "c", 2, 12, "d2", b"n" * 32),
    wire.Positions(0, 0, []),
]


@pytest.mark.parametrize("frame", FRAMES)
def test_frames_that_are_not_due(frame: wire.AnyFrame) -> None:
    dialer, acceptor = pair()
    with pytest.raises(PeerError) as caught:
        acceptor.receive(wire.encode(frame))
    assert caught.value.code is ErrorCode.UNEXPECTED_FRAME
    dialer, acceptor = pair()
    shake(dialer, acceptor)
    for link in (dialer, acceptor):
        if not isinstance(frame, wire.Positions):
            with pytest.raises(PeerError):
                link.receive(wire.encode(frame))


@pytest.mark.parametrize("size", [0, 4097, 1 << 20, 0xFFFF_FFFF])
def test_lengths_before_and_after_the_handshake(size: int) -> None:
    for end in pair():
        with pytest.raises(PeerError) as caught:
            end.receive(size.to_bytes(4, "big"))
        assert caught.value.code is (ErrorCode.FRAME_TOO_LARGE if size else ErrorCode.MALFORMED_FRAME)
    dialer, acceptor = pair()
    shake(dialer, acceptor)
    limit = CONFIG.frame_bytes_max
    assert acceptor.receive(limit.to_bytes(4, "big")) == []
    with pytest.raises(PeerError) as caught:
        dialer.receive((limit + 1).to_bytes(4, "big"))
    assert str(caught.value).startswith(f"a frame of {limit + 1} bytes; the limit is {limit}, peer.frame_bytes_max of ")


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=5), st.booleans(), st.booleans())
@settings(deadline=None)
def test_a_stranger_can_say_what_it_likes(reads: list[bytes], framed: bool, greeted: bool) -> None:
    dialer, acceptor = pair()
    if greeted:
        move(dialer, acceptor)
    for end in (dialer, acceptor):
        try:
            for data in reads:
                assert end.receive((len(data).to_bytes(4, "big") if framed else b"") + data) == []
        except PeerError:
            pass
        assert not end.open
