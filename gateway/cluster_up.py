"""A cluster for trying out: etcd and some brokers, each a process of its own on loopback, all below one directory.

    DIR/ports.json      what was chosen at first: the next start has the same number of brokers at the same addresses
    DIR/etcd/           data and log of etcd
    DIR/broker-N/       data directory of broker N; what it prints is in DIR/broker-N.log

1. A broker that ends is reported, with the command that starts it again, and left alone: killing one is what this is
   for. Etcd likewise.
2. Who starts one again by that command has it in a terminal of his own. As long as one runs, ours or such, etcd does;
   what he started we do not stop, and say so.
3. The processes are in groups of their own: a terminal's Ctrl-C ends them in order, brokers first, by this one.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import trio

from core_log.metadata.etcd_wire import version_warning
from gateway.errors import StartError
from gateway.etcd_process import EtcdProcess, start_etcd
from gateway.free_ports import free_ports, problem_of
from gateway.lock import holder, locked_data_dir

NAME = "millrace"
HOST = "127.0.0.1"
DOORS = ("amqp", "mqtt", "native", "peer", "http", "kafka")
BROKERS = 3
_BLOCK_PORTS = 10
"""With `base_port` broker N has its doors from base port + 10 N on."""
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_LOOK_INTERVAL_S = 1.0
_LINE_BYTES_MAX = 4096


class Ports(msgspec.Struct):
    """Where everything listens."""

    etcd: list[int]
    """For its clients, and for its peers."""
    brokers: list[dict[str, int]]
    """By door, of broker 1 and so on."""


def planned_ports(directory: Path, brokers: int | None, base_port: int | None) -> Ports:
    """The ports of the last start in `directory`, as far as they are known and others are not asked for; those of
    brokers that are new are free ones. Raises StartError, and remembers nothing, where another program has one of them.
    """
    path = directory / "ports.json"
    known = Ports([], [])
    try:
        if path.exists():
            known = msgspec.json.decode(path.read_bytes(), type=Ports)
    except (OSError, msgspec.MsgspecError) as error:
        raise StartError(f"{path}: {error}") from None
    count = brokers or len(known.brokers) or BROKERS
    if base_port is not None:
        ports = _blocks(base_port, count)
    else:
        there = [*known.brokers, *({} for _ in range(count - len(known.brokers)))]
        missing = sum(door not in ports for ports in there for door in DOORS)
        free = free_ports(missing + (0 if known.etcd else 2))
        chosen = iter(free)
        brokers_ports = [{door: ports[door] if door in ports else next(chosen) for door in DOORS} for ports in there]
        ports = Ports(known.etcd or free[-2:], brokers_ports)
    chosen_ports = Ports(ports.etcd, ports.brokers[:count])
    _require_free(chosen_ports)
    remembered = Ports(ports.etcd, ports.brokers + known.brokers[len(ports.brokers) :])
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(remembered)) + b"\n")
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None
    return chosen_ports


def _require_free(ports: Ports) -> None:
    """Raises StartError for a port that cannot be listened on: etcd would only say so in its own log."""
    named = [("etcd", port) for port in ports.etcd]
    named += [
        (f"broker {number}, {door}", port)
        for number, each in enumerate(ports.brokers, 1)
        for door, port in each.items()
    ]
    for what, port in named:
        problem = problem_of(port)
        if problem is not None:
            raise StartError(f"port {port} ({what}): {problem}; --base-port chooses others")


def _blocks(base_port: int, count: int) -> Ports:
    if base_port + _BLOCK_PORTS * count + len(DOORS) > 65536:
        raise StartError(f"there are not enough ports from {base_port} on for {count} brokers")
    firsts = [base_port + _BLOCK_PORTS * number for number in range(1, count + 1)]
    brokers = [{door: first + place for place, door in enumerate(DOORS)} for first in firsts]
    return Ports([base_port, base_port + 1], brokers)


def serve_arguments(
    directory: Path, broker_id: int, etcd: str, ports: dict[str, int], *, name: str = NAME, more: Sequence[str] = ()
) -> list[str]:
    """What `millrace` is told for one of the brokers."""
    arguments = ["serve", "--data-dir", str(directory / f"broker-{broker_id}"), "--cluster", name]
    arguments += ["--broker-id", str(broker_id), "--etcd", etcd]
    for door, port in ports.items():
        arguments += [f"--{door}", f"{HOST}:{port}"]
    return [*arguments, *more]


class BrokerChild:
    """One of the brokers."""

    def __init__(self, broker_id: int, arguments: list[str], directory: Path) -> None:
        self.broker_id = broker_id
        self.arguments = arguments
        self.data_dir = directory / f"broker-{broker_id}"
        self.log_path = directory / f"broker-{broker_id}.log"
        self.doors: list[str] = []
        """What it said of its doors, such as `amqp 127.0.0.1:5672`."""
        self.process: trio.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it is ready. Raises StartError with its last line."""
        with self.log_path.open("ab") as log:
            self.process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "gateway", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(os.environ, PYTHONUNBUFFERED="1"),
                process_group=0,
            )
        with trio.move_on_after(_START_TIMEOUT_S) as patience:
            if await self._ready():
                return
            await self.process.wait()
        why = "is not ready after a minute" if patience.cancelled_caught else self._last_line()
        raise StartError(f"broker {self.broker_id}: {why}; see {self.log_path}")

    async def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.stdout is not None
        said = b""
        async for data in self.process.stdout:
            *lines, said = (said + data)[-_LINE_BYTES_MAX:].split(b"\n")
            for line in lines:
                if line == b"ready":
                    return True
                self.doors.append(line.decode(errors="replace"))
        return False

    def _last_line(self) -> str:
        data = self.log_path.read_bytes()[-_LINE_BYTES_MAX:].decode(errors="replace").strip()
        return data.rpartition("\n")[2].removeprefix("millrace: ") or "ended without a word"

    async def watch(self) -> None:
        """Wait until it ends, and say so."""
        assert self.process is not None
        command = shlex.join(["millrace", *self.arguments])
        _say(f"broker {self.broker_id} {_ended(await self.process.wait())}; to start it again: {command}")

    @property
    def by_hand(self) -> int | None:
        """The process that somebody else has started in its place, if it runs."""
        found = holder(str(self.data_dir))
        return None if self.process is not None and found == self.process.pid else found

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class LocalCluster:
    """All processes; see the module."""

    def __init__(self, directory: Path, ports: Ports, *, more: Sequence[str] = ()) -> None:
        self._directory = directory
        self._ports = ports
        self._more = more
        self.etcd: EtcdProcess | None = None
        self.brokers: list[BrokerChild] = []

    async def start(self) -> None:
        """Start etcd, then all brokers at once. Raises StartError; `stop` in any case."""
        client, peer = self._ports.etcd
        etcd = self.etcd = await start_etcd(self._directory / "etcd", ports=(client, peer))
        warning = version_warning(etcd.version)
        if warning is not None:
            _say(warning)
        for broker_id, ports in enumerate(self._ports.brokers, 1):
            arguments = serve_arguments(self._directory, broker_id, etcd.address, ports, more=self._more)
            self.brokers.append(BrokerChild(broker_id, arguments, self._directory))
        async with trio.open_nursery() as nursery:
            for broker in self.brokers:
                nursery.start_soon(broker.start)

    async def watch(self) -> None:
        """Report what ends, until no broker is left: neither of ours, nor one that was started again by hand."""
        assert self.etcd is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_etcd, self.etcd)
            async with trio.open_nursery() as brokers:
                for broker in self.brokers:
                    brokers.start_soon(broker.watch)
            while any(broker.by_hand for broker in self.brokers):
                await trio.sleep(_LOOK_INTERVAL_S)
            nursery.cancel_scope.cancel()

    async def _watch_etcd(self, etcd: EtcdProcess) -> None:
        code = await trio.to_thread.run_sync(etcd.process.wait, abandon_on_cancel=True)
        _say(f"etcd {_ended(code)}: what needs no election goes on; start everything again to have it back")

    async def stop(self) -> None:
        """End the brokers, then etcd."""
        for broker in self.brokers:
            broker.signal(signal.SIGTERM)
        with trio.move_on_after(_STOP_TIMEOUT_S):
            for broker in self.brokers:
                if broker.process is not None:
                    await broker.process.wait()
        for broker in self.brokers:
            broker.signal(signal.SIGKILL)
            if (process := broker.by_hand) is not None:
                what = f"broker {broker.broker_id} was started by hand (process {process})"
                _say(f"{what}: it is left alone, without etcd")
        if self.etcd is not None:
            await trio.to_thread.run_sync(self.etcd.stop)


