"""Kafka's administration clients against a broker in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic

from protocols.native.clients.blocking import BlockingClient
from tests.support import BrokerProcess, broker_process

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")
DOORS = ("amqp", "mqtt", "native", "kafka")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("kafka-admin") / "data", doors=DOORS) as process:
        yield process


@pytest.fixture
def server(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.ports['kafka']}"


@pytest.fixture
def confluent(server: str) -> Any:
    return admin.AdminClient({"bootstrap.servers": server})


@pytest.fixture
def client(server: str) -> Iterator[Any]:
    found = KafkaAdminClient(bootstrap_servers=server)
    yield found
    found.close()


def results(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(20) for future in futures.values()]


def refused(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        future.result(20)
    return caught.value.args[0]


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# confluent-kafka


def test_confluent_topics(confluent: Any, server: str) -> None:
    new = [admin.NewTopic("ca", 3, 1, config={"cleanup.policy": "compact"}), admin.NewTopic("cb")]
    results(confluent.create_topics(new))
    assert refused(confluent.create_topics([admin.NewTopic("ca", 1)])).code() == (
        confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    )
    checked = confluent.create_topics([admin.NewTopic("cc", 2, 7)], validate_only=True)
    assert refused(checked).code() == confluent_kafka.KafkaError.INVALID_REPLICATION_FACTOR
    results(confluent.create_partitions([admin.NewPartitions("cb", 4)]))
    topics = confluent.list_topics(timeout=10).topics
    assert {name: len(topics[name].partitions) for name in ("ca", "cb")} == {"ca": 3, "cb": 4}
    found = results(confluent.describe_topics(confluent_kafka.TopicCollection(["ca"])))
    assert (found[0].name, len(found[0].partitions)) == ("ca", 3)
    results(confluent.delete_topics(["ca", "cb"]))
    assert refused(confluent.delete_topics(["ca"])).code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART


def test_topics_that_are_called_as_connectors_call_theirs(confluent: Any, server: str) -> None:
    heartbeats, own = "__debezium-heartbeat.shop", "__consumer_offsets"
    results(confluent.create_topics([admin.NewTopic(heartbeats, 1)]))
    producer = confluent_kafka.Producer({"bootstrap.servers": server})
    producer.produce(heartbeats, b"beat")
    producer.produce("__CruiseControlMetrics", b"by its first use")
    assert producer.flush(20) == 0
    reading = {"bootstrap.servers": server, "group.id": "beats", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(reading)
    consumer.subscribe(["^__(debezium|Cruise).*"])
    assert {consumer.poll(20).value(), consumer.poll(20).value()} == {b"beat", b"by its first use"}
    consumer.close()
    assert refused(confluent.create_topics([admin.NewTopic(own, 1)])).code() == (
        confluent_kafka.KafkaError.TOPIC_EXCEPTION
    )
    listed = confluent.list_topics(timeout=10).topics
    assert heartbeats in listed
    assert own not in listed
    results(confluent.delete_topics([heartbeats, "__CruiseControlMetrics"]))


def test_confluent_configurations(confluent: Any) -> None:
    results(confluent.create_topics([admin.NewTopic("cconf", 1, config={"retention.ms": "60000"})]))
    topic = admin.ConfigResource(admin.ResourceType.TOPIC, "cconf")
    (found,) = results(confluent.describe_configs([topic]))
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("60000", False)
    assert found["retention.ms"].source == admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert found["segment.ms"].is_default
    entry = admin.ConfigEntry("cleanup.policy", "compact", incremental_operation=admin.AlterConfigOpType.APPEND)
    changed = admin.ConfigResource(admin.ResourceType.TOPIC, "cconf", incremental_configs=[entry])
    results(confluent.incremental_alter_configs([changed]))
    (found,) = results(confluent.describe_configs([topic]))
    assert found["cleanup.policy"].value == "delete,compact"
    whole = admin.ConfigResource(admin.ResourceType.TOPIC, "cconf", set_config={"segment.bytes": "65536"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        results(confluent.alter_configs([whole]))
    (found,) = results(confluent.describe_configs([topic]))
    assert {name for name, one in found.items() if one.source == 1} == {"segment.bytes"}
    (found,) = results(confluent.describe_configs([admin.ConfigResource(admin.ResourceType.BROKER, "0")]))
    assert (found["num.partitions"].value, found["num.partitions"].is_read_only) == ("1", True)
    wrong = admin.ConfigEntry("no.such", "1", incremental_operation=admin.AlterConfigOpType.SET)
    changed = admin.ConfigResource(admin.ResourceType.TOPIC, "cconf", incremental_configs=[wrong])
    error = refused(confluent.incremental_alter_configs([changed]))
    assert error.code() == confluent_kafka.KafkaError.INVALID_CONFIG


def test_confluent_records_are_deleted(confluent: Any, server: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": server})
    for number in range(10):
        producer.produce("crecords", b"%d" % number)
    producer.flush(20)
    (found,) = results(confluent.delete_records([confluent_kafka.TopicPartition("crecords", 0, 4)]))
    assert found.low_watermark == 4
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server, "group.id": "x"})
    assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition("crecords", 0), 10) == (4, 10)
    (found,) = results(confluent.delete_records([confluent_kafka.TopicPartition("crecords", 0, -1)]))
    assert found.low_watermark == 10
    consumer.close()


def test_confluent_acls(confluent: Any, broker: BrokerProcess) -> None:
    with BlockingClient(f"127.0.0.1:{broker.native_port}") as native:
        native.administer("users.add", name="canna", password="p")
    kinds = admin.ResourceType, admin.ResourcePatternType, admin.AclOperation, admin.AclPermissionType
    resource, pattern, operation, permission = kinds
    allow = ("User:canna", "*", operation.READ, permission.ALLOW)
    results(confluent.create_acls([admin.AclBinding(resource.TOPIC, "orders", pattern.LITERAL, *allow)]))
    deny = ("User:canna", "*", operation.READ, permission.DENY)
    error = refused(confluent.create_acls([admin.AclBinding(resource.TOPIC, "orders", pattern.LITERAL, *deny)]))
    assert error.code() == confluent_kafka.KafkaError.INVALID_REQUEST
    mine = admin.AclBindingFilter(
        resource.ANY, None, pattern.ANY, "User:canna", None, operation.ANY, permission.ANY
    )  # fmt: skip
    found = confluent.describe_acls(mine).result(20)
    assert {(one.name, one.operation) for one in found} == {
        ("orders", one) for one in (operation.READ, operation.DESCRIBE, operation.DESCRIBE_CONFIGS)
    }
    (gone,) = results(confluent.delete_acls([mine]))
    assert len(gone) == 3
    assert confluent.describe_acls(mine).result(20) == []


@pytest.mark.parametrize("mechanism", ["SCRAM_SHA_256", "SCRAM_SHA_512"])
def test_confluent_scram(confluent: Any, server: str, broker: BrokerProcess, mechanism: str) -> None:
    user = f"c{mechanism.lower()}"
    info = admin.ScramCredentialInfo(getattr(admin.ScramMechanism, mechanism), 4096)
    results(confluent.alter_user_scram_credentials([admin.UserScramCredentialUpsertion(user, info, b"secret")]))
    (described,) = results(confluent.describe_user_scram_credentials([user]))
    assert [one.iterations for one in described.scram_credential_infos] == [4096]
    with BlockingClient(f"127.0.0.1:{broker.native_port}") as native:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        native.administer("permissions.set", vhost="/", name=user, **everything)
    login = {
        "bootstrap.servers": server, "security.protocol": "SASL_PLAINTEXT", "sasl.username": user,
        "sasl.mechanism": mechanism.replace("_", "-"),
    }  # fmt: skip
    producer = confluent_kafka.Producer(login | {"sasl.password": "secret"})
    reports: list[Any] = []
    producer.produce(f"t{user}", b"x", on_delivery=lambda error, _: reports.append(error))
    producer.flush(20)
    assert reports == [None]
    errors: list[Any] = []
    wrong = confluent_kafka.Producer(login | {"sasl.password": "wrong", "error_cb": errors.append})
    until(lambda: wrong.poll(0.1) == 0 and errors)
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    gone = [admin.UserScramCredentialDeletion(user, getattr(admin.ScramMechanism, mechanism))]
    results(confluent.alter_user_scram_credentials(gone))


def test_confluent_leaders_and_cluster(confluent: Any) -> None:
    results(confluent.create_topics([admin.NewTopic("cleaders", 1)]))
    partition = confluent_kafka.TopicPartition("cleaders", 0)
    found = confluent.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [partition]).result(20)
    assert [error.code() for error in found.values()] == [confluent_kafka.KafkaError.ELECTION_NOT_NEEDED]
    assert len(confluent.describe_cluster().result(20).nodes) == 1


# kafka-python


def test_kafka_python_topics_and_configurations(client: Any, server: str) -> None:
    client.create_topics([NewTopic("ka", 2, 1, topic_configs={"segment.bytes": "65536"})])
    client.create_partitions({"ka": NewPartitions(3)})
    (found,) = client.describe_topics(["ka"])
    assert len(found["partitions"]) == 3
    topic = ConfigResource(ConfigResourceType.TOPIC, "ka")
    described = client.describe_configs([topic])
    assert "65536" in repr(described)
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "ka", configs={"retention.ms": "1234"})])
    assert "1234" in repr(client.describe_configs([topic]))
    producer = KafkaProducer(bootstrap_servers=server)
    for _ in range(5):
        producer.send("ka", b"x", partition=0).get(10)
    producer.close()
    client.delete_records({TopicPartition("ka", 0): 3})
    assert "ka" in client.list_topics()
    client.delete_topics(["ka"])
    assert "ka" not in client.list_topics()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_python_logs_in(server: str, broker: BrokerProcess, mechanism: str) -> None:
    user = f"k{mechanism}"
    with BlockingClient(f"127.0.0.1:{broker.native_port}") as native:
        native.administer("users.add", name=user, password="secret")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        native.administer("permissions.set", vhost="/", name=user, **everything)
    producer = KafkaProducer(
        bootstrap_servers=server, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
        sasl_plain_username=user, sasl_plain_password="secret",
    )  # fmt: skip
    assert producer.send(f"t{mechanism}", b"x").get(20).offset == 0
    producer.close()
