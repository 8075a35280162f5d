"""Kafka's own clients through everything they have.

    python -m tests.conformance.kafka                       # a broker of its own
    python -m tests.conformance.kafka --port 9092           # any broker, a real Kafka for one
    python -m tests.conformance.kafka --only java --only kcat

Each goes through records of all codecs with headers and nulls, seeks and look-ups by time, groups whose members come
and go, commits, transactions, and administration, as far as it has them. Clients that are not installed are left out,
and it says so: confluent-kafka, kafka-python and aiokafka (extra `conformance`), kcat, Node with npm, Java 17 with
Maven. Node's libraries and Kafka's jars are fetched, the latter into Maven's own cache; Java's tools then run one by
one, for minutes.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conformance.__main__ import CLIENTS, Missing, call, require, run
from tests.conformance.kafka.java import OLDER_VERSION, VERSION
from tests.support import broker_process

NODE_PACKAGES = ("kafkajs@2", "kafkajs-snappy@1", "lz4-napi@2", "zstd-codec@0.1")
CONFIG = "[engine]\ngroup_initial_delay_ms = 0\n"
"""Of our own broker: nobody waits for more members before a group begins."""


def part(module: str) -> Any:
    """The module of a client here. Raises Missing."""
    try:
        return importlib.import_module(f"tests.conformance.kafka.{module}")
    except ImportError as error:
        raise Missing(str(error)) from None


def confluent(port: int) -> str:
    """confluent-kafka, with groups that clients divide."""
    found: str = part("checks").check(part("with_confluent").Confluent(f"127.0.0.1:{port}", "classic"))
    return found


def confluent_consumer(port: int) -> str:
    """confluent-kafka, with groups that the broker divides."""
    found: str = part("checks").check(part("with_confluent").Confluent(f"127.0.0.1:{port}", "consumer"))
    return found


def kafka_python(port: int) -> str:
    """kafka-python."""
    found: str = part("checks").check(part("with_kafka_python").KafkaPython(f"127.0.0.1:{port}"))
    return found


def aiokafka(port: int) -> str:
    """aiokafka."""
    found: str = part("checks").check(part("with_aiokafka").AioKafka(f"127.0.0.1:{port}"))
    return found


def kcat(port: int) -> str:
    """kcat."""
    require("kcat")
    found: str = part("with_kcat").run(f"127.0.0.1:{port}")
    return found


def kafkajs(port: int) -> str:
    """kafkajs."""
    require("node", "npm")
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(CLIENTS / "kafkajs.js", directory)
        call("npm", "install", "--silent", "--no-fund", "--no-audit", *NODE_PACKAGES, cwd=Path(directory))
        return call("node", "kafkajs.js", str(port), cwd=Path(directory))


def tls(port: int) -> str:
    """Clients that log in over TLS, at a broker of its own."""
    found: str = part("with_tls").run()
    return found


def connect(port: int) -> str:
    """Kafka Connect and MirrorMaker, at brokers of their own that are killed meanwhile."""
    with tempfile.TemporaryDirectory() as directory:
        found: str = part("with_connect").run(Path(directory))
        return found


def java(port: int) -> str:
    """Kafka's own tools, and Kafka Streams."""
    return of_java(port, VERSION)


def java_older(port: int) -> str:
    """The same of an older version."""
    return of_java(port, OLDER_VERSION)


def of_java(port: int, version: str) -> str:
    """The programs of one version."""
    with tempfile.TemporaryDirectory() as directory:
        found: str = part("with_java").run(Path(directory), f"127.0.0.1:{port}", version)
        return found


PARTS: dict[str, Callable[[int], str]] = {
    "confluent": confluent, "confluent-consumer": confluent_consumer, "kafka-python": kafka_python,
    "aiokafka": aiokafka, "kcat": kcat, "kafkajs": kafkajs, "tls": tls,
    "java": java, "java-older": java_older, "connect": connect,
}  # fmt: skip
OF_MILLRACE_ONLY = ("tls", "connect")


@contextmanager
def broker_at(port: int | None) -> Iterator[int]:
    """The port of the broker that runs there, or of one of our own."""
    if port is not None:
        yield port
        return
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "config.toml")
        config.write_text(CONFIG)
        doors, arguments = ("amqp", "mqtt", "native", "kafka"), ("--config", str(config))
        with broker_process(Path(directory, "data"), doors=doors, arguments=arguments) as broker:
            yield broker.ports["kafka"]


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, help="of a broker that runs; without it one is started")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="may be given several times")
    options = parser.parse_args()
    names = [name for name in options.only or PARTS if options.port is None or name not in OF_MILLRACE_ONLY]
    with broker_at(options.port) as port:
        return min(1, run(port, names, PARTS))


if __name__ == "__main__":
    sys.exit(main())
