"""A single broker that real clients have filled becomes the first of three, and then its process is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest
import trio
from click.testing import CliRunner
from paho.mqtt.client import Client as Paho
from paho.mqtt.enums import CallbackAPIVersion

from gateway.cli import main
from gateway.etcd_process import EtcdProcess
from gateway.free_ports import free_ports
from protocols.native.clients.blocking import BlockingClient
from protocols.native.clients.blocking_transactional import BlockingTransactionalProducer
from tests.gateway.test_member import Running, config, until
from tests.support.broker_process import CHECKOUT, BrokerProcess, broker_process
from tests.support.pika_channel import pika_channel
from tests.support.replica_node import batch_of

WORK = [b"work %d" % number for number in range(40)]
LATER = [b"later %d" % number for number in range(5)]
DELAY_MS = 3_600_000
LOGIN = pika.PlainCredentials("ann", "secret")


def administer(client: BlockingClient, operation: str, **arguments: Any) -> list[list[Any]]:
    return list(client.administer(operation, **arguments)["rows"])


def fill(broker: BrokerProcess) -> None:
    """Everything that a directory can hold."""
    with BlockingClient(f"127.0.0.1:{broker.native_port}") as client:
        client.administer("users.add", name="ann", password="secret", tags=["administrator"])
        client.administer("permissions.set", vhost="/", name="ann", configure=".*", write=".*", read=".*")
        client.administer("policies.set", name="short", pattern="^work$", definition={"max-length": 1000})
        client.create_topic("orders", partitions=2, config={"retention.ms": "-1"})  # they are old
        for partition in (0, 1):
            assert client.produce("orders", partition, batch_of(0, 10, 10)) == 0
        client.commit_offsets("readers", {("orders", 0): 7, ("orders", 1): 3})
        client.create_topic("paid", config={"retention.ms": "-1"})
    with BlockingTransactionalProducer(f"127.0.0.1:{broker.native_port}", "payer") as producer, producer.transaction():
        producer.send("paid", b"1", partition=0)
    with pika_channel("127.0.0.1", broker.amqp_port, credentials=LOGIN, socket_timeout=10) as one:
        for queue in ("work", "later", "from-mqtt"):
            one.queue_declare(queue, durable=True)
        one.exchange_declare("delaying", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
        one.queue_bind("later", "delaying", "later")
        one.queue_bind("from-mqtt", "amq.topic", "sensors.#")
        persistent = pika.BasicProperties(delivery_mode=2)
        for body in WORK:
            one.basic_publish("", "work", body, persistent)
        delayed = pika.BasicProperties(delivery_mode=2, headers={"x-delay": DELAY_MS})
        for body in LATER:
            one.basic_publish("delaying", "later", body, delayed)
        for body in WORK[:10]:
            method, _, found = one.basic_get("work")
            assert found == body
            if found in WORK[:5]:
                one.basic_ack(method.delivery_tag)
        mqtt = Paho(CallbackAPIVersion.VERSION2, "sensor")
        mqtt.connect("127.0.0.1", broker.mqtt_port)
        mqtt.loop_start()
        sent = mqtt.publish("sensors/kitchen", b"21", qos=1)
        sent.wait_for_publish(10)
        mqtt.disconnect()
        mqtt.loop_stop()


def serve_as(broker: BrokerProcess, etcd: EtcdProcess, name: str, *flags: str) -> list[str]:
    (peer,) = free_ports(1)
    member = ["--cluster", name, "--broker-id", "1", "--etcd", etcd.address, "--peer", f"127.0.0.1:{peer}"]
    return [*member, *flags]


def bodies(one: Any, queue: str) -> list[bytes]:
    """All that is ready in a queue, left as it is."""
    found: list[bytes] = []
    last = None
    while True:
        method, _, body = one.basic_get(queue)
        if method is None:
            break
        last = method.delivery_tag
        found.append(body)
    if last is not None:
        one.basic_nack(last, multiple=True, requeue=True)
    return found


def ids_of(member: Running) -> list[Any]:
    """The logs of transactional ids that a broker has read and looks after."""
    assert member.server.broker.engine is not None
    return list(member.server.broker.engine.transactions.stores.led())


def look(amqp_port: int, native_port: int) -> None:
    """Everything is there, at any of them."""
    with BlockingClient(f"127.0.0.1:{native_port}") as client:
        for partition in (0, 1):
            fetched = client.fetch("orders", partition, 0)
            assert b"".join(fetched.batches)[61:] == bytes(batch_of(0, 10, 10))[61:]
        assert client.committed_offsets("readers") == {("orders", 0): 7, ("orders", 1): 3}
        assert [row[0] for row in administer(client, "transactions.list", only_open=False)] == ["payer"]
        assert [row[1] for row in administer(client, "policies.list")] == ["short"]
        assert sorted(row[0] for row in administer(client, "users.list")) == ["ann", "guest"]
    with pika_channel("127.0.0.1", amqp_port, credentials=LOGIN, socket_timeout=10) as one:
        work = bodies(one, "work")
        assert len(work) == len(set(work))
        assert set(WORK[5:]) <= set(work) <= set(WORK), "acknowledgements of the last moment may be lost"
        assert bodies(one, "from-mqtt") == [b"21"]
        assert bodies(one, "later") == []


def verified(directory: Path) -> tuple[int, str]:
    """The exit code of `millrace verify`, and all it says."""
    command = [sys.executable, "-m", "gateway", "verify", str(directory)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def delayed(one: Running) -> int:
    """Messages that wait for their time, in queues that are led there."""
    led = one.server.broker.topology.led
    return sum(queue.rules.delayed_count for home in led for queue in home.queues.values())


@pytest.mark.parametrize("end", [pytest.param("clean", marks=pytest.mark.soak), "killed"])
async def test_a_filled_broker_becomes_the_first_of_three_and_is_then_killed(
    etcd: EtcdProcess, tmp_path: Path, end: str
) -> None:
    name = f"import-{end}"
    in_thread = trio.to_thread.run_sync
    with broker_process(tmp_path / "1") as first:
        await in_thread(fill, first)
        await in_thread(first.kill9 if end == "killed" else first.terminate)
        first.arguments = (*serve_as(first, etcd, name), "--import")
        await in_thread(first.start)
        await in_thread(look, first.amqp_port, first.native_port)
        async with trio.open_nursery() as nursery:
            others = {number: Running(config(etcd.address, tmp_path, name, number, secret="")) for number in (2, 3)}
            for other in others.values():
                other.config.listen.amqp = "127.0.0.1:0"
                nursery.start_soon(nursery.start, other.run)
            await until(lambda: all(hasattr(other, "server") for other in others.values()))
            logs = others[2].cluster.elections.logs
            await until(
                lambda: len(logs) == 4 + 1 + 3 + 1 + 1 and all(len(log.state.isr) == 3 for log in logs.values())
            )
            await in_thread(first.kill9 if end == "killed" else first.terminate)
            await until(lambda: all(log.state.leader in (2, 3) for log in logs.values()))
            await until(lambda: sum(len(other.server.broker.topology.led) for other in others.values()) == 4)
            await until(lambda: any(ids_of(other) for other in others.values()))
            assert delayed(others[2]) + delayed(others[3]) == len(LATER)
            for other in others.values():
                ports = other.server.ports
                with trio.fail_after(20):
                    await in_thread(look, ports["amqp"], ports["native"])
            for other in others.values():
                other.scope.set()
        # What is left of the first one can be looked at alone.
        code, said = await in_thread(verified, tmp_path / "1")
        assert code == 0, said
        assert said.startswith("log ")
        assert f"the data directory of broker 1 of cluster '{name}'" in said
        assert "3 queue" in said
        printed = CliRunner().invoke(main, ["consume", "orders", "--data", str(tmp_path / "1"), "--format", "%p %o\\n"])
        assert printed.stdout.splitlines() == [f"{index} {offset}" for index in (0, 1) for offset in range(10)]
        first.arguments = ()
        with pytest.raises(RuntimeError, match="cannot be served alone: serve it with --cluster"):
            await in_thread(first.start)
