"""Bits that flipped in the files of a log's leader: what the others have is read, from one of those that leads then."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pika

from protocols.native.clients.blocking import BlockingClient
from protocols.native.clients.blocking_consumer import BlockingConsumer
from routing.cluster.metadata.log_names import directory_of, home_log
from tests.faults.neighbours import batch_of
from tests.support.cluster import ClusterProcesses, cluster_processes

COUNT = 600
BODY_BYTES = 500
SETTINGS = "[engine]\nstripe_cache_bytes = 65536\nstream_cache_bytes = 65536\ntails_bytes_max = 65536\n"


def flip_a_bit(directory: Path) -> None:
    """In a record of a log that is no longer in memory."""
    path = max(directory.glob("*.log"), key=lambda one: one.stat().st_size)
    size = path.stat().st_size
    assert size > COUNT * BODY_BYTES / 2, "the log that was taken is another one"
    with path.open("r+b") as file:
        file.seek(size // 3)
        old = file.read(1)[0]
        file.seek(size // 3)
        file.write(bytes([old ^ 4]))


def of(cluster: ClusterProcesses, topic: str, partition: int) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = (
        one for one in cluster.status(1)["partitions"] if (one["topic"], one["partition"]) == (topic, partition)
    )
    return found


def has_isr(topic: str, partition: int, isr: set[int], status: dict[str, Any]) -> bool:
    return any(
        (one["topic"], one["partition"], set(one["isr"])) == (topic, partition, isr) for one in status["partitions"]
    )


def unreadable(cluster: ClusterProcesses, number: int) -> list[str]:
    found: list[str]
    (found,) = (one["unreadable"] for one in cluster.status(1)["brokers"] if one["id"] == number)
    return found


def test_what_cannot_be_read_at_a_leader_is_read_at_the_next_one(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS)
    with cluster_processes(tmp_path, relayed=False, arguments=["--config", str(settings)]) as cluster:
        cluster.until_whole()
        bodies = [b"%d " % number + bytes(BODY_BYTES) for number in range(COUNT)]
        address = pika.ConnectionParameters("127.0.0.1", cluster.brokers[2].amqp_port, heartbeat=0)
        with pika.BlockingConnection(address) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            for body in bodies:
                channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
        with BlockingClient(cluster.server(1)) as native:
            native.create_topic("t")
            for body in bodies:
                native.produce("t", 0, batch_of([body]))
        cluster.until_whole()
        homes = [one for one in cluster.status(1)["partitions"] if one["topic"] == "__queues"]
        home = max(homes, key=lambda one: one["high_watermark"] or 0)
        topic = of(cluster, "t", 0)
        flip_a_bit(tmp_path / f"broker-{home['leader']}" / directory_of(home_log(home["partition"])))
        (directory,) = (tmp_path / f"broker-{topic['leader']}" / "topics").glob("t-0*")
        flip_a_bit(directory)
        with pika.BlockingConnection(address) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=50)
            taken: list[bytes] = []
            for method, _, body in channel.consume("q", inactivity_timeout=20):
                assert method is not None, f"{len(taken)} messages came"
                channel.basic_ack(method.delivery_tag)
                taken.append(body)
                if len(set(taken)) == COUNT:
                    break
        assert list(dict.fromkeys(taken)) == bodies
        with BlockingConsumer(cluster.server(1), auto_offset_reset="earliest") as consumer:
            consumer.assign("t")
            found: list[bytes | None] = []
            while len(found) < COUNT:
                found += [record.value for record in consumer.fetch()]
        assert found == bodies
        for one, name in ((home, "__queues"), (topic, "t")):
            now = of(cluster, name, one["partition"])
            assert now["leader"] != one["leader"]
        assert f"home-{home['partition']}" in unreadable(cluster, home["leader"])
        assert len(unreadable(cluster, topic["leader"])) == 1 + (home["leader"] == topic["leader"])
        with BlockingClient(cluster.server(1)) as native:
            for one, name in ((home, "__queues"), (topic, "t")):
                whole = [number for number in one["replicas"] if number != one["leader"]]
                for replicas in (whole, [one["leader"], *whole]):
                    native.administer("cluster.move", topic=name, partition=one["partition"], replicas=replicas)
                    cluster.until(partial(has_isr, name, one["partition"], set(replicas)))
        cluster.until(lambda _: not any(unreadable(cluster, number) for number in cluster.brokers))
