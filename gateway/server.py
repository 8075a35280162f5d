"""The process: opens the data directory and the engine, listens, and stops in order.

    locked_data_dir
      join                              of a cluster's member: etcd
        open_broker                     flusher, timers, housekeeping
          nursery                       the turns asked for by outboxes, a listener a door, full sockets
            Member.link                 of a cluster's member: registered, linked to the others
              nursery                   a task a connection

1. Ports are bound first, the engine is opened next, and only then clients may connect: `ready` means ready.
2. Stopping goes the other way round: no more clients, every protocol says goodbye, outboxes get `shutdown_grace_ms`,
   and the engine writes down where everything stands.
   A data directory is locked before it is read, and until the last byte is written.
3. The engine's `after_turn` is `Outboxes.flush`, so whoever ends a turn (reader, timer, flusher) has everything sent.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import trio

from core_log.errors import LogError
from core_log.files import Files, OsFiles
from gateway.authentication import LOOPBACK_ONLY, Authenticate, authenticator
from gateway.config import HTTP_DOORS, OFF, TLS_DOORS, WEBSOCKET_DOORS, Config, parse_address
from gateway.connection import MakeAdapter, Shell
from gateway.errors import StartError, first_error
from gateway.listener import Listener, open_listener
from gateway.lock import locked_data_dir
from gateway.outbox import Outboxes, SocketOutbox
from gateway.proxy_header import Proxies
from gateway.readers import Readers
from gateway.tls import Certificates, Terms
from protocols.amqp.adapter import AmqpAdapter
from protocols.mqtt.adapter import MqttAdapter
from protocols.native.adapter import NativeAdapter
from protocols.peers import is_loopback
from protocols.sansio import Adapter, Outbox
from routing.broker import Broker, open_broker
from routing.cluster.metadata.identity import load_identity

if TYPE_CHECKING:
    from gateway.member import Member

log = structlog.get_logger(__name__)
STOPPING = "the broker is stopping"


class Server:
    """A broker that runs in this process; made by `serve`."""

    def __init__(self, broker: Broker, listeners: list[Listener], terms: list[Terms]) -> None:
        self.broker = broker
        self._terms = terms
        self.listeners = listeners
        self.ports = {listener.door: listener.port for listener in listeners}
        """The port of each door that is open."""

    def reload(self) -> None:
        """Read again what may change while the broker runs: certificates and keys."""
        for terms in self._terms:
            terms.reload()


@asynccontextmanager
async def serve(config: Config, *, holds: bool = False, files: Files | None = None) -> AsyncIterator[Server]:
    """Run a broker until the block ends; `holds` is for a process that is nothing else, see `gateway.holding`. With
    `files` everything durable is there, and the data directory is not looked at.

    Raises StartError, possibly in an exception group.
    """
    with ExitStack() as stack:
        terms = _terms(config)
        listeners = _open_listeners(config, stack, terms)
        if files is None:
            stack.enter_context(locked_data_dir(config.data_dir))
            files = OsFiles(config.data_dir)
        async with (
            _member(config, files, listeners) as member,
            _engine(config, files, member) as broker,
            trio.open_nursery() as nursery,
        ):
            outboxes = Outboxes(config.limits, nursery.start_soon)
            broker.after_turn = outboxes.flush
            readers = Readers(nursery.start_soon, broker.flusher, holds=holds)
            broker.flusher.lend(readers.watch)
            shell = Shell(config.limits, outboxes, broker.timers, broker.end_turn, broker.flusher, readers)
            shell.cold_reads = broker.cold_reads
            shell.wait_to_publish = broker.wait_to_publish
            broker.alarms.listeners[shell.publishers_blocked] = None
            shell.publishers_blocked(broker.blocked)
            nursery.start_soon(outboxes.run, broker.end_turn)
            in_use: dict[Terms, int] = dict.fromkeys(terms.values(), config.tls.reload_interval_ms)
            if member is not None:
                in_use |= member.watched
            for watched, interval_ms in in_use.items():
                nursery.start_soon(_watch, watched, interval_ms)
            authenticate = authenticator(broker.rights)
            _open_web_pages(listeners, broker, shell, config, authenticate, list(in_use))
            _warn_of_what_is_missing(broker, config, listeners)
            makers = adapter_makers(broker, config, authenticate, {one.door for one in listeners if one.answer is None})
            linked = member.link(broker, outboxes, readers, STOPPING) if member is not None else nullcontext()
            async with linked, trio.open_nursery() as clients:
                for listener in listeners:
                    listener.listen()
                    nursery.start_soon(listener.run, shell, makers.get(listener.door), clients.start_soon)
                open_doors = listeners if member is None else [*listeners, member.listener]
                try:
                    yield Server(broker, open_doors, list(in_use))
                finally:
                    if member is not None:
                        await member.step_aside()
                    _say_goodbye(shell, listeners)
                    # Leaving the block waits for the clients, but not for ever.
                    clients.cancel_scope.deadline = trio.current_time() + config.limits.shutdown_grace_ms / 1000
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _member(config: Config, files: Files, listeners: list[Listener]) -> AsyncIterator[Member | None]:
    """This broker as one of a cluster, None for a single one. Raises StartError."""
    if not config.cluster.name:
        _refuse_member(config.data_dir, files)
        yield None
        return
    from gateway.member import join  # a broker of its own needs nothing of it

    async with join(config, listeners) as member:
        yield member


def _refuse_member(data_dir: str, files: Files) -> None:
    """A directory that is a cluster member's is not for a broker of its own. Raises StartError."""
    try:
        identity = load_identity(files)
    except (OSError, ValueError) as error:
        raise StartError(f"data directory {data_dir}: {error}") from None
    if identity is not None and (identity.cluster_id or identity.importing):
        raise StartError(
            f"data directory {data_dir}: belongs to broker {identity.broker_id} of cluster '{identity.cluster}' and "
            f"cannot be served alone: serve it with --cluster {identity.cluster}, "
            "or look at it with `millrace verify`"
        )


