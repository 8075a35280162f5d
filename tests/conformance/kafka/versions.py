"""Versions of Kafka's clients, from 2018 on.

    python -m tests.conformance.kafka.versions              # a broker of its own
    python -m tests.conformance.kafka.versions --port 9092  # any broker, a real Kafka for one
    python -m tests.conformance.kafka.versions --only kafka-python --only sarama

Each is fetched into a temporary directory and goes through records of the codecs it has, a consumer group that goes on
where it was, and transactions if it has them. What cannot run here is left out, and it says so: a Python that a version
needs (pyenv's are found), Node with npm, Go.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.conformance.__main__ import CLIENTS, Missing, call, require, run
from tests.conformance.kafka.__main__ import broker_at

PYTHONS: dict[str, tuple[tuple[str, str], ...]] = {
    "kafka-python": (
        ("1.4.4", "3.7"), ("1.4.7", "3.7"), ("2.0.2", "3.8"), ("2.0.6", "3.11"), ("2.1.6", "3.11"), ("2.2.21", "3.12"),
        ("2.3.3", "3.13"), ("3.0.12", "3.13"),
    ),
    "confluent-kafka": (
        ("0.11.6", "3.7"), ("1.2.0", "3.7"), ("1.5.0", "3.8"), ("1.7.0", "3.9"), ("1.9.2", "3.10"), ("2.3.0", "3.11"),
        ("2.8.2", "3.12"), ("2.16.1", "3.13"),
    ),
    "aiokafka": (
        ("0.5.2", "3.7"), ("0.6.0", "3.8"), ("0.7.2", "3.9"), ("0.8.1", "3.11"), ("0.10.0", "3.12"), ("0.14.0", "3.13"),
    ),
}  # fmt: skip
"""Versions, and the Python each is run by."""
BESIDE = {"kafka-python": ("lz4",), "confluent-kafka": (), "aiokafka": ("lz4", "cramjam", "kafka-python<2.0.3")}
"""What has to be installed with one; until 0.8 aiokafka was made of parts that later kafka-pythons do not have."""
KAFKAJS = ("1.6.0", "1.12.0", "1.16.0", "2.0.2", "2.2.4")
GO = (
    ("sarama", "github.com/Shopify/sarama", "v1.20.1"), ("sarama", "github.com/Shopify/sarama", "v1.30.1"),
    ("sarama", "github.com/IBM/sarama", "v1.45.2"), ("franz", "github.com/twmb/franz-go", "v1.2.6"),
    ("franz", "github.com/twmb/franz-go", "v1.18.1"),
)  # fmt: skip


def python(client: str, version: str, with_python: str, port: int) -> str:
    """One for Python."""
    environment = dict(os.environ, PYENV_VERSION=with_python)
    program = f"python{with_python}"
    require(program)
    if subprocess.run([program, "-c", ""], env=environment, capture_output=True, check=False).returncode:
        raise Missing(f"{program} is not installed")
    with tempfile.TemporaryDirectory() as directory:
        wanted = [f"{client}=={version}", *BESIDE[client]]
        pip = [program, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", directory]
        call(*pip, "--only-binary=lz4,confluent-kafka,cramjam", *wanted, environment=environment)
        environment["PYTHONPATH"] = directory
        script = str(CLIENTS / "kafka_versions.py")
        return call(program, "-W", "ignore", script, client, f"127.0.0.1:{port}", environment=environment)


def kafkajs(version: str, port: int) -> str:
    """One of kafkajs."""
    require("node", "npm")
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(CLIENTS / "kafkajs_versions.js", directory)
        call("npm", "install", "--silent", "--no-fund", "--no-audit", f"kafkajs@{version}", cwd=Path(directory))
        return call("node", "kafkajs_versions.js", str(port), cwd=Path(directory))


def go(client: str, module: str, version: str, port: int) -> str:
    """One for Go."""
    require("go")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source = (CLIENTS / client / "main.go").read_text()
        (directory / "main.go").write_text(source.replace("github.com/Shopify/sarama", module))
        call("go", "mod", "init", "conformance", cwd=directory)
        call("go", "get", f"{module}@{version}", cwd=directory)
        call("go", "mod", "tidy", cwd=directory)
        call("go", "build", "-o", "conformance", ".", cwd=directory, timeout_s=600)
        return call("./conformance", f"127.0.0.1:{port}", cwd=directory)


PARTS: dict[str, Callable[[int], str]] = {
    **{
        f"{client} {version}": partial(python, client, version, by)
        for client, versions in PYTHONS.items()
        for version, by in versions
    },
    **{f"kafkajs {version}": partial(kafkajs, version) for version in KAFKAJS},
    **{f"{client} {version}": partial(go, client, module, version) for client, module, version in GO},
}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, help="of a broker that runs; without it one is started")
    parser.add_argument("--only", action="append", metavar="CLIENT", help="may be given several times")
    options = parser.parse_args()
    names = [name for name in PARTS if not options.only or any(name.startswith(one) for one in options.only)]
    with broker_at(options.port) as port:
        return min(1, run(port, names, PARTS))


if __name__ == "__main__":
    sys.exit(main())
