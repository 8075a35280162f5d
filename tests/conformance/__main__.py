"""Real clients through everything, and what is known to differ from RabbitMQ.

    python -m tests.conformance                        # a broker of its own
    python -m tests.conformance --port 5672            # any broker, RabbitMQ for one; reply codes are left out
    python -m tests.conformance --only celery --only node

Clients that are not installed are left out, and it says so: Node with npm, Go, amqp-tools, Celery (extra
`conformance`). Node's and Go's libraries are fetched into a temporary directory.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers import rabbitmq_installed
from tests.conformance import histories, rpc
from tests.conformance.replies.__main__ import differences, show
from tests.conformance.replies.known import NOT_IN_CASES
from tests.support import broker_process

HERE = Path(__file__).parent
CLIENTS = HERE / "clients"


class Missing(Exception):
    """A client is not installed."""


def require(*programs: str) -> None:
    """Raises Missing."""
    for program in programs:
        if shutil.which(program) is None:
            raise Missing(f"{program} is not installed")


def call(
    *command: str, cwd: Path | None = None, timeout_s: float = 300, environment: dict[str, str] | None = None
) -> str:
    """Run a program; the last line it printed. Raises AssertionError with all it said if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return (done.stdout.strip().splitlines() or [""])[-1]


def python_clients(port: int) -> str:
    """pika, aio-pika and py-amqp: the tests of the suite, against a broker that they start."""
    files = [str(HERE / f"test_amqp_{name}.py") for name in ("pika", "aio_pika", "py_amqp", "kombu")]
    return call(sys.executable, "-m", "pytest", "-W", "ignore", "-q", *files, cwd=HERE.parents[1])


def replies(port: int) -> str:
    """Reply codes, texts and what stays open, case by case."""
    found = list(differences(port, 5.0))
    assert show(found, known=True) == 0, "unexplained differences"
    for difference, why in NOT_IN_CASES.items():
        print(f"{difference}\n    because {why}")
    return f"{len(found) + len(NOT_IN_CASES)} known differences, listed above"


def dead_letters(port: int) -> str:
    """Whether RabbitMQ still tells of dead letters what the suite compares with."""
    if not rabbitmq_installed():
        raise Missing("RabbitMQ is not installed")
    assert histories.main("check") == 0, "the table is wrong"
    return "as RabbitMQ tells"


def remote_calls(port: int) -> str:
    """10,000 round trips."""
    return rpc.summary(rpc.round_trips(port, 10_000))


def large(port: int) -> str:
    """128 MiB, and one byte more, on a broker of its own that is killed."""
    from tests.conformance.test_amqp_large import LIMIT, check_large_message

    with tempfile.TemporaryDirectory() as directory:
        check_large_message(Path(directory), LIMIT)
    return "128 MiB persistent, killed, read back; one byte more refused"


def amqp_tools(port: int) -> str:
    """The command line tools of librabbitmq."""
    require("amqp-publish", "amqp-consume", "amqp-get", "amqp-declare-queue", "amqp-delete-queue")
    return call("sh", str(CLIENTS / "amqp_tools.sh"), str(port))


def node(port: int) -> str:
    """amqplib."""
    require("node", "npm")
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(CLIENTS / "amqplib.js", directory)
        call("npm", "install", "--silent", "--no-fund", "--no-audit", "amqplib@0.10", cwd=Path(directory))
        return call("node", "amqplib.js", str(port), cwd=Path(directory))


def go(port: int) -> str:
    """amqp091-go."""
    require("go")
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(CLIENTS / "go", directory, dirs_exist_ok=True)
        call("go", "build", "-mod=mod", "-o", "conformance", ".", cwd=Path(directory), timeout_s=600)
        return call("./conformance", str(port), cwd=Path(directory))


def celery(port: int) -> str:
    """A worker, and an application that does what applications do."""
    try:
        from tests.conformance import run_celery
    except ImportError as error:
        raise Missing(str(error)) from None
    return ", ".join(run_celery.run(port))


PARTS: dict[str, Callable[[int], str]] = {
    "python": python_clients, "replies": replies, "histories": dead_letters, "rpc": remote_calls, "large": large,
    "amqp-tools": amqp_tools, "node": node, "go": go, "celery": celery,
}  # fmt: skip
OF_MILLRACE_ONLY = ("python", "replies", "histories", "large")


def run(port: int, names: list[str], parts: dict[str, Callable[[int], str]] = PARTS) -> int:
    """Do the parts; how many failed."""
    failed = 0
    for name in names:
        began = time.monotonic()
        try:
            said = parts[name](port)
        except Missing as missing:
            print(f"{name}: left out, {missing}", flush=True)
            continue
        except Exception as error:
            failed += 1
            said = f"FAILED\n{error}"
        print(f"{name}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
    return failed


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, help="of a broker that runs; without it one is started")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="may be given several times")
    options = parser.parse_args()
    names = options.only or list(PARTS)
    if options.port is not None:
        return min(1, run(options.port, [name for name in names if name not in OF_MILLRACE_ONLY]))
    with tempfile.TemporaryDirectory() as directory, broker_process(Path(directory, "data")) as broker:
        return min(1, run(broker.amqp_port, names))


if __name__ == "__main__":
    sys.exit(main())
