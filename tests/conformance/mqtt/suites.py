"""The Eclipse Paho interoperability suites. They are under a licence of their own and are not kept here.

Where they come from: the directory that `PAHO_MQTT_TESTING` names (a checkout, or its `interoperability`), else the
cache of the user, into which they are cloned at the commit below. Without either, and without a way to the repository,
the suites do not run, and it is said why.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.__main__ import Missing, require
from tests.support import BrokerProcess

REPOSITORY = "https://github.com/eclipse/paho.mqtt.testing"
COMMIT = "9d7bb80bb8b9d9cfc0b52f8cb4c1916401281103"
RUNNER = Path(__file__).with_name("paho_suite.py")
TIMEOUT_S = 600
TRIES = 3


def directory() -> Path:
    """Where the suites' modules are. Raises Missing."""
    given = os.environ.get("PAHO_MQTT_TESTING")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / f"paho.mqtt.testing-{COMMIT[:12]}"
    root = Path(given) if given else cache
    if not given and not cache.exists():
        _clone(cache)
    for found in (root / "interoperability", root):
        if (found / "client_test5.py").exists():
            return found
    raise Missing(f"{root} has no client_test5.py")


def _clone(cache: Path) -> None:
    require("git")
    temporary = cache.with_name(f"{cache.name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    environment = dict(os.environ, GIT_TERMINAL_PROMPT="0")
    for command in (("init", "-q"), ("fetch", "-q", "--depth=1", REPOSITORY, COMMIT), ("checkout", "-q", "FETCH_HEAD")):
        done = subprocess.run(
            ["git", "-C", str(temporary), *command], capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode:
            subprocess.run(["rm", "-rf", str(temporary)], check=False)
            said = " ".join(done.stderr.split())[-200:]
            raise Missing(f"{REPOSITORY} cannot be fetched (set PAHO_MQTT_TESTING to a checkout): {said}")
    temporary.rename(cache)


def refuse_filters(broker: BrokerProcess) -> None:
    """Let nobody subscribe to what the suites expect to be refused."""
    native = f"127.0.0.1:{broker.native_port}"
    command = ["topic-permissions", "set", "guest", "amq.topic", ".*", r"^(?!test\.nosubscribe$)", "--server", native]
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *command], capture_output=True, text=True, check=False, cwd=RUNNER.parents[3]
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run(suite: str, broker: BrokerProcess, *only: str) -> str:
    """Run `client_test` (3.1.1) or `client_test5` (5). Raises Missing, AssertionError."""
    where = directory()
    refuse_filters(broker)
    passed, failed, said = _round(where, suite, broker, only)
    again: list[str] = []
    # Some wait for the SUBACK of the wrong client and publish right behind the SUBSCRIBE of another connection. What is
    # readable at the same time is read in no order, so the publish may come first.
    for _ in range(TRIES - 1):
        names = [line.split()[1] for line in failed]
        if not names:
            break
        more, failed, said = _round(where, suite, broker, names)
        passed += more
        again += [line.split()[1] for line in more]
    report = "\n".join([*failed, said])
    failures = f"{len(passed)} passed, {len(failed)} failed\n{report}\nlog of the broker:\n{broker.log()[-2000:]}"
    assert not failed, failures
    assert passed, failures
    told = f"; at a further try: {', '.join(again)}" if again else ""
    return f"{len(passed)} tests passed{told}"


def _round(where: Path, suite: str, broker: BrokerProcess, only: Sequence[str]) -> tuple[list[str], list[str], str]:
    """The lines of those that passed and of those that failed, and what else was said."""
    done = subprocess.run(
        [sys.executable, str(RUNNER), str(where), suite, str(broker.mqtt_port), *only],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    passed = [line for line in lines if line.startswith("ok ")]
    return passed, [line for line in lines if line.startswith("FAILED ")], done.stderr[-2000:]
