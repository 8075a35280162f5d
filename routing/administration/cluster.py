"""What operators change of a cluster, by way of any broker: who drains or is gone, and where partitions lie.

Partitions are named as `cluster.partitions` names them: the homes of queues are those of `__queues`, group offsets of
`__offsets`, of transactions those of `__transactions`, of retained messages those of `__retained`. What is answered is
that it is asked for; `cluster.moving` is what is still under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routing.administration.operations import LOOKS, operation, table
from routing.cluster.metadata import log_names, operating
from routing.cluster.metadata.health import names_by_id, place
from routing.cluster.metadata.log_names import number_of, topic_log
from routing.errors import NotFound, PreconditionFailed
from routing.topics.reserved_names import OFFSETS, QUEUES, RETAINED, TRANSACTIONS

if TYPE_CHECKING:
    from routing.broker import Broker
    from routing.cluster.cluster import Cluster

_KINDS = {
    QUEUES: log_names.HOME,
    OFFSETS: log_names.OFFSETS,
    TRANSACTIONS: log_names.TRANSACTIONS,
    RETAINED: log_names.RETAINED,
}
MOVING = ("topic", "partition", "leader", "replicas", "isr", "target", "copying", "bytes_left", "min_insync_replicas")
PLANNED = ("topic", "partition", "before", "after")


def _cluster_of(broker: Broker) -> Cluster:
    if broker.cluster is None:
        raise PreconditionFailed("this broker is not a member of a cluster")
    return broker.cluster


@operation("cluster.drain")
async def drain(broker: Broker, user: str, broker_id: int) -> None:
    """Have a broker lead nothing, until `cluster.undrain`; one partition after another gets another leader."""
    await operating.drain(_cluster_of(broker), broker_id, on=True)


@operation("cluster.undrain")
async def undrain(broker: Broker, user: str, broker_id: int) -> None:
    """A broker may lead again."""
    await operating.drain(_cluster_of(broker), broker_id, on=False)


@operation("cluster.remove")
async def remove(broker: Broker, user: str, broker_id: int) -> None:
    """Forget a broker that is gone for good and that no partition has a replica on."""
    topics = names_by_id(broker.topics.values())

    def called(log: str) -> str:
        topic, partition = place(log, topics)
        return f"{topic}-{partition}"

    await operating.remove(_cluster_of(broker), broker_id, called=called)


@operation("cluster.move")
async def move(broker: Broker, user: str, topic: str, partition: int, replicas: list[int]) -> dict[str, int]:
    """Have other replicas of a partition, the preferred leader first; how many have to be in sync to write."""
    cluster = _cluster_of(broker)
    topics = names_by_id(broker.topics.values())
    log = next((log for log in cluster.elections.logs if place(log, topics) == (topic, partition)), None)
    if log is None:
        raise NotFound(f"there is no partition {partition} of '{topic}'")
    await operating.move(cluster, log, replicas)
    return {"min_insync_replicas": cluster.elections.logs[log].state.min_insync}


@operation("cluster.rebalance")
async def rebalance(broker: Broker, user: str, dry_run: bool = False) -> dict[str, Any]:
    """Have equally many replicas and leaders on all brokers that run and do not drain; what changes for that, and what
    is kept where it is, as fewer replicas would be left than have to be in sync.
    """
    changes, kept = await operating.rebalance(_cluster_of(broker), dry_run=dry_run)
    topics = names_by_id(broker.topics.values())
    rows = [[*place(log, topics), list(before), list(after)] for log, (before, after) in changes.items()]
    return {"columns": list(PLANNED), "rows": sorted(rows), "kept": sorted([*place(log, topics)] for log in kept)}


@operation("cluster.unclean_elections")
async def allow_unclean_elections(broker: Broker, user: str, topic: str, on: bool) -> None:
    """Whether replicas that may lack what was confirmed lead partitions of a topic where nobody else is left: at once
    where nobody leads now. `__queues` are the homes of queues, `__offsets` the group offsets, `__transactions`
    those that are under way, `__retained` what is retained, and wills.
    """
    cluster = _cluster_of(broker)
    kind = _KINDS.get(topic)
    if kind is not None:
        logs = [log for log in cluster.elections.logs if number_of(log, kind) is not None]
        await operating.allow_unclean(cluster, logs, on=on)
        return
    found = broker.topics.get(topic)
    if found is None:
        raise NotFound(f"no topic '{topic}'")
    if found.is_stream:
        raise PreconditionFailed(f"topic '{topic}' is a stream, which knows no unclean elections")
    await operating.allow_unclean(cluster, [topic_log(found.uid, one.index) for one in found.partitions], on=on)


@operation("cluster.throttle")
async def throttle(broker: Broker, user: str, catch_up_bytes_per_s: int | None = None) -> None:
    """What each leader sends at most to replicas that are not in sync; without a number, as it is configured."""
    await operating.throttle(_cluster_of(broker), catch_up_bytes_per_s)


@operation("cluster.moving", tags=LOOKS)
async def list_moving(broker: Broker, user: str, start: int = 0) -> dict[str, Any]:
    """Partitions with replicas that are not in sync, or that shall have others. How many bytes these still need is
    known to their leaders only.
    """
    topics = names_by_id(broker.topics.values())
    rows = (
        (
            *place(log, topics), state.leader, list(state.replicas), state.isr_brokers,
            list(state.target) if state.target is not None else None, list(missing), bytes_left, state.min_insync,
        )
        for log, state, missing, bytes_left in operating.copying(_cluster_of(broker))
    )  # fmt: skip
    return table(MOVING, rows, start)
