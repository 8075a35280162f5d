"""How fast a broker of a cluster copies what others lack, under the names that Kafka has for it
(`kafka-reassign-partitions --throttle`): the only settings of a broker that are changed while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from protocols.kafka.adapter_door import Door
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from routing.cluster.cluster import Cluster
from routing.cluster.metadata.operating import check_throttle, throttle_broker
from routing.cluster.metadata.records import BrokerThrottle
from routing.errors import InvalidArgument

THROTTLES = {
    "leader.replication.throttled.rate": "sent",
    "follower.replication.throttled.rate": "received",
    "replica.alter.log.dirs.io.max.bytes.per.second": "moved",
}
"""Their names, and the fields of `BrokerThrottle`."""
_TEXTS = {
    "sent": "Bytes per second for all replicas that are not in sync; `millrace cluster throttle` where nobody says.",
    "received": "Noted for tools: the broker that sends is held back, by its leader.replication.throttled.rate.",
    "moved": "Noted for tools: a broker has one directory.",
}
_NOT_SET = str((1 << 63) - 1)
_SET, _DELETE = range(2)
_OF_BROKER, _DEFAULT = 2, 5
_LONG = 5


def can_be_altered(door: Door, name: str) -> bool:
    """Whether a broker's setting is one of these: a single broker has nobody to copy to."""
    return name in THROTTLES and door.broker.cluster is not None


async def alter_throttles(door: Door, changes: Mapping[str, tuple[int, str | None]], *, validate_only: bool) -> None:
    """What is to become of settings by name; others are left out. Raises KafkaError, BrokerError."""
    rates: dict[str, Any] = {THROTTLES[name]: _rate(name, *said) for name, said in changes.items() if name in THROTTLES}
    cluster = door.broker.cluster
    if cluster is not None and not validate_only and rates:
        await throttle_broker(cluster, lambda throttle: msgspec.structs.replace(throttle, **rates))


def _rate(name: str, operation: int, value: str | None) -> int | None:
    if operation == _DELETE:
        return None
    if operation != _SET:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is not a list that could be added to")
    try:
        rate = int(value or "")
        check_throttle(rate)
    except InvalidArgument as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={value}: {error}") from None
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={value!r} is not a whole number") from None
    return rate


def throttle_entries(cluster: Cluster) -> list[Entity]:
    """They as they are, for DescribeConfigs."""
    return [_entry(name, field, cluster.throttle) for name, field in THROTTLES.items()]


def _entry(name: str, field: str, throttle: BrokerThrottle) -> Entity:
    said: int | None = getattr(throttle, field)
    values = [(_NOT_SET, _DEFAULT)] if said is None else [(str(said), _OF_BROKER), (_NOT_SET, _DEFAULT)]
    value, source = values[0]
    return Entity(
        name=name,
        value=value,
        read_only=False,
        is_default=said is None,
        config_source=source,
        is_sensitive=False,
        synonyms=[Entity(name=name, value=value, source=source) for value, source in values],
        config_type=_LONG,
        documentation=_TEXTS[field],
    )
