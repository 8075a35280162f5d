"""Kafka's clients over TLS, with a user of the one table and each mechanism: all checks, and a wrong password.

The user may do everything in topics and groups, and is no administrator.
"""

from __future__ import annotations

import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException
from kafka.errors import KafkaError

from protocols.native.clients.blocking import BlockingClient
from tests.conformance.__main__ import Missing, require
from tests.conformance.kafka.checks import CHECKS, check, check_places
from tests.conformance.kafka.java import VERSION, Java
from tests.conformance.kafka.with_aiokafka import AioKafka
from tests.conformance.kafka.with_confluent import Confluent
from tests.conformance.kafka.with_kafka_python import KafkaPython
from tests.support import BrokerProcess, broker_process

USER, PASSWORD = "canna", "pumpkin"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
HOST = "localhost"


def confluent(server: str, authority: str, mechanism: str, password: str) -> Any:
    """confluent-kafka."""
    login = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password,
        "ssl.ca.location": authority, "log_level": "0",
    }  # fmt: skip
    return Confluent(server, "classic", login)


def kafka_python(server: str, authority: str, mechanism: str, password: str) -> Any:
    """kafka-python."""
    login = {
        "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, "sasl_plain_username": USER,
        "sasl_plain_password": password, "ssl_cafile": authority,
    }  # fmt: skip
    return KafkaPython(server, login)


def aiokafka(server: str, authority: str, mechanism: str, password: str) -> Any:
    """aiokafka."""
    login = {
        "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, "sasl_plain_username": USER,
        "sasl_plain_password": password, "ssl_context": ssl.create_default_context(cafile=authority),
    }  # fmt: skip
    return AioKafka(server, login)


def kcat(server: str, authority: str, mechanism: str, password: str) -> int:
    """The exit code of kcat that asks for all topics."""
    options = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password,
        "ssl.ca.location": authority,
    }  # fmt: skip
    given = [word for name, value in options.items() for word in ("-X", f"{name}={value}")]
    command = ["kcat", "-q", "-b", server, "-m", "5", *given, "-L"]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def java(directory: Path, server: str, authority: str) -> str:
    """A record through Java's console tools with each mechanism, where there is Java; what was done."""
    try:
        programs = Java(directory, VERSION)
    except Missing as missing:
        return f"without Java: {missing}"
    modules = dict.fromkeys(MECHANISMS, "scram.ScramLoginModule") | {"PLAIN": "plain.PlainLoginModule"}
    settings = directory / "login.properties"
    for mechanism, module in modules.items():
        settings.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={authority}\nsasl.jaas.config=org.apache.kafka.common.security.{module} required "
            f'username="{USER}" password="{PASSWORD}";\n'
        )
        where = ("--bootstrap-server", server, "--topic", f"java-{mechanism}", "--command-config", str(settings))
        programs.run("org.apache.kafka.tools.ConsoleProducer", *where, said="value\n")
        consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        found = programs.run(consumer, *where, "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")
        assert "value" in found.splitlines(), found
    return "and of Java"


LOGINS: tuple[tuple[Callable[[str, str, str, str], Any], type[Exception]], ...] = (
    (confluent, KafkaException), (kafka_python, KafkaError), (aiokafka, AioKafkaError),
)  # fmt: skip


@contextmanager
def secured_broker(directory: Path) -> Iterator[tuple[BrokerProcess, str]]:
    """A broker with the user, and the file of the authority that has signed its certificate."""
    authority, certificate = trustme.CA(), directory / "certificate.pem"
    authority.cert_pem.write_to_path(directory / "authority.pem")
    authority.issue_cert(HOST, "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    arguments = ("--tls-cert", str(certificate))
    with broker_process(directory / "data", doors=("native", "kafkas"), arguments=arguments) as broker:
        with BlockingClient(f"127.0.0.1:{broker.native_port}") as native:
            native.administer("users.add", name=USER, password=PASSWORD)
            native.administer("permissions.set", vhost="/", name=USER, configure=".*", write=".*", read=".*")
        yield broker, str(directory / "authority.pem")


def refused(login: Callable[[], Any], error: type[Exception]) -> bool:
    """Whether a client that logs in so is told an error, at once or when it asks for something."""
    try:
        login().topics()
    except error:
        return True
    return False


def run() -> str:
    """What was done. Raises AssertionError, or Missing."""
    require("kcat")
    said = []
    with tempfile.TemporaryDirectory() as name, secured_broker(Path(name)) as (broker, authority):
        server = f"{HOST}:{broker.ports['kafkas']}"
        for (login, error), whole in zip(LOGINS, MECHANISMS, strict=True):
            for mechanism in MECHANISMS:
                client = login(server, authority, mechanism, PASSWORD)
                check(client, CHECKS if mechanism == whole else (check_places,))
            assert refused(lambda: login(server, authority, whole, "wrong"), error), f"{client.name}: wrong password"  # noqa: B023
            said.append(f"{client.name} with {whole}")
        for mechanism in MECHANISMS:
            assert kcat(server, authority, mechanism, PASSWORD) == 0, f"kcat: {mechanism}"
            assert kcat(server, authority, mechanism, "wrong") != 0, f"kcat: {mechanism}, wrong password"
        of_java = java(Path(name), server, authority)
    return f"{', '.join(said)}; logins with {', '.join(MECHANISMS)} of all, of kcat, {of_java}"
