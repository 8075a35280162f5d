"""Brokers of one process join a real etcd: who is let in, and the one line that others get."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import trio

from core_log.files import OsFiles
from gateway.cluster import ClusterConfig, Membership, advertised, membership
from gateway.config import Config, ConfigError, Listen
from gateway.errors import StartError
from gateway.etcd import HttpTransport
from gateway.etcd_process import EtcdProcess, running_etcd
from gateway.listener import open_listener
from gateway.server import serve
from tests.gateway.test_member import LEASE_S


def config(etcd: str, name: str, broker_id: int, **also: Any) -> ClusterConfig:
    return ClusterConfig(name=name, broker_id=broker_id, etcd=etcd, **{"lease_s": LEASE_S} | also)


def at(broker_id: int) -> dict[str, str]:
    return {"peer": f"127.0.0.1:{9000 + broker_id}"}


async def until(condition: Any) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.01)


async def test_brokers_join_leave_and_come_back(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        found: list[Membership] = []
        for number in (1, 2, 3):
            files = OsFiles(str(tmp_path / str(number)))
            files.make_directory("")
            part = membership(config(etcd.address, "joining", number), files, at(number))
            found.append(await stack.enter_async_context(part))
        await until(lambda: all(len(one.members.brokers) == 3 for one in found))
        await until(lambda: sum(one.candidate.epoch > 0 for one in found) == 1)
        assert found[0].candidate.controller == 1
        files = OsFiles(str(tmp_path / "other"))
        files.make_directory("")
        with pytest.raises(StartError, match="broker id 2 of cluster 'joining' belongs to another data directory"):
            async with membership(config(etcd.address, "joining", 2), files, at(2)):
                pass
        with pytest.raises(StartError, match="the data directory belongs to cluster 'joining', not to 'else'"):
            async with membership(config(etcd.address, "else", 2), OsFiles(str(tmp_path / "2")), at(2)):
                pass
    async with membership(config(etcd.address, "joining", 2), OsFiles(str(tmp_path / "2")), at(2)) as again:
        assert list(again.members.brokers) == [2], "who left is not there any more"
        await until(lambda: again.candidate.epoch)


async def test_a_lease_lasts_as_long_as_is_set(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with membership(config(etcd.address, "leased", 1, lease_s=7), OsFiles(str(tmp_path)), at(1)) as part:
        transport = HttpTransport([etcd.address])
        found = await transport.call(0, "/v3/lease/timetolive", {"ID": str(part.store.lease_id)}, {})
        await transport.aclose()
        assert found["grantedTTL"] == "7"


async def test_who_has_a_user_joins_while_etcd_has_none(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with membership(config(etcd.address, "users", 1, etcd_user="u"), OsFiles(str(tmp_path)), at(1)) as part:
        assert part.store.lease_id


async def test_an_etcd_out_of_reach_is_one_line(
    etcd: EtcdProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core_log.metadata.etcd_store._TIMEOUT_S", 0.3)
    files = OsFiles(str(tmp_path))
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(StartError) as caught:
            async with membership(config(address, "c", 1), files, at(1)):
                pass
    assert str(caught.value).startswith(f"cluster 'c': etcd cannot be read: etcd at {address} cannot be reached")
    assert "\n" not in str(caught.value)
    assert files.list("") == []
    with pytest.raises(
        StartError, match=f"the certificates for etcd cannot be used: ca {tmp_path / 'no'}: cannot be read"
    ):
        async with membership(config(etcd.address, "c", 1, etcd_ca=str(tmp_path / "no")), files, at(1)):
            pass
    for wrong in ("nowhere", "off", ""):
        with pytest.raises(ConfigError, match=r"cluster\.etcd"):
            async with membership(config(wrong, "c", 1), files, at(1)):
                pass


async def test_a_member_outlives_an_etcd_that_was_away(tmp_path: Path) -> None:
    async with running_etcd(tmp_path / "etcd", flush=False) as own:
        files = OsFiles(str(tmp_path / "one"))
        files.make_directory("")
        async with membership(config(own.address, "c", 1), files, at(1)) as one:
            epoch = one.members.epoch
            own.process.send_signal(19)  # SIGSTOP
            await trio.sleep(1)
            own.process.send_signal(18)  # SIGCONT
            await one.store.change([], [(b"k", b"")], lease=True)
            assert one.members.epoch == epoch
            assert one.store.lease_deadline > trio.current_time()


async def test_a_members_directory_is_not_served_alone(etcd: EtcdProcess, tmp_path: Path) -> None:
    files = OsFiles(str(tmp_path))
    async with membership(config(etcd.address, "alone", 4), files, at(4)):
        pass
    alone = Config(data_dir=str(tmp_path), listen=Listen(amqp="127.0.0.1:0", mqtt="off", native="off"))
    with pytest.raises(BaseException) as caught:
        async with serve(alone):
            pass
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StartError)
    told = "belongs to broker 4 of cluster 'alone' and cannot be served alone: serve it with --cluster alone, "
    assert told in str(error)


async def test_doors_are_advertised_as_their_settings_say() -> None:
    with (
        closing(open_listener("kafka", "127.0.0.1", 0)) as kafka,
        closing(open_listener("amqp", "127.0.0.1", 0)) as amqp,
    ):
        port = amqp.address.rpartition(":")[2]
        found = advertised(
            ClusterConfig(advertise="broker-1"), [kafka, amqp], trusted=True, said={"kafka": ("outside", 19092)}
        )
        assert found == {"kafka": "outside:19092", "amqp": f"broker-1:{port}"}
        only_port = advertised(ClusterConfig(), [kafka, amqp], trusted=True, said={"kafka": ("", 19092)})
        assert only_port == {"kafka": "127.0.0.1:19092", "amqp": f"127.0.0.1:{port}"}
