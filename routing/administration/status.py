"""What an operator sees of the brokers and of the partitions: who runs, who leads, and what is not as it should be.

1. A partition of the homes of queues is one of the topic `__queues`, of group offsets one of `__offsets`,
   of transactions that were decided one of `__transactions`, of retained messages one of `__retained`.
2. What the metadata says (leader, epoch, replicas, ISR) is the same whoever is asked, but for the moment that a change
   takes to arrive. How far a log has come is what the broker that is asked knows: of its own log where it has a
   replica, and nothing where not. `offsets_of` names that broker; ask the leader for the leader's own.
3. A single broker is one that has id 0, and the only replica of everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from core_log.partition_log import PartitionLog
from core_log.replication.state import LogState
from routing.administration.operations import LOOKS, operation, table
from routing.cluster.metadata.health import is_single_copy, names_by_id, place
from routing.cluster.metadata.records import CONTROLLER, BrokerRecord, ControllerRecord, decode
from routing.topics.reserved_names import OFFSETS, QUEUES

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.cluster import Cluster

COLUMNS = (
    "topic", "partition", "leader", "epoch", "replicas", "isr", "min_insync_replicas", "log_end_offset",
    "high_watermark", "offsets_of", "unclean_elections", "unclean_epoch", "single_copy",
)  # fmt: skip


@operation("cluster.brokers", tags=LOOKS)
async def list_brokers(broker: Broker, user: str) -> dict[str, Any]:
    """The broker that is asked, the controller, whether the former has its lease (else all this is what it knew last)
    and serves all the same, and all brokers that there are.
    """
    cluster = broker.cluster
    if cluster is None:
        now = {
            "refusing": any(log.error is not None for log in broker.logs),
            "stalled": broker.stalls.stalled,
            "low_on_disk": broker.alarms.disk_low,
        }
        brokers = [_described(0, None) | {"alive": True} | now]
        said = {"broker": 0, "controller": None, "has_lease": True, "serves": True, "etcd_refuses": ""}
        return said | {"brokers": brokers}
    entry = cluster.store.get(CONTROLLER)
    controller = decode(entry.value, ControllerRecord).broker if entry is not None else None
    alive = cluster.members.brokers
    brokers = [
        _described(number, alive[number].record)
        | {"alive": True, "epoch": alive[number].epoch, "draining": alive[number].draining}
        if number in alive
        else _described(number, None)
        for number in sorted(cluster.members.known)
    ]
    return {
        "broker": cluster.broker_id,
        "controller": controller,
        "has_lease": not cluster.has_no_lease,
        "serves": cluster.serves,
        "etcd_refuses": cluster.store.refusal,
        "brokers": brokers,
    }


@operation("cluster.counters", tags=LOOKS)
async def counters(broker: Broker, user: str) -> dict[str, int]:
    """What has happened to the logs of the broker that is asked since it was started; nothing at a single one."""
    return {} if broker.cluster is None else broker.cluster.counters.snapshot()


def _described(broker_id: int, record: BrokerRecord | None) -> dict[str, Any]:
    found = record or BrokerRecord("", "", "", {})
    return {
        "id": broker_id,
        "alive": False,
        "rack": found.rack,
        "version": found.version,
        "addresses": dict(found.addresses),
        "epoch": None,
        "draining": found.draining,
        "refusing": found.refusing,
        "stalled": found.stalled,
        "low_on_disk": found.low_on_disk,
        "unreachable": list(found.unreachable),
        "lost": list(found.lost),
        "unopened": list(found.unopened),
        "unreadable": list(found.unreadable),
    }


@operation("cluster.partitions", tags=LOOKS)
async def list_partitions(broker: Broker, user: str, start: int = 0) -> dict[str, Any]:
    """All partitions of topics, of the homes of queues and of group offsets."""
    rows = _of_one(broker) if broker.cluster is None else _of_cluster(broker, broker.cluster)
    return table(COLUMNS, rows, start)


def logs_of_one(broker: Broker) -> list[tuple[str, int, PartitionLog]]:
    """Topic, partition and log of all partitions of a single broker."""
    logs: list[tuple[str, int, PartitionLog]] = [
        (topic.name, partition.index, partition.log)
        for topic in broker.topics.values()
        for partition in topic.partitions
    ]
    logs += [(OFFSETS, 0, log) for log in broker.storage.stores if log.directory == "offsets/0"]
    logs += [(QUEUES, home.index, home.log) for home in broker.topology.stripes]
    return logs


def _of_one(broker: Broker) -> Iterator[tuple[Any, ...]]:
    for name, index, log in logs_of_one(broker):
        yield name, index, 0, log.leader_epoch, [0], [0], 1, log.log_end_offset, log.high_watermark, 0, False, 0, True


def _of_cluster(broker: Broker, cluster: Cluster) -> Iterator[tuple[Any, ...]]:
    topics = names_by_id(broker.topics.values())
    names = sorted((place(name, topics), name) for name in cluster.elections.logs)
    for (topic, index), name in names:
        state = cluster.elections.logs[name].state
        replica = cluster.replicas.by_name.get(name)
        yield (
            topic, index, *_said(state),
            *((replica.log.log_end_offset, replica.log.high_watermark, cluster.broker_id) if replica else (None,) * 3),
            state.unclean, state.unclean_epoch, is_single_copy(state),
        )  # fmt: skip


def _said(state: LogState) -> tuple[Any, ...]:
    return state.leader, state.leader_epoch, list(state.replicas), state.isr_brokers, state.min_insync
