"""A broker for the demo: a process of its own on free ports, with its data in a directory we are given."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

DOORS = ("amqp", "mqtt", "native")
READY_TIMEOUT_S = 30
STOP_TIMEOUT_S = 15


class BrokerDidNotStart(RuntimeError):
    """The broker ended or said nothing; why is in its log."""


class DemoBroker:
    """A running broker: its ports by door. A context manager: leaving it stops the broker."""

    def __init__(self, directory: Path) -> None:
        """Start `gateway serve` and wait until it is ready. Raises `BrokerDidNotStart`."""
        self.ports: dict[str, int] = {}
        log_path = directory / "broker.log"
        command = [sys.executable, "-m", "gateway", "serve", "--data-dir", str(directory / "data")]
        for door in DOORS:
            command += [f"--{door}", "127.0.0.1:0"]
        with log_path.open("wb") as log:
            # A session of its own: the interrupt key is for the demo, which stops the broker when all else has ended.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        impatient = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        impatient.start()
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        finally:
            impatient.cancel()

    def __enter__(self) -> DemoBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def address(self, door: str) -> str:
        """`host:port` of a door."""
        return f"127.0.0.1:{self.ports[door]}"

    def stop(self) -> None:
        """Stop it, politely first."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _await_ready(self) -> None:
        """Read lines such as `amqp 127.0.0.1:40123` up to `ready`."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            door, _, address = line.strip().partition(" ")
            if door == "ready" and len(self.ports) == len(DOORS):
                return
            if door in DOORS:
                self.ports[door] = int(address.rpartition(":")[2])
        raise BrokerDidNotStart("the broker did not become ready")
