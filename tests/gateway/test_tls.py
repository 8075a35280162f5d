"""TLS on every door, with real clients: what they may rely on, and how those are seen off that speak something else."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aio_pika
import paho.mqtt.client as paho
import pika
import pytest
import trio
import trustme
from click.testing import CliRunner
from pika.exceptions import ChannelClosedByBroker

from gateway.cli import main
from gateway.config import ConfigError, Limits, Tls, load_config
from gateway.errors import StartError
from gateway.tls import Certificates, TlsLayer, name_of
from millrace import BlockingClient, BlockingConsumer, BlockingProducer, Client, ConnectionLost, tls_context
from spark_bridge.data_source import MillraceDataSource
from tests.gateway.shell import open_door, receive_exactly
from tests.support import BrokerProcess, broker_process

HOST = "127.0.0.1"


class Files:
    """A certificate authority, a certificate of the broker's, and one of a client's, as files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.ca = str(directory / "ca.pem")
        self.cert = str(directory / "cert.pem")
        self.client = str(directory / "client.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        self.issue()
        self.authority.issue_cert("ada@example.org", common_name="ada").private_key_and_cert_chain_pem.write_to_path(
            self.client
        )

    def issue(self, *, days: tuple[float, float] | None = None) -> None:
        """A new certificate for the broker, in place of the one there is; good from and until so many days from now."""
        now = datetime.now(UTC)
        begins, expires = (now + timedelta(one) for one in days) if days is not None else (None, None)
        leaf = self.authority.issue_cert(HOST, "localhost", not_before=begins, not_after=expires)
        new = self.directory / "new.pem"
        leaf.private_key_and_cert_chain_pem.write_to_path(str(new))
        os.replace(new, self.cert)

    def context(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        """What a client needs."""
        return tls_context(self.ca, self.client if with_certificate else None)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    arguments = ("--tls-cert", files.cert, "--tls-ca", files.ca)
    doors = ("amqp", "amqps", "mqtts", "natives", "kafkas")
    with broker_process(tmp_path_factory.mktemp("tls") / "data", doors=doors, arguments=arguments) as process:
        yield process


def amqp_parameters(broker: BrokerProcess, context: ssl.SSLContext) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(HOST, broker.ports["amqps"], ssl_options=pika.SSLOptions(context, HOST))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_pika_in_both_versions_with_small_and_large_bodies(
    secured: BrokerProcess, files: Files, version: ssl.TLSVersion
) -> None:
    context = files.context()
    context.minimum_version = context.maximum_version = version
    with pika.BlockingConnection(amqp_parameters(secured, context)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        queue = channel.queue_declare("", exclusive=True).method.queue
        bodies = [b"", b"small", os.urandom(16 << 10), os.urandom(3_000_000), *([b"x" * 100] * 500)]
        for body in bodies:
            channel.basic_publish("", queue, body)
        received = []
        for _, _, body in channel.consume(queue, auto_ack=True):
            received.append(body)
            if len(received) == len(bodies):
                break
        assert received == bodies


def test_kafkas_clients_are_who_their_certificate_says(secured: BrokerProcess, files: Files, tmp_path: Path) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    with BlockingClient(f"{HOST}:{secured.ports['natives']}", tls=files.context()) as client:
        client.administer("users.add", name="eve", password="secret")
        client.administer("permissions.set", vhost="/", name="eve", configure="^eve", write="^eve", read="^eve")

    def told(name: str | None, topic: str, **login: str) -> str | None:
        """What becomes of a record: the name of the error, if there is one."""
        settings = {"security.protocol": "SSL", "ssl.ca.location": files.ca, **login}
        if name is not None:
            shown = str(tmp_path / f"{name}.pem")
            files.authority.issue_cert("x@example.org", common_name=name).private_key_and_cert_chain_pem.write_to_path(
                shown
            )
            settings |= {"ssl.certificate.location": shown, "ssl.key.location": shown}
        found: list[str | None] = []
        address = f"{HOST}:{secured.ports['kafkas']}"
        producer = kafka.Producer({"bootstrap.servers": address, "message.timeout.ms": 10_000, **settings})
        producer.produce(topic, b"x", on_delivery=lambda error, _: found.append(error and error.name()))
        producer.flush(15)
        return found[0]

    assert told("eve", "eve-1") is None
    assert told("eve", "others") == "TOPIC_AUTHORIZATION_FAILED"
    assert told(None, "others") is None  # guest, from this machine
    assert told("nobody-we-know", "others") is None
    plain = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "guest"}
    assert told("eve", "others", **plain, **{"sasl.password": "guest"}) is None  # who logs in is who he says


def test_the_name_in_a_certificate_is_a_login(secured: BrokerProcess, files: Files) -> None:
    parameters = amqp_parameters(secured, files.context(with_certificate=True))
    parameters.credentials = pika.credentials.ExternalCredentials()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(parameters)
    with BlockingClient(f"{HOST}:{secured.ports['natives']}", tls=files.context()) as client:
        client.administer("users.add", name="ada", password="not needed")
        client.administer("permissions.set", vhost="/", name="ada", configure="", write="", read="")
    with pika.BlockingConnection(parameters) as connection, pytest.raises(ChannelClosedByBroker) as refused:
        connection.channel().queue_declare("x")
    assert "refused for user 'ada'" in refused.value.reply_text


def test_the_commands(secured: BrokerProcess, files: Files) -> None:
    server = ("--server", f"{HOST}:{secured.ports['natives']}")
    done = CliRunner().invoke(main, ["vhosts", "list", "--json", "--tls-ca", files.ca, *server])
    assert done.exit_code == 0, done.output
    assert '"name": "/"' in done.output
    done = CliRunner().invoke(main, ["vhosts", "list", "--tls", *server])
    assert done.exit_code == 1
    assert "certificate verify failed" in done.stderr
    assert CliRunner().invoke(main, ["vhosts", "list", "--tls-ca", files.cert + "x", *server]).exit_code == 2


async def _aio_pika(secured: BrokerProcess, context: ssl.SSLContext) -> bytes:
    url = f"amqps://guest:guest@{HOST}:{secured.ports['amqps']}/"
    connection = await aio_pika.connect_robust(url, ssl_context=context)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"hello"), queue.name)
        message = await queue.get()
        return message.body


