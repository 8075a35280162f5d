"""Kombu, on which Celery stands, and the short part of what `python -m tests.conformance` does at length."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.conformance import rpc
from tests.support import BrokerProcess

kombu = pytest.importorskip("kombu")

CLIENTS = Path(__file__).parent / "clients"


def test_kombu_knows_whose_prefetch_rules_hold(shared_broker: BrokerProcess) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{shared_broker.amqp_port}//"
    name = f"kombu.{uuid.uuid4().hex}"
    with kombu.Connection(url) as connection:
        connection.connect()
        # Celery raises the prefetch limit of a running consumer by this rule.
        assert not connection.qos_semantics_matches_spec
        channel = connection.channel()
        channel.basic_qos(0, 2, True)
        queue = kombu.Queue(name, kombu.Exchange(name, "topic", auto_delete=True), "a.#", auto_delete=True, expires=60)
        bound = queue(channel)
        bound.declare()
        producer = kombu.Producer(channel, bound.exchange)
        for number in range(5):
            producer.publish({"number": number}, routing_key="a.b", serializer="json", compression="gzip", priority=3)
        got = []
        with kombu.Consumer(channel, [bound], callbacks=[lambda body, message: got.append((body["number"], message))]):
            while len(got) < 2:
                connection.drain_events(timeout=10)
            channel.basic_qos(0, 4, True)
            while len(got) < 4:
                connection.drain_events(timeout=10)
            got[0][1].ack()
            while len(got) < 5:
                connection.drain_events(timeout=10)
        assert [number for number, _ in got] == list(range(5))


def test_round_trips_by_direct_reply_to(shared_broker: BrokerProcess) -> None:
    assert len(rpc.round_trips(shared_broker.amqp_port, 200)) == 200


@pytest.mark.skipif(shutil.which("amqp-publish") is None, reason="amqp-tools are not installed")
def test_the_command_line_tools(shared_broker: BrokerProcess) -> None:
    script = ["sh", str(CLIENTS / "amqp_tools.sh"), str(shared_broker.amqp_port)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "ok\n", done.stderr
