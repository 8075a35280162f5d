"""The links to other brokers: accepting them on the peer address, dialling everybody, and dialling again.

1. Every broker dials every other member, as often as it takes: `redial_ms_min` after a link that stood, up to
   `redial_ms_max` apart where none does, or where each ends for what will be the same again. It does so twice, for
   replicas and for clients, so that a replica that catches up never stands before a delivery: between any two brokers
   there are four links, two each way.
2. Who the members are, where they are and whether a peer may be what it says is the `Directory`'s to know. A broker
   that was never registered dials nobody. One that is not any more stays what it was, for as long as the others know
   it: they may have no metadata either, and their promises go over these links. One that has registered anew ends all
   links that it dialled, and dials again.
3. A reason not to have a link is logged once, until it changes or a link stands; one that each link ends for each half
   minute.
4. Peers take turns with the clients that need much: a report read sooner would bring fewer acknowledgements at once.
   What came from a peer while others are ready, too, ends in one turn with what these bring.
   They are read from whatever the disk does: what a link brings is bounded by its credit, and a leader hears reports
   while its own disk is behind.
"""

from __future__ import annotations

import random
import secrets
import ssl
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import structlog
import trio

from core_log.wall_clock import wall_clock_ms
from delay.timer_service import TimerService
from gateway.config import Limits
from gateway.connection import Connection, Shell
from gateway.errors import StartError
from gateway.listener import Listener, format_address
from gateway.outbox import Outboxes
from gateway.peer_tls import PeerCertificates, connect, speaks_tls
from gateway.readers import Readers
from gateway.tls import HandshakeFailed, Unverified, reason_of
from protocols.peer.adapter import AcceptedAdapter, PeerAdapter
from protocols.peer.adapter_feed import Feeds
from protocols.peer.adapter_forwarding import ForwardingAdapter
from protocols.peer.adapter_replica import FollowerAdapter, LeaderAdapter
from protocols.peer.adapter_serving import ServedAdapter
from protocols.peer.config import PeerConfig
from protocols.peer.connection import Acceptor, Dialer, PeerId
from protocols.peer.wire import NONCE_BYTES, ErrorCode, LinkKind, PeerError
from protocols.peers import is_loopback
from protocols.sansio import Outbox
from routing.cluster.clients.engine import Engine
from routing.cluster.metadata.members import Members
from routing.cluster.replicas import Replicas

log = structlog.get_logger(__name__)

DOOR = "peer"
_MISFITS = (ErrorCode.WRONG_SECRET, ErrorCode.WRONG_VERSION, ErrorCode.WRONG_CLUSTER)
"""Reasons not to have a link that time does not heal."""
_LASTING = (ErrorCode.MALFORMED_FRAME, ErrorCode.FRAME_TOO_LARGE, ErrorCode.UNEXPECTED_FRAME, ErrorCode.CREDIT_EXCEEDED)
"""Reasons for which a link that stood ends, and the next one most likely will, when the same is sent again."""
_SAY_S = 30.0
_LINKS_MAX = 1000


class Directory(Protocol):
    """Who is who."""

    listeners: list[Callable[[], None]]
    """Called when anything of it has changed."""

    @property
    def me(self) -> PeerId | None:
        """This broker; None while it is not registered."""

    @property
    def addresses(self) -> Mapping[int, str]:
        """Where the others are, "host:port" by broker."""

    def admit(self, peer: PeerId) -> None:
        """Whether it may be a broker of this cluster. Raises PeerError."""


