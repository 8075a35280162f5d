"""The command as a user runs it: what it prints, how it stops, and one line for everything that can be put right."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.support import BrokerProcess, broker_process
from tests.support.broker_process import CHECKOUT


def millrace(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=CHECKOUT,
        env=dict(os.environ, **environment),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """It ended with `code` and said one line with all of `parts`."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("millrace: ")
    for part in parts:
        assert part in done.stderr


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("process") / "data") as process:
        yield process


@pytest.mark.parametrize("module", ["gateway", "millrace"])
def test_python_finds_the_command(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    said = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=30, check=True).stdout
    assert said.startswith("millrace, version ")


FREE = ("--amqp", "127.0.0.1:0", "--mqtt", "off", "--native", "off")


FAILING = """
import trio
from gateway import process
from gateway.cli import main

async def waits():  # as for a thread that can tell nobody
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

def fails():
    raise MemoryError

def tell(lines):
    trio.lowlevel.spawn_system_task(waits)
    trio.lowlevel.current_trio_token().run_sync_soon(fails)

process._tell, process._FAILED_STOP_S_MAX = tell, 1
main()
"""


def test_a_broker_whose_event_loop_has_failed_ends(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FAILING, "serve", "--data-dir", str(tmp_path), *FREE],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == -signal.SIGALRM, ended.stderr
    assert "the event loop has failed" in ended.stderr


UNWINDING = """
import sys, time
from gateway import process
from gateway.cli import main

async def fails(config):
    raise MemoryError

process._serve_until_signal, process._FAILED_STOP_S_MAX = fails, 1
sys.excepthook = lambda *_: time.sleep(60)  # as a Python that unwinds without memory
main()
"""


def test_a_failed_broker_ends_though_python_does_not_come_to_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNWINDING, "serve", "--data-dir", str(tmp_path), *FREE]
    assert subprocess.run(command, cwd=CHECKOUT, timeout=30, check=False).returncode == -signal.SIGALRM


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is always full")
def test_nobody_has_to_hear_that_it_is_ready(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--data-dir", str(tmp_path), *FREE],
            cwd=CHECKOUT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
        process.terminate()
        said += process.stderr
        assert process.wait(30) == 0, said
    events = [line.partition("event=")[2].strip() for line in said]
    assert events[1:] == [
        "standard output is not written reason=No space left on device",
        "stopping signal=SIGTERM",
        "stopped",
    ]


def test_too_few_open_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "serve", *FREE, "--data-dir", str(tmp_path)]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 40 && exec "$@"', "sh", *command],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    refused(done, 1, "may have only 40 files open", "ulimit -n")


