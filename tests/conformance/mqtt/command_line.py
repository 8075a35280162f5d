"""mosquitto_pub and mosquitto_sub, and a Mosquitto that is a bridge to the broker, in both directions."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import peers
from tests.conformance.__main__ import Missing, require
from tests.support import BrokerProcess

PATIENCE_S = 40
COUNT = 100


@contextlib.contextmanager
def subscriber(port: int, *arguments: str, count: int, out: list[str]) -> Iterator[None]:
    """A mosquitto_sub that ends after `count` messages; what it printed is in `out` then."""
    command = ["stdbuf", "-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), *arguments]
    command += ["-C", str(count), "-W", str(PATIENCE_S)]
    process = subprocess.Popen([*command, "-d"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    for line in lines:  # -d tells of packets
        if "SUBACK" in line:
            break
    try:
        yield
        out += [line.rstrip("\n") for line in lines if not line.startswith(("Client ", "Subscribed "))]
    finally:
        process.kill()
        process.wait()


def publish(port: int, *arguments: str, lines: Sequence[str]) -> None:
    """Publish each line as a message."""
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), "-l", *arguments]
    done = subprocess.run(
        command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def tools(port: int, versions: Sequence[str], qos_max: int) -> str:
    """Both tools in each version at each quality of service. Raises Missing, AssertionError."""
    require("mosquitto_pub", "mosquitto_sub", "stdbuf")
    for version in versions:
        for qos in range(qos_max + 1):
            topic, out = f"tools/{version}/{qos}", []
            sent = [f"{version} {qos} {number}" for number in range(COUNT)]
            arguments = ("-V", version, "-q", str(qos), "-t", topic)
            with subscriber(port, *arguments, count=COUNT, out=out):
                publish(port, *arguments, lines=sent)
            assert out == sent, f"version {version}, QoS {qos}: {out[:3]} ... {len(out)} of {COUNT}"
    return f"versions {', '.join(versions)}, QoS 0 to {qos_max}"


@contextlib.contextmanager
def bridge(broker: BrokerProcess, directory: Path, version: str) -> Iterator[int]:
    """A Mosquitto connected to the broker: `out/#` goes there, `in/#` comes, `both/#` does both; its port."""
    if peers.mosquitto_path() is None:
        raise Missing("mosquitto is not installed")
    lines = (
        "connection millrace", f"address 127.0.0.1:{broker.mqtt_port}", f"bridge_protocol_version {version}",
        "remote_clientid the-bridge", "cleansession false", "restart_timeout 1",
        "topic out/# out 1", "topic in/# in 1", "topic both/# both 1",
        "keepalive_interval 5", "bridge_attempt_unsubscribe false",
        "max_inflight_messages 20",  # without a limit it announces a receive maximum of 0, which is an error
    )  # fmt: skip
    with peers.mosquitto(*lines) as (port, _):
        yield port


def until(found: Callable[[], bool], what: str) -> None:
    """Wait until it is so. Raises AssertionError."""
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def crosses(
    source: int, target: int, topic: str, sent: Sequence[str], meanwhile: Callable[[], None] = lambda: None
) -> None:
    """What is published at QoS 1 at one end comes out at the other, in order and at least once."""
    out: list[str] = []
    with subscriber(target, "-q", "1", "-t", topic, "-V", "mqttv311", count=len(sent), out=out):
        publish(source, "-q", "1", "-t", topic, lines=sent)
        meanwhile()
    assert out == list(sent), f"{topic}: {len(out)} of {len(sent)}, {out[:3]}"


def through_a_bridge(broker: BrokerProcess, directory: Path, version: str) -> str:
    """Both directions, and an outage of the broker in between. Raises Missing, AssertionError."""
    require("mosquitto_pub", "mosquitto_sub", "stdbuf")
    first = [f"first {number}" for number in range(COUNT)]
    away = [f"away {number}" for number in range(COUNT // 2)]  # it sends all at once, whatever the receive maximum
    with bridge(broker, directory, version) as port:
        _wait_for_bridge(broker.mqtt_port, port)
        crosses(port, broker.mqtt_port, "out/a", first)
        crosses(broker.mqtt_port, port, "in/a", first)
        _comes_back_to_nobody(broker.mqtt_port, port)
        broker.kill9()
        publish(port, "-q", "1", "-t", "out/b", lines=away)  # the bridge keeps it
        broker.start(same_ports=True)
        out: list[str] = []
        with subscriber(broker.mqtt_port, "-q", "1", "-t", "out/b", count=len(away), out=out):
            _wait_for_bridge(broker.mqtt_port, port)
        assert sorted(set(out)) == sorted(set(away)), f"after the outage {len(set(out))} of {len(away)} came"
        crosses(broker.mqtt_port, port, "in/b", first)
    return f"MQTT {version}: {COUNT} each way, {COUNT} by a topic of both, an outage, and some more each way"


def _comes_back_to_nobody(ours: int, theirs: int) -> None:
    """What the bridge sends does not return by a topic of both directions, what is retained stays so on the other side,
    and the bridge says that it is connected.
    """
    sent = [f"both {number}" for number in range(COUNT)]
    out: list[str] = []
    with subscriber(theirs, "-q", "1", "-t", "both/#", count=COUNT + 1, out=out):
        crosses(theirs, ours, "both/a", sent)
        publish(ours, "-q", "1", "-r", "-t", "both/end", lines=["end"])
    assert out == [*sent, "end"], f"{len(out)} at the bridge itself, {out[:3]}"
    for port, topic, kept in ((theirs, "both/end", "end"), (ours, "$SYS/broker/connection/the-bridge/state", "1")):
        with subscriber(port, "-t", topic, "--retained-only", count=1, out=(out := [])):
            pass
        assert out == [kept], topic


def _wait_for_bridge(ours: int, theirs: int) -> None:
    """Publish until something comes through."""
    number = 0

    def through() -> bool:
        nonlocal number
        number += 1
        out: list[str] = []
        command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(theirs), "-t", "in/probe", "-C", "1", "-W", "1"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        time.sleep(0.2)
        publish(ours, "-t", "in/probe", lines=[str(number)])
        out = process.communicate()[0].split()
        return bool(out)

    until(through, "the bridge does not connect")
