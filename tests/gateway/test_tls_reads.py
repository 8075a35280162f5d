"""What reads of TLS bring besides plaintext: its end."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest
import trio
import trustme

from gateway.config import Tls
from gateway.tls import Certificates
from tests.gateway.shell import Door, open_door, until

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
