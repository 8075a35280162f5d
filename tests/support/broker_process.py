"""A real broker in a process of its own, on free ports that stay its own while it is away.

1. The command is the one a user types (`gateway serve`), run by the interpreter of the caller from the checkout, or
   from another one, which holds another version (`versions.py`).
2. Starting waits for the line `ready` on standard output, never for a time; what the broker says before it
   (`amqp 127.0.0.1:40123`) gives the ports. A broker that ends first fails the start with the end of its log.
3. Doors that were not asked for are closed: two brokers at once would both want their usual ports.
4. Whatever happens, no process is left when the context manager ends.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.free_ports import free_ports

DOORS = ("amqp", "mqtt", "native")
HOST = "127.0.0.1"
CHECKOUT = Path(__file__).resolve().parents[2]
_STARTS_MAX = 60


class BrokerProcess:
    """A broker under control: its ports, and the ways to end and restart it. See `broker_process`."""

    def __init__(
        self,
        data_dir: Path,
        doors: Sequence[str],
        arguments: Sequence[str],
        module: str = "gateway",
        *,
        host: str = HOST,
        checkout: Path = CHECKOUT,
    ) -> None:
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.doors = tuple(doors)
        self.arguments = tuple(arguments)
        self.module = module
        self.host = host
        """Where its doors are: a loopback address."""
        self.checkout = checkout
        """Whose code the next start runs."""
        self.ports: dict[str, int] = {}
        self.start_s = 0.0
        """Seconds from exec to `ready` of the last start."""
        self._process: subprocess.Popen[str] | None = None

    @property
    def amqp_port(self) -> int:
        """Port of the AMQP door."""
        return self.ports["amqp"]

    @property
    def mqtt_port(self) -> int:
        """Port of the MQTT door."""
        return self.ports["mqtt"]

    @property
    def native_port(self) -> int:
        """Port of the native door."""
        return self.ports["native"]

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process; running unless it was ended."""
        assert self._process is not None, "the broker was never started"
        return self._process

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """All that the broker wrote to standard error, restarts included."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self, *, same_ports: bool = False, timeout_s: float = 60) -> None:
        """Start and wait for `ready`. `same_ports` asks for those of the last start.

        Raises RuntimeError with the end of the log when the process ends first or `timeout_s` pass.
        """
        assert not self.running, "the broker is running"
        ports = [self.ports[door] for door in self.doors] if same_ports else free_ports(len(self.doors))
        addresses = [f"{self.host}:{port}" for port in ports]
        command = [sys.executable, "-m", self.module, "serve", "--data-dir", str(self.data_dir)]
        for door, address in dict(dict.fromkeys(DOORS, "off"), **dict(zip(self.doors, addresses, strict=True))).items():
            command += [f"--{door}", address]
        began = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self.arguments],
                cwd=self.checkout,
                env=environment_of(self.checkout),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._pump, args=(self._process, lines), daemon=True).start()
        try:
            self._await_ready(lines, began + timeout_s)
        except BaseException:
            self.kill9()
            raise
        self.start_s = time.monotonic() - began

    def start_again(self) -> None:
        """Start at the old ports; another program may have one of them for a moment. Raises RuntimeError."""
        for _ in range(_STARTS_MAX):
            try:
                self.start(same_ports=True)
                return
            except RuntimeError as error:
                if "the port is in use" not in str(error):
                    raise
            time.sleep(1)
        raise RuntimeError(f"a port of {self.ports} stays in use")

    @staticmethod
    def _pump(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
        """Read standard output to its end, so that the broker never blocks on it."""
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.strip())
        lines.put(None)

    def _await_ready(self, lines: queue.SimpleQueue[str | None], deadline: float) -> None:
        said: list[str] = []
        while True:
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise RuntimeError(f"the broker did not become ready; it said {said}\n{self.log()[-4000:]}")
            if line == "ready":
                break
            said.append(line)
            door, _, address = line.partition(" ")
            if door in self.doors:
                self.ports[door] = int(address.rpartition(":")[2])
        missing = set(self.doors) - set(self.ports)
        if missing:
            raise RuntimeError(f"the broker named no address for {sorted(missing)}; it said {said}")

    def kill9(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.running:
            self.process.kill()
        self.process.wait()

    def terminate(self, timeout_s: float = 30) -> int:
        """SIGTERM; the exit code. Raises subprocess.TimeoutExpired when it does not end in time."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def restart(self, *, same_ports: bool = False, timeout_s: float = 60) -> None:
        """SIGTERM if it runs, then start again on the same data."""
        if self.running:
            self.terminate()
        self.start(same_ports=same_ports, timeout_s=timeout_s)


def environment_of(checkout: Path) -> dict[str, str]:
    """What has a process that begins in a checkout, and those that it begins, run the code there."""
    path = os.pathsep.join([str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])
    return dict(os.environ, PYTHONUNBUFFERED="1", PYTHONPATH=path)


@contextmanager
def broker_process(
    data_dir: Path | str,
    *,
    doors: Sequence[str] = DOORS,
    arguments: Sequence[str] = (),
    module: str = "gateway",
    checkout: Path = CHECKOUT,
) -> Iterator[BrokerProcess]:
    """A started broker with `doors` open on free loopback ports and more command line `arguments`.

    The log is beside the data directory, as `<data_dir>.log`. The process is killed at the end if still there.
    `module` is what `python -m` runs: another one can wrap the broker. `checkout` has the code.
    """
    with started(BrokerProcess(Path(data_dir).resolve(), doors, arguments, module, checkout=checkout)) as broker:
        yield broker


@contextmanager
def started(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """The same of a broker that was made otherwise."""
    broker.start()
    try:
        yield broker
    finally:
        broker.kill9()
