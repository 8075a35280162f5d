"""A broker's settings under the names that Kafka has for them, for tools that look at them. All are read-only here:
they are the configuration file's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocols.kafka.adapter_door import Door
from protocols.kafka.adapter_login import MECHANISMS
from protocols.kafka.config import KafkaConfig
from routing.config import BrokerConfig
from routing.topics.described_config import Kind
from routing.topics.topic_config import FACTOR_DEFAULT, log_config


class BrokerSetting(NamedTuple):
    """One of them; `default` is what it would be if nobody said anything, None where somebody has to."""

    name: str
    kind: Kind
    value: str
    default: str | None
    documentation: str


_ENGINE: tuple[tuple[str, Kind, str, str], ...] = (
    ("auto.create.topics.enable", "boolean", "auto_create_topics", "Whether topics are made by their first use."),
    ("num.partitions", "int", "auto_create_partitions", "Partitions of topics for which nobody says how many."),
    ("group.initial.rebalance.delay.ms", "int", "group_initial_delay_ms", "How long a new group waits for members."),
    ("group.min.session.timeout.ms", "int", "group_session_timeout_ms_min", "The shortest session of a member."),
    ("group.max.session.timeout.ms", "int", "group_session_timeout_ms_max", "The longest session of a member."),
    ("group.max.size", "int", "group_members_max", "Members of one group."),
    ("group.consumer.session.timeout.ms", "int", "consumer_session_timeout_ms", "Of who has a group divided here."),
    ("group.consumer.heartbeat.interval.ms", "int", "consumer_heartbeat_interval_ms", "How often these are heard of."),
    ("transaction.max.timeout.ms", "int", "transaction_timeout_ms_max", "How long a transaction may be under way."),
    ("transactional.id.expiration.ms", "int", "transactional_id_expiration_ms", "When unused ids are forgotten."),
    (
        "log.retention.check.interval.ms", "long", "retention_check_interval_ms",
        "How often is looked for what need not be kept.",
    ),
)  # fmt: skip
_LOGS: tuple[tuple[str, Kind, str], ...] = (
    ("log.cleanup.policy", "list", "cleanup_policy"),
    ("log.index.interval.bytes", "int", "index_interval_bytes"),
    ("log.index.size.max.bytes", "int", "index_bytes_max"),
    ("log.message.timestamp.type", "string", "timestamp_type"),
    ("log.retention.bytes", "long", "retention_bytes"),
    ("log.retention.ms", "long", "retention_ms"),
    ("log.roll.ms", "long", "segment_ms"),
    ("log.segment.bytes", "int", "segment_bytes"),
    ("message.max.bytes", "int", "message_bytes_max"),
)


def broker_settings(door: Door) -> list[BrokerSetting]:
    """Those of the broker that the client is connected to, by name."""
    broker = door.broker
    default = BrokerConfig()
    found = [
        BrokerSetting(name, kind, _text(getattr(broker.config, field)), _text(getattr(default, field)), text)
        for name, kind, field, text in _ENGINE
    ]
    now, then = log_config({}, broker.topology.stream_host.config), log_config({}, default)
    found += [
        BrokerSetting(name, kind, _text(getattr(now, field)), _text(getattr(then, field)), "The default of topics.")
        for name, kind, field in _LOGS
    ]
    factor = "1" if broker.cluster is None else str(FACTOR_DEFAULT)
    minimum = "1" if broker.cluster is None else "2"
    always: list[tuple[str, Kind, str, str]] = [
        ("compression.type", "string", "producer", "Batches stay as their producers have compressed them."),
        ("default.replication.factor", "int", factor, "Replicas of topics for which nobody says how many."),
        ("delete.topic.enable", "boolean", "true", "Topics can be deleted."),
        ("min.insync.replicas", "int", minimum, "The default of topics."),
        ("sasl.enabled.mechanisms", "list", ",".join(MECHANISMS), "How clients log in."),
        ("unclean.leader.election.enable", "boolean", "false", "The default of topics."),
    ]
    found += [BrokerSetting(name, kind, value, value, text) for name, kind, value, text in always]
    where = BrokerSetting("advertised.listeners", "list", _listener(door), None, "Where clients find this broker.")
    found.append(where)
    own = KafkaConfig()
    minutes = str(broker.config.group_offsets_retention_ms // 60_000), str(default.group_offsets_retention_ms // 60_000)
    found.append(BrokerSetting("offsets.retention.minutes", "int", *minutes, "How long a group's offsets outlive it."))
    request = ("socket.request.max.bytes", door.config.request_bytes_max, own.request_bytes_max)
    found.append(BrokerSetting(request[0], "int", str(request[1]), str(request[2]), "The largest request."))
    for name in ("broker.id", "node.id"):
        found.append(BrokerSetting(name, "int", str(door.node_id), "-1", "Who this broker is."))
    return sorted(found)


def _listener(door: Door) -> str:
    """As Kafka has it: what the client that asks speaks, and where."""
    host, port = door.local
    protocol = ("" if door.sasl is None else "SASL_") + ("SSL" if door.name == "kafkas" else "PLAINTEXT")
    return f"{protocol}://{door.config.advertised_host or host}:{door.config.advertised_port or port}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
