"""Both ends of a link between brokers, from the first byte on. Sans-IO: bytes in, frames out; nonces are arguments.

    dialer                                   acceptor
    Hello (who, whom, nonce)            ->
                                        <-   Challenge (who, version, nonce)
    Answer (HMAC)                       ->
                                        <-   Accepted (HMAC)

1. Each proof is HMAC-SHA-256 with the secret over its maker's side and the very bytes of Hello and Challenge: so over
   both nonces, both brokers and what the link is for. One side's proof is never the other's.
2. Who dials proves first: a stranger who connects gets nothing that the secret went into, and learns no more than that
   it is wrong. Whether the broker is the one that the metadata knows is looked at afterwards.
3. Without a secret on both sides the peer has to be on this machine.
4. Until the link is open its frames are small. Whatever is wrong is a `PeerError` with one line, and the end.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any, NamedTuple

from protocols.buffers import BytesLike, FrameReader
from protocols.peer.config import PeerConfig
from protocols.peer.wire import (
    NONCE_BYTES,
    VERSION,
    Accepted,
    Answer,
    AnyFrame,
    Challenge,
    Error,
    ErrorCode,
    Hello,
    LinkKind,
    PeerError,
    decode,
    encode,
)
from protocols.peer.wire_engine import decode as decode_engine


class PeerId(NamedTuple):
    """Who a broker is, as it says itself."""

    cluster_id: str
    broker_id: int
    broker_epoch: int
    directory_id: str


Admit = Callable[[PeerId], None]
"""Raises PeerError unless the broker may be what it says, as far as is known here."""


def prove(secret: bytes, side: bytes, hello: BytesLike, challenge: BytesLike) -> bytes:
    """The proof of one side ("dialer" or "acceptor") for the frames that were exchanged; empty without a secret."""
    if not secret:
        return b""
    told = (b"millrace peer", side, hello, challenge)
    return hmac.digest(secret, b"".join(len(part).to_bytes(4, "big") + part for part in told), hashlib.sha256)


class Link:
    """What both ends have in common. `receive` is called with all that comes, `outgoing` is to be sent after it."""

    def __init__(
        self,
        config: PeerConfig,
        me: PeerId,
        kind: LinkKind,
        nonce: bytes,
        admit: Admit,
        *,
        loopback: bool,
        wall_clock_ms: int = 0,
    ) -> None:
        """`loopback`: the peer is on this machine. `nonce` are bytes that nobody can know beforehand. `wall_clock_ms`:
        ms since 1970, now.
        """
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce of {len(nonce)} bytes")
        self.me, self.kind = me, kind
        self.open = False
        """Both have proved who they are; from here on `receive` returns frames."""
        self.peer: PeerId | None = None
        self.version = 0
        self.outgoing = bytearray()
        self._config = config
        self._secret = config.secret.encode()
        self._nonce = nonce
        self._wall_clock_ms = wall_clock_ms
        self._admit = admit
        self._loopback = loopback
        self._frames = FrameReader(config.handshake_bytes_max)
        self._hello: BytesLike = b""
        self._challenge: BytesLike = b""

    def receive(self, data: BytesLike) -> list[AnyFrame]:
        """The frames that `data` completes, once the link is open. Raises PeerError, and is not called again then."""
        frames: list[AnyFrame] = []
        for raw in self._frames.feed(data):
            frame: Any = (decode_engine if self.open and self.kind == "engine" else decode)(raw)
            if isinstance(frame, Error):
                raise PeerError(frame.code, one_line(frame.text), told=True)
            if self.open:
                if isinstance(frame, Hello | Challenge | Answer | Accepted):
                    raise unexpected(frame)
                frames.append(frame)
            else:
                self._shake(frame, raw)
        if self._frames.wrong_length is not None:
            size, limit = self._frames.wrong_length, self._frames.frame_bytes_max
            code = ErrorCode.FRAME_TOO_LARGE if size else ErrorCode.MALFORMED_FRAME
            whose = f", peer.frame_bytes_max of broker {self.me.broker_id}" if self.open else ""
            raise PeerError(code, f"a frame of {size} bytes; the limit is {limit}{whose}")
        return frames

    def _shake(self, frame: AnyFrame, raw: BytesLike) -> None:
        raise NotImplementedError

    def _send(self, frame: AnyFrame) -> bytes:
        data = encode(frame)
        self.outgoing += data
        return data[4:]

    def _opened(self) -> None:
        assert self.peer is not None
        self._admit(self.peer)
        self.open = True
        self._frames.frame_bytes_max = self._config.frame_bytes_max

    def _check_cluster(self, cluster_id: str) -> None:
        if cluster_id != self.me.cluster_id:
            mine = f"broker {self.me.broker_id} is of cluster {self.me.cluster_id}"
            raise PeerError(ErrorCode.WRONG_CLUSTER, f"{mine}, not of {one_line(cluster_id)}")

    def _check_machine(self) -> None:
        if not (self._secret or self._loopback):
            raise PeerError(
                ErrorCode.WRONG_SECRET,
                f"broker {self.me.broker_id} has no peer.secret: its peers must be on its machine",
            )

    def _check_proof(self, proof: bytes, side: bytes) -> None:
        me = self.me.broker_id
        if bool(proof) != bool(self._secret):
            text = f"its peer has {'one' if proof else 'none'}"
            raise PeerError(
                ErrorCode.WRONG_SECRET, f"broker {me} has {'a' if self._secret else 'no'} peer.secret, {text}"
            )
        if not hmac.compare_digest(proof, prove(self._secret, side, self._hello, self._challenge)):
            raise PeerError(ErrorCode.WRONG_SECRET, f"the peer has another peer.secret than broker {me}")


class Dialer(Link):
    """The end that opened the connection, to reach broker `to`. Its first bytes are `outgoing` from the start."""

    def __init__(
        self,
        config: PeerConfig,
        me: PeerId,
        kind: LinkKind,
        nonce: bytes,
        admit: Admit,
        *,
        loopback: bool,
        to: int,
        wall_clock_ms: int = 0,
    ) -> None:
        super().__init__(config, me, kind, nonce, admit, loopback=loopback, wall_clock_ms=wall_clock_ms)
        self.to = to
        self.takes_ids = False
        """See `Challenge`."""
        self.clocks_apart: str | None = None
        """Set when the peer's clock is further from this one than it may be, by what."""
        self._hello = self._send(Hello(VERSION, VERSION, kind, *me, to, nonce))

    def _shake(self, frame: AnyFrame, raw: BytesLike) -> None:
        if isinstance(frame, Challenge) and self.peer is None:
            self._check_machine()
            self._check_cluster(frame.cluster_id)
            if frame.broker_id != self.to:
                where = f"at this address is broker {frame.broker_id}, not broker {self.to}"
                raise PeerError(ErrorCode.WRONG_BROKER, where)
            if frame.version != VERSION:
                raise PeerError(ErrorCode.WRONG_VERSION, f"version {frame.version} was not offered")
            self.peer = PeerId(frame.cluster_id, frame.broker_id, frame.broker_epoch, frame.directory_id)
            self.version, self.takes_ids = frame.version, frame.takes_ids
            self._challenge = bytes(raw)
            if self._wall_clock_ms and frame.wall_clock_ms:
                self._compare_clocks(frame.wall_clock_ms)
            self._send(Answer(prove(self._secret, b"dialer", self._hello, self._challenge)))
        elif isinstance(frame, Accepted) and self.peer is not None:
            self._check_proof(frame.proof, b"acceptor")
            self._opened()
        else:
            raise unexpected(frame)

    def _compare_clocks(self, theirs_ms: int) -> None:
        """What was on the way counts for their clock: it takes little of what is allowed."""
        difference_ms = theirs_ms - self._wall_clock_ms
        if abs(difference_ms) > self._config.clock_difference_ms_max:
            way = "ahead of" if difference_ms > 0 else "behind"
            seconds, most = abs(difference_ms) // 1000, self._config.clock_difference_ms_max / 1000
            self.clocks_apart = (
                f"the clock of broker {self.to} is {seconds} s {way} this one's; they may differ by {most:g} s "
                "(peer.clock_difference_ms_max)"
            )


