"""The two ends of a `replica` link: who dials follows, who is dialled leads.

1. Both are what `routing.cluster.replicas` sees of the other broker; they translate its messages, and hold no state of
   logs.
2. Credit is counted from the link's beginning on both sides. The leader starts no batch without any; the follower ends
   a link on which that happens, so what it has to keep is bounded.
3. The follower takes what came into its logs at once; it gives no new credit while the disk is behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from core_log.errors import CorruptBatch
from core_log.replication import messages
from protocols.buffers import join_small
from protocols.peer import wire
from protocols.peer.adapter import PeerAdapter
from protocols.peer.config import PeerConfig
from protocols.peer.connection import Acceptor, Dialer
from protocols.peer.wire import AnyFrame, ErrorCode, PeerError
from protocols.sansio import Outbox
from routing.cluster.replica_links import Frame
from routing.cluster.replicas import Replicas


class FollowerAdapter(PeerAdapter):
    """The end of who was dialled: the peer follows."""

    def __init__(
        self, link: Acceptor, outbox: Outbox, replicas: Replicas, *, clock: Callable[[], float], config: PeerConfig
    ) -> None:
        super().__init__(link, outbox, clock=clock, config=config)
        self._replicas = replicas
        self._credit_bytes = self._sent_bytes = 0

    @property
    def room_bytes(self) -> int:
        """How many bytes of batches may be sent now."""
        return max(self._credit_bytes - self._sent_bytes, 0) if self._outbox.writable else 0

    def send(self, batches: Sequence[messages.Batches], frame: Frame | None = None) -> Frame | None:
        """Say all of this in one frame; nothing is a sign of life, if one is due. See `FollowerLink`."""
        if not batches and not self._silent():
            return None
        self._said_s = self._clock()
        for entry in batches:
            self._sent_bytes += sum(map(len, entry.batches))
        frame = frame or join_small(wire.encode_batches(batches))
        for piece in frame:
            self._outbox.write(piece)
        return frame

    def answer(self, reply: messages.Diverging | messages.Refused) -> None:
        """Answer a position that cannot be followed."""
        kind = wire.Diverging if isinstance(reply, messages.Diverging) else wire.Refused
        self._outbox.write(wire.encode(kind(*reply)))

    def _link_opened(self) -> None:
        self._outbox.on_writable = self._writable
        self._replicas.follower_linked(self)

    def _link_lost(self) -> None:
        self._replicas.follower_lost(self)

    def _writable(self) -> None:
        self._replicas.has_room(self)

    def _take(self, frame: AnyFrame) -> None:
        if not isinstance(frame, wire.Positions):
            raise PeerError(ErrorCode.UNEXPECTED_FRAME, f"a follower sends no '{type(frame).__name__}'")
        self._credit_bytes = frame.credit_bytes
        if self._replicas.heard is not None:
            self._replicas.heard(self.broker, frame.revision)
        entries = [messages.Position(*msgspec.structs.astuple(entry)) for entry in frame.entries]
        self._replicas.on_positions(self, entries)


class LeaderAdapter(PeerAdapter):
    """The end of who dialled: the peer may lead."""

    def __init__(
        self,
        link: Dialer,
        outbox: Outbox,
        replicas: Replicas,
        *,
        clock: Callable[[], float],
        config: PeerConfig,
        has_room: Callable[[], bool],
        revision: Callable[[], int],
    ) -> None:
        """`has_room`: the disk keeps up. `revision` is where the topology has changed last here."""
        super().__init__(link, outbox, clock=clock, config=config)
        self._replicas = replicas
        self._has_room = has_room
        self._revision = revision
        self._received_bytes = 0
        self._credit_bytes = config.credit_bytes
        self._said_revision = 0

    @property
    def credit_is_due(self) -> bool:
        """See `LeaderLink`."""
        return self._credit_bytes - self._received_bytes < self._config.credit_bytes * 3 // 4

    def send(self, positions: Sequence[messages.Position]) -> None:
        """Say all of this in one frame; nothing is a sign of life, if one is due, or tells which revision is applied,
        if that is news.
        """
        revision = self._revision()
        if not positions and revision == self._said_revision and not self._silent():
            return
        self._said_s, self._said_revision = self._clock(), revision
        if self._has_room():
            self._credit_bytes = self._received_bytes + self._config.credit_bytes
        entries = [wire.PositionEntry(*position) for position in positions]
        self._outbox.write(wire.encode(wire.Positions(self._credit_bytes, revision, entries)))

    def _link_opened(self) -> None:
        self._replicas.leader_linked(self)
        self._said_s = 0.0
        self.send(())  # the leader has to know the credit, and the revision

    def _link_lost(self) -> None:
        self._replicas.leader_lost(self)

    def _take(self, frame: AnyFrame) -> None:
        try:
            if isinstance(frame, wire.Batches):
                self._replicas.on_replies(self, map(self._batches_of, frame.entries))
            elif isinstance(frame, wire.Diverging):
                self._replicas.on_reply(self, messages.Diverging(*msgspec.structs.astuple(frame)))
            elif isinstance(frame, wire.Refused):
                self._replicas.on_reply(self, messages.Refused(*msgspec.structs.astuple(frame)))
            else:
                raise PeerError(ErrorCode.UNEXPECTED_FRAME, f"a leader sends no '{type(frame).__name__}'")
        except CorruptBatch as error:
            raise PeerError(ErrorCode.MALFORMED_FRAME, f"a batch that is none: {error}") from None

    def _batches_of(self, entry: wire.BatchesEntry) -> messages.Batches:
        if entry.batches and self._received_bytes >= self._credit_bytes:
            raise PeerError(ErrorCode.CREDIT_EXCEEDED, f"batches without credit, beyond {self._credit_bytes} bytes")
        self._received_bytes += sum(map(len, entry.batches))
        return messages.Batches(
            entry.log,
            entry.leader_epoch,
            entry.tag,
            entry.high_watermark,
            entry.log_start,
            entry.sync_before,
            entry.after,
            entry.end,
            tuple(entry.batches),
        )
