"""Start the brokers Millrace is measured against on loopback ports of their own.

    from benchmarks.peers import rabbitmq, mosquitto
    with rabbitmq() as (port, pid): ...

They are Debian's rabbitmq-server and mosquitto, with the settings below and defaults otherwise. Their data lives in a
temporary directory that is removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RABBITMQ_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def rabbitmq_installed() -> bool:
    """Whether `rabbitmq` can work."""
    return RABBITMQ_SERVER.exists() and shutil.which("epmd") is not None


def mosquitto_path() -> str | None:
    """Where the program is, if installed; Debian puts it where only root looks."""
    return shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_port(port: int, seconds: float = 90) -> None:
    """Return once somebody listens on `port`. Raises RuntimeError after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise RuntimeError(f"nothing listens on 127.0.0.1:{port} after {seconds} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force if it takes longer than 30 s."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def descendants(pid: int) -> list[int]:
    """`pid` and all processes below it."""
    found = [pid]
    for at in found:
        for task in Path(f"/proc/{at}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, task.read_text().split())
    return found


@contextlib.contextmanager
def rabbitmq(certificate: tuple[str, str] | None = None) -> Iterator[tuple[int, int]]:
    """RabbitMQ with its defaults: no plugins, all schedulers, classic queues; port and process id.

    With `certificate`, files of a certificate and its key, the port speaks TLS.
    """
    port, dist, epmd_port = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="peer-rabbitmq-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        for name in ("home", "mnesia", "log"):
            (home / name).mkdir()
        listeners = f"listeners.tcp.default = 127.0.0.1:{port}\n"
        if certificate is not None:
            listeners = f"listeners.tcp = none\nlisteners.ssl.default = 127.0.0.1:{port}\n"
            listeners += "".join(
                f"ssl_options.{name} = {path}\n"
                for name, path in zip(("certfile", "keyfile"), certificate, strict=True)
            )
        (home / "rabbitmq.conf").write_text(listeners + "log.console = false\nlog.file.level = warning\n")
        (home / "advanced.config").write_text("[].\n")
        (home / "enabled_plugins").write_text("[].\n")
        (home / "env.conf").write_text("")
        env = {
            **os.environ,
            "HOME": f"{home}/home",
            "RABBITMQ_NODENAME": f"peer{port}@localhost",
            "RABBITMQ_CONF_ENV_FILE": f"{home}/env.conf",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{home}/advanced.config",
            "RABBITMQ_MNESIA_BASE": f"{home}/mnesia",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_DIST_PORT": str(dist),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_MAX_PORTS": "20000",
        }
        epmd = quiet_process("epmd", env=env)
        time.sleep(0.5)
        server = quiet_process(str(RABBITMQ_SERVER), env=env)
        try:
            wait_port(port)
            time.sleep(3)
            beam = [pid for pid in descendants(server.pid) if "beam" in Path(f"/proc/{pid}/comm").read_text()]
            yield port, beam[0] if beam else server.pid
        finally:
            for pid in reversed(descendants(server.pid)):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
            stop(server)
            stop(epmd)


@contextlib.contextmanager
def mosquitto(*lines: str) -> Iterator[tuple[int, int]]:
    """Mosquitto without queue limits, not persistent; more configuration `lines` may be given; port and process id."""
    port, program = free_port(), mosquitto_path()
    assert program is not None, "mosquitto is not installed"
    with tempfile.TemporaryDirectory(prefix="peer-mosquitto-") as directory:
        config = [
            *("user root", f"listener {port} 127.0.0.1", "allow_anonymous true"),
            *("max_queued_messages 0", "max_inflight_messages 0", "persistence false"),
            *("log_type error", f"log_dest file {directory}/log"),
            *lines,
        ]
        path = Path(directory, "mosquitto.conf")
        path.write_text("\n".join(config) + "\n")
        server = quiet_process(program, "-c", str(path))
        try:
            wait_port(port, 10)
            yield port, server.pid
        finally:
            stop(server)


def quiet_process(*command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program that says nothing here."""
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