def test_aio_pika(secured: BrokerProcess, files: Files) -> None:
    assert asyncio.run(_aio_pika(secured, files.context())) == b"hello"


def test_paho(secured: BrokerProcess, files: Files) -> None:
    got, subscribed = threading.Event(), threading.Event()
    payloads: list[bytes] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.tls_set_context(files.context())
    client.on_subscribe = lambda *_: subscribed.set()

    def on_message(_: object, __: object, message: paho.MQTTMessage) -> None:
        payloads.append(message.payload)
        if len(payloads) == 200:
            got.set()

    client.on_message = on_message
    client.connect(HOST, secured.ports["mqtts"])
    client.loop_start()
    try:
        client.subscribe("tls/#", qos=1)
        assert subscribed.wait(10)
        for number in range(200):
            client.publish("tls/x", b"%d" % number, qos=1)
        assert got.wait(10)
    finally:
        client.disconnect()
        client.loop_stop()
    assert payloads == [b"%d" % number for number in range(200)]


def connect_code(port: int, context: ssl.SSLContext, user: str | None = None) -> str:
    """What CONNACK says."""
    answered = threading.Event()
    codes: list[str] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.tls_set_context(context)
    if user is not None:
        client.username_pw_set(user, user)

    def on_connect(*arguments: object) -> None:
        codes.append(str(arguments[3]))
        answered.set()

    client.on_connect = on_connect
    client.connect(HOST, port)
    client.loop_start()
    try:
        assert answered.wait(10)
    finally:
        client.disconnect()
        client.loop_stop()
    return codes[0]