class MembersDirectory:
    """A `Directory` as the metadata has it."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self.listeners = members.listeners

    @property
    def me(self) -> PeerId | None:
        """See `Directory`."""
        members = self._members
        here = members.brokers.get(members.broker_id)
        if not members.epoch or here is None:
            return None
        return PeerId(members.meta.cluster_id, members.broker_id, members.epoch, here.record.directory_id)

    @property
    def addresses(self) -> Mapping[int, str]:
        """See `Directory`."""
        members = self._members
        others = (broker for broker in members.brokers.values() if broker.broker_id != members.broker_id)
        return {broker.broker_id: broker.record.addresses.get(DOOR, "") for broker in others}

    def admit(self, peer: PeerId) -> None:
        """See `Directory`. A broker that is ahead of what is known here is let in: changes of the metadata are guarded
        by the epoch all the same.
        """
        known = self._members.brokers.get(peer.broker_id)
        if known is None:
            text = f"broker {peer.broker_id} is not registered, as far as broker {self._members.broker_id} knows"
            raise PeerError(ErrorCode.NOT_A_MEMBER, text)
        check_epoch(peer, known.epoch)
        if known.record.directory_id != peer.directory_id:
            text = f"broker {peer.broker_id} has another data directory than {peer.directory_id}"
            raise PeerError(ErrorCode.WRONG_DIRECTORY, text)


def check_epoch(peer: PeerId, known_epoch: int) -> None:
    """Whether a peer is at least the process that is known. Raises PeerError."""
    if peer.broker_epoch < known_epoch:
        text = f"broker {peer.broker_id} is registered with epoch {known_epoch}, epoch {peer.broker_epoch} is over"
        raise PeerError(ErrorCode.STALE_EPOCH, text)


class Peers:
    """See the module. `run` it beside the shell of the clients, whose outboxes and timers it shares."""

    def __init__(
        self,
        config: PeerConfig,
        directory: Directory,
        replicas: Replicas,
        *,
        limits: Limits,
        outboxes: Outboxes,
        timers: TimerService,
        end_turn: Callable[[], None],
        turn_is_due: Callable[[], bool] = lambda: True,
        has_room: Callable[[], bool] = lambda: True,
        revision: Callable[[], int] = lambda: 0,
        engine: Engine | None = None,
        certificates: PeerCertificates | None = None,
        readers: Readers | None = None,
    ) -> None:
        """Without `engine` there are links for replicas alone, with `certificates` they speak TLS. `end_turn` ends the
        turn of `Replicas` and `Engine` as well, before the outboxes are flushed; what comes from peers need not make
        it due, as most reports do not.
        """
        self._config = config
        self._directory = directory
        self._replicas = replicas
        self._engine = engine
        self._certificates = certificates
        self._feeds = Feeds()
        if engine is not None:
            engine.ask_offsets_by(self._feeds)
        self._kinds: tuple[LinkKind, ...] = ("replica",) if engine is None else ("replica", "engine")
        self._has_room = has_room
        self._revision = revision
        limits = msgspec.structs.replace(limits, connections_max=_LINKS_MAX)
        self._end_turn, self._turn_is_due = end_turn, turn_is_due
        self._outboxes = outboxes
        self._readers = readers
        self.shell = Shell(limits, outboxes, timers, self._end_turn_soon, _Boundless(), readers, little_first=False)
        self._changed = trio.Event()
        self._told: dict[object, str] = {}
        self._silent_until_s: dict[object, float] = {}
        self._me = directory.me
        self._clock = trio.lowlevel.current_clock().current_time  # `trio.current_time` without two calls on its way

    async def run(self, listener: Listener, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept and dial until cancelled. Raises StartError when the address is taken."""
        listener.refused = self._not_secured
        listener.listen()
        self._directory.listeners.append(self._tell)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.run, self.shell, self._accepted, nursery.start_soon)
                nursery.start_soon(self._tick)
                nursery.start_soon(self._dial_all)
                task_status.started()
        finally:
            self._directory.listeners.remove(self._tell)
            listener.close()

    def _end_turn_soon(self) -> None:
        if self._readers is None or not self._readers.put_off(self._end_turn_if_due):
            self._end_turn_if_due()

    def _end_turn_if_due(self) -> None:
        if self._outboxes.dirty or self._turn_is_due():
            self._end_turn()

    def say_goodbye(self, reason: str) -> None:
        """The broker stops: tell the peers."""
        for connection in list(self.shell.connections):
            connection.shut_down(reason)

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _tick(self) -> None:
        while True:
            await trio.sleep(self._config.heartbeat_ms / 1000)
            self._replicas.tick()
            if self._engine is not None:
                self._engine.tick()
            self._end_turn()

    # ---- accepting

    def _accepted(self, outbox: Outbox, peer: str, certificate_name: str | None) -> AcceptedAdapter:
        me = self._identity()
        who = me or PeerId("", 0, 0, "")
        whom = ("from", peer.rpartition(":")[0])

        def admit(peer: PeerId) -> None:
            self._admit(peer)
            self._told.pop(whom, None)

        def over(error: PeerError) -> None:
            self._note(whom, "the link of a peer is over" if adapter.opened else "a peer was refused", error)

        link = Acceptor(
            self._config,
            who,
            _nonce(),
            admit,
            loopback=self._is_near(peer),
            kinds=self._kinds,
            wall_clock_ms=wall_clock_ms(),
        )

        def make() -> PeerAdapter:
            if link.kind == "engine" and self._engine is not None:
                return ServedAdapter(link, outbox, self._engine, clock=self._clock, config=self._config)
            return FollowerAdapter(link, outbox, self._replicas, clock=self._clock, config=self._config)

        adapter = AcceptedAdapter(link, outbox, make, over, clock=self._clock, config=self._config)
        if me is None:
            adapter.end(PeerError(ErrorCode.NOT_A_MEMBER, "this broker is not registered now"))
        return adapter

    def _not_secured(self, peer: str, reason: str) -> None:
        self._note(("from", peer.rpartition(":")[0]), "a peer was refused", f"{peer}: TLS: {reason}", of=reason)

    def _is_near(self, address: str) -> bool:
        """Whether no secret is needed: on this machine, or as its certificate says that it is a broker."""
        return self._certificates is not None or is_loopback(address)

    def _admit(self, peer: PeerId) -> None:
        self._directory.admit(peer)
        there = self._replicas.followers.get(peer.broker_id)
        if there is not None:
            check_epoch(peer, there.broker_epoch)

    def _note(self, whom: object, what: str, error: PeerError | str, *, of: str = "") -> None:
        """Log why there is no link, once; `of` is what has to change for it to be said again."""
        of = of or str(error)
        if isinstance(error, PeerError) and error.code in _LASTING:
            if self._clock() < self._silent_until_s.get(whom, 0):
                return
            if whom in self._silent_until_s or len(self._silent_until_s) < _LINKS_MAX:
                self._silent_until_s[whom] = self._clock() + _SAY_S
        if self._told.get(whom) != of and len(self._told) < _LINKS_MAX:
            self._told[whom] = of
            log.warning(what, reason=str(error))

    # ---- dialling

    async def _dial_all(self) -> None:
        """A task for each member, as long as it is one and this process is what it was."""
        while True:
            me = self._identity()
            async with trio.open_nursery() as nursery:
                tasks: dict[tuple[int, str, LinkKind], trio.CancelScope] = {}
                while self._identity() == me:
                    changed = self._changed
                    there = self._directory.addresses.items() if me is not None else ()
                    wanted = {(broker, address, kind) for broker, address in there for kind in self._kinds}
                    for key in tasks.keys() - wanted:
                        tasks.pop(key).cancel()
                    for key in wanted - tasks.keys():
                        scope = tasks[key] = trio.CancelScope()
                        assert me is not None
                        nursery.start_soon(self._keep_dialling, me, *key, scope)
                    await changed.wait()
                nursery.cancel_scope.cancel()

    def _identity(self) -> PeerId | None:
        self._me = self._directory.me or self._me
        return self._me

    async def _keep_dialling(
        self, me: PeerId, broker: int, address: str, kind: LinkKind, scope: trio.CancelScope
    ) -> None:
        shortest, longest = self._config.redial_ms_min / 1000, self._config.redial_ms_max / 1000
        wait_s = shortest
        with scope:
            while True:
                stood = await self._dial(me, broker, address, kind)
                wait_s = shortest if stood else min(wait_s * 2, longest)
                await trio.sleep(wait_s * random.uniform(0.8, 1.2))

    async def _dial(self, me: PeerId, broker: int, address: str, kind: LinkKind) -> bool:
        """Have a link until it is over; whether there was one, and the next may live longer."""
        whom = ("to", broker, kind)
        try:
            with trio.fail_after(self._config.dial_timeout_ms / 1000):
                sock = await connect(address)
                peer_address = format_address(sock.getpeername())
        except (OSError, trio.TooSlowError) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else "no answer"
            self._note(whom, "a peer cannot be reached", f"broker {broker} at {address}: {reason}")
            return False
        try:
            tls = await self._certificates.secure(sock, address) if self._certificates is not None else None
        except HandshakeFailed as error:
            sock.close()
            self._note(whom, "no link to a peer", f"broker {broker} at {address}: TLS: {error}")
            return False
        except BaseException:
            sock.close()
            raise
        adapter: PeerAdapter | None = None
        link: Dialer | None = None

        def admit(peer: PeerId) -> None:
            self._directory.admit(peer)
            if link is not None and link.clocks_apart is not None:
                self._note(("clock", broker), "clocks are apart", link.clocks_apart)

        def make(outbox: Outbox, peer: str, certificate_name: str | None) -> PeerAdapter:
            nonlocal adapter, link
            link = Dialer(
                self._config,
                me,
                kind,
                _nonce(),
                admit,
                loopback=self._is_near(peer),
                to=broker,
                wall_clock_ms=wall_clock_ms(),
            )
            adapter = self._dialled(link, outbox)
            return adapter

        connection = Connection(sock, peer_address, DOOR, self.shell, make, tls=tls)
        self.shell.end_turn()
        await connection.run()
        assert adapter is not None
        if adapter.opened:
            self._told.pop(whom, None)
        refused = f"TLS: {tls.failure}" if tls is not None and tls.failure else "the connection ended"
        failure = adapter.failure or PeerError(0, refused)
        why = PeerError(failure.code, f"broker {broker} at {address}: {failure}")
        self._note(whom, "the link to a peer is over" if adapter.opened else "no link to a peer", why)
        return adapter.opened and failure.code not in _LASTING

    def _dialled(self, link: Dialer, outbox: Outbox) -> PeerAdapter:
        clock, config = self._clock, self._config
        if link.kind == "engine" and self._engine is not None:
            return ForwardingAdapter(link, outbox, self._engine, self._feeds, clock=clock, config=config)
        return LeaderAdapter(
            link,
            outbox,
            self._replicas,
            clock=clock,
            config=config,
            has_room=self._has_room,
            revision=self._revision,
        )


