"""A link to another broker, between the shell and the replicas: the handshake, signs of life, and how it ends.

1. What both ends have in common is `PeerAdapter`; what a link of kind `replica` carries is in `adapter_replica.py`.
2. A link that is open is handed to the replicas, and taken back when it is lost.
3. A peer that said nothing for `silence_ms_max` is taken for gone, unless it was this process that could not listen,
   or did not, as the peer has much to take and takes it slowly.
4. However it ends, `failure` says why in one line; the peer is told unless it said it itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from protocols.peer.config import PeerConfig
from protocols.peer.connection import Acceptor, Link
from protocols.peer.wire import AnyFrame, Error, ErrorCode, PeerError, encode
from protocols.sansio import Outbox, Rest


class PeerAdapter:
    """See the module and `protocols.sansio.Adapter`."""

    beats = 1
    """Signs of life come each so many heartbeats."""

    def __init__(self, link: Link, outbox: Outbox, *, clock: Callable[[], float], config: PeerConfig) -> None:
        self.link = link
        self.failure: PeerError | None = None
        """Why the link was closed, if it was not the connection that ended."""
        self.ended: Callable[[PeerError], None] | None = None
        """Called when this side ends the link."""
        self.opened = False
        """It was open, whatever became of it."""
        self.closed = self.published = self.held = False
        self.left: Rest | None = None
        self._outbox = outbox
        self._clock = clock
        self._config = config
        self._lost = False
        self._heard_s = self._said_s = clock()
        self._handshake_until_s = self._heard_s + config.handshake_timeout_ms / 1000
        self._send_outgoing()

    @cached_property
    def broker(self) -> int:
        """The peer's id, once the link is open."""
        assert self.link.peer is not None
        return self.link.peer.broker_id

    @cached_property
    def broker_epoch(self) -> int:
        """The peer's broker epoch, once the link is open."""
        assert self.link.peer is not None
        return self.link.peer.broker_epoch

    async def handle(self, data: bytes) -> None:
        """Take bytes from the peer; `b""` is its end."""
        if not data:
            self.closed = True
            return
        self._heard_s = self._clock()
        self.held = False  # whatever frames wait for, a peer has to say something
        try:
            frames = self.link.receive(data)
            self._send_outgoing()
            if self.link.open and not self.opened:
                self.opened = True
                self._link_opened()
            await self._take_all(frames)
        except PeerError as error:
            self.end(error)

    def next_timer_at(self) -> float:
        """When there has been silence for too long."""
        silence_s = self.beats * self._config.silence_ms_max / 1000
        return self._heard_s + silence_s if self.opened else self._handshake_until_s

    def handle_timer(self, now: float) -> None:
        """Give up a peer that is silent."""
        due = self.next_timer_at()
        heartbeat_s = self.beats * self._config.heartbeat_ms / 1000
        if self.held and self.opened:
            self._heard_s = now
        elif not self.opened:
            self.end(PeerError(ErrorCode.TIMED_OUT, f"no handshake in {self._config.handshake_timeout_ms} ms"))
        elif now - due > heartbeat_s:
            self._heard_s += now - due + heartbeat_s  # what it said meanwhile is still to be read
        else:
            self.end(PeerError(ErrorCode.TIMED_OUT, f"silent for {self.beats * self._config.silence_ms_max} ms"))

    def connection_lost(self) -> None:
        """The transport is gone."""
        self._lose()

    def shut_down(self, reason: str) -> None:
        """The broker is stopping."""
        self.end(PeerError(ErrorCode.SHUTTING_DOWN, reason))

    def end(self, error: PeerError) -> None:
        """Close, and say why."""
        if self.closed:
            return
        self.failure = error
        if self.ended is not None and not error.told:
            self.ended(error)
        self._outbox.write(b"" if error.told else encode(Error(int(error.code), str(error))))
        self.closed = True
        self._lose()

    def replaced(self) -> None:
        """The same broker has another link now."""
        self.end(PeerError(ErrorCode.REPLACED, "there is a newer link"))

    def _lose(self) -> None:
        if self.opened and not self._lost:
            self._lost = True
            self._link_lost()

    def _send_outgoing(self) -> None:
        if self.link.outgoing:
            self._outbox.write(bytes(self.link.outgoing))
            self.link.outgoing.clear()

    def _silent(self) -> bool:
        """Whether the peer has heard nothing of this side for long enough."""
        return self._clock() - self._said_s >= (self.beats - 0.5) * self._config.heartbeat_ms / 1000

    async def _take_all(self, frames: Sequence[AnyFrame]) -> None:
        for frame in frames:
            if not self.closed:
                self._take(frame)

    def _link_opened(self) -> None:
        raise NotImplementedError

    def _link_lost(self) -> None:
        raise NotImplementedError

    def _take(self, frame: AnyFrame) -> None:
        raise NotImplementedError


class AcceptedAdapter(PeerAdapter):
    """The end of who was dialled, until it is known what for: then `make` makes the one that has the link."""

    def __init__(
        self,
        link: Acceptor,
        outbox: Outbox,
        make: Callable[[], PeerAdapter],
        over: Callable[[PeerError], None],
        *,
        clock: Callable[[], float],
        config: PeerConfig,
    ) -> None:
        """`over` is called when this side ends the link."""
        self._real: PeerAdapter | None = None
        self._make = make
        self._is_closed = False
        super().__init__(link, outbox, clock=clock, config=config)
        self.ended = over

    @property
    def closed(self) -> bool:
        """See `protocols.sansio.Adapter`."""
        return self._is_closed or (self._real is not None and self._real.closed)

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._is_closed = closed

    def next_timer_at(self) -> float:
        """See `PeerAdapter`; frames that wait have been heard."""
        if self._real is not None:
            self._heard_s = max(self._heard_s, self._real._heard_s)
        return super().next_timer_at()

    def _link_opened(self) -> None:
        self._real = real = self._make()
        real.opened = True
        self.beats = real.beats
        real.ended = self.ended
        real._link_opened()

    def _link_lost(self) -> None:
        if self._real is not None:
            self._real.connection_lost()

    async def _take_all(self, frames: Sequence[AnyFrame]) -> None:
        if frames and self._real is not None:
            await self._real._take_all(frames)
