"""MQTT clients of three real brokers: what is kept, who has a session, what becomes of both when a broker is gone."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

pytest.importorskip("paho.mqtt.client")

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import MillraceError
from tests.protocols.mqtt.wire import connect, publish
from tests.support.cluster import ClusterProcesses, cluster_processes

PATIENCE_S = 20.0
SESSION_TAKEN_OVER, ADMINISTRATIVE_ACTION = 0x8E, 0x98
CONNACK = b"\x20\2\0\0"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    directory = tmp_path_factory.mktemp("mqtt")
    (directory / "millrace.toml").write_text("[engine]\nwill_grace_ms = 100\n[mqtt]\nsys_interval_s = 1\n")
    arguments = ("--config", str(directory / "millrace.toml"))
    with cluster_processes(directory / "cluster", relayed=False, arguments=arguments) as found:
        found.until_whole()
        yield found


class Device:
    """A client of MQTT 5, at one broker."""

    def __init__(
        self,
        cluster: ClusterProcesses,
        number: int,
        name: str,
        *,
        lasting: bool = False,
        clean: bool = False,
        manual: bool = False,
        will: tuple[str, bytes] | None = None,
        will_delay_s: int = 0,
    ) -> None:
        self.got: queue.Queue[MQTTMessage] = queue.Queue()
        self.over: queue.Queue[int] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self.client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTv5, manual_ack=manual)
        self.client.on_message = lambda *given: self.got.put(given[2])
        self.client.on_connect = lambda *given: self._answers.put(given[2])
        self.client.on_subscribe = lambda *given: self._answers.put(given[3])
        self.client.on_disconnect = lambda *given: self.over.put(given[3].value)
        if will is not None:
            properties = Properties(PacketTypes.WILLMESSAGE)
            if will_delay_s:
                properties.WillDelayInterval = will_delay_s
            self.client.will_set(*will, qos=1, retain=True, properties=properties)
        properties = Properties(PacketTypes.CONNECT)
        if lasting:
            properties.SessionExpiryInterval = 3600
        self.client.reconnect_delay_set(60)
        broker = cluster.brokers[number]
        self.client.connect(broker.host, broker.mqtt_port, clean_start=clean, properties=properties)
        self.client.loop_start()
        self.session_present = self._answers.get(timeout=PATIENCE_S).session_present

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def subscribe(self, topic: str, qos: int = 1) -> None:
        self.client.subscribe(topic, qos)
        self._answers.get(timeout=PATIENCE_S)

    def publish(self, topic: str, body: bytes, qos: int = 1, *, retain: bool = False) -> None:
        self.client.publish(topic, body, qos, retain).wait_for_publish(PATIENCE_S)

    def next(self) -> tuple[str, bytes, bool]:
        found = self.got.get(timeout=PATIENCE_S)
        return found.topic, found.payload, found.retain

    def arrived(self) -> list[tuple[str, bytes, bool]]:
        return [self.next() for _ in range(self.got.qsize())]

    def silent(self, wait_s: float = 0.3) -> bool:
        try:
            self.got.get(timeout=wait_s)
        except queue.Empty:
            return True
        return False


def test_a_retained_message_is_known_at_all_brokers(cluster: ClusterProcesses) -> None:
    with Device(cluster, 1, "setter") as one, Device(cluster, 2, "other-setter") as two:
        one.publish("kept/a", b"1", retain=True)
        two.publish("kept/b", b"2", retain=True)
        two.publish("kept/a", b"3", retain=True)
        for number in cluster.brokers:
            with Device(cluster, number, "reader") as reader:
                reader.subscribe("kept/#")
                assert sorted(reader.next() for _ in range(2)) == [("kept/a", b"3", True), ("kept/b", b"2", True)]
        one.publish("kept/b", b"", retain=True)
        with Device(cluster, 3, "reader") as reader:
            reader.subscribe("kept/#")
            assert reader.next() == ("kept/a", b"3", True)
            assert reader.silent()


def test_what_is_new_is_found_though_somebody_has_just_asked_for_a_lot(cluster: ClusterProcesses) -> None:
    names = [f"many/{number:04}" for number in range(1100)]
    with Device(cluster, 1, "setter") as setter:

        def found(name: str, count: int) -> set[str]:
            with Device(cluster, 2, name) as reader:
                reader.subscribe("many/#", 0)
                return {reader.next()[0] for _ in range(count)}

        for name in names[:-1]:
            setter.publish(name, b"1", 0, retain=True)
        setter.publish(names[-1], b"1", retain=True)
        assert found("first", 1100) == set(names)
        setter.publish("many/new", b"1", retain=True)
        assert found("second", 1101) == {*names, "many/new"}
        for name in names:
            setter.publish(name, b"", 0, retain=True)
        setter.publish("many/newer", b"1", retain=True)
        assert found("third", 2) == {"many/new", "many/newer"}
        setter.publish("many/new", b"", retain=True)
        setter.publish("many/newer", b"", retain=True)


def test_each_session_is_counted_by_one_broker(cluster: ClusterProcesses) -> None:
    names = [f"counted-{number}" for number in range(6)]
    for name in names[3:]:
        with Device(cluster, 1, name, lasting=True):
            pass
    with ExitStack() as stack:
        for number, name in zip(cluster.brokers, names, strict=False):
            stack.enter_context(Device(cluster, number, name, lasting=True))
        watchers = [stack.enter_context(Device(cluster, number, f"sys-{number}")) for number in cluster.brokers]
        for one in watchers:
            one.subscribe("$SYS/broker/clients/#", 0)
        with BlockingClient(f"{cluster.brokers[1].host}:{cluster.brokers[1].native_port}") as operator:
            away = sum(not row[4] for row in operator.administer("sessions.list")["rows"])
        wanted = {"connected": 6, "disconnected": away, "total": 6 + away}
        found: list[dict[str, int]] = [{} for _ in watchers]
        until_s = time.monotonic() + PATIENCE_S
        while {name: sum(one.get(name, 0) for one in found) for name in wanted} != wanted:
            assert time.monotonic() < until_s, (found, wanted)
            time.sleep(0.01)
            for one, values in zip(watchers, found, strict=True):
                for topic, body, _ in one.arrived():  # a broker with nothing new sends nothing
                    values[topic.rpartition("/")[2]] = int(body)


def test_a_session_is_taken_over_by_another_broker(cluster: ClusterProcesses) -> None:
    with Device(cluster, 3, "publisher") as publisher:
        first = Device(cluster, 1, "mover", lasting=True, manual=True, will=("gone/mover", b"gone"), will_delay_s=60)
        first.subscribe("moving/#")
        publisher.publish("moving/1", b"1")
        assert first.next() == ("moving/1", b"1", False)
        with Device(cluster, 2, "mover", lasting=True) as second:
            assert second.session_present
            assert first.over.get(timeout=PATIENCE_S) == SESSION_TAKEN_OVER
            assert second.next() == ("moving/1", b"1", False)
            publisher.publish("moving/2", b"2")
            assert second.next() == ("moving/2", b"2", False)
        first.client.loop_stop()
    with Device(cluster, 3, "watcher") as watcher:
        watcher.subscribe("gone/mover")
        assert watcher.silent()
    with Device(cluster, 1, "mover", clean=True):
        pass


def test_what_is_said_again_at_another_broker_comes_once_to_who_has_no_session(cluster: ClusterProcesses) -> None:
    """[MQTT-4.3.3-10] Queues that end with their broker, and topics, have no numbers of publishes as homes have."""
    with ExitStack() as stack:
        readers = [stack.enter_context(Device(cluster, number, f"once-{number}")) for number in cluster.brokers]
        for reader in readers:
            reader.subscribe("once", 2)
        for number, lost in ((1, False), (2, True), (3, False)):
            broker = cluster.brokers[number]
            said = stack.enter_context(socket.create_connection((broker.host, broker.mqtt_port), timeout=PATIENCE_S))
            said.sendall(connect("once", clean=False))
            assert said.recv(4) == (CONNACK if number == 1 else b"\x20\2\1\0")
            for one in range(max(number - 1, 1), number + 1):
                said.sendall(publish("once", b"%d" % one, qos=2, packet_id=one, dup=one < number))
                assert said.recv(4) == bytes((0x50, 2, 0, one))
            if lost:
                said.close()
        for reader in readers:
            assert [reader.next()[1] for _ in range(3)] == [b"1", b"2", b"3"]
        said.sendall(publish("once", b"end", qos=2, packet_id=9))
        assert [reader.next()[1] for reader in readers] == [b"end"] * 3
    with Device(cluster, 1, "once", clean=True):
        pass


def test_sessions_are_looked_after_at_any_broker(cluster: ClusterProcesses) -> None:
    asked = cluster.brokers[3]
    with (
        BlockingClient(f"{asked.host}:{asked.native_port}") as operator,
        Device(cluster, 1, "setter") as setter,
    ):

        def session(client_id: str) -> dict[str, Any]:
            found: dict[str, Any] = operator.administer("sessions.describe", client_id=client_id)
            return found

        device = Device(cluster, 2, "watched", lasting=True, manual=True)
        device.subscribe("watched/#")
        setter.publish("watched/1", b"1")
        setter.publish("retained", b"r", retain=True)
        device.next()
        found = session("watched")
        assert (found["connected"], found["user"], found["version"]) == (True, "guest", "5.0")
        assert (found["unacknowledged"], found["expiry_s"]) == (1, 3600)
        assert found["peer"].startswith("127.")
        assert operator.administer("retained.get", key="retained")["body"] == {"text": "r"}
        (waits,) = operator.administer("queues.peek", name="mqtt.watched") or [None]
        assert waits is None  # the client has it
        said = {"mqtt_topic": "watched/2", "body": "2", "retain": True}
        assert operator.administer("messages.publish", **said) == {"routed": True}
        assert operator.administer("retained.get", key="watched.2")["body"] == {"text": "2"}
        assert operator.administer("connections.close", client_id="watched") == 1
        assert device.over.get(timeout=PATIENCE_S) == ADMINISTRATIVE_ACTION
        device.client.loop_stop()
        assert (session("watched")["connected"], session("watched")["peer"]) == (False, "")
        waiting = operator.administer("queues.peek", name="mqtt.watched")
        assert [one["body"] for one in waiting] == [{"text": "1"}, {"text": "2"}]
        device = Device(cluster, 2, "watched", lasting=True)
        assert device.session_present
        operator.administer("sessions.delete", client_id="watched")
        assert device.over.get(timeout=PATIENCE_S) == ADMINISTRATIVE_ACTION
        device.client.loop_stop()
        operator.administer("sessions.delete", client_id="setter")  # is known to its broker alone
        assert setter.over.get(timeout=PATIENCE_S) == ADMINISTRATIVE_ACTION
        with pytest.raises(MillraceError, match="no session"):
            session("watched")


def test_a_ban_counts_at_all_brokers(cluster: ClusterProcesses) -> None:
    asked = cluster.brokers[3]
    with BlockingClient(f"{asked.host}:{asked.native_port}") as operator:
        device = Device(cluster, 2, "banned", lasting=True)
        operator.administer("bans.add", kind="client_id", value="banned")
        assert device.over.get(timeout=PATIENCE_S) == ADMINISTRATIVE_ACTION
        device.client.loop_stop()
        for broker in cluster.brokers.values():
            with socket.create_connection((broker.host, broker.mqtt_port)) as sock:
                sock.settimeout(PATIENCE_S)
                sock.sendall(connect("banned"))
                assert sock.recv(4) == b"\x20\2\0\5"
        operator.administer("bans.delete", kind="client_id", value="banned")
        with Device(cluster, 1, "banned", lasting=True) as device:
            assert device.session_present
        operator.administer("sessions.delete", client_id="banned")


def test_sessions_may_begin_at_the_same_time(cluster: ClusterProcesses) -> None:
    with ExitStack() as stack:
        clients = []
        for number, broker in cluster.brokers.items():
            for at in range(10):
                sock = stack.enter_context(socket.create_connection((broker.host, broker.mqtt_port)))
                sock.settimeout(PATIENCE_S)
                clients.append((sock, f"at-once-{number}-{at}"))
        for sock, name in clients:
            sock.sendall(connect(name, clean=False))
        answers = {name: sock.recv(4) for sock, name in clients}
    assert {name: answer for name, answer in answers.items() if answer != CONNACK} == {}


def test_members_of_a_group_at_all_brokers_share(cluster: ClusterProcesses) -> None:
    members = [Device(cluster, number, f"worker-{number}", manual=True) for number in cluster.brokers]
    for member in members:
        member.subscribe("$share/workers/work/#")
    with Device(cluster, 1, "boss") as boss:
        found: list[set[int]] = [set() for _ in members]
        published = 0
        while not all(found):  # who is far away may have its turn a little later
            published += 9
            assert published < 1000
            for number in range(published - 9, published):
                boss.publish("work/item", b"%d" % number)
            taken(members, found, published)
        assert sorted(number for numbers in found for number in numbers) == list(range(published))
        members[0].client.socket().close()
        rest: list[set[int]] = [set() for _ in members[1:]]
        taken(members[1:], rest, len(found[0]))
        assert set().union(*rest) == found[0]
    for member in members[1:]:
        member.__exit__()


def taken(members: list[Device], found: list[set[int]], count: int) -> None:
    """Add what members get, until it is so many in all."""
    until = time.monotonic() + PATIENCE_S
    while sum(map(len, found)) < count:
        assert time.monotonic() < until, found
        for member, numbers in zip(members, found):
            with suppress(queue.Empty):
                numbers.add(int(member.got.get(timeout=0.01).payload))


def test_what_is_kept_outlives_the_leader_and_wills_come_once(cluster: ClusterProcesses) -> None:
    leader = cluster.leader("__retained")
    assert leader is not None
    others = [number for number in cluster.brokers if number != leader]
    with Device(cluster, others[0], "keeper") as keeper, Device(cluster, others[1], "watcher") as watcher:
        keeper.publish("safe/a", b"1", retain=True)
        watcher.subscribe("will/#", 2)
        Device(cluster, leader, "doomed", will=("will/doomed", b"gone"))
        late = Device(cluster, leader, "doomed-late", lasting=True, will=("will/late", b"later"), will_delay_s=1)
        back = Device(cluster, leader, "back", lasting=True, will=("will/back", b"no"), will_delay_s=5)
        workers = [Device(cluster, number, f"busy-{number}", manual=True) for number in (leader, others[0])]
        for worker in workers:
            worker.subscribe("$share/busy/jobs")
        for number in range(4):
            keeper.publish("jobs", b"%d" % number)
        jobs = [[int(worker.next()[1]) for _ in range(2)] for worker in workers]
        once = Device(cluster, others[1], "once", lasting=True)
        once.subscribe("once/#", 2)
        twice = Device(cluster, others[0], "publisher-once", lasting=True)
        under_way = [twice.client.publish("once/number", b"%d" % number, 2) for number in range(300)]
        began = time.monotonic()
        cluster.kill9(leader)
        under_way += [twice.client.publish("once/number", b"%d" % number, 2) for number in range(300, 600)]
        with Device(cluster, others[1], "back", lasting=True):
            left = set(jobs[0])  # what the dead one had; its own come again, too, if their leader was killed
            while left:
                left.discard(int(workers[1].next()[1]))
            found = {watcher.next()[:2] for _ in range(2)}
            took_s = time.monotonic() - began
            assert found == {("will/doomed", b"gone"), ("will/late", b"later")}
            print(f"wills after {took_s:.1f} s")
            keeper.publish("safe/b", b"2", retain=True)
            with Device(cluster, others[1], "reader") as reader:
                reader.subscribe("safe/#")
                assert {reader.next() for _ in range(2)} == {("safe/a", b"1", True), ("safe/b", b"2", True)}
                reader.subscribe("will/#")
                assert {reader.next()[0] for _ in range(2)} == {"will/doomed", "will/late"}
            for one in under_way:
                one.wait_for_publish(PATIENCE_S)
            assert [int(once.next()[1]) for _ in under_way] == list(range(600)), "QoS 2, in order"
            cluster.restart(leader)
            cluster.until_whole()
            assert watcher.silent(1.0)
            assert once.silent()
        for one in (late, back, once, twice, *workers):
            one.client.loop_stop()


def test_what_is_left_of_an_expiry_is_known_at_all_brokers(cluster: ClusterProcesses) -> None:
    with Device(cluster, 1, "sleeper", lasting=True, clean=True) as sleeper:
        sleeper.subscribe("left/#")
    begun_s = time.monotonic()
    with Device(cluster, 2, "publisher") as publisher:
        for expiry_s in (100, None, 600):
            properties = Properties(PacketTypes.PUBLISH)
            if expiry_s is not None:
                properties.MessageExpiryInterval = expiry_s
            sent = publisher.client.publish(f"left/{expiry_s}", b"", 1, properties=properties)
            sent.wait_for_publish(PATIENCE_S)
    since_s = time.monotonic()
    time.sleep(1.1)  # what has waited for so long is told a second less
    for number in cluster.brokers:
        before_s = time.monotonic() - since_s
        with Device(cluster, number, "sleeper", lasting=True, manual=True) as sleeper:
            came = [sleeper.got.get(timeout=PATIENCE_S) for _ in range(3)]
            waited_s = time.monotonic() - begun_s + 1
        assert [one.topic for one in came] == ["left/100", "left/None", "left/600"]
        left_s = [getattr(one.properties, "MessageExpiryInterval", None) for one in came]
        assert left_s[1] is None
        assert 100 - waited_s < left_s[0] < 101 - before_s, (number, left_s)
        assert 600 - waited_s < left_s[2] < 601 - before_s, (number, left_s)
    with Device(cluster, 1, "sleeper", clean=True):
        pass
