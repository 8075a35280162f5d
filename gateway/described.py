"""Topics and groups as `millrace topics describe` and `groups describe` show them, and HTTP: plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from protocols.native.clients.blocking import TopicDescription
    from protocols.native.clients.groups_admin import GroupDescription, PartitionLag, QueueLag


def described_topic(topic: TopicDescription) -> dict[str, Any]:
    """How a topic is configured, and where each partition stands; None for what the broker that was asked has not."""
    partitions = [msgspec.structs.asdict(one) | {"single_copy": one.single_copy} for one in topic.partitions]
    for told, one in zip(partitions, topic.partitions, strict=True):
        if not one.is_there:
            told |= dict.fromkeys(("log_start_offset", "high_watermark", "log_end_offset", "size_bytes"))
    return {"name": topic.name, "config": topic.config, "partitions": partitions}


def described_group(
    group: GroupDescription, lags: Iterable[PartitionLag], queue_lags: Iterable[QueueLag]
) -> dict[str, Any]:
    """Who is in a group, and how many records and seconds it is behind. Seconds are the age of the first record that
    was not read; in queues, which Spark's queries read, of the oldest message.
    """
    partitions, queues = list(map(_in_seconds, lags)), list(map(_in_seconds, queue_lags))
    return {
        "group": group.group,
        "state": group.state,
        "type": group.type,
        "protocol": group.protocol,
        "generation": group.generation,
        "lag": sum(one["lag"] for one in (*partitions, *queues)),
        "lag_s": max((one["lag_s"] or 0.0 for one in (*partitions, *queues)), default=0.0),
        "members": [msgspec.structs.asdict(member) for member in group.members],
        "partitions": partitions,
        "queues": queues,
    }


def _in_seconds(lag: PartitionLag | QueueLag) -> dict[str, Any]:
    """Its fields, with `lag_s` for `lag_ms`."""
    fields = msgspec.structs.asdict(lag)
    lag_s = None if lag.lag_ms is None else round(lag.lag_ms / 1000, 3)
    return {("lag_s" if name == "lag_ms" else name): lag_s if name == "lag_ms" else fields[name] for name in fields}
