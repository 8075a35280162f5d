"""A member that is begun with an older copy of its data directory: refused, or served as one that has lost all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import trio

from gateway.etcd_process import EtcdProcess
from millrace import Producer
from protocols.native.clients.client import Client
from tests.gateway.test_member import ANY, Running, refused, three, until
from tests.gateway.test_member_topics import FOREVER
from tests.support.replica_node import bytes_of

COUNT = 5


async def test_an_older_copy_is_refused_and_catches_up_when_it_is_accepted(etcd: EtcdProcess, tmp_path: Path) -> None:
    with trio.fail_after(100):
        async with three(etcd, tmp_path, "older") as (_, brokers):
            servers = [f"127.0.0.1:{broker.server.ports['native']}" for broker in brokers.values()]
            async with Client(servers) as client:
                await client.create_topic("t", config=FOREVER)
            await write(servers, "before")
            logs = [broker.server.broker.topics["t"].partitions[0].log for broker in brokers.values()]
            await until(lambda: all(log.high_watermark == COUNT for log in logs))
            await trio.to_thread.run_sync(shutil.copytree, tmp_path / "1", tmp_path / "copy")
            await write(servers, "after")
            for number in (3, 2, 1):
                await brokers[number].stop()
        (tmp_path / "1").rename(tmp_path / "latest")
        (tmp_path / "copy").rename(tmp_path / "1")
        line = await trio.to_thread.run_sync(refused_alone, brokers[1], "older")
        assert line.startswith("millrace: the data directory is an older copy of that of broker 1 of cluster 'older' ")
        async with trio.open_nursery() as nursery:
            # It was the last in sync, and is there first: without what it lacks it must not lead.
            brokers[1].config.cluster.accept_old_data = True
            brokers = {number: Running(broker.config) for number, broker in brokers.items()}
            await nursery.start(brokers[1].run)
            topic = brokers[1].server.broker.topics["t"]
            log = f"topic-{topic.uid}-0"
            assert log in brokers[1].cluster.lost
            await until(lambda: brokers[1].cluster.leader_of(log)[0] is None)
            for number in (2, 3):
                await nursery.start(brokers[number].run)
            await until(lambda: len(brokers[1].cluster.state_of(log).isr) == 3)  # type: ignore[union-attr]
            logs = [broker.server.broker.topics["t"].partitions[0].log for broker in brokers.values()]
            await until(lambda: all(log.high_watermark == 2 * COUNT for log in logs))
            assert len({bytes_of(log) for log in logs}) == 1  # type: ignore[arg-type]
            await until(lambda: not brokers[1].cluster.lost)
            for broker in brokers.values():
                broker.scope.set()
        brokers[1].config.cluster.accept_old_data = False
        brokers[1].config.data_dir = str(tmp_path / "latest")
        assert "older copy" in await refused(brokers[1].config), "now that one is"


async def write(servers: list[str], word: str) -> None:
    async with Producer(servers) as producer:
        for number in range(COUNT):
            await (await producer.send("t", f"{word} {number}".encode()))


def refused_alone(broker: Running, cluster: str) -> str:
    """The only line of a process that ends before it serves."""
    config = broker.config
    before = written(Path(config.data_dir))
    command = [
        sys.executable, "-m", "gateway", "serve", "--data-dir", config.data_dir, "--native", ANY, "--amqp", "off",
        "--mqtt", "off", "--cluster", cluster, "--broker-id", "1", "--etcd", config.cluster.etcd, "--peer", ANY,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert written(Path(config.data_dir)) == before, "nothing was changed"
    (line,) = [line for line in ended.stderr.splitlines() if "older than 3.5.13" not in line]
    return line


def written(directory: Path) -> dict[Path, int]:
    """When each file was, without the one that is locked."""
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file() and path.name != "lock"}
