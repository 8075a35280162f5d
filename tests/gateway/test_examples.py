"""Every example runs as a user runs it, on a real broker; the one with Spark in tests/spark_bridge/test_spark.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import BrokerProcess

CHECKOUT = Path(__file__).resolve().parents[2]


def run(example: str, port: int) -> list[str]:
    """The lines an example prints."""
    command = [sys.executable, f"examples/{example}.py", str(port)]
    # In a checkout that is not installed the packages are found from where the command runs.
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(CHECKOUT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_amqp_worker(shared_broker: BrokerProcess) -> None:
    assert run("amqp_worker", shared_broker.amqp_port) == [f"did task {number}" for number in range(10)]


def test_mqtt_device(shared_broker: BrokerProcess) -> None:
    said = [f"home/kitchen/window/temperature says {degrees}" for degrees in ("20.5", "20.7", "21.0")]
    assert run("mqtt_device", shared_broker.mqtt_port) == said


@pytest.mark.parametrize("time", ["first", "second"])
def test_native_log(shared_broker: BrokerProcess, time: str) -> None:
    lines = run("native_log", shared_broker.native_port)
    assert len(lines) == 18
    for group in ("billing", "statistics"):
        for customer in ("ada", "grace", "edsger"):
            own = [line for line in lines if line.startswith(f"{group}: {customer} ")]
            assert [line.split()[2] for line in own] == ["ordered", "paid", "shipped"]
            assert len({line.rpartition("(")[2] for line in own}) == 1, "one key, one partition"


def test_native_once(shared_broker: BrokerProcess) -> None:
    assert run("native_once", shared_broker.native_port) == [
        "[True, True, False, True] ('ada', 75)",
        "[False, False, False, False] ('ada', 75)",
    ]


def test_native_asyncio(shared_broker: BrokerProcess) -> None:
    lines = run("native_asyncio", shared_broker.native_port)
    for name, count in (("ada", 30), ("grace", 20)):
        own = [line for line in lines if line.startswith(f"{name} ")]
        assert own == [f"{name} invoice for {number}" for number in range(count)]


@pytest.mark.parametrize("example", sorted((CHECKOUT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_small(example: Path) -> None:
    most = 110 if example.stem.startswith("spark_") else 60  # a whole job takes its session and its plan
    assert len(example.read_text().splitlines()) <= most