@asynccontextmanager
async def _engine(config: Config, files: Files, member: Member | None) -> AsyncIterator[Broker]:
    """The engine on the data directory. Raises StartError where the directory is at fault."""
    started, refused = False, ""
    engine = config.engine
    shared: dict[str, Any] = {}
    if member is not None:
        engine = msgspec.structs.replace(engine, stripes=member.part.members.meta.homes)
        shared = {"metadata": member.part.store, "cluster": member.cluster}
    try:
        async with open_broker(files, engine, config.users, **shared) as broker:
            started = True
            yield broker
    except* (LogError, OSError) as group:
        if started:
            raise
        refused = f"data directory {config.data_dir}: {first_error(group)}"
    if refused:
        raise StartError(refused)


def _say_goodbye(shell: Shell, listeners: list[Listener]) -> None:
    """Let no more clients in, and let every protocol end its connections in its own words."""
    for listener in listeners:
        listener.close()
    for handshake in shell.handshakes:
        handshake.cancel()
    for connection in list(shell.connections):
        connection.shut_down(STOPPING)
    shell.end_turn()


def _terms(config: Config) -> dict[str, Terms]:
    """On what terms each open door with TLS speaks it. Raises StartError."""
    doors = [door for door in TLS_DOORS if getattr(config.listen, door) != OFF]
    terms: dict[str, Terms] = {}
    if any(door in config.psk.doors for door in doors):
        from gateway.pre_shared_keys import PreSharedKeys

        terms = dict.fromkeys(config.psk.doors, PreSharedKeys(config.psk, config.tls))
    if any(door not in terms for door in doors):
        terms = dict.fromkeys(TLS_DOORS, Certificates(config.tls)) | terms
    return terms


async def _watch(terms: Terms, interval_ms: int) -> None:
    while True:
        terms.check()
        await trio.sleep(interval_ms / 1000)


def _open_listeners(config: Config, stack: ExitStack, terms: dict[str, Terms]) -> list[Listener]:
    listeners, proxied = [], config.proxy_protocol
    for door in config.listen.__struct_fields__:
        address = parse_address(getattr(config.listen, door), setting=f"listen.{door}")
        if address is None:
            continue
        web = config.websocket if door in WEBSOCKET_DOORS else None
        proxies = Proxies.of(proxied) if door in proxied.doors else None
        listener = open_listener(door, *address, terms.get(door), web, proxies)
        stack.callback(listener.close)
        listeners.append(listener)
    if not listeners:
        raise StartError("all doors are off: there is nothing to listen for")
    return listeners


def _open_web_pages(
    listeners: list[Listener],
    broker: Broker,
    shell: Shell,
    config: Config,
    authenticate: Authenticate,
    terms: Sequence[Terms],
) -> None:
    """Have the doors for HTTP, if there are any, answer. Raises StartError."""
    doors = [one for one in listeners if one.door in HTTP_DOORS]
    if doors:
        from gateway.web_pages import WebPages  # some megabytes that only these doors need

        try:
            pages = WebPages(broker, shell, config, authenticate, terms)
        except OSError as error:
            raise StartError(f"http.native_ca {config.http.native_ca}: cannot be used: {error}") from None
        for door in doors:
            door.answer = pages.answer