def test_paho_with_a_certificate_is_the_user_named_there(secured: BrokerProcess, files: Files, tmp_path: Path) -> None:
    port, authority = secured.ports["mqtts"], files.authority
    named, bundle = files.context(), str(tmp_path / "bob.pem")
    authority.issue_cert("b@example.org", common_name="bob").private_key_and_cert_chain_pem.write_to_path(bundle)
    named.load_cert_chain(bundle)
    assert connect_code(port, named) == "Bad user name or password"
    with BlockingClient(f"{HOST}:{secured.ports['natives']}", tls=files.context()) as client:
        client.administer("users.add", name="bob", password="not needed")
        assert connect_code(port, named) == "Not authorized"
        client.administer("permissions.set", vhost="/", name="bob", configure="", write="", read="")
        assert connect_code(port, named) == "Success"
        assert connect_code(port, named, user="guest") == "Success"


def test_the_native_clients(secured: BrokerProcess, files: Files) -> None:
    server, context = f"{HOST}:{secured.ports['natives']}", files.context()
    with BlockingProducer(server, tls=context) as producer:
        for number in range(1000):
            producer.send("tls", b"%d" % number)
    with BlockingConsumer(server, tls=context, auto_offset_reset="earliest") as consumer:
        consumer.assign("tls")
        values: list[bytes | None] = []
        while len(values) < 1000:
            values += [record.value for record in consumer.fetch()]
    assert values == [b"%d" % number for number in range(1000)]

    async def topics() -> dict[str, int]:
        async with Client(server, tls=context) as client:
            return await client.list_topics()

    assert trio.run(topics)["tls"] == 1
    options = {"millrace.servers": server, "subscribe": "tls", "millrace.tls.ca": files.ca}
    reader = MillraceDataSource(options).reader(MillraceDataSource(options).schema())
    assert sum(batch.num_rows for one in reader.partitions() for batch in reader.read(one)) == 1000


def test_a_broker_that_is_not_the_one_meant_is_not_trusted(secured: BrokerProcess) -> None:
    client = BlockingClient(f"{HOST}:{secured.ports['natives']}", tls=tls_context(), patience_s=3600)
    with pytest.raises(ConnectionLost, match="certificate verify failed"):
        client.metadata()

    async def topics() -> None:
        async with Client(f"{HOST}:{secured.ports['natives']}", tls=tls_context()) as client:
            await client.list_topics()

    with pytest.raises(ConnectionLost, match="certificate verify failed"):
        trio.run(topics)


def receive_to_end(sock: socket.socket) -> bytes:
    """What the broker says before it closes; that it does so, and not with a reset."""
    received = b""
    sock.settimeout(10)
    while data := sock.recv(4096):
        received += data
    return received


def test_who_speaks_no_tls_on_a_tls_door_is_seen_off(secured: BrokerProcess) -> None:
    for door in ("amqps", "mqtts", "natives"):
        with socket.create_connection((HOST, secured.ports[door])) as sock:
            sock.sendall(b"AMQP\0\0\t\1" * 100)
            answer = receive_to_end(sock)
        assert answer == b""


def test_tls_on_a_plain_door_is_seen_off(secured: BrokerProcess, files: Files) -> None:
    with socket.create_connection((HOST, secured.amqp_port), 10) as sock, pytest.raises(ssl.SSLError):
        files.context().wrap_socket(sock, server_hostname=HOST)
    assert "Traceback" not in secured.log()