async def probe(
    config: PeerConfig, me: PeerId, brokers: Mapping[int, str], certificates: PeerCertificates | None = None
) -> None:
    """Show the brokers ("host:port" by id) that this one knows their secret and speaks as they do, before it is one of
    them. Whoever cannot be reached is not asked, and whose certificate does not verify counts only where no other
    broker answers: it is not this one that has to be mended then. Raises StartError.
    """
    answered: list[int] = []
    unverified: list[str] = []
    async with trio.open_nursery() as nursery:
        for broker, address in brokers.items():
            nursery.start_soon(_probe_one, config, me, broker, address, certificates, answered, unverified)
    for reason in unverified:
        if not answered:
            raise StartError(reason)
        log.warning("a broker has no valid certificate", reason=reason)


async def _probe_one(
    config: PeerConfig,
    me: PeerId,
    broker: int,
    address: str,
    certificates: PeerCertificates | None,
    answered: list[int],
    unverified: list[str],
) -> None:
    """Note who answers, and whose certificate does not verify. Raises StartError."""
    where = f"broker {broker} at {address}"
    with trio.move_on_after((config.dial_timeout_ms + config.handshake_timeout_ms) / 1000):
        try:
            plain = await connect(address)
        except OSError:
            return
        with trio.socket.from_stdlib_socket(plain) as sock:
            try:
                tls = await certificates.secure(plain, address) if certificates is not None else None
            except Unverified as error:
                unverified.append(f"{where} takes no link: TLS: {error}")
                return
            except HandshakeFailed as error:
                raise StartError(f"{where} takes no link: TLS: {error}") from None
            loopback = tls is not None or is_loopback(format_address(sock.getpeername()))
            link = Dialer(
                config, me, "replica", _nonce(), _welcome, loopback=loopback, to=broker, wall_clock_ms=wall_clock_ms()
            )
            try:
                while not link.open:
                    said = bytes(link.outgoing)
                    await sock.send(said if tls is None else tls.encrypt([said]))
                    link.outgoing.clear()
                    data = await sock.recv(config.handshake_bytes_max)
                    if not data:
                        if tls is None and link.peer is None and await speaks_tls(address):
                            raise StartError(f"{where} takes no link: it speaks TLS, and this one does not (peer_tls)")
                        break
                    link.receive(data if tls is None else tls.decrypt(data))
            except ssl.SSLError as error:
                raise StartError(f"{where} takes no link: TLS: {reason_of(error)}") from None
            except PeerError as error:
                if error.code in _MISFITS:
                    raise StartError(f"{where} takes no link: {error}") from None
            except OSError:
                pass
            if link.clocks_apart is not None:
                raise StartError(link.clocks_apart)
            if link.peer is not None:
                answered.append(broker)


def _welcome(peer: PeerId) -> None:
    """Whoever it is."""


def _nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


class _Boundless:
    """Rule 4."""

    unflushed_bytes = 0

    async def wait_for_room(self, *, little: bool = False) -> None:
        """There is room."""
