"""What brokers say of a group and its transactions, for `kafka_rounds` when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from protocols.native.clients.blocking import BlockingClient
from protocols.native.errors import MillraceError

_PATIENCE_S = 15.0


def findings(servers: str, native: Sequence[str], group: str, topics: Sequence[str], partitions: int) -> Iterator[str]:
    """A line for each thing that may say why nothing goes on."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    places = [TopicPartition(topic, index) for topic in topics for index in range(partitions)]
    for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        ends = _said(_ends, admin, places, isolation)
        yield f"ends, {isolation.name.lower()}: {ends}"
    yield f"group: {_said(_members, admin, group)}"
    for stable in (True, False):
        offsets = _said(_offsets, admin, group, stable)
        yield f"offsets, {'stable' if stable else 'as they are'}: {offsets}"
    for server in native:
        yield f"transactions, says {server}: {_said(_transactions, server)}"


def _said(ask: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return ask(*arguments)
    except (KafkaException, MillraceError) as error:
        return repr(error)


def _ends(admin: AdminClient, places: list[TopicPartition], isolation: IsolationLevel) -> dict[str, int]:
    latest: Any = OffsetSpec.latest
    asked = admin.list_offsets(
        {place: latest() for place in places}, isolation_level=isolation, request_timeout=_PATIENCE_S
    )
    return {f"{place.topic}-{place.partition}": answer.result().offset for place, answer in asked.items()}


def _members(admin: AdminClient, group: str) -> tuple[str, list[tuple[str, list[tuple[str, int]]]]]:
    (answer,) = admin.describe_consumer_groups([group], request_timeout=_PATIENCE_S).values()
    found = answer.result()
    members = [
        (f"{one.member_id} of {one.group_instance_id}", _places(one.assignment.topic_partitions))
        for one in found.members
    ]
    return f"{found.state}, looked after by {found.coordinator}", members


def _places(found: Sequence[Any]) -> list[tuple[str, int]]:
    return [(one.topic, one.partition) for one in found]


def _offsets(admin: AdminClient, group: str, require_stable: bool) -> list[tuple[int, int, Any]]:
    asked = admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)], require_stable=require_stable, request_timeout=_PATIENCE_S
    )
    (answer,) = asked.values()
    return [(one.partition, one.offset, one.error) for one in answer.result().topic_partitions or ()]


def _transactions(server: str) -> Any:
    with BlockingClient(server, timeout_s=_PATIENCE_S) as client:
        return client.administer("transactions.list", only_open=False)["rows"]
