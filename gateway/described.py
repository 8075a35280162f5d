"""Topics and groups as `millrace topics describe` and `groups describe` show them, and HTTP: plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from protocols.native.clients.blocking import TopicDescription
    from protocols.native.clients.groups_admin import GroupDescription, PartitionLag, QueueLag


def described_topic(topic: TopicDescription) -> dict[str, Any]:
    """How a topic is configured, and where each partition stands."""
    partitions = [{**msgspec.structs.asdict(one), "single_copy": one.single_copy} for one in topic.partitions]
    return {"name": topic.name, "config": topic.config, "partitions": partitions}


def described_group(
    group: GroupDescription, lags: Iterable[PartitionLag], queue_lags: Iterable[QueueLag]
) -> dict[str, Any]:
    """Who is in a group, and how many records and seconds it is behind. Seconds are the age of the first record that
    was not read; in queues, which Spark's queries read, of the oldest message.
    """
    partitions = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": one.offset,
            "end_offset": one.end_offset,
            "lag": one.lag,
            "lag_s": _seconds(one.lag_ms),
            "member_id": one.member_id,
        }
        for one in lags
    ]
    queues = [
        {
            "vhost": one.vhost,
            "queue": one.queue,
            "mode": one.mode,
            "offset": one.offset,
            "lag": one.lag,
            "lag_s": _seconds(one.lag_ms),
        }
        for one in queue_lags
    ]
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


def _seconds(lag_ms: int | None) -> float | None:
    return None if lag_ms is None else round(lag_ms / 1000, 3)
