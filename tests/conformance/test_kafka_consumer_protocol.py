"""Kafka's own client as a member of groups: those that the broker divides (`group.protocol=consumer`), and others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import BrokerProcess, broker_process, cluster

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka_admin = pytest.importorskip("confluent_kafka.admin")
DOORS = ("amqp", "mqtt", "native", "kafka")
PARTITIONS = 6


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("kafka") / "data", doors=DOORS) as process:
        yield process


def server_of(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


def make_topic(server: str, name: str, partitions: int = PARTITIONS) -> None:
    admin = kafka_admin.AdminClient({"bootstrap.servers": server})
    admin.create_topics([kafka_admin.NewTopic(name, partitions, 1)])[name].result(10)


def produce(server: str, topic: str, count: int, first: int = 0) -> list[bytes]:
    producer = confluent_kafka.Producer({"bootstrap.servers": server})
    sent = [b"%d" % number for number in range(first, first + count)]
    for value in sent:
        producer.produce(topic, value, key=value)
    assert producer.flush(20) == 0
    return sent


class Member:
    """A consumer in a thread of its own."""

    def __init__(self, server: str, group: str, topics: list[str], **options: Any) -> None:
        self.seen: list[bytes] = []
        self.errors: list[str] = []
        self.has: list[tuple[str, int]] = []
        self._options = {
            "bootstrap.servers": server, "group.id": group, "group.protocol": "consumer",
            "auto.offset.reset": "earliest", "auto.commit.interval.ms": 200, "topic.metadata.refresh.interval.ms": 1000,
            **options,
        }  # fmt: skip
        self._topics = topics
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(self._options)
        consumer.subscribe(self._topics)
        while not self._stop.is_set():
            for one in consumer.consume(500, 0.05):
                if one.error():
                    self.errors.append(one.error().str())
                else:
                    self.seen.append(one.value())
            self.has = sorted((one.topic, one.partition) for one in consumer.assignment())
        consumer.close()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self.has = []


def until(what: Callable[[], bool], said: Callable[[], object] = lambda: "", seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, said()
        time.sleep(0.02)


def shared(members: list[Member], count: int = PARTITIONS) -> bool:
    """Everybody has something, nothing twice, and together all."""
    has = [place for member in members for place in member.has]
    return all(member.has for member in members) and len(has) == len(set(has)) == count


def test_members_come_and_go_while_the_others_read_on(broker: BrokerProcess) -> None:
    server = server_of(broker)
    make_topic(server, "served")
    sent = produce(server, "served", 300)
    members = [Member(server, "served", ["served"]) for _ in range(2)]
    try:
        until(lambda: shared(members), lambda: [member.has for member in members])
        members.append(Member(server, "served", ["served"]))
        until(lambda: shared(members), lambda: [member.has for member in members])
        until(lambda: [len(member.has) for member in members] == [2, 2, 2], lambda: [member.has for member in members])
        sent += produce(server, "served", 300, first=300)
        until(lambda: {value for member in members for value in member.seen} == set(sent))
        members[0].stop()
        until(lambda: shared(members[1:]), lambda: [member.has for member in members])
        sent += produce(server, "served", 100, first=600)
        until(lambda: {value for member in members for value in member.seen} == set(sent))
    finally:
        for member in members:
            member.stop()
    assert not any(member.errors for member in members)
    assert sum(len(member.seen) for member in members) == len(sent), "what was committed came once"
    admin = kafka_admin.AdminClient({"bootstrap.servers": server})
    (found,) = [one for one in admin.list_consumer_groups().result(10).valid if one.group_id == "served"]
    assert (found.type, found.state) == (
        confluent_kafka.ConsumerGroupType.CONSUMER, confluent_kafka.ConsumerGroupState.EMPTY,
    )  # fmt: skip


def type_of(server: str, group: str) -> Any:
    admin = kafka_admin.AdminClient({"bootstrap.servers": server})
    (found,) = [one for one in admin.list_consumer_groups().result(10).valid if one.group_id == group]
    return found.type


@pytest.mark.parametrize(
    "classic",
    [
        {"partition.assignment.strategy": "range"},
        {"partition.assignment.strategy": "cooperative-sticky"},
        {"partition.assignment.strategy": "cooperative-sticky", "group.instance.id": "member"},
    ],
    ids=["eager", "cooperative", "static"],
)
def test_programs_are_restarted_with_the_other_protocol_one_by_one(
    broker: BrokerProcess, classic: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """From the classic protocol to the new one and back: the group reads on, and nothing twice."""
    server, topic = server_of(broker), f"moving-{request.node.callspec.id}"
    make_topic(server, topic)
    instance = classic.get("group.instance.id")
    old = {"group.protocol": "classic", "heartbeat.interval.ms": 200, "session.timeout.ms": 6000, **classic}

    def member(number: int, **options: Any) -> Member:
        static = {} if instance is None else {"group.instance.id": f"{instance}-{number}"}
        return Member(server, topic, [topic], **{**options, **static})

    sent = set(produce(server, topic, 100))
    running = [member(number, **old) for number in range(3)]
    all_members = list(running)
    try:
        until(lambda: shared(running), lambda: [one.has for one in running])
        for options, protocol in (({}, "CONSUMER"), (old, "CLASSIC")):
            for number in range(3):
                running[number].stop()
                running[number] = member(number, **options)
                all_members.append(running[number])
                sent.update(produce(server, topic, 100, first=len(sent)))
                until(lambda: shared(running), lambda: [one.has for one in running])
                until(lambda: {value for one in all_members for value in one.seen} == sent)
            until(lambda: type_of(server, topic) == confluent_kafka.ConsumerGroupType[protocol])  # noqa: B023
    finally:
        for one in running:
            one.stop()
    assert not any(one.errors for one in all_members)
    assert sum(len(one.seen) for one in all_members) == len(sent), "what was committed came once"


def test_topics_that_appear_and_grow_are_shared_out(broker: BrokerProcess) -> None:
    server = server_of(broker)
    make_topic(server, "grow-a", 2)
    member = Member(server, "grow", ["^grow-.*"])
    admin = kafka_admin.AdminClient({"bootstrap.servers": server})
    try:
        until(lambda: shared([member], 2), lambda: member.has)
        make_topic(server, "grow-b", 3)
        until(lambda: shared([member], 5), lambda: member.has)
        wider = admin.create_partitions([kafka_admin.NewPartitions("grow-a", 4)])
        wider["grow-a"].result(10)
        until(lambda: shared([member], 7), lambda: member.has)
    finally:
        member.stop()
    assert not member.errors


def test_a_group_is_described_as_its_members_are(broker: BrokerProcess) -> None:
    server = server_of(broker)
    make_topic(server, "told")
    member = Member(server, "told", ["told"], **{"group.instance.id": "one", "group.remote.assignor": "range"})
    admin = kafka_admin.AdminClient({"bootstrap.servers": server})
    try:
        until(lambda: shared([member]))
        found = admin.describe_consumer_groups(["told"])["told"].result(10)
        assert (found.partition_assignor, found.type) == ("range", confluent_kafka.ConsumerGroupType.CONSUMER)
        until(lambda: admin.describe_consumer_groups(["told"])["told"].result(10).state.name == "STABLE")
        (one,) = found.members
        assert one.group_instance_id == "one"
        assert len(one.target_assignment.topic_partitions) == PARTITIONS
    finally:
        member.stop()


def test_cooperative_members_of_a_classic_group_keep_what_does_not_move(broker: BrokerProcess) -> None:
    server = server_of(broker)
    make_topic(server, "cooperative")
    sent = produce(server, "cooperative", 300)
    quick = {"group.protocol": "classic", "heartbeat.interval.ms": 200}
    ways = {**quick, "partition.assignment.strategy": "cooperative-sticky"}
    members = [Member(server, "cooperative", ["cooperative"], **ways) for _ in range(2)]
    try:
        until(lambda: shared(members), lambda: [member.has for member in members])
        members.append(Member(server, "cooperative", ["cooperative"], **ways))
        before = [set(member.has) for member in members]
        until(lambda: shared(members), lambda: [member.has for member in members])
        assert all(before[index] > set(members[index].has) for index in range(2)), "some of it stayed, nothing came"
        eager = {**quick, "partition.assignment.strategy": "range"}
        members.append(Member(server, "cooperative", ["cooperative"], **eager))
        until(lambda: bool(members[3].errors), lambda: members[3].has)
        assert "inconsistent" in members[3].errors[0].lower(), "nobody divides for both"
        sent += produce(server, "cooperative", 300, first=300)
        until(lambda: {value for member in members for value in member.seen} == set(sent))
    finally:
        for member in members:
            member.stop()
    assert not any(member.errors for member in members[:3])


def test_members_read_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", doors=DOORS) as process:
        server = server_of(process)
        make_topic(server, "killed")
        sent = produce(server, "killed", 100)
        members = [Member(server, "killed", ["killed"]) for _ in range(2)]
        try:
            until(lambda: shared(members), lambda: [member.has for member in members])
            before = [member.has for member in members]
            until(lambda: {value for member in members for value in member.seen} == set(sent))
            process.kill9()
            process.start(same_ports=True)
            sent += produce(server, "killed", 100, first=100)
            until(lambda: {value for member in members for value in member.seen} == set(sent))
            assert [member.has for member in members] == before, "nobody had to join again"
        finally:
            for member in members:
                member.stop()


def test_members_of_both_kinds_read_on_after_the_death_of_their_coordinator(tmp_path: Path) -> None:
    with cluster.cluster_processes(tmp_path, relayed=False, doors=DOORS) as brokers:
        brokers.until_whole()
        servers = ",".join(f"{broker.host}:{broker.ports['kafka']}" for broker in brokers.brokers.values())
        admin = kafka_admin.AdminClient({"bootstrap.servers": servers})
        admin.create_topics([kafka_admin.NewTopic("moved", PARTITIONS)])["moved"].result(20)
        static = {
            "group.protocol": "classic", "partition.assignment.strategy": "range", "session.timeout.ms": 20_000,
            "heartbeat.interval.ms": 200,
        }  # fmt: skip
        kinds: dict[str, list[Member]] = {"served": [], "classic": [], "both": []}
        try:
            for number in range(2):
                kinds["served"].append(Member(servers, "served", ["moved"]))
                options = {**static, "group.instance.id": f"i{number}"}
                kinds["classic"].append(Member(servers, "classic", ["moved"], **options))
                kinds["both"].append(Member(servers, "both", ["moved"], **(options if number else {})))
            sent = produce(servers, "moved", 100)
            for members in kinds.values():
                until(lambda members=members: shared(members), seconds=60)
                until(lambda members=members: {value for one in members for value in one.seen} == set(sent), seconds=60)
            before = {kind: [member.has for member in members] for kind, members in kinds.items()}
            known = {kind: member_ids(servers, kind) for kind in kinds}
            for kind in kinds:
                coordinator = admin.describe_consumer_groups([kind])[kind].result(20).coordinator.id
                if brokers.brokers[coordinator].running:
                    break
            brokers.kill9(coordinator)
            sent += produce(servers, "moved", 100, first=100)
            for kind, members in kinds.items():
                until(lambda members=members: {value for one in members for value in one.seen} == set(sent), seconds=60)
                until(lambda kind=kind: member_ids(servers, kind) == known[kind], lambda: known, 60)
                assert [member.has for member in members] == before[kind], "nobody had to join again"
        finally:
            for members in kinds.values():
                for member in members:
                    member.stop()


def member_ids(servers: str, group: str) -> set[str]:
    admin = kafka_admin.AdminClient({"bootstrap.servers": servers})
    try:
        return {one.member_id for one in admin.describe_consumer_groups([group])[group].result(3).members}
    except (confluent_kafka.KafkaException, TimeoutError):
        return set()
