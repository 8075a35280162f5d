"""TLS between brokers: certificates instead of a secret, and what those are told who have none, or another's."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import trio
import trustme
from structlog.testing import capture_logs

from gateway.config import Config, ConfigError, PeerTls, load_config
from gateway.etcd_process import EtcdProcess
from millrace import Client, Producer
from tests.gateway.test_member import Running, config, refused, until
from tests.support.replica_node import bytes_of

HOST = "127.0.0.1"


class Authority:
    """A CA of a cluster's own, and certificates of it."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._ca = trustme.CA()
        self.ca = str(directory / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, host: str = HOST, *, ends: datetime | None = None) -> str:
        path = str(self._directory / f"{name}.pem")
        self._ca.issue_cert(host, not_after=ends).private_key_and_cert_chain_pem.write_to_path(path)
        return path


def member(etcd: EtcdProcess, directory: Path, number: int, tls: PeerTls, *, secret: str = "") -> Config:
    found = config(etcd.address, directory, directory.name, number, secret=secret, peer="0.0.0.0:0", advertise=HOST)
    return msgspec.structs.replace(found, peer_tls=tls)


def serial(port: int, shown: str, ca: str) -> str:
    """Of the certificate that a broker shows to one who shows his own."""
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(shown)
    with socket.create_connection((HOST, port), 10) as sock, context.wrap_socket(sock, server_hostname=HOST) as tls:
        certificate = tls.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def knock(port: int, context: ssl.SSLContext | None) -> bytes:
    """What a stranger gets to see."""
    with socket.create_connection((HOST, port), 10) as sock, suppress(OSError):
        sock.settimeout(10)
        stream: socket.socket = sock if context is None else context.wrap_socket(sock)
        stream.sendall(b"\0\0\0\5hello")
        return stream.recv(1000)
    return b""


