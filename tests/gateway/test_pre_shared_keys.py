"""TLS by pre-shared keys, with real clients where Python has it (3.13 and newer), and how it is refused elsewhere."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
import trustme
from paho.mqtt import publish, subscribe

from gateway.config import ConfigError, PreSharedKeysConfig, Tls, load_config
from gateway.errors import StartError
from gateway.pre_shared_keys import FILE_BYTES_MAX, PreSharedKeys, parse_keys
from tests.support import HOST, BrokerProcess, broker_process

needs_psk = pytest.mark.skipif(not getattr(ssl, "HAS_PSK", False), reason="Python's ssl has PSK from 3.13 on")
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
ADA, BOB = bytes(range(16)), bytes(range(16, 48))
CONFIG = """
[psk]
doors = ["mqtts", "amqps"]
file = "{file}"
hint = "which"
[tls]
cert = "{cert}"
[users]
guest = "guest"
ada = "secret"
"""


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"ada:00ff\n", {"ada": b"\0\xff"}),
        (b"# keys\n\n  \nada:00ff\r\nb c\xc3\xa4:AB", {"ada": b"\0\xff", "b cä": b"\xab"}),
        (b"a:" + b"00" * 64, {"a": bytes(64)}),
        (b"a" * 128 + b":00", {"a" * 128: b"\0"}),
    ],
)
def test_a_file_of_keys(data: bytes, keys: dict[str, bytes]) -> None:
    assert parse_keys(data) == keys


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "there is no key in it"),
        (b"# ada:00\n", "there is no key in it"),
        (b"ada:00\nbob", "line 2: not IDENTITY:KEY"),
        (b"ada:0", "line 1: not IDENTITY:KEY with a key in hexadecimal"),
        (b"ada:x0", "line 1: not IDENTITY:KEY with a key in hexadecimal"),
        (b"ada:", "line 1: not IDENTITY:KEY with an identity of 1 to 128 bytes and a key of 1 to 64"),
        (b":00", "line 1: not IDENTITY:KEY with an identity"),
        (b"a:" + b"00" * 65, "and a key of 1 to 64"),
        (b"a" * 129 + b":00", "an identity of 1 to 128 bytes"),
        (b"\xff:00", "line 1: not IDENTITY:KEY"),
        (b"ada:00\nada:01", "line 2: 'ada' is there twice"),
        (b"#" * (FILE_BYTES_MAX + 1), f"larger than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_file_of_keys(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_keys(data)


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ('doors = ["mqtt"]\nfile = "f"', "psk.doors: 'mqtt' is no door that speaks TLS"),
        ('doors = ["mqtts"]', "psk.file: is missing"),
    ],
)
def test_what_cannot_be_configured(toml: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "millrace.toml").write_text(f"[psk]\n{toml}\n")
    with pytest.raises(ConfigError, match=why):
        load_config(tmp_path / "millrace.toml", {})


def test_a_door_with_keys_needs_no_certificate_and_the_others_do(tmp_path: Path) -> None:
    file = tmp_path / "millrace.toml"
    psk = '[psk]\ndoors = ["mqtts"]\nfile = "f"\n'
    file.write_text(f'{psk}[listen]\nmqtts = "127.0.0.1:0"\n')
    assert load_config(file, {}).psk.doors == ("mqtts",)
    file.write_text(f'{psk}[listen]\nmqtts = "127.0.0.1:0"\namqps = "127.0.0.1:0"\n')
    with pytest.raises(ConfigError, match="amqps: needs a certificate"):
        load_config(file, {})


def test_a_python_that_cannot_do_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "HAS_PSK", False, raising=False)
    with pytest.raises(StartError, match="psk: TLS with pre-shared keys needs Python"):
        PreSharedKeys(PreSharedKeysConfig(doors=("mqtts",), file="f"), Tls())


def client_context(
    identity: str, key: bytes, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, hints: list[Any] | None = None
) -> ssl.SSLContext:
    context: Any = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("PSK")

    def answer(hint: str | None) -> tuple[str, bytes]:
        if hints is not None:
            hints.append(hint)
        return identity, key

    context.set_psk_client_callback(answer)
    found: ssl.SSLContext = context
    return found


def write_keys(path: Path, **keys: bytes) -> None:
    path.write_text("".join(f"{identity}:{key.hex()}\n" for identity, key in keys.items()))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("psk")


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[BrokerProcess]:
    write_keys(directory / "keys", ada=ADA, bob=BOB)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(directory / "cert.pem"))
    (directory / "millrace.toml").write_text(CONFIG.format(file=directory / "keys", cert=directory / "cert.pem"))
    arguments = ("--config", str(directory / "millrace.toml"))
    with broker_process(
        directory / "data", doors=("amqp", "native", "amqps", "mqtts", "natives"), arguments=arguments
    ) as process:
        yield process


@needs_psk
@pytest.mark.parametrize("version", VERSIONS)
def test_devices_with_a_key_are_its_identity(broker: BrokerProcess, version: ssl.TLSVersion) -> None:
    secured: Any = {"tls": client_context("ada", ADA, version), "hostname": HOST, "port": broker.ports["mqtts"]}
    topic = f"from/{version.name}"
    publish.single(topic, b"hello", qos=1, retain=True, **secured)
    assert subscribe.simple(topic, **secured).payload == b"hello"  # type: ignore[union-attr]
    # Bob has a key, and there is no user of that name.
    codes: list[Any] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.tls_set_context(client_context("bob", BOB, version))
    client.on_connect = lambda client, data, flags, code, properties: (codes.append(code), client.disconnect())
    client.connect(HOST, broker.ports["mqtts"])
    client.loop_forever()
    assert codes[0] == "Bad user name or password"


@needs_psk
@pytest.mark.parametrize("version", VERSIONS)
def test_pika_logs_in_by_key(broker: BrokerProcess, version: ssl.TLSVersion) -> None:
    context = client_context("ada", ADA, version)
    credentials: Any = pika.credentials.ExternalCredentials()
    parameters = pika.ConnectionParameters(
        HOST, broker.ports["amqps"], ssl_options=pika.SSLOptions(context), credentials=credentials
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, b"x" * 100_000)
        assert channel.basic_get(queue)[2] == b"x" * 100_000


@needs_psk
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("identity", "key", "why"),
    [("ada", BOB, ""), ("eve", ADA, "there is no key of 'eve'"), ("ä", ADA, "there is no key of 'ä'")],
)
def test_who_has_no_key_gets_no_connection(
    broker: BrokerProcess, version: ssl.TLSVersion, identity: str, key: bytes, why: str
) -> None:
    already = broker.log().count("TLS handshake failed")
    with (
        socket.create_connection((HOST, broker.ports["mqtts"])) as sock,
        pytest.raises(ssl.SSLError),
        client_context(identity, key, version).wrap_socket(sock) as secured,
    ):
        secured.recv(1)  # with TLS 1.3 a client hears of it only now
    while broker.log().count("TLS handshake failed") == already:
        pass
    assert why in broker.log()


@needs_psk
def test_nothing_is_resumed_and_clients_are_told_which_key_is_meant(broker: BrokerProcess) -> None:
    hints: list[Any] = []
    context = client_context("ada", ADA, ssl.TLSVersion.TLSv1_2, hints)
    session = None
    for _ in range(2):
        with (
            socket.create_connection((HOST, broker.ports["mqtts"])) as sock,
            context.wrap_socket(sock, session=session) as secured,
        ):
            assert not secured.session_reused
            session = secured.session
    assert hints == ["which", "which"]


@needs_psk
def test_doors_are_of_one_kind(broker: BrokerProcess, directory: Path) -> None:
    verifying = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    with (
        socket.create_connection((HOST, broker.ports["natives"])) as sock,
        verifying.wrap_socket(sock, server_hostname=HOST) as secured,
    ):
        assert secured.version() == "TLSv1.3"
    for context, door in ((verifying, "mqtts"), (client_context("ada", ADA), "natives")):
        with (
            socket.create_connection((HOST, broker.ports[door])) as sock,
            pytest.raises(ssl.SSLError),
            context.wrap_socket(sock, server_hostname=HOST) as secured,
        ):
            secured.recv(1)


@needs_psk
def test_keys_are_replaced_without_a_restart(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    write_keys(keys, ada=ADA)
    (tmp_path / "millrace.toml").write_text(
        f'[psk]\ndoors = ["mqtts"]\nfile = "{keys}"\n[users]\nguest = "guest"\nada = "secret"\n'
    )
    arguments = ("--config", str(tmp_path / "millrace.toml"))
    with broker_process(tmp_path / "data", doors=("mqtt", "amqp", "native", "mqtts"), arguments=arguments) as broker:

        def works(key: bytes) -> bool:
            secured: Any = {"tls": client_context("ada", key), "hostname": HOST, "port": broker.ports["mqtts"]}
            try:
                publish.single("t", b"x", qos=1, **secured)
            except ssl.SSLError:
                return False
            return True

        assert works(ADA)
        for text, event in ((f"ada:{BOB.hex()}", "keys reloaded"), ("ada:half of i", "keys not reloaded")):
            keys.write_text(text)
            broker.process.send_signal(signal.SIGHUP)
            while event not in broker.log():
                pass
            assert works(BOB)
            assert not works(ADA)
    assert "line 1: not IDENTITY:KEY" in broker.log()
