"""Retained messages and wills with mosquitto's clients, and a broker that is killed in between."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateway.test_commands import Commands
from tests.support import BrokerProcess, broker_process

WAIT_S = 20

pytestmark = pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto's clients are not installed")


def mosquitto(broker: BrokerProcess, command: str, *arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        [f"mosquitto_{command}", "-h", "127.0.0.1", "-p", str(broker.mqtt_port), *arguments],
        input=text, capture_output=True, text=True, timeout=WAIT_S, check=True,
    )  # fmt: skip
    return done.stdout


def given(broker: BrokerProcess, pattern: str, count: int, *more: str) -> set[str]:
    """So many messages that a new subscriber gets: topic, payload, QoS and RETAIN."""
    out = mosquitto(
        broker, "sub", "-t", pattern, "-q", "1", "-C", str(count), "-W", str(WAIT_S), "-F", "%t %p %q %r", *more
    )
    return set(out.splitlines())


@contextmanager
def watching(broker: BrokerProcess, topic: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A mosquitto_sub; it is subscribed when it has printed the retained message `ready`."""
    mosquitto(broker, "pub", "-t", f"{topic}/ready", "-m", "ready", "-r", "-q", "1")
    process = subprocess.Popen(
        ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(broker.mqtt_port), "-t", f"{topic}/#", "-q", "1", "-v", *more],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{topic}/ready ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "millrace.toml"
    path.write_text("[engine]\nwill_grace_ms = 3000\n")
    return path


def test_retained_messages_survive_kills_and_clean_stops(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data") as broker:
        mosquitto(broker, "pub", "-t", "plant/1/temp", "-m", "20", "-r", "-q", "1")
        mosquitto(broker, "pub", "-t", "plant/1/temp", "-m", "21", "-r", "-q", "1")
        mosquitto(broker, "pub", "-t", "plant/2/temp", "-m", "30", "-r", "-q", "0")
        mosquitto(broker, "pub", "-t", "plant/3/temp", "-m", "40", "-r", "-q", "1")
        mosquitto(broker, "pub", "-t", "plant/3/temp", "-n", "-r", "-q", "1")
        lines = "".join(f"{n}\n" for n in range(500))
        mosquitto(broker, "pub", "-t", "counter", "-l", "-r", "-q", "1", text=lines)
        expected = {"plant/1/temp 21 1 1", "plant/2/temp 30 0 1", "counter 499 1 1"}
        for stop in (broker.kill9, broker.terminate, lambda: None):
            assert given(broker, "#", 3) == expected
            assert given(broker, "plant/+/temp", 2, "-V", "mqttv31") == expected - {"counter 499 1 1"}
            stop()
            if not broker.running:
                broker.start()
        millrace = Commands(broker)
        assert [row["key"] for row in millrace.rows("retained", "list")] == ["counter", "plant.1.temp", "plant.2.temp"]
        assert millrace.rows("retained", "list", "plant.#", "--limit", "1") == [
            {"key": "plant.1.temp", "bytes": 2, "persistent": True, "ends_at_ms": 0}
        ]
        assert millrace("retained", "clear", "plant.#") == "2 retained messages cleared\n"
        assert given(broker, "#", 1) == {"counter 499 1 1"}


def test_wills_of_those_who_do_not_come_back_after_a_kill_are_sent_once(tmp_path: Path, settings: Path) -> None:
    arguments = ("--config", str(settings))
    with broker_process(tmp_path / "data", arguments=arguments) as broker:

        def will(name: str) -> tuple[str, ...]:
            return ("-i", name, "--will-topic", f"wills/{name}", "--will-payload", "gone", "--will-qos", "1")

        with watching(broker, "x", *will("gone")), watching(broker, "y", *will("back")):
            broker.kill9()
        broker.start()
        with watching(broker, "z", *will("back")), watching(broker, "wills", "-C", "3") as watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "wills/gone gone\n"
            mosquitto(broker, "pub", "-t", "wills/last", "-m", "mark", "-q", "1")
            assert watcher.stdout.readline() == "wills/last mark\n"
            broker.kill9()
        broker.start()
        with watching(broker, "wills", "-C", "3") as watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "wills/back gone\n"
            mosquitto(broker, "pub", "-t", "wills/last", "-m", "mark", "-q", "1")
            assert watcher.stdout.readline() == "wills/last mark\n"