async def test_brokers_with_certificates_are_a_cluster_without_a_secret(etcd: EtcdProcess, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = {
        number: member(etcd, tmp_path, number, PeerTls(cert=authority.issue(str(number)), ca=authority.ca))
        for number in (1, 2, 3)
    }
    async with trio.open_nursery() as nursery:
        brokers = {number: Running(found) for number, found in settings.items()}
        for broker in brokers.values():
            await nursery.start(broker.run)
        await until(lambda: all(len(broker.cluster.replicas.leaders) == 2 for broker in brokers.values()))
        servers = [f"{HOST}:{broker.server.ports['native']}" for broker in brokers.values()]
        async with Client(servers) as client, Producer(servers) as producer:
            await client.create_topic("t", config={"min.insync.replicas": "3"})
            with trio.fail_after(30):
                for number in range(50):
                    await (await producer.send("t", b"%d" % number * 20_000))
        logs = [broker.server.broker.topics["t"].partitions[0].log for broker in brokers.values()]
        await until(lambda: all(log.high_watermark == 50 for log in logs))
        assert len({bytes_of(log) for log in logs}) == 1  # type: ignore[arg-type]

        # New files are used from the next link on; those that stand live on.
        port = brokers[1].server.ports["peer"]
        shown = authority.issue("tool")
        before = await trio.to_thread.run_sync(serial, port, shown, authority.ca)
        authority.issue("1")
        brokers[1].server.reload()
        assert await trio.to_thread.run_sync(serial, port, shown, authority.ca) != before
        assert len(brokers[1].cluster.replicas.leaders) == 2

        # Strangers are told apart by one line each.
        stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
        with capture_logs() as said:
            for context in (None, None, stranger, stranger):
                heard = await trio.to_thread.run_sync(knock, port, context)
                assert b"hello" not in heard
            await until(lambda: sum(line["event"] == "a peer was refused" for line in said) >= 2)
        reasons = [line["reason"].partition("TLS: ")[2] for line in said if line["event"] == "a peer was refused"]
        assert len(reasons) == 2
        assert reasons[1] == "PEER_DID_NOT_RETURN_A_CERTIFICATE"

        # Who cannot be one of them does not start.
        other = Authority(tmp_path, "other")
        wrong = member(etcd, tmp_path, 4, PeerTls(cert=other.issue("wrong"), ca=authority.ca))
        text = await refused(wrong)
        assert "takes no link: TLS: " in text
        assert "UNKNOWN_CA" in text
        distrusting = member(etcd, tmp_path, 4, PeerTls(cert=authority.issue("4"), ca=other.ca))
        assert "takes no link: TLS: CERTIFICATE_VERIFY_FAILED" in await refused(distrusting)
        plain = member(etcd, tmp_path, 4, PeerTls(), secret="s")
        assert "it speaks TLS, and this one does not (peer_tls)" in await refused(plain)
        elsewhere = PeerTls(cert=authority.issue("5", "broker-5.example.org"), ca=authority.ca)
        text = await refused(member(etcd, tmp_path, 5, elsewhere))
        assert f"not made out for {HOST}, where other brokers dial this one" in text

        # Where all are told not to look whom a certificate is for, it may be for anybody; another broker looks here.
        unlooked = Running(member(etcd, tmp_path, 5, msgspec.structs.replace(elsewhere, verify_hostname=False)))
        with capture_logs() as said:
            await nursery.start(unlooked.run)
            await until(
                lambda: any("Hostname mismatch" in str(line) or "IP address mismatch" in str(line) for line in said)
            )
        await unlooked.stop()

        # One that runs stays with the files that it had.
        before = await trio.to_thread.run_sync(serial, port, shown, authority.ca)
        authority.issue("1", "broker-1.example.org")
        with capture_logs() as said:
            brokers[1].server.reload()
        assert "not made out for" in str(said)
        assert await trio.to_thread.run_sync(serial, port, shown, authority.ca) == before
        for broker in brokers.values():
            broker.scope.set()


async def test_a_broker_starts_although_another_ones_certificate_has_expired(etcd: EtcdProcess, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = {
        number: member(etcd, tmp_path, number, PeerTls(cert=authority.issue(str(number)), ca=authority.ca))
        for number in (1, 2, 3)
    }
    async with trio.open_nursery() as nursery:
        brokers = {number: Running(found) for number, found in settings.items()}
        for broker in brokers.values():
            await nursery.start(broker.run)
        authority.issue("3", ends=datetime(2020, 1, 1, tzinfo=UTC))
        brokers[3].server.reload()
        await brokers[1].stop()
        brokers[1] = Running(settings[1])
        with capture_logs() as said:
            await nursery.start(brokers[1].run)
        assert [line["reason"] for line in said if line["event"] == "a broker has no valid certificate"] == [
            f"broker 3 at {HOST}:{brokers[3].server.ports['peer']} takes no link: TLS: CERTIFICATE_VERIFY_FAILED: "
            "certificate has expired"
        ]
        await until(lambda: 2 in brokers[1].cluster.replicas.leaders)
        # That of which the certificate has expired is refused by the others, or finds none that it may believe.
        await brokers[3].stop()
        told = await refused(settings[3])
        assert "SSLV3_ALERT_CERTIFICATE_EXPIRED: the other side does not accept the certificate of this one" in told
        for number in (1, 2):
            brokers[number].scope.set()


async def test_a_secret_counts_beside_certificates(etcd: EtcdProcess, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = PeerTls(cert=authority.issue("any"), ca=authority.ca)
    async with trio.open_nursery() as nursery:
        first = Running(member(etcd, tmp_path, 1, tls, secret="right"))
        await nursery.start(first.run)
        text = await refused(member(etcd, tmp_path, 2, tls, secret="wrong"))
        assert "the peer has another peer.secret than broker 1" in text
        second = Running(member(etcd, tmp_path, 2, tls, secret="right"))
        await nursery.start(second.run)
        await until(lambda: 2 in first.cluster.replicas.followers and 1 in second.cluster.replicas.followers)
        await second.stop()
        await first.stop()


async def test_a_broker_that_speaks_tls_finds_out_that_others_do_not(etcd: EtcdProcess, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = PeerTls(cert=authority.issue("any"), ca=authority.ca)
    async with trio.open_nursery() as nursery:
        first = Running(member(etcd, tmp_path, 1, PeerTls(), secret="s"))
        await nursery.start(first.run)
        assert "takes no link: TLS: " in await refused(member(etcd, tmp_path, 2, tls, secret="s"))
        await first.stop()


def test_half_of_what_is_needed_is_refused(tmp_path: Path) -> None:
    for given, missing in (("cert", "ca"), ("ca", "cert")):
        with pytest.raises(ConfigError, match=f"peer_tls.{missing}: is missing"):
            load_config(environment={}, flags={"peer_tls": {given: "x.pem"}})


async def test_files_that_cannot_be_used_stop_the_start(etcd: EtcdProcess, tmp_path: Path) -> None:
    tls = PeerTls(cert=str(tmp_path / "none.pem"), ca=str(tmp_path / "none.pem"))
    assert "peer_tls: cert" in await refused(member(etcd, tmp_path, 1, tls))
    bare = member(etcd, tmp_path, 1, PeerTls())
    assert "set peer.secret (MILLRACE_PEER_SECRET), or peer_tls.cert and .ca" in await refused(bare)