async def up(directory: Path, brokers: int | None, base_port: int | None, more: Sequence[str]) -> bool:
    """Run a cluster until SIGTERM or SIGINT; False if all brokers ended by themselves. Raises StartError."""
    with locked_data_dir(str(directory)), trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        cluster = LocalCluster(directory, planned_ports(directory, brokers, base_port), more=more)
        work = trio.CancelScope()
        async with trio.open_nursery() as nursery:

            async def heed() -> None:
                async for _ in signals:  # also what comes while it stops, which it would die of at its end
                    work.cancel()

            nursery.start_soon(heed)
            with work:
                try:
                    await cluster.start()
                    _show(cluster)
                    await cluster.watch()
                finally:
                    with trio.CancelScope(shield=True):
                        await cluster.stop()
            nursery.cancel_scope.cancel()
        return work.cancelled_caught


def _show(cluster: LocalCluster) -> None:
    assert cluster.etcd is not None
    lines = [f"etcd {cluster.etcd.address}"]
    lines += [f"broker {broker.broker_id} {door}" for broker in cluster.brokers for door in broker.doors]
    click.echo("\n".join([*lines, "ready"]))


def _say(line: str) -> None:
    click.echo(f"millrace: {line}", err=True)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    return f"was ended by {signal.Signals(-code).name}"
