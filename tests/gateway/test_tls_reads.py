"""What reads of TLS bring besides plaintext: its end, and what TLS itself is asked for."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import trio
import trustme
from structlog.testing import capture_logs

from gateway.config import Tls
from gateway.tls import Certificates, TlsLayer, TlsReader
from tests.gateway.shell import Door, EchoAdapter, open_door, until

HOST = "localhost"


class Files:
    """A certificate for the broker, and what trusts it."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.cert = str(directory / "cert.pem")
        authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(self.cert)
        self.context = ssl.create_default_context()
        authority.configure_trust(self.context)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


class Client:
    """Its side of TLS, without a socket: it is up to a test when which bytes are sent."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=HOST)

    def shake(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    async def connect(self, door: Door) -> trio.SocketStream:
        stream = await door.connect()
        with trio.fail_after(10):
            while not self.shake():
                await stream.send_all(self.outgoing.read())
                self.incoming.write(await stream.receive_some(65536))
            await stream.send_all(self.outgoing.read())
        return stream


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_an_end_that_comes_with_the_last_bytes_is_seen_though_the_peer_waits_for_ours(
    files: Files, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=ca_of(files.context))
    context.minimum_version = context.maximum_version = version
    async with open_door(certificates=Certificates(Tls(cert=files.cert))) as door:
        client = Client(context)
        stream = await client.connect(door)
        adapter = await door.adapter()
        client.tls.write(b"last words")
        with contextlib.suppress(ssl.SSLWantReadError):
            client.tls.unwrap()  # it says that it ends, and waits
        await stream.send_all(client.outgoing.read())
        await until(lambda: adapter.lost)
        assert b"".join(adapter.reads) == b"last words"
        assert adapter.reads[-1] == b""
        with trio.fail_after(10):
            while data := await stream.receive_some(65536):
                client.incoming.write(data)
        assert client.tls.read(100) == b"last words"
        client.tls.unwrap()


def ca_of(context: ssl.SSLContext) -> bytes:
    """What a context trusts, in DER."""
    return context.get_ca_certs(binary_form=True)[-1]


async def test_what_is_wrong_with_a_handshake_is_said_though_the_peer_does_not_close(files: Files) -> None:
    tls = Tls(cert=files.cert, handshake_timeout_ms=50)
    async with open_door(certificates=Certificates(tls)) as door:
        with capture_logs() as said:
            stream = await door.connect()
            await stream.send_all(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
            await until(lambda: said)
    assert said[0]["reason"] == "WRONG_VERSION_NUMBER"


class Silent(EchoAdapter):
    async def handle(self, data: bytes) -> None:
        self.reads.append(data)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
@pytest.mark.parametrize(
    ("version", "asks", "answer"),
    [("-tls1_3", b"K\n", b"KeyUpdate"), ("-tls1_2", b"R\n", b"no_renegotiation")],
    ids=["keys", "renegotiation"],
)
async def test_what_tls_is_asked_for_is_answered_at_once(
    files: Files, version: str, asks: bytes, answer: bytes
) -> None:
    async with open_door(Silent, certificates=Certificates(Tls(cert=files.cert))) as door:
        command = ["openssl", "s_client", version, "-msg", "-connect", f"127.0.0.1:{door.port}"]
        async with trio.open_nursery() as nursery:
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                await door.adapter()
                seen = b""
                with trio.fail_after(20):
                    while b"Verify return code" not in seen:
                        seen += await process.stdout.receive_some(65536)
                    while not any(b"<<<" in line and answer in line for line in seen.splitlines()):
                        with contextlib.suppress(trio.BrokenResourceError):
                            await process.stdin.send_all(asks)  # it asks for new keys when it is told so once more
                        with trio.move_on_after(0.5):
                            seen += await process.stdout.receive_some(65536)
            finally:
                process.kill()
                nursery.cancel_scope.cancel()


class Tap:
    """Stands for a socket that always has more of the same stream."""

    def __init__(self, stream: bytes) -> None:
        self.stream = stream
        self.taken = 0

    def recv(self, size: int) -> bytes:
        self.taken += size
        return self.stream[self.taken - size : self.taken]


def test_a_read_ends_though_there_is_hardly_any_plaintext_in_it(files: Files) -> None:
    server, client = TlsLayer(Certificates(Tls(cert=files.cert)).context), Client(files.context)
    done = False
    while not done:
        client.shake()
        done = server.shake(client.outgoing.read())
        client.incoming.write(server.output())
    for _ in range(10_000):
        client.tls.write(b"x")
    tap = Tap(client.outgoing.read())
    data = TlsReader(tap, server).recv(4096)  # type: ignore[arg-type]
    assert set(data) == {ord("x")}
    assert tap.taken == 4 * 4096
