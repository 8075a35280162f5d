"""A broker's part in a cluster as a process has it: the connection to etcd, its registration, and how it ends.

    joining                etcd is reached, every reason to refuse this broker is found
      (the engine opens)
        registered         others know it, it may be the controller
          (links, doors)

What a start is refused for is one line (`StartError`): etcd out of reach or not willing, an id that is taken, a data
directory of another cluster or broker, another secret than the others'.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import trio

from core_log.errors import MetadataLost, MetadataUnavailable
from core_log.files import Files
from core_log.metadata.etcd_client import EtcdClient
from core_log.metadata.etcd_store import EtcdStore
from core_log.metadata.histories import Anchor
from core_log.metadata.store import MetadataStore
from gateway.config import ClusterConfig, check_cluster
from gateway.errors import StartError, first_error
from gateway.etcd_tls import EtcdCertificates, etcd_certificates
from gateway.listener import Listener
from protocols.peers import is_loopback
from routing.cluster.metadata.controller import Candidate
from routing.cluster.metadata.elections import Elections
from routing.cluster.metadata.joining import ClusterRefused
from routing.cluster.metadata.members import Members
from routing.cluster.metadata.records import META, BrokerRecord, cluster_id_of
from routing.version import OWN_VERSION

_LEAVE_TIMEOUT_S = 2.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_EVERY_ADDRESS = ("0.0.0.0", "[::]")


@dataclass
class Membership:
    """What a broker has of its cluster."""

    store: EtcdStore
    members: Members
    candidate: Candidate
    elections: Elections
    certificates: EtcdCertificates | None = None
    """For etcd."""
    joined: bool = False
    """It was registered once."""


@asynccontextmanager
async def joining(
    config: ClusterConfig,
    files: Files,
    addresses: Mapping[str, str],
    meet: Callable[[Members], Awaitable[None]] | None = None,
    before: Callable[[MetadataStore], Awaitable[None]] | None = None,
) -> AsyncIterator[Membership]:
    """Be a broker that may register, until the block is left. `addresses` are where others reach it, by door; one is
    "peer". `meet` as in `Members.prepare`; `before` is called before anything is decided.

    Raises StartError, also later when the broker has been removed from the cluster, or etcd has lost that.
    """
    try:
        from gateway.etcd import HttpTransport
    except ImportError:
        raise StartError("a cluster needs the extra `cluster`: pip install 'millrace[cluster]'") from None
    check_cluster(config)
    certificates = etcd_certificates(config)
    terms = None if certificates is None else certificates.next_context
    transport = HttpTransport([member.strip() for member in config.etcd.split(",")], terms)
    client = EtcdClient(transport, user=config.etcd_user, password=config.etcd_password)
    anchor = Anchor(META, cluster_id_of)
    store = EtcdStore(client, b"/millrace/%s/" % config.name.encode(), anchor=anchor, lease_ttl_s=config.lease_s)
    members = Members(
        store,
        files,
        cluster=config.name,
        broker_id=config.broker_id,
        record=BrokerRecord("", _boot_id(), OWN_VERSION, dict(addresses), config.rack),
        homes=config.homes,
        offsets=config.offsets,
        accept_old_data=config.accept_old_data,
        lease_s=config.lease_s,
    )
    candidate = Candidate(store, members)
    part = Membership(store, members, candidate, Elections(store, members, candidate), certificates)
    refused = ""
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            if before is not None:
                await before(store)
            await members.prepare(meet)
            yield part
            nursery.cancel_scope.cancel()
    except* ClusterRefused as group:
        refused = str(first_error(group))
    except* MetadataLost:
        refused = (
            f"etcd does not know cluster '{config.name}' any more, or has another one of that name: it has lost its "
            "data. What is in the data directory stays as it is: start again when etcd has its latest state back"
        )
    except* MetadataUnavailable as group:
        if part.joined:
            raise
        refused = f"cluster '{config.name}': {first_error(group)}"
    finally:
        with trio.CancelScope(shield=True):
            await transport.aclose()
    if refused:
        raise StartError(refused)


@asynccontextmanager
async def registered(
    part: Membership, *, lost: Iterable[str] = (), unopened: Iterable[str] = ()
) -> AsyncIterator[None]:
    """Be there for all others until the block is left; `lost` and `unopened` as in `Members.register`."""
    await part.members.register(lost=lost, unopened=unopened)
    part.joined = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(part.members.run)
        nursery.start_soon(part.candidate.run)
        nursery.start_soon(part.elections.run)
        try:
            yield
        finally:
            with trio.move_on_after(_LEAVE_TIMEOUT_S, shield=True):
                await _leave(part.members)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def membership(config: ClusterConfig, files: Files, addresses: Mapping[str, str]) -> AsyncIterator[Membership]:
    """Be a member without an engine: `joining` and `registered`."""
    async with joining(config, files, addresses) as part, registered(part):
        yield part


def advertised(
    config: ClusterConfig,
    listeners: Iterable[Listener],
    *,
    trusted: bool,
    said: Mapping[str, tuple[str, int]] = MappingProxyType({}),
) -> dict[str, str]:
    """Where others reach the doors, and the peer address among them; `said` is what the settings of a door say of its
    host and port, empty or 0 where they say nothing. Raises StartError where that cannot be: unless peers are `trusted`
    by a secret or by certificates, they have to be on this machine.
    """
    found: dict[str, str] = {}
    for listener in listeners:
        host, _, port = listener.address.rpartition(":")
        if listener.door == "peer" and not trusted and not is_loopback(listener.address):
            raise StartError(
                f"cluster.peer: {listener.address} can be reached from other machines, which needs a secret that all "
                "brokers share, or certificates: set peer.secret (MILLRACE_PEER_SECRET), or peer_tls.cert and .ca"
            )
        door_host, door_port = said.get(listener.door, ("", 0))
        if name := door_host or config.advertise:
            host = f"[{name}]" if ":" in name else name
        elif host in _EVERY_ADDRESS:
            host = socket.gethostname()
        found[listener.door] = f"{host}:{door_port or port}"
    return found


async def _leave(members: Members) -> None:
    try:
        await members.leave()
    except MetadataUnavailable:
        pass  # the lease ends by itself


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
