"""`millrace cluster up` as a user runs it: what it prints, a broker that is killed, and the same directory again."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from gateway.cluster_status import cluster_status
from gateway.cluster_up import Ports, planned_ports
from gateway.errors import StartError
from gateway.etcd_process import find_etcd
from protocols.native.clients.blocking import BlockingClient
from tests.support.broker_process import CHECKOUT
from tests.support.web import Api

needs_etcd = pytest.mark.skipif(find_etcd() is None, reason="there is no etcd")


class Up:
    """The command, while it runs."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "cluster", "up", str(directory), *arguments],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put("")

    def until(self, wanted: Callable[[str], bool]) -> list[str]:
        """What it says up to a line."""
        said = [self.lines.get(timeout=60)]
        while not wanted(said[-1]):
            assert said[-1], f"it ended: {said}"
            said.append(self.lines.get(timeout=60))
        return said

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def broker(self, number: int) -> psutil.Process:
        """A broker's process. One that was killed may stand between the others, as a zombie or no more."""
        for child in self.children():
            with suppress(psutil.NoSuchProcess):
                if f"broker-{number}" in " ".join(child.cmdline()):
                    return child
        raise AssertionError(f"broker {number} does not run: {self.children()}")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@contextmanager
def by_hand(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A broker that somebody starts again, once it is ready."""
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "ready\n" in iter(process.stdout.readline, ""), process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def up(directory: Path, *arguments: str) -> Iterator[Up]:
    found = Up(directory, *arguments)
    try:
        yield found
    finally:
        left = found.children() if found.process.poll() is None else []
        found.process.kill()
        for child in left:
            child.kill()
        found.process.wait()


def status(address: str) -> dict[str, Any]:
    with BlockingClient(address, timeout_s=10) as client:
        return cluster_status(client)


def doors(said: list[str]) -> dict[str, str]:
    return {name: address for name, _, address in (line.rpartition(" ") for line in said) if address.count(":") == 1}


@needs_etcd
def test_a_cluster_is_up_loses_a_broker_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with up(tmp_path / "c", "--brokers", "2") as first:
        said = first.until(lambda line: line == "ready")
        found = doors(said)
        each = ("amqp", "mqtt", "native", "peer", "http", "kafka")
        assert set(found) == {f"broker {number} {door}" for number in (1, 2) for door in each} | {"etcd"}
        assert Api(int(found["broker 2 http"].rpartition(":")[2]))("whoami")["broker_id"] == 2
        there = status(found["broker 2 native"])
        assert (there["broker"], [one["alive"] for one in there["brokers"]]) == (2, [True, True])
        assert there["controller"] in (1, 2)
        for door in ("native", "kafka"):
            assert there["brokers"][0]["addresses"][door] == found[f"broker 1 {door}"]
        command = first.broker(1).cmdline()
        first.broker(1).send_signal(signal.SIGKILL)
        (line,) = first.until(lambda line: "broker 1" in line)
        assert line.startswith("millrace: broker 1 was ended by SIGKILL; to start it again: millrace serve --data-dir")
        deadline = time.monotonic() + 20
        while [one["alive"] for one in there["brokers"]] != [False, True] or there["controller"] != 2:
            assert time.monotonic() < deadline, there
            time.sleep(0.1)
            there = status(found["broker 2 native"])
        children = first.children()
        with by_hand(command) as again:
            assert first.stop() == 0
            assert first.until(lambda line: "by hand" in line)[-1] == (
                f"millrace: broker 1 was started by hand (process {again.pid}): it is left alone, without etcd"
            )
            assert again.poll() is None
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    with up(tmp_path / "c") as second:
        assert doors(second.until(lambda line: line == "ready")) == found
        refused = subprocess.run(
            [sys.executable, "-m", "gateway", "cluster", "up", str(tmp_path / "c")],
            cwd=CHECKOUT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert refused.returncode == 1
        assert refused.stderr == f"millrace: data directory {tmp_path / 'c'}: in use by process {second.process.pid}\n"
        assert [one["alive"] for one in status(found["broker 1 native"])["brokers"]] == [True, True]
        with ExitStack() as started:
            for number in (1, 2):
                command = second.broker(number).cmdline()
                second.broker(number).send_signal(signal.SIGKILL)
                second.until(lambda line: "to start it again" in line)
                started.enter_context(by_hand(command))
            assert [one["alive"] for one in status(found["broker 1 native"])["brokers"]] == [True, True]
            assert second.process.poll() is None, "each runs, though none of them is ours"
        assert second.until(lambda line: "no broker" in line)[-1] == "millrace: no broker runs any more"
        assert second.process.wait(60) == 1


@needs_etcd
def test_whoever_interrupts_it_again_while_it_stops_changes_nothing(tmp_path: Path) -> None:
    with up(tmp_path / "c", "--brokers", "2") as one:
        one.until(lambda line: line == "ready")
        slow, other = one.broker(1), one.broker(2)
        slow.suspend()
        try:
            one.process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + 15
            while other.is_running() and other.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            one.process.send_signal(signal.SIGINT)
        finally:
            slow.resume()
        assert one.process.wait(60) == 0
        assert one.until(lambda line: not line) == [""], "nothing more is said"


@needs_etcd
def test_a_broker_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "c" / "broker-2").mkdir(parents=True)
    (tmp_path / "c" / "broker-2" / "catalog").mkdir()
    with up(tmp_path / "c", "--brokers", "2") as one:
        *_, line = one.until(lambda line: "broker" in line)
        assert line.startswith("millrace: broker 2: the data directory holds the data of a single broker")
        assert line.endswith(f"see {tmp_path / 'c' / 'broker-2.log'}")
        assert one.process.wait(60) == 1


def test_ports_are_kept_and_added_to(tmp_path: Path) -> None:
    first = planned_ports(tmp_path, None, None)
    assert len(first.brokers) == 3
    assert len({*first.etcd, *(port for one in first.brokers for port in one.values())}) == 20
    assert planned_ports(tmp_path, None, None) == first
    assert planned_ports(tmp_path, 1, None) == Ports(first.etcd, first.brokers[:1])
    four = planned_ports(tmp_path, 4, None)
    assert four.brokers[:3] == first.brokers
    assert planned_ports(tmp_path, None, None) == four
    older = Ports(four.etcd, [{door: port for door, port in one.items() if door != "http"} for one in four.brokers])
    (tmp_path / "ports.json").write_bytes(msgspec.json.encode(older))
    again = planned_ports(tmp_path, None, None)
    assert [one | {"http": 0} for one in again.brokers] == [one | {"http": 0} for one in older.brokers]
    assert len({one["http"] for one in again.brokers}) == 4
    based = planned_ports(tmp_path, 2, 7000)
    assert based.etcd == [7000, 7001]
    assert based.brokers == [
        {"amqp": 7010, "mqtt": 7011, "native": 7012, "peer": 7013, "http": 7014, "kafka": 7015},
        {"amqp": 7020, "mqtt": 7021, "native": 7022, "peer": 7023, "http": 7024, "kafka": 7025},
    ]
    with pytest.raises(StartError, match="there are not enough ports"):
        planned_ports(tmp_path, 9, 65450)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken, before = other.getsockname()[1], (tmp_path / "ports.json").read_bytes()
        with pytest.raises(
            StartError,
            match=rf"port ({taken - 1}|{taken}) \(etcd\): Address already in use; --base-port chooses others",
        ):
            planned_ports(tmp_path, 1, taken - 1)
        assert (tmp_path / "ports.json").read_bytes() == before, "the next start does not fail for it"
    (tmp_path / "ports.json").write_text("{")
    with pytest.raises(StartError, match=r"ports\.json"):
        planned_ports(tmp_path, None, None)
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(StartError):
            planned_ports(tmp_path, 2, 7000)