def test_certificates_are_replaced_without_a_restart(tmp_path: Path) -> None:
    files = Files(tmp_path)
    doors = ("amqp", "mqtt", "native", "amqps")
    with broker_process(tmp_path / "data", doors=doors, arguments=("--tls-cert", files.cert)) as broker:

        def serial() -> str:
            sock = socket.create_connection((HOST, broker.ports["amqps"]))
            with files.context().wrap_socket(sock, server_hostname=HOST) as secured:
                certificate = secured.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])

        def until_others(before: str) -> str:
            while (now := serial()) == before:
                pass
            return now

        first = serial()
        with pika.BlockingConnection(amqp_parameters(broker, files.context())) as connection:
            files.issue()
            broker.process.send_signal(signal.SIGHUP)
            second = until_others(first)
            Path(files.cert).write_text("half of it")
            broker.process.send_signal(signal.SIGHUP)
            while "certificates not reloaded" not in broker.log():
                pass
            assert serial() == second, "what cannot be used changes nothing"
            connection.channel().queue_declare("", exclusive=True)
    assert "can be used" in broker.log()


def test_changed_files_are_noticed(tmp_path: Path) -> None:
    files = Files(tmp_path)
    certificates = Certificates(Tls(cert=files.cert))
    before = certificates.context
    certificates.check()
    assert certificates.context is before
    files.issue()
    certificates.check()
    assert certificates.context is not before
    after = certificates.context
    shutil.copy(files.ca, files.cert)
    certificates.check()
    assert certificates.context is after


# --- client certificates, with the shell alone ------------------------------------------


async def exchange(tls: Tls, context: ssl.SSLContext) -> tuple[bytes, str | None] | str:
    """What a client gets back that sends "hello", and its name as the adapter sees it; or why it was refused."""
    async with open_door(limits=Limits(close_linger_ms=300), certificates=Certificates(tls)) as door:
        plain = await door.connect()
        client = trio.SSLStream(plain, context, server_hostname=HOST)
        with trio.fail_after(10):
            await client.send_all(b"hello")
            try:
                received = await receive_exactly(client, 5)
            except trio.BrokenResourceError as refused:
                assert door.adapters == []
                return str(refused.__cause__)
            return received, door.names[0]


async def test_a_client_certificate_is_a_name(files: Files) -> None:
    for source, name in (("common_name", "ada"), ("email", "ada@example.org"), ("dns", None)):
        tls = Tls(cert=files.cert, ca=files.ca, verify="required", name=source)  # type: ignore[arg-type]
        assert await exchange(tls, files.context(with_certificate=True)) == (b"hello", name)


async def test_none_is_needed_unless_required(files: Files) -> None:
    assert await exchange(Tls(cert=files.cert, ca=files.ca), files.context()) == (b"hello", None)
    assert await exchange(Tls(cert=files.cert), files.context(with_certificate=True)) == (b"hello", None)
    tls = Tls(cert=files.cert, ca=files.ca, verify="none")
    assert await exchange(tls, files.context(with_certificate=True)) == (b"hello", None)
    refused = await exchange(Tls(cert=files.cert, ca=files.ca, verify="required"), files.context())
    assert "CERTIFICATE_REQUIRED" in refused


async def test_one_of_an_unknown_authority_is_refused_even_where_none_is_needed(files: Files) -> None:
    context = files.context()
    trustme.CA().issue_cert("mallory@example.org", common_name="ada").configure_cert(context)
    assert "UNKNOWN_CA" in await exchange(Tls(cert=files.cert, ca=files.ca), context)


async def test_who_does_not_finish_the_handshake_is_given_up(files: Files) -> None:
    tls = Tls(cert=files.cert, handshake_timeout_ms=50)
    async with open_door(certificates=Certificates(tls)) as door:
        client = await door.connect()
        with trio.fail_after(10):
            assert await client.receive_some() == b""
        assert door.adapters == []
        assert not door.shell.handshakes


async def test_those_who_shake_hands_count(files: Files) -> None:
    tls = Tls(cert=files.cert)
    async with open_door(limits=Limits(connections_max=1), certificates=Certificates(tls)) as door:
        first, other = await door.connect(), await door.connect()
        with trio.fail_after(10):
            assert await other.receive_some() == b""
        assert len(door.shell.handshakes) == 1
        await first.aclose()


