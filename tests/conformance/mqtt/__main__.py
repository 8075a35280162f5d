"""MQTT's clients, the Paho suites, a browser and a Mosquitto bridge against a broker of ours.

    python -m tests.conformance.mqtt
    python -m tests.conformance.mqtt --only paho-5 --only bridge

What is not installed is left out, and it says so: git and a way to the Paho suites' repository (or `PAHO_MQTT_TESTING`,
a checkout), aiomqtt and gmqtt (extra `conformance`), Node with npm, Chromium, mosquitto and its command line tools.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trustme

from tests.conformance.__main__ import CLIENTS, HERE, call, require, run
from tests.conformance.mqtt import browser, command_line, suites, with_asyncio
from tests.support import BrokerProcess, broker_process

NODE_PACKAGES = ("mqtt@5",)
VERSIONS = (4, 5)
CONFIG = "[mqtt]\nreceive_maximum = 100\nkeep_alive_max_s = 60\nnot_authorized_told = false\n"
"""Limits that the Paho suites want to be told of; a filter that is not allowed they want refused with 0x80."""
DOORS = ("mqtt", "mqtts", "native", "websocket", "websockets")


def python_clients(broker: BrokerProcess) -> str:
    """paho-mqtt and amqtt's client: the tests of the suite, against brokers that they start."""
    files = sorted(str(path) for path in HERE.glob("test_mqtt_*.py"))
    web = str(HERE.parent / "gateway" / "test_websocket.py")
    return call(sys.executable, "-m", "pytest", "-W", "ignore", "-q", "-n", "0", *files, web, cwd=HERE.parents[1])


def asyncio_client(name: str, broker: BrokerProcess) -> str:
    """aiomqtt or gmqtt, in all versions at all qualities of service."""
    scenario = {"aiomqtt": with_asyncio.aiomqtt, "gmqtt": with_asyncio.gmqtt}[name]
    return "; ".join(
        with_asyncio.run(scenario(broker.mqtt_port, version, qos)) for version in VERSIONS for qos in (0, 1, 2)
    )


def amqtt(broker: BrokerProcess) -> str:
    """amqtt's client over a WebSocket."""
    return "; ".join(with_asyncio.run(with_asyncio.amqtt(broker.ports["websocket"], qos)) for qos in (0, 1, 2))


@contextmanager
def node_modules() -> Iterator[Path]:
    """A directory with MQTT.js and our client for it. Raises Missing."""
    require("node", "npm")
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(CLIENTS / "mqttjs.js", directory)
        call("npm", "install", "--silent", "--no-fund", "--no-audit", *NODE_PACKAGES, cwd=Path(directory))
        yield Path(directory)


def websockets(broker: BrokerProcess) -> list[str]:
    """Where the broker is in WebSockets, without and with TLS."""
    return [f"{scheme}://127.0.0.1:{broker.ports[f'websocket{scheme[2:]}']}/mqtt" for scheme in ("ws", "wss")]


def mqttjs(broker: BrokerProcess) -> str:
    """MQTT.js over TCP, TLS, and WebSocket with and without TLS."""
    ports = broker.ports
    urls = [f"mqtt://127.0.0.1:{ports['mqtt']}", f"mqtts://127.0.0.1:{ports['mqtts']}", *websockets(broker)]
    with node_modules() as directory:
        return "; ".join(
            f"MQTT {version}: {call('node', 'mqttjs.js', str(version), '2', *urls, cwd=directory)}"
            for version in VERSIONS
        )


def in_a_browser(broker: BrokerProcess) -> str:
    """MQTT.js in a page, with and without TLS."""
    browser.browser()
    with node_modules() as directory:
        bundle = directory / "node_modules" / "mqtt" / "dist" / "mqtt.min.js"
        return browser.run(bundle, websockets(broker), list(VERSIONS), 2)


def bridge(broker: BrokerProcess) -> str:
    """A Mosquitto bridge in both versions, each with a broker of its own."""
    said = []
    for version in ("mqttv311", "mqttv50"):
        with tempfile.TemporaryDirectory() as directory, own_broker(Path(directory)) as fresh:
            said.append(command_line.through_a_bridge(fresh, Path(directory), version))
    return "; ".join(said)


PARTS: dict[str, Callable[[BrokerProcess], str]] = {
    "paho-3": partial(suites.run, "client_test"),
    "paho-5": partial(suites.run, "client_test5"),
    "python": python_clients,
    "aiomqtt": partial(asyncio_client, "aiomqtt"),
    "gmqtt": partial(asyncio_client, "gmqtt"),
    "amqtt": amqtt,
    "mqttjs": mqttjs,
    "browser": in_a_browser,
    "tools": lambda broker: command_line.tools(broker.mqtt_port, ("mqttv31", "mqttv311", "mqttv5"), 2),
    "bridge": bridge,
}


@contextmanager
def own_broker(directory: Path) -> Iterator[BrokerProcess]:
    """A broker with all doors that these clients use."""
    cert, config = str(directory / "cert.pem"), directory / "config.toml"
    config.write_text(CONFIG)
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(cert)
    with broker_process(
        directory / "data", doors=DOORS, arguments=("--tls-cert", cert, "--config", str(config))
    ) as broker:
        yield broker


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(PARTS), help="may be given several times")
    options = parser.parse_args()
    failed = 0
    for name in options.only or PARTS:  # a suite's permissions, retained messages and sessions are no other's
        with tempfile.TemporaryDirectory() as directory, own_broker(Path(directory)) as broker:
            failed += run(0, [name], {name: lambda _, part=PARTS[name], broker=broker: part(broker)})  # type: ignore[misc]
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
