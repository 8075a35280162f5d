"""A broker's part in a cluster as a process has it: the connection to etcd, its registration, and how it ends.

What a start is refused for is one line (`StartError`): etcd out of reach or not willing, an id that is taken, a data
directory of another cluster or broker.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import trio
from msgspec import Meta

from core_log.errors import MetadataUnavailable
from core_log.files import Files
from core_log.metadata.etcd_client import EtcdClient
from core_log.metadata.etcd_store import EtcdStore
from gateway.config import ConfigError, parse_address
from gateway.errors import StartError
from routing.cluster.controller import Candidate
from routing.cluster.joining import ClusterRefused
from routing.cluster.members import Members
from routing.cluster.records import BrokerRecord

_LEAVE_TIMEOUT_S = 2.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ClusterConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A broker as one of several."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,100}$")]
    broker_id: Annotated[int, Meta(ge=0, lt=1 << 31)]
    etcd: Annotated[str, Meta(min_length=1)]
    """Members of etcd, "host:port,host:port"."""
    rack: str = ""
    homes: Annotated[int, Meta(ge=1, le=1024)] = 6
    """Home partitions of durable queues, if this broker makes the cluster; two for each broker are a good number."""
    offsets: Annotated[int, Meta(ge=1, le=1024)] = 8
    """Partitions of group offsets, likewise."""
    etcd_user: str = ""
    etcd_password: str = ""
    etcd_ca: str = ""
    """Certificates in PEM that those of etcd must go back to; with it etcd is spoken to by TLS."""
    etcd_cert: str = ""
    """This broker's certificate for etcd, in PEM; it secures the connection, the user is `etcd_user`."""
    etcd_key: str = ""


class Membership(NamedTuple):
    """What a broker has of its cluster."""

    store: EtcdStore
    members: Members
    candidate: Candidate


@asynccontextmanager
async def membership(config: ClusterConfig, files: Files, addresses: Mapping[str, str]) -> AsyncIterator[Membership]:
    """Be a member until the block is left. `addresses` are where others reach this broker, by door; one is "peer".

    Raises StartError, also later when the broker has been removed from the cluster.
    """
    try:
        from gateway.etcd import HttpTransport
    except ImportError:
        raise StartError("a cluster needs the extra `cluster`: pip install 'millrace[cluster]'") from None
    transport = HttpTransport(_etcd_members(config), _tls(config))
    client = EtcdClient(transport, user=config.etcd_user, password=config.etcd_password)
    store = EtcdStore(client, b"/millrace/%s/" % config.name.encode())
    record = BrokerRecord("", _boot_id(), _version(), dict(addresses), config.rack)
    members = Members(
        store,
        files,
        cluster=config.name,
        broker_id=config.broker_id,
        record=record,
        homes=config.homes,
        offsets=config.offsets,
    )
    candidate = Candidate(store, members)
    joined = False
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await members.join()
            joined = True
            nursery.start_soon(members.run)
            nursery.start_soon(candidate.run)
            try:
                yield Membership(store, members, candidate)
            finally:
                with trio.move_on_after(_LEAVE_TIMEOUT_S, shield=True):
                    await _leave(members)
                nursery.cancel_scope.cancel()
    except* ClusterRefused as group:
        raise StartError(str(_first(group))) from None
    except* MetadataUnavailable as group:
        if joined:
            raise
        raise StartError(f"cluster '{config.name}': {_first(group)}") from None
    finally:
        with trio.CancelScope(shield=True):
            await transport.aclose()


async def _leave(members: Members) -> None:
    try:
        await members.leave()
    except MetadataUnavailable:
        pass  # the lease ends by itself


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _etcd_members(config: ClusterConfig) -> list[str]:
    members = [member.strip() for member in config.etcd.split(",")]
    for member in members:
        if parse_address(member, setting="cluster.etcd") is None:
            raise ConfigError("cluster.etcd: a cluster needs etcd; it cannot be 'off'")
    return members


def _tls(config: ClusterConfig) -> ssl.SSLContext | None:
    if not config.etcd_ca:
        if config.etcd_cert:
            raise ConfigError("cluster.etcd_cert: needs cluster.etcd_ca")
        return None
    try:
        context = ssl.create_default_context(cafile=config.etcd_ca)
        if config.etcd_cert:
            context.load_cert_chain(config.etcd_cert, config.etcd_key or None)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"the certificates for etcd cannot be used: {error}") from None
    return context


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _version() -> str:
    try:
        return version("millrace")
    except PackageNotFoundError:
        return "unknown"