def test_a_password_is_read_without_a_terminal() -> None:
    for given, said in (("secret\n", "cannot connect to [::1]:1: "), ("", "a password is wanted")):
        done = subprocess.run(
            [sys.executable, "-m", "gateway", "topics", "list", "--server", "[::1]:1", "--user", "ada"],
            cwd=CHECKOUT, input=given, capture_output=True, text=True, timeout=30, check=False, start_new_session=True,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert said in done.stderr


def test_port_in_use(running: BrokerProcess, tmp_path: Path) -> None:
    done = millrace("serve", "--data-dir", str(tmp_path), *FREE, "--amqp", f"127.0.0.1:{running.amqp_port}")
    refused(done, 1, f"cannot listen on 127.0.0.1:{running.amqp_port} for amqp: the port is in use")


def test_data_directory_in_use(running: BrokerProcess) -> None:
    done = millrace("serve", "--data-dir", str(running.data_dir), *FREE)
    refused(done, 1, f"data directory {running.data_dir}: in use by process {running.pid}")


def test_data_directory_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    refused(millrace("serve", "--data-dir", str(file), *FREE), 1, f"data directory {file}: not a directory")
    refused(millrace("serve", "--data-dir", str(file / "below"), *FREE), 1, f"{file}/below: not a directory")


def test_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        directory = "/proc/millrace"  # permissions do not stop root, but nobody creates files there
    else:
        (tmp_path / "closed").mkdir(mode=0o500)
        directory = str(tmp_path / "closed" / "data")
    refused(millrace("serve", "--data-dir", directory, *FREE), 1, f"data directory {directory}: cannot be used: ")


def test_unknown_host(tmp_path: Path) -> None:
    done = millrace("serve", "--data-dir", str(tmp_path), *FREE, "--amqp", "no-such-host.invalid:5672")
    refused(done, 1, "cannot listen on no-such-host.invalid:5672 for amqp: ")


def test_all_doors_off(tmp_path: Path) -> None:
    done = millrace("serve", "--data-dir", str(tmp_path), *FREE, "--amqp", "off")
    refused(done, 1, "nothing to listen for")


@pytest.mark.parametrize(
    ("arguments", "environment", "parts"),
    [
        (["--amqp", "5672"], {}, ["listen.amqp: '5672' is not HOST:PORT"]),
        (["--log-level", "loud"], {}, ["command line: log.level:", "loud"]),
        (["--config", "absent.toml"], {}, ["absent.toml: cannot be read: No such file"]),
        ([], {"MILLRACE_LIMITS_CONNECTIONS_MAX": "x"}, ["environment: MILLRACE_LIMITS_CONNECTIONS_MAX: Expected int"]),
    ],
)
def test_wrong_settings(arguments: list[str], environment: dict[str, str], parts: list[str], tmp_path: Path) -> None:
    refused(millrace("serve", "--data-dir", str(tmp_path), *arguments, **environment), 2, *parts)


def test_wrong_setting_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text("[limits]\nconnection_max = 5\n")
    refused(
        millrace("serve", "--config", str(file)),
        2,
        f"{file}: there is no setting limits.connection_max",
        "did you mean",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it_cleanly_though_clients_are_connected(number: signal.Signals, tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as process:
        clients = [socket.create_connection(("127.0.0.1", port), timeout=10) for port in process.ports.values()]
        process.process.send_signal(number)
        for client in clients:
            while client.recv(4096):
                pass
            client.close()
        assert process.process.wait(10) == 0
        assert "Traceback" not in process.log()
        assert f"signal={number.name}" in process.log()
        process.start(same_ports=True)
        assert process.terminate(10) == 0


def test_a_second_signal_does_not_end_it_before_it_has_stopped(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as process:
        process.process.send_signal(signal.SIGTERM)
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(10) == 0
        assert process.log().rstrip().endswith("event=stopped")


def test_a_start_that_fails_says_why_though_it_was_to_stop(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        etcd = f"127.0.0.1:{silent.getsockname()[1]}"
        member = ["--cluster", "shop", "--broker-id", "1", "--etcd", etcd, "--peer", "127.0.0.1:0"]
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--data-dir", str(tmp_path), *FREE, *member],
            cwd=CHECKOUT,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process, silent.accept()[0]:
            process.terminate()
            assert process.stderr is not None
            said = process.stderr.read()
            assert process.wait(60) == 1, said
    assert "stopping signal=SIGTERM" in said
    assert "millrace: cluster 'shop': etcd cannot be " in said


def test_start_is_quick_and_small(running: BrokerProcess) -> None:
    """The budget is a cold start below 1 s and 60 MiB idle; the machine of the test may be busy, so time has slack.
    Python itself takes some 2 MiB more from 3.13 on; 3.14 another 5, and 5 where the interpreter is no shared library.
    """
    assert running.start_s < 5
    budget_mib = 60 if sys.version_info < (3, 13) else 64 if sys.version_info < (3, 14) else 74
    assert resident_kib(running) < budget_mib * 1024


def test_a_broker_does_not_load_what_only_doors_need_that_are_off() -> None:
    needless = ("protocols.kafka.adapter", "gateway.web_pages", "gateway.websocket", "h11", "prometheus_client")
    loaded = f"import sys, gateway.server; print([one for one in {needless} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def amqp_channel(port: int) -> socket.socket:
    """A connection that has opened channel 1, from nothing but bytes, so that it costs this process little."""

    def frame(channel: int, payload: bytes) -> bytes:
        return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"

    login = b"\0\x0a\0\x0b" + bytes(4) + b"\5PLAIN" + struct.pack(">I", 12) + b"\0guest\0guest" + b"\5en_US"
    tune_ok, opening = b"\0\x0a\0\x1f" + struct.pack(">HIH", 2047, 131072, 60), b"\0\x0a\0\x28\1/\0\0"
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(b"AMQP\0\0\x09\1" + frame(0, login) + frame(0, tune_ok) + frame(0, opening))
    client.sendall(frame(1, b"\0\x14\0\x0a\0"))
    received = b""
    while b"\0\x14\0\x0b" not in received:  # channel.open-ok
        data = client.recv(4096)
        assert data, received
        received += data
    return client


def test_an_idle_connection_with_a_channel_takes_less_than_12_kib(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as process, ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(amqp_channel(process.amqp_port))
        before_kib = resident_kib(process)
        for _ in range(350):
            stack.enter_context(amqp_channel(process.amqp_port))
        assert (resident_kib(process) - before_kib) / 350 < 12


def resident_kib(process: BrokerProcess) -> int:
    """Memory in use by the broker, as the system sees it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_json_logs(tmp_path: Path) -> None:
    config = tmp_path / "millrace.toml"
    config.write_text('[log]\nformat = "json"\n')
    with broker_process(tmp_path / "data", arguments=["--config", str(config)]) as process:
        process.terminate()
        lines = process.log().splitlines()
    assert lines
    assert all(line.startswith("{") and '"event": ' in line and '"level": ' in line for line in lines)


# Topics.


def topics(running: BrokerProcess, *arguments: str) -> tuple[int, str]:
    """Run `millrace topics` in this process; exit code and output."""
    result = CliRunner().invoke(main, ["topics", *arguments, "--server", f"127.0.0.1:{running.native_port}"])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_the_life_of_a_topic(running: BrokerProcess) -> None:
    assert topics(running, "create", "orders", "--partitions", "3", "--config", "retention.ms=60000") == (0, "")
    assert topics(running, "create", "orders") == (1, "millrace: topic 'orders' exists\n")
    assert topics(running, "bind", "orders", "--exchange", "amq.topic", "--key", "orders.#") == (0, "")
    code, said = topics(running, "list")
    assert (code, said.split()[:2]) == (0, ["name", "partitions"])
    assert ["orders", "3"] in [line.split() for line in said.splitlines()]
    code, said = topics(running, "describe", "orders")
    assert code == 0
    settings, partitions, copies = said.split("\n\n")
    assert copies == "single copy (acks=all proves no more than one): partitions 0, 1, 2\n"
    assert [line.split() for line in settings.splitlines()] == [["topic", "orders"], ["retention.ms", "60000"]]
    assert partitions.startswith("partition  leader  leader epoch  log start offset  high watermark")
    assert len(partitions.splitlines()) == 1 + 3
    assert topics(running, "alter", "orders", "--partitions", "5") == (0, "")
    assert len(topics(running, "describe", "orders")[1].split("\n\n")[1].splitlines()) == 1 + 5
    fewer = "millrace: topic 'orders' has 5 partitions, and there are never fewer than before\n"
    assert topics(running, "alter", "orders", "--partitions", "4") == (1, fewer)
    assert topics(running, "delete", "orders") == (0, "")
    code, said = topics(running, "describe", "orders")
    assert (code, said.startswith("millrace: "), "orders" in said) == (1, True, True)


def test_status_shows_what_the_logs_of_queues_hold(running: BrokerProcess) -> None:
    result = CliRunner().invoke(main, ["status", "--server", f"127.0.0.1:{running.native_port}"])
    head, *stripes, end, copies = result.output.splitlines()
    assert head.split("  ")[-1] == "pinned bytes"
    assert [line.split()[0] for line in stripes] == ["0", "1", "2", "3", "transient"]
    assert end.startswith("sessions ")
    assert copies == "single copy (acks=all proves no more than one): of everything, as there is one broker"
    result = CliRunner().invoke(main, ["status", "--json", "--server", f"127.0.0.1:{running.native_port}"])
    found = json.loads(result.output)
    assert {"homes", "sessions", "controller", "brokers", "partitions"} <= found.keys()
    assert (found["controller"], found["has_lease"], found["etcd_refuses"], found["blocked"]) == (None, True, "", None)
    assert {"topic", "partition", "leader", "epoch", "replicas", "isr", "log_end_offset", "high_watermark"} <= set(
        found["partitions"][0]
    )
    result = CliRunner().invoke(main, ["cluster", "status", "--server", f"127.0.0.1:{running.native_port}"])
    assert result.output.splitlines()[1].split() == ["0", "yes", "no", str(len(found["partitions"]))]
    assert "__queues           3       0" in result.output
    result = CliRunner().invoke(main, ["status", "--server", "127.0.0.1:1"])
    assert (result.exit_code, "millrace: cannot connect" in result.output) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["create", "x", "--config", "novalue"], 2, "'novalue' is not NAME=VALUE"),
        (["create", "x", "--config", "no.such.setting=1"], 1, "millrace: "),
        (["create", "x", "--partitions", "0"], 2, "--partitions"),
        (["bind", "no-such-topic", "--exchange", "amq.topic", "--key", "#"], 1, "no-such-topic"),
        (["delete", "no-such-topic"], 1, "no-such-topic"),
        (["list", "--user", "guest", "--password", "wrong"], 1, "millrace: "),
    ],
)
def test_what_cannot_be_done_with_topics(running: BrokerProcess, arguments: list[str], code: int, part: str) -> None:
    exit_code, said = topics(running, *arguments)
    assert exit_code == code
    assert part in said
    assert "Traceback" not in said


def test_a_broker_that_is_not_there() -> None:
    refused = "millrace: cannot connect to 127.0.0.1:1: "
    for server, code, part in [("127.0.0.1:1", 1, refused), ("nonsense", 2, "'nonsense' is not host:port")]:
        for command in (["topics", "list"], ["consume", "t"], ["produce", "t"]):
            result = CliRunner().invoke(main, [*command, "--server", server], input="x\n")
            assert result.exit_code == code
            assert part in result.output
            assert (part == refused) == ("refused" in result.output)
