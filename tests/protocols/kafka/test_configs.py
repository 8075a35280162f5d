"""Configurations of topics and brokers through the Kafka door, request by request."""

from __future__ import annotations

from typing import Any

import pytest

from core_log.memory_files import MemoryFiles
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode
from protocols.kafka.messages_admin import (
    ALTER_CONFIGS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
)
from protocols.kafka.messages_users import DESCRIBE_CLIENT_QUOTAS
from routing.access.grants import Permission
from routing.broker import Broker
from routing.errors import InvalidConfig
from routing.topology import topic_plans
from tests.protocols.kafka.door import Peer, batch_of, kafka_broker

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
OF_TOPIC, OF_FILE, DEFAULT = 1, 4, 5


async def described(peer: Peer, name: str, kind: int = TOPIC, version: int = 4, keys: Any = None) -> Any:
    asked = [Entity(resource_type=kind, resource_name=name, configuration_keys=keys)]
    reply = await peer.ask(
        DESCRIBE_CONFIGS, version, resources=asked, include_synonyms=True, include_documentation=True
    )
    return reply.results[0]


async def settings(peer: Peer, name: str, kind: int = TOPIC) -> dict[str, Any]:
    return {one.name: one for one in (await described(peer, name, kind)).configs}


async def change(
    peer: Peer, *changes: tuple[str, int, str | None], name: str = "t", kind: int = TOPIC, dry: bool = False
) -> Any:
    entries = [Entity(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    asked = [Entity(resource_type=kind, resource_name=name, configs=entries)]
    reply = await peer.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=asked, validate_only=dry)
    return reply.responses[0]


def log_of(broker: Broker, topic: str = "t") -> Any:
    return broker.topics[topic].partitions[0].log


@pytest.mark.parametrize("version", range(5))
async def test_what_is_set_is_told_from_what_is_not(version: int) -> None:
    async with kafka_broker(topic_segment_bytes=1 << 29) as broker:
        await broker.create_topic("t", config={"retention.ms": "1000", "replication.factor": "1"})
        found = {one.name: one for one in (await described(Peer(broker), "t", version=version)).configs}
        values = {name: one.value for name, one in found.items()}
        assert values["retention.ms"] == "1000"
        assert (values["cleanup.policy"], values["compression.type"]) == ("delete", "producer")
        assert (values["min.insync.replicas"], values["unclean.leader.election.enable"]) == ("1", "false")
        assert "replication.factor" not in values
        assert not any(one.is_sensitive or one.read_only for one in found.values())
        if version == 0:
            assert [name for name, one in found.items() if not one.is_default] == ["retention.ms", "segment.bytes"]
            return
        sources = {name: one.config_source for name, one in found.items() if one.config_source != DEFAULT}
        assert sources == {"retention.ms": OF_TOPIC, "segment.bytes": OF_FILE}
        synonyms = [(one.name, one.value, one.source) for one in found["retention.ms"].synonyms]
        assert synonyms == [("retention.ms", "1000", OF_TOPIC), ("log.retention.ms", "604800000", DEFAULT)]
        synonyms = [(one.name, one.value, one.source) for one in found["segment.bytes"].synonyms]
        assert synonyms == [("log.segment.bytes", str(1 << 29), OF_FILE), ("log.segment.bytes", str(1 << 30), DEFAULT)]
        if version >= 3:
            assert {name: one.config_type for name, one in found.items()} | {
                "cleanup.policy": 7, "retention.ms": 5, "max.message.bytes": 3, "preallocate": 1,
                "min.cleanable.dirty.ratio": 6, "message.timestamp.type": 2,
            } == {name: one.config_type for name, one in found.items()}  # fmt: skip
            assert all(one.documentation for one in found.values())


async def test_only_what_is_asked_for_is_told() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t")
        peer = Peer(broker)
        assert [one.name for one in (await described(peer, "t", keys=["segment.ms", "no"])).configs] == ["segment.ms"]
        assert (await described(peer, "t", keys=[])).configs == (await described(peer, "t")).configs
        asked = [Entity(resource_type=TOPIC, resource_name="t", configuration_keys=None)]
        reply = await peer.ask(DESCRIBE_CONFIGS, 4, resources=asked)
        assert not any(one.synonyms or one.documentation for one in reply.results[0].configs)
        assert (await described(peer, "no")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for kind in (0, 3, 8, 99):
            assert (await described(peer, "t", kind)).error_code == ErrorCode.INVALID_REQUEST
        said = (await change(peer, ("x", SET, "1"), name="g", kind=32)).error_message
        assert said == "groups have no configuration of their own here ('g')"


async def test_what_is_named_twice_is_described_once() -> None:
    """Or a small request asks for replies without end."""
    async with kafka_broker() as broker:
        await broker.create_topic("t")
        asked = [Entity(resource_type=TOPIC, resource_name="t", configuration_keys=None)] * 1000
        assert len((await Peer(broker).ask(DESCRIBE_CONFIGS, 4, resources=asked)).results) == 1


async def test_groups_are_all_as_the_broker_has_them() -> None:
    async with kafka_broker(consumer_session_timeout_ms=30_000) as broker:
        found = await settings(Peer(broker), "g", 32)
        assert {name: (one.value, one.config_source) for name, one in found.items()} == {
            "consumer.heartbeat.interval.ms": ("5000", DEFAULT), "consumer.session.timeout.ms": ("30000", OF_FILE),
        }  # fmt: skip
        assert all(one.read_only for one in found.values())


async def test_what_may_have_a_configuration_is_listed() -> None:
    async with kafka_broker() as broker:
        for name in ("a", "b"):
            await broker.create_topic(name)
        peer = Peer(broker)

        async def listed(version: int, *kinds: int) -> list[tuple[int, str]]:
            more = {"resource_types": list(kinds)} if version else {}
            reply = await peer.ask(LIST_CONFIG_RESOURCES, version, **more)
            assert reply.error_code == 0
            return [(one.resource_type, one.resource_name) for one in reply.config_resources]

        assert await listed(0) == []
        assert await listed(1) == [(2, "a"), (2, "b"), (4, "0"), (8, "0")]
        for kind, name in await listed(1):
            assert (await described(peer, name, kind)).error_code == 0, "what is listed can be described"
        assert await listed(1, 32, 16) == []
        assert await listed(1, 4) == [(4, "0")]
        reply = await peer.ask(LIST_CONFIG_RESOURCES, 1, resource_types=[2, 3])
        assert (reply.error_code, reply.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


async def test_a_broker_tells_of_itself() -> None:
    async with kafka_broker(auto_create_partitions=7) as broker:
        peer = Peer(broker)
        found = await settings(peer, "0", BROKER)
        assert (found["num.partitions"].value, found["num.partitions"].config_source) == ("7", OF_FILE)
        assert (found["auto.create.topics.enable"].value, found["auto.create.topics.enable"].config_source) == (
            "true", DEFAULT,
        )  # fmt: skip
        where = found["advertised.listeners"]
        assert (where.value, where.config_source, where.is_default) == ("PLAINTEXT://127.0.0.1:9092", OF_FILE, False)
        assert found["node.id"].value == "0"
        assert all(one.read_only for one in found.values())
        assert (await described(peer, "", BROKER)).configs == []
        assert (await described(peer, "5", BROKER)).error_code == ErrorCode.INVALID_REQUEST
        assert (await change(peer, ("num.partitions", SET, "3"), name="0", kind=BROKER)).error_code == (
            ErrorCode.INVALID_REQUEST
        )


async def test_where_a_broker_is_found_by_who_logs_in_over_tls() -> None:
    async with kafka_broker() as broker:
        peer = Peer(broker, advertised_host="broker.example", advertised_port=9093)
        peer.adapter.door.name, peer.adapter.door.sasl = "kafkas", object()
        where = (await settings(peer, "0", BROKER))["advertised.listeners"]
        assert where.value == "SASL_SSL://broker.example:9093"
        assert [(one.value, one.source) for one in where.synonyms] == [(where.value, OF_FILE)]


async def test_what_nobody_has_set_is_taken_back() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t")
        peer = Peer(broker)
        rate = "leader.replication.throttled.rate"
        assert (await change(peer, (rate, DELETE, None), name="0", kind=BROKER)).error_code == 0
        refused = await change(peer, (rate, SET, "1"), name="0", kind=BROKER)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        replicas = "leader.replication.throttled.replicas"
        assert (await change(peer, (replicas, DELETE, None), ("no.such.config", DELETE, None))).error_code == 0
        assert (await change(peer, ("no.such.config", SET, "*"))).error_code == ErrorCode.INVALID_CONFIG
        for version in range(2):
            reply = await peer.ask(DESCRIBE_CLIENT_QUOTAS, version, components=[], strict=False)
            assert (reply.error_code, reply.entries) == (0, [])


async def test_whatever_is_shown_as_a_list_is_added_to_as_one() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", config={"millrace.dead.letter.fetches": "1"})
        peer = Peer(broker)
        lists = {name for name, one in (await settings(peer, "t")).items() if one.config_type == 7}
        some = {"cleanup.policy": "compact", "millrace.retry.delays.ms": "5"}
        some |= {f"{role}.replication.throttled.replicas": "0:0" for role in ("leader", "follower")}
        for name in sorted(lists):
            before = (await settings(peer, "t"))[name].value
            dry = name == "cleanup.policy"
            assert (await change(peer, (name, APPEND, some.get(name, "g")), dry=dry)).error_code == 0
            if not dry:
                assert (await settings(peer, "t"))[name].value == some.get(name, "g")
                assert (await change(peer, (name, SUBTRACT, some.get(name, "g")))).error_code == 0
            assert (await settings(peer, "t"))[name].value == before


async def test_replicas_that_are_throttled_are_noted() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t")
        peer = Peer(broker)
        replicas = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
        for name in replicas:
            for good in ("*", "none", "", "0:1,0:2"):
                assert (await change(peer, (name, SET, good))).error_code == 0
            assert (await change(peer, (name, APPEND, "1:2"))).error_code == 0
            for bad in ("0", "0:1;", "x:1", "**"):
                assert (await change(peer, (name, SET, bad))).error_code == ErrorCode.INVALID_CONFIG
            found = (await settings(peer, "t"))[name]
            assert (found.value, found.config_source, found.config_type) == ("0:1,0:2,1:2", OF_TOPIC, 7)
        assert (await change(peer, *((name, DELETE, None) for name in replicas))).error_code == 0
        found = await settings(peer, "t")
        assert [(found[name].value, found[name].config_source) for name in replicas] == [("", DEFAULT)] * 2


async def test_settings_that_nobody_notices_are_kept_for_who_copies_a_topic() -> None:
    kept = {
        "compression.gzip.level": "9", "compression.lz4.level": "17", "compression.zstd.level": "-1",
        "file.delete.delay.ms": "1000", "flush.messages": "1", "flush.ms": "5", "local.retention.bytes": "-1",
        "local.retention.ms": "86400000", "preallocate": "true", "segment.jitter.ms": "60000",
    }  # fmt: skip
    files = MemoryFiles()
    async with kafka_broker(files=files) as broker:
        await broker.create_topic("copy", config=kept)
        await broker.create_topic("t")
        peer = Peer(broker)
        usual = {name: one.value for name, one in (await settings(peer, "t")).items()}
        assert (await change(peer, *((name, SET, value) for name, value in kept.items()))).error_code == 0
        for name, value in {**dict.fromkeys(kept, "nothing"), "compression.gzip.level": "10"}.items():
            assert (await change(peer, (name, SET, value))).error_code == ErrorCode.INVALID_CONFIG
    async with kafka_broker(files=files) as broker:
        peer = Peer(broker)
        for topic in ("copy", "t"):
            shown = {
                name: one.value for name, one in (await settings(peer, topic)).items() if one.config_source != DEFAULT
            }
            assert shown == kept
        assert (await change(peer, *((name, DELETE, None) for name in kept))).error_code == 0
        assert {name: one.value for name, one in (await settings(peer, "t")).items()} == usual


async def test_a_level_of_gzip_that_catalogs_may_have_is_not_taken_and_bars_nothing_else() -> None:
    files = MemoryFiles()
    name = "compression.gzip.level"
    async with kafka_broker(files) as broker:
        await broker.create_topic("t")
        with pytest.raises(InvalidConfig, match=r"compression.gzip.level=0 is neither in \[1, 9\] nor -1"):
            await broker.create_topic("new", config={name: "0"})
        peer = Peer(broker)
        assert (await change(peer, (name, SET, "0"))).error_code == ErrorCode.INVALID_CONFIG
        assert (await change(peer, (name, SET, "-1"))).error_code == 0
        # As it was written once.
        topic = broker.topics["t"]
        await broker.topology.change(lambda: topic_plans.altered(broker.topology, topic, {**topic.config, name: "0"}))
    async with kafka_broker(files) as broker:
        peer = Peer(broker)
        assert (await change(peer, ("retention.ms", SET, "1000"))).error_code == 0
        assert (await settings(peer, "t"))[name].value == "0"


async def test_what_is_altered_counts_at_once_and_after_a_restart() -> None:
    files = MemoryFiles()
    async with kafka_broker(files) as broker:
        await broker.create_topic("t", config={"retention.ms": "1000"})
        peer = Peer(broker)
        await peer.produce("t", batch_of([bytes(1000)]))
        assert (await change(peer, ("max.message.bytes", SET, "500"), ("segment.ms", SET, "77"))).error_code == 0
        assert (await peer.produce("t", batch_of([bytes(1000)]))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        config = log_of(broker).config
        assert (config.message_bytes_max, config.segment_ms, config.retention_ms) == (500, 77, 1000)
        assert (await change(peer, ("max.message.bytes", DELETE, None))).error_code == 0
        assert (await peer.produce("t", batch_of([bytes(1000)]))).error_code == 0
        files = files.crash()
    async with kafka_broker(files) as broker:
        found = {name: one.value for name, one in (await settings(Peer(broker), "t")).items()}
        assert (found["segment.ms"], found["retention.ms"], found["max.message.bytes"]) == ("77", "1000", "1048588")
        assert log_of(broker).config.segment_ms == 77


async def test_true_and_false_may_have_large_letters() -> None:
    said = {
        "unclean.leader.election.enable": "True",
        "preallocate": "TRUE",
        "millrace.delay.enable": " True",
        "millrace.expiry.enable": "False",
        "remote.storage.enable": "FALSE",
    }
    async with kafka_broker() as broker:
        await broker.create_topic("t", config=said)
        found = {name: one.value for name, one in (await settings(Peer(broker), "t")).items() if name in said}
        assert found == {name: text.strip().lower() for name, text in said.items()}
        assert (log_of(broker).config.delays, log_of(broker).config.expires) == (True, False)
        for value in ("yes", "1", ""):
            refused = await change(Peer(broker), ("millrace.delay.enable", SET, value))
            assert refused.error_code == ErrorCode.INVALID_CONFIG


async def test_a_list_is_added_to_and_taken_from() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t")
        peer = Peer(broker)

        async def then(operation: int, value: str | None) -> str:
            reply = await change(peer, ("cleanup.policy", operation, value))
            assert reply.error_code == 0, reply.error_message
            found: str = (await settings(peer, "t"))["cleanup.policy"].value
            return found

        assert await then(APPEND, "compact") == "delete,compact"
        assert log_of(broker).config.compacts
        assert await then(SUBTRACT, "delete") == "compact"
        for said in ("compact,delete", "delete, compact"):  # told as it was said: tools would set it for ever otherwise
            assert await then(SET, said) == said.replace(" ", "")
            assert (log_of(broker).config.compacts, log_of(broker).config.deletes) == (True, True)
        assert await then(DELETE, None) == "delete"
        assert not log_of(broker).config.compacts


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("no.such.config", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "-2")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", SET, "shred")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", SUBTRACT, "delete")], ErrorCode.INVALID_CONFIG),
        ([("compression.type", SET, "brotli")], ErrorCode.INVALID_CONFIG),
        ([("replication.factor", SET, "2")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("min.insync.replicas", SET, "4")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([("segment.ms", SET, "1"), ("segment.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
        ([("segment.ms", SET, "1"), ("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
    ],
)
async def test_what_cannot_be_altered_changes_nothing(changes: list[Any], code: ErrorCode) -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", config={"segment.bytes": "4096"})
        before = log_of(broker).config
        refused = await change(Peer(broker), *changes)
        assert (refused.error_code, bool(refused.error_message)) == (code, True)
        assert log_of(broker).config == before
        assert broker.topics["t"].config == {"segment.bytes": "4096"}


async def test_altering_as_a_whole_forgets_what_is_not_said() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", config={"retention.ms": "1000", "segment.bytes": "4096"})
        peer = Peer(broker)
        for version in range(3):
            said = [Entity(name="segment.bytes", value=str(8192 + version))]
            asked = [Entity(resource_type=TOPIC, resource_name="t", configs=said)]
            for dry in (True, False):
                reply = await peer.ask(ALTER_CONFIGS, version, resources=asked, validate_only=dry)
                assert [one.error_code for one in reply.responses] == [0]
                assert (log_of(broker).config.segment_bytes == 8192 + version) is not dry
        assert broker.topics["t"].config == {"segment.bytes": "8194"}
        asked = [Entity(resource_type=TOPIC, resource_name="t", configs=[])] * 2
        reply = await peer.ask(ALTER_CONFIGS, 2, resources=asked, validate_only=False)
        assert [one.error_code for one in reply.responses] == [ErrorCode.INVALID_REQUEST] * 2


async def test_lower_limits_drop_what_need_not_be_kept_any_more() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t", config={"segment.bytes": "4096"})
        peer = Peer(broker)
        for _ in range(10):
            await peer.produce("t", batch_of([bytes(3000)]))
        assert log_of(broker).log_start_offset == 0
        assert (await change(peer, ("retention.bytes", SET, "7000"))).error_code == 0
        assert log_of(broker).log_start_offset > 5


async def test_a_stream_is_altered_and_stays_one() -> None:
    files = MemoryFiles()
    async with kafka_broker(files) as broker:
        await broker.declare_queue("s", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "1h"})
        peer = Peer(broker)
        assert (await change(peer, ("retention.ms", SET, "60000"), name="s")).error_code == 0
        stream = broker.topology.vhost("/").streams["s"]
        assert log_of(broker, "s").config.retention_ms == 60_000
        refused = await change(peer, ("cleanup.policy", SET, "compact"), name="s")
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert broker.topology.vhost("/").streams["s"] is stream
        files = files.crash()
    async with kafka_broker(files) as broker:
        assert broker.topology.vhost("/").streams["s"].topic is broker.topics["s"]
        assert log_of(broker, "s").config.retention_ms == 60_000


async def test_who_may_not() -> None:
    async with kafka_broker() as broker:
        await broker.create_topic("t")
        await broker.rights.set_tags("guest", ["monitoring"])
        await broker.rights.set_permission("/", "guest", Permission("", "^t$", ""))
        peer = Peer(broker)
        assert (await described(peer, "t")).error_code == 0
        assert (await change(peer, ("segment.ms", SET, "5"))).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await described(peer, "other")).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await described(peer, "0", BROKER)).error_code == 0
        refused = await change(peer, ("num.partitions", SET, "3"), name="0", kind=BROKER)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        await broker.rights.set_tags("guest", [])
        assert (await described(peer, "0", BROKER)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_a_new_topic_tells_how_it_is_configured() -> None:
    async with kafka_broker() as broker:
        topic = Entity(
            name="t", num_partitions=1, replication_factor=1, assignments=[],
            configs=[Entity(name="cleanup.policy", value="compact")],
        )  # fmt: skip
        reply = await Peer(broker).ask(CREATE_TOPICS, 7, topics=[topic], timeout_ms=0, validate_only=False)
        found = {one.name: (one.value, one.config_source) for one in reply.topics[0].configs}
        assert found["cleanup.policy"] == ("compact", OF_TOPIC)
        assert found["retention.ms"] == ("604800000", DEFAULT)
