"""A broker that no other broker hears, though its clients and etcd do: it confirms nothing to MQTT clients meanwhile,
and what it does confirm when the cut is over has arrived everywhere.
And one whose messages come late to whoever keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("paho.mqtt.client")

from tests.protocols.mqtt.test_cluster import PATIENCE_S, Device
from tests.support.cluster import ClusterProcesses, cluster_processes

CUT_S = 2.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with cluster_processes(tmp_path_factory.mktemp("cut")) as found:
        found.until_whole()
        yield found


@pytest.mark.parametrize("lasting", [False, True])
def test_what_is_retained_while_somebody_subscribes_elsewhere_is_not_missed(
    lasting: bool, cluster: ClusterProcesses
) -> None:
    leader = cluster.leader("__retained")
    assert leader is not None
    assert cluster.relay is not None
    here, there = (number for number in cluster.brokers if number != leader)
    topic = f"late/{lasting}"
    with Device(cluster, here, "setter") as setter, Device(cluster, there, "reader", lasting=lasting) as reader:
        setter.subscribe(topic)
        setter.publish(topic, b"0")
        assert setter.next() == (topic, b"0", False)
        cluster.relay.cut(here, leader)
        try:
            setter.publish(topic, b"1", 0, retain=True)
            assert setter.next() == (topic, b"1", False), "it has been given to all who are subscribed by now"
            reader.subscribe(topic)
            assert reader.silent()
        finally:
            cluster.relay.heal()
        assert reader.next() == (topic, b"1", True)


def test_a_broker_that_is_cut_off_from_the_others_confirms_nothing(cluster: ClusterProcesses) -> None:
    assert cluster.relay is not None
    with (
        Device(cluster, 2, "lasting", lasting=True) as lasting,
        Device(cluster, 3, "clean", clean=True) as clean,
        Device(cluster, 1, "publisher", clean=True) as publisher,
    ):
        confirmed: dict[int, float] = {}

        def published(client: Any, data: Any, mid: int, reason: Any, properties: Any) -> None:
            if not reason.is_failure:
                confirmed[mid] = time.monotonic()

        publisher.client.on_publish = published
        lasting.subscribe("cut/lasting/#")
        clean.subscribe("cut/clean/#")
        sent: dict[int, bytes] = {}

        def publish(count: int) -> None:
            for _ in range(count):
                for topic in ("cut/lasting/a", "cut/clean/a"):
                    for retain in (False, True):
                        body = b"%d" % len(sent)
                        sent[publisher.client.publish(f"{topic}/{retain}", body, 1, retain).mid] = body

        publish(5)
        until(lambda: len(confirmed) == len(sent))
        cluster.relay.isolate(1)
        cut_s = time.monotonic()
        publish(1)
        time.sleep(CUT_S)
        publish(1)
        healed_s = time.monotonic()
        cluster.relay.heal()
        assert not [at_s for at_s in confirmed.values() if cut_s + 0.05 < at_s < healed_s]
        until(lambda: len(confirmed) == len(sent) or not publisher.client.is_connected())
        wanted = {sent[mid] for mid in confirmed}
        got = set[bytes]()

        def taken() -> bool:
            for device in (lasting, clean):
                while not device.got.empty():
                    got.add(device.got.get().payload)
            return wanted <= got

        until(taken)