def _warn_of_what_is_missing(broker: Broker, config: Config, listeners: Sequence[Listener]) -> None:
    """Clients of doors that are for a virtual host are refused until somebody makes it, those without a name until
    somebody makes the user that they are to be. Where `guest` is gone who took him away meant it so. Clients of other
    machines are refused while nobody has made a user at all.
    """
    for name in ("mqtt", "native", "kafka"):
        virtual_host = getattr(config, name).virtual_host
        if virtual_host not in broker.topology.vhosts:
            log.warning("virtual host is missing", setting=f"{name}.virtual_host", virtual_host=virtual_host)
    for name in ("amqp", "mqtt", "native", "kafka"):
        user = getattr(config, name).anonymous_user
        if user not in ("", LOOPBACK_ONLY) and broker.rights.user(user) is None:
            log.warning("user is missing", setting=f"{name}.anonymous_user", user=user)
    open_to_all = ("mqtt", "mqtts", *WEBSOCKET_DOORS) if config.mqtt.anonymous == "always" else ()
    doors = [one.door for one in listeners if one.door not in open_to_all and not is_loopback(one.address)]
    if doors and all(user.name == LOOPBACK_ONLY for user in broker.rights.users):
        log.warning(
            "clients of other machines need a user: `millrace users add NAME`, then `millrace permissions set`",
            doors=", ".join(doors), user=f"`{LOOPBACK_ONLY}` may log in from this machine only",
        )  # fmt: skip


def adapter_makers(
    broker: Broker, config: Config, authenticate: Authenticate, doors: Set[str]
) -> dict[str, MakeAdapter]:
    """What makes the adapters of the connections of each of these doors."""
    clock = trio.current_time

    def amqp(outbox: Outbox, peer: str, certificate_name: str | None) -> Adapter:
        return AmqpAdapter(
            broker,
            outbox,
            peer=peer,
            clock=clock,
            config=config.amqp,
            authenticate=authenticate,
            peer_certificate_name=certificate_name,
        )

    def mqtt(outbox: Outbox, peer: str, certificate_name: str | None) -> Adapter:
        return MqttAdapter(
            broker,
            outbox,
            peer=peer,
            clock=clock,
            config=config.mqtt,
            authenticate=authenticate,
            peer_certificate_name=certificate_name,
        )

    def native(outbox: Outbox, peer: str, certificate_name: str | None) -> Adapter:
        return NativeAdapter(broker, outbox, peer=peer, clock=clock, config=config.native, authenticate=authenticate)

    def natives(outbox: Outbox, peer: str, certificate_name: str | None) -> Adapter:
        return NativeAdapter(
            broker, outbox, peer=peer, clock=clock, config=config.native, authenticate=authenticate, door="natives"
        )

    makers: dict[str, MakeAdapter] = {
        "amqp": amqp,
        "amqps": amqp,
        "mqtt": mqtt,
        "mqtts": mqtt,
        "websocket": mqtt,
        "websockets": mqtt,
        "native": native,
        "natives": natives,
    }
    if not doors <= makers.keys():
        makers |= _kafka_makers(broker, config, authenticate)
    return {door: makers[door] for door in doors}


def _kafka_makers(broker: Broker, config: Config, authenticate: Authenticate) -> dict[str, MakeAdapter]:
    from protocols.kafka.adapter import KafkaAdapter  # a tenth of all modules: whose door is off does without
    from protocols.kafka.fetch_sessions import FetchSessions

    fetch_sessions = FetchSessions(config.kafka)

    def kafka(outbox: SocketOutbox, peer: str, certificate_name: str | None, door: str = "kafka") -> Adapter:
        return KafkaAdapter(
            broker,
            outbox,
            peer=peer,
            local=outbox.local_address,
            clock=trio.current_time,
            config=config.kafka,
            authenticate=authenticate,
            door=door,
            fetch_sessions=fetch_sessions,
            peer_certificate_name=certificate_name,
        )

    return {"kafka": kafka, "kafkas": partial(kafka, door="kafkas")}


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_THRESHOLD_BYTES = 128 << 20
"""Free memory at the end of the heap that the process keeps."""
_MMAP_THRESHOLD_BYTES = 32 << 20
"""The largest that glibc takes, and would come to by itself."""


def tune_process() -> None:
    """Settings of a process that is a broker and nothing else. All of them are here."""
    # What is loaded lives for ever: the collector need not look at it. Neither messages nor connections that have ended
    # are cyclic, so look rarely; at no more than 150,000 objects that are new: a million took half a second.
    gc.freeze()
    gc.set_threshold(50_000, 3, 250)
    gc.enable()
    # Reads and requests are buffers of about a megabyte that come and go: memory that goes back to the kernel each time
    # has to be made anew, page by page, which costs several times what is done with it.
    with suppress(OSError, AttributeError):  # only glibc has it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
    # A flusher thread that comes back from the disk waits at most this long for the interpreter lock (default 5 ms).
    sys.setswitchinterval(0.0005)


_OPEN_FILES_MIN = 64


def allow_open_files() -> None:
    """As many as this process may have. Raises StartError where a start would fail somewhere for want of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _OPEN_FILES_MIN:
        raise StartError(f"may have only {hard} files open, and wants {_OPEN_FILES_MIN} (ulimit -n, LimitNOFILE)")
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
