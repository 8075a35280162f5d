"""The etcd of a cluster in a test: one member or three, which are killed, paused and come back on their old ports.

1. A member that is killed keeps its data. In 3.5.0 to 3.5.2 it can lose a transaction that it had answered
   (https://etcd.io/blog/2022/postmortem-data-inconsistency), so nobody kills members below `KILLED_SINCE`.
2. `compare` asks each member for the hash of all it holds, at one revision: they have to be equal.
"""

from __future__ import annotations

import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio

from core_log.metadata import etcd_wire as wire
from gateway.errors import StartError
from gateway.etcd_process import etcd_started, find_etcd, launch_etcd
from gateway.free_ports import free_ports
from tests.support.broker_process import HOST

KILLED_SINCE = (3, 5, 3)
_HASH_KV = "/v3/maintenance/hash"
_PATIENCE_S = 30.0
_ANSWER_S = 2.0


class EtcdMembers:
    """See the module. Members are numbered from 0 on."""

    def __init__(self, directory: Path, count: int) -> None:
        program = find_etcd()
        if program is None:
            raise StartError("there is no etcd on the path")
        self._program, self._directory = program, directory
        ports = free_ports(2 * count)
        self._client_ports = ports[:count]
        self._peer_ports = {f"member-{number}": port for number, port in enumerate(ports[count:])}
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self.version = ""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._processes)

    @property
    def addresses(self) -> list[str]:
        """Where clients find them."""
        return [f"{HOST}:{port}" for port in self._client_ports]

    @property
    def pids(self) -> list[int]:
        """Their process ids, once they are started."""
        return [self._process(number).pid for number in range(self.count)]

    @property
    def may_be_killed(self) -> bool:
        """Whether what it answered outlives a member that is killed, as far as is known of its version."""
        return self.count > 1 and tuple(map(int, self.version.split(".")[:3])) >= KILLED_SINCE

    # --- starting and stopping

    def start(self) -> None:
        """Start all. Raises StartError."""
        for number in range(self.count):
            self._launch(number)
        for number in range(self.count):
            self.await_member(number)

    def _launch(self, number: int) -> None:
        name = f"member-{number}"
        self._processes[number] = launch_etcd(
            self._program, self._directory / name, name, self._client_ports[number], self._peer_ports
        )

    def await_member(self, number: int) -> None:
        """Wait until it answers with a quorum. Raises StartError."""
        self.version = trio.run(partial(etcd_started, self._process(number), self.addresses[number]))
        if not self.version:
            raise StartError(f"member {number} does not come up, see {self._directory}")

    def stop(self) -> None:
        """End all."""
        running = [process for process in self._processes if process is not None and process.poll() is None]
        for process in running:
            process.kill()
            process.wait()

    def _process(self, number: int) -> subprocess.Popen[bytes]:
        process = self._processes[number]
        assert process is not None
        return process

    # --- shaking

    def kill9(self, number: int) -> None:
        """SIGKILL a member."""
        self._process(number).kill()
        self._process(number).wait()

    def restart(self, number: int) -> None:
        """Start a member that is not there, on its data. Raises StartError."""
        self._launch(number)
        self.await_member(number)

    def signal(self, number: int, what: int) -> None:
        """Send a signal to a member."""
        self._process(number).send_signal(what)

    def signal_all(self, what: int) -> None:
        """Send it to all."""
        for number in range(self.count):
            self.signal(number, what)

    # --- looking

    def _ask(self, number: int, path: str, **body: Any) -> dict[str, Any]:
        answer = httpx.post(f"http://{self.addresses[number]}{path}", json=body, timeout=_ANSWER_S, trust_env=False)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def leader(self) -> int:
        """Which of them leads. Raises AssertionError when none is found."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for number in range(self.count):
                try:
                    status = self._ask(number, wire.STATUS)
                except httpx.HTTPError:
                    continue
                if status.get("leader", "0") == status["header"]["member_id"]:
                    return number
            time.sleep(0.05)
        raise AssertionError("no member of etcd leads")

    def compare(self) -> None:
        """All hold the same. Raises AssertionError."""
        deadline, found = time.monotonic() + _PATIENCE_S, dict[int, dict[str, Any]]()
        while time.monotonic() < deadline:
            try:
                found = self._hashes()
            except httpx.HTTPError as error:
                found = {-1: {"error": repr(error)}}
            told = {(one.get("hash"), one.get("compact_revision")) for one in found.values()}
            if -1 not in found and len(told) == 1:
                return
            time.sleep(0.2)  # one may lag behind, or have compacted already
        raise AssertionError(f"the members of etcd differ: {found}")

    def _hashes(self) -> dict[int, dict[str, Any]]:
        revision = min(int(self._ask(number, wire.STATUS)["header"]["revision"]) for number in range(self.count))
        return {number: self._ask(number, _HASH_KV, revision=str(revision)) for number in range(self.count)}
