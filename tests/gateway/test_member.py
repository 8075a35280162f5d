"""Brokers that are served as members of a cluster, with a real etcd: in one process, and in processes of their own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from core_log import high_watermarks
from core_log.files import OsFiles
from core_log.log_config import LogConfig
from core_log.replica_log import ReplicaLog
from core_log.replication.state import LogState, encode, log_key
from gateway.config import ClusterConfig, Config, ConfigError, Limits, Listen, load_config
from gateway.errors import StartError
from gateway.etcd_process import EtcdProcess
from gateway.server import Server, serve
from protocols.peer.config import PeerConfig
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.records import directory_key
from tests.support.replica_node import batch_of

ANY = "127.0.0.1:0"
LOG = "some-log"
LEASE_S = 6
"""The clock of a real etcd goes on while a machine stands still: it is to forget nobody who only did that."""


def config(etcd: str, directory: Path, name: str, broker_id: int, **also: Any) -> Config:
    peer = PeerConfig(secret=also.pop("secret", "s"), redial_ms_min=5, redial_ms_max=100)
    return Config(
        data_dir=str(directory / str(broker_id)),
        listen=Listen(amqp=ANY, mqtt="off", native=ANY),
        limits=Limits(close_linger_ms=200),
        cluster=ClusterConfig(name=name, broker_id=broker_id, etcd=etcd, **{"peer": ANY, "lease_s": LEASE_S} | also),
        peer=peer,
    )


async def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


class Running:
    """A broker that can be stopped from outside."""

    server: Server

    def __init__(self, config: Config) -> None:
        self.config = config
        self.scope = trio.Event()
        self.over = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        async with serve(self.config) as self.server:
            task_status.started()
            await self.scope.wait()
        self.over.set()

    async def stop(self) -> None:
        self.scope.set()
        with trio.fail_after(15):
            await self.over.wait()

    @property
    def cluster(self) -> Cluster:
        found = self.server.broker.cluster
        assert found is not None
        return found


@asynccontextmanager
async def three(
    etcd: EtcdProcess, directory: Path, name: str, **also: Any
) -> AsyncIterator[tuple[trio.Nursery, dict[int, Running]]]:
    async with trio.open_nursery() as nursery:
        brokers = {number: Running(config(etcd.address, directory, name, number, **also)) for number in (1, 2, 3)}
        async with trio.open_nursery() as starting:
            for broker in brokers.values():
                starting.start_soon(nursery.start, broker.run)
        await until(lambda: all(len(broker.cluster.replicas.leaders) == 2 for broker in brokers.values()))
        yield nursery, brokers
        for broker in brokers.values():
            broker.scope.set()


def refusal(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StartError), repr(error)
    assert "\n" not in str(error)
    return str(error)


async def refused(settings: Config) -> str:
    with pytest.raises(BaseException) as caught:
        async with serve(settings):
            pass
    return refusal(caught.value)


async def test_three_brokers_replicate_a_log_and_one_that_stops_hands_over(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "serving") as (nursery, brokers):
        logs: dict[int, ReplicaLog] = {}
        for number, broker in brokers.items():
            logs[number] = broker.cluster.open_log(LOG, LOG, LogConfig())
        members = brokers[1].cluster.members.brokers
        isr = tuple((number, members[number].epoch) for number in (1, 2, 3))
        state = LogState(replicas=(1, 2, 3), isr=isr, min_insync=2)
        await brokers[2].cluster.store.change([], [(log_key(b"", LOG), encode(state))])
        await until(lambda: brokers[1].cluster.may_append(LOG))

        async def produce(number: int) -> int:
            logs[number].append(batch_of(0, 10, 10))
            logs[number].request_sync()
            brokers[number].server.broker.end_turn()
            with trio.fail_after(30):
                await logs[number].wait_committed(logs[number].log_end_offset)
            return logs[number].log_end_offset

        assert await produce(1) == 10
        began = trio.current_time()
        await brokers[1].stop()
        assert brokers[2].cluster.leader_of(LOG) == (2, 2), "it handed over before its lease was gone"
        await until(lambda: brokers[2].cluster.may_append(LOG))
        assert trio.current_time() - began < 8
        assert high_watermarks.load(OsFiles(brokers[1].config.data_dir), "")[LOG] == 10
        assert 1 not in brokers[2].cluster.members.brokers
        assert await produce(2) == 20
        brokers[1] = Running(brokers[1].config)
        await nursery.start(brokers[1].run)
        log = brokers[1].cluster.open_log(LOG, LOG, LogConfig())
        await until(lambda: log.high_watermark == 20)
        await until(lambda: len(brokers[2].cluster.state_of(LOG).isr) == 3)  # type: ignore[union-attr]


async def test_who_does_not_fit_gets_one_line(etcd: EtcdProcess, tmp_path: Path) -> None:
    one = config(etcd.address, tmp_path, "fitting", 1)
    async with serve(one) as server:
        where = {listener.door: listener.address for listener in server.listeners}
        told = server.broker.cluster.members.brokers[1].record.addresses  # type: ignore[union-attr]
        assert told == where
        assert set(where) == {"amqp", "native", "peer"}
        wrong = config(etcd.address, tmp_path, "fitting", 2, secret="other")
        assert "the peer has another peer.secret than broker 1" in await refused(wrong)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gateway.peers.wall_clock_ms", iter((10**12, 10**12 + 60_000)).__next__)
            apart = "the clock of broker 1 is 60 s "  # ahead or behind: either may look first
            assert apart in await refused(config(etcd.address, tmp_path, "fitting", 2))
        store = server.broker.cluster.store  # type: ignore[union-attr]
        assert store.get(directory_key(2)) is None, "who is refused has changed nothing"
        assert not (tmp_path / "2" / "cluster.json").exists()
        wrong = config(etcd.address, tmp_path, "fitting", 2, secret="")
        assert "broker 1 has a peer.secret, its peer has none" in await refused(wrong)
        other = config(etcd.address, tmp_path / "other", "fitting", 1)
        assert "belongs to another data directory" in await refused(other)
        assert list(server.broker.cluster.members.brokers) == [1]  # type: ignore[union-attr]
        single = config(etcd.address, tmp_path / "single", "fitting", 3)
    single.cluster = ClusterConfig()
    async with serve(single):
        pass
    single.cluster = config(etcd.address, tmp_path, "fitting", 3).cluster
    assert "holds the data of a single broker" in await refused(single)
    open_to_all = config(etcd.address, tmp_path, "fitting", 4, secret="", peer="0.0.0.0:0")
    assert "which needs a secret that all brokers share" in await refused(open_to_all)
    one.cluster.name = "else"
    assert "belongs to cluster 'fitting', not to 'else'" in await refused(one)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"broker_id": 1}, "cluster.name: is missing"),
        ({"import_data": True}, "cluster.name: is missing"),
        ({"name": "c", "etcd": "a:1"}, "cluster.broker_id: is missing"),
        ({"name": "c", "broker_id": 1}, "cluster.etcd: is missing"),
        ({"name": "c", "broker_id": 1, "etcd": "off"}, "cluster.etcd: a cluster needs etcd"),
        ({"name": "c", "broker_id": 1, "etcd": "a:1", "peer": "off"}, "cluster.peer: other brokers have to reach"),
        ({"name": "c d", "broker_id": 1, "etcd": "a:1"}, "cluster.name: expected str matching"),
        ({"name": "c", "broker_id": 1, "etcd": "a:1", "etcd_cert": "c"}, "cluster.etcd_cert: needs cluster.etcd_ca"),
        ({"name": "c", "broker_id": 1, "etcd": "a:1", "etcd_key": "k"}, "cluster.etcd_key: needs cluster.etcd_cert"),
        ({"name": "c", "broker_id": 1, "etcd": "a:1", "etcd_password": "p"}, "etcd_password: needs cluster.etcd_user"),
    ],
)
def test_settings_that_do_not_make_a_member(flags: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_config(environment={}, flags={"cluster": flags})


async def test_processes_join_and_leave(etcd: EtcdProcess, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        free = taken.getsockname()[1]

    def start(number: int, *also: str, etcd_address: str = etcd.address) -> subprocess.Popen[bytes]:
        arguments = [
            "--data-dir", str(tmp_path / str(number)), "--native", ANY, "--amqp", "off", "--mqtt", "off",
            "--cluster", "processes", "--broker-id", str(number), "--etcd", etcd_address, "--peer", ANY, *also,
        ]  # fmt: skip
        command = [sys.executable, "-m", "gateway", "serve", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    async with AsyncExitStack() as stack:
        nowhere = start(3, etcd_address=f"127.0.0.1:{free}")
        stack.callback(nowhere.kill)
        processes = [start(number) for number in (1, 2)]
        for process in processes:
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            lines = []
            with trio.fail_after(20):
                while not lines or lines[-1] != b"ready\n":
                    lines.append(await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True))
                    assert lines[-1], process.communicate()
            assert [line.split()[0] for line in lines] == [b"native", b"peer", b"ready"]
        out, err = await trio.to_thread.run_sync(lambda: nowhere.communicate(timeout=20))
        assert (nowhere.returncode, out) == (1, b"")
        assert err.decode().splitlines()[-1].startswith("millrace: cluster 'processes': etcd cannot be read")
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            _, err = await trio.to_thread.run_sync(lambda process=process: process.communicate(timeout=20))  # type: ignore[misc]
            assert process.returncode == 0, err.decode()
            assert b"Traceback" not in err


async def test_what_was_declared_at_one_broker_is_there_at_all(etcd: EtcdProcess, tmp_path: Path) -> None:
    async with three(etcd, tmp_path, "spreading", lease_s=60) as (_, brokers):
        engines = [broker.server.broker for broker in brokers.values()]
        for number in range(30):
            at = number % 3
            await engines[at].declare_exchange(f"e{number}", "direct", durable=True)
            for other in (1, 2):
                engines[(at + other) % 3].check_exchange(f"e{number}")
            await engines[at - 1].delete_exchange(f"e{number}")
            for engine in engines:
                assert f"e{number}" not in engine.topology.exchanges
        brokers[3].cluster.replicas.heard = None
        brokers[3].scope.set()
        with trio.fail_after(30):  # one that goes is not waited for
            await engines[0].declare_exchange("last", "direct", durable=True)