class Acceptor(Link):
    """The end that was dialled; `kind` is known from the first frame on."""

    def __init__(
        self,
        config: PeerConfig,
        me: PeerId,
        nonce: bytes,
        admit: Admit,
        *,
        loopback: bool,
        kinds: tuple[LinkKind, ...] = ("replica",),
        wall_clock_ms: int = 0,
    ) -> None:
        super().__init__(config, me, kinds[0], nonce, admit, loopback=loopback, wall_clock_ms=wall_clock_ms)
        self._kinds = kinds

    def _shake(self, frame: AnyFrame, raw: BytesLike) -> None:
        if isinstance(frame, Hello) and self.peer is None:
            self._greet(frame, raw)
        elif isinstance(frame, Answer) and self.peer is not None:
            self._check_proof(frame.proof, b"dialer")
            self._opened()
            self._send(Accepted(prove(self._secret, b"acceptor", self._hello, self._challenge)))
        else:
            raise unexpected(frame)

    def _greet(self, hello: Hello, raw: BytesLike) -> None:
        me = self.me.broker_id
        if not hello.version_min <= VERSION <= hello.version_max:
            range_ = f"{hello.version_min} to {hello.version_max}"
            text = f"broker {me} speaks version {VERSION} of the peer protocol, broker {hello.broker_id} {range_}"
            raise PeerError(ErrorCode.WRONG_VERSION, text)
        self._check_machine()
        self._check_cluster(hello.cluster_id)
        if hello.to_broker_id != me:
            raise PeerError(ErrorCode.WRONG_BROKER, f"at this address is broker {me}, not broker {hello.to_broker_id}")
        if hello.broker_id == me:
            raise PeerError(ErrorCode.WRONG_BROKER, f"broker {me} is here, the peer cannot be it")
        for kind in self._kinds:
            if kind == hello.link:
                self.kind = kind
                break
        else:
            raise PeerError(ErrorCode.UNSUPPORTED_LINK, f"broker {me} takes no link '{one_line(hello.link)}'")
        self.peer = PeerId(hello.cluster_id, hello.broker_id, hello.broker_epoch, hello.directory_id)
        self.version = VERSION
        self._hello = bytes(raw)
        self._challenge = self._send(Challenge(VERSION, *self.me, self._nonce, self._wall_clock_ms, True))


def one_line(text: str) -> str:
    """What a peer said, fit for a line of the log."""
    return "".join(char if char.isprintable() else "?" for char in text[:500])


def unexpected(frame: AnyFrame) -> PeerError:
    """For a frame that is not due."""
    return PeerError(ErrorCode.UNEXPECTED_FRAME, f"a frame '{type(frame).__name__}' that is not due")