async def test_a_reader_that_is_slow_gets_everything_in_order(files: Files) -> None:
    async with open_door(certificates=Certificates(Tls(cert=files.cert))) as door:
        plain = await door.connect(receive_bytes=4096)
        client = trio.SSLStream(plain, files.context(), server_hostname=HOST)
        sent = os.urandom(4_000_000)

        async def send() -> None:
            await client.send_all(sent)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                received = await receive_exactly(client, len(sent), 30)
        assert received == sent
        assert max(map(len, door.adapters[0].reads)) > 16 << 10, "a read is more than a record"
        with trio.fail_after(10):
            await client.aclose()
            while not door.adapters[0].lost:
                await trio.lowlevel.checkpoint()
        assert door.adapters[0].reads[-1] == b""


async def test_records_that_were_changed_on_the_way_end_the_connection(files: Files) -> None:
    async with open_door(certificates=Certificates(Tls(cert=files.cert))) as door:
        plain = await door.connect()
        client = trio.SSLStream(plain, files.context(), server_hostname=HOST)
        with trio.fail_after(10):
            await client.do_handshake()
            await plain.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
            with pytest.raises(trio.BrokenResourceError) as broken:
                await client.receive_some()
        assert "BAD_RECORD_MAC" in str(broken.value.__cause__).upper()


# --- without sockets --------------------------------------------------------------------


def test_a_turn_is_encrypted_in_records_of_16_kib(files: Files) -> None:
    server = TlsLayer(Certificates(Tls(cert=files.cert)).context)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = files.context().wrap_bio(incoming, outgoing, server_hostname=HOST)
    done = False
    while not done:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        done = server.shake(outgoing.read())
        incoming.write(server.output())
    pieces: list[bytes | bytearray | memoryview] = [b"x" * 100] * 1000
    records = server.encrypt(pieces)
    assert 100_000 < len(records) < 100_000 + 7 * 32, "seven records, not a thousand"
    incoming.write(records)
    assert sum(len(client.read(1 << 20)) for _ in range(7)) == 100_000
    for number in range(1000):
        client.write(b"%04d" % number)
    assert server.decrypt(outgoing.read()) == b"".join(b"%04d" % number for number in range(1000))


def test_names_in_certificates() -> None:
    certificate = {
        "subject": (
            (("countryName", "AT"),),
            (("organizationName", "Müller, Söhne + Co"),),
            (("commonName", "a"), ("userId", "#7 ")),
            (("commonName", "b"),),
        ),
        "subjectAltName": (("DNS", "x.example"), ("DNS", "y.example"), ("URI", "spiffe://z")),
    }
    assert name_of(certificate, "common_name") == "a,b"
    assert name_of(certificate, "distinguished_name") == r"CN=b,CN=a+UID=\#7\ ,O=Müller\, Söhne \+ Co,C=AT"
    assert name_of(certificate, "dns") == "x.example"
    assert name_of(certificate, "uri") == "spiffe://z"
    assert name_of(certificate, "email") is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"listen": {"amqps": "127.0.0.1:0"}}, "listen.amqps: needs a certificate: set tls.cert and tls.key"),
        ({"tls": {"verify": "required"}}, "tls.verify: 'required' needs tls.ca"),
        ({"tls": {"name": "nickname"}}, "invalid enum value 'nickname'"),
    ],
)
def test_settings_that_cannot_be(flags: dict[str, dict[str, str]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, {}, flags)


def test_files_that_cannot_be_used(tmp_path: Path, files: Files) -> None:
    (tmp_path / "text").write_text("no certificate")
    for tls, message in (
        (Tls(cert=str(tmp_path / "absent")), "cannot be read: No such file"),
        (Tls(cert=str(tmp_path / "text")), "no certificate and key in PEM"),
        (Tls(cert=files.cert, key=files.client), "KEY_VALUES_MISMATCH"),
        (Tls(cert=files.cert, ca=str(tmp_path / "text")), "no certificate and key in PEM"),
    ):
        with pytest.raises(StartError, match=message):
            Certificates(tls)
