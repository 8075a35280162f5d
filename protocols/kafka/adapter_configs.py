"""What the requests about configurations have in common: which topic or broker is meant, and who may ask.

1. A topic's settings are seen by who may use it in any way, and altered by who may make and delete it.
2. A broker's are seen by administrators and those who monitor, and but for throttles (`adapter_throttles.py`) altered
   by nobody: see `adapter_broker_configs.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum

from protocols.kafka.adapter_door import Door
from protocols.kafka.adapter_errors import ENGINE_ERRORS, code_of
from protocols.kafka.adapter_throttles import THROTTLES, alter_throttles, can_be_altered
from protocols.kafka.codec import Entity
from protocols.kafka.errors import ErrorCode, KafkaError
from routing.bites import bites
from routing.declaring.topic_control import ConfigChange
from routing.topics.described_config import Kind, Source


class ResourceType(IntEnum):
    """What has a configuration, with Kafka."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


SET, DELETE, APPEND, SUBTRACT = range(4)
"""What is to become of a setting."""
_UNCONFIGURED = {
    ResourceType.BROKER_LOGGER: "loggers of brokers",
    ResourceType.CLIENT_METRICS: "client metrics",
    ResourceType.GROUP: "groups",
}
KINDS: dict[Kind, int] = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
"""What types of values are called."""
SOURCES: dict[Source, int] = {"topic": 1, "broker": 4, "default": 5}
"""Who has said something: the topic, the broker's configuration file, or nobody."""


def require_this_broker(door: Door, name: str) -> None:
    """A broker answers for itself alone. Raises KafkaError."""
    if name != str(door.node_id):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {door.node_id}, received {name!r}")


def is_taken_back(asked: Entity) -> bool:
    """Whether a setting is to be what it is if nobody says anything: of a broker all of them are so already."""
    return getattr(asked, "config_operation", SET) == DELETE


async def alter(
    door: Door,
    resources: Sequence[Entity],
    validate_only: bool,
    change_of: Callable[[Entity], ConfigChange],
    *,
    replaces: bool = False,
) -> Entity:
    """The reply to a request that alters; `change_of` makes a change of what is said of a topic, or raises. What is
    said of a broker `replaces` all that was.
    """
    named = Counter((one.resource_type, one.resource_name) for one in resources)
    responses = []
    async for one in bites(resources):
        code, why = ErrorCode.NONE, None
        try:
            if named[one.resource_type, one.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if one.resource_type == ResourceType.BROKER:
                await _alter_broker(door, one, validate_only, replaces=replaces)
            else:
                await _alter_one(door, one, validate_only, change_of)
        except ENGINE_ERRORS as error:
            code, why = code_of(error), str(error) or None
        responses.append(
            Entity(error_code=code, error_message=why, resource_type=one.resource_type, resource_name=one.resource_name)
        )
    return Entity(responses=responses)


def not_configured(asked: Entity) -> KafkaError:
    """What is said of a resource of a kind that has no configuration of its own here."""
    kind = _UNCONFIGURED.get(asked.resource_type, f"resources of type {asked.resource_type}")
    return KafkaError(
        ErrorCode.INVALID_REQUEST, f"{kind} have no configuration of their own here ('{asked.resource_name}')"
    )


async def _alter_one(
    door: Door, asked: Entity, validate_only: bool, change_of: Callable[[Entity], ConfigChange]
) -> None:
    if asked.resource_type != ResourceType.TOPIC:
        raise not_configured(asked)
    door.require("configure", asked.resource_name)
    control, change = door.broker.topic_control, change_of(asked)
    if validate_only:
        control.check_altered(asked.resource_name, change)
    else:
        await control.alter_topic(asked.resource_name, change)


async def _alter_broker(door: Door, asked: Entity, validate_only: bool, *, replaces: bool) -> None:
    door.require_administrator()
    left = [one for one in asked.configs if not is_taken_back(one)]
    names = ", ".join(one.name for one in left if not (asked.resource_name and can_be_altered(door, one.name)))
    if names:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {names}")
    if not asked.resource_name:
        return  # what is the default of all brokers: nobody says anything of it
    require_this_broker(door, asked.resource_name)
    if len({one.name for one in asked.configs}) != len(asked.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    changes = {} if not replaces else dict.fromkeys(THROTTLES, (DELETE, None))
    changes |= {one.name: (getattr(one, "config_operation", SET), one.value) for one in asked.configs}
    await alter_throttles(door, changes, validate_only=validate_only)
